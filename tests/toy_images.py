"""Small images shared by the tests of data, training and extraction."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paddle_ext.research.data.images import ImageArray


def pattern_images(
    classes: int = 6,
    samples: int = 12,
    *,
    size: int = 16,
    channels: int = 1,
    own: float = 0.25,
    seed: int = 0,
) -> ImageArray:
    """Classes of noise, the same for a class, and a share that each sample has of its `own`."""
    patterns = torch.rand(classes, size, size, channels, generator=generator(seed))
    noise = torch.rand(classes, samples, size, size, channels, generator=generator(seed + 1))
    pixels = ((1 - own) * patterns.unsqueeze(1) + own * noise) * 255
    labels = torch.arange(classes).repeat_interleave(samples)
    names = [f"pattern {seed}-{label}" for label in range(classes)]
    return ImageArray(pixels.to(torch.uint8).flatten(0, 1), labels, names, "base")


class LazyImages:
    """Images that are read each time."""

    def __init__(self, images: ImageArray, broken: int = -1) -> None:
        self.images, self.broken, self.reads = images, broken, 0
        self.labels, self.class_names, self.split = images.labels, images.class_names, "base"
        self.shape, self.content = images.shape, images.content

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: Tensor) -> Tensor:
        self.reads += 1
        if self.broken in torch.as_tensor(index).tolist():
            raise ValueError("image 7 must be an image")
        return self.images.read(index)


def write_split(folder: Path, name: str, images: ImageArray) -> None:
    """As one file of the layout npz."""
    own = {"images": images.images.numpy(), "labels": images.labels.numpy()}
    np.savez(folder / f"{name}.npz", **own, class_names=np.array(images.class_names))


def random_pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator(seed))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write_image(path: Path, pixels: Tensor) -> Path:
    """Write [H, W, 3] or [H, W] without loss (.png, .webp)."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, lossless=True)
    return path
