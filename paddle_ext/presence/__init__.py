"""What is in a batch that its probabilities do not say: strangers, groups, and wrong labels.

A `Solution` itself says which classes are present and which labels are doubtful.
"""

from .hierarchy import RolledUp, roll_up
from .unknown import novelty, strangers
from .wrong_labels import LabelDoubt, label_doubt

__all__ = ["LabelDoubt", "RolledUp", "label_doubt", "novelty", "roll_up", "strangers"]
