"""Tables that are read as a whole: workbooks of Excel, and JSON."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

from ...files import check_room, open_regular, readable
from ...libraries import library
from ...parquet import pyarrow
from ...text import encodable
from .text_files import small_text


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
