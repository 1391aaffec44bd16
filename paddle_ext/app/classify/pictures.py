"""Folders of pictures: finding, decoding and embedding them; those that are damaged are listed."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...research.data.images import in_threads
from ...research.data.lists import is_image
from ...research.files import first_line
from ...research.progress import Progress
from .cache import FeatureCache, digest
from .networks import Network
from .samples import Batch, Examples

if TYPE_CHECKING:
    from PIL.Image import Image

READ_AT_ONCE = 64  # pictures
THUMBNAIL = 112  # pixels
GREY_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


class PictureReader:
    """Makes features of picture files.

    Parameters
    ----------
    network : Network
    cache : Path or None
        A folder to keep features in.
    unreadable : dict of str to str
        Gets the damaged files, and why they could not be read.
    """

    def __init__(self, network: Network, cache: Path | None, unreadable: dict[str, str]) -> None:
        self.network, self.unreadable = network, unreadable
        self.cache = FeatureCache(cache, network.key)

    def batches(
        self, paths: Sequence[Path], title: str, progress: bool
    ) -> Iterator[tuple[list[int], Tensor]]:
        """The numbers of the readable ones among some paths, and their features [n, D]."""
        with Progress(title, len(paths), show=progress) as shown:
            for start in range(0, len(paths), READ_AT_ONCE):
                part = paths[start : start + READ_AT_ONCE]
                numbers, features = self.batch(part)
                shown.advance(len(part))
                if numbers:
                    yield [start + number for number in numbers], features

    def batch(self, paths: Sequence[Path]) -> tuple[list[int], Tensor]:
        digests = list(in_threads(file_digest, paths))
        known = self.cache.get([one for one in digests if one])
        todo = [number for number, one in enumerate(digests) if one not in known]
        decoded = list(in_threads(self.decode, [paths[number] for number in todo]))
        fresh: dict[bytes, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = {}
        for number, result in zip(todo, decoded, strict=True):
            if isinstance(result, str):
                self.unreadable[str(paths[number])] = result
            else:
                fresh[digests[number]] = result
        if fresh:
            pixels = torch.from_numpy(np.stack(list(fresh.values())))
            rows = dict(zip(fresh, self.network(pixels), strict=True))
            self.cache.put(rows)
            known |= rows
        numbers = [number for number, one in enumerate(digests) if one in known]
        if not numbers:
            return [], torch.empty(0, 0)
        return numbers, torch.stack([known[digests[number]] for number in numbers])

    def decode(self, path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | str:
        """Pixels [H, W, C], or why there are none."""
        try:
            picture = self.network.square(load_picture(path))
        except Exception as error:  # noqa: BLE001 - Pillow's decoders raise what they like
            return why_unreadable(error)
        pixels = np.asarray(picture.convert("L" if self.network.channels == 1 else "RGB"))
        return pixels.reshape(*pixels.shape[:2], self.network.channels)


def file_digest(path: Path) -> bytes:
    """Of the bytes of a file; of nothing if it cannot be read, which decoding will then tell."""
    try:
        return digest(path.read_bytes())
    except OSError:
        return b""


def why_unreadable(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)


def load_picture(path: Path) -> Image:
    """A picture in RGB, upright, on white where it is transparent."""
    from PIL import Image, ImageOps

    with Image.open(path) as file:
        picture: Image.Image = ImageOps.exif_transpose(file)
        picture.load()
    if picture.mode in GREY_16_BIT:
        grey = np.asarray(picture).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        values = np.asarray(picture, np.float64)
        low, width = values.min(), max(float(np.ptp(values)), 1e-300)
        return Image.fromarray(np.uint8(255 * ((values - low) / width))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


# --- folders ------------------------------------------------------------------------------------


def images_below(folder: Path) -> list[Path]:
    """All picture files, in the order of their paths; links to folders are not followed."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place) / name for name in sorted(files) if is_image(name)]
    return found


def labelled_folder(
    root: Path, reader: PictureReader, notes: list[str], *, progress: bool
) -> Examples:
    """One folder for each class; what is in further folders below belongs to it."""
    paths: list[Path] = []
    classes: list[str] = []
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        if folder.name.startswith("."):
            continue
        own = images_below(folder)
        paths += own
        classes += [folder.name] * len(own)
        if not own:
            notes.append(f"the folder {folder.name!r} has no pictures, so it is no class")
    if not paths:
        raise ValueError(
            f"{root} must have one folder of pictures for each class, got no picture in a folder"
        )
    parts = list(reader.batches(paths, "labelled pictures", progress))
    rows = [row for numbers, _ in parts for row in numbers]
    if not rows:
        raise ValueError(
            f"{root} must have pictures that can be read, got {len(paths)} damaged ones"
        )
    for name in sorted(set(classes) - {classes[row] for row in rows}):
        notes.append(f"no picture of {name!r} could be read, so it is no class")
    features = torch.cat([features for _, features in parts])
    texts = tuple(str(paths[row]) for row in rows)
    return Examples(features, [classes[row] for row in rows], texts, str(root))


class UnlabelledFolder:
    """Any tree of pictures.

    Parameters
    ----------
    root : Path
    reader : PictureReader
    truth : bool
        The name of the folder that a picture lies in is its true class.
    progress : bool
    """

    def __init__(self, root: Path, reader: PictureReader, *, truth: bool, progress: bool) -> None:
        self.root, self.reader, self.truth, self.progress = root, reader, truth, progress
        self.paths = images_below(root)
        if not self.paths:
            raise ValueError(
                f"{root} must have at least one picture (.jpg, .png, .webp, .tif, ...) to "
                "classify, got none"
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Batch]:
        title = "pictures to classify"
        for rows, features in self.reader.batches(self.paths, title, self.progress):
            paths = [self.paths[row] for row in rows]
            yield Batch(
                [path.relative_to(self.root).as_posix() for path in paths],
                features,
                [str(path) for path in paths],
                [path.parent.name for path in paths] if self.truth else None,
            )


def thumbnails(paths: Sequence[str]) -> list[str]:
    """Small pictures as data URIs; an empty one where a file has gone."""
    return list(in_threads(thumbnail, paths))


def thumbnail(path: str) -> str:
    try:
        picture = load_picture(Path(path))
    except Exception:  # noqa: BLE001 - it could be read before; the page shows its name alone
        return ""
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=78)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
