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
EMPTY = frozenset(("", "na", "n/a", "nan", "<na>", "none", "null"))  # cells without a value
# What people write for a missing number; among texts it may be a category.
GAP_WORDS = frozenset(
    (
        *("?", "-", "--", "–", "—", "n.a.", "#n/a", "#nv", "missing", "unknown"),
        *("k.a.", "k. a.", "keine angabe", "unbekannt"),
    )
)
COUNTED = 5  # rows needed to recognise a column that counts up
WORDS_OF_A_TEXT = 3  # on average
LONGEST_SHOWN = 40  # characters of a cell in a message, and of a category
UNCLEAR_COMMA = re.compile(r"\s*[+-]?([1-9]\d{0,2}(,\d{3})+|\d{1,3})\s*")
UNCLEAR_POINT = re.compile(r"\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*")
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


def has_decimal_comma(cells: Iterable[object]) -> bool:
    """Whether a cell has a comma that cannot separate thousands, such as 18,0."""
    return any(
        isinstance(cell, str)
        and re.fullmatch(DECIMAL_COMMA, cell) is not None
        and not UNCLEAR_COMMA.fullmatch(cell)
        for cell in cells
    )


def unclear_point(cells: Iterable[object]) -> str:
    """The same with a point, such as 1.234, for a file whose other numbers have decimal commas.

    Only another number of decimals makes them clear: such files write no decimal points.
    """
    points = ""
    for cell in cells:
        if not isinstance(cell, str) or "." not in cell or is_gap(cell):
            continue
        if not UNCLEAR_POINT.fullmatch(cell):
            return ""
        points = points or cell
    return points


def is_empty(cell: object) -> bool:
    """Whether a cell has no value of any kind."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in EMPTY)


def gap_word(cell: object) -> str:
    """A word that people write for a missing number; empty for other cells."""
    word = cell.strip() if isinstance(cell, str) else ""
    return word if word.lower() in GAP_WORDS else ""


def is_gap(cell: object) -> bool:
    """Whether a cell is a missing number."""
    return is_empty(cell) or gap_word(cell) != ""


def looks_like_text(cells: Sequence[object]) -> bool:
    """Whether cells are sentences: three words on average, and mostly different."""
    there = [cell for cell in cells if isinstance(cell, str) and not is_gap(cell)]
    words = sum(len(cell.split()) for cell in there)
    return (
        bool(there) and words >= WORDS_OF_A_TEXT * len(there) and 2 * len(set(there)) > len(there)
    )


def looks_like_category(cells: Sequence[object]) -> bool:
    """Whether cells that are not numbers are categories: some, short, each twice on average."""
    there = [str(cell) for cell in cells if not is_empty(cell)]
    short = max(map(len, there), default=0) <= LONGEST_SHOWN
    several = 2 <= len(set(there)) <= len(there) / 2
    return short and several and not all_lists(there)


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
