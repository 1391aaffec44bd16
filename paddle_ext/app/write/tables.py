"""The predictions as tables for other programs: CSV, Parquet or Excel."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ... import check
from ...files import replacing
from ...libraries import library
from ...parquet import pyarrow, python_values
from ...text import spreadsheet_cell, without_controls
from ..answers import NO_CLASS, Answers
from ..corrections import Corrected
from ..outcome import ClassInGroup, Expected, LabelledCheck, reasons
from ..read.arrays import ArraySamples
from ..read.formats import excel_library
from ..read.opening import Source
from ..read.table_files import CsvTable
from ..read.tables import TableSamples
from .own_table import (
    CORRECTED,
    FOUR_DIGITS,
    GIVEN,
    PREDICTED,
    all_samples,
    known,
    titles_of,
)

SUFFIXES = (".parquet", ".csv", ".xlsx")
ROW_GROUP_BYTES = 2**25  # of Parquet
EXCEL_ROWS, EXCEL_CHARACTERS = 2**20, 32_767  # most of a sheet, and of a cell


# --- any table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvStyle:
    """How CSV files are written, so that the user's spreadsheet opens them by a double click."""

    separator: str = ","
    point: str = "."  # of our numbers

    @classmethod
    def of(cls, source: Source) -> CsvStyle:
        """That of the file that was read, if it has semicolons, as where commas are decimal."""
        for samples in (source.samples, source.rows):
            table = samples.table if isinstance(samples, TableSamples) else None
            if isinstance(table, CsvTable) and table.separator == ";":
                numbers = chain.from_iterable(table.first[name] for name in table.numeric)
                return cls(";", "." if any("." in cell for cell in numbers) else ",")
        return cls()

    def number(self, value: float | None) -> str:
        """Four digits; empty for none, or NaN."""
        if value is None or math.isnan(value):
            return ""
        return f"{value:.4f}".replace(".", self.point)

    def numbers(self, x: Tensor) -> list[str]:
        return [self.number(value) for value in x.tolist()]

    def write(
        self, path: Path, header: Sequence[str], rows: Iterable[Iterable[str]], *, mark: bool = True
    ) -> None:
        """Write a CSV file; no name or text becomes a spreadsheet formula.

        By the byte order mark Excel knows that it is in UTF-8.
        """
        encoding = "utf-8-sig" if mark else "utf-8"
        with replacing(path) as new, new.open("w", newline="", encoding=encoding) as file:
            lines = csv.writer(file, delimiter=self.separator)
            lines.writerow(map(spreadsheet_cell, header))
            lines.writerows(map(spreadsheet_cell, row) for row in rows)


def write_file(
    path: Path, tables: Iterator[Any], style: CsvStyle, rounded: Sequence[str] = FOUR_DIGITS
) -> list[str]:
    """Write tables of pyarrow, one below the other; returns messages for the user.

    Numbers in the columns `rounded` get a few digits.
    """
    first = next(tables)
    tables = chain([first], tables)
    if path.suffix == ".csv":
        rows = chain.from_iterable(csv_rows(table, style, rounded) for table in tables)
        style.write(path, first.column_names, rows)
        return []
    with replacing(path) as new:
        if path.suffix == ".xlsx":
            return write_excel(new, first.schema, tables, rounded)
        return write_parquet(new, first.schema, tables)


def csv_rows(table: Any, style: CsvStyle, rounded: Sequence[str]) -> Iterator[tuple[str, ...]]:
    def texts(name: str) -> list[str]:
        values = python_values(table.column(name))
        if name in rounded:
            return [style.number(value) for value in values]
        return ["" if value is None else str(value) for value in values]

    return zip(*map(texts, table.column_names), strict=True)


def write_parquet(path: Path, schema: Any, tables: Iterable[Any]) -> list[str]:
    """Small tables are collected into row groups."""
    waiting: list[Any] = []
    size = 0
    with pyarrow("pyarrow.parquet").ParquetWriter(path, schema) as writer:
        for table in tables:
            waiting.append(table)
            size += table.nbytes
            if size >= ROW_GROUP_BYTES:
                writer.write_table(pyarrow().concat_tables(waiting))
                waiting, size = [], 0
        if waiting:
            writer.write_table(pyarrow().concat_tables(waiting))
    return []


def write_excel(
    path: Path, schema: Any, tables: Iterable[Any], rounded: Sequence[str]
) -> list[str]:
    book = excel_library().Workbook(write_only=True)
    sheet = book.create_sheet("answers")
    sheet.append([excel_cell(sheet, name) for name in schema.names])
    rows, cut = 0, 0
    for table in tables:
        rows += len(table)
        if rows >= EXCEL_ROWS:
            raise ValueError(
                f"{path.name} must be a .csv or .parquet file for more than {EXCEL_ROWS - 1:,} "
                "samples, the limit of Excel"
            )
        columns = [excel_column(table[name], name in rounded) for name in table.column_names]
        for line in zip(*columns, strict=True):
            cut += sum(isinstance(cell, str) and len(cell) > EXCEL_CHARACTERS for cell in line)
            sheet.append([excel_cell(sheet, cell) for cell in line])
    content = io.BytesIO()  # on a full disk openpyxl would complain again when it is deleted
    book.save(content)
    path.write_bytes(content.getbuffer())
    long = f"{cut:,} texts were cut to {EXCEL_CHARACTERS:,} characters, the limit of Excel"
    return [long] if cut else []


def excel_column(column: Any, rounded: bool) -> list[Any]:
    values = python_values(column)
    if rounded:
        return [x and round(x, 6) for x in values]
    known = [value for value in values if value is not None]
    if all(isinstance(value, datetime) and value.timetz() == time() for value in known):
        return [value and value.date() for value in values]  # of datetimes Excel shows the time
    return values


def excel_cell(sheet: Any, value: Any) -> Any:
    """A finite number or a date as it is, anything else as text that is never run as a formula."""
    if isinstance(value, float) and not math.isfinite(value):
        value = None if math.isnan(value) else str(value)
    if isinstance(value, datetime | time) and value.tzinfo is not None:
        value = value.isoformat()
    if value is None or isinstance(value, bool | int | float | date | time):
        return value
    cell = excel_library().cell.WriteOnlyCell(sheet, "")
    cell.value = without_controls(str(value))[:EXCEL_CHARACTERS]
    cell.data_type = "s"
    return cell


# --- tables of the output folder ----------------------------------------------------------------


def write_answers(
    path: Path, answers: Answers, name_column: str, style: CsvStyle, *, texts: bool
) -> None:
    """Write one row per sample, in order; the first column, `name_column`, identifies them."""
    rows, names, own = range(len(answers)), answers.class_names, answers.corrected
    second = enumerate(answers.second.tolist())
    node_sure, numbers = answers.node_probability, style.numbers
    columns: list[tuple[str, Iterable[str] | None]] = [
        (name_column, answers.names),
        ("text", answers.texts if texts else None),
        ("label", map(answers.label, rows)),
        ("source", ("corrected" if row in own else "predicted" for row in rows)),
        ("prediction", map(answers.prediction, rows)),
        ("probability", numbers(answers.probability)),
        ("second", ("" if row in answers.no_text else names[k] for row, k in second)),
        ("second_probability", numbers(answers.second_probability)),
        ("doubt", numbers(answers.doubt)),
        ("novelty", [""] * len(rows) if answers.novelty is None else numbers(answers.novelty)),
        ("check", reasons(answers)),
        ("group", answers.groups),
        ("node", answers.nodes),
        ("node_probability", None if node_sure is None else numbers(node_sure)),
        ("truth", answers.truth or None),
    ]
    header, cells = zip(*(pair for pair in columns if pair[1] is not None), strict=True)
    style.write(path, header, zip(*cells, strict=True))


def write_classes(
    path: Path, answers: Answers, expected: Callable[[int], Expected | None], style: CsvStyle
) -> None:
    """Write the classes, the largest first: shares, and how many labelled samples are recognised.

    Both have 90 % intervals.
    """
    shares = answers.prevalence
    counts, numbers = answers.counts().tolist(), [style.numbers(x) for x in shares]

    def row(k: int) -> list[str]:
        own = expected(k)
        recognised = [""] * 3 if own is None else [style.number(x) for x in own[:3]]
        return [answers.class_names[k], str(counts[k]), *(x[k] for x in numbers), *recognised]

    more, K = ("recognised", "recognised_low", "recognised_high"), len(counts)
    rows = list(map(row, shares.estimate[:K].argsort(descending=True, stable=True).tolist()))
    if len(shares.estimate) > K:
        rows.append([NO_CLASS, str(answers.unknown()), *(x[K] for x in numbers), *[""] * 3])
    style.write(path, ("class", "samples", "share", "low", "high", *more), rows)


def write_groups(path: Path, where: dict[str, list[ClassInGroup]], style: CsvStyle) -> None:
    """Write what is where: a row for each class of each group."""
    rows = (
        (name, *map(str, one[:2]), *map(style.number, one[2:]))
        for name, classes in where.items()
        for one in classes
    )
    style.write(path, ("group", "class", "samples", "share", "low", "high"), rows)


def write_labelled(
    path: Path, checked: LabelledCheck, shown: str, named: str | None, style: CsvStyle
) -> None:
    """Write the check of the labelled samples, most doubtful first; `shown` is a column title."""
    doubt, own = style.numbers(checked.doubt), checked.labelled
    rows = (
        (own.names[k], checked.shown(k), checked.label(k), doubt[k], checked.suggested(k))
        for k in checked.order()
    )
    wanted = [named is not None, True, True, True, True]
    header = compress((named or "", shown, "label", "doubt", "suggestion"), wanted)
    style.write(path, list(header), (compress(row, wanted) for row in rows))


def write_suggestions(
    path: Path,
    answers: Answers,
    reasons: dict[int, str],
    name_column: str,
    style: CsvStyle,
    *,
    texts: bool,
) -> None:
    sure = style.numbers(answers.probability[[*reasons]])
    rows = (
        (answers.names[row], *[answers.texts[row]] * texts, answers.prediction(row), number, why)
        for (row, why), number in zip(reasons.items(), sure, strict=True)
    )
    header = (name_column, *["text"] * texts, "label", "probability", "reason")
    style.write(path, header, rows)


# --- all samples with their labels --------------------------------------------------------------


def check_file(argument: str, path: Path, inputs: Sequence[Path]) -> None:
    """Reject a file that would replace an input or cannot be written, before any work."""
    if path.is_dir() or path.suffix not in SUFFIXES:
        expected = f"must be a file ending in {', '.join(SUFFIXES)}, in lower case"
        raise check.ArgumentValueError(argument, f"{expected}, got {path}")
    library("pyarrow", f"the output {path.name}", "'paddle_ext[parquet]'")
    if path.suffix == ".xlsx":
        excel_library()
    check_no_input(argument, path, inputs)


def check_no_input(argument: str, path: Path, inputs: Sequence[Path]) -> None:
    """Reject a file to write that is read, or what is no file: it would be replaced by one."""
    if path.exists() and not path.is_dir() and not path.is_file():
        what = f"must be a regular file, got the pipe, socket or device {path}"
        raise check.ArgumentValueError(argument, what)
    if path.exists() and any(one.exists() and path.samefile(one) for one in inputs):
        raise check.ArgumentValueError(argument, f"must not replace an input file, got {path}")


def write_final(
    path: Path,
    answers: Answers,
    corrected: Corrected,
    name_column: str,
    style: CsvStyle,
    *,
    texts: bool,
) -> None:
    """Write every sample: the user's own table filled in, or else labelled samples first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    apart = corrected.data.labelled != corrected.data.new
    if isinstance(corrected.source.samples, TableSamples):
        titles = titles_of(corrected.source, *["data"] * apart)
        whole = all_samples(corrected, answers, titles, numbers=path.suffix != ".csv")
        write_file(path, iter([whole]), style, titles.rounded)
        return
    rows = list(final_rows(answers, corrected))
    if not apart and corrected.source.kind != "pictures":
        rows = [rows[k] for k in np.argsort(places(corrected.source))]
    wanted = [apart, True, texts, True, True, True, True]
    names = ["data", name_column, "text", "label", "source", "prediction", "probability"]
    columns = [list(column) for column in compress(zip(*rows, strict=True), wanted)]
    header = list(compress(names, wanted))
    write_file(path, iter([pyarrow().table(columns, header)]), style)


def places(source: Source) -> list[int]:
    """Where the labelled samples and the others of one file of arrays are in it."""
    assert isinstance(source.samples, ArraySamples)
    return [*map(int, source.examples.names), *source.samples.rows]


def final_rows(answers: Answers, corrected: Corrected) -> Iterator[tuple[Any, ...]]:
    """Labelled samples, then the others: the columns of `write_final`."""
    (labelled, new), examples = corrected.data, corrected.source.examples
    own = zip(examples.names, examples.texts, corrected.example_labels, strict=True)
    for (name, text, label), given in zip(own, examples.truth or [], strict=True):
        source = GIVEN if label == given else CORRECTED
        yield labelled, name, text, label, source, "", None
    sure = known(answers.probability).to_pylist()
    for row, (name, text) in enumerate(zip(answers.names, answers.texts, strict=True)):
        source = CORRECTED if row in answers.corrected else PREDICTED
        yield new, name, text, answers.label(row), source, answers.prediction(row), sure[row]
