"""Tables that are read as a whole: Excel workbooks, JSON and JSON Lines."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...files import check_room, open_regular, readable
from ...libraries import library
from .text_encodings import decoded

SUFFIXES = (".xlsx", ".jsonl", ".json")


class Rows(NamedTuple):
    """All rows of a table."""

    names: list[str]  # of the columns
    cells: list[list[Any]]
    notes: list[str]  # for the user


def read_rows(path: Path) -> Rows:
    return excel_rows(path) if path.suffix == ".xlsx" else json_rows(path)


def excel_library() -> Any:
    return library("openpyxl", "an .xlsx file", "'paddle_ext[excel]'")


def excel_rows(path: Path) -> Rows:
    """The first sheet with cells; its first row has the names of the columns."""
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
                found = (list(row) for row in sheet.iter_rows(values_only=True))
                lines = [row for row in found if any(cell is not None for cell in row)]
                if lines:
                    title = sheet.title
                    break
            sheets = len(book.worksheets)
            book.close()
    width = max((last_cell(line) for line in lines), default=0)
    lines = [[*line[:width], *[None] * (width - len(line))] for line in lines]
    names = ["" if cell is None else str(cell) for cell in lines[0]] if lines else []
    notes = [f"the sheet {title!r} of {path} was read, one of {sheets}"] if sheets > 1 else []
    return Rows(names, lines[1:], notes)


def last_cell(line: Sequence[object]) -> int:
    return max(place for place, cell in enumerate(line, start=1) if cell is not None)


def json_rows(path: Path) -> Rows:
    """Objects with the columns as keys: one on each line, or in one list."""
    with readable(path, "a text file"), open_regular(path) as file:
        text = decoded(file.read())
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
    return Rows(names, [[record.get(name) for name in names] for record in records], [])
