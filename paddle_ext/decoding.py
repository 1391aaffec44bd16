"""Read image files, which are recognised by content, if they are regular and not too large."""

from __future__ import annotations

import importlib
import io
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .files import RefusedError, first_line, open_regular
from .libraries import library

if TYPE_CHECKING:
    from PIL.Image import Image

# Not every format of Pillow: EPS would start another program, and TGA accepts any bytes.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF", "JPEG2000", "MPO"),
    *("QOI", "ICO"),
)
MOST_PIXELS = 89_478_485  # where Pillow begins to warn; 1 GiB in the worst mode
LARGE = 2**24  # pixels from which images are decoded one at a time
MOST_BYTES = 2**28
CHANNELS = {1: "L", 3: "RGB"}  # Pillow's modes
# Brands of ISO media files, with what is needed to read them.
BRANDS = dict.fromkeys((b"avif", b"avis"), "an AVIF image, which needs Pillow 11.3 or newer")
BRANDS |= dict.fromkeys(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"),
    "a HEIC photo, which needs pillow-heif: pip install 'paddle_ext[heic]'",
)

one_large_picture = threading.Lock()


def require_pillow() -> None:
    library("PIL.Image", "reading images", "'paddle_ext[images]'")


class UnreadableError(ValueError):
    """The reason why a file is not read, in a few words that follow its name."""


def read_picture_file(path: Path) -> bytes:
    """The bytes of a file that may be an image; `UnreadableError` or OSError for any other."""
    from PIL import Image

    with open_regular(path) as file:
        size, first = os.fstat(file.fileno()).st_size, file.read(32)
        accepts = [Image.OPEN[name][1] for name in known_formats()]
        if not any(begins is None or begins(first[:16]) is True for begins in accepts):
            raise UnreadableError(what_else(first) if first else "empty")
        if size > MOST_BYTES:
            raise UnreadableError(f"larger than {MOST_BYTES >> 20} MiB")
        file.seek(0)
        return file.read(size)  # no more, in case it grows


def what_else(first: bytes) -> str:
    return BRANDS.get(first[8:12] if first[4:8] == b"ftyp" else b"", "not an image")


@cache
def known_formats() -> tuple[str, ...]:
    """The decoders of Pillow, and HEIF if pillow-heif is installed."""
    from PIL import Image

    Image.init()
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    # Pillow's terminal messages are replaced by ours, which name the file.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def open_picture(content: bytes) -> Iterator[Image]:
    """Open the image in some bytes without decoding it, or raise `UnreadableError`."""
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(content), formats=known_formats())
    except UnidentifiedImageError:
        raise UnreadableError(what_else(content[:32])) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = re.search(r"(\d+) pixels", str(error))
        raise UnreadableError(too_large(pixels[1] if pixels else "more")) from None
    with picture:
        width, height = picture.size
        if width * height > MOST_PIXELS:
            raise UnreadableError(too_large(f"{width} x {height}"))
        with one_large_picture if width * height > LARGE else nullcontext():
            yield picture


def too_large(pixels: str) -> str:
    return f"{pixels} pixels, more than {MOST_PIXELS / 1e6:.0f} million"


def decode(content: bytes, size: int | None, channels: int) -> npt.NDArray[np.uint8]:
    """The pixels of an image, [H, W, C]; of its middle, size x size, if a size is given."""
    with open_picture(content) as image:
        picture: Image = image
        if "transparency" in image.info:  # Pillow warns about palettes with it otherwise
            picture = image.convert("RGBA")
        picture = picture.convert(CHANNELS[channels])
    if size is not None:
        picture = square_crop(picture, size)
    pixels = np.asarray(picture, np.uint8)
    return pixels.reshape(*pixels.shape[:2], channels)


def square_crop(picture: Image, size: int) -> Image:
    """Scale the shorter side to `size`, and crop the longer one."""
    from PIL.Image import Resampling

    width, height = picture.size
    if (width, height) == (size, size):
        return picture
    scale = size / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    if width * height > MOST_PIXELS:  # of a long and narrow one
        raise UnreadableError(too_large(f"{width} x {height} scaled"))
    picture = picture.resize((width, height), Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return picture.crop((left, top, left + size, top + size))


def why_unreadable(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if type(error) is UnreadableError:
        return str(error)
    if isinstance(error, RefusedError):
        return str(error).partition(", got ")[2]
    return f"damaged: {first_line(error)}"
