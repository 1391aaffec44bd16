"""Adapters to other libraries, which are imported only when used."""
