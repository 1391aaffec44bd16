"""The arguments of an evaluation: what may be given, and what it means."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from ..data.bank import FeatureBank
from ..methods import Method, available, create
from ..methods.base import DATA_SETS
from ..ops import check, native

Methods: TypeAlias = str | Method | Sequence[str | Method] | Mapping[str, Method]

# As the tables of the paper have them.
ORDER = (
    "baseline",
    "simpleshot",
    "ici",
    "bd_cspn",
    "pt_map",
    "laplacian_shot",
    "tim",
    "tim_adm",
    "alpha_tim",
    "soft_kmeans",
    "paddle_pgd",
    "paddle",
)


def chosen_methods(methods: Methods, preset: str | None = None) -> dict[str, Method]:
    """The methods by their labels, in order."""
    if preset is not None:
        check.choice("preset", preset, DATA_SETS)
    if isinstance(methods, str) and methods == "all":
        methods = [*ORDER, *(other for other in available() if other not in ORDER)]
    if isinstance(methods, str | Method):
        methods = [methods]
    pairs: list[tuple[object, object]]
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    elif isinstance(methods, Sequence):
        pairs = [(one.name if isinstance(one, Method) else one, one) for one in methods]
    else:
        raise TypeError(f"methods must be names or methods, got {check.kind(methods)}")
    if not pairs:
        raise ValueError("methods must be at least one, got none")
    chosen: dict[str, Method] = {}
    for label, one in pairs:
        if isinstance(one, str):
            one = create(check.choice("methods", one, available()), preset)
        if not isinstance(one, Method):
            raise TypeError(f"methods must be names or methods, got {check.kind(one)}")
        if not isinstance(label, str):
            raise TypeError(f"methods must have strings as labels, got {check.kind(label)}")
        if label in chosen:
            raise ValueError(
                "methods must have different labels (give a mapping of labels to methods), "
                f"got {label!r} twice"
            )
        if not dataclasses.is_dataclass(type(one)):
            raise TypeError(f"methods must be dataclasses of options, got {check.kind(one)}")
        chosen[label] = one
    return chosen


def check_surroundings(
    name: object,
    device: object,
    memory: object,
    output: str | Path | None,
    resume: object,
    progress: object,
) -> None:
    """Check what does not change the results."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {check.kind(name)}")
    checked_device(device)
    if memory is not None:
        check.real("memory", memory, positive=True)
    if output is not None and Path(output).exists() and not Path(output).is_dir():
        raise ValueError(f"output must be a folder, got the file {str(output)!r}")
    check.flag("resume", resume)
    check.flag("progress", progress)


def several(name: str, value: object) -> list[int]:
    """One number, or several different ones."""
    listed = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not listed:
        raise ValueError(f"{name} must be at least one number, got none")
    numbers = [check.integer(name, number) for number in listed]
    for number in numbers:
        if numbers.count(number) > 1:
            raise ValueError(f"{name} must not have a number twice, got {number} more than once")
    return numbers


def chosen_rows(bank: FeatureBank, name: str, given: str | Tensor | None) -> Tensor | None:
    if not isinstance(given, str):
        return given  # the sampler checks it
    if given not in bank.splits:
        there = ", ".join(map(repr, bank.splits)) or "none"
        raise ValueError(f"{name} must be rows or a split of the bank ({there}), got {given!r}")
    rows = bank.rows(given)
    rows = rows[bank.labels.cpu()[rows] >= 0]
    if len(rows) == 0:
        raise ValueError(f"{name} must have rows of a class, got {given!r}, which has none")
    return rows


def class_numbers(bank: FeatureBank, rows: Mapping[str, Tensor | None]) -> Tensor:
    """The labels [N], with classes that no task can draw left out and the others numbered anew.

    A class can be drawn if it has rows; with both `rows` given, if it has some of these.
    """
    labels = bank.labels.cpu()
    pools = [x for x in rows.values() if isinstance(x, Tensor) and x.dtype in check.INTEGERS]
    seen = labels
    if len(pools) == len(rows):
        inside = torch.cat([x.cpu().view(-1).long() for x in pools])
        if len(inside) and int(inside.min()) >= 0 and int(inside.max()) < len(labels):
            seen = labels[inside]  # else the sampler says what is wrong
    there = torch.bincount(seen[seen >= 0], minlength=bank.num_classes) > 0
    number = torch.where(there, there.cumsum(0) - 1, -1)
    return torch.cat([number, number.new_tensor([-1])])[labels]  # the last one: of -1


def checked_device(device: object) -> torch.device | None:
    if device is None:
        return None
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be a string or a torch.device, got {check.kind(device)}")
    try:
        found = torch.device(device)
    except RuntimeError:  # torch knows no such name
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be the CPU or a CUDA device, got {str(device)!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be 'cpu', for torch finds no usable GPU, got {device}")
    return found


def chosen_device(
    device: str | torch.device | None, bank: FeatureBank, local_rank: int
) -> torch.device:
    """Where to compute; a GPU without a number is that of the rank."""
    found = checked_device(device)
    if found is None and bank.features.is_cuda:
        found = bank.features.device
    if found is None:
        usable = torch.cuda.is_available() and native.has_cuda()
        found = torch.device("cuda" if usable else "cpu")
    if found == torch.device("cuda"):  # without a number
        found = torch.device("cuda", local_rank % torch.cuda.device_count())
    return found


def machine_line(device: torch.device) -> str:
    """What the seconds were measured on."""
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        where = f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} used"
    return f"{where}, torch {torch.__version__}"


def options_of(method: Method) -> dict[str, object]:
    return {
        field.name: getattr(method, field.name)
        for field in dataclasses.fields(method)  # type: ignore[arg-type]
    }
