"""Networks, their training on the base classes, and their features."""

from .checkpoints import Checkpoint, load_checkpoint
from .extraction import extract, nearest_mean_accuracy
from .networks import Backbone, create
from .recipes import Augmentation, Recipe, Transform, recipe
from .training import Epoch, Trained, train

__all__ = [
    "Augmentation",
    "Backbone",
    "Checkpoint",
    "Epoch",
    "Recipe",
    "Trained",
    "Transform",
    "create",
    "extract",
    "load_checkpoint",
    "nearest_mean_accuracy",
    "recipe",
    "train",
]
