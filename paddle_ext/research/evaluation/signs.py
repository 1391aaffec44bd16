"""Negative features, which not every method supports by default."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...methods import Method
from ..data.bank import FeatureBank

ROWS = 2**16  # checked at once: a mapped bank may exceed the memory
# Options with which a method supports negative features.
FOR_SIGNED: dict[str, dict[str, Any]] = {"pt_map": {"power": 1.0}}


def has_signs(bank: FeatureBank) -> bool:
    """Whether any feature is negative."""
    starts = range(0, len(bank), ROWS)
    return any(bool((bank.features[start : start + ROWS] < 0).any()) for start in starts)


def fitted_to_signs(
    methods: Mapping[str, Method], by_name: Collection[str], bank: FeatureBank
) -> tuple[dict[str, Method], list[str]]:
    """Methods with options for negative features, if the bank has any, and notes about them.

    Parameters
    ----------
    methods : mapping of str to Method
    by_name : collection of str
        Labels of methods whose options were not chosen explicitly.
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
        notes.append(f"{label} with {listed}, because some features are negative")
    return chosen, notes


def changes(method: Method) -> dict[str, Any]:
    """Options of a method that would have to change."""
    wanted = FOR_SIGNED.get(method.name, {})
    return {name: value for name, value in wanted.items() if getattr(method, name, value) != value}


def chosen_by_nobody(
    methods: Collection[str], options: Mapping[str, Mapping[str, object]]
) -> set[str]:
    """Methods whose options for negative features are not among the given ones."""
    return {
        label for label in methods if not set(FOR_SIGNED.get(label, ())) & {*options.get(label, ())}
    }


def remedies() -> dict[str, str]:
    """The names of these options in messages and on the command line."""
    return {
        f"{name}={value}": f"--option {method}.{name}={value}"
        for method, wanted in FOR_SIGNED.items()
        for name, value in wanted.items()
    }


def labels_by_name(methods: object, chosen: Mapping[str, Method]) -> set[str]:
    """Labels of the methods given by name, from the argument of `evaluate`."""
    if isinstance(methods, str):
        return set(chosen)
    if isinstance(methods, Sequence):
        return {one for one in methods if isinstance(one, str)}
    return set()
