"""Features of images, and a cache that must never return those of something else."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_images import (
    LazyImages,
    generator,
    pattern_images,
    random_pixels,
    write_image,
)

from paddle_ext.research.backbones import (
    Backbone,
    Checkpoint,
    Transform,
    create,
    extract,
    nearest_mean_accuracy,
)
from paddle_ext.research.backbones import extraction as module
from paddle_ext.research.backbones.extraction import (
    batches,
    cache_key,
    digest_of_weights,
    preloaded,
)
from paddle_ext.research.data import FeatureBank
from paddle_ext.research.data.images import EncodedImages, ImageArray

GREY = Transform(16, (0.4,), (0.2,))
CPU = torch.device("cpu")
IMAGES = pattern_images(5, 9)
BASE = pattern_images(4, 7, seed=9)


@pytest.fixture
def network() -> Checkpoint:
    torch.manual_seed(0)
    backbone = create("small")
    backbone(torch.randn(32, 1, 16, 16))
    return Checkpoint(backbone.eval(), GREY)


def directly(network: Checkpoint, images: ImageArray) -> torch.Tensor:
    with torch.no_grad():
        return network.backbone(network.transform(images.images))


# --- features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 45, 1000])
def test_features(network: Checkpoint, batch_size: int) -> None:
    bank = extract(network, IMAGES, base=BASE, batch_size=batch_size, device="cpu")
    assert isinstance(bank, FeatureBank)
    assert bank.features.shape == (45, 128)
    assert bank.features.dtype == torch.float32
    assert torch.allclose(bank.features, directly(network, IMAGES), atol=1e-5)
    assert torch.allclose(bank.base_mean, directly(network, BASE).mean(0), atol=1e-5)
    assert torch.equal(bank.labels, IMAGES.labels)
    assert bank.class_names == IMAGES.class_names
    assert bank.splits == ("base",)


def test_mean_over_the_mirror_image(network: Checkpoint) -> None:
    bank = extract(replace(network, transform=replace(GREY, mirror=True)), IMAGES, device="cpu")
    mirrored = ImageArray(IMAGES.images.flip(2), IMAGES.labels, IMAGES.class_names)
    expected = (directly(network, IMAGES) + directly(network, mirrored)) / 2
    assert torch.allclose(bank.features, expected, atol=1e-5)
    assert bank.base_mean is None


def test_the_network_stays_as_it_was(network: Checkpoint) -> None:
    before = digest_of_weights(network.backbone)
    network.backbone.train()
    extract(network, IMAGES, device="cpu")
    assert network.backbone.training
    assert digest_of_weights(network.backbone) == before


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_on_cuda(network: Checkpoint, precision: str) -> None:
    bank = extract(network, IMAGES, base=BASE, device="cuda", precision=precision)
    exact = directly(network, IMAGES)
    assert bank.features.device.type == "cpu"
    assert (bank.features - exact).norm() / exact.norm() < 0.03
    assert next(network.backbone.parameters()).device.type == "cpu"


def test_bad_arguments(network: Checkpoint) -> None:
    with pytest.raises(ValueError, match="images must have as many channels as the network, 1"):
        extract(network, pattern_images(2, 2, channels=3))
    with pytest.raises(ValueError, match="base must have as many channels as the network, 1"):
        extract(network, IMAGES, base=pattern_images(2, 2, channels=3))
    with pytest.raises(ValueError, match=r"batch_size must be an integer in \[1, \d+\], got 0"):
        extract(network, IMAGES, batch_size=0)
    with pytest.raises(ValueError, match="precision must be one of"):
        extract(network, IMAGES, precision="half")
    with pytest.raises(ValueError, match="precision must be 'auto' or 'float32' on the CPU"):
        extract(network, IMAGES, precision="bfloat16", device="cpu")


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
        bank = extract(*arguments, **({"device": "cpu"} | options))
        return self.count - before, bank


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


def test_computed_once(network: Checkpoint, counting: Counting, tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    count, first = counting.during(network, IMAGES, base=BASE, cache=cache)
    assert count == 45 + 28
    count, second = counting.during(network, IMAGES, base=BASE, cache=cache)
    assert count == 0
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.base_mean, second.base_mean)
    # Labels and names are not in the cache, so they cannot be old.
    renamed = ImageArray(IMAGES.images, IMAGES.labels.flip(0), [f"n{k}" for k in range(5)], "test")
    count, third = counting.during(network, renamed, base=BASE, cache=cache)
    assert count == 0
    assert torch.equal(third.labels, IMAGES.labels.flip(0))
    assert third.class_names == renamed.class_names
    assert third.splits == ("test",)


def test_anything_else_is_recomputed(
    network: Checkpoint, counting: Counting, tmp_path: Path
) -> None:
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 45
    pixels = IMAGES.images.clone()
    pixels[44, 15, 15, 0] ^= 1
    one_pixel = ImageArray(pixels, IMAGES.labels, IMAGES.class_names)
    assert counting.during(network, one_pixel, cache=tmp_path)[0] == 1
    reordered = ImageArray(IMAGES.images.flip(0), IMAGES.labels, IMAGES.class_names)
    count, bank = counting.during(network, reordered, cache=tmp_path)
    assert count == 0
    assert torch.allclose(bank.features, directly(network, reordered), atol=1e-5)
    high = ImageArray(IMAGES.images.view(45, 32, 8, 1), IMAGES.labels, IMAGES.class_names)
    assert counting.during(network, high, cache=tmp_path)[0] == 45  # the same bytes
    for change in ({"mean": (0.41,)}, {"size": 15}, {"resize": 17}, {"mirror": True}):
        other = replace(network, transform=replace(GREY, **change))
        assert counting.during(other, IMAGES, cache=tmp_path)[0] == 45, change
    dtypes = (torch.float32, torch.bfloat16)
    assert len({cache_key(network, IMAGES, dtype) for dtype in dtypes}) == 2
    with torch.no_grad():
        network.backbone.linear.weight[3, 5] += 1e-3
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 45
    network.backbone.norm.running_mean[0] += 1e-3
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 45
    assert counting.during(network, IMAGES, cache=tmp_path)[0] == 0


def test_files_count_by_their_bytes_alone(
    network: Checkpoint, counting: Counting, tmp_path: Path
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
    assert count == 1
    fresh = counting.during(network, images())[1].features
    assert torch.allclose(bank.features, fresh, atol=1e-5)


def test_a_cache_that_cannot_be_used_is_named(network: Checkpoint, tmp_path: Path) -> None:
    extract(network, IMAGES, device="cpu", cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"no database" * 100)
    with pytest.raises(ValueError, match=rf"{file.name} is a damaged cache file"):
        extract(network, IMAGES, device="cpu", cache=tmp_path)
    with pytest.raises(OSError, match=rf"features are not cached: {file}: "):
        extract(network, IMAGES, device="cpu", cache=file)


def test_progress(
    network: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddle_ext.progress.SECONDS_BETWEEN_LINES", 0.0)
    extract(network, IMAGES, device="cpu", batch_size=20, progress=True)
    assert "features 40/45" in capsys.readouterr().err
    extract(network, IMAGES, device="cpu")
    assert capsys.readouterr().err == ""


# --- batches of images ---------------------------------------------------------------------------

ORDER = [torch.tensor([3, 1]), torch.tensor([7]), torch.tensor([0, 0, 5]), torch.tensor([2])] * 3


@pytest.mark.parametrize("keep", [True, False])
def test_batches_in_order(keep: bool) -> None:
    images = preloaded(LazyImages(IMAGES), CPU, progress=False) if keep else LazyImages(IMAGES)
    assert isinstance(images, torch.Tensor) == keep
    for index, batch in zip(ORDER, batches(images, ORDER, CPU), strict=True):
        assert torch.equal(batch, IMAGES.images[index])


def test_broken_images_and_leaving_early() -> None:
    read = batches(LazyImages(IMAGES, broken=7), ORDER, CPU)
    assert len(next(read)) == 2
    with pytest.raises(ValueError, match="image 7 must be an image"):
        next(read)
    lazy = LazyImages(IMAGES)
    read = batches(lazy, ORDER, CPU)
    next(read)
    read.close()
    assert lazy.reads <= 2


# --- accuracy by the nearest class mean -----------------------------------------------------------


def test_accuracy_by_hand() -> None:
    """Two classes on a line; a third of the second lies with the first."""
    features = torch.tensor([[1.0, 0.0]] * 12 + [[0.0, 1.0]] * 8 + [[1.0, 0.0]] * 4)
    labels = torch.tensor([0] * 12 + [1] * 12)
    options = {"num_classes": 2, "shots": 2, "n_tasks": 400}
    # The mean of two shots of class 1 is nearest to its queries at (0, 1) unless both are strays:
    # (4/12)(3/11) = 1/11 of the tasks, in which everything ties and the first class of a task wins.
    expected = (10 / 11) * (10 + 10 - 10 / 3) / 20 + (1 / 11) * 10 / 20
    assert nearest_mean_accuracy(features, labels, **options) == pytest.approx(expected, abs=0.03)


def test_accuracy_depends_on_the_centre() -> None:
    features = pattern_images(8, 20, size=8).images.flatten(1).float() + 300
    features += 120 * torch.randn(features.shape, generator=generator(0))
    labels = torch.arange(8).repeat_interleave(20)
    first = nearest_mean_accuracy(features, labels, n_tasks=50)
    assert first == nearest_mean_accuracy(features, labels, n_tasks=50)
    assert first < nearest_mean_accuracy(features, labels, n_tasks=50, centre=features.mean(0))


def test_uneven_classes() -> None:
    counts = torch.tensor([4, 7, 30, 8])
    # Rows of no class, and labels that are not 0, 1, 2.
    labels = torch.tensor([-1, 0, 5, 10]).repeat_interleave(counts)
    features = torch.eye(11)[labels]
    assert nearest_mean_accuracy(features, labels, num_classes=3, n_tasks=20) == 1.0


def test_too_few_for_a_task() -> None:
    features, labels = torch.randn(10, 4), torch.arange(2).repeat_interleave(5)
    with pytest.raises(ValueError, match="at most the number of classes, 2, got 3"):
        nearest_mean_accuracy(features, labels, num_classes=3, shots=2)
    with pytest.raises(ValueError, match="at least 6 samples of each class, got 5"):
        nearest_mean_accuracy(features, labels, num_classes=2)
