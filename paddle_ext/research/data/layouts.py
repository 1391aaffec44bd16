"""Image datasets in their usual layouts on disk.

Splits are called ``"base"``, ``"val"`` and ``"test"``; the lists and folders of the public datasets
call the first one ``train``. i-Nat has ``"repr"`` (the support) and ``"query"`` instead of
``"test"``.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import check
from ...arrays import CLASS_NAMES, as_names, pick, read_npz
from ...labels import numbered
from .images import EncodedImages, ImageArray, ImageSet

SPLITS = ("base", "val", "test")
INAT_SPLITS = ("base", "val", "repr", "query")
OTHER_NAMES = {"train": "base", "validation": "val", "novel": "test"}
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif"),
    *(".tiff", ".avif", ".heic", ".heif", ".jp2"),
)
LAYOUTS = ("mini", "tiered", "inatural", "folder", "npz")
COLUMNS = ("filename", "label")
PIXELS = ("images", "encoded", "webp")  # names of arrays; the last two have encoded images


def image_folder(
    root: str | Path, *, split: str = "", size: int | None = 84, channels: int = 3
) -> EncodedImages:
    """Read a folder that has one folder of images per class.

    Classes are the folders of `root`, sorted by name; images may be in subfolders. Hidden files and
    folders are left out. `split` is its name, and the other options are those of `EncodedImages`.
    """
    root = existing_folder(root)
    folders = (entry.name for entry in root.iterdir() if entry.is_dir())
    names = sorted(name for name in folders if not name.startswith("."))
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        own = sorted(path for path in (root / name).rglob("*") if is_image(path.name))
        own = [path for path in own if "/." not in path.relative_to(root).as_posix()]
        if not own:
            raise ValueError(f"{root / name} must have at least one image, got none")
        paths += own
        labels += [label] * len(own)
    if not names:
        raise ValueError(f"{root} must have one folder for each class, got no folder")
    return EncodedImages(paths, labels, names, split, size=size, channels=channels)


def open_images(
    layout: str,
    root: str | Path,
    split: str,
    *,
    lists: str | Path | None = None,
    size: int | None = None,
) -> ImageSet:
    """Open one split of a dataset by the name of its layout.

    Parameters
    ----------
    layout : {"mini", "tiered", "inatural", "folder", "npz"}
        docs/training.md has the files and folders of each; ``"npz"`` may also be one file for all
        splits, see `image_arrays`.
    split : str
        ``"base"``, ``"val"`` or ``"test"``; of i-Nat ``"repr"`` and ``"query"`` instead of the
        last.
    lists : path or None
        The folder of the lists; None: `root`, or its folder ``split`` or ``splits``.
    size : int or None
        Resize the images to size x size; None: 84 for image files, unchanged for ``.npz`` files.

    Examples
    --------
    >>> base = open_images("mini", "mini_imagenet", "base")  # doctest: +SKIP
    """
    check.choice("layout", layout, LAYOUTS)
    splits = INAT_SPLITS if layout == "inatural" else SPLITS
    split = OTHER_NAMES[split] if OTHER_NAMES.get(split) in splits else split
    check.choice("split", split, splits)
    root = Path(root)
    if layout == "npz":
        whole = root if root.is_file() else existing_folder(root) / f"{split}.npz"
        files = [whole] if whole.is_file() else sorted(root.glob(f"{split}-*.npz"))
        if not files:
            raise ValueError(f"{root} must have {split}.npz or {split}-0.npz, got neither")
        return image_arrays(files, split, size=size)
    root, size = existing_folder(root), 84 if size is None else size
    names = [split, *(other for other, name in OTHER_NAMES.items() if name == split)]
    folders = [root / name for name in names if (root / name).is_dir()]
    if layout == "folder" and not folders:
        raise ValueError(f"{root} must have a folder {' or '.join(names)}, got none of them")
    if layout == "folder" or (layout == "tiered" and lists is None and folders):
        return image_folder(folders[0], split=split, size=size)
    path = list_of(root, lists, split)
    rows = named = read_list(path)
    if split in ("repr", "query"):  # they have the same classes
        both = (list_of(root, lists, which) for which in ("repr", "query"))
        named = [row for one in both for row in read_list(one)]
    folders = [root] if layout == "inatural" else [root / "images", root / "data", root]
    place = next((place for place in folders if (place / rows[0][0]).is_file()), None)
    if place is None:  # the other images are checked when they are read
        raise ValueError(f"{root} must have the images of {path}, got no {rows[0][0]}")
    class_names = sorted({name for _, name in named})
    labels = numbered([name for _, name in rows], class_names)
    paths = [place / filename for filename, _ in rows]
    return EncodedImages(paths, labels, class_names, split, size=size)


def is_image(name: str) -> bool:
    """Decide by the name; names that begin with a dot are leftovers of other programs."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def read_list(path: str | Path) -> list[tuple[str, str]]:
    """File names and labels of a CSV file; a first line that is no image must be a header."""
    if not Path(path).is_file():
        raise ValueError(f"path must be a CSV file, got {path}, which does not exist")
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if any(line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a CSV file, got: {error}") from error
    columns = [0, 1]
    if lines and not is_image(Path(lines[0][0]).name):
        header = [cell.lower() for cell in lines.pop(0)]
        if not set(COLUMNS) <= set(header):
            expected = "an image or with a header that has 'filename' and 'label'"
            raise ValueError(f"{path} must begin with {expected}, got {header}")
        columns = [header.index(name) for name in COLUMNS]
    rows = []
    for number, line in enumerate(lines, 1):
        cells = [line[column] for column in columns if column < len(line) and line[column]]
        if len(cells) < 2:
            raise ValueError(
                f"{path} must have a file name and a label in each row, got {line} in row {number}"
            )
        rows.append((cells[0], cells[1]))
    if not rows:
        raise ValueError(f"{path} must list at least one image, got none")
    return rows


def existing_folder(root: str | Path) -> Path:
    if not Path(root).is_dir():
        raise check.ArgumentValueError("root", f"must be a folder, got {root}")
    return Path(root)


def list_of(root: Path, lists: str | Path | None, split: str) -> Path:
    """The path of the list of a split: in the folder `lists`, or by default near the images."""
    folders = [root, root / "split", root / "splits"] if lists is None else [Path(lists)]
    public = "train" if split == "base" else split  # the name in the public lists
    for folder in folders:
        for name in (public, split):
            if (folder / f"{name}.csv").is_file():
                return folder / f"{name}.csv"
    raise ValueError(f"{folders[0]} must have the list {public}.csv, got no such file")


class Part(NamedTuple):
    """The images of one file that belong to the split."""

    labels: npt.NDArray[np.int64]  # [N]
    class_names: tuple[str, ...]
    images: Any  # [N, H, W(, C)] uint8, or a list of the bytes of N encoded images
    names: list[str]  # of the encoded images


def image_arrays(
    paths: str | Path | Sequence[str | Path], split: str = "", *, size: int | None = None
) -> ImageSet:
    """Read images from ``.npz`` files.

    A file has ``labels`` [N], the class names as ``class_names`` or ``wnids``, and either
    ``images`` ([N, H, W] or [N, H, W, C] uint8), or encoded ones: all their bytes in ``encoded`` or
    ``webp``, image i from ``offsets[i]`` to ``offsets[i + 1]``, optionally with ``filenames``. With
    ``class_split`` (a split for each class) only the classes of `split` are used.

    Several files are concatenated; they must have the same classes. `size` is as in
    `EncodedImages`, and only for encoded images.
    """
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    if not files:
        raise ValueError("paths must have at least one file, got none")
    parts = [read_part(Path(path), split) for path in files]
    first = parts[0]
    for path, part in zip(files, parts, strict=True):
        same_kind = type(part.images) is type(first.images)
        if part.class_names != first.class_names or not same_kind:
            raise ValueError(f"{path} must have the classes and arrays of {files[0]}")
    labels = np.concatenate([part.labels for part in parts])
    if isinstance(first.images, list):
        encoded = [image for part in parts for image in part.images]
        names = [name for part in parts for name in part.names]
        return EncodedImages(encoded, labels, first.class_names, split, size=size, names=names)
    if size is not None:
        raise check.ArgumentValueError(
            "size", f"must be None for images that are not encoded, got {size}"
        )
    shapes = {part.images.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"paths must have images of one shape, got {sorted(shapes)}")
    pixels = np.concatenate([part.images for part in parts]) if len(parts) > 1 else first.images
    return ImageArray(pixels, labels, first.class_names, split)


def read_part(path: Path, split: str) -> Part:
    """Check one file, and select the rows of the split."""
    if not path.exists():
        raise ValueError(f"paths must name files, got {path}, which does not exist")
    arrays = read_npz(path)
    class_names = as_names(pick(arrays, CLASS_NAMES, path), "class_names", path)
    labels = integer_array(path, arrays, "labels").astype(np.int64)
    pixels = pick(arrays, PIXELS, path)
    if pixels.dtype != np.uint8 or pixels.ndim < 1:
        raise ValueError(
            f"{path} must have images as uint8, got {pixels.dtype} of shape {list(pixels.shape)}"
        )
    ends = None if "images" in arrays else image_ends(path, arrays, pixels)
    count = len(pixels) if ends is None else len(ends) - 1
    if len(labels) != count:
        raise ValueError(f"{path} must have one label for each image, {count}, got {len(labels)}")
    if count and (labels.min() < 0 or labels.max() >= len(class_names)):
        raise ValueError(f"{path} must have labels in [0, {len(class_names)})")
    names = as_names(arrays.get("filenames", [*map(str, range(count))]), "filenames", path)
    if len(names) != count:
        raise ValueError(f"{path} must have {count} filenames, got {len(names)}")

    rows = np.arange(count)
    if "class_split" in arrays:
        mine = as_names(arrays["class_split"], "class_split", path) == split
        if mine.shape != class_names.shape or not mine.any():
            raise ValueError(f"{path} must have classes of the split {split!r} in 'class_split'")
        rows = np.flatnonzero(mine[labels])
        labels, class_names = (np.cumsum(mine) - 1)[labels[rows]], class_names[mine]
    listed = tuple(class_names.tolist())
    if ends is None:
        return Part(labels, listed, pixels[rows] if "class_split" in arrays else pixels, [])
    encoded = [memoryview(pixels[ends[row] : ends[row + 1]]) for row in rows]
    return Part(labels, listed, encoded, [f"{path}: {names[row]}" for row in rows])


def image_ends(
    path: Path, arrays: dict[str, npt.NDArray[Any]], encoded: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """Where each encoded image ends, after where the first begins."""
    ends = integer_array(path, arrays, "offsets").astype(np.int64)
    inside = len(ends) > 1 and ends[0] >= 0 and ends[-1] <= len(encoded) and encoded.ndim == 1
    if not inside or (np.diff(ends) < 0).any():
        raise ValueError(f"{path} must have increasing offsets within its encoded images")
    return ends


def integer_array(path: Path, arrays: dict[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = pick(arrays, (name,), path)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"{path} must have {name!r} as integers of rank 1, "
            f"got {array.dtype} {list(array.shape)}"
        )
    return array
