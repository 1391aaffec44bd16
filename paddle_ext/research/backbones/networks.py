"""The networks by name."""

from __future__ import annotations

import torch

from ... import check
from .base import Backbone
from .resnet import ResNet18
from .small import SmallNet
from .wide_resnet import WideResNet28x10

ARCHITECTURES: dict[str, type[ResNet18 | WideResNet28x10 | SmallNet]] = {
    network.architecture: network for network in (ResNet18, WideResNet28x10, SmallNet)
}
PUBLIC_NAMES = {"wideres": "wrn28_10", "wrn": "wrn28_10"}


def create(architecture: str, *, channels: int | None = None) -> Backbone:
    """Make a network with random weights.

    Parameters
    ----------
    architecture : {"resnet18", "wrn28_10", "small"}
        The public code's name of the second, ``"wideres"``, also works.
    channels : int or None
        3 for RGB, 1 for grey; None: 1 for ``"small"``, 3 for the others.

    Examples
    --------
    >>> create("small").dimension
    128
    """
    network = ARCHITECTURES[known_architecture(architecture)]
    return network() if channels is None else network(channels)


def create_uninitialised(architecture: str, channels: int) -> Backbone:
    """A network whose weights will be loaded; skips random initialisation."""
    with torch.device("meta"):
        network = create(architecture, channels=channels)
    return network.to_empty(device="cpu")


def known_architecture(architecture: str) -> str:
    if architecture in PUBLIC_NAMES:
        return PUBLIC_NAMES[architecture]
    return check.choice("architecture", architecture, tuple(ARCHITECTURES))
