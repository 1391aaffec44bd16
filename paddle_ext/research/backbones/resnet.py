"""ResNet-18 for 84x84 images: a 3x3 stem of stride 1 and no pooling before the last layer.

Layers have the names of the public few-shot code, whose checkpoints load without renaming.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .base import Backbone, conv, initialise


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(x), inplace=True)


class ResNet18(Backbone):
    """The ResNet-18 of the paper: 64, 128, 256, 512 channels; 512 features.

    Parameters
    ----------
    channels : int
        3 for RGB, 1 for grey.

    Examples
    --------
    >>> import torch
    >>> ResNet18()(torch.zeros(2, 3, 84, 84)).shape
    torch.Size([2, 512])
    """

    architecture = "resnet18"
    dimension = 512
    input_size = 84

    def __init__(self, channels: int = 3) -> None:
        super().__init__(channels)
        self.conv1 = conv(channels, 64, 3)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] -> features [N, 512]."""
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return maps.mean((2, 3))
