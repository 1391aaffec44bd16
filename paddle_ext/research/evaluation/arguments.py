"""Which methods an evaluation takes, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ... import check
from ...methods import Method, available, create
from ...methods.base import PRESETS

Methods: TypeAlias = str | Method | Sequence[str | Method] | Mapping[str, Method]

# As the tables of the paper have them, and then ours.
PAPER_ORDER = (
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
    "adaptive",
)


def chosen_methods(methods: Methods, preset: str | None = None) -> dict[str, Method]:
    """The methods by their labels, in order."""
    if preset is not None:
        check.choice("preset", preset, PRESETS)
    if isinstance(methods, str) and methods == "all":
        methods = [
            *PAPER_ORDER,
            *(other for other in available(named=False) if other not in PAPER_ORDER),
        ]
    if isinstance(methods, str | Method):
        methods = [methods]
    pairs: list[tuple[object, object]]
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    elif isinstance(methods, Sequence):
        pairs = [(one.name if isinstance(one, Method) else one, one) for one in methods]
    else:
        raise bad_type(f"must be names or methods, got {check.kind(methods)}")
    if not pairs:
        raise check.ArgumentValueError("methods", "must be at least one, got none")
    chosen: dict[str, Method] = {}
    for label, one in pairs:
        if isinstance(one, str):
            one = create(check.choice("methods", one, available(named=False)), preset)
        if not isinstance(one, Method):
            raise bad_type(f"must be names or methods, got {check.kind(one)}")
        if not isinstance(label, str):
            raise bad_type(f"must have strings as labels, got {check.kind(label)}")
        if label in chosen:
            raise check.ArgumentValueError(
                "methods",
                "must have different labels (give a mapping of labels to methods), "
                f"got {label!r} twice",
            )
        if not dataclasses.is_dataclass(type(one)):
            raise bad_type(f"must be dataclasses of options, got {check.kind(one)}")
        chosen[label] = one
    return chosen


def bad_type(problem: str) -> check.ArgumentTypeError:
    return check.ArgumentTypeError("methods", problem)


def options_of(method: Method) -> dict[str, object]:
    return {
        field.name: getattr(method, field.name)
        for field in dataclasses.fields(method)  # type: ignore[arg-type]
    }
