"""Networks, their training on the base classes, and their features."""

from .augment import Augmentation, Transform
from .base import Backbone
from .checkpoints import Checkpoint, load_checkpoint
from .extraction import digest_of_images, digest_of_weights, extract
from .networks import ARCHITECTURES, create
from .recipes import RECIPES, Recipe, recipe
from .resnet import ResNet18
from .run import Epoch
from .small import SmallNet
from .training import Trained, train
from .validation import nearest_mean_accuracy
from .wide_resnet import WideResNet28x10

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
