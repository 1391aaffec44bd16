"""Characters drawn with matplotlib's fonts: an image dataset without a download.

A class is a character: Latin, Greek, Cyrillic, Armenian and Georgian letters, syllabics,
mathematical symbols, arrows and more. A sample is drawn in one of at least eight fonts, upright,
bold or slanted, and distorted: rotated, scaled, sheared, shifted, bent, made thinner or thicker,
with random contrast and noise. Characters that look like another one are left out. The same call
gives the same images.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ... import check
from ...decoding import require_pillow
from ...libraries import library
from .images import ImageArray

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

Pixels: TypeAlias = "npt.NDArray[np.uint8]"

CLASSES = {"base": 480, "val": 100, "test": 240}

FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
LEAST_FONTS = 8
RANGES = (
    (0x0021, 0x007E),  # ASCII
    (0x0180, 0x02AF),  # more Latin letters, phonetic ones
    (0x0370, 0x052F),  # Greek, Coptic, Cyrillic
    (0x0530, 0x06FF),  # Armenian, Hebrew, Arabic
    (0x0E80, 0x0EFF),  # Lao
    (0x10A0, 0x10FF),  # Georgian
    (0x1400, 0x167F),  # Canadian syllabics
    (0x1D00, 0x1D7F),  # phonetic extensions
    (0x20A0, 0x214F),  # currencies, letter-like symbols
    (0x2190, 0x23FF),  # arrows, mathematics, technical symbols
    (0x25A0, 0x27FF),  # shapes, symbols, dingbats
    (0x2900, 0x2AFF),  # more arrows and mathematics
    (0x2C60, 0x2D7F),  # Latin, Georgian and Tifinagh letters
    (0xA4D0, 0xA7FF),  # Lisu, more Latin and Cyrillic letters
)
UNICODE_CATEGORIES = "LNS"  # letters, numbers, symbols

CANVAS = 64  # a glyph is drawn once, on a square of this many pixels,
INK = 44  # with this length of its longer side
SHEET = 3 * CANVAS  # no glyph of these fonts is larger
SAME_LOOK = 0.9  # cosine between the drawings of two characters that look the same
CLASSES_AT_ONCE = 8


def glyph_images(split: str, *, samples: int = 60, size: int = 32, seed: int = 0) -> ImageArray:
    """Draw one split of the characters, in grey.

    Parameters
    ----------
    split : {"base", "val", "test"}
        480, 100 and 240 classes; no character is in two of them.
    samples : int
        Images per class, size x size.
    seed : int
        Of the fonts and distortions; the characters of a split are always the same.

    Returns
    -------
    ImageArray
        [classes * samples, size, size, 1] uint8, class by class; a class is named by its code point
        and name, such as ``"U+03B1 GREEK SMALL LETTER ALPHA"``.

    Examples
    --------
    >>> novel = glyph_images("test", samples=20)  # doctest: +SKIP
    >>> novel.images.shape  # doctest: +SKIP
    torch.Size([4800, 32, 32, 1])
    """
    check.choice("split", split, tuple(CLASSES))
    samples, size = check.integer("samples", samples), check.integer("size", size, least=8)
    chosen = characters(split)
    images = torch.empty(len(chosen), samples, size, size, dtype=torch.uint8)
    for start in range(0, len(chosen), CLASSES_AT_ONCE):
        group = chosen[start : start + CLASSES_AT_ONCE]
        drawn = [class_sources(character, samples, size, seed) for character in group]
        sources = (torch.cat(tensors) for tensors in zip(*drawn, strict=True))
        images[start : start + len(group)] = distorted(*sources).view(-1, samples, size, size)
    names = [f"U+{ord(character):04X} {unicodedata.name(character)}" for character in chosen]
    labels = torch.arange(len(chosen)).repeat_interleave(samples)
    return ImageArray(images.view(-1, size, size, 1), labels, names, split)


def characters(split: str) -> tuple[str, ...]:
    """Characters of a split, in the order of their code points."""
    # In the order of a digest, so that scripts and font releases do not decide the split.
    shuffled = sorted(distinct_characters(), key=lambda one: hashlib.blake2b(one.encode()).digest())
    names, needed = list(CLASSES), sum(CLASSES.values())
    if len(shuffled) < needed:
        raise RuntimeError(
            f"the fonts of matplotlib must have {needed} distinct characters, got {len(shuffled)}"
        )
    start = sum(CLASSES[name] for name in names[: names.index(split)])
    return tuple(sorted(shuffled[start : start + CLASSES[split]]))


@cache
def distinct_characters() -> tuple[str, ...]:
    """All characters that enough fonts have, without look-alikes of earlier ones."""
    candidates = [
        chr(code)
        for first, last in RANGES
        for code in range(first, last + 1)
        if unicodedata.category(chr(code))[0] in UNICODE_CATEGORIES
        # A letter with and without an accent differ by a few pixels.
        and not unicodedata.decomposition(chr(code))
        and len(fonts_with(chr(code))) >= LEAST_FONTS
    ]
    candidates.sort(key=lambda one: (-len(fonts_with(one)), one))
    same = (likeness(candidates) > SAME_LOOK).tolist()
    distinct: list[int] = []
    for number in range(len(candidates)):
        if same[number][number] and not any(same[number][other] for other in distinct):
            distinct.append(number)
    return tuple(candidates[number] for number in distinct)


def likeness(some: Sequence[str]) -> Tensor:
    """Cosines between coarse drawings of characters, [n, n]; 0 for one without ink."""
    drawings = torch.from_numpy(np.stack([draw(one, fonts_with(one)[0]) for one in some]))
    coarse = F.avg_pool2d(drawings.unsqueeze(1).float(), 4).flatten(1)  # [n, 256]
    coarse = F.normalize(coarse, dim=1)
    return coarse @ coarse.T


@cache
def fonts_with(character: str) -> tuple[str, ...]:
    """The fonts that have a character."""
    return tuple(font for font in FONTS if ord(character) in code_points(font))


@cache
def code_points(font: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(font_file(font))).get_charmap())


@cache
def font_file(font: str) -> Path:
    mpl = library("matplotlib", "drawing characters", "'paddle_ext[images]'")
    return Path(mpl.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"


@cache
def load_font(font: str) -> FreeTypeFont:
    require_pillow()
    from PIL import ImageFont

    return ImageFont.truetype(font_file(font), CANVAS, layout_engine=ImageFont.Layout.BASIC)


def draw(character: str, font: str) -> Pixels:
    """A character as large as the canvas allows, [64, 64] uint8; all 0 if it is blank."""
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (CANVAS, CANVAS))
    sheet = Image.new("L", (SHEET, SHEET))
    ImageDraw.Draw(sheet).text((SHEET // 2, SHEET // 2), character, 255, load_font(font), "mm")
    ink = sheet.getbbox()
    if ink is not None:
        picture = sheet.crop(ink)
        scale = INK / max(picture.size)
        width, height = (max(1, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        canvas.paste(picture, ((CANVAS - width) // 2, (CANVAS - height) // 2))
    return np.array(canvas)


def class_sources(
    character: str, samples: int, size: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The drawings that the samples of a class start from, and all their randomness."""
    digest = hashlib.blake2b(f"{seed} {character}".encode(), digest_size=8).digest()
    random = torch.Generator().manual_seed(int.from_bytes(digest, "big") % 2**63)
    plain = np.stack([draw(character, font) for font in fonts_with(character)])
    # In NumPy: for so few pixels the threads of torch cost more than they save.
    thinner, thicker = neighbours(np.minimum, plain), neighbours(np.maximum, plain)
    drawings = np.stack([thinner, plain, thicker], 1)  # [fonts, 3, 64, 64]
    font = torch.randint(len(drawings), (samples,), generator=random)
    return (
        torch.from_numpy(drawings[font.numpy()]),  # thinner, plain, thicker: [samples, 3, 64, 64]
        torch.rand(samples, 10, generator=random) * 2 - 1,  # numbers of the distortion
        torch.randn(samples, 2, 4, 4, generator=random),  # bends
        torch.randn(samples, size, size, generator=random),  # noise
    )


def neighbours(extreme: np.ufunc, x: Pixels) -> Pixels:
    """The minimum or maximum of each pixel and its eight neighbours; the border is empty."""
    for axis in (-2, -1):
        x = extreme(x, extreme(np.roll(x, 1, axis), np.roll(x, -1, axis)))
    return x


@cache
def smoothing(size: int) -> Tensor:
    """The matrix of bicubic interpolation from 4 points to `size`, [size, 4]."""
    points = torch.eye(4).view(1, 1, 4, 4)
    return F.interpolate(points, (size, 4), mode="bicubic", align_corners=True).view(size, 4)


def distorted(sources: Tensor, numbers: Tensor, bends: Tensor, noise: Tensor) -> Tensor:
    """[n, size, size] uint8 from what `class_sources` returns."""
    turn, larger, longer, shear, x, y, thick, ink, paper, grain = numbers.unbind(1)
    angle, scale = math.radians(18) * turn, (0.22 * larger).exp()
    across, down = scale * (0.15 * longer).exp(), scale * (-0.15 * longer).exp()
    cosine, sine = angle.cos(), angle.sin()
    matrix = torch.stack(
        [
            torch.stack([across * cosine, across * (0.25 * shear - sine), 0.15 * x], 1),
            torch.stack([down * sine, down * cosine, 0.15 * y], 1),
        ],
        1,
    )  # [n, 2, 3]
    size = noise.shape[-1]
    grid = F.affine_grid(matrix, [len(sources), 3, size, size], align_corners=False)
    smooth = smoothing(size)
    grid = grid + 0.06 * (smooth @ bends @ smooth.T).permute(0, 2, 3, 1)

    strokes = F.grid_sample(sources.float() / 255, grid, align_corners=False)
    thinner, plain, thicker = strokes.unbind(1)
    thick = thick.view(-1, 1, 1)
    strokes = plain + thick.clamp(min=0) * (thicker - plain)
    strokes = strokes + 0.7 * (-thick).clamp(min=0) * (thinner - plain)

    paper, ink = (0.1 + 0.1 * paper).view(-1, 1, 1), (0.8 + 0.2 * ink).view(-1, 1, 1)
    pixels = paper + (ink - paper) * strokes + (0.06 + 0.06 * grain).view(-1, 1, 1) * noise
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
