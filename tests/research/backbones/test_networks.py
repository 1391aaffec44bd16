"""Networks and their files."""

import os
import pickle
from collections import OrderedDict
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from paddle_ext.research.backbones import Backbone, Checkpoint, Transform, create, load_checkpoint
from paddle_ext.research.backbones.networks import ARCHITECTURES

pytest.importorskip("safetensors", reason="needs safetensors")

GREY = Transform(32, (0.2,), (0.3,))


# --- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "channels", "size", "dimension", "millions"),
    [
        ("resnet18", 3, 84, 512, 11.168),
        ("wrn28_10", 3, 84, 640, 36.483),
        ("small", 1, 32, 128, 0.155),
        ("small", 3, 28, 128, 0.156),
    ],
)
def test_shapes_and_sizes(
    name: str, channels: int, size: int, dimension: int, millions: float
) -> None:
    with torch.device("meta"):  # only shapes
        network = ARCHITECTURES[name](channels)
        assert network(torch.empty(2, channels, size, size)).shape == (2, dimension)
    assert network.dimension == dimension
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=5e-3)


def test_no_early_pooling() -> None:
    """The maps of 84x84 images, layer by layer, as the few-shot networks have them."""
    sizes = {}
    for name in ("resnet18", "wrn28_10"):
        with torch.device("meta"):
            network = ARCHITECTURES[name]()
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
def resnet() -> Backbone:
    """Made once, because millions of random weights take time."""
    torch.manual_seed(2)
    return create("resnet18").eval()


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
    return Checkpoint(network.eval(), GREY, ("a", "é"), {"epoch": "3"})


def test_round_trip(small: Checkpoint, tmp_path: Path) -> None:
    import safetensors.torch

    path = tmp_path / "new" / "network.safetensors"
    small.save(path)
    loaded = load_checkpoint(path)
    assert loaded.backbone.architecture == "small"
    assert not loaded.backbone.training
    assert (loaded.transform, loaded.class_names) == (GREY, ("a", "é"))
    assert loaded.notes == {"epoch": "3"}
    for name, x in small.backbone.state_dict().items():
        assert torch.equal(loaded.backbone.state_dict()[name], x), name
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with safetensors.safe_open(path, "pt") as file:
        told, weights = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    weights["head.weight"] = torch.ones(2)  # of version 0.1
    path.write_bytes(safetensors.torch.save(weights, told))
    assert load_checkpoint(path).class_names == ("a", "é")


def shapes_of(name: str) -> dict[str, torch.Tensor]:
    """Weights of the right shapes, all 0: one number each, so that files stay small."""
    with torch.device("meta"):
        weights = ARCHITECTURES[name]().state_dict()
    return {k: torch.zeros((), dtype=x.dtype).expand(x.shape) for k, x in weights.items()}


def public(prefix: str, head: str) -> tuple[nn.Module, OrderedDict]:
    """A ResNet-18 under the names of the public code."""
    network = resnet()
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


def test_public_wide_network(tmp_path: Path) -> None:
    names = shapes_of("wrn28_10")
    weights = {f"module.{name}": x for name, x in names.items()}
    weights["module.linear.weight"] = torch.zeros(64, 640)
    weights["module.linear.bias"] = torch.zeros(64)
    torch.save({"state_dict": weights}, tmp_path / "wrn.pth.tar")
    loaded = load_checkpoint(tmp_path / "wrn.pth.tar")
    assert loaded.backbone.architecture == "wrn28_10"
    theirs = {"conv1.bias", "layer1.0.shortcut.0.weight", "layer3.3.bn2.running_var", "bn1.weight"}
    assert theirs <= set(names)
    resnet = shapes_of("resnet18")
    theirs = {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias", "layer4.1.bn2.bias"}
    assert theirs <= set(resnet)
    assert len(resnet) == 120


class Trap:
    """A pickle that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_nothing_of_a_file_is_executed(tmp_path: Path) -> None:
    path, trap = tmp_path / "a.pth", Trap(tmp_path / "made")
    for modern in (True, False):
        torch.save({"state_dict": trap}, path, _use_new_zipfile_serialization=modern)
        with pytest.raises(
            ValueError, match=r"a.pth must hold only tensors, strings, numb"
        ) as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(pickle.dumps(trap, protocol=2))
    with pytest.raises(ValueError, match=r"a.pth must hold only tensors"):
        load_checkpoint(path)
    assert not (tmp_path / "made").exists()


def test_other_weights_are_named(tmp_path: Path) -> None:
    path, weights, name = tmp_path / "a.pth", shapes_of("resnet18"), "layer1.0.bn1.weight"
    lacking = {key: x for key, x in weights.items() if key != name}
    for content, message in (
        (lacking, f'weights of .resnet18., got others: Missing key.* "{name}"'),
        (weights | {name: torch.zeros(3)}, f"size mismatch for {name}: .*3.*64"),
        (weights | {"layer9.weight": torch.zeros(1)}, 'Unexpected key.* "layer9.weight"'),
        (
            {"denseblock1.weight": torch.zeros(3)},
            "ResNet-18 or WRN-28-10, got layers such as 'dens",
        ),
        ([1, 2], "must hold a state dict, got list"),
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=message) as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value)


def test_bad_files(small: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match="which does not exist"):
        load_checkpoint(path)
    small.save(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"x" * 200):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.safetensors must be a safetensors file"):
            load_checkpoint(path)
    from safetensors.torch import save_file

    for metadata in (None, {"format": '"other"'}, {"format": "}"}, {"format": "[" * 100_000}):
        save_file({"x": torch.zeros(2)}, path, metadata)
        with pytest.raises(ValueError, match=r"must be written by Checkpoint.save"):
            load_checkpoint(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="must be a regular file, got a pipe"):
        load_checkpoint(path)
