"""Feature banks."""

from .bank import FeatureBank

__all__ = ["FeatureBank"]
