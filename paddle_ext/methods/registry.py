"""Find methods by name, built in or registered."""

import importlib
import inspect
import operator
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import check
from ..task import Task
from .base import PRESETS, Display, Method, attributes_of, fields_of, known_methods

T = TypeVar("T")


class Option(NamedTuple):
    """One option of a method."""

    name: str
    type: str
    default: object
    help: str


def register(cls: type[T]) -> type[T]:
    """Register your own method by its name; a class decorator.

    A class defined again, as by a notebook cell that is run twice, replaces itself.

    Parameters
    ----------
    cls : type
        A subclass of `Method`; or any other class with ``solve(task)``, which returns the
        probabilities [B, Q, K] of a `Task`, or with ``predict(support, support_labels, query)`` for
        one task, which returns labels [Q], probabilities [Q, K], or a tuple with either as an
        attribute. The fields of a dataclass are its options. ``name`` is by default the class name
        in snake case; ``display``, ``presets`` and ``tuning_grid`` of `Method` are optional.

    Returns
    -------
    type
        The same class. `create`, `evaluate` and the command can use it from then on.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> from dataclasses import dataclass
    >>> @paddle_ext.methods.register
    ... @dataclass(frozen=True)
    ... class NearestRow:
    ...     power: float = 1.0
    ...
    ...     def predict(self, support, support_labels, query):
    ...         return support_labels[(torch.cdist(query, support) ** self.power).argmin(1)]
    >>> method = paddle_ext.methods.create("nearest_row", power=2.0)
    >>> support = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> method.predict(support, torch.tensor([0, 1]), torch.tensor([[0.2, 0.9]])).labels
    tensor([1])
    """
    method = as_method_class(cls)
    taken_by = known_methods.get(method.name, method)
    if place_of(taken_by) != place_of(method):
        raise ValueError(
            f"name must not be taken by another method, got {method.name!r}, the name of "
            f"{place_of(taken_by)}: set another `name` in the class"
        )
    if not set(method.presets) <= set(PRESETS):
        raise ValueError(
            f"presets of {method.name!r} must be among {PRESETS}, got {tuple(method.presets)}"
        )
    display: object = method.display
    if not isinstance(display, Display):
        raise TypeError(f"display of {method.name!r} must be a Display, got {check.kind(display)}")
    known_methods[method.name] = method
    return cls


def place_of(cls: type) -> str:
    """Where a class is defined, which a class defined again shares."""
    return f"{cls.__module__}.{cls.__qualname__}"


def as_method_class(cls: object) -> type[Method]:
    """The class itself, or a `Method` that wraps it."""
    if not inspect.isclass(cls):
        raise TypeError(f"cls must be a class, got {check.kind(cls)}")
    word_starts = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    name = getattr(cls, "name", None) or re.sub(word_starts, "_", cls.__name__).lower()
    if issubclass(cls, Method):
        if not isinstance(getattr(cls, "name", None), str):
            cls.name = name
        return cls
    if not has_protocol(cls) or not isinstance(name, str):
        what = "solve(task) or predict(support, support_labels, query)"
        raise TypeError(f"cls must have {what}, got {cls.__name__}, which has neither")
    own: dict[str, object] = {"name": name, "__doc__": cls.__doc__, "__module__": cls.__module__}
    own["__qualname__"] = cls.__qualname__
    # `Method.predict` checks and batches, whatever the class has.
    if "predict" in vars(cls) or not callable(getattr(cls, "solve", None)):
        own["predict"] = Method.predict
    if not callable(getattr(cls, "solve", None)):
        own["solve"] = solve_one_by_one
        own["predict_one"] = vars(cls).get("predict") or getattr(cls, "predict")  # noqa: B009
    made: type[Method] = type(cls.__name__, (cls, Method), own)
    return made


def has_protocol(one: object) -> bool:
    return any(callable(getattr(one, name, None)) for name in ("solve", "predict"))


def as_method(one: object) -> Method | None:
    """A method that wraps the object; None if it has neither `solve` nor `predict`."""
    if isinstance(one, Method):
        return one
    if inspect.isclass(one) or not has_protocol(one):
        return None
    made = object.__new__(as_method_class(type(one)))
    for name in attributes_of(one):
        object.__setattr__(made, name, getattr(one, name))
    return made


def solve_one_by_one(self: Any, task: Task) -> Tensor:
    """Probabilities from ``predict_one`` of each task, [B, Q, K]."""
    answers = []
    for number, query in enumerate(task.query):
        shared = number % len(task.support)
        given = self.predict_one(task.support[shared], task.support_labels[shared], query)
        given = getattr(given, "probabilities", getattr(given, "labels", given))
        answers.append(rows_on_the_simplex(given, len(query), task.num_classes))
    return torch.stack(answers).to(task.query)


def rows_on_the_simplex(given: object, Q: int, K: int) -> Tensor:
    """Probabilities [Q, K] as they are, or labels [Q] as one-hot rows."""
    x = torch.as_tensor(given)
    if x.shape == (Q, K) and x.is_floating_point():
        if not x.isfinite().all():
            raise ValueError("predict must return finite probabilities, got NaN or infinity")
        return x
    if x.shape == (Q,) and not x.is_floating_point():
        if Q and not 0 <= int(x.min()) <= int(x.max()) < K:
            raise ValueError(
                f"predict must return labels in [0, {K}), got {int(x.min())} to {int(x.max())}"
            )
        return torch.nn.functional.one_hot(x.long(), K).float()
    raise ValueError(
        f"predict must return labels [{Q}] or probabilities [{Q}, {K}], got {x.dtype} of shape "
        f"{list(x.shape)}"
    )


def load(place: str) -> type[Method] | Method:
    """Import a method, a class or an instance, given as ``"my_module:MyMethod"``."""
    module, _, attribute = place.partition(":")
    try:
        imported: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"name must be MODULE:CLASS of a module that can be imported, got {place!r} ({error})"
        ) from error
    method = as_method_class(imported) if inspect.isclass(imported) else as_method(imported)
    if method is None:
        raise TypeError(
            "name must be a class or an object with solve(task) or predict, got "
            f"{place!r}, which is a {type(imported).__name__}"
        )
    return method


def own_method(name: str) -> str | Method:
    """Register a method given as MODULE:CLASS and return its name; other names are unchanged."""
    if ":" not in name:
        return name
    folder = str(Path.cwd())
    if folder not in sys.path:  # as for a script
        sys.path.insert(0, folder)
    loaded = load(name)
    if isinstance(loaded, type):
        register(loaded)
    return loaded.name if isinstance(loaded, type) else loaded


def available(*, named: bool = True) -> tuple[str, ...]:
    """Names of all methods, sorted; if `named`, also those that need class names.

    Examples
    --------
    >>> import paddle_ext
    >>> "paddle" in paddle_ext.methods.available()
    True
    >>> "zero_shot" in paddle_ext.methods.available(named=False)
    False
    """
    return tuple(
        sorted(name for name, cls in known_methods.items() if named or not cls.needs_prototypes)
    )


def create(name: str, preset: str | None = None, **options: object) -> Method:
    """Make a method by name.

    Parameters
    ----------
    name : str
        One of `available()`.
    preset : {"paper", "mini", "tiered", "inat"}, optional
        Options as in the tables of the paper; the last three as configured for miniImageNet,
        tieredImageNet or iNat (with a ResNet-18) by the public code. Given options override them.
    **options
        Of the method; `describe` lists them.

    Examples
    --------
    >>> import paddle_ext
    >>> paddle_ext.methods.create("simpleshot", temperature=10.0)
    SimpleShot(scaling='cl2n', temperature=10.0)
    """
    cls = lookup(name)
    chosen: dict[str, object] = {}
    if preset is not None:
        check.choice("preset", preset, PRESETS)
        chosen.update({**cls.presets.get("paper", {}), **cls.presets.get(preset, {})})
    declared = {option.name: option for option in options_of_class(cls)}
    for option in options.keys() - declared.keys():
        listed = ", ".join(f"{o.name} ({o.type}, default {o.default!r})" for o in declared.values())
        near = check.did_you_mean(option, declared)
        raise TypeError(
            f"an option of {name!r} must be one of {listed or 'none'}, got {option!r}{near}"
        )
    return cls(**(chosen | options))


def describe(name: str) -> tuple[Option, ...]:
    """Options of a method: name, type, default and help, from its docstring.

    Examples
    --------
    >>> import paddle_ext
    >>> [option.name for option in paddle_ext.methods.describe("simpleshot")]
    ['scaling', 'temperature']
    """
    return options_of_class(lookup(name))


def options_of_class(cls: type[Method]) -> tuple[Option, ...]:
    documented: dict[str, tuple[str, str]] = {}
    for base in reversed(cls.__mro__):  # a subclass documents what differs
        documented |= parameters(inspect.cleandoc(base.__doc__ or ""))
    options = []
    for field in fields_of(cls):
        kind, text = documented.get(field.name, (str(field.type), ""))
        options.append(Option(field.name, kind, field.default, text))
    return tuple(options)


def lookup(name: str) -> type[Method]:
    """The class of a method."""
    return known_methods[check.choice("name", name, available())]


def parameters(docstring: str) -> dict[str, tuple[str, str]]:
    """Type and help of every name in the Parameters section of a numpydoc docstring."""
    flags = re.DOTALL | re.MULTILINE
    section = re.search(r"^Parameters\n-+\n(.*?)(?:\n\n\w+\n-+\n|\Z)", docstring, flags)
    entries = re.split(r"^(?=\w)", section[1], flags=re.MULTILINE) if section else []
    documented: dict[str, tuple[str, str]] = {}
    for entry in entries[1:]:
        head, *lines = entry.splitlines()
        names, _, kind = head.partition(" : ")
        for name in names.split(", "):
            documented[name] = (kind, " ".join(" ".join(lines).split()))
    return documented
