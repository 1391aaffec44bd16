"""Turn the argument `methods` of an evaluation into methods, in order."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ... import check
from ...methods import Method, create
from ...methods.base import PRESETS, Options, known_methods
from ...methods.registry import as_method, fields_of, load

Methods: TypeAlias = str | Method | Sequence[str | Method] | Mapping[str, Method]


def all_methods(named: bool = False) -> tuple[str, ...]:
    """Names of the methods in the order of tables: those of the paper, ours, and registered ones.

    If `named`, those that can use class names, else those that do not need them.
    """
    names = (
        name
        for name, cls in known_methods.items()
        if (cls.takes_prototypes if named else not cls.needs_prototypes)
    )
    return tuple(sorted(names, key=lambda name: (known_methods[name].display.order, name)))


def chosen_methods(
    methods: Methods,
    preset: str | None = None,
    options: Mapping[str, Options] | None = None,
    published: Sequence[str] = (),
    named: bool = False,
) -> dict[str, Method]:
    """The methods by label, in order.

    "all" stands for all of them, and "paper" for the `published` ones. `preset` and `options`, a
    mapping by method, apply to methods given by name; options of others are ignored. With `named`,
    "all" are the methods that can use class names.
    """
    if preset is not None:
        check.choice("preset", preset, PRESETS)
    known = all_methods(named)
    groups = {"paper": published, "all": known} if published else {"all": known}
    if isinstance(methods, str):
        methods = groups.get(methods, methods)
    single = as_method(methods)
    if isinstance(methods, str) or single is not None:
        methods = [methods if isinstance(methods, str) else single]  # type: ignore[list-item]
    pairs: list[tuple[object, object]]
    if isinstance(methods, Mapping):
        pairs = list(methods.items())
    elif isinstance(methods, Sequence):
        pairs = [labelled_method(one) for one in methods]
    else:
        raise bad_type(f"must be names or methods, got {check.kind(methods)}")
    if not pairs:
        raise check.ArgumentValueError("methods", "must be at least one, got none")
    chosen: dict[str, Method] = {}
    for label, given in pairs:
        if isinstance(given, str):
            if ":" not in given and given not in known:
                check.not_a_choice("methods", given, (*groups, *sorted(known)))
            one: Method | None = create(given, preset, **(options or {}).get(given, {}))
        else:
            one = as_method(given)
        if one is None:
            raise bad_type(f"must be names or methods, got {check.kind(given)}")
        if not isinstance(label, str):
            raise bad_type(f"must have strings as labels, got {check.kind(label)}")
        if label in chosen:
            raise check.ArgumentValueError(
                "methods",
                "must have unique labels (give a mapping of labels to methods), "
                f"got {label!r} twice",
            )
        chosen[label] = one
    return chosen


def labelled_method(one: object) -> tuple[object, object]:
    """The label of a method in results, and the method or its name."""
    if isinstance(one, str) and ":" in one:
        found = load(one)
        return found.name, one if inspect.isclass(found) else found
    method = as_method(one)
    return (one if method is None else method.name), one


def bad_type(problem: str) -> check.ArgumentTypeError:
    return check.ArgumentTypeError("methods", problem)


def options_of(method: Method) -> dict[str, object]:
    return {field.name: getattr(method, field.name) for field in fields_of(method)}
