"""What the panel found, in memory and in a JSON file, and how files of several machines are joined.

All draws are deterministic, so one machine can run some rules and another the others. Every cell
has a checksum of its draw, so that results of different draws are never joined.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .measures import Measured
from .protocols import Cell


@dataclass
class CellResult:
    """What all rules did in one situation on one bank."""

    protocol: str
    situation: str
    bank: str
    role: str
    draw: int  # checksum of labels and classes
    rules: dict[str, Measured]

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.protocol, self.situation, self.bank, self.role)


@dataclass
class Results:
    """Cells with what was measured, and the runs of the panel that they come from."""

    runs: list[dict[str, Any]]  # commit, machine, torch, date, n_tasks, rules
    cells: list[CellResult]


def checksum(cell: Cell) -> int:
    """Of the labels, classes and groups of a cell: integers, so it is the same on every machine."""
    result = 0
    for tasks in cell.batches:
        for values in (tasks.labels, tasks.truth, tasks.support_groups, tasks.query_groups):
            if values is not None:
                result = zlib.crc32(values.cpu().contiguous().numpy().tobytes(), result)
    return result


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(results)) + "\n")


def load(path: Path) -> Results:
    stored = json.loads(path.read_text())
    cells = []
    for cell in stored["cells"]:
        rules = {name: Measured(**values) for name, values in cell.pop("rules").items()}
        cells.append(CellResult(rules=rules, **cell))
    return Results(stored["runs"], cells)


def joined(parts: Iterable[Results], *, new_cells: bool) -> Results:
    """The first results, and what the others add to them.

    Where several have a rule in a cell, the first counts.

    Parameters
    ----------
    new_cells : bool
        Whether also cells are added that the first results lack.
    """
    first, *others = parts
    runs = list(first.runs)
    cells = {cell.key: dataclasses.replace(cell, rules=dict(cell.rules)) for cell in first.cells}

    for other in others:
        runs += [run for run in other.runs if run not in runs]
        for cell in other.cells:
            if cell.key not in cells:
                if new_cells:
                    cells[cell.key] = dataclasses.replace(cell, rules=dict(cell.rules))
                continue

            known = cells[cell.key]
            if cell.draw != known.draw:
                raise ValueError(f"not the same tasks: {', '.join(cell.key)}")
            known.rules = {**cell.rules, **known.rules}

    return Results(runs, list(cells.values()))


def by(cells: Iterable[CellResult], of: Callable[[CellResult], str]) -> dict[str, list[CellResult]]:
    """Cells by their bank, situation or protocol, in the order in which these come first."""
    result: dict[str, list[CellResult]] = {}
    for cell in cells:
        result.setdefault(of(cell), []).append(cell)
    return result


def by_protocol(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    return by(cells, lambda cell: cell.protocol)


def by_situation(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    """Only for cells of one protocol."""
    return by(cells, lambda cell: cell.situation)


def by_bank(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    return by(cells, lambda cell: cell.bank)
