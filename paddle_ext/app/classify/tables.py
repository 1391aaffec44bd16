"""Tables with embeddings or texts: `.csv`, `.tsv` and `.parquet`, read in parts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ... import check
from ...research.files import readable
from ...research.libraries import library
from .samples import Batch, Examples
from .texts import TextEmbedder

SUFFIXES = (".csv", ".tsv", ".parquet")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target")
READ_AT_ONCE = 2048  # rows
SAMPLE_ROWS = 100  # to tell the columns of numbers of a CSV file

Rows = dict[str, list[Any]]


@dataclass(frozen=True)
class Columns:
    """Which columns of a table mean what.

    Parameters
    ----------
    features : str or None
        Columns of numbers: a list with commas, ``FIRST:LAST``, or the beginning of their names; a
        single column may hold lists of numbers. None: all columns of numbers.
    text : str or None
        A column of texts to embed, in place of numbers.
    label, name, truth : str or None
        The classes; what the samples are called (None: row numbers); the true classes.
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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix == ".parquet":
            read_schema = parquet().read_schema  # or say that the library is missing
            with readable(path, "a whole .parquet file"), path.open("rb") as file:
                schema = read_schema(file)
            self.names: list[str] = schema.names
            self.numeric = [one.name for one in schema if is_number(one.type)]
        else:
            first = next(self.parts([], SAMPLE_ROWS), {})
            self.numeric = [name for name in self.names if all_numbers(first.get(name, []))]

    def parts(self, names: Sequence[str], size: int = READ_AT_ONCE) -> Iterator[Rows]:
        """These columns of all rows, in parts; of a CSV file without names, all columns."""
        if self.path.suffix == ".parquet":
            with readable(self.path, "a whole .parquet file"):
                file = parquet().ParquetFile(self.path)
                for batch in file.iter_batches(size, columns=list(names)):
                    yield {name: batch.column(name).to_pylist() for name in names}
            return
        delimiter = "\t" if self.path.suffix == ".tsv" else ","
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                yield from self.lines(csv.reader(file, delimiter=delimiter), names, size)
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{self.path} must be a table in UTF-8, got: {error}") from error

    def lines(self, reader: Any, names: Sequence[str], size: int) -> Iterator[Rows]:
        self.names = next(reader, [])
        if len(set(self.names)) < len(self.names) or not self.names:
            raise ValueError(f"{self.path} must begin with different column names, got others")
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
                argument, f"must be a column of {self.path} ({shown}), got {name!r}"
            )
        return name

    def label_column(self, given: str | None) -> str:
        found = self.label_column_if_any(given, None)
        if found is not None:
            return found
        raise check.ArgumentValueError(
            "label",
            f"must be the column of classes of {self.path}, which has none called "
            f"{', '.join(LABEL_COLUMNS)}, got nothing",
        )

    def label_column_if_any(self, given: str | None, truth: str | None) -> str | None:
        """The one that is given, or one with a known name; the truth is none."""
        if given is not None:
            return self.column(given, "label")
        known = (name for name in LABEL_COLUMNS if name in self.names and name != truth)
        return next(known, None)

    def feature_columns(self, given: str | None, others: set[str]) -> list[str]:
        """The columns of numbers that `Columns.features` means."""
        if given is None:
            found = [name for name in self.numeric if name not in others]
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
            beginning = "" if given is None else f" that begin with {given!r}"
            raise check.ArgumentValueError(
                "features",
                f"must be columns of numbers of {self.path}, got none{beginning}",
                or_pass="text",
            )
        return found


class TableSamples:
    """The samples of a table, with their features.

    Parameters
    ----------
    table : Table
    columns : Columns
    feature_columns : sequence of str
        As the labelled table has them; not used with texts.
    embedder : TextEmbedder or None
        For texts.
    rows : {"all", "labelled", "unlabelled"}
        Which ones; for all of them the column of labels is not looked at.
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
        others = {"text": columns.text, "name": columns.name, "truth": columns.truth}
        for argument, name in others.items():
            if name is not None:
                table.column(name, argument)

    def __iter__(self) -> Iterator[Batch]:
        for batch, _ in self.with_labels():
            yield batch

    def with_labels(self) -> Iterator[tuple[Batch, list[str]]]:
        """Batches, and the labels of their samples, empty where there is a gap."""
        columns = self.columns
        wanted = {*self.features, *columns.others()} & set(self.table.names)
        start = 0
        for part in self.table.parts([name for name in self.table.names if name in wanted]):
            count = len(next(iter(part.values())))
            rows = list(range(count))
            labels = [""] * count
            if columns.label is not None and self.rows != "all":
                labels = [label_text(value) for value in part[columns.label]]
                rows = [row for row in rows if bool(labels[row]) == (self.rows == "labelled")]
            if rows:
                yield self.batch(part, rows, start), [labels[row] for row in rows]
            start += count

    def batch(self, part: Rows, rows: list[int], start: int) -> Batch:
        columns = self.columns
        names = [str(start + row) for row in rows]
        if columns.name is not None:
            names = [str(part[columns.name][row]) for row in rows]
        texts = [""] * len(rows)
        if columns.text is not None:
            texts = [cell_text(part[columns.text][row]) for row in rows]
        truth = None
        if columns.truth is not None:
            truth = [label_text(part[columns.truth][row]) for row in rows]
        if self.embedder is not None:
            features = self.embedder(texts)
        else:
            features = self.numbers(part, rows, start)
        return Batch(names, features, texts, truth)

    def numbers(self, part: Rows, rows: list[int], start: int) -> Tensor:
        """[n, D] float32."""
        cells = [[part[name][row] for row in rows] for name in self.features]
        try:
            if len(self.features) == 1 and all_lists(cells[0]):
                return torch.from_numpy(np.array([as_list(cell) for cell in cells[0]], np.float32))
            return torch.from_numpy(np.array(cells, np.float32).T.copy())
        except (ValueError, TypeError):
            row, name = first_non_number(cells, self.features)
            raise ValueError(
                f"{self.table.path} must have a number, or as many numbers as in the other rows, "
                f"in each feature, got another cell in row {start + rows[row]}, column {name!r}"
            ) from None


def labelled_table(samples: TableSamples, *, required: bool) -> Examples:
    """All rows that have a label; if they are not required, there may be none."""
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


def cell_text(value: object) -> str:
    return "" if value is None else str(value)


def label_text(value: object) -> str:
    """A label; what pandas and others write for a gap is one, and 3.0 is the class 3."""
    text = cell_text(value).strip()
    if text.lower() in ("", "nan", "none", "null", "<na>"):
        return ""
    return text.removesuffix(".0") if isinstance(value, float) else text


def all_numbers(values: Sequence[str]) -> bool:
    try:
        return len(values) > 0 and bool(np.array(values, np.float32).size)
    except ValueError:
        return False


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


def first_non_number(cells: Sequence[Sequence[object]], names: Sequence[str]) -> tuple[int, str]:
    """Row and column of the first cell that is no number."""
    for row in range(len(cells[0])):
        for column, name in zip(cells, names, strict=True):
            try:
                float(column[row])  # type: ignore[arg-type]
            except (ValueError, TypeError):
                return row, name
    return 0, names[0]


def is_number(kind: Any) -> bool:
    text = str(kind)
    return text.startswith(("float", "double", "halffloat", "int", "uint", "decimal"))


def parquet() -> Any:
    return library("pyarrow.parquet", "a .parquet file", "pyarrow")
