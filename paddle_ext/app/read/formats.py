"""Files in the formats of other programs: text in any encoding, CSV, JSON, Excel."""

import codecs
import csv
import io
import json
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from ... import check
from ...files import check_room, open_regular, readable
from ...libraries import library
from ...parquet import pyarrow
from ...text import encodable

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


def excel_rows(path: Path) -> tuple[list[str], list[list[Any]], list[str]]:
    """Columns, rows and notes of the first sheet with cells; its first row names the columns."""
    openpyxl = excel_library()
    with readable(path, "a workbook of Excel"), open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                check_room(path, entry.file_size, entry.compress_size, entry.filename)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and formats
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            title, lines = "", list[list[Any]]()
            for sheet in book.worksheets:
                rows = (list(row) for row in sheet.iter_rows(values_only=True))
                lines = [row for row in rows if any(cell is not None for cell in row)]
                if lines:
                    title = sheet.title
                    break
            sheets = len(book.worksheets)
            book.close()
    last = (max(k for k, cell in enumerate(line, 1) if cell is not None) for line in lines)
    width = max(last, default=0)
    lines = [[*line[:width], *[None] * (width - len(line))] for line in lines]
    names = ["" if cell is None else str(cell) for cell in lines[0]] if lines else []
    notes = [f"the sheet {title!r} of {path} was read, one of {sheets}"] if sheets > 1 else []
    return names, lines[1:], notes


def cell_of_excel(cell: object) -> str:
    """A cell as CSV would have it; whole numbers are stored as floats."""
    whole = isinstance(cell, float) and cell.is_integer()
    return "" if cell is None else str(int(cell) if whole else cell)  # type: ignore[call-overload]


def json_rows(path: Path) -> tuple[list[str], list[list[Any]], list[str]]:
    """Columns and rows of objects with the columns as keys: one on each line, or in one list.

    The reader of Arrow refuses columns of several types, and takes texts for dates.
    """
    with readable(path, "a text file"):
        text = small_text(path)
    records: list[Any] = []
    if path.suffix == ".jsonl":
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
