"""Text files in any common encoding, and tables with any common separator."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from ... import check
from ...files import open_regular

SEPARATORS = (",", ";", "\t", "|")
NAMED_SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
SAMPLE = 2**16  # bytes used to detect the separator
BLOCK = 2**22  # bytes read at a time
MARKS = {  # byte order marks; longer ones first
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
FALLBACK_ENCODING = "cp1252"  # written by Windows programs in western Europe; extends Latin-1


def small_text(path: Path) -> str:
    """The text of a small file, with plain line ends; ValueError if it is not text."""
    with open_regular(path) as file, text_of(file, sniffed_encoding(path)) as lines:
        text = lines.read()
    if "\0" in text:
        raise ValueError("zero bytes, which text never has")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def marked_encoding(content: bytes) -> str | None:
    """The encoding indicated by the first bytes."""
    return next((name for mark, name in MARKS.items() if content.startswith(mark)), None)


def sniffed_encoding(path: Path) -> str:
    """By its first bytes, or UTF-8 if the whole file is valid; else Windows-1252."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_regular(path) as file:
        encoding = marked_encoding(file.read(4))
        if encoding is not None:
            return encoding
        file.seek(0)
        try:
            while block := file.read(BLOCK):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return FALLBACK_ENCODING
    return "utf-8"


def checked_encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise check.ArgumentValueError(
            "encoding", f"must be known to Python, such as utf-8 or latin-1, got {name!r}"
        ) from None


def checked_separator(given: str) -> str:
    """One character, or its name."""
    separator = NAMED_SEPARATORS.get(given, given)
    if len(separator) != 1 or separator in '\r\n"' or not separator.isascii():
        raise check.ArgumentValueError(
            "separator", f"must be one character such as ; or the word tab, got {given!r}"
        )
    return separator


def sniffed_separator(path: Path, encoding: str) -> str:
    """The separator that splits the first lines into equally many cells, and the most."""
    if path.suffix == ".tsv":
        return "\t"
    with open_regular(path) as file:
        content = file.read(SAMPLE)
        whole = not file.read(1)
    text = content.decode(encoding, "replace").removeprefix("\ufeff")
    lines = text.splitlines(keepends=True)
    best, most = ",", 1
    for separator in SEPARATORS:
        try:
            rows = [row for row in csv_reader(lines, separator) if row]
        except csv.Error:
            continue
        if not whole and len(rows) > 1:
            rows.pop()  # the sample may end within it
        widths = {len(row) for row in rows}
        if len(widths) == 1 and max(widths) > most:
            best, most = separator, max(widths)
    return best


def csv_reader(lines: Iterable[str], separator: str) -> Any:
    """The rows of a CSV file, with texts of any length."""
    csv.field_size_limit(2**31 - 1)  # of all readers; the largest that every platform takes
    return csv.reader(lines, delimiter=separator)


def table_rows(path: Path) -> list[list[str]]:
    """All rows of a small table, with the separator and the encoding detected."""
    encoding = sniffed_encoding(path)
    separator = sniffed_separator(path, encoding)
    with open_regular(path) as file, text_of(file, encoding) as text:
        return list(csv_reader(text, separator))


def text_of(file: BinaryIO, encoding: str) -> TextIO:
    """The text of an open file, without a byte order mark."""
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    return io.TextIOWrapper(file, encoding, newline="")


def given_rows(path: Path, argument: str, what: str) -> list[list[str]]:
    """`table_rows` of a file that the user gave as `argument`; `what` it should have."""
    if not path.is_file():
        raise check.ArgumentValueError(
            argument, f"must be a CSV file {what}, got {path}, which is not a file"
        )
    try:
        return table_rows(path)
    except (UnicodeError, csv.Error) as error:
        raise check.ArgumentValueError(
            argument, f"must be a CSV file, got {path}, which cannot be read: {error}"
        ) from error
