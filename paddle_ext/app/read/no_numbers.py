"""Columns that have no numbers: why they are not used as such, and what to do about it."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import date

from .columns import as_number, is_gap, shortened
from .times import is_date

# A number with a unit, such as "3750 g", "12,0 %" or "€ 5"; "1st" is none.
WITH_UNIT = re.compile(
    r"""\s* (?P<before>[€$£]?) \s* [+-]?\d+(?:[.,]\d+)* \s*
    (?! (?:st|nd|rd|th)\b )
    (?P<after> [^\W\d_][^\W_]{0,9} | [%‰€$£] | °\w? | ) \s*""",
    re.VERBOSE,
)
DATES, UNITS = "dates", "numbers with a unit"  # what columns may have instead of numbers
ADVICE = {
    DATES: "write them as numbers, such as the day of the year, to make them features",
    UNITS: "write the unit in the name of the column, so that its cells are numbers",
}


def odd_kind(cells: Sequence[object]) -> str:
    """What cells that are no numbers are: `DATES`, `UNITS`, or neither, ""."""
    there = [cell for cell in cells if not is_gap(cell)]
    if there and all(isinstance(cell, date) or is_date(cell) for cell in there):
        return DATES
    units = Counter[str]()
    for cell in there:
        found = WITH_UNIT.fullmatch(cell) if isinstance(cell, str) else None
        if found is None:
            return ""
        units[found["before"] or found["after"]] += 1
    unit, count = units.most_common(1)[0] if units else ("", 0)
    return UNITS if unit and 2 * count >= len(there) else ""


def why_no_feature(cells: Sequence[object], unclear: str) -> str:
    """Why a column without numbers is not used; `unclear` is a cell that may be two numbers."""
    if unclear:
        return f"it has {either_number(unclear)}"
    if all(is_gap(cell) for cell in cells):
        return "it is empty"
    odd = next((cell for cell in cells if not is_gap(cell) and as_number(cell) is None), "")
    if kind := odd_kind(cells):
        return f"it has {kind}, such as {shortened(odd)!r}"
    return f"it has {shortened(odd)!r}, which is not a number"


def either_number(cell: str) -> str:
    """What to say of an `unclear_comma` or an `unclear_point`."""
    cell = cell.strip()
    whole = re.sub("[.,]", "", cell)
    if len(re.findall("[.,]", cell)) > 1:
        return f"{cell!r}, which is {whole} with separators of thousands"
    return f"{cell!r}, which may be {whole} or {cell.replace(',', '.')}"
