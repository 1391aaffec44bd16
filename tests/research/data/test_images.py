"""Images in memory and encoded ones: pixels, shapes, and errors for damaged files."""

import io
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from toy_images import pattern_images, random_pixels, write_image

from paddle_ext.research.data import images as module
from paddle_ext.research.data.images import EncodedImages, ImageArray, in_memory


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Seven images, 10 high and 12 wide."""
    return [
        write_image(tmp_path / f"{number}.png", random_pixels(10, 12, 3, seed=number))
        for number in range(7)
    ]


def encoded(paths: list[Path], **options: int | None) -> EncodedImages:
    labels = [number % 2 for number in range(len(paths))]
    return EncodedImages(paths, labels, ["even", "odd"], "val", **options)


# --- in memory -----------------------------------------------------------------------------------


def test_array() -> None:
    pixels = random_pixels(4, 6, 5, 3)
    labels = torch.tensor([1, 0, 1, 1], dtype=torch.uint16)  # of which torch finds no minimum
    images = ImageArray(pixels, labels, ["a", "b"], "base")
    assert (len(images), images.shape, images.split) == (4, (6, 5, 3), "base")
    assert images.class_names == ("a", "b")
    assert images.labels.tolist() == [1, 0, 1, 1]
    assert images.labels.dtype == torch.int64
    assert torch.equal(images.read([3, 0]), pixels[[3, 0]])
    assert in_memory(images) is images


@pytest.mark.parametrize(
    ("pixels", "labels", "names", "error", "message"),
    [
        (torch.zeros(2, 4, 4), [0, 0], ["a"], TypeError, "images must be uint8, got float32"),
        (random_pixels(2, 4), [0, 0], ["a"], ValueError, r"got \[2, 4\]"),
        (random_pixels(0, 4, 4), [], ["a"], ValueError, r"got \[0, 4, 4\]"),
        (random_pixels(2, 4, 4), [0], ["a"], ValueError, r"shape \[2\], got \[1\]"),
        (random_pixels(2, 4, 4), [0.0, 0.0], ["a"], TypeError, "integers, got float32"),
        (random_pixels(2, 4, 4), [0, 1], ["a"], ValueError, r"in \[0, 1\).* got 1"),
        (random_pixels(2, 4, 4), [0, 1], ["a", "a"], ValueError, "got 'a' twice"),
    ],
)
def test_bad_arrays(
    pixels: torch.Tensor, labels: list[int], names: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ImageArray(pixels, labels, names)


# --- encoded -------------------------------------------------------------------------------------


def test_files_are_read_as_they_are(files: list[Path]) -> None:
    images = encoded(files, size=None)
    assert (len(images), images.shape, images.split) == (7, (10, 12, 3), "val")
    for number in (6, 0, 3):
        assert torch.equal(images.read([number])[0], random_pixels(10, 12, 3, seed=number))
    together = images.read(torch.tensor([5, 1]))
    assert torch.equal(together, torch.stack([images.read([n])[0] for n in (5, 1)]))


def test_in_memory(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", 3)
    images = encoded(files, size=None)
    memory = in_memory(images)
    assert torch.equal(memory.images, images.read(range(7)))
    assert torch.equal(memory.labels, images.labels)
    assert (memory.class_names, memory.split) == (images.class_names, images.split)


def test_grey_and_colour(tmp_path: Path) -> None:
    grey = random_pixels(9, 9)
    path = write_image(tmp_path / "grey.png", grey)
    assert torch.equal(encoded([path], size=9, channels=1).read([0])[0, ..., 0], grey)
    colour = encoded([path], size=9).read([0])
    assert colour.shape == (1, 9, 9, 3)
    assert torch.equal(colour[0, ..., 2], grey)


@pytest.mark.parametrize(("height", "width"), [(20, 40), (40, 20), (20, 33), (20, 20), (7, 9)])
def test_the_middle_of_a_long_image(tmp_path: Path, height: int, width: int) -> None:
    """Brightness increases along the longer side, so the mean shows what was cropped."""
    along = torch.linspace(0, 255, max(height, width)).to(torch.uint8)
    pixels = (
        along.expand(height, width) if width >= height else along[:, None].expand(height, width)
    )
    image = encoded([write_image(tmp_path / "long.png", pixels.contiguous())], size=10, channels=1)
    result = image.read([0])[0, ..., 0].float()
    assert result.shape == (10, 10)
    pixel = 255 * min(height, width) / max(height, width) / 10
    assert abs(result.mean() - 127) < pixel / 2 + 2  # cut off to a pixel
    expected = 255 * (1 - min(height, width) / max(height, width)) / 2
    assert abs(result.min() - expected) < 20


def test_a_palette_with_transparency_does_not_warn(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8))
    image.putpalette([200, 100, 50] + [0] * 765)
    image.save(tmp_path / "palette.png", transparency=bytes([128, 255]))
    assert encoded([tmp_path / "palette.png"], size=8).read([0])[0, 0, 0].tolist() == [200, 100, 50]


def test_damaged_files_are_named(files: list[Path]) -> None:
    whole = files[4].read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no image at all", whole[:20] + b"\0" * 99):
        files[4].write_bytes(content)
        with pytest.raises(ValueError, match=r"must be an image( file)?, got: ") as caught:
            encoded(files, size=8).read(range(7))
        assert str(caught.value).startswith(str(files[4]))
        assert "\n" not in str(caught.value)
    files[4].unlink()
    for read in (lambda: encoded(files).read([4]), lambda: list(encoded(files).content())):
        with pytest.raises(ValueError, match=r"4.png must be an image file, got: No such file"):
            read()


def test_other_shape_is_named(files: list[Path]) -> None:
    write_image(files[2], random_pixels(10, 13, 3))
    with pytest.raises(ValueError, match=r"2.png must have the shape of the first image"):
        encoded(files, size=None).read(range(7))


def test_bad_options(files: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"size must be an integer in \[1, \d+\], got 0"):
        encoded(files, size=0)
    with pytest.raises(ValueError, match="channels must be 1 or 3, got 2"):
        encoded(files, channels=2)
    with pytest.raises(ValueError, match="at least one image"):
        encoded([])


def test_content_is_the_files(files: list[Path]) -> None:
    images = encoded(files)
    assert list(images.content()) == [path.read_bytes() for path in files]
    memory = pattern_images(2, 3)
    assert b"".join(memory.content()) == memory.images.numpy().tobytes()
    assert len(list(memory.content())) == 6


def test_without_pillow(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install 'paddle_ext\[images\]'"):
        encoded(files)


def test_jpeg_and_webp(tmp_path: Path) -> None:
    """Lossy, so only roughly the same."""
    smooth = torch.linspace(0, 250, 32).to(torch.uint8).expand(32, 32)
    for kind in ("JPEG", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(smooth.numpy()).save(file, kind)
        path = tmp_path / kind
        path.write_bytes(file.getvalue())
        pixels = encoded([path], size=None, channels=1).read([0])[0, ..., 0]
        assert (pixels.float() - smooth.float()).abs().max() < 16
