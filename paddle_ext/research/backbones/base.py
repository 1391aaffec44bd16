"""The interface of all networks: images in, one feature vector each out."""

from __future__ import annotations

from torch import Tensor, nn


class Backbone(nn.Module):
    """A network without its classifier.

    Maps normalised images [N, C, H, W] to features [N, `dimension`]. The classifier of the base
    classes is a separate linear layer, used only by training and checkpoints.
    """

    architecture: str
    """Its name for `create`."""

    dimension: int
    """The number of features."""

    input_size: int
    """Height and width it is designed for; others work too."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {channels}")
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def __call__(self, images: Tensor) -> Tensor:
        features: Tensor = super().__call__(images)
        return features


def initialise(network: nn.Module) -> None:
    """He's normal initialisation for convolutions, by the number of outputs."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def conv(inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool = False) -> nn.Conv2d:
    """A convolution that keeps height and width, except for the stride."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias)
