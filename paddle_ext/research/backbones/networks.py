"""The networks: images in, one feature vector each out.

The layers of ResNet-18 and WRN-28-10 have the names of the public few-shot code, whose checkpoints
load without renaming.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import check

BLOCKS = 4  # of each of the three layers of WRN-28-10: 28 = 6 * 4 + 4
WIDTH = 10
MAPS = 4  # size of the last maps of `SmallNet`, for inputs of 25x25 to 32x32; others are pooled


class Backbone(nn.Module):
    """A network without its classifier.

    Maps normalised images [N, C, H, W] to features [N, `dimension`]. The classifier of the base
    classes is a separate linear layer, used only by training.
    """

    architecture: str  # its name for `create`
    dimension: int  # the number of features
    input_size: int  # height and width it is designed for; others work too

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {channels}")
        self.channels = channels

    def __call__(self, images: Tensor) -> Tensor:
        features: Tensor = super().__call__(images)
        return features


def conv(inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool = False) -> nn.Conv2d:
    """A convolution that keeps height and width, except for the stride."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias)


class PlainBlock(nn.Module):
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
    """The ResNet-18 of the paper: its stem has stride 1, and only the last layer is pooled."""

    architecture = "resnet18"
    dimension = 512
    input_size = 84

    def __init__(self, channels: int = 3) -> None:
        super().__init__(channels)
        self.conv1 = conv(channels, 64, 3)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(PlainBlock(64, 64, 1), PlainBlock(64, 64, 1))
        self.layer2 = nn.Sequential(PlainBlock(64, 128, 2), PlainBlock(128, 128, 1))
        self.layer3 = nn.Sequential(PlainBlock(128, 256, 2), PlainBlock(256, 256, 1))
        self.layer4 = nn.Sequential(PlainBlock(256, 512, 2), PlainBlock(512, 512, 1))

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return maps.mean((2, 3))


class WideBlock(nn.Module):
    """The same with batch normalisation before each convolution; the second one has the stride."""

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


def wide_layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    rest = [WideBlock(outputs, outputs, 1) for _ in range(BLOCKS - 1)]
    return nn.Sequential(WideBlock(inputs, outputs, stride), *rest)


class WideResNet28x10(Backbone):
    """WRN-28-10 without dropout."""

    architecture = "wrn28_10"
    dimension = 64 * WIDTH
    input_size = 84

    def __init__(self, channels: int = 3) -> None:
        super().__init__(channels)
        self.conv1 = conv(channels, 16, 3, bias=True)
        self.layer1 = wide_layer(16, 16 * WIDTH, 1)
        self.layer2 = wide_layer(16 * WIDTH, 32 * WIDTH, 2)
        self.layer3 = wide_layer(32 * WIDTH, 64 * WIDTH, 2)
        self.bn1 = nn.BatchNorm2d(64 * WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(images))))
        return F.relu(self.bn1(x), inplace=True).mean((2, 3))


def stage(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        conv(inputs, outputs, size, stride), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class SmallNet(Backbone):
    """Three convolutions of stride 2 and a linear layer, trained on a CPU in under a minute.

    The linear layer sees positions, which separates characters better than a mean.
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

    def forward(self, images: Tensor) -> Tensor:
        maps = F.adaptive_avg_pool2d(self.stages(images), MAPS)
        return F.relu(self.norm(self.linear(maps.flatten(1))))


ARCHITECTURES: dict[str, type[ResNet18 | WideResNet28x10 | SmallNet]] = {
    network.architecture: network for network in (ResNet18, WideResNet28x10, SmallNet)
}


def create(architecture: str, *, channels: int | None = None) -> Backbone:
    """Make a network with random weights.

    Parameters
    ----------
    architecture : {"resnet18", "wrn28_10", "small"}
        ResNet-18 and WRN-28-10 of the paper, for 84x84 images, with 512 and 640 features; a small
        one for 32x32 images, with 128.
    channels : int or None
        3 for RGB, 1 for grey; None: 1 for ``"small"``, 3 for the others.

    Examples
    --------
    >>> import torch
    >>> create("small")(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 128])
    """
    kind = ARCHITECTURES[check.choice("architecture", architecture, tuple(ARCHITECTURES))]
    network = kind() if channels is None else kind(channels)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):  # He's normal initialisation, by the number of outputs
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


def create_uninitialised(architecture: str, channels: int) -> Backbone:
    """A network whose weights will be loaded."""
    with torch.device("meta"):
        kind = ARCHITECTURES[check.choice("architecture", architecture, tuple(ARCHITECTURES))]
        network = kind(channels)
    return network.to_empty(device="cpu")
