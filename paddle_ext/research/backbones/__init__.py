"""Networks, their training on the base classes, and their features."""

from .augment import Augmentation, Transform
from .checkpoints import Checkpoint, load_checkpoint
from .extraction import digest_of_images, digest_of_weights, extract
from .networks import ARCHITECTURES, Backbone, ResNet18, SmallNet, WideResNet28x10, create
from .recipes import RECIPES, Recipe, recipe
from .training import Epoch, Trained, train
from .validation import nearest_mean_accuracy

__all__ = [
    "ARCHITECTURES",
    "RECIPES",
    "Augmentation",
    "Backbone",
    "Checkpoint",
    "Epoch",
    "Recipe",
    "ResNet18",
    "SmallNet",
    "Trained",
    "Transform",
    "WideResNet28x10",
    "create",
    "digest_of_images",
    "digest_of_weights",
    "extract",
    "load_checkpoint",
    "nearest_mean_accuracy",
    "recipe",
    "train",
]
