"""What is known of the classes, from tables of two columns: their parents, and a prior."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ... import check
from ...presence.hierarchy import Hierarchy
from ...text import plain_cell, plural
from .text_files import given_rows


def read_pairs(path: Path, argument: str, what: str) -> dict[str, str]:
    """What a CSV of two columns, with a header or without, says of each class.

    `argument` and `what`, such as "parents" and "parent", are for the header and the messages.
    """
    found: dict[str, str] = {}
    rows = given_rows(path, argument, f"of classes and {what}s")
    for number, row in enumerate(rows, start=1):
        cells = [plain_cell(cell).strip() for cell in row]
        if not any(cells) or (number == 1 and [x.lower() for x in cells] == ["class", what]):
            continue
        if len(cells) != 2 or not all(cells):
            raise check.ArgumentValueError(
                argument,
                f"must have a class and its {what} in every line, got {path}, line "
                f"{number}: {', '.join(cells)}",
            )
        if found.setdefault(cells[0], cells[1]) != cells[1]:
            raise check.ArgumentValueError(
                argument,
                f"must have one {what} for each class, got {found[cells[0]]!r} and {cells[1]!r} "
                f"for {cells[0]!r}",
            )
    return found


def hierarchy_of(
    parents: Mapping[str, str], classes: Sequence[str], given: Sequence[str], path: Path | None
) -> tuple[Hierarchy, list[str]]:
    """The hierarchy over the classes, and what to tell the user; an error names the file.

    Classes that are not among the `given` ones, because corrections have added them, may lack a
    parent. They get one of their own, which is never named, because it is no more probable.
    """
    alone = [name for name in classes if name not in parents and name not in given]
    try:
        found = Hierarchy.of({**parents, **{name: (name,) for name in alone}}, classes)
    except ValueError as error:
        raise ValueError(f"{error}, in {path}") from error
    return found, [f"new class {name!r} has no parent in {path}" for name in alone]


def read_prior(path: Path) -> dict[str, float]:
    """The weight of each class, from a CSV of two columns."""
    found = {}
    for name, cell in read_pairs(path, "prior", "weight").items():
        try:
            weight = float(cell)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise check.ArgumentValueError(
                "prior", f"must have weights of at least 0, got {cell!r} for {name!r} in {path}"
            )
        found[name] = weight
    return found


def prior_of(
    weights: Mapping[str, float], classes: Sequence[str], path: Path | None
) -> tuple[Tensor, list[str]]:
    """The weights in the order of the classes, [K], and what to tell the user."""
    known = {name: weights[name] for name in classes if name in weights}
    if not any(known.values()):
        raise check.ArgumentValueError(
            "prior",
            f"must have a positive weight for one of {len(classes)} classes, got none in {path}",
        )
    notes, missing = [], [name for name in classes if name not in known]
    least = min(weight for weight in known.values() if weight)
    if missing:
        notes.append(
            f"{plural(len(missing), 'class')} not in {path} got its smallest weight above 0, "
            f"{least:g}, such as {missing[0]}"
        )
    if len(weights) > len(known):
        notes.append(
            f"{len(weights) - len(known)} of the names in {path} are no classes here and were "
            "ignored"
        )
    return torch.tensor([known.get(name, least) for name in classes], dtype=torch.float64), notes
