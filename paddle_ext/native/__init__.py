"""The native module: how it is loaded, where it runs, and how it is called."""
