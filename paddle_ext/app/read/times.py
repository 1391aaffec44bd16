"""Dates and times as people and programs write them.

ISO 8601, seconds since 1970, and days before or after months: 01.10.2026 has the day first wherever
it is written. 01/10/2026 and 01-10-2026 do not tell, so the other dates of their column have to.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timezone

from .columns import as_number

# Seconds since 1970 that are taken for a time: the beginnings of 1990 and 2100.
FIRST_SECOND, LAST_SECOND = 631_152_000, 4_102_444_800
FIRST_SHORT_YEAR = 90  # of two digits, of the last century
MONTHS = 12
# Two numbers of a day and a month, a year and perhaps a time.
BY_DAY = re.compile(
    r"(?P<first>\d{1,2})(?P<sign>[./-])(?P<second>\d{1,2})(?P=sign)(?P<year>\d{4}|\d\d)"
    r"(?:[ ,T]+(?P<hour>\d{1,2})[:.](?P<minute>\d\d)(?:[:.](?P<seconds>\d\d))?"
    r"(?:\s*(?P<half>[ap])\.?m\.?|\s*uhr)?)?",
    re.IGNORECASE,
)


def day_comes_first(cells: Iterable[object]) -> bool | None:
    """Whether dates such as 01/10/2026 begin with the day; None if the column does not tell.

    Raises ValueError with a sentence if one date tells the one, and one the other.
    """
    found = dict[bool, str]()
    for cell in cells:
        match = BY_DAY.fullmatch(str(cell).strip())
        if match is None or match["sign"] == ".":
            continue
        if int(match["first"]) > MONTHS:
            found.setdefault(True, match[0])
        elif int(match["second"]) > MONTHS:
            found.setdefault(False, match[0])
    if len(found) == 2:
        raise ValueError(
            f"dates that all have the day first, or all the month, got {found[True]!r} and "
            f"{found[False]!r}"
        )
    return next(iter(found), None)


def is_unclear(cell: object) -> bool:
    """Whether a date alone does not tell which number is the day."""
    match = BY_DAY.fullmatch(str(cell).strip())
    return (
        match is not None
        and match["sign"] != "."
        and max(int(match["first"]), int(match["second"])) <= MONTHS
        and int(match["first"]) != int(match["second"])
    )


def time_of(cell: object, *, day_first: bool | None = None) -> datetime | None:
    """A time in UTC, which a cell without a zone is taken to be in; None if it is none.

    `day_first` says how dates such as 01/10/2026 are read; with None they are none.
    """
    text = re.sub(r"^((?:19|20)\d\d)(\d\d)(\d\d)$", r"\1-\2-\3", str(cell).strip())
    try:
        seconds = as_number(text)
        if seconds is not None:
            # Other numbers are probably years, or a time like 202606301405.
            likely = FIRST_SECOND <= seconds < LAST_SECOND
            return datetime.fromtimestamp(seconds, timezone.utc) if likely else None
        match = BY_DAY.fullmatch(text)
        if match is not None:
            return time_by_day(match, day_first=day_first)
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
        there = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
        return there.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def time_by_day(match: re.Match[str], *, day_first: bool | None) -> datetime | None:
    """The time of a match of `BY_DAY`; ValueError for a day or an hour that does not exist."""
    first, second, year = (int(match[name]) for name in ("first", "second", "year"))
    if match["sign"] == "." or first == second:
        day_first = True
    if day_first is None:
        return None
    day, month = (first, second) if day_first else (second, first)
    if len(match["year"]) == 2:
        year += 1900 if year >= FIRST_SHORT_YEAR else 2000
    hour, minute, seconds = (int(match[name] or 0) for name in ("hour", "minute", "seconds"))
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (match["half"].lower() == "p")
    return datetime(year, month, day, hour, minute, seconds, tzinfo=timezone.utc)


def is_date(cell: object) -> bool:
    """Whether a cell is a date or a time, but no number."""
    if as_number(cell) is not None:
        return False
    return any(time_of(cell, day_first=first) is not None for first in (True, False))
