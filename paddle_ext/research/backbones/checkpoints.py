"""Read and write networks: ours in safetensors files, and the public ones of TIM and SimpleShot.

Nothing in a file is ever executed: safetensors cannot hold code, and the public files, which are
pickles, are read with ``weights_only=True``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ...arrays import read_torch, safetensors
from ...files import RefusedError, check_regular, readable, write_tensors
from .networks import Backbone, create_uninitialised
from .recipes import Transform

FORMAT = "paddle_ext.backbone.1"
PUBLIC_TRANSFORM = Transform(84, resize=96)  # as in their evaluation
PUBLIC_HEAD = re.compile(r"(module\.)?(fc|linear)\.")  # of the base classes, as in `HEAD`
# Layers that identify the public networks.
PUBLIC_LAYERS = {"layer4.1.conv2.weight": "resnet18", "layer3.3.conv2.weight": "wrn28_10"}
HEAD = "head."  # the classifier of the base classes in files of version 0.1; features need none
COUNTERS = "num_batches_tracked"  # of batch normalisation; missing in old files and never used


@dataclass
class Checkpoint:
    """A network with everything needed to use it."""

    backbone: Backbone
    transform: Transform  # the preprocessing of images
    class_names: tuple[str, ...] = ()  # that it was trained on; may be empty
    notes: dict[str, str] = field(default_factory=dict)  # anything, such as the accuracy

    def __post_init__(self) -> None:
        channels = len(self.transform.mean)
        if channels != self.backbone.channels:
            raise ValueError(
                "transform must have as many channels as the backbone, "
                f"{self.backbone.channels}, got {channels}"
            )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; an older one is replaced only when the new one is complete."""
        state = self.backbone.state_dict()
        tensors = {name: x.detach().cpu().contiguous() for name, x in state.items()}
        description = {
            "format": FORMAT,
            "architecture": self.backbone.architecture,
            "input_size": self.transform.size,
            "resize": self.transform.resize,
            "mirror": self.transform.mirror,
            "mean": self.transform.mean,
            "std": self.transform.std,
            "class_names": self.class_names,
            "notes": self.notes,
        }
        metadata = {name: json.dumps(value) for name, value in description.items()}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_tensors(Path(path), safetensors(), tensors, metadata)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a network from a file, in evaluation mode and on the CPU.

    That is ``.safetensors`` as written by `Checkpoint.save`; any other name is treated as a
    checkpoint of the public code of TIM or SimpleShot (``model_best.pth.tar``), or a folder of
    theirs. Images for a public one are scaled to 96x96 and cropped to 84x84.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "model_best.pth.tar"
    if not path.exists():
        raise ValueError(f"path must be a checkpoint, got {path}, which does not exist")
    return read_own(path) if path.suffix == ".safetensors" else read_public(path)


def read_own(path: Path) -> Checkpoint:
    module = safetensors()
    check_regular(path)
    with readable(path, "a safetensors file"), module.safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        names = [name for name in file.keys() if not name.startswith(HEAD)]  # noqa: SIM118
        tensors = {name: file.get_tensor(name) for name in names}
    try:
        about = {name: json.loads(value) for name, value in metadata.items()}
        if about["format"] != FORMAT:
            raise ValueError("of another format")
        mean, std = tuple(about["mean"]), tuple(about["std"])
        transform = Transform(about["input_size"], mean, std, about["resize"], about["mirror"])
        network = assemble(path, about["architecture"], tensors, transform)
        network.class_names, network.notes = tuple(about["class_names"]), dict(about["notes"])
    except RefusedError:
        raise
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} must be written by Checkpoint.save, got other metadata: {error}"
        ) from error
    return network


def read_public(path: Path) -> Checkpoint:
    content = read_torch(path)
    weights = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise ValueError(f"{path} must hold a state dict, got {type(content).__name__}")
    # Training in several processes adds "module.".
    tensors = {
        str(name).removeprefix("module."): x
        for name, x in weights.items()
        if isinstance(x, Tensor) and not PUBLIC_HEAD.match(str(name))
    }
    for layer, architecture in PUBLIC_LAYERS.items():
        if layer in tensors:
            return assemble(path, architecture, tensors, PUBLIC_TRANSFORM)
    raise ValueError(
        f"{path} must hold a ResNet-18 or WRN-28-10, got layers such as {next(iter(weights))!r}"
    )


def assemble(
    path: Path, architecture: str, tensors: Mapping[str, Tensor], transform: Transform
) -> Checkpoint:
    """A network in evaluation mode with these weights."""
    backbone = create_uninitialised(architecture, len(transform.mean))
    own = backbone.state_dict()
    counters = {name: torch.zeros_like(x) for name, x in own.items() if name.endswith(COUNTERS)}
    try:
        backbone.load_state_dict(counters | dict(tensors))
    except (RuntimeError, TypeError) as error:
        text = str(error)
        differences = " ".join((text.partition(":")[2] or text).split())  # several lines
        raise RefusedError(
            f"{path} must have the weights of {architecture!r}, got others: {differences[:200]}"
        ) from error
    return Checkpoint(backbone.eval(), transform)
