"""Predictions as one file: Parquet, CSV or Excel, written a part at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from ...libraries import library
from ...parquet import libraries
from ...text import spreadsheet_cell, without_controls
from .row_files import excel_library

SUFFIXES = (".parquet", ".csv", ".xlsx")
WRITTEN_AT_ONCE = 2**25  # bytes of a row group
EXCEL_ROWS, EXCEL_CHARACTERS = 2**20, 32_767  # most of a sheet, and of a cell
NUMBERS = ("probability", "doubt")  # columns shown with four digits


def require_libraries(path: Path) -> None:
    """Raise an error that says how to install what is missing to write this file."""
    library("pyarrow", f"the output {path.name}", "'paddle_ext[parquet]'")
    if path.suffix == ".xlsx":
        excel_library()


def write_file(path: Path, tables: Iterator[Any]) -> list[str]:
    """Write tables of pyarrow, one below the other; returns messages for the user."""
    write = {".parquet": write_parquet, ".csv": write_csv, ".xlsx": write_excel}[path.suffix]
    return write(path, tables)


def write_parquet(path: Path, tables: Iterator[Any]) -> list[str]:
    """Small tables are collected into row groups."""
    arrow, parquet = libraries()
    waiting = [next(tables)]
    size = waiting[0].nbytes
    with parquet.ParquetWriter(path, waiting[0].schema) as writer:
        for table in tables:
            if size >= WRITTEN_AT_ONCE:
                writer.write_table(arrow.concat_tables(waiting))
                waiting, size = [], 0
            waiting.append(table)
            size += table.nbytes
        writer.write_table(arrow.concat_tables(waiting))
    return []


def write_csv(path: Path, tables: Iterator[Any]) -> list[str]:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        for number, table in enumerate(tables):
            if number == 0:
                lines.writerow(map(spreadsheet_cell, table.column_names))
            cells = [csv_cells(table, name) for name in table.column_names]
            lines.writerows(zip(*cells, strict=True))
    return []


def csv_cells(table: Any, name: str) -> list[str]:
    values = table.column(name).to_pylist()
    if name in NUMBERS:
        return ["" if value is None else f"{value:.4f}" for value in values]
    return ["" if value is None else spreadsheet_cell(str(value)) for value in values]


def write_excel(path: Path, tables: Iterator[Any]) -> list[str]:
    openpyxl = excel_library()
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("answers")
    rows, cut = 0, 0
    for table in tables:
        if rows == 0:
            sheet.append([excel_cell(sheet, name) for name in table.column_names])
        rows += len(table)
        if rows >= EXCEL_ROWS:
            raise ValueError(
                f"{path.name} must be a .csv or .parquet file for more than {EXCEL_ROWS - 1:,} "
                "samples, the limit of Excel"
            )
        columns = [table.column(name).to_pylist() for name in table.column_names]
        for line in zip(*columns, strict=True):
            cut += sum(isinstance(cell, str) and len(cell) > EXCEL_CHARACTERS for cell in line)
            sheet.append([excel_cell(sheet, cell) for cell in line])
    content = io.BytesIO()  # the archive of a file that is full complains again when it is deleted
    book.save(content)
    path.write_bytes(content.getbuffer())
    long = f"{cut:,} texts were cut to {EXCEL_CHARACTERS:,} characters, the limit of Excel"
    return [long] if cut else []


def excel_cell(sheet: Any, value: Any) -> Any:
    """A number or a date as it is, anything else as a text that is never run as a formula."""
    if isinstance(value, datetime | time) and value.tzinfo is not None:
        value = value.isoformat()
    if value is None or isinstance(value, bool | int | float | date | time):
        return round(value, 6) if isinstance(value, float) else value
    cell = excel_library().cell.WriteOnlyCell(sheet, "")
    cell.value = without_controls(str(value))[:EXCEL_CHARACTERS]
    cell.data_type = "s"
    return cell
