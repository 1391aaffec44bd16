"""What is in a batch that its probabilities do not say: strangers, and wrong labels.

A `Solution` itself says which classes are present and which labels are doubtful.
"""

from .strangers import novelty
from .wrong_labels import LabelDoubt, label_doubt

__all__ = ["LabelDoubt", "label_doubt", "novelty"]
