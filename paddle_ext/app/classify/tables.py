"""Tables with embeddings or texts: `.csv`, `.tsv` and `.parquet`, read in parts."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ... import check
from ...research.data.labels import label_text
from ...research.files import open_regular, readable
from ...research.libraries import library
from ...research.printable import plain_cell
from .columns import Chosen, as_number, choose, is_gap, is_numeric, plain_number
from .samples import Batch, Examples
from .text_files import (
    checked_encoding,
    checked_separator,
    sniffed_encoding,
    sniffed_separator,
)
from .texts import TextEmbedder

SUFFIXES = (".csv", ".tsv", ".parquet")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target")
EMBEDDING = "embedding"  # a column of lists used by default
LISTS = ("list<", "large_list<", "fixed_size_list<")
READ_AT_ONCE = 2048  # rows
LARGEST = float(np.finfo(np.float32).max)
SAMPLE_ROWS = 100  # to detect the numeric columns of a CSV file

Rows = dict[str, list[Any]]


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a table.

    Parameters
    ----------
    features : str or None
        Numeric columns: names separated by commas, ``FIRST:LAST``, or a common prefix; a single
        column may hold lists of numbers. None: all numeric columns.
    text : str or None
        A column of texts to embed, instead of numbers.
    label, name, truth : str or None
        The classes; the names of the samples (None: row numbers); the true classes.
    """

    features: str | None = None
    text: str | None = None
    label: str | None = None
    name: str | None = None
    truth: str | None = None

    def others(self) -> set[str]:
        return {one for one in (self.text, self.label, self.name, self.truth) if one is not None}


class Table:
    """A table file.

    Parameters
    ----------
    path : Path
    separator, encoding : str or None
        Of a CSV file; None: detected from its beginning.
    """

    def __init__(
        self, path: Path, separator: str | None = None, encoding: str | None = None
    ) -> None:
        self.path = path
        self.decimal_commas = False
        if path.suffix == ".parquet":
            read_schema = parquet().read_schema  # raises an error if the library is missing
            with readable(path, "a complete .parquet file"), open_regular(path) as file:
                schema = read_schema(file)
            self.names: list[str] = schema.names
            self.numeric = [one.name for one in schema if is_number(one.type)]
            self.lists = [one.name for one in schema if str(one.type).startswith(LISTS)]
            self.first = next(self.parts(self.numeric, SAMPLE_ROWS), {})
        else:
            self.encoding = checked_encoding(encoding) if encoding else sniffed_encoding(path)
            if self.encoding == "utf-8":
                self.encoding = "utf-8-sig"
            if separator:
                self.separator = checked_separator(separator)
            else:
                self.separator = sniffed_separator(path, self.encoding)
            self.decimal_commas = self.separator != ","
            first = next(self.parts([], SAMPLE_ROWS), {})
            self.first = {name: self.as_numbers(cells) for name, cells in first.items()}
            self.lists = []
            self.numeric = [name for name in self.names if is_numeric(self.first.get(name, []))]

    def as_numbers(self, cells: list[Any]) -> list[Any]:
        """Cells of a column, with decimal points."""
        return [plain_number(cell) for cell in cells] if self.decimal_commas else cells

    def parts(self, names: Sequence[str], size: int = READ_AT_ONCE) -> Iterator[Rows]:
        """These columns of all rows, in parts; all columns of a CSV file if none are named."""
        if self.path.suffix == ".parquet":
            with readable(self.path, "a complete .parquet file"), open_regular(self.path) as opened:
                file = parquet().ParquetFile(opened)
                for batch in file.iter_batches(size, columns=list(names)):
                    yield {name: batch.column(name).to_pylist() for name in names}
            return
        try:
            with (
                open_regular(self.path) as opened,
                io.TextIOWrapper(opened, self.encoding, newline="") as text,
            ):
                yield from self.lines(csv.reader(text, delimiter=self.separator), names, size)
        except (UnicodeError, csv.Error) as error:
            raise ValueError(
                f"{self.path} must be a table in {self.encoding.removesuffix('-sig')}, got: {error}"
            ) from error

    def lines(self, reader: Any, names: Sequence[str], size: int) -> Iterator[Rows]:
        self.names = next(reader, [])
        if len(set(self.names)) < len(self.names) or not self.names:
            raise ValueError(f"{self.path} must begin with unique column names, got duplicates")
        places = {name: self.names.index(name) for name in names or self.names}
        waiting: list[list[str]] = []
        number = 0
        for line in reader:
            if not line:
                continue
            if len(line) != len(self.names):
                raise ValueError(
                    f"{self.path} must have {len(self.names)} cells in each row, "
                    f"got {len(line)} in row {number}"
                )
            number += 1
            waiting.append(line)
            if len(waiting) == size:
                yield {name: [row[place] for row in waiting] for name, place in places.items()}
                waiting = []
        if waiting:
            yield {name: [row[place] for row in waiting] for name, place in places.items()}

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
        """The given column, or one with a known name other than the truth."""
        if given is not None:
            return self.column(given, "label")
        known = (name for name in LABEL_COLUMNS if name in self.names and name != truth)
        return next(known, None)

    def feature_columns(self, given: str | None, others: set[str]) -> Chosen:
        """The numeric columns selected by `Columns.features`."""
        left_out: dict[str, str] = {}
        warnings: list[str] = []
        if given is None and EMBEDDING in self.lists and EMBEDDING not in others:
            given = EMBEDDING
        if given is None:
            numeric = [name for name in self.numeric if name not in others]
            found, left_out, warnings = choose(self.first, numeric)
            known = {*numeric, *others}
            left_out |= {
                name: why_no_feature(self.first.get(name, []))
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
        if not found:
            beginning = "" if given is None else f" starting with {given!r}"
            raise check.ArgumentValueError(
                "features",
                f"must be numeric columns of {self.path}, got none{beginning}",
                or_pass="text",
            )
        return Chosen(found, left_out, warnings)


class TableSamples:
    """The samples of a table, with their features.

    Parameters
    ----------
    table : Table
    columns : Columns
    feature_columns : sequence of str
        Those of the labelled table; not used with texts.
    embedder : TextEmbedder or None
        For texts.
    rows : {"all", "labelled", "unlabelled"}
        Which rows; for all of them the column of labels is ignored.
    """

    def __init__(
        self,
        table: Table,
        columns: Columns,
        feature_columns: Sequence[str],
        embedder: TextEmbedder | None,
        rows: Literal["all", "labelled", "unlabelled"],
    ) -> None:
        self.table, self.columns, self.embedder, self.rows = table, columns, embedder, rows
        self.features = [table.column(name, "features") for name in feature_columns]
        self.gap_words: Counter[str] = Counter()  # counted as missing labels
        others = {"text": columns.text, "name": columns.name, "truth": columns.truth}
        for argument, name in others.items():
            if name is not None:
                table.column(name, argument)

    def __iter__(self) -> Iterator[Batch]:
        for batch, _ in self.with_labels():
            yield batch

    def with_labels(self) -> Iterator[tuple[Batch, list[str]]]:
        """Batches, and the labels of their samples, empty where missing."""
        columns = self.columns
        wanted = {*self.features, *columns.others()} & set(self.table.names)
        start = 0
        for part in self.table.parts([name for name in self.table.names if name in wanted]):
            count = len(next(iter(part.values())))
            rows = list(range(count))
            labels = [""] * count
            if columns.label is not None and self.rows != "all":
                labels = [self.label(value) for value in part[columns.label]]
                rows = [row for row in rows if bool(labels[row]) == (self.rows == "labelled")]
            if rows:
                yield self.batch(part, rows, start), [labels[row] for row in rows]
            start += count

    def label(self, value: object) -> str:
        found = label_text(cell_value(value))
        if not found and isinstance(value, str) and value.strip() not in ("", "-1"):
            self.gap_words[value.strip()] += 1
        return found

    def batch(self, part: Rows, rows: list[int], start: int) -> Batch:
        columns = self.columns
        names = [str(start + row) for row in rows]
        if columns.name is not None:
            names = [cell_text(part[columns.name][row]) for row in rows]
        texts = [""] * len(rows)
        if columns.text is not None:
            texts = [cell_text(part[columns.text][row]) for row in rows]
        truth = None
        if columns.truth is not None:
            truth = [label_text(cell_value(part[columns.truth][row])) for row in rows]
        if self.embedder is not None:
            features = self.embedder(texts)
        else:
            features = self.numbers(part, rows, start)
        return Batch(names, features, texts, truth)

    def numbers(self, part: Rows, rows: list[int], start: int) -> Tensor:
        """[n, D] float32."""
        columns = (part[name] for name in self.features)
        cells = [self.table.as_numbers([column[row] for row in rows]) for column in columns]
        try:
            with np.errstate(over="ignore"):  # overflow is reported below
                if len(self.features) == 1 and all_lists(cells[0]):
                    found = np.array([as_list(cell) for cell in cells[0]], np.float32)
                else:
                    found = np.array(cells, np.float32).T.copy()
            if found.ndim == 2 and np.isfinite(found).all():
                return torch.from_numpy(found)
        except (ValueError, TypeError, OverflowError, RecursionError):
            pass  # reported below, with its position
        row, name = first_odd_cell(cells, self.features)
        cell = cells[self.features.index(name)][row]
        got = "an empty cell" if is_gap(cell) else f"{shortened(cell)!r}"
        raise ValueError(
            f"{self.table.path} must have a finite number, or as many numbers as in the other "
            f"rows, in each feature, got {got} in row {start + rows[row]}, column {name!r}"
        )


def labelled_table(samples: TableSamples, *, required: bool) -> Examples:
    """All rows with a label; there may be none unless required."""
    features, texts, values, names = [], [], [], []
    for batch, labels in samples.with_labels():
        features.append(batch.features)
        texts += batch.texts
        names += batch.names
        values += labels
    if required and not values:
        raise ValueError(
            f"{samples.table.path} must have rows with a label in column "
            f"{samples.columns.label!r}, got none"
        )
    shown = tuple(text or f"row {name}" for text, name in zip(texts, names, strict=True))
    rows = torch.cat(features) if features else torch.empty(0, 0)
    return Examples(rows, values, shown, str(samples.table.path))


def cell_value(value: object) -> object:
    """The original cell, before it was escaped as a formula."""
    return plain_cell(value) if isinstance(value, str) else value


def cell_text(value: object) -> str:
    return "" if value is None else str(cell_value(value))


def why_no_feature(cells: Sequence[object]) -> str:
    """Why a column is not numeric."""
    if all(is_gap(cell) for cell in cells):
        return "it is empty"
    odd = next((cell for cell in cells if not is_gap(cell) and as_number(cell) is None), "")
    return f"it has {shortened(odd)!r}, which is not a number"


def all_lists(values: Sequence[object]) -> bool:
    return all(isinstance(value, list) or "[" in str(value)[:2] for value in values)


def as_list(value: object) -> list[float]:
    if isinstance(value, list):
        return value
    text = str(value).strip()
    if "," in text:
        found: list[float] = json.loads(text)
        return found
    return [float(word) for word in text.strip("[]").split()]


def first_odd_cell(cells: Sequence[Sequence[object]], names: Sequence[str]) -> tuple[int, str]:
    """Row and column of the first cell that is not a finite single-precision number."""
    for row in range(len(cells[0])):
        for column, name in zip(cells, names, strict=True):
            number = as_number(column[row])
            if number is None or not abs(number) <= LARGEST:
                return row, name
    return 0, names[0]


def shortened(cell: object) -> str:
    text = str(cell)
    return text if len(text) <= 40 else text[:39] + "…"


def is_number(kind: Any) -> bool:
    text = str(kind)
    return text.startswith(("float", "double", "halffloat", "int", "uint", "decimal"))


def parquet() -> Any:
    return library("pyarrow.parquet", "a .parquet file", "pyarrow")
