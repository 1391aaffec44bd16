"""Tune hyper-parameters by the protocol of the paper: the best of a grid on validation classes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import check
from ..methods import Method
from ..methods.base import Grid
from ..methods.registry import lookup, options_of_class
from .data.bank import FeatureBank
from .evaluate import chosen_methods, evaluate
from .results import Evaluation, Result, as_tuple, contents_of, write_json
from .tables import accuracy_text, title_of

FILE = "tuning.json"


@dataclass(frozen=True)
class Tuning:
    """The accuracy at each point of the grids, and the best points."""

    curves: Evaluation  # a result for each point, identified by its options
    best: Mapping[str, Result]  # the best result of each method
    options: Mapping[str, Mapping[str, object]]  # the best values of each method's tuned options
    # What was tuned; after `load`, methods are known by their names.
    tuned: Mapping[str, Method] | None = field(default=None, repr=False, compare=False)

    def methods(self) -> dict[str, Method]:
        """The methods with their best options, for `evaluate`."""
        if self.tuned is None:
            return {name: lookup(name)(**result.options) for name, result in self.best.items()}
        return {name: with_options(one, self.options[name]) for name, one in self.tuned.items()}

    def save(self, path: str | Path) -> None:
        """Write a JSON file; an interrupted call keeps the old one."""
        index = {name: self.curves.results.index(result) for name, result in self.best.items()}
        contents = {"best": index, "options": self.options, "curves": self.curves.as_fields()}
        write_json(Path(path), contents)

    @classmethod
    def load(cls, path: str | Path) -> Tuning:
        """Read a file written by `save`."""
        with contents_of(Path(path), "a tuning") as contents:
            curves = Evaluation.from_fields(contents["curves"])
            best = {name: curves.results[i] for name, i in contents["best"].items()}
            options = {
                name: {option: as_tuple(value) for option, value in chosen.items()}
                for name, chosen in contents["options"].items()
            }
            return cls(curves, best, options)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and cells: the best options of each method, and the accuracies of its grid."""
        cells = []
        for name, result in self.best.items():
            points = self.curves.select(name)
            chosen = ", ".join(
                f"{key} = {option_text(value)}" for key, value in self.options[name].items()
            )
            worst = min(point.accuracy for point in points)
            row = [title_of(name), chosen or "none tuned", accuracy_text(result)]
            cells.append([*row, f"{worst:.1f}", str(len(points))])
        return ["method", "options", "accuracy", "worst", "points"], cells


def tune(
    bank: FeatureBank,
    methods: str | Method | Sequence[str | Method] = "all",
    *,
    grids: Mapping[str, Grid] | None = None,
    shots: int = 5,
    k_eff: int = 5,
    num_classes: int | None = 5,
    n_tasks: int = 1000,
    sampling: str = "dirichlet",
    alpha: float = 2.0,
    preset: str | None = None,
    **run: Any,
) -> Tuning:
    """Choose options of methods on a bank of validation classes, on the same tasks.

    Parameters
    ----------
    bank : FeatureBank
        Of validation classes: neither the base classes nor the test classes.
    methods : str, Method, or a sequence of them
        As in `evaluate`. Options that are not tuned are kept.
    grids : mapping of methods to mappings of options to values, optional
        Replaces `Method.tuning_grid` for the methods it names. All combinations are tried. A
        method without options to tune, such as PADDLE by default, gets one point.
    shots, k_eff, num_classes, n_tasks, sampling, alpha
        Default: 1000 tasks of 5 classes and 5 shots with uneven class frequencies, the protocol of
        the paper; docs/evaluation.md says why.
    preset
        As in `evaluate`.
    **run
        n_query, seed, name, device, memory, output, resume and progress, as in `evaluate`. `output`
        gets the finished results and, at the end, ``tuning.json``.

    Returns
    -------
    Tuning
        Of equally accurate points, the one that changes fewest options, then the first.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> labels = torch.arange(10).repeat_interleave(40)
    >>> bank = paddle_ext.FeatureBank(4 * torch.eye(10)[labels] + torch.rand(400, 10), labels)
    >>> tuning = paddle_ext.tune(
    ...     bank, "bd_cspn", n_tasks=20, n_query=25, device="cpu", progress=False
    ... )
    >>> tuning.options
    {'bd_cspn': {'temperature': 50.0}}
    """
    if isinstance(methods, Mapping):
        raise check.ArgumentTypeError("methods", "must be names or methods, got a mapping")
    if grids is not None and not isinstance(grids, Mapping):
        raise check.ArgumentTypeError("grids", f"must be a mapping, got {check.kind(grids)}")
    chosen = chosen_methods(methods, preset)
    points = {label: grid_points(grid_of(label, method, grids)) for label, method in chosen.items()}
    for label in grids or {}:
        check.choice("grids", label, tuple(chosen))
    tried = [(label, options) for label, own in points.items() for options in own]
    evaluation = evaluate(
        bank,
        {
            f"{label} {option_text(options)}".strip(): with_options(chosen[label], options)
            for label, options in tried
        },
        shots=check.integer("shots", shots),
        k_eff=check.integer("k_eff", k_eff),
        num_classes=num_classes,
        n_tasks=n_tasks,
        sampling=sampling,
        alpha=alpha,
        **run,
    )
    results = tuple(
        replace(result, method=label) for result, (label, _) in zip(evaluation, tried, strict=True)
    )
    tuning = best_points(chosen, points, replace(evaluation, results=results))
    if run.get("output") is not None:
        tuning.save(Path(run["output"]) / FILE)
    return tuning


def grid_of(label: str, method: Method, grids: Mapping[str, Grid] | None) -> Grid:
    """The grid of a method; the user's takes precedence."""
    if grids is None or label not in grids:
        return method.tuning_grid
    names = tuple(option.name for option in options_of_class(type(method)))
    if not isinstance(grids[label], Mapping):
        raise TypeError(f"grids[{label!r}] must be a mapping, got {check.kind(grids[label])}")
    for option, values in grids[label].items():
        check.choice(f"an option of grids[{label!r}]", option, names)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise TypeError(
                f"grids[{label!r}][{option!r}] must be a sequence of values, "
                f"got {check.kind(values)}"
            )
        if not values or any(value in values[:i] for i, value in enumerate(values)):
            raise ValueError(
                f"grids[{label!r}][{option!r}] must have values, each once, got {values!r}"
            )
    return grids[label]


def with_options(method: Method, options: Mapping[str, object]) -> Method:
    return replace(method, **options) if options else method  # type: ignore[type-var]


def grid_points(grid: Grid) -> list[dict[str, Any]]:
    """Each combination of options."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def best_points(
    chosen: Mapping[str, Method], points: Mapping[str, list[dict[str, Any]]], curves: Evaluation
) -> Tuning:
    def merit(point: tuple[Result, dict[str, Any]]) -> tuple[int, int]:
        result, options = point
        own = chosen[result.method]
        return result.correct, sum(getattr(own, name) == x for name, x in options.items())

    best, options = {}, {}
    for label in chosen:
        own = zip(curves.select(label), points[label], strict=True)
        best[label], options[label] = max(own, key=merit)  # the first of equals
    return Tuning(curves, best, options, chosen)


def option_text(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={option_text(one)}" for key, one in value.items())
    if isinstance(value, tuple | list):
        return f"({', '.join(map(option_text, value))})"
    return str(value)
