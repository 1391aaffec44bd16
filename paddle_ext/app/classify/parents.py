"""The parents of classes, from a table of two columns."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from ... import check
from ...presence.hierarchy import Hierarchy
from ...research.printable import plain_cell
from .text_encodings import table_rows


def read_parents(path: Path) -> dict[str, str]:
    """The parent of each class or node: a CSV of two columns, with a header or without."""
    if not path.is_file():
        raise check.ArgumentValueError(
            "parents", f"must be a CSV file of classes and parents, got {path}, which is not a file"
        )
    try:
        rows = table_rows(path)
    except (UnicodeError, csv.Error) as error:
        raise check.ArgumentValueError(
            "parents", f"must be a CSV file, got {path}, which cannot be read: {error}"
        ) from error
    found: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        cells = [plain_cell(cell).strip() for cell in row]
        if not any(cells) or (number == 1 and [x.lower() for x in cells] == ["class", "parent"]):
            continue
        if len(cells) != 2 or not all(cells):
            raise check.ArgumentValueError(
                "parents",
                f"must have a class and its parent in every line, got {path}, line "
                f"{number}: {', '.join(cells)}",
            )
        if found.setdefault(cells[0], cells[1]) != cells[1]:
            raise check.ArgumentValueError(
                "parents",
                f"must have one parent for each class, got {found[cells[0]]!r} and {cells[1]!r} "
                f"for {cells[0]!r}",
            )
    return found


def hierarchy_of(
    parents: Mapping[str, str], classes: Sequence[str], path: Path | None
) -> Hierarchy:
    """The hierarchy over the classes; an error names the file."""
    try:
        return Hierarchy.of(parents, classes)
    except ValueError as error:
        raise ValueError(f"{error}, in {path}") from error
