"""Files in the formats of other programs: text in any encoding, CSV, JSON, Excel."""

import codecs
import csv
import io
import json
import re
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from ... import check
from ...files import check_room, open_regular, readable
from ...libraries import library
from ...limits import MOST_NESTED
from ...parquet import pyarrow
from ...text import encodable, plural, several

SEPARATORS = (",", ";", "\t", "|")
NAMED_SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
MOST_TITLES = 20  # rows that may be above the names of the columns
SAMPLE = 2**16  # bytes used to detect the separator
BLOCK = 2**22  # bytes read at a time
MARKS = {  # byte order marks; longer ones first
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Of JSON, texts and all else that is not a bracket; a text without an end goes to that of the file.
NO_BRACKETS = re.compile(r""""[^"\\]*(?:\\.[^"\\]*)*\\?(?:"|\Z)|[^][{}"]+""", re.DOTALL)
FALLBACK_ENCODING = "cp1252"  # written by Windows programs in western Europe; extends Latin-1


def small_text(path: Path) -> str:
    """The text of a small file, with plain line ends; ValueError if it is not text."""
    with open_regular(path) as file, text_of(file, sniffed_encoding(path)) as lines:
        text = lines.read()
    if "\0" in text:
        raise ValueError("zero bytes, which text never has")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def sniffed_encoding(path: Path) -> str:
    """By its first bytes, or UTF-8 if the whole file is valid; else Windows-1252."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_regular(path) as file:
        first = file.read(4)
        for mark, encoding in MARKS.items():
            if first.startswith(mark):
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
        b" ".decode(name, "replace")  # base64 is a codec too, but not of texts; idna of names alone
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
    """The separator that splits the first lines into equally many cells, and the most.

    There may be titles of a single cell above.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    with open_regular(path) as file:
        content = file.read(SAMPLE)
        whole = not file.read(1)
    text = content.decode(encoding, "replace").removeprefix("\ufeff")
    lines = text.splitlines(keepends=True)
    rows_by = dict[str, list[list[str]]]()
    for separator in SEPARATORS:
        with suppress(csv.Error):
            rows = [row for row in csv_reader(lines, separator) if row]
            if not whole and len(rows) > 1:
                rows.pop()  # the sample may end within it
            rows_by[separator] = rows
    return widest(rows_by) or widest(without_titles(rows_by)) or SEPARATORS[0]


def widest(rows_by: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """The separator whose rows all have the same number of cells, and the most; "" for none."""
    best, most = "", 1
    for separator, rows in rows_by.items():
        widths = {len(row) for row in rows}
        if len(widths) == 1 and max(widths) > most:
            best, most = separator, max(widths)
    return best


def without_titles(rows_by: Mapping[str, list[list[str]]]) -> dict[str, list[list[str]]]:
    """The same rows without titles of one cell at the top, if those are the smaller part."""
    found = dict[str, list[list[str]]]()
    for separator, rows in rows_by.items():
        titles = len(list(takewhile(lambda row: len(row) == 1, rows[:MOST_TITLES])))
        found[separator] = rows[titles:] if 2 * titles < len(rows) else rows
    return found


def csv_reader(lines: Iterable[str], separator: str) -> Any:
    """The rows of a CSV file, with texts of any length."""
    csv.field_size_limit(2**31 - 1)  # of all readers; the largest that every platform takes
    return csv.reader(lines, delimiter=separator)


def header_place(rows: Sequence[Sequence[object]], expected: Collection[str]) -> int:
    """Which of the first rows of a table names its columns.

    It is the first one, unless that looks like a title, because it has empty or equal cells or
    fewer than others; and unless a later row has more of the `expected` names, in lower case.
    """
    first = rows[0] if rows else ()
    named = {cell for cell in first if cell not in (None, "")}
    if len(named) == max(map(len, rows), default=0):
        return 0
    found = [sum(str(cell).lower() in expected for cell in row) for row in rows]
    return found.index(max(found)) if found else 0


def title_notes(path: Path, titles: int) -> list[str]:
    """What to say of rows above the names of the columns."""
    rows = f"the first {plural(titles, 'row')} of {path}, above the names of the columns,"
    return [f"{rows} {'was' if titles == 1 else 'were'} left out"] if titles else []


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
            argument, f"must be a CSV or Excel file {what}, got {path}, which is not a file"
        )
    if path.suffix.lower() == ".xlsx":
        names, lines, _ = excel_rows(path)
        return [names, *([cell_of_excel(cell) for cell in line] for line in lines)]
    try:
        return table_rows(path)
    except (UnicodeError, csv.Error) as error:
        raise check.ArgumentValueError(
            argument, f"must be a CSV file, got {path}, which cannot be read: {error}"
        ) from error


# --- tables that are read as a whole --------------------------------------------------------------


def column_of(cells: list[Any]) -> Any:
    """A column of Arrow; cells of several types are texts."""
    arrow = pyarrow()
    try:
        column = arrow.array(cells)
    except (arrow.ArrowException, OverflowError, UnicodeError):
        column = arrow.nulls(0)
    if arrow.types.is_null(column.type):
        texts = (None if cell is None else encodable(str(cell)) for cell in cells)
        return arrow.array(list(texts), arrow.string())
    return column


def excel_library() -> Any:
    return library("openpyxl", "an .xlsx file", "'paddle_ext[excel]'")


def excel_rows(
    path: Path, sheet: str | None = None, expected: Collection[str] = ()
) -> tuple[list[str], list[list[Any]], list[str]]:
    """Columns, rows and notes of a sheet: the one asked for, or else the first with cells.

    A later one wins if its columns have more of the `expected` names, in lower case.
    """
    openpyxl = excel_library()
    with readable(path, "a workbook of Excel"), open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                check_room(path, entry.file_size, entry.compress_size, entry.filename)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and formats
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheets = {one.title: one for one in book.worksheets}
            title, most, lines = "", -1, list[list[Any]]()
            for name, one in sheets.items():
                if sheet not in (None, name):
                    continue
                first = list(islice(filled_rows(one), MOST_TITLES))
                place = header_place(first, expected)
                names = first[place] if first else []
                count = sum(str(cell).lower() in expected for cell in names)
                if first and count > most:
                    title, most = name, count
            if title:
                lines = list(filled_rows(sheets[title]))
            book.close()
    if sheet is not None and sheet not in sheets:
        listed, near = several([*map(repr, sheets)], 8), check.did_you_mean(sheet, [*sheets])
        what = f"must be a sheet of {path} ({listed}), got {sheet!r}{near}"
        raise check.ArgumentValueError("sheet", what)
    last = (max(k for k, cell in enumerate(line, 1) if cell is not None) for line in lines)
    width = max(last, default=0)
    lines = [[*line[:width], *[None] * (width - len(line))] for line in lines]
    place = header_place(lines[:MOST_TITLES], expected)
    names = ["" if cell is None else str(cell) for cell in lines[place]] if lines else []
    notes = title_notes(path, place)
    if sheet is None and len(sheets) > 1:
        notes = [f"the sheet {title!r} of {path} was read, one of {len(sheets)} (--sheet)", *notes]
    return names, lines[place + 1 :], notes


def filled_rows(sheet: Any) -> Iterator[list[Any]]:
    """The rows of a sheet that are not empty."""
    rows = (list(row) for row in sheet.iter_rows(values_only=True))
    return (row for row in rows if any(cell is not None for cell in row))


def cell_of_excel(cell: object) -> str:
    """A cell as CSV would have it; whole numbers are stored as floats."""
    whole = isinstance(cell, float) and cell.is_integer()
    return "" if cell is None else str(int(cell) if whole else cell)  # type: ignore[call-overload]


def nesting(text: str) -> int:
    """How deep lists and objects of JSON are inside each other, without reading them."""
    brackets = NO_BRACKETS.sub("", text).encode("ascii")
    opened = np.isin(np.frombuffer(brackets, np.uint8), np.frombuffer(b"[{", np.uint8))
    return int(np.where(opened, 1, -1).cumsum().max(initial=0))


def json_rows(path: Path) -> tuple[list[str], list[list[Any]], list[str]]:
    """Columns and rows of objects with the columns as keys: one on each line, or in one list.

    The reader of Arrow refuses columns of several types, and takes texts for dates.
    """
    with readable(path, "a text file"):
        text = small_text(path)
    if (depth := nesting(text)) > MOST_NESTED:
        raise ValueError(
            f"{path} must have lists and objects at most {MOST_NESTED} deep inside each other, "
            f"got {depth}"
        )
    records: list[Any] = []
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                with readable(path, f"JSON Lines, with an object in line {number}"):
                    records.append(json.loads(line))
    else:
        with readable(path, "JSON"):
            records = json.loads(text)
    wrong = not isinstance(records, list)
    if wrong or not all(isinstance(record, dict) for record in records):
        raise ValueError(
            f"{path} must have objects with the columns as keys, in a list or one per line, "
            "got something else"
        )
    names = list(dict.fromkeys(name for record in records for name in record))
    return names, [[record.get(name) for name in names] for record in records], []
