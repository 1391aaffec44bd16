"""Folders of images: find, decode and embed them; unreadable files are listed."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...decoding import open_picture, read_picture_file, why_unreadable
from ...files import in_threads
from ...labels import label_text
from ...progress import Progress
from ...text import encodable, plural, without_controls
from .cache import FeatureCache, digest
from .networks import Network
from .samples import Batch, Examples

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

READ_AT_ONCE = 64  # images
GREY_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


class PictureReader:
    """Computes features of image files.

    `unreadable` receives the files that cannot be read, and why; `cache` and `notes` are those of
    `FeatureCache`.
    """

    def __init__(
        self,
        network: Network,
        cache: Path | None,
        unreadable: dict[str, str],
        notes: list[str] | None = None,
    ) -> None:
        self.network, self.unreadable = network, unreadable
        self.cache = FeatureCache(cache, network.key, notes)

    def batches(
        self, paths: Sequence[Path], title: str, progress: bool
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Indices of the readable files, and their features [n, D]."""
        with Progress(title, len(paths), show=progress) as shown:
            for start in range(0, len(paths), READ_AT_ONCE):
                part = paths[start : start + READ_AT_ONCE]
                numbers, features = self.batch(part)
                shown.advance(len(part))
                if numbers:
                    yield [start + number for number in numbers], features

    def batch(self, paths: Sequence[Path]) -> tuple[list[int], Tensor]:
        """Features are stored by the digest of the bytes they were computed from.

        A file may change after its digest was taken, so the decoded bytes are digested again, and
        no feature is ever stored under the digest of another image.
        """
        digests = list(in_threads(file_digest, paths))
        known = self.cache.get([one for one in digests if isinstance(one, bytes)])
        todo = [
            number
            for number, one in enumerate(digests)
            if isinstance(one, bytes) and one not in known
        ]
        fresh: dict[bytes, Pixels] = {}
        decoded = in_threads(self.decode, [paths[number] for number in todo])
        for number, result in zip(todo, decoded, strict=True):
            if isinstance(result, str):
                digests[number] = result
            else:
                digests[number], fresh[result[0]] = result
        if fresh:
            pixels = torch.from_numpy(np.stack(list(fresh.values())))
            rows = dict(zip(fresh, self.network(pixels), strict=True))
            self.cache.put(rows)
            known |= rows
        numbers, features = [], []
        for number, one in enumerate(digests):
            if isinstance(one, bytes):
                numbers.append(number)
                features.append(known[one])
            else:
                self.unreadable[encodable(str(paths[number]))] = one
        return numbers, torch.stack(features) if features else torch.empty(0, 0)

    def decode(self, path: Path) -> tuple[bytes, Pixels] | str:
        """The digest of a file and its pixels [H, W, C], or the reason why it cannot be read."""
        try:
            content = read_picture_file(path)
            picture = self.network.square(upright(content))
        except Exception as error:  # noqa: BLE001 - Pillow's decoders raise anything
            return why_unreadable(error)
        pixels = np.asarray(picture.convert("L" if self.network.channels == 1 else "RGB"))
        return digest(content), pixels.reshape(*pixels.shape[:2], self.network.channels)


def file_digest(path: Path) -> bytes | str:
    """The digest of a file, or the reason why it cannot be read."""
    try:
        return digest(read_picture_file(path))
    except (OSError, ValueError) as error:
        return why_unreadable(error)


def load_picture(path: Path) -> Image:
    """The image in a file, as `upright`."""
    return upright(read_picture_file(path))


def upright(content: bytes) -> Image:
    """An image in RGB, upright, on white where it is transparent."""
    with open_picture(content) as file:
        return upright_rgb(file)


def upright_rgb(picture: Image) -> Image:
    """The same image if its mode allows: several copies of a large one take a GiB."""
    from PIL import Image, ImageOps

    picture.load()
    ImageOps.exif_transpose(picture, in_place=True)
    if picture.mode in GREY_16_BIT:
        grey = np.asarray(picture).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        values = np.nan_to_num(np.array(picture, np.float32), copy=False)
        values -= values.min()
        values *= 255 / max(float(values.max()), 1e-30)
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        clear = picture if picture.mode == "RGBA" else picture.convert("RGBA")
        white = Image.new("RGB", clear.size, "white")
        white.paste(clear, mask=clear)
        return white
    return picture if picture.mode == "RGB" else picture.convert("RGB")


# --- folders ------------------------------------------------------------------------------------


def files_below(folder: Path, unreadable: dict[str, str]) -> list[Path]:
    """All files that may be images, in the order of their paths, with any suffix.

    Names that begin with a dot are skipped. Folders that cannot be read, and links to folders,
    which could form a cycle, are added to `unreadable`.
    """
    found: list[Path] = []

    def closed(error: OSError) -> None:
        unreadable[encodable(str(error.filename))] = error.strerror or str(error)

    for place, folders, files in os.walk(folder, onerror=closed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if (Path(place) / name).is_symlink():
                where = encodable(str(Path(place) / name))
                unreadable[where] = "a link to a folder, which is not followed"
        found += [Path(place) / name for name in sorted(files) if not name.startswith(".")]
    return found


def labelled_folder(
    root: Path, reader: PictureReader, notes: list[str], *, progress: bool
) -> Examples:
    """One folder per class, including its subfolders."""
    paths: list[Path] = []
    classes: list[str] = []
    for entry in sorted(root.iterdir()):
        if entry.name.startswith("."):
            continue
        if not entry.is_dir():
            reader.unreadable[encodable(str(entry))] = "it is not in the folder of a class"
            continue
        own, name = files_below(entry, reader.unreadable), without_controls(entry.name)
        if not label_text(name):
            notes.append(f"the folder {name!r} is no class: {plural(len(own), 'image')} not used")
            continue
        paths += own
        classes += [name] * len(own)
        if not own:
            notes.append(f"the folder {name!r} has no images, so it is not a class")
    if not paths:
        raise ValueError(
            f"{root} must have one folder of images per class, got no image in a folder"
        )
    parts = list(reader.batches(paths, "labelled images", progress))
    rows = [row for numbers, _ in parts for row in numbers]
    if not rows:
        raise ValueError(
            f"{root} must have readable images, got {len(paths)} unreadable files, "
            f"first one: {next(iter(reader.unreadable.values()), 'damaged')}"
        )
    for name in sorted(set(classes) - {classes[row] for row in rows}):
        notes.append(f"no image of {name!r} could be read, so it is not a class")
    features = torch.cat([features for _, features in parts])
    texts = tuple(str(paths[row]) for row in rows)
    names = tuple(without_controls(paths[row].relative_to(root).as_posix()) for row in rows)
    return Examples(features, [classes[row] for row in rows], texts, str(root), names)


class UnlabelledFolder:
    """Any tree of images; with `truth` the name of the folder of an image is its true class."""

    def __init__(self, root: Path, reader: PictureReader, *, truth: bool, progress: bool) -> None:
        self.root, self.reader, self.truth, self.progress = root, reader, truth, progress
        self.paths = files_below(root, reader.unreadable)
        if not self.paths:
            raise ValueError(
                f"{root} must have at least one image (JPEG, PNG, WebP, HEIC, ...) to classify, "
                "got no file"
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Batch]:
        title = "images to classify"
        for rows, features in self.reader.batches(self.paths, title, self.progress):
            paths = [self.paths[row] for row in rows]
            yield Batch(
                [without_controls(path.relative_to(self.root).as_posix()) for path in paths],
                features,
                [str(path) for path in paths],
                [without_controls(path.parent.name) for path in paths] if self.truth else None,
            )


def thumbnails(paths: Sequence[str], side: int) -> list[str]:
    """Thumbnails as data URIs, at most `side` pixels wide; empty if a file is gone."""
    return list(in_threads(partial(thumbnail, side=side), paths))


def thumbnail(path: str, side: int) -> str:
    try:
        picture = load_picture(Path(path))
    except Exception:  # noqa: BLE001 - unreadable by now; the page shows only its name
        return ""
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=78)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
