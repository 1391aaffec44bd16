"""A network small enough to train on a CPU in less than a minute."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .base import Backbone, conv, initialise

MAPS = 4  # size of the last maps, for inputs of 25x25 to 32x32; others are pooled to it


def stage(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        conv(inputs, outputs, size, stride), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class SmallNet(Backbone):
    """Three convolutions of stride 2 and a linear layer; 128 non-negative features.

    The linear layer sees positions, which separates characters better than a mean.

    Parameters
    ----------
    channels : int
        1 for grey, 3 for RGB.

    Examples
    --------
    >>> import torch
    >>> SmallNet()(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 128])
    """

    architecture = "small"
    dimension = 128
    input_size = 32

    def __init__(self, channels: int = 1) -> None:
        super().__init__(channels)
        self.stages = nn.Sequential(
            stage(channels, 16, 5, 2), stage(16, 32, 3, 2), stage(32, 64, 3, 2)
        )
        self.linear = nn.Linear(64 * MAPS * MAPS, self.dimension, bias=False)
        self.norm = nn.BatchNorm1d(self.dimension)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] -> features [N, 128]."""
        maps = F.adaptive_avg_pool2d(self.stages(images), MAPS)
        return F.relu(self.norm(self.linear(maps.flatten(1))))
