"""Negative features, for which some methods need other options than their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ...methods import Method
from ...methods.base import Options, known_methods
from ..data.bank import FeatureBank

ROWS = 2**16  # checked at once: a mapped bank may exceed the memory


def has_negative_features(bank: FeatureBank) -> bool:
    return any(bool((rows < 0).any()) for rows in torch.split(bank.features, ROWS))


def adapted_to_negative_features(
    methods: Mapping[str, Method], adaptable: Collection[str], bank: FeatureBank
) -> tuple[dict[str, Method], list[str]]:
    """Methods with `Method.for_negative_features`, if the bank has any, and notes about them.

    Parameters
    ----------
    methods : mapping of str to Method
    adaptable : collection of str
        Labels of the methods whose options the user did not choose.
    bank : FeatureBank
    """
    adapted, notes = dict(methods), list[str]()
    changes = {label: changed_options(methods[label]) for label in methods if label in adaptable}
    changes = {label: options for label, options in changes.items() if options}
    if not changes or not has_negative_features(bank):
        return adapted, notes
    for label, options in changes.items():
        adapted[label] = dataclasses.replace(methods[label], **options)  # type: ignore[type-var]
        listed = ", ".join(f"{name}={value:g}" for name, value in options.items())
        notes.append(f"{label} with {listed}, because some features are negative")
    return adapted, notes


def changed_options(method: Method) -> dict[str, Any]:
    """Options of a method that negative features would change."""
    wanted = method.for_negative_features
    return {name: value for name, value in wanted.items() if getattr(method, name, value) != value}


def labels_given_by_name(methods: object, chosen: Mapping[str, Method]) -> set[str]:
    """Labels of the methods that the argument of `evaluate` gives by name."""
    if isinstance(methods, str):
        return set(chosen)
    if isinstance(methods, Sequence):
        return {one for one in methods if isinstance(one, str)}
    return set()


def labels_without_options(
    methods: Mapping[str, Method], options: Mapping[str, Options]
) -> set[str]:
    """Labels of the methods whose options for negative features are not among the given ones."""
    return {
        label
        for label, method in methods.items()
        if not {*method.for_negative_features} & {*options.get(label, ())}
    }


def command_line_options() -> dict[str, str]:
    """Options for negative features: as errors name them, and on the command line."""
    return {
        f"{name}={value}": f"--option {method}.{name}={value}"
        for method, cls in known_methods.items()
        for name, value in cls.for_negative_features.items()
    }
