"""Folders of images: find, decode and embed them; unreadable files are listed."""

from __future__ import annotations

import base64
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...decoding import UnreadableError, open_picture, read_picture_file, why_unreadable
from ...feature_cache import FeatureCache, digest, written_digest
from ...files import in_threads
from ...labels import label_text
from ...progress import Progress
from ...text import encodable, plural, without_controls
from .encoders import Network
from .samples import Batch, concatenated, selected_from

if TYPE_CHECKING:
    from PIL.Image import Image

READ_AT_ONCE = 64  # images
GREY_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


class PictureReader:
    """Computes features of image files; lists those that are `unreadable`, and why."""

    def __init__(
        self,
        network: Network,
        cache: Path | None,
        unreadable: dict[str, str],
        notes: list[str] | None = None,
    ) -> None:
        self.network, self.unreadable = network, unreadable
        self.cache = FeatureCache(cache, network.key, notes)

    def __call__(self, batch: Batch) -> Batch:
        """The readable images of a batch, with their features.

        Features are stored by the digest of the bytes they were computed from. A file may change
        after its digest was taken, so the decoded bytes are digested again, and no feature is ever
        stored under the digest of another image.
        """
        digests = list(in_threads(file_digest, batch.texts))
        rows = self.cache.get([one for one in digests if isinstance(one, bytes)])
        todo = [k for k, one in enumerate(digests) if isinstance(one, bytes) and one not in rows]
        fresh: dict[bytes, Tensor] = {}
        decoded = in_threads(self.decode, [batch.texts[k] for k in todo])
        for k, result in zip(todo, decoded, strict=True):
            if isinstance(result, str):
                digests[k] = result
            else:
                digests[k], fresh[result[0]] = result
        if fresh:
            new = dict(zip(fresh, self.network(torch.stack([*fresh.values()])), strict=True))
            self.cache.put(new)
            rows |= new
        for path, one in zip(batch.texts, digests, strict=True):
            if isinstance(one, str):
                self.unreadable[encodable(path)] = one
        readable = selected_from(batch, [isinstance(one, bytes) for one in digests])
        own = [one for one in digests if isinstance(one, bytes)]
        if not own:
            return readable
        features = torch.stack([rows[one] for one in own])
        return readable._replace(features=features, contents=[written_digest(one) for one in own])

    def decode(self, path: str) -> tuple[bytes, Tensor] | str:
        """The digest of a file and its prepared pixels, or the reason why it cannot be read."""
        try:
            content = read_picture_file(Path(path))
            picture = upright(content)
        except Exception as error:  # noqa: BLE001 - Pillow's decoders raise anything
            return why_unreadable(error)
        try:
            return digest(content), self.network.prepare(picture)
        except UnreadableError as error:
            return str(error)


def file_digest(path: str) -> bytes | str:
    """The digest of a file, or the reason why it cannot be read."""
    try:
        return digest(read_picture_file(Path(path)))
    except (OSError, ValueError) as error:
        return why_unreadable(error)


def upright(content: bytes) -> Image:
    """An image in RGB, upright, on white where it is transparent.

    It is not copied if its mode allows: several copies of a large image take a GiB.
    """
    from PIL import Image, ImageOps

    with open_picture(content) as picture:
        picture.load()
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode in GREY_16_BIT:
            grey = np.asarray(picture).astype(np.uint16) >> 8
            return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
        if picture.mode in ("I", "F"):
            values = np.array(picture, np.float64)
            finite = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
            low, high = finite.min(), finite.max()
            values = np.nan_to_num(values, copy=False, nan=low, posinf=high, neginf=low) - low
            values *= 255 / max(high - low, 1e-30)
            return Image.fromarray(values.astype(np.uint8)).convert("RGB")
        if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
            clear = picture if picture.mode == "RGBA" else picture.convert("RGBA")
            white = Image.new("RGB", clear.size, "white")
            white.paste(clear, mask=clear)
            return white
        return picture if picture.mode == "RGB" else picture.convert("RGB")


# --- folders ------------------------------------------------------------------------------------


def files_below(folder: Path, unreadable: dict[str, str]) -> list[Path]:
    """All files but hidden ones, in the order of their paths; links could form a cycle."""
    paths: list[Path] = []

    def closed(error: OSError) -> None:
        unreadable[encodable(str(error.filename))] = error.strerror or str(error)

    for place, folders, files in os.walk(folder, onerror=closed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if (Path(place) / name).is_symlink():
                where = encodable(str(Path(place) / name))
                unreadable[where] = "a link to a folder, which is not followed"
        paths += [Path(place) / name for name in sorted(files) if not name.startswith(".")]
    return paths


class FolderSamples:
    """Any tree of images; with `truth` the name of the folder of an image is its true class."""

    def __init__(
        self, root: Path, unreadable: dict[str, str], *, truth: bool, progress: bool
    ) -> None:
        self.root, self.truth, self.progress = root, truth, progress
        self.paths = files_below(root, unreadable)
        if not self.paths:
            raise ValueError(
                f"{root} must have at least one image (JPEG, PNG, WebP, HEIC, ...) to classify, "
                "got no file"
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Batch]:
        classes = [without_controls(path.parent.name) for path in self.paths]
        whole = images_of(self.root, self.paths, classes if self.truth else None)
        return in_parts(whole, "images to classify", progress=self.progress)


def images_of(root: Path, paths: Sequence[Path], classes: list[str] | None) -> Batch:
    """Images that are named by their place in a folder."""
    names = [without_controls(path.relative_to(root).as_posix()) for path in paths]
    return Batch(names, torch.empty(len(paths), 0), [str(path) for path in paths], classes)


def in_parts(images: Batch, title: str, *, progress: bool) -> Iterator[Batch]:
    """The same images, some at a time; the progress is that of their use."""
    with Progress(title, len(images.names), show=progress) as shown:
        for start in range(0, len(images.names), READ_AT_ONCE):
            part = selected_from(images, slice(start, start + READ_AT_ONCE))
            yield part
            shown.advance(len(part.names))


def labelled_images(
    root: Path, unreadable: dict[str, str], notes: list[str]
) -> tuple[Batch, Counter[str]]:
    """The files of one folder per class; and how many are in folders that are no class by name."""
    paths: list[Path] = []
    classes: list[str] = []
    no_classes: Counter[str] = Counter()
    for entry in sorted(root.iterdir()):
        if entry.name.startswith("."):
            continue
        if not entry.is_dir():
            unreadable[encodable(str(entry))] = "it is not in the folder of a class"
            continue
        own, name = files_below(entry, unreadable), without_controls(entry.name)
        if not label_text(name):
            notes.append(f"the folder {name!r} is no class: {plural(len(own), 'image')} not used")
            no_classes[name] += len(own)
            continue
        paths += own
        classes += [name] * len(own)
        if not own:
            notes.append(f"the folder {name!r} has no images, so it is not a class")
    if not paths:
        raise ValueError(
            f"{root} must have one folder of images per class, got no image in a folder"
        )
    return images_of(root, paths, classes), no_classes


def encoded_images(
    images: Batch, reader: PictureReader, root: str, notes: list[str], *, progress: bool
) -> Batch:
    """The readable ones of labelled images, with their features."""
    parts = map(reader, in_parts(images, "labelled images", progress=progress))
    there = [part for part in parts if part.names]
    if not there:
        raise ValueError(
            f"{root} must have readable images, got {len(images.names)} unreadable files, "
            f"first one: {next(iter(reader.unreadable.values()), 'damaged')}"
        )
    readable = concatenated(there)
    for name in sorted(set(images.truth or ()) - set(readable.truth or ())):
        notes.append(f"no image of {name!r} could be read, so it is not a class")
    return readable


def thumbnail(path: str, side: int) -> str:
    """A data URI, at most `side` pixels wide; empty if the file is gone."""
    try:
        picture = upright(read_picture_file(Path(path)))
    except Exception:  # noqa: BLE001 - unreadable by now; the page shows only its name
        return ""
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=78)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
