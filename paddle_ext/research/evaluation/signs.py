"""Features of both signs, which not every method takes as it is by default."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...methods import Method
from ..data.bank import FeatureBank

ROWS = 2**16  # looked at together: a mapped bank may exceed the memory
# Options with which a method takes features below 0, in place of those that do not.
FOR_SIGNED: dict[str, dict[str, Any]] = {"pt_map": {"power": 1.0}}


def has_signs(bank: FeatureBank) -> bool:
    """Whether a feature is below 0."""
    starts = range(0, len(bank), ROWS)
    return any(bool((bank.features[start : start + ROWS] < 0).any()) for start in starts)


def fitted_to_signs(
    methods: Mapping[str, Method], by_name: Collection[str], bank: FeatureBank
) -> tuple[dict[str, Method], list[str]]:
    """Methods with options for features of both signs, if the bank has such, and what to say of it.

    Parameters
    ----------
    methods : mapping of str to Method
    by_name : collection of str
        Labels of those whose options nobody chose.
    bank : FeatureBank
    """
    chosen, notes = dict(methods), list[str]()
    concerned = [
        label
        for label, method in methods.items()
        if label in by_name and changes(method) and isinstance(bank, FeatureBank)
    ]
    if not concerned or not has_signs(bank):
        return chosen, notes
    for label in concerned:
        wanted = changes(methods[label])
        chosen[label] = dataclasses.replace(methods[label], **wanted)  # type: ignore[type-var]
        listed = ", ".join(f"{name}={value:g}" for name, value in wanted.items())
        notes.append(f"{label} with {listed}, because there are features below 0")
    return chosen, notes


def changes(method: Method) -> dict[str, Any]:
    """Options of a method that would have to be others."""
    wanted = FOR_SIGNED.get(method.name, {})
    return {name: value for name, value in wanted.items() if getattr(method, name, value) != value}


def chosen_by_nobody(
    methods: Collection[str], options: Mapping[str, Mapping[str, object]]
) -> set[str]:
    """Methods whose options for features of both signs are not among some that were given."""
    return {
        label for label in methods if not set(FOR_SIGNED.get(label, ())) & {*options.get(label, ())}
    }


def remedies() -> dict[str, str]:
    """What these options are called in messages, and how a command is told them."""
    return {
        f"{name}={value}": f"--option {method}.{name}={value}"
        for method, wanted in FOR_SIGNED.items()
        for name, value in wanted.items()
    }


def labels_by_name(methods: object, chosen: Mapping[str, Method]) -> set[str]:
    """Labels of the methods that were given by their names, from what `evaluate` was given."""
    if isinstance(methods, str):
        return set(chosen)
    if isinstance(methods, Sequence):
        return {one for one in methods if isinstance(one, str)}
    return set()
