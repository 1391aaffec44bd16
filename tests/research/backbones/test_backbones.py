"""Networks, their files, and what they see: transform and augmentation."""

import copy
import pickle
import sys
from collections import OrderedDict
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toy_images import generator, one_thread, random_pixels  # noqa: F401

pytest.importorskip("safetensors", reason="needs safetensors")

from paddle_ext.research.backbones import (
    Augmentation,
    Backbone,
    Checkpoint,
    Transform,
    create,
    load_checkpoint,
)
from paddle_ext.research.backbones.augment import DRAWS, jittered, quarter_turns

GREY = Transform(32, (0.2,), (0.3,))
PLAIN = Transform(12, (0.0,) * 3, (1.0,) * 3)


# --- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "channels", "size", "dimension", "millions"),
    [
        ("resnet18", 3, 84, 512, 11.168),
        ("wrn28_10", 3, 84, 640, 36.483),
        ("wideres", 1, 84, 640, 36.483),
        ("small", 1, 32, 128, 0.155),
        ("small", 3, 28, 128, 0.156),
    ],
)
def test_shapes_and_sizes(
    name: str, channels: int, size: int, dimension: int, millions: float
) -> None:
    with torch.device("meta"):  # only shapes
        network = create(name, channels=channels)
        assert network(torch.empty(2, channels, size, size)).shape == (2, dimension)
    assert network.dimension == dimension
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=5e-3)


def test_no_early_pooling() -> None:
    """The maps of 84x84 images, layer by layer, as the few-shot networks have them."""
    sizes = {}
    for name in ("resnet18", "wrn28_10"):
        with torch.device("meta"):
            network = create(name)
            for layer in ("conv1", "layer1", "layer2", "layer3", "layer4"):
                if hasattr(network, layer):
                    getattr(network, layer).register_forward_hook(
                        lambda _, __, out, key=(name, layer): sizes.update({key: out.shape[1:3]})
                    )
            network(torch.empty(1, 3, 84, 84))
    assert [tuple(sizes["resnet18", f"layer{i}"]) for i in (1, 2, 3, 4)] == [
        (64, 84), (128, 42), (256, 21), (512, 11),
    ]  # fmt: skip
    assert [tuple(sizes["wrn28_10", f"layer{i}"]) for i in (1, 2, 3)] == [
        (160, 84), (320, 42), (640, 21),
    ]  # fmt: skip


@cache
def made(name: str) -> Backbone:
    """A network of each kind is enough, for millions of random weights take their time."""
    torch.manual_seed(2)
    return create(name).eval()


def test_features_are_not_negative_and_not_constant() -> None:
    torch.manual_seed(0)
    for name, channels, size in (("resnet18", 3, 20), ("small", 1, 32)):
        network = copy.deepcopy(made(name)).train()
        features = network(torch.randn(4, channels, size, size))
        assert (features >= 0).all()
        assert features.std(0).mean() > 0.01


@pytest.mark.parametrize("name", ["resnet18", "small"])
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    network = made(name)
    images = torch.randn(5, network.channels, 32, 32, generator=generator(0))
    with torch.no_grad():
        assert torch.allclose(network(images)[2:3], network(images[2:3]), atol=1e-5)


def test_bad_networks() -> None:
    with pytest.raises(ValueError, match="architecture must be one of 'resnet18', 'wrn28_10', "):
        create("resnet50")
    with pytest.raises(ValueError, match="channels must be 1 or 3, got 2"):
        create("small", channels=2)


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture
def small() -> Checkpoint:
    torch.manual_seed(1)
    network = create("small")
    network(torch.randn(8, 1, 32, 32))  # running statistics of their own
    return Checkpoint(network.eval(), GREY, ("a", "é"), nn.Linear(128, 2), {"epoch": "3"})


def test_round_trip(small: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "new" / "network.safetensors"
    small.save(path)
    loaded = load_checkpoint(path)
    assert loaded.backbone.architecture == "small"
    assert not loaded.backbone.training
    assert (loaded.transform, loaded.class_names) == (GREY, ("a", "é"))
    assert loaded.notes == {"epoch": "3"}
    for name, x in small.backbone.state_dict().items():
        assert torch.equal(loaded.backbone.state_dict()[name], x), name
    assert loaded.head is not None
    assert torch.equal(loaded.head.weight, small.head.weight)
    assert torch.equal(loaded.head.bias, small.head.bias)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_another_transform(small: Checkpoint, tmp_path: Path) -> None:
    small.save(tmp_path / "a.safetensors")
    mine = Transform(28, (0.5,), (0.5,), resize=30, mirror=True)
    assert load_checkpoint(tmp_path / "a.safetensors", transform=mine).transform == mine
    with pytest.raises(ValueError, match="as many channels as the backbone, 1, got 3"):
        load_checkpoint(tmp_path / "a.safetensors", transform=Transform())


def shapes_of(name: str) -> dict[str, torch.Tensor]:
    """Weights of the right shapes, all 0: one number each, so that files stay small."""
    with torch.device("meta"):
        weights = create(name).state_dict()
    return {k: torch.zeros((), dtype=x.dtype).expand(x.shape) for k, x in weights.items()}


def public(prefix: str, head: str) -> tuple[nn.Module, OrderedDict]:
    """A ResNet-18 under the names of the public code."""
    network = made("resnet18")
    names = OrderedDict((prefix + name, x) for name, x in network.state_dict().items())
    names |= {
        f"{prefix}{head}.weight": torch.randn(64, 512),
        f"{prefix}{head}.bias": torch.randn(64),
    }
    return network, names


@pytest.mark.parametrize(("modern", "wrapped"), [(True, False), (False, True)])
def test_public_checkpoint(tmp_path: Path, modern: bool, wrapped: bool) -> None:
    network, weights = public("module." if wrapped else "", "fc")
    weights = {k: v for k, v in weights.items() if "num_batches_tracked" not in k}  # old ones
    content = {"epoch": 90, "arch": "resnet18", "state_dict": weights, "best_prec1": 0.6}
    path = tmp_path / "model_best.pth.tar"
    torch.save(content if wrapped else weights, path, _use_new_zipfile_serialization=modern)
    loaded = load_checkpoint(tmp_path)  # the folder will do
    images = torch.randn(2, 3, 21, 21)
    with torch.no_grad():
        assert torch.equal(loaded.backbone(images), network(images))
    assert loaded.transform == Transform(84, resize=96)
    assert loaded.head.weight.shape == (64, 512)


def test_public_wide_network(tmp_path: Path) -> None:
    names = shapes_of("wrn28_10")
    weights = {f"module.{name}": x for name, x in names.items()}
    weights["module.linear.weight"] = torch.zeros(64, 640)
    weights["module.linear.bias"] = torch.zeros(64)
    torch.save({"state_dict": weights}, tmp_path / "wrn.pth.tar")
    loaded = load_checkpoint(tmp_path / "wrn.pth.tar")
    assert loaded.backbone.architecture == "wrn28_10"
    assert loaded.head.out_features == 64
    assert {
        "conv1.bias",
        "layer1.0.shortcut.0.weight",
        "layer3.3.bn2.running_var",
        "bn1.weight",
    } <= set(names)


def test_names_are_those_of_the_public_code() -> None:
    with torch.device("meta"):
        names = list(create("resnet18").state_dict())
    assert names[:6] == [
        "conv1.weight",
        *(
            f"bn1.{x}"
            for x in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        ),
    ]
    assert "layer2.0.downsample.0.weight" in names
    assert "layer2.0.downsample.1.running_var" in names
    assert "layer4.1.bn2.bias" in names
    assert len(names) == 120


class Trap:
    """A pickle that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_nothing_of_a_file_is_executed(tmp_path: Path) -> None:
    for modern in (True, False):
        torch.save({"state_dict": Trap(tmp_path / "made")}, tmp_path / "a.pth", pickle_protocol=2,
                   _use_new_zipfile_serialization=modern)  # fmt: skip
        with pytest.raises(ValueError, match=r"a.pth must hold plain tensors") as caught:
            load_checkpoint(tmp_path / "a.pth")
        assert "\n" not in str(caught.value)
    (tmp_path / "a.pth").write_bytes(pickle.dumps(Trap(tmp_path / "made"), protocol=2))
    with pytest.raises(ValueError, match="must hold plain tensors"):
        load_checkpoint(tmp_path / "a.pth")
    assert not (tmp_path / "made").exists()


def test_other_weights_are_named(tmp_path: Path) -> None:
    weights = shapes_of("resnet18")
    del weights["layer1.0.bn1.weight"]
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"it lacks 'layer1.0.bn1.weight'"):
        load_checkpoint(tmp_path / "a.pth")
    weights["layer1.0.bn1.weight"] = torch.zeros(3)
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"of another shape 'layer1.0.bn1.weight'"):
        load_checkpoint(tmp_path / "a.pth")
    weights["layer1.0.bn1.weight"] = torch.zeros(64)
    torch.save(weights | {"layer9.weight": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"unknown is 'layer9.weight'"):
        load_checkpoint(tmp_path / "a.pth")
    torch.save({"denseblock1.weight": torch.zeros(3)}, tmp_path / "a.pth")
    with pytest.raises(
        ValueError, match=r"ResNet-18 or WRN-28-10, got layers such as 'denseblock1"
    ):
        load_checkpoint(tmp_path / "a.pth")
    torch.save([1, 2], tmp_path / "a.pth")
    with pytest.raises(ValueError, match="must hold a state dict, got list"):
        load_checkpoint(tmp_path / "a.pth")


def test_bad_files(small: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match="which is not there"):
        load_checkpoint(path)
    small.save(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"x" * 200):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.safetensors must be a safetensors file"):
            load_checkpoint(path)
    from safetensors.torch import save_file

    for metadata in (None, {"format": '"other"'}, {"format": "}"}):
        save_file({"x": torch.zeros(2)}, path, metadata)
        with pytest.raises(ValueError, match=r"must be a network that Checkpoint.save wrote"):
            load_checkpoint(path)


def test_without_safetensors(
    small: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'paddle_ext\[train\]'"):
        small.save(tmp_path / "a.safetensors")


# --- transform -----------------------------------------------------------------------------------


def test_transform_without_scaling() -> None:
    images = random_pixels(2, 12, 12, 3)
    got = Transform(12, (0.1, 0.2, 0.3), (0.5, 1.0, 2.0))(images)
    expected = images.permute(0, 3, 1, 2).double() / 255
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 1.0), (0.3, 2.0)]):
        assert torch.allclose(
            got[:, channel].double(), (expected[:, channel] - mean) / std, atol=1e-6
        )


def test_transform_takes_the_middle() -> None:
    images = random_pixels(2, 20, 16, 3)
    assert torch.equal(
        Transform(10, PLAIN.mean, PLAIN.std, resize=16)(images),
        plain_pixels(images)[..., 5:15, 3:13],
    )
    long = torch.linspace(0, 255, 60).to(torch.uint8).view(1, 1, 60, 1).expand(1, 30, 60, 3)
    result = PLAIN(long)
    assert result.shape == (1, 3, 12, 12)
    assert abs(result.mean() - 0.5) < 0.01
    assert abs(result.min() - 0.25) < 0.03


def plain_pixels(images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be at least 1"),
        ({"resize": 60}, "resize must be None or at least size, 84, got 60"),
        ({"std": (1.0,)}, "must have 1 number or 3 each, got 3 and 1"),
        ({"std": (1.0, 0.0, 1.0)}, "std > 0"),
        ({"mean": (float("nan"), 0.0, 0.0)}, "must be finite"),
    ],
)
def test_bad_transforms(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transform(**arguments)


# --- augmentation --------------------------------------------------------------------------------

WHOLE = {"area": (1.0, 1.0), "mirror": False, "jitter": 0.0}


def augmented(images: torch.Tensor, seed: int = 0, size: int = 12, **options) -> tuple:
    draws = torch.rand(len(images), DRAWS, generator=generator(seed))
    transform = Transform(size, PLAIN.mean, PLAIN.std)
    return Augmentation(**options)(images, draws, transform)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_whole_image(interpolation: str) -> None:
    images = random_pixels(5, 12, 12, 3)
    got, turns = augmented(images, interpolation=interpolation, **WHOLE)
    assert torch.allclose(got, PLAIN(images), atol=1e-5)
    assert (turns == 0).all()


def test_mirror_and_turns() -> None:
    images = random_pixels(64, 12, 12, 3)
    got, turns = augmented(images, turned=0.75, **(WHOLE | {"mirror": True}))
    plain, mirrored = PLAIN(images), 0
    for x, y, turn in zip(got, plain, turns.tolist(), strict=True):
        # Turned the same way round by a quarter for each number, mirrored before.
        found = [
            torch.allclose(x, torch.rot90(z, turn, (1, 2)), atol=1e-5) for z in (y, y.flip(-1))
        ]
        assert sum(found) == 1
        mirrored += found[1]
    assert 16 < mirrored < 48
    assert turns.bincount(minlength=4).min() >= 8


def test_share_of_turns() -> None:
    draws = torch.linspace(0, 1, 1001)[:-1]
    assert quarter_turns(draws, 0.0).sum() == 0
    counts = quarter_turns(draws, 0.6).bincount(minlength=4)
    assert (counts - torch.tensor([400, 200, 200, 200])).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), [(40, 40), (40, 60), (90, 30), (20, 100)])
def test_crops_lie_inside_and_have_their_area_and_ratio(height: int, width: int) -> None:
    """Pixels tell their own coordinates, so a crop tells where it is."""
    x = torch.linspace(0, 255, width).expand(height, width)
    y = torch.linspace(0, 255, height)[:, None].expand(height, width)
    images = torch.stack([x, y, y], -1).round().to(torch.uint8).expand(400, -1, -1, -1)
    got, _ = augmented(images, size=16, area=(0.2, 0.8), mirror=False, jitter=0.0)
    # The corner pixels of the result are half a sixteenth inside the crop.
    span_x = (got[:, 0, :, -1] - got[:, 0, :, 0]).mean(1) * 16 / 15
    span_y = (got[:, 1, -1] - got[:, 1, 0]).mean(1) * 16 / 15
    area, ratio = span_x * span_y, span_x * width / (span_y * height)
    slack = 0.06
    most = min(0.8, 4 / 3 * height / width, 4 / 3 * width / height)
    assert area.min() > min(0.2, most) - slack
    assert area.max() < most + slack
    assert ratio.min() > 3 / 4 - 2 * slack
    assert ratio.max() < 4 / 3 + 3 * slack
    if height == width:
        assert abs(area.mean() - 0.5) < 0.04  # uniform
        assert abs(got[:, 0].mean() - 0.5) < 0.04  # as often left as right


def test_jitter() -> None:
    x = torch.rand(3, 3, 5, 5, generator=generator(0)) * 0.5
    assert torch.allclose(jittered(x, torch.ones(3, 3)), x, atol=1e-6)
    brighter = jittered(x, torch.tensor([[1.3, 1.0, 1.0]] * 3))
    assert torch.allclose(brighter, 1.3 * x, atol=1e-6)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    grey = (x * weights).sum(1, keepdim=True)
    flat = jittered(x, torch.tensor([[1.0, 0.0, 1.0]] * 3))
    assert torch.allclose(flat, grey.mean((2, 3), keepdim=True).expand_as(x), atol=1e-6)
    assert torch.allclose(
        jittered(x, torch.tensor([[1.0, 1.0, 0.0]] * 3)), grey.expand_as(x), atol=1e-6
    )
    assert jittered(x[:, :1], torch.full((3, 3), 1.4)).shape == (3, 1, 5, 5)
    images = random_pixels(50, 12, 12, 3)
    got, _ = augmented(images, **(WHOLE | {"jitter": 0.4}))
    assert got.min() >= 0
    assert got.max() <= 1
    assert 0.02 < (got - PLAIN(images)).abs().mean() < 0.25


def test_augmentation_is_float32_under_autocast() -> None:
    images = random_pixels(4, 12, 12, 3)
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = augmented(images)
    assert got.dtype == torch.float32
    assert torch.equal(got, augmented(images)[0])


def test_the_same_draws_give_the_same_images() -> None:
    images = random_pixels(6, 12, 12, 3)
    assert torch.equal(augmented(images)[0], augmented(images)[0])
    assert not torch.allclose(augmented(images)[0], augmented(images, seed=1)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"area": (0.0, 1.0)}, r"area must rise within \(0, 1\]"),
        ({"area": (0.5, 0.4)}, "area must rise"),
        ({"ratio": (2.0, 1.0)}, "ratio must rise"),
        ({"jitter": 1.5}, r"jitter must be in \[0, 1\], got 1.5"),
        ({"turned": -0.1}, r"turned must be in \[0, 1\]"),
        ({"interpolation": "nearest"}, "interpolation must be one of 'bilinear', 'bicubic'"),
    ],
)
def test_bad_augmentations(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(**arguments)


def test_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="as many channels as mean, 3, got 1"):
        PLAIN(random_pixels(2, 12, 12, 1))


def test_a_network_learns_through_the_transform() -> None:
    """Gradients reach every weight."""
    network = create("small")
    loss = F.cross_entropy(network(GREY(random_pixels(8, 32, 32, 1)))[:, :4], torch.arange(8) % 4)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
