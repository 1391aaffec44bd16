"""The two towers of an encoder, and how its configuration says to preprocess images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .... import check
from ..networks import CLIP_MEAN, CLIP_STD, RESAMPLING, Network, Preparation, SquareNetwork
from ..samples import LOGIT_SCALE

TEXTS_AT_ONCE = 64


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


@dataclass(frozen=True)
class Encoder:
    """An image-text encoder."""

    name: str  # as the user gave it
    images: SquareNetwork | None
    texts: Callable[[list[str]], Tensor] | None  # n texts to [n, D] float32 on the CPU
    text_key: str  # everything the embeddings of texts depend on, apart from the texts
    logit_scale: float = LOGIT_SCALE  # the learned factor from cosines to logits

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
        "encoder", f"must have an image tower and a text tower, got {name} without one for {what}"
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
