"""Recipes for training a network on the base classes: all numbers of a run in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ... import check
from .augment import Augmentation
from .networks import known_architecture

SCHEDULES = ("steps", "cosine")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run. The defaults are the paper's for ResNet-18.

    Parameters
    ----------
    epochs, batch_size : int
    learning_rate : float
        The maximum.
    momentum, weight_decay : float
    nesterov : bool
    schedule : {"steps", "cosine"}
        ``"steps"``: divided by 10 at each milestone; ``"cosine"``: down to 0.
    milestones : tuple of float
        Shares of the epochs.
    warmup : float
        Share of the steps in which the learning rate increases from 0.
    label_smoothing : float
    average : float
        Decay per step of a running average of the weights, which is then validated and saved; 0:
        none.
    turn_weight : float
        Weight of the rotation task (`Augmentation.turned`), with a second classifier.
    mirror_features : bool
        The features of the saved network are the mean over an image and its mirror image.
    augmentation : Augmentation

    Examples
    --------
    >>> from dataclasses import replace
    >>> replace(recipe("paper", "wrn28_10"), epochs=30).batch_size
    128
    """

    epochs: int = 90
    batch_size: int = 256
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False
    schedule: str = "steps"
    milestones: tuple[float, ...] = (45 / 90, 66 / 90)
    warmup: float = 0.0
    label_smoothing: float = 0.1
    average: float = 0.0
    turn_weight: float = 0.5
    mirror_features: bool = False
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            check.integer(name, getattr(self, name))
        check.real("learning_rate", self.learning_rate, positive=True)
        for name in ("weight_decay", "turn_weight"):
            check.real(name, getattr(self, name))
        for name in ("momentum", "warmup", "label_smoothing", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        check.choice("schedule", self.schedule, SCHEDULES)
        if self.nesterov and self.momentum == 0:
            raise ValueError("momentum must be > 0 with nesterov, got 0")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of one of `steps` steps."""
        warm = self.warmup * steps
        if step < warm:
            return self.learning_rate * (step + 1) / (warm + 1)
        if self.schedule == "cosine":
            done = (step - warm) / max(1.0, steps - warm)
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        epoch = step * self.epochs // steps
        # Rounding of a product must not shift a milestone.
        passed = sum(epoch >= round(share * self.epochs, 6) for share in self.milestones)
        return self.learning_rate / 10.0**passed


PAPER = Recipe()

STRONG = Recipe(
    epochs=165,
    learning_rate=0.2,
    weight_decay=5e-4,
    nesterov=True,
    schedule="cosine",
    warmup=0.03,
    label_smoothing=0.0,
    average=0.999,
    mirror_features=True,
    augmentation=Augmentation(area=(0.3, 1.0), turned=0.5, interpolation="bicubic"),
)

SMALL = Recipe(
    epochs=4,
    batch_size=128,
    learning_rate=0.1,
    weight_decay=5e-4,
    nesterov=True,
    schedule="cosine",
    warmup=0.1,
    label_smoothing=0.0,
    augmentation=Augmentation(area=(0.8, 1.0), ratio=(0.9, 1.1), mirror=False, jitter=0.0),
)

RECIPES = {"paper": PAPER, "strong": STRONG, "small": SMALL}


def recipe(name: str, architecture: str = "resnet18") -> Recipe:
    """Return a recipe by name.

    Parameters
    ----------
    name : {"paper", "strong", "small"}
        ``"paper"``: cross-entropy with label smoothing, 90 epochs, steps. ``"strong"``: 165 epochs,
        cosine, averaged weights, quarter turns, for images that are already 84x84. ``"small"``: for
        ``"small"`` on a CPU and images that must not be mirrored.
    architecture : str
        WRN-28-10 has batches of 128 instead of 256.

    Examples
    --------
    >>> recipe("paper").epochs
    90
    """
    settings = RECIPES[check.choice("name", name, tuple(RECIPES))]
    if known_architecture(architecture) == "wrn28_10":
        return replace(settings, batch_size=min(settings.batch_size, 128))
    return settings
