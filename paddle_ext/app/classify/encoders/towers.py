"""The two towers of an encoder, and how images are preprocessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .... import check
from ..networks import Network
from ..samples import LOGIT_SCALE

if TYPE_CHECKING:
    from PIL.Image import Image

TEXTS_AT_ONCE = 64
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # as Pillow numbers them


@dataclass(frozen=True)
class Preparation:
    """Preprocessing of an image for the image tower.

    Parameters
    ----------
    size : int
        Side length in pixels.
    share : float
        Side of the central square, as a share of the shorter side.
    squash : bool
        Squash the whole image to a square instead.
    resampling : int
        Number of the Pillow filter.
    mean, std : tuple of float
        Of the colour channels, in [0, 1].
    """

    size: int = 224
    share: float = 1.0
    squash: bool = False
    resampling: int = RESAMPLING["bicubic"]
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD


def of_transformers(config: Mapping[str, Any], size: int) -> Preparation:
    """From a ``preprocessor_config.json``; `size` is the network's own input size."""
    config = config.get("image_processor", config)
    sides = config.get("size", size)
    crop = config.get("crop_size", sides)
    shorter = sides.get("shortest_edge") if isinstance(sides, Mapping) else sides
    wanted = side_of(crop, size)
    cropped = bool(config.get("do_center_crop", "crop_size" in config))
    share = wanted / shorter if cropped and shorter else 1.0
    rescaled = 255 * float(config.get("rescale_factor", 1 / 255))
    normalised = config.get("do_normalize", True)
    mean = config.get("image_mean", CLIP_MEAN) if normalised else (0.0,) * 3
    std = config.get("image_std", CLIP_STD) if normalised else (1.0,) * 3
    return Preparation(
        wanted,
        min(1.0, share),
        squash=shorter is None,
        resampling=int(config.get("resample", RESAMPLING["bicubic"])),
        mean=tuple(value / rescaled for value in mean),
        std=tuple(value / rescaled for value in std),
    )


def of_open_clip(config: Mapping[str, Any]) -> Preparation:
    """From the ``preprocess_cfg`` of open_clip."""
    return Preparation(
        side_of(config.get("size", 224), 224),
        squash=config.get("resize_mode", "shortest") == "squash",
        resampling=RESAMPLING.get(config.get("interpolation", "bicubic"), RESAMPLING["bicubic"]),
        mean=tuple(config.get("mean", CLIP_MEAN)),
        std=tuple(config.get("std", CLIP_STD)),
    )


def side_of(size: Any, default: int) -> int:
    """The side of a square, which configurations write in several ways."""
    if isinstance(size, Mapping):
        size = size.get("height", size.get("shortest_edge", default))
    if isinstance(size, Sequence):
        size = size[0]
    return int(size)


class ImageTower:
    """The tower for images.

    Parameters
    ----------
    compute : callable
        float32 [n, 3, H, W], normalised, to [n, D].
    preparation : Preparation
    device : torch.device
        Device that `compute` expects.
    key : str
        Everything the features depend on, apart from the preprocessing and the images.
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


@dataclass(frozen=True)
class Encoder:
    """An image-text encoder.

    Parameters
    ----------
    name : str
        As the user gave it.
    images : ImageTower or None
    texts : callable or None
        n texts to [n, D] float32 on the CPU.
    text_key : str
        Everything the embeddings of texts depend on, apart from the texts.
    logit_scale : float
        The learned factor from cosines to logits.
    """

    name: str
    images: ImageTower | None
    texts: Callable[[list[str]], Tensor] | None
    text_key: str
    logit_scale: float = LOGIT_SCALE

    def image_tower(self) -> Network:
        if self.images is None:
            raise lacking(self.name, "images")
        return self.images

    def text_tower(self) -> Callable[[list[str]], Tensor]:
        """`texts`, in batches."""
        encode = self.texts
        if encode is None:
            raise lacking(self.name, "texts")

        def compute(texts: list[str]) -> Tensor:
            starts = range(0, len(texts), TEXTS_AT_ONCE)
            parts = [encode(texts[start : start + TEXTS_AT_ONCE]) for start in starts]
            return torch.cat(parts)

        return compute


def lacking(name: str, what: str) -> check.ArgumentValueError:
    return check.ArgumentValueError(
        "encoder",
        f"must have an image tower and a text tower, got {name} without one for {what}",
    )


def check_widths(encoder: Encoder) -> None:
    """Images and texts must have the same embedding size."""
    if encoder.images is None or encoder.texts is None:
        return
    images, texts = encoder.images.width(), encoder.texts(["a"]).shape[1]
    if images != texts:
        raise check.ArgumentValueError(
            "encoder",
            f"must have towers of one width, got {encoder.name} with {images} features per image "
            f"and {texts} per text",
        )
