"""Choose the feature columns of a table, and explain why others are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Names of columns of row numbers and keys; pandas writes an index without a name.
ID_NAMES = re.compile(
    r"(.*[_\s-])?(id|ids|idx|index|key|uuid|row|rowid|nr|number)|unnamed.*|", re.IGNORECASE
)
ID_SUFFIX = re.compile(r".*[a-z]I[dD]|.*ID")  # userId, SampleID
GAPS = ("", "na", "n/a", "nan", "<na>", "none", "null")  # cells without a number, in any case
COUNTED = 5  # rows needed to recognise a column that counts up
WORDS = 3  # of a text, on average
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*")


class Chosen(NamedTuple):
    """Feature columns, and why others are left out."""

    names: list[str]
    left_out: dict[str, str]  # reason for each


def choose(rows: Mapping[str, Sequence[object]], numeric: Sequence[str]) -> Chosen:
    """Choose the features among numeric columns, by the first cells of each column.

    Examples
    --------
    >>> choose({"id": ["7", "9"], "x": ["0.1", "0.3"]}, ["id", "x"]).left_out
    {'id': 'its name is typical of an id column'}
    """
    left_out = {}
    for name in numeric:
        why = why_an_id(name, numbers_of(rows[name]))
        if why and len(numeric) > 1:
            left_out[name] = why
    return Chosen([name for name in numeric if name not in left_out], left_out)


def numbers_of(cells: Sequence[object]) -> npt.NDArray[np.float64]:
    """The numbers among some cells; missing values are skipped."""
    found = [as_number(cell) for cell in cells if not is_gap(cell)]
    return np.array([number for number in found if number is not None], np.float64)


def as_number(cell: object) -> float | None:
    """A cell as a number; None if it is not one."""
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def plain_number(cell: Any) -> Any:
    """Replace a decimal comma by a point.

    Only for tables with another separator: in those with commas, "1,234" is more than a thousand.
    """
    if isinstance(cell, str) and "," in cell and DECIMAL_COMMA.fullmatch(cell):
        return cell.replace(",", ".")
    return cell


def is_gap(cell: object) -> bool:
    """Whether a cell is a missing number."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in GAPS)


def is_numeric(cells: Sequence[object]) -> bool:
    """Whether all cells are numbers or missing, with at least one number."""
    there = [cell for cell in cells if not is_gap(cell)]
    return bool(there) and all(as_number(cell) is not None for cell in there)


def looks_like_text(cells: Sequence[object]) -> bool:
    """Whether cells are sentences: three words on average, and mostly different.

    Examples
    --------
    >>> looks_like_text(["my card was stolen", "where is it?"]), looks_like_text(["red", "blue"])
    (True, False)
    """
    there = [cell for cell in cells if isinstance(cell, str) and not is_gap(cell)]
    words = sum(len(cell.split()) for cell in there)
    return bool(there) and words >= WORDS * len(there) and 2 * len(set(there)) > len(there)


def why_an_id(name: str, values: npt.NDArray[np.float64]) -> str:
    """Why a numeric column is an identifier of rows; empty if it is not."""
    if not len(values) or not np.isfinite(values).all() or (values != np.floor(values)).any():
        return ""
    if ID_NAMES.fullmatch(name.strip()) or ID_SUFFIX.fullmatch(name.strip()):
        return "its name is typical of an id column"
    steps = np.diff(values)
    if len(values) >= COUNTED and (steps == steps[0]).all() and abs(steps[0]) == 1:
        return "it numbers the rows"
    return ""


def why_no_feature(cells: Sequence[object]) -> str:
    """Why a column is not numeric."""
    if all(is_gap(cell) for cell in cells):
        return "it is empty"
    odd = next((cell for cell in cells if not is_gap(cell) and as_number(cell) is None), "")
    return f"it has {shortened(odd)!r}, which is not a number"


def shortened(cell: object) -> str:
    text = str(cell)
    return text if len(text) <= 40 else text[:39] + "…"
