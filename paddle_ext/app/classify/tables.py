"""The samples of tables: embeddings or texts, read in parts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...labels import label_text
from ...text import plain_cell, plural, without_controls
from .columns import as_number, is_gap, shortened
from .samples import Batch, Examples, concatenated, selected_from
from .table_files import ArrowPart, Part, Table

READ_AT_ONCE = 2048  # rows
LARGEST = float(np.finfo(np.float32).max)


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


class TableFeatures(NamedTuple):
    """How the features of a table are computed."""

    embedder: Callable[[list[str]], Tensor] | None  # of its texts
    names: list[str]  # otherwise its columns of numbers
    kind: str  # "texts" or "rows"


class TableSamples:
    """The samples of a table: all rows, whatever their labels, or those with or without one."""

    def __init__(
        self,
        table: Table,
        columns: Columns,
        features: TableFeatures,
        rows: Literal["all", "labelled", "unlabelled"],
    ) -> None:
        self.table, self.columns, self.embedder = table, columns, features.embedder
        self.features = [table.column(name, "features") for name in features.names]
        self.rows = rows
        self.width: int | None = None  # of a column of lists, once a row has been read
        self.gap_words: Counter[str] = Counter()  # words that counted as missing labels
        self.padded: Counter[str] = Counter()  # labels with white space around them
        others = {"text": columns.text, "name": columns.name, "truth": columns.truth}
        for argument, name in others.items():
            if name is not None:
                table.column(name, argument)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, copied: Sequence[str] | None = None) -> Iterator[Batch]:
        """Batches, with these columns, which are not decoded."""
        wanted = {*self.features, *self.columns.others(), *(copied or ())}
        names = [name for name in self.table.names if name in wanted]
        label = None if self.rows == "all" else self.columns.label
        labelled = (label, self.have_labels) if label and self.rows == "labelled" else None
        for part in self.table.parts(names, READ_AT_ONCE, labelled):
            own = part
            if label is not None:
                labels = [self.label(value) for value in part.cells(label)]
                mask = [bool(text) == (self.rows == "labelled") for text in labels]
                own = part if all(mask) else part.select(mask)
            if len(own.rows):
                yield self.batch(own, copied)

    def have_labels(self, values: Sequence[object]) -> bool:
        """Whether there is a label among these; if not, their words are counted here."""
        before = self.gap_words.copy()
        found = any(self.label(value) for value in values)
        if found:
            self.gap_words = before
        return found

    def label(self, value: object) -> str:
        found = label_text(cell_value(value))
        if not found and isinstance(value, str) and value.strip() not in ("", "-1"):
            self.gap_words[value.strip()] += 1
        if found and isinstance(value, str) and value != value.strip():
            self.padded[value] += 1
        return found

    def batch(self, part: Part, copied: Sequence[str] | None) -> Batch:
        columns = self.columns
        names = [str(row) for row in part.rows]
        if columns.name is not None:
            names = [without_controls(cell_text(cell)) for cell in part.cells(columns.name)]
        texts = [""] * len(names)
        if columns.text is not None:
            texts = [cell_text(cell) for cell in part.cells(columns.text)]
        truth = None
        if columns.truth is not None:
            truth = [label_text(cell_value(cell)) for cell in part.cells(columns.truth)]
        features = self.numbers(part) if self.embedder is None else self.embedder(texts)
        other = None if copied is None else part.columns(copied)
        return Batch(names, features, [without_controls(text) for text in texts], truth, other)

    def numbers(self, part: Part) -> Tensor:
        """[n, D] float32."""
        if isinstance(part, ArrowPart):
            matrix = part.numbers(self.features)
            if matrix is None and len(self.features) == 1:
                matrix = part.lists(self.features[0], self.width, self.table.path)
                self.width = None if matrix is None else matrix.shape[1]
            if matrix is not None:
                return matrix
        cells = [self.table.as_numbers(part.cells(name)) for name in self.features]
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
        odd = odd_cells(cells, self.features)
        row, name = next(iter(odd.items()), (0, self.features[0]))
        cell = cells[self.features.index(name)][row]
        got = "an empty cell" if is_gap(cell) else f"{shortened(cell)!r}"
        more = f", and in {plural(len(odd) - 1, 'row')} after it" if len(odd) > 1 else ""
        raise ValueError(
            f"{self.table.path} must have a finite number, or as many numbers as in the other "
            f"rows, in each feature, got {got} in row {part.rows[row]}, column {name!r}{more}: "
            "fill in such cells, or leave out their rows or columns"
        )


def labelled_table(samples: TableSamples, *, required: bool) -> Examples:
    """All rows with a label, which the samples have as their truth; may be none unless required."""
    batches = list(samples)
    if required and not batches:
        raise ValueError(
            f"{samples.table.path} must have rows with a label in column "
            f"{samples.columns.label!r}, got none"
        )
    found = concatenated(batches) if batches else Batch([], torch.empty(0, 0), [], [])
    shown = tuple(found.texts)
    if samples.columns.text is None:
        shown = tuple(f"row {name}" for name in found.names)
    path, names = str(samples.table.path), tuple(found.names)
    return Examples(found.features, found.truth or [], shown, path, names)


def cell_value(value: object) -> object:
    """The original cell, before it was escaped as a formula."""
    return plain_cell(value) if isinstance(value, str) else value


def cell_text(value: object) -> str:
    return "" if value is None else str(cell_value(value))


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


def odd_cells(cells: Sequence[Sequence[object]], names: Sequence[str]) -> dict[int, str]:
    """Rows with a cell that is not a finite single-precision number, and its column."""
    odd: dict[int, str] = {}
    for row in range(len(cells[0])):
        for column, name in zip(cells, names, strict=True):
            number = as_number(column[row])
            if number is None or not abs(number) <= LARGEST:
                odd.setdefault(row, name)
    return odd


# --- samples without a text, of which nothing can be said: neither used nor classified -----------


def embeds_texts(samples: Iterable[Batch]) -> bool:
    """Whether the features of these samples are those of their texts."""
    return isinstance(samples, TableSamples) and samples.embedder is not None


def has_text(texts: Iterable[str]) -> list[bool]:
    return [bool(text.strip()) for text in texts]


class WithText:
    """The samples that have a text; once all have been read, `others` are known."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches = batches
        self.places: list[int] = []  # of the others among all
        self.parts: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        self.places, self.parts, count = [], [], 0
        for batch in self.batches:
            texts = has_text(batch.texts)
            self.places += [count + row for row, yes in enumerate(texts) if not yes]
            count += len(texts)
            other = selected_from(batch, [not yes for yes in texts])
            self.parts += [] if other is None else [other]
            own = selected_from(batch, texts)
            if own is not None:
                yield own

    @property
    def others(self) -> Batch | None:
        """The samples without a text; None if there are none."""
        return concatenated(self.parts) if self.parts else None
