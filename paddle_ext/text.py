"""Text from files, made safe for a terminal, a UTF-8 file or a spreadsheet."""

import re
import unicodedata
from collections.abc import Sequence

# What spreadsheets treat as the beginning of a formula, including wide forms.
FORMULA = "=+-@\t\r＝＋－＠"
FORMULA_SIGNS = frozenset(FORMULA)
# Where a cell may begin: some spreadsheets take a semicolon or a line break in one for its end.
FORMULA_CELL = re.compile(f"(^|[;\n\r])(?='*[{re.escape(FORMULA)}])")
PROTECTED_CELL = re.compile(f"(^|[;\n\r])'(?='*[{re.escape(FORMULA)}])")
# Also with a decimal comma, or separators of thousands.
NUMBER = re.compile(r"[+-]?\d[\d.,]*([eE][+-]?\d+)?", re.ASCII)
# Invisible characters that change the text direction, so that a line reads differently.
DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def encodable(text: str) -> str:
    r"""The text with what UTF-8 cannot encode as ``\x``: file names may have any bytes."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # other surrogates, as JSON may have
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str) -> str:
    """The text without terminal control characters; line ends and tabs are kept."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(sign)[1:-1] if sign in DIRECTIONS or sign == "\r" else sign
        for sign in without_controls(text)
    )


def without_controls(text: str) -> str:
    """The text with control characters as their numbers, except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        ascii(sign)[1:-1] if unicodedata.category(sign) == "Cc" and sign not in "\n\r\t" else sign
        for sign in encodable(text)
    )


def spreadsheet_cell(text: str) -> str:
    """A cell that no spreadsheet runs as a formula: ``'=1+1``, but ``-1.5`` and ``-1,5`` as is."""
    if not FORMULA_SIGNS.isdisjoint(text) and not NUMBER.fullmatch(text):
        text = FORMULA_CELL.sub(r"\1'", text)
    return without_controls(text)


def plain_cell(text: str) -> str:
    """The original argument of `spreadsheet_cell`."""
    return PROTECTED_CELL.sub(r"\1", text) if "'" in text else text


def plural(count: int, thing: str) -> str:
    """A number and its noun: "1 class", "1,200 classes"."""
    many = thing + ("es" if thing.endswith("s") else "s")
    return f"{count:,} {thing if count == 1 else many}"


def several(texts: Sequence[str], most: int) -> str:
    """The first of these, and how many others there are: "a, b and 3 others"."""
    others = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {plural(others, 'other')}" if others > 0 else "")
