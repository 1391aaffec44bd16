"""The application: `classify`, and the command ``paddle-ext``."""
