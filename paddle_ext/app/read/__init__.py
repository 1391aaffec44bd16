"""Open the data of `classify`, check them, and compute their features."""
