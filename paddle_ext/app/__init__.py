"""For people with files: `classify`, and the command ``paddle-ext``."""
