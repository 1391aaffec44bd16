"""Image datasets in their usual layouts on disk.

Splits are called ``"base"``, ``"val"`` and ``"test"``; the lists and folders of the public datasets
call the first one ``train``. i-Nat has ``"repr"`` (the support) and ``"query"`` instead of
``"test"``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ... import check
from .arrays import image_arrays
from .images import EncodedImages, ImageFiles, ImageSet

SPLITS = ("base", "val", "test")
INAT_SPLITS = ("base", "val", "repr", "query")
OTHER_NAMES = {"train": "base", "validation": "val", "novel": "test"}
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif"),
    *(".tiff", ".avif", ".heic", ".heif", ".jp2"),
)
FILE_COLUMNS = ("filename", "file", "image", "path")
LABEL_COLUMNS = ("label", "class", "category")


# --- any images ----------------------------------------------------------------------------------


def image_folder(
    root: str | Path, *, split: str = "", size: int | None = 84, channels: int = 3
) -> EncodedImages:
    """Read a folder that has one folder of images per class.

    Parameters
    ----------
    root : path
        Classes are its folders, sorted by name; images may be in subfolders.
    split : str
        Its name.
    size, channels
        As in `EncodedImages`.

    Examples
    --------
    >>> images = image_folder("birds/train", split="base")  # doctest: +SKIP
    """
    root = existing_folder(root)
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        own = sorted(path for path in (root / name).rglob("*") if is_image(path.name))
        if not own:
            raise ValueError(f"{root / name} must have at least one image, got none")
        paths += own
        labels += [label] * len(own)
    if not names:
        raise ValueError(f"{root} must have one folder for each class, got no folder")
    return EncodedImages(ImageFiles(paths), labels, names, split, size=size, channels=channels)


def image_list(
    path: str | Path,
    root: str | Path,
    *,
    split: str = "",
    class_names: Sequence[str] | None = None,
    size: int | None = 84,
    channels: int = 3,
) -> EncodedImages:
    """Read the images of a CSV list with the columns filename and label.

    Parameters
    ----------
    path : path
        The list, with or without a header. Without one the columns are in this order.
    root : path
        The base folder of the file names.
    split : str
    class_names : sequence of str or None
        The allowed labels, in the order of their numbers; None: those that occur, sorted.
    size, channels
        As in `EncodedImages`.

    Examples
    --------
    >>> images = image_list("split/val.csv", "images", split="val")  # doctest: +SKIP
    """
    root, rows = existing_folder(root), read_list(path)
    if class_names is None:
        class_names = sorted({row.label for row in rows})
    number = {name: label for label, name in enumerate(class_names)}
    for row in rows:
        if row.label not in number:
            raise ValueError(f"{path} must have only labels of class_names, got {row.label!r}")
    paths = [root / row.filename for row in rows]
    if not paths[0].is_file():  # the others are checked when they are read
        raise ValueError(f"{root} must have the images of {path}, got no {rows[0].filename}")
    files, labels = ImageFiles(paths), [number[row.label] for row in rows]
    return EncodedImages(files, labels, class_names, split, size=size, channels=channels)


# --- the datasets of the paper -------------------------------------------------------------------


def mini_imagenet(
    root: str | Path, split: str, *, lists: str | Path | None = None, size: int | None = 84
) -> EncodedImages:
    """mini-ImageNet: a folder of images, and the lists ``train.csv``, ``val.csv``, ``test.csv``.

    Parameters
    ----------
    root : path
        Has the images, or a folder ``images`` or ``data`` with them.
    split : {"base", "val", "test"}
    lists : path or None
        The folder of the lists; None: `root`, or its folder ``split`` or ``splits``.
    size : int or None
        As in `EncodedImages`.

    Examples
    --------
    >>> base = mini_imagenet("mini_imagenet", "base")  # doctest: +SKIP
    """
    split = known_split(split, SPLITS)
    root = existing_folder(root)
    path = list_of(root, lists, split)
    first = read_list(path)[0].filename
    places = (place for place in (root / "images", root / "data") if (place / first).is_file())
    return image_list(path, next(places, root), split=split, size=size)


def tiered_imagenet(
    root: str | Path, split: str, *, lists: str | Path | None = None, size: int | None = 84
) -> EncodedImages:
    """tiered-ImageNet: ``train``, ``val`` and ``test`` with one folder per class, or lists.

    Parameters
    ----------
    root : path
        Has the three folders; or the lists and a folder ``data`` of all images.
    split : {"base", "val", "test"}
    lists : path or None
        The folder of the lists, which are then used even if there are class folders.
    size
        As in `mini_imagenet`.

    Examples
    --------
    >>> novel = tiered_imagenet("tiered_imagenet", "test")  # doctest: +SKIP
    """
    split = known_split(split, SPLITS)
    root = existing_folder(root)
    if lists is None and (root / public_name(split)).is_dir():
        return image_folder(root / public_name(split), split=split, size=size)
    return mini_imagenet(root, split, lists=lists, size=size)


def inaturalist(
    root: str | Path, split: str, *, lists: str | Path | None = None, size: int | None = 84
) -> EncodedImages:
    """i-Nat: ``repr.csv`` is the support of every task, ``query.csv`` has the queries.

    Both have the same classes, in the same order.

    Parameters
    ----------
    root : path
        The base folder of the file names in the lists.
    split : {"base", "val", "repr", "query"}
    lists, size
        As in `mini_imagenet`.

    Examples
    --------
    >>> support = inaturalist("inatural", "repr")  # doctest: +SKIP
    >>> query = inaturalist("inatural", "query")  # doctest: +SKIP
    """
    split = known_split(split, INAT_SPLITS)
    root = existing_folder(root)
    path = list_of(root, lists, split)
    names = None
    if split in ("repr", "query"):
        both = [
            row for which in ("repr", "query") for row in read_list(list_of(root, lists, which))
        ]
        names = sorted({row.label for row in both})
    return image_list(path, root, split=split, class_names=names, size=size)


def array_folder(root: str | Path, split: str, *, size: int | None = None) -> ImageSet:
    """The ``.npz`` files of a split: ``base.npz``, or ``base-0.npz``, ``base-1.npz`` and so on.

    `root` is a folder of such files, or one file with the splits in ``class_split``.
    """
    split, root = known_split(split, SPLITS), Path(root)
    if root.is_file():
        return image_arrays(root, split, size=size)
    found = sorted(existing_folder(root).glob(f"{split}-*.npz"))
    whole = root / f"{split}.npz"
    if whole.is_file():
        found = [whole]
    if not found:
        raise ValueError(f"{root} must have {split}.npz or {split}-0.npz, got neither")
    return image_arrays(found, split, size=size)


def folder_of_splits(root: str | Path, split: str, *, size: int | None = 84) -> EncodedImages:
    """A folder per split, also called train, validation or novel, with a folder per class."""
    split, root = known_split(split, SPLITS), existing_folder(root)
    others = [other for other, name in OTHER_NAMES.items() if name == split]
    folders = [root / name for name in (split, *others)]
    for folder in folders:
        if folder.is_dir():
            return image_folder(folder, split=split, size=size)
    raise ValueError(f"there must be a folder {' or '.join(map(str, folders))}, got none of them")


LAYOUTS: dict[str, Callable[..., ImageSet]] = {
    "mini": mini_imagenet,
    "tiered": tiered_imagenet,
    "inatural": inaturalist,
    "folder": folder_of_splits,
    "npz": array_folder,
}


def open_images(layout: str, root: str | Path, split: str, *, size: int | None = None) -> ImageSet:
    """Open one split of a dataset by the name of its layout.

    Parameters
    ----------
    layout : {"mini", "tiered", "inatural", "folder", "npz"}
        See `mini_imagenet`, `tiered_imagenet`, `inaturalist`, `folder_of_splits`, `array_folder`.
    root : path
    split : str
    size : int or None
        Resize the images to size x size; None: 84 for image files, unchanged for ``.npz`` files.

    Examples
    --------
    >>> base = open_images("mini", "mini_imagenet", "base")  # doctest: +SKIP
    """
    reader = LAYOUTS[check.choice("layout", layout, tuple(LAYOUTS))]
    return reader(root, split) if size is None else reader(root, split, size=size)


# --- lists of images and labels ------------------------------------------------------------------


class Row(NamedTuple):
    """An image in a list."""

    filename: str
    label: str


def is_image(name: str) -> bool:
    """Decide by the name; names that begin with a dot are leftovers of other programs."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def read_list(path: str | Path) -> list[Row]:
    """Read a CSV file of file names and labels; a first line that is no image must be a header."""
    if not Path(path).is_file():
        raise ValueError(f"path must be a CSV file, got {path}, which does not exist")
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if any(line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a CSV file, got: {error}") from error
    columns = (0, 1)
    if lines and not is_image(Path(lines[0][0]).name):
        columns = header_columns(path, lines.pop(0))
    rows = []
    for number, line in enumerate(lines, 1):
        if len(line) <= max(columns) or not all(line[column] for column in columns):
            raise ValueError(
                f"{path} must have a file name and a label in each row, got {line} in row {number}"
            )
        rows.append(Row(*(line[column] for column in columns)))
    if not rows:
        raise ValueError(f"{path} must list at least one image, got none")
    return rows


def header_columns(path: str | Path, header: list[str]) -> tuple[int, int]:
    """The columns of the file name and the label."""
    names = [cell.lower() for cell in header]
    found = []
    for known in (FILE_COLUMNS, LABEL_COLUMNS):
        columns = [column for column, name in enumerate(names) if name in known]
        if not columns:
            raise ValueError(
                f"{path} must begin with an image or with a header that has {known[0]!r}, "
                f"got {header}"
            )
        found.append(columns[0])
    return found[0], found[1]


# --- paths ---------------------------------------------------------------------------------------


def known_split(split: str, splits: Sequence[str]) -> str:
    """Our name of a split, which may be given by another name, such as "train"."""
    if OTHER_NAMES.get(split) in splits:
        return OTHER_NAMES[split]
    return check.choice("split", split, splits)


def public_name(split: str) -> str:
    """The name of a split in the public lists and folders."""
    return "train" if split == "base" else split


def existing_folder(root: str | Path) -> Path:
    if not Path(root).is_dir():
        raise check.ArgumentValueError("root", f"must be a folder, got {root}")
    return Path(root)


def list_of(root: Path, lists: str | Path | None, split: str) -> Path:
    """The path of the list of a split: in the folder `lists`, or by default near the images."""
    folders = [root, root / "split", root / "splits"] if lists is None else [Path(lists)]
    names = dict.fromkeys([f"{public_name(split)}.csv", f"{split}.csv"])
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise ValueError(f"{folders[0]} must have the list {public_name(split)}.csv, got no such file")
