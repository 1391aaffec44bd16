"""Labelled images, in memory or decoded on demand; always uint8, [N, H, W, C].

Base training and feature extraction take an `ImageSet`. `ImageArray` holds pixels; `EncodedImages`
holds the bytes or paths of JPEG, PNG or WebP files and decodes them with Pillow.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import check, decoding
from ...files import in_threads
from ...labels import check_one_each
from ...progress import Progress

READ_AT_ONCE = 256  # images
Labels: TypeAlias = "Tensor | npt.NDArray[np.int64] | Sequence[int]"


class ImageSet(ABC):
    """Images of one split, all of one shape, with their classes."""

    shape: tuple[int, int, int]  # H, W, C of every image

    def __init__(self, count: int, labels: Labels, class_names: Sequence[str], split: str) -> None:
        """`labels` [count] are indices into `class_names`; a class may have no image here."""
        names = tuple(map(str, class_names))
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"class_names must be unique, got {twice!r} twice")
        own = torch.as_tensor(labels)
        if own.is_floating_point() or own.is_complex() or own.dtype == torch.bool:
            raise TypeError(f"labels must be integers, got {check.plain(own.dtype)}")
        check_one_each("labels", "label", "image", own.shape, count)
        own = own.to("cpu", torch.int64)  # torch finds no minimum of some integers
        check.require_in_range("labels", int(own.min()), int(own.max()), len(names))
        self.labels, self.class_names, self.split = own, names, split

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, index: Tensor | Sequence[int]) -> Tensor:
        """Images by number: [len(index), H, W, C] uint8."""

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """The bytes of each image: with the same shape, equal bytes mean equal pixels."""


class ImageArray(ImageSet):
    """Images in memory.

    They are uint8 [N, H, W, C] or [N, H, W], with C 1 or 3; the labels [N] are indices into
    `class_names`.

    Examples
    --------
    >>> images = ImageArray(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), [0, 0, 1, 1], ["a", "b"])
    >>> len(images), images.shape, images.read([2]).shape
    (4, (8, 8, 3), torch.Size([1, 8, 8, 3]))
    """

    def __init__(
        self,
        images: Tensor | npt.NDArray[np.uint8],
        labels: Labels,
        class_names: Sequence[str],
        split: str = "",
    ) -> None:
        pixels = torch.as_tensor(images)
        if pixels.dtype != torch.uint8:
            raise TypeError(f"images must be uint8, got {check.plain(pixels.dtype)}")
        if pixels.dim() == 3:
            pixels = pixels.unsqueeze(-1)
        if pixels.dim() != 4 or 0 in pixels.shape or pixels.shape[-1] not in decoding.CHANNELS:
            raise ValueError(
                "images must have shape [N, H, W] or [N, H, W, C] with C 1 or 3, none of them 0, "
                f"got {list(torch.as_tensor(images).shape)}"
            )
        super().__init__(len(pixels), labels, class_names, split)
        self.images = pixels.cpu()
        _, height, width, channels = self.images.shape
        self.shape = (height, width, channels)

    def read(self, index: Tensor | Sequence[int]) -> Tensor:
        return self.images[torch.as_tensor(index, dtype=torch.int64)]

    def content(self) -> Iterator[bytes]:
        return (image.numpy().tobytes() for image in self.images)


class EncodedImages(ImageSet):
    """Images that are decoded each time they are read, in several threads.

    Parameters
    ----------
    images : sequence of Path or bytes
        Files, or encoded images in memory.
    size : int or None
        Resize every image to size x size: the shorter side is scaled, the longer one cropped on
        both ends. None: unchanged; all must then have the shape of the first.
    channels : int
        3 for RGB, 1 for grey.
    names : sequence of str or None
        What errors call the images; None: their paths.
    """

    def __init__(
        self,
        images: Sequence[Path | bytes | memoryview],
        labels: Labels,
        class_names: Sequence[str],
        split: str = "",
        *,
        size: int | None = 84,
        channels: int = 3,
        names: Sequence[str] | None = None,
    ) -> None:
        decoding.require_pillow()
        size = None if size is None else check.integer("size", size)
        if channels not in decoding.CHANNELS:
            raise ValueError(f"channels must be 1 or 3, got {channels}")
        if len(images) == 0:
            raise ValueError("images must have at least one image, got none")
        self.images, self.size, self.channels = images, size, channels
        self.names = list(map(str, images)) if names is None else names
        super().__init__(len(images), labels, class_names, split)
        height, width = (size, size) if size is not None else self.decode(0).shape[:2]
        self.shape = (height, width, channels)

    def encoded(self, number: int) -> bytes:
        """The bytes of one image."""
        image = self.images[number]
        if not isinstance(image, Path):
            return bytes(image)
        try:
            return decoding.read_picture_file(image)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{image} must be an image file, got: {decoding.why_unreadable(error)}"
            ) from error

    def decode(self, number: int) -> npt.NDArray[np.uint8]:
        """One image, [H, W, C]."""
        content = self.encoded(number)
        try:
            return decoding.decode(content, self.size, self.channels)
        except Exception as error:  # Pillow's decoders raise anything
            raise ValueError(
                f"{self.names[number]} must be an image, got: {decoding.why_unreadable(error)}"
            ) from error

    def read(self, index: Tensor | Sequence[int]) -> Tensor:
        numbers = torch.as_tensor(index, dtype=torch.int64).tolist()
        images = np.empty((len(numbers), *self.shape), np.uint8)
        for place, pixels in enumerate(in_threads(self.decode, numbers)):
            if pixels.shape != self.shape:
                raise check.ArgumentValueError(
                    self.names[numbers[place]],
                    f"must have the shape of the first image, {list(self.shape)}, "
                    f"got {list(pixels.shape)}",
                    or_pass="size",
                )
            images[place] = pixels
        return torch.from_numpy(images)

    def content(self) -> Iterator[bytes]:
        for start in range(0, len(self), READ_AT_ONCE):
            numbers = range(start, min(start + READ_AT_ONCE, len(self)))
            yield from in_threads(self.encoded, numbers)


def in_memory(images: ImageSet, *, progress: bool = False) -> ImageArray:
    """Decode all images once; an `ImageArray` is returned as it is."""
    if isinstance(images, ImageArray):
        return images
    pixels = torch.empty(len(images), *images.shape, dtype=torch.uint8)
    with Progress("decoding", len(images), show=progress) as shown:
        for index in torch.split(torch.arange(len(images)), READ_AT_ONCE):
            pixels[index] = images.read(index)
            shown.advance(len(index))
    return ImageArray(pixels, images.labels, images.class_names, images.split)
