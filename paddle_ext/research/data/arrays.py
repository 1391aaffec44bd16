"""Images in ``.npz`` files, as pixels or encoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import check
from . import archives
from .bank_files import CLASS_NAMES, pick
from .images import EncodedImages, ImageArray, ImageSet

PIXELS = ("images", "encoded", "webp")  # the last two have encoded images


class Part(NamedTuple):
    """The images of one file that belong to the split."""

    labels: npt.NDArray[np.int64]  # [N]
    class_names: tuple[str, ...]
    pixels: npt.NDArray[np.uint8]  # [N, H, W(, C)], or [bytes] if encoded
    offsets: npt.NDArray[np.int64] | None  # [N, 2], start and end of each encoded image
    filenames: npt.NDArray[np.str_] | None  # [N]


class PackedImages:
    """Encoded images stored one after the other in byte arrays."""

    def __init__(self, parts: Sequence[Part], paths: Sequence[str]) -> None:
        self.parts, self.paths = parts, paths
        self.starts = np.cumsum([0] + [len(part.labels) for part in parts])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def file_and_row(self, number: int) -> tuple[int, int]:
        which = int(np.searchsorted(self.starts, number, "right")) - 1
        return which, number - int(self.starts[which])

    def name(self, number: int) -> str:
        which, row = self.file_and_row(number)
        filenames = self.parts[which].filenames
        return f"{self.paths[which]}: {row if filenames is None else filenames[row]}"

    def read(self, number: int) -> bytes:
        which, row = self.file_and_row(number)
        offsets = self.parts[which].offsets
        if offsets is None:
            raise RuntimeError(f"{self.paths[which]} has no encoded images")
        return self.parts[which].pixels[slice(*offsets[row])].tobytes()


def image_arrays(
    paths: str | Path | Sequence[str | Path], split: str = "", *, size: int | None = None
) -> ImageSet:
    """Read images from ``.npz`` files.

    A file has ``labels`` [N], the class names as ``class_names`` or ``wnids``, and either
    ``images`` ([N, H, W] or [N, H, W, C] uint8), or encoded ones: all their bytes in ``encoded`` or
    ``webp``, image i from ``offsets[i]`` to ``offsets[i + 1]``, optionally with ``filenames``. With
    ``class_split`` (a split for each class) only the classes of `split` are used.

    Parameters
    ----------
    paths : path, or sequence of them
        Several files are concatenated; they must have the same classes.
    split : str
    size : int or None
        As in `EncodedImages`; only for encoded images.

    Examples
    --------
    >>> base = image_arrays(["base-0.npz", "base-1.npz"], "base")  # doctest: +SKIP
    """
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    if not files:
        raise ValueError("paths must have at least one file, got none")
    parts = [read_arrays(Path(path), split) for path in files]
    first = parts[0]
    for path, part in zip(files, parts, strict=True):
        if part.class_names != first.class_names or (part.offsets is None) != (
            first.offsets is None
        ):
            raise ValueError(f"{path} must have the classes and arrays of {files[0]}")
    labels = np.concatenate([part.labels for part in parts])
    if first.offsets is not None:
        packed = PackedImages(parts, list(map(str, files)))
        return EncodedImages(packed, labels, first.class_names, split, size=size)
    if size is not None:
        raise check.ArgumentValueError(
            "size", f"must be None for images that are not encoded, got {size}"
        )
    shapes = {part.pixels.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"paths must have images of one shape, got {sorted(shapes)}")
    pixels = np.concatenate([part.pixels for part in parts]) if len(parts) > 1 else first.pixels
    return ImageArray(pixels, labels, first.class_names, split)


def read_arrays(path: Path, split: str) -> Part:
    """Check one file, and select the rows of the split."""
    if not path.exists():
        raise ValueError(f"paths must name files, got {path}, which does not exist")
    arrays = archives.read_npz(path)
    class_names = pick(arrays, CLASS_NAMES, path).astype(str)
    labels = integer_array(path, arrays, "labels")
    pick(arrays, PIXELS, path)  # raises an error if there are none
    kind = next(name for name in PIXELS if name in arrays)
    offsets = None
    if kind == "images":
        pixels = arrays[kind]
    else:
        pixels = integer_array(path, arrays, kind)
        ends = integer_array(path, arrays, "offsets").astype(np.int64)
        offsets = np.stack([ends[:-1], ends[1:]], 1)
        if len(ends) < 2 or ends[0] < 0 or ends[-1] > len(pixels) or (np.diff(ends) < 0).any():
            raise ValueError(f"{path} must have increasing offsets from 0 to the end of {kind!r}")
    if pixels.dtype != np.uint8:
        raise ValueError(f"{path} must have {kind!r} as uint8, got {pixels.dtype}")
    count = len(pixels) if offsets is None else len(offsets)
    if len(labels) != count:
        raise ValueError(f"{path} must have one label for each image, {count}, got {len(labels)}")
    if count and (labels.min() < 0 or labels.max() >= len(class_names)):
        raise ValueError(f"{path} must have labels in [0, {len(class_names)})")
    filenames = arrays["filenames"].astype(str) if "filenames" in arrays else None
    if filenames is not None and len(filenames) != count:
        raise ValueError(f"{path} must have {count} filenames, got {len(filenames)}")

    if "class_split" in arrays:
        mine = arrays["class_split"].astype(str) == split
        if mine.shape != class_names.shape or not mine.any():
            raise ValueError(f"{path} must have classes of the split {split!r} in 'class_split'")
        rows = np.flatnonzero(mine[labels])
        labels, class_names = (np.cumsum(mine) - 1)[labels[rows]], class_names[mine]
        filenames = None if filenames is None else filenames[rows]
        if offsets is None:
            pixels = pixels[rows]
        else:
            offsets = offsets[rows]
    return Part(labels.astype(np.int64), tuple(class_names.tolist()), pixels, offsets, filenames)


def integer_array(path: Path, arrays: dict[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = pick(arrays, (name,), path)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"{path} must have {name!r} as integers of rank 1, "
            f"got {array.dtype} {list(array.shape)}"
        )
    return array
