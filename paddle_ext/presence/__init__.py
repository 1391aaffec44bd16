"""What class probabilities alone do not say: unknown classes, groups of classes, wrong labels,
labels that depend on the batch, and which samples to label next.

A `Solution` itself says which classes are present and which labels are doubtful.
"""

from .alarms import UnfamiliarBatchWarning
from .hierarchy import RolledUp, roll_up
from .labels import LabelDoubt, Suggestions, label_doubt, suggest
from .stability import label_changes
from .unknown import hidden, novelty, strangers

__all__ = [
    "LabelDoubt",
    "RolledUp",
    "Suggestions",
    "UnfamiliarBatchWarning",
    "hidden",
    "label_changes",
    "label_doubt",
    "novelty",
    "roll_up",
    "strangers",
    "suggest",
]
