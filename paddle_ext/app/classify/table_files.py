"""Table files of every format: their columns, and their rows in parts."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ... import check
from ...files import Version, current_version, open_regular, unchanged
from ...parquet import is_lists, libraries, open_parquet, record_batches, vectors, width_of
from ...text import encodable, plain_cell
from . import row_files
from .columns import (
    Chosen,
    choose,
    is_gap,
    is_numeric,
    looks_like_text,
    plain_number,
    why_no_feature,
)
from .text_encodings import (
    checked_encoding,
    checked_separator,
    csv_reader,
    sniffed_encoding,
    sniffed_separator,
)

SUFFIXES = (".csv", ".tsv", ".parquet", *row_files.SUFFIXES)
LABEL_COLUMNS = ("label", "labels", "class", "category", "target")
EMBEDDING = "embedding"  # a column of lists used by default
FEW_FEATURES = 2  # numeric columns that hardly are what to classify if there are texts
SAMPLE_ROWS = 100  # to detect the numeric columns of a CSV file
NUMBERS = ("float", "double", "halffloat", "int", "uint", "decimal")  # types of Arrow

# The column of labels, and a test of its cells in a group of rows.
LabelTest: TypeAlias = tuple[str, Callable[[Sequence[object]], bool]]


class RowPart:
    """Rows of cells, and their numbers."""

    def __init__(self, lines: list[list[Any]], table: RowTable, rows: Sequence[int]) -> None:
        self.lines, self.table, self.rows = lines, table, rows

    def select(self, wanted: Sequence[bool]) -> RowPart:
        lines = [line for line, own in zip(self.lines, wanted, strict=True) if own]
        return RowPart(lines, self.table, np.array(self.rows)[np.array(wanted)].tolist())

    def cells(self, name: str) -> list[Any]:
        place = self.table.names.index(name)
        return [line[place] for line in self.lines]

    def columns(self, names: Sequence[str]) -> Any:
        """As in `ArrowPart`."""
        arrow = libraries()[0]
        if not names:
            return arrow.table({"row": arrow.array(np.array(self.rows))})
        types = [self.table.arrow_type(name) for name in names]
        columns = [
            arrow.array(self.cells(name), kind)
            if kind is not None
            else arrow.array(list(map(optional_text, self.cells(name))), arrow.string())
            for name, kind in zip(names, types, strict=True)
        ]
        return arrow.Table.from_arrays(columns, list(names))


class ArrowPart:
    """Rows of a Parquet file, and their numbers; a column is decoded only when it is needed."""

    def __init__(self, batch: Any, rows: Sequence[int]) -> None:
        self.batch, self.rows = batch, rows  # a pyarrow.RecordBatch

    def select(self, wanted: Sequence[bool]) -> ArrowPart:
        mask = np.array(wanted)
        batch = self.batch.filter(libraries()[0].array(mask))
        return ArrowPart(batch, np.array(self.rows)[mask].tolist())

    def cells(self, name: str) -> list[Any]:
        found: list[Any] = self.batch.column(name).to_pylist()
        return found

    def numbers(self, names: Sequence[str]) -> Tensor | None:
        """Columns of numbers as a matrix [n, D] float32; None if a cell is not a finite number."""
        columns = [self.batch.column(name) for name in names]
        if not all(is_number(column.type) and not column.null_count for column in columns):
            return None
        with np.errstate(over="ignore"):
            cells = [column.to_numpy(zero_copy_only=False) for column in columns]
            found = np.stack([np.array(values, np.float32) for values in cells], 1)
        return torch.from_numpy(found) if np.isfinite(found).all() else None

    def lists(self, name: str, width: int | None, path: Path) -> Tensor | None:
        """A column of lists as a matrix [n, width] float32; None if it has no lists of numbers.

        `width` is the required length of each list, by default that of the first.
        """
        column = self.batch.column(name)
        kind = getattr(column.type, "storage_type", column.type)
        # Lists of decimals hold objects.
        if not is_lists(kind) or not str(kind.value_type).startswith(NUMBERS[:-1]):
            return None
        width = width_of(column) if width is None else width
        found = vectors(column, max(width, 1), f"{path}, column {name!r},", self.rows)
        return torch.from_numpy(np.array(found, np.float32))

    def columns(self, names: Sequence[str]) -> Any:
        """A pyarrow.Table of these columns; of the row numbers if there is none."""
        arrow = libraries()[0]
        if not names:
            return arrow.table({"row": arrow.array(np.array(self.rows))})
        return arrow.Table.from_batches([self.batch]).select([*names])


Part: TypeAlias = RowPart | ArrowPart


class Table(ABC):
    """A table file."""

    path: Path
    version: Version  # of a file that is read several times
    names: list[str]  # of all columns
    numeric: list[str]  # columns of numbers
    lists: list[str]  # columns of lists
    first: dict[str, list[Any]]  # the first cells of each column; in Parquet not of lists
    count: int | None = None  # number of rows, if the file says it
    notes: Sequence[str] = ()  # for the user

    @abstractmethod
    def parts(
        self, names: Sequence[str], size: int, labelled: LabelTest | None = None
    ) -> Iterator[Part]:
        """These columns of all rows, in parts.

        A part has at most `size` rows; groups of rows that fail the test `labelled` may be left
        out.
        """

    def check_version(self) -> None:
        unchanged(self.path, current_version(self.path), self.version)

    def as_numbers(self, cells: list[Any]) -> list[Any]:
        """Cells of a column, with decimal points."""
        return cells

    def column(self, name: str, argument: str) -> str:
        if name not in self.names:
            shown = ", ".join(map(repr, self.names[:8])) + (", ..." * (len(self.names) > 8))
            raise check.ArgumentValueError(
                argument,
                f"must be a column of {self.path} ({shown}), got {name!r}"
                f"{check.did_you_mean(name, self.names)}",
            )
        return name

    def label_column(self, given: str | None) -> str:
        found = self.label_column_if_any(given, None)
        if found is not None:
            return found
        raise check.ArgumentValueError(
            "label",
            f"must be a column of {self.path}, which has none called "
            f"{', '.join(LABEL_COLUMNS)}, got nothing",
        )

    def label_column_if_any(self, given: str | None, truth: str | None) -> str | None:
        """The given column, or one with a known name, in any case, other than the truth."""
        if given is not None:
            return self.column(given, "label")
        names = {name.lower(): name for name in self.names[::-1] if name != truth}
        return next((names[name] for name in LABEL_COLUMNS if name in names), None)

    def feature_columns(self, given: str | None, others: set[str]) -> Chosen:
        """The numeric columns selected by `Columns.features`."""
        left_out: dict[str, str] = {}
        if given is None and EMBEDDING in self.lists and EMBEDDING not in others:
            given = EMBEDDING
        if given is None:
            numeric = [name for name in self.numeric if name not in others]
            found, left_out = choose(self.first, numeric)
            known = {*numeric, *others}
            left_out |= {
                name: "it has lists" if name in self.lists else why_no_feature(self.first[name])
                for name in self.names
                if name not in known
            }
        elif given in self.names:
            found = [given]
        elif "," in given:
            found = [self.column(name.strip(), "features") for name in given.split(",")]
        elif ":" in given:
            ends = [self.column(name, "features") for name in given.split(":", 1)]
            first, last = (self.names.index(name) for name in ends)
            found = [name for name in self.names[first : last + 1] if name not in others]
        else:
            found = [name for name in self.names if name.startswith(given) and name not in others]
        if given is None and len(found) <= FEW_FEATURES:
            self.check_text(others)
        if not found:
            beginning = "" if given is None else f" starting with {given!r}"
            raise check.ArgumentValueError(
                "features",
                f"must be numeric columns of {self.path}, got none{beginning}",
                or_pass="text",
            )
        return Chosen(found, left_out)

    def check_text(self, others: set[str]) -> None:
        """Raise an error if there is a column of texts, which is probably what to classify."""
        for name, cells in self.first.items():
            if name not in others and looks_like_text(cells):
                raise check.ArgumentValueError(
                    "text",
                    f"must be given, because the column {name!r} of {self.path} looks like text: "
                    f"add --text {name}",
                    or_pass="features",
                )


def open_table(path: Path, separator: str | None = None, encoding: str | None = None) -> Table:
    """A table file; separator and encoding of a CSV file are by default detected."""
    if path.suffix == ".parquet":
        return ParquetTable(path)
    if path.suffix in row_files.SUFFIXES:
        return StoredTable(path)
    return CsvTable(path, separator, encoding)


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, current_version(path)
        with open_parquet(path) as file:
            schema, self.count = file.schema_arrow, int(file.metadata.num_rows)
        self.names = schema.names
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"{path} must have unique column names, got one twice")
        self.numeric = [one.name for one in schema if is_number(one.type)]
        self.lists = [one.name for one in schema if is_lists(one.type)]
        plain = [name for name in self.names if name not in self.lists]
        first = next(self.parts(plain, SAMPLE_ROWS), None) if plain else None
        self.first = {} if first is None else {name: first.cells(name) for name in plain}

    def parts(
        self, names: Sequence[str], size: int, labelled: LabelTest | None = None
    ) -> Iterator[ArrowPart]:
        self.check_version()
        with open_parquet(self.path) as file:
            start = 0
            groups: list[list[int] | None] = [None]
            if labelled is not None:
                groups = [[number] for number in range(file.metadata.num_row_groups)]
            for group in groups:
                if labelled is not None:
                    found = record_batches(file, self.path, size, labelled[:1], group)
                    labels = [value for batch in found for value in batch.column(0).to_pylist()]
                    if not labelled[1](labels):
                        start += len(labels)
                        continue
                for batch in record_batches(file, self.path, size, names, group):
                    yield ArrowPart(batch, range(start, start + len(batch)))
                    start += len(batch)
        self.check_version()


class RowTable(Table):
    """A table of cells, row by row."""

    @abstractmethod
    def rows(self) -> Iterator[list[Any]]:
        """All rows; sets `names` before the first."""

    def arrow_type(self, name: str) -> Any:
        """The type of a column that is copied to the output; None: text."""
        return None

    def look(self) -> None:
        """Find the numeric columns."""
        first = next(self.parts([], SAMPLE_ROWS), None)
        self.first = {}
        if first is not None:
            self.first = {name: self.as_numbers(first.cells(name)) for name in self.names}
        there = {
            name: [cell for cell in self.first[name] if not is_gap(cell)] for name in self.first
        }
        self.lists = [name for name, cells in there.items() if cells and isinstance(cells[0], list)]
        self.numeric = [name for name in self.names if is_numeric(self.first.get(name, []))]

    def parts(
        self, names: Sequence[str], size: int, labelled: LabelTest | None = None
    ) -> Iterator[RowPart]:
        waiting: list[list[Any]] = []
        start = 0
        for line in self.rows():
            if len(line) != len(self.names):
                raise ValueError(
                    f"{self.path} must have {len(self.names)} cells in each row, "
                    f"got {len(line)} in row {start + len(waiting)}"
                )
            waiting.append(line)
            if len(waiting) == size:
                yield RowPart(waiting, self, range(start, start + size))
                start, waiting = start + size, []
        if waiting:
            yield RowPart(waiting, self, range(start, start + len(waiting)))

    def check_names(self) -> None:
        if len(set(self.names)) < len(self.names) or not self.names:
            raise ValueError(f"{self.path} must begin with unique column names, got duplicates")


class StoredTable(RowTable):
    """A table that is read as a whole: Excel or JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names, self.stored, self.notes = row_files.read_rows(path)
        self.count = len(self.stored)
        self.types: dict[str, Any] = {}  # of columns, as they are needed
        self.check_names()
        self.look()

    def rows(self) -> Iterator[list[Any]]:
        return iter(self.stored)

    def arrow_type(self, name: str) -> Any:
        if name not in self.types:
            arrow, place = libraries()[0], self.names.index(name)
            try:
                found = arrow.array([line[place] for line in self.stored]).type
            except (arrow.ArrowException, OverflowError, UnicodeError):  # cells of several types
                found = None
            self.types[name] = None if found is None or arrow.types.is_null(found) else found
        return self.types[name]


class CsvTable(RowTable):
    """A CSV file."""

    def __init__(self, path: Path, separator: str | None, encoding: str | None) -> None:
        self.path, self.version = path, current_version(path)
        self.encoding = checked_encoding(encoding) if encoding else sniffed_encoding(path)
        if self.encoding == "utf-8":
            self.encoding = "utf-8-sig"
        if separator:
            self.separator = checked_separator(separator)
        else:
            self.separator = sniffed_separator(path, self.encoding)
        self.look()

    def as_numbers(self, cells: list[Any]) -> list[Any]:
        # With commas as separators, "1,234" is more than a thousand.
        return cells if self.separator == "," else [plain_number(cell) for cell in cells]

    def rows(self) -> Iterator[list[Any]]:
        self.check_version()
        try:
            with (
                open_regular(self.path) as file,
                io.TextIOWrapper(file, self.encoding, newline="") as text,
            ):
                reader = csv_reader(text, self.separator)
                self.names = next(reader, [])
                self.check_names()
                yield from (line for line in reader if line)
            self.check_version()
        except (UnicodeError, csv.Error) as error:
            raise ValueError(
                f"{self.path} must be a table in {self.encoding.removesuffix('-sig')}, got: {error}"
            ) from error


def is_number(kind: Any) -> bool:
    return str(kind).startswith(NUMBERS)


def optional_text(cell: object) -> str | None:
    """A cell as it was before it was escaped as a formula."""
    return None if cell is None else encodable(plain_cell(str(cell)))
