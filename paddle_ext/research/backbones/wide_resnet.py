"""WRN-28-10: a wide residual network, with batch normalisation before each convolution.

Layers have the names of the public few-shot code, whose checkpoints load without renaming.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .base import Backbone, conv, initialise

BLOCKS = 4  # of each of the three layers: 28 = 6 * 4 + 4
WIDTH = 10


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; the second convolution has the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 3, bias=True)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3, stride, bias=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride, bias=True))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x), inplace=True))
        out = self.conv2(F.relu(self.bn2(out), inplace=True))
        result: Tensor = out + self.shortcut(x)
        return result


def layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    rest = [Block(outputs, outputs, 1) for _ in range(BLOCKS - 1)]
    return nn.Sequential(Block(inputs, outputs, stride), *rest)


class WideResNet28x10(Backbone):
    """WRN-28-10 without dropout: 160, 320, 640 channels; 640 features.

    Parameters
    ----------
    channels : int
        3 for RGB, 1 for grey.
    """

    architecture = "wrn28_10"
    dimension = 64 * WIDTH
    input_size = 84

    def __init__(self, channels: int = 3) -> None:
        super().__init__(channels)
        self.conv1 = conv(channels, 16, 3, bias=True)
        self.layer1 = layer(16, 16 * WIDTH, 1)
        self.layer2 = layer(16 * WIDTH, 32 * WIDTH, 2)
        self.layer3 = layer(32 * WIDTH, 64 * WIDTH, 2)
        self.bn1 = nn.BatchNorm2d(64 * WIDTH)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] -> features [N, 640]."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(images))))
        return F.relu(self.bn1(x), inplace=True).mean((2, 3))
