"""Declare an option of a method: its default, and the rule that its values must meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from .. import check

T = TypeVar("T")

# A rule takes the name and the value of an option, and raises an error for an invalid one.
positive = partial(check.real, positive=True)


def one_of(*choices: str) -> Callable[[str, object], str]:
    return partial(check.choice, choices=choices)


def option(default: T, rule: Callable[[str, Any], object]) -> T:
    """A field of a dataclass with a rule for its values; None is valid if it is the default."""
    field: T = dataclasses.field(default=default, metadata={"rule": rule})
    return field


def check_options(method: object) -> None:
    """Apply the rules of all fields that were declared with `option`, in their order."""
    for field in dataclasses.fields(method) if dataclasses.is_dataclass(method) else ():
        value = getattr(method, field.name)
        if "rule" in field.metadata and not (value is None and field.default is None):
            field.metadata["rule"](field.name, value)
