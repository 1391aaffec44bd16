"""Cells of tables: numbers, gaps, texts, ids."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...text import plain_cell

NUMBERS = ("float", "double", "halffloat", "int", "uint", "decimal")  # types of Arrow
LARGEST = float(np.finfo(np.float32).max)
# Names of columns of row numbers and keys; pandas writes an index without a name.
ID_NAMES = re.compile(
    r"(.*[_\s-])?(id|ids|idx|index|key|uuid|row|rowid|nr|number)|unnamed.*|", re.IGNORECASE
)
ID_SUFFIX = re.compile(r".*[a-z]I[dD]|.*ID")  # userId, SampleID
GAPS = ("", "na", "n/a", "nan", "<na>", "none", "null")  # cells without a number, in any case
COUNTED = 5  # rows needed to recognise a column that counts up
WORDS_OF_A_TEXT = 3  # on average
LONGEST_SHOWN = 40  # characters of a cell in a message, and of a category
UNCLEAR_COMMA = re.compile(r"\s*[+-]?([1-9]\d{0,2}(,\d{3})+|\d{1,3})\s*")
DECIMAL_COMMA = r"^\s*([+-]?\d+),(\d+(?:[eE][+-]?\d+)?)\s*$"


def is_number(kind: Any, *, decimals: bool = True) -> bool:
    return str(kind).startswith(NUMBERS if decimals else NUMBERS[:-1])


def cell_value(value: object) -> object:
    """The original cell, before it was escaped as a formula."""
    return plain_cell(value) if isinstance(value, str) else value


def cell_text(value: object) -> str:
    return "" if value is None else str(cell_value(value))


def as_number(cell: object) -> float | None:
    """A cell as a number; None if it is not one, or a code such as 1_01."""
    if isinstance(cell, str) and "_" in cell:
        return None
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def unclear_comma(cells: Iterable[object]) -> str:
    """A cell such as 1,234 among whole numbers, which may be 1234 or 1.234; empty if all are clear.

    Another number of decimals, or a thousand without a comma, makes them clear.
    """
    commas, whole = "", False
    for cell in cells:
        if not isinstance(cell, str) or is_gap(cell):
            continue
        if not UNCLEAR_COMMA.fullmatch(cell):
            return ""
        whole = whole or "," not in cell
        commas = commas or cell * ("," in cell)
    return commas if whole else ""


def is_gap(cell: object) -> bool:
    """Whether a cell is a missing number."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in GAPS)


def looks_like_text(cells: Sequence[object]) -> bool:
    """Whether cells are sentences: three words on average, and mostly different."""
    there = [cell for cell in cells if isinstance(cell, str) and not is_gap(cell)]
    words = sum(len(cell.split()) for cell in there)
    return (
        bool(there) and words >= WORDS_OF_A_TEXT * len(there) and 2 * len(set(there)) > len(there)
    )


def looks_like_category(cells: Sequence[object]) -> bool:
    """Whether cells that are not numbers are categories: some, short, each twice on average."""
    there = [str(cell) for cell in cells if not is_gap(cell)]
    short = max(map(len, there), default=0) <= LONGEST_SHOWN
    several = 2 <= len(set(there)) <= len(there) / 2
    return short and several and not all_lists(there) and not unclear_comma(cells)


def why_an_id(name: str, cells: Sequence[object]) -> str:
    """Why a numeric column is an identifier of rows; empty if it is not."""
    values = np.array([as_number(cell) for cell in cells if not is_gap(cell)], np.float64)
    if not len(values) or not np.isfinite(values).all() or (values != np.floor(values)).any():
        return ""
    if ID_NAMES.fullmatch(name.strip()) or ID_SUFFIX.fullmatch(name.strip()):
        return "its name is typical of an id column"
    steps = np.diff(values)
    if len(values) >= COUNTED and (steps == steps[0]).all() and abs(steps[0]) == 1:
        return "it numbers the rows"
    return ""


def why_no_feature(cells: Sequence[object]) -> str:
    if unclear := unclear_comma(cells):
        return f"it has {either_number(unclear)}"
    if all(is_gap(cell) for cell in cells):
        return "it is empty"
    odd = next((cell for cell in cells if not is_gap(cell) and as_number(cell) is None), "")
    return f"it has {shortened(odd)!r}, which is not a number"


def either_number(cell: str) -> str:
    """What to say of an `unclear_comma`."""
    cell = cell.strip()
    return f"{cell!r}, which may be {cell.replace(',', '')} or {cell.replace(',', '.', 1)}"


def shortened(cell: object) -> str:
    text = str(cell)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def all_lists(values: Sequence[object]) -> bool:
    return all(isinstance(value, list) or "[" in str(value)[:2] for value in values)


def as_list(value: object) -> list[float]:
    if isinstance(value, list):
        return value
    text = str(value).strip()
    if "," in text:
        numbers: list[float] = json.loads(text)
        return numbers
    return [float(word) for word in text.strip("[]").split()]
