"""The built-in dataset: its characters, and that their images are reproducible."""

import functools
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from paddle_ext.research.data import glyphs as module
from paddle_ext.research.data.glyphs import CLASSES, characters, glyph_images
from paddle_ext.research.data.images import ImageArray

pytest.importorskip("PIL", reason="needs Pillow")
pytest.importorskip("matplotlib", reason="needs the fonts of matplotlib")


@pytest.fixture(scope="module", autouse=True)
def draw_once() -> Iterator[None]:
    """Each character once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "draw", functools.cache(module.draw))
        yield


@pytest.fixture(scope="module")
def validation() -> ImageArray:
    return glyph_images("val", samples=4)


def test_splits_are_large_and_disjoint() -> None:
    splits = {split: set(characters(split)) for split in CLASSES}
    assert {split: len(own) for split, own in splits.items()} == CLASSES
    assert all(count >= 100 for count in CLASSES.values())
    assert len(set.union(*splits.values())) == sum(CLASSES.values())


def test_every_split_has_every_script() -> None:
    for split in CLASSES:
        scripts = Counter(unicodedata.name(one).split()[0] for one in characters(split))
        assert min(scripts[name] for name in ("LATIN", "GREEK", "CYRILLIC", "GEORGIAN")) >= 2


def test_images(validation: ImageArray) -> None:
    assert validation.images.shape == (400, 32, 32, 1)
    assert validation.split == "val"
    assert torch.equal(validation.labels, torch.arange(100).repeat_interleave(4))
    assert all(name.startswith("U+") for name in validation.class_names)
    # Every image has ink on paper, and none is like another.
    pixels = validation.images.flatten(1).float()
    assert (pixels.amax(1) - pixels.amin(1)).min() > 50
    assert len(validation.images.flatten(1).unique(dim=0)) == 400


def test_samples_are_of_several_fonts() -> None:
    for character in characters("test")[:20]:
        fonts = module.fonts_with(character)
        assert len(fonts) >= 8
        drawings = [module.draw(character, font) for font in fonts]
        assert min(drawing.max() for drawing in drawings) > 200
        assert len({drawing.tobytes() for drawing in drawings}) >= 4


def test_no_two_characters_look_the_same() -> None:
    """Latin A, Greek Alpha and Cyrillic A are one class, and so are o and O."""
    chosen = module.distinct_characters()
    assert len({"A", "\u0391", "\u0410"} & set(chosen)) == 1
    assert len({"o", "O", "\u03bf", "\u043e"} & set(chosen)) == 1
    alike = module.likeness(chosen) - torch.eye(len(chosen))
    assert alike.max() <= module.SAME_LOOK + 1e-5


def test_the_same_each_time(validation: ImageArray, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any number of threads, and whatever is drawn together."""
    monkeypatch.setattr(module, "CLASSES_AT_ONCE", 3)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again = glyph_images("val", samples=4)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(again.images, validation.images)
    assert again.class_names == validation.class_names
    torch.manual_seed(3)  # not used, nor changed
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, other = (glyph_images("val", samples=1, size=8, seed=seed) for seed in (0, 1))
    assert torch.equal(torch.rand(2), expected)
    assert (other.images != first.images).float().mean() > 0.5
    assert other.class_names == validation.class_names


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "train"}, ValueError, "split must be one of 'base', 'val', 'test'"),
        ({"samples": 0}, ValueError, r"samples must be an integer in \[1, \d+\], got 0"),
        ({"samples": 2.0}, TypeError, "samples must be an integer, got float"),
        ({"size": 4}, ValueError, r"size must be an integer in \[8, \d+\], got 4"),
    ],
)
def test_bad_arguments(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        glyph_images(**({"split": "val"} | arguments))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'paddle_ext\[images\]'"):
        module.font_file.__wrapped__("DejaVuSans")
