"""Adapters to other libraries, each of which imports its library only when it is used."""
