"""Tables as batches of Arrow: which columns are features, and the samples."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import check, parquet
from ...feature_cache import digest, written_digest
from ...files import current_version, require_unchanged
from ...integrations.columns import EMBEDDING_COLUMNS, TableEncoder
from ...labels import label_text, missing_word
from ...parquet import pyarrow
from ...text import plain_cell, plural, several, without_controls
from ..settings import Columns
from .columns import (
    DECIMAL_COMMA,
    LARGEST,
    all_lists,
    as_list,
    as_number,
    cell_text,
    cell_value,
    gap_word,
    has_decimal_comma,
    is_empty,
    is_gap,
    is_number,
    looks_like_category,
    looks_like_text,
    shortened,
    unclear_comma,
    unclear_point,
    why_an_id,
)
from .no_numbers import either_number, why_no_feature
from .samples import Batch, concatenated, no_samples, repeated

SUFFIXES = (".csv", ".tsv", ".parquet", ".xlsx", ".jsonl", ".json")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target")
EMBEDDING = "embedding"  # a column of lists used by default
FEW_FEATURES = 2  # with no more numeric columns, a column of texts is probably what to classify
ROWS_LOOKED_AT = 100  # to find the numeric columns
READ_AT_ONCE = 2048  # rows
MOST_NAMED = 3  # columns in an error


class Part(NamedTuple):
    batch: Any  # pyarrow.RecordBatch
    rows: Sequence[int]  # their numbers

    def cells(self, name: str) -> list[Any]:
        return parquet.python_values(self.batch.column(name))


@dataclass
class FeatureColumns:
    """The columns chosen as features, and why others are left out."""

    names: list[str]
    left_out: dict[str, str]  # reason for each
    table: bool = False  # whether they may have gaps and categories
    categories: tuple[str, ...] = ()
    labelled: TableSamples | None = None  # whose means fill gaps, and whose categories are known
    to_fit: npt.NDArray[Any] | None = None  # cells [n, D] of a saved model, instead of theirs

    @cached_property
    def encoder(self) -> TableEncoder:
        """Numbers of cells with gaps or categories, made when it is needed."""
        cells = self.to_fit
        if cells is None:
            assert self.labelled is not None
            parts = self.labelled.parts(self.names)
            cells = np.concatenate([self.labelled.cells(part) for part in parts])
        places = [self.names.index(name) for name in self.categories]
        return TableEncoder(cells, places)

    @property
    def encodes(self) -> bool:
        """Whether there are categories, or gaps so far."""
        return "encoder" in vars(self)

    def stored(self, features: Tensor) -> dict[str, Any]:
        """Arrays of texts for a model with labelled rows [S, D]; none if it is not of columns."""
        cells = features.double().mean(0, keepdim=True).numpy()  # for gaps of further rows
        if self.encodes or self.categories:
            cells = self.encoder.equivalent_cells()
        if cells.shape[1] != len(self.names):  # a column of lists
            return {}
        texts = [["" if cell is None else str(cell) for cell in row] for row in cells]
        columns = {"columns": self.names, "categories": self.categories, "cells": texts}
        return {name: np.array(value, dtype=str) for name, value in columns.items()}

    @classmethod
    def loaded(cls, contents: dict[str, Any]) -> FeatureColumns | None:
        """The columns that `stored` wrote, if any; raises ValueError for other contents."""
        if "columns" not in contents:
            return None
        names, categories = (contents[name].tolist() for name in ("columns", "categories"))
        texts, cells = contents["cells"], contents["cells"].astype(object)
        if texts.dtype.kind != "U" or not len(texts) or len({*names}) < len(names):
            raise ValueError
        for name, column in zip(names, cells.T, strict=True):
            read = (lambda text: text or None) if name in categories else float
            column[:] = [*map(read, column)]
        return cls(names, {}, True, tuple(categories), to_fit=cells)


# --- files --------------------------------------------------------------------------------------


class Table(ABC):
    """An open table file; numbers may be texts, unless the format has types."""

    names: list[str]  # of all columns
    count: int | None = None  # number of rows, if the file says it
    notes: Sequence[str] = ()  # for the user
    escapes_formulas = False  # by an apostrophe
    decimal_commas = False  # whether they may occur
    has_decimal_commas = False  # whether they do, in the first rows

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, current_version(path)
        # Columns of numbers with a word for a gap: the row of the first one, and the word.
        self.gap_words: dict[str, tuple[int, str]] = {}

    @abstractmethod
    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        """These columns as record batches."""

    def look(self) -> None:
        """Find the columns of numbers and of lists, by the first rows."""
        if not self.names or repeated(self.names):
            twice = several([*map(repr, repeated(self.names))], MOST_NAMED)
            got = f"{twice} more than once" if twice else "none"
            raise ValueError(f"{self.path} must begin with unique column names, got {got}")
        first = next(self.parts(self.names, size=ROWS_LOOKED_AT), None)
        self.first = {name: [] if first is None else first.cells(name) for name in self.names}
        self.has_decimal_commas = self.decimal_commas and any(
            has_decimal_comma(cells) for cells in self.first.values()
        )
        kinds = {} if first is None else {one.name: one.type for one in first.batch.schema}
        self.lists = [name for name, kind in kinds.items() if parquet.is_lists(kind)]
        self.numeric = [name for name in self.names if self.is_numeric(name, kinds.get(name))]

    def is_numeric(self, name: str, kind: Any) -> bool:
        there = [cell for cell in self.as_numbers(self.first[name]) if not is_gap(cell)]
        unclear = self.decimal_commas and self.unclear(name)
        return bool(there) and not unclear and all(as_number(cell) is not None for cell in there)

    def unclear(self, name: str) -> str:
        """A cell of the first rows whose comma or point may separate thousands; "" for none."""
        cells = self.first[name]
        return unclear_comma(cells) or (unclear_point(cells) if self.has_decimal_commas else "")

    def parts(self, names: Sequence[str], size: int = READ_AT_ONCE) -> Iterator[Part]:
        """These columns of all rows."""
        require_unchanged(self.path, self.version)
        start = 0
        for batch in self.batches(names):
            for first in range(0, len(batch), size):
                part = batch.slice(first, size)
                yield Part(part, range(start, start + len(part)))
                start += len(part)
        require_unchanged(self.path, self.version)

    def as_numbers(self, cells: list[Any]) -> list[Any]:
        """Cells of a column, with decimal points instead of commas."""
        if not self.decimal_commas:
            return cells
        return [re.sub(DECIMAL_COMMA, r"\1.\2", x) if isinstance(x, str) else x for x in cells]

    def column(self, name: str, argument: str) -> str:
        parquet.check_column(argument, name, self.names, self.path)
        return name

    def label_column(
        self, given: str | None, truth: str | None = None, *, required: bool
    ) -> str | None:
        """The given column, or one with a known name, in any case, other than the truth."""
        if given is not None:
            return self.column(given, "label")
        names = {name.lower(): name for name in self.names[::-1] if name != truth}
        name = next((names[name] for name in LABEL_COLUMNS if name in names), None)
        if name is None and required:
            besides = "" if truth is None else f" besides --truth {truth}"
            raise check.ArgumentValueError(
                "label",
                f"must be a column of {self.path}, which has none called "
                f"{', '.join(LABEL_COLUMNS)}{besides}, got nothing",
            )
        return name

    def feature_columns(self, given: str | None, others: set[str], rows: str) -> FeatureColumns:
        """The columns selected by `Columns.features`: of numbers and, in a table, of categories."""
        left_out: dict[str, str] = {}
        if given is None and EMBEDDING in self.lists and EMBEDDING not in others:
            given = EMBEDDING
        if given is None:
            numeric = [name for name in self.numeric if name not in others]
            ids = {name: why_an_id(name, self.as_numbers(self.first[name])) for name in numeric}
            left_out = {name: why for name, why in ids.items() if why and len(numeric) > 1}
            names = [name for name in numeric if name not in left_out]
            lists, unused = {*self.lists} - others, {*self.names} - {*numeric} - others
            for name in self.names:
                if name in lists:
                    left_out[name] = "it has lists"
                elif name in unused:
                    left_out[name] = why_no_feature(self.first[name], self.unclear(name))
        elif given in self.names:
            names = [given]
        elif "," in given:
            names = [self.column(name.strip(), "features") for name in given.split(",")]
        elif ":" in given:
            ends = [self.column(name, "features") for name in given.split(":", 1)]
            first, last = (self.names.index(name) for name in ends)
            names = [name for name in self.names[first : last + 1] if name not in others]
        else:
            names = [name for name in self.names if name.startswith(given) and name not in others]
        if given is None and len(names) <= FEW_FEATURES:
            self.check_text(others)
        table = rows == "table" or (rows == "auto" and len(names) < EMBEDDING_COLUMNS)
        categories = set[str]()
        if table:
            may_be = {*self.names} if given is None else {*names}
            no_numbers = may_be - {*self.numeric, *self.lists} - others
            categories = {
                name
                for name in no_numbers
                if looks_like_category(self.first[name]) and not self.unclear(name)
            }
            chosen = {*names, *categories}
            names = [name for name in self.names if name in chosen]
            left_out = {name: why for name, why in left_out.items() if name not in categories}
        if not names:
            beginning = "" if given is None else f" starting with {given!r}"
            raise check.ArgumentValueError(
                "features",
                f"must be numeric columns of {self.path}, got none{beginning}",
                or_pass="text",
            )
        ordered = tuple(name for name in names if name in categories)
        return FeatureColumns(names, left_out, table, ordered)

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


# --- samples ------------------------------------------------------------------------------------


class TableSamples:
    """The samples of a table: all rows, or those with or without a label; `chosen` None: texts."""

    def __init__(
        self,
        table: Table,
        columns: Columns,
        chosen: FeatureColumns | None,
        rows: Literal["all", "labelled", "unlabelled"],
    ) -> None:
        self.table, self.columns, self.chosen, self.rows = table, columns, chosen, rows
        self.features = [] if chosen is None else list(chosen.names)
        there = {*table.names}
        for feature in self.features:
            if feature not in there:
                table.column(feature, "features")  # raises
        self.copied: list[str] | None = None  # columns to copy to the output
        self.width: int | None = None  # of a column of lists, once a row has been read
        self.gap_words: Counter[str] = Counter()  # words that counted as missing labels
        self.padded: Counter[str] = Counter()  # labels with white space around them
        self.quoted: Counter[str] = Counter()  # labels with a quote that protects a formula
        others = {"text": columns.text, "name": columns.name, "truth": columns.truth}
        for argument, name in others.items():
            if name is not None:
                table.column(name, argument)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, self.parts([*self.features, *(self.copied or ())]))

    def parts(self, columns: Sequence[str]) -> Iterator[Part]:
        """The rows of these samples, with these columns and those that have a role."""
        wanted = {*columns, *self.columns.others()}
        names = [name for name in self.table.names if name in wanted]
        label = None if self.rows == "all" else self.columns.label
        self.gap_words.clear()  # every pass counts them
        self.padded.clear()
        self.quoted.clear()
        for part in self.table.parts(names or self.table.names[:1]):
            own = part
            if label is not None:
                labels = [self.label(value) for value in part.cells(label)]
                mask = [bool(text) == (self.rows == "labelled") for text in labels]
                if not all(mask):
                    wanted_rows = list(compress(part.rows, mask))
                    own = Part(part.batch.filter(pyarrow().array(mask)), wanted_rows)
            if len(own.rows):
                yield own

    def labelled(self, *, required: bool) -> Batch:
        """All rows with a label, which is their truth; may be none unless required."""
        batches = list(self)
        if required and not batches:
            raise ValueError(
                f"{self.table.path} must have rows with a label in column "
                f"{self.columns.label!r}, got none"
            )
        whole = concatenated(batches) if batches else no_samples()
        if self.columns.text is None:
            return whole._replace(texts=[f"row {name}" for name in whole.names])
        return whole

    def row_numbers(self) -> list[int]:
        return [row for part in self.parts([]) for row in part.rows]

    def label(self, value: object) -> str:
        text = label_text(cell_value(value))
        if text and isinstance(value, str) and plain_cell(value) != value:
            self.quoted[value] += 1
        if word := missing_word(value):
            self.gap_words[word] += 1
        if text and isinstance(value, str) and value != value.strip():
            self.padded[value] += 1
        return text

    def batch(self, part: Part) -> Batch:
        columns = self.columns
        names, texts, truth = [str(row) for row in part.rows], [""] * len(part.rows), None
        if columns.name is not None:
            names = [without_controls(cell_text(cell)) for cell in part.cells(columns.name)]
        if columns.text is not None:
            texts = [cell_text(cell) for cell in part.cells(columns.text)]
            if self.features:  # otherwise an encoder reads them as they are
                texts = [without_controls(text) for text in texts]
        if columns.truth is not None:
            truth = [label_text(cell_value(cell)) for cell in part.cells(columns.truth)]
        features = self.numbers(part) if self.features else torch.empty(len(names), 0)
        contents = None
        if self.copied is None and self.chosen is not None and self.chosen.encodes:
            contents = list(map(digest_of_cells, self.cells(part)))
        return Batch(names, features, texts, truth, self.copies(part), contents)

    def copies(self, part: Part) -> Any:
        """The columns to copy as a pyarrow.Table; of the row numbers if there is none."""
        arrow = pyarrow()
        if self.copied is None:
            return None
        if not self.copied:
            return arrow.table({"row": arrow.array(np.array(part.rows))})
        own = arrow.Table.from_batches([part.batch]).select(self.copied)
        if self.table.escapes_formulas:  # they are escaped again where it matters
            texts = ([plain_cell(cell) for cell in part.cells(name)] for name in self.copied)
            own = arrow.table([arrow.array(cells, arrow.string()) for cells in texts], self.copied)
        return own

    def numbers(self, part: Part) -> Tensor:
        """[n, D] float32."""
        chosen = self.chosen
        assert chosen is not None
        columns = [part.batch.column(name) for name in self.features]
        kind = getattr(columns[0].type, "storage_type", columns[0].type)
        lists = len(columns) == 1 and parquet.is_lists(kind)
        if lists and is_number(kind.value_type, decimals=False):  # lists of decimals hold objects
            self.width = parquet.width_of(columns[0]) if self.width is None else self.width
            where = f"{self.table.path}, column {self.features[0]!r},"
            rows = parquet.vectors(columns[0], max(self.width, 1), where, part.rows)
            return torch.from_numpy(np.array(rows, np.float32))
        chosen.labelled = chosen.labelled or self
        self.check_commas(part)
        if not chosen.categories:
            with np.errstate(over="ignore"):  # overflow is reported below
                arrays = [self.as_floats(column) for column in columns]
                if all(array is not None for array in arrays):
                    matrix = np.stack(arrays, 1)  # type: ignore[arg-type]
                    if np.isfinite(matrix).all():
                        return torch.from_numpy(matrix)
        if len(columns) == 1 and all_lists(part.cells(self.features[0])):
            return self.numbers_of_lists(part)
        table = chosen.to_fit is not None or (
            chosen.table and {*self.table.numeric, *chosen.categories} >= {*self.features}
        )
        cells = self.cells(part, gaps=table)
        if table:
            cells = chosen.encoder(cells)
        return torch.from_numpy(cells.astype(np.float32))

    def cells(self, part: Part, *, gaps: bool = True) -> npt.NDArray[Any]:
        """Cells [n, D] of a table: numbers, NaN for gaps, and texts, None for gaps."""
        assert self.chosen is not None
        cells = np.empty((len(part.rows), len(self.features)), dtype=object)
        odd: dict[int, tuple[str, object]] = {}  # column and cell of rows, the first of each
        for place, name in enumerate(self.features):
            column = part.cells(name)
            if name in self.chosen.categories:
                texts = [None if is_empty(cell) else cell_text(cell).strip() for cell in column]
                cells[:, place] = texts
                continue
            column = self.table.as_numbers(column)
            numbers = [np.nan if is_gap(cell) else as_number(cell) for cell in column]
            for row, (cell, number) in enumerate(zip(column, numbers, strict=True)):
                missing = gaps and is_gap(cell)
                if missing and (word := gap_word(cell)):
                    self.table.gap_words.setdefault(name, (part.rows[row], word))
                if number is None or not (missing or abs(number) <= LARGEST):
                    odd.setdefault(row, (name, cell))
            cells[:, place] = numbers
        if odd:
            raise self.error(odd, part)
        return cells

    def check_commas(self, part: Part) -> None:
        """Raise an error for commas or points that may separate thousands, in any row."""
        assert self.chosen is not None
        assert self.chosen.labelled is not None
        tables = self.chosen.labelled.table, self.table
        contains = pyarrow("pyarrow.compute").match_substring
        signs = {",": unclear_comma} if self.table.decimal_commas else {}
        if any(table.has_decimal_commas for table in tables) and signs:
            signs["."] = unclear_point
        categories = {*self.chosen.categories}
        numbers = [name for name in self.features if name not in categories]
        for name, (sign, found) in product(numbers, signs.items()):
            if not contains(part.batch[name], sign).true_count:
                continue
            seen = chain(*(table.first[name] for table in tables), part.cells(name))
            if unclear := found(seen):
                raise ValueError(
                    f"{self.table.path} must have numbers without separators of thousands in "
                    f"column {name!r}, got {either_number(unclear)}"
                )

    def as_floats(self, column: Any) -> npt.NDArray[np.float32] | None:
        """A column of numbers or of texts that are numbers; None if a cell is not a number."""
        arrow, compute = pyarrow(), pyarrow("pyarrow.compute")
        if column.null_count:
            return None
        if is_number(column.type):
            return np.array(column.to_numpy(zero_copy_only=False), np.float32)
        try:
            if arrow.types.is_string(column.type):
                column = compute.utf8_trim_whitespace(column)
            if self.table.decimal_commas:
                column = compute.replace_substring_regex(column, DECIMAL_COMMA, r"\1.\2")
            floats = compute.cast(column, arrow.float64()).to_numpy(zero_copy_only=False)
        except (arrow.ArrowException, TypeError):
            return None
        return np.array(floats, np.float32)

    def numbers_of_lists(self, part: Part) -> Tensor:
        """The same, of lists written as texts; an error names the cell."""
        cells = part.cells(self.features[0])
        try:
            with np.errstate(over="ignore"):
                matrix = np.array([as_list(cell) for cell in cells], np.float32)
            if matrix.ndim == 2 and np.isfinite(matrix).all():
                return torch.from_numpy(matrix)
        except (ValueError, TypeError, OverflowError, RecursionError):
            pass  # reported below, with its position
        raise self.error({row: (self.features[0], x) for row, x in enumerate(cells)}, part)

    def error(self, odd: dict[int, tuple[str, object]], part: Part) -> ValueError:
        """The error that names the first odd cell, of the column and cell of each odd row."""
        row = min(odd)
        name, cell = odd[row]
        got = "an empty cell" if is_empty(cell) else f"{shortened(cell)!r}"
        more = f", and in {plural(len(odd) - 1, 'row')} after it" if len(odd) > 1 else ""
        embeddings = self.chosen is not None and not self.chosen.table
        hint = ", or add --rows table" if is_gap(cell) and embeddings else ""
        return ValueError(
            f"{self.table.path} must have a finite number, or as many numbers as in the other "
            f"rows, in each feature, got {got} in row {part.rows[row]}, column {name!r}{more}: "
            f"fill in such cells, or leave out their rows or columns{hint}"
        )


def digest_of_cells(cells: npt.NDArray[Any]) -> str:
    """The digest of a row: of its features if all are numbers, else of the cells themselves."""
    numbers = [cell for cell in cells if isinstance(cell, float)]
    others = [cell for cell in cells if not isinstance(cell, float)]
    content = np.array(numbers, np.float32).tobytes() + repr(others).encode() * bool(others)
    return written_digest(digest(content))
