"""Features of images, and a cache that must never return those of something else."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_images import (
    LazyImages,
    one_thread,  # noqa: F401
    pattern_images,
    random_pixels,
    write_image,
)

from paddle_ext.research.backbones import (
    Backbone,
    Checkpoint,
    Transform,
    create,
    digest_of_images,
    digest_of_weights,
    extract,
)
from paddle_ext.research.backbones import extraction as module
from paddle_ext.research.backbones.extraction import Extractor, Feeder
from paddle_ext.research.data import FeatureBank
from paddle_ext.research.data.images import EncodedImages, ImageArray

GREY = Transform(16, (0.4,), (0.2,))
IMAGES = pattern_images(5, 9)
BASE = pattern_images(4, 7, seed=9)


@pytest.fixture
def network() -> Backbone:
    torch.manual_seed(0)
    network = create("small")
    network(torch.randn(32, 1, 16, 16))
    return network.eval()


def directly(network: Backbone, images: ImageArray, transform: Transform = GREY) -> torch.Tensor:
    with torch.no_grad():
        return network(transform(images.images))


# --- features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 45, 1000])
def test_features(network: Backbone, batch_size: int) -> None:
    options = {"transform": GREY, "batch_size": batch_size, "device": "cpu"}
    bank = extract(network, IMAGES, base=BASE, **options)
    assert isinstance(bank, FeatureBank)
    assert bank.features.shape == (45, 128)
    assert bank.features.dtype == torch.float32
    assert torch.allclose(bank.features, directly(network, IMAGES), atol=1e-5)
    assert torch.allclose(bank.base_mean, directly(network, BASE).mean(0), atol=1e-5)
    assert torch.equal(bank.labels, IMAGES.labels)
    assert bank.class_names == IMAGES.class_names
    assert bank.splits == ("base",)


def test_of_a_checkpoint(network: Backbone) -> None:
    checkpoint = Checkpoint(network, GREY)
    bank = extract(checkpoint, IMAGES, device="cpu")
    assert torch.allclose(bank.features, directly(network, IMAGES), atol=1e-5)
    assert bank.base_mean is None
    other = replace(GREY, std=(0.5,))
    bank = extract(checkpoint, IMAGES, transform=other, device="cpu")
    assert torch.allclose(bank.features, directly(network, IMAGES, other), atol=1e-5)


def test_mean_over_the_mirror_image(network: Backbone) -> None:
    bank = extract(network, IMAGES, transform=replace(GREY, mirror=True), device="cpu")
    mirrored = ImageArray(IMAGES.images.flip(2), IMAGES.labels, IMAGES.class_names)
    expected = (directly(network, IMAGES) + directly(network, mirrored)) / 2
    assert torch.allclose(bank.features, expected, atol=1e-5)


def test_the_network_stays_as_it_was(network: Backbone) -> None:
    before = digest_of_weights(network)
    network.train()
    extract(network, IMAGES, transform=GREY, device="cpu")
    assert network.training
    assert digest_of_weights(network) == before


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_on_cuda(network: Backbone, precision: str) -> None:
    bank = extract(network, IMAGES, base=BASE, transform=GREY, device="cuda", precision=precision)
    exact = directly(network, IMAGES)
    assert bank.features.device.type == "cpu"
    assert (bank.features - exact).norm() / exact.norm() < 0.03
    assert next(network.parameters()).device.type == "cpu"


def test_bad_arguments(network: Backbone) -> None:
    with pytest.raises(ValueError, match="transform must be given with a bare backbone"):
        extract(network, IMAGES)
    with pytest.raises(ValueError, match="images must have as many channels as the network, 1"):
        extract(network, pattern_images(2, 2, channels=3), transform=GREY)
    with pytest.raises(ValueError, match="base must have as many channels as the network, 1"):
        extract(network, IMAGES, base=pattern_images(2, 2, channels=3), transform=GREY)
    with pytest.raises(ValueError, match=r"batch_size must be an integer in \[1, \d+\], got 0"):
        extract(network, IMAGES, transform=GREY, batch_size=0)
    with pytest.raises(ValueError, match="precision must be one of"):
        extract(network, IMAGES, transform=GREY, precision="half")
    with pytest.raises(ValueError, match="precision must be 'auto' or 'float32' on the CPU"):
        extract(network, IMAGES, transform=GREY, precision="bfloat16", device="cpu")


# --- the cache -----------------------------------------------------------------------------------


class Counting:
    """Counts the images that go through a network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, original = 0, module.features_of

        def features_of(backbone: Backbone, images: torch.Tensor, *rest) -> torch.Tensor:
            self.count += len(images)
            return original(backbone, images, *rest)

        monkeypatch.setattr(module, "features_of", features_of)

    def during(self, *arguments, **options) -> tuple[int, FeatureBank]:
        before = self.count
        bank = extract(*arguments, **({"transform": GREY, "device": "cpu"} | options))
        return self.count - before, bank


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


def test_computed_once(network: Backbone, counting: Counting, tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    count, first = counting.during(network, IMAGES, base=BASE, cache=cache)
    assert count == 45 + 28
    count, second = counting.during(network, IMAGES, base=BASE, cache=cache)
    assert count == 0
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.base_mean, second.base_mean)
    assert len(list(cache.iterdir())) == 2
    # Labels and names are not in the cache, so they cannot be old.
    renamed = ImageArray(IMAGES.images, IMAGES.labels.flip(0), [f"n{k}" for k in range(5)], "test")
    count, third = counting.during(network, renamed, base=BASE, cache=cache)
    assert count == 0
    assert torch.equal(third.labels, IMAGES.labels.flip(0))
    assert third.class_names == renamed.class_names
    assert third.splits == ("test",)


def test_anything_else_is_recomputed(network: Backbone, counting: Counting, tmp_path: Path) -> None:
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 45
    pixels = IMAGES.images.clone()
    pixels[44, 15, 15, 0] ^= 1
    one_pixel = ImageArray(pixels, IMAGES.labels, IMAGES.class_names)
    assert counting.during(network, one_pixel, cache=tmp_path)[0] == 45
    reordered = ImageArray(IMAGES.images.flip(0), IMAGES.labels, IMAGES.class_names)
    assert counting.during(network, reordered, cache=tmp_path)[0] == 45
    for change in ({"mean": (0.41,)}, {"size": 15}, {"resize": 17}, {"mirror": True}):
        other = replace(GREY, **change)
        assert counting.during(network, IMAGES, transform=other, cache=tmp_path)[0] == 45, change
    cpu = torch.device("cpu")
    keys = {
        Extractor(network, GREY, cpu, dtype, 1, tmp_path, False).key(IMAGES)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    assert len(keys) == 3
    with torch.no_grad():
        network.linear.weight[3, 5] += 1e-3
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 45
    network.norm.running_mean[0] += 1e-3
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 45
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 0


def test_files_count_by_their_bytes_alone(
    network: Backbone, counting: Counting, tmp_path: Path
) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    paths = [write_image(tmp_path / f"{n}.png", random_pixels(16, 16, seed=n)) for n in range(3)]

    def images() -> EncodedImages:
        return EncodedImages(paths, [0, 0, 1], ["a", "b"], size=16, channels=1)

    cache = tmp_path / "cache"
    assert counting.during(network, images(), cache=cache)[0] == 3
    for path in paths:
        os.utime(path, (0, 0))
    paths = [path.rename(path.with_name(f"new-{path.name}")) for path in paths]
    assert counting.during(network, images(), cache=cache)[0] == 0
    # The same name, time and number of bytes, but another image.
    changed = bytearray(paths[1].read_bytes())
    other = write_image(tmp_path / "other.png", random_pixels(16, 16, seed=77)).read_bytes()
    paths[1].write_bytes(other)
    os.utime(paths[1], (0, 0))
    assert bytes(changed) != other
    count, bank = counting.during(network, images(), cache=cache)
    assert count == 3
    assert torch.allclose(bank.features, counting.during(network, images())[1].features)


def test_digest_of_images_sees_borders() -> None:
    """The same bytes as other images are not the same images."""
    pixels = random_pixels(8, 4, 6, 1)
    names = ["a"]
    wide = ImageArray(pixels, [0] * 8, names)
    high = ImageArray(pixels.view(8, 6, 4, 1), [0] * 8, names)
    fewer = ImageArray(pixels.view(4, 8, 6, 1), [0] * 4, names)
    assert len({digest_of_images(images) for images in (wide, high, fewer)}) == 3
    assert digest_of_images(wide) == digest_of_images(ImageArray(pixels.clone(), [0] * 8, ["b"]))


def test_a_damaged_cache_is_named(network: Backbone, tmp_path: Path) -> None:
    extract(network, IMAGES, transform=GREY, device="cpu", cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    other_bit = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for content in (whole[:100], whole[:-4], b"", other_bit):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file.name} is a damaged cache file"):
            extract(network, IMAGES, transform=GREY, device="cpu", cache=tmp_path)


def test_progress(
    network: Backbone, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddle_ext.progress.SECONDS_BETWEEN_LINES", 0.0)
    extract(network, IMAGES, transform=GREY, device="cpu", batch_size=20, progress=True)
    assert "features 40/45" in capsys.readouterr().err
    extract(network, IMAGES, transform=GREY, device="cpu")
    assert capsys.readouterr().err == ""


# --- batches of images ---------------------------------------------------------------------------

ORDER = [torch.tensor([3, 1]), torch.tensor([7]), torch.tensor([0, 0, 5]), torch.tensor([2])] * 3


@pytest.mark.parametrize("keep", [True, False])
def test_batches_in_order(keep: bool) -> None:
    feeder = Feeder(LazyImages(IMAGES), torch.device("cpu"), keep=keep)
    assert (feeder.resident is not None) == keep
    batches = list(feeder.batches(ORDER))
    assert len(batches) == 12
    for index, batch in zip(ORDER, batches, strict=True):
        assert torch.equal(batch, IMAGES.images[index])


def test_broken_images_and_leaving_early() -> None:
    lazy = LazyImages(IMAGES, broken=7)
    batches = Feeder(lazy, torch.device("cpu"), keep=False).batches(ORDER)
    assert len(next(batches)) == 2
    with pytest.raises(ValueError, match="image 7 must be an image"):
        next(batches)
    lazy = LazyImages(IMAGES)
    batches = Feeder(lazy, torch.device("cpu"), keep=False).batches(ORDER)
    next(batches)
    batches.close()
    assert lazy.reads <= 2
