"""The user's own table again: all of its columns and rows, with labels where there were none.

The label column is filled in, and the columns of the result come after those of the user. What was
found out about the samples that were classified is a table of Arrow with the columns of `FOUND`, in
the order of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ...parquet import pyarrow, python_values
from ..answers import Answers
from ..read.columns import as_number, is_gap
from ..read.formats import column_of
from ..read.table_files import CsvTable
from ..read.tables import Part, Table, TableSamples

if TYPE_CHECKING:
    from ..corrections import Corrected
    from ..read.opening import Source

DATA, ROW, LABEL, SOURCE, PREDICTION = "data", "row", "label", "source", "prediction"
FOUR_DIGITS = ("probability", "doubt")
FOUND = (LABEL, SOURCE, PREDICTION, *FOUR_DIGITS)
GIVEN, CORRECTED, PREDICTED = "given", "corrected", "predicted"  # where a label is from


# --- columns --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Titles:
    """What the columns of the output are called."""

    label: str  # the column of labels: that of the user's table, if it has one
    results: dict[str, str]  # our other columns, which give way to those of the user
    moved: str | None = None  # the column of true classes, if the labels take its title

    @property
    def rounded(self) -> list[str]:
        return [self.results[name] for name in FOUR_DIGITS]

    def of_user(self, name: str, samples: TableSamples) -> str:
        """The title of a column of the table of these samples."""
        true = samples.rows != "labelled" and name == self.label == samples.columns.truth
        return self.moved if true and self.moved is not None else name


def titles_of(source: Source, *more: str) -> Titles:
    """Titles for the tables of a source; `more` are further columns of the result.

    A column of the user keeps its title, and one of ours with that title becomes "doubt (2)".
    """
    tables = [one.table for one in (source.rows, source.samples) if isinstance(one, TableSamples)]
    taken = {name for table in tables for name in table.names}
    asked = source.settings.columns.label  # of a model, or of names, there are no labelled rows
    label = asked if source.rows is None else source.rows.columns.label
    own, moved = label or LABEL, None
    if own == source.settings.columns.truth:
        moved = free_title("truth", taken)
    elif label is None:
        own = free_title(LABEL, taken)
    taken |= {own, moved or own}
    results: dict[str, str] = {}
    for name in (*more, ROW, *FOUND[1:]):
        results[name] = free_title(name, taken)
        taken.add(results[name])
    return Titles(own, results, moved)


def free_title(name: str, taken: Iterable[str]) -> str:
    title, number = name, 1
    while title in taken:
        number += 1
        title = f"{name} ({number})"
    return title


def own_cells(rows: TableSamples | None) -> dict[str, Any]:
    """The cells of labels that are no texts, such as numbers, by what they mean."""
    if rows is None or rows.columns.label is None or isinstance(rows.table, CsvTable):
        return {}
    cells = (cell for part in rows.parts([]) for cell in part.cells(rows.columns.label or ""))
    return {rows.label(cell): cell for cell in cells if not isinstance(cell, str)}


# --- rows -----------------------------------------------------------------------------------------


def filled(
    samples: TableSamples,
    titles: Titles,
    found: Any = None,
    changed: Mapping[int, str] | None = None,
    cells: Mapping[str, Any] | None = None,
    *,
    numbers: bool,
) -> Iterator[Any]:
    """The rows of a table, in parts, with what was `found` out about these samples.

    All of its rows, or the labelled ones of a table of their own. `changed` are labels of labelled
    rows that were corrected, by row number; `cells` are those of labels that are no texts. With
    `numbers`, features in a CSV file become numbers, as other formats have them.
    """
    arrow = pyarrow()
    if found is None:
        kinds = {name: "double" if name in FOUR_DIGITS else "string" for name in FOUND}
        found = arrow.table({name: arrow.array([], kind) for name, kind in kinds.items()})
    every = with_all_columns(samples)
    classified = np.array(samples.row_numbers() if found.num_rows else [], dtype=np.int64)
    for part in every.parts(every.copied or []):
        rows = np.array(part.rows)
        place = np.searchsorted(classified, rows)  # among those that were classified
        new = np.isin(rows, classified[place[0] : place[-1] + 1])
        own = found.take(arrow.array(place, mask=~new))
        yield with_results(every, part, titles, own, changed or {}, cells or {}, numbers=numbers)


def with_all_columns(samples: TableSamples) -> TableSamples:
    """All rows and columns of a table, or its labelled rows if these samples are those.

    Columns of lists stay out, because no cell of a spreadsheet holds one.
    """
    rows = samples.rows if samples.rows == "labelled" else "all"
    every = TableSamples(samples.table, samples.columns, samples.chosen, rows)
    every.copied = [name for name in samples.table.names if name not in samples.table.lists]
    return every


def with_results(
    samples: TableSamples,
    part: Part,
    titles: Titles,
    found: Any,
    changed: Mapping[int, str],
    cells: Mapping[str, Any],
    *,
    numbers: bool,
) -> Any:
    """A part of a table with its label column filled in, and the columns of the result."""
    arrow, copies = pyarrow(), samples.copies(part)
    columns = {titles.of_user(name, samples): copies[name] for name in samples.copied or ()}
    if numbers and isinstance(samples.table, CsvTable):
        for name in numeric(samples):
            columns[name] = numbers_of(samples.table, copies[name])

    own = [None] * len(part.rows)
    if titles.label in columns:
        own = python_values(columns[titles.label])
    labels, sources = list[Any](), list[str | None]()
    both = zip(found[LABEL].to_pylist(), found[SOURCE].to_pylist(), strict=True)
    for row, cell, (label, source) in zip(part.rows, own, both, strict=True):
        corrected = source == CORRECTED or row in changed
        if samples.label(cell) and not corrected:
            labels.append(cell)
            sources.append(GIVEN)
        else:
            new = changed.get(row, label)
            labels.append(cells.get(new, new))
            sources.append(CORRECTED if corrected else source)
    columns[titles.label] = column_of(labels)

    results = {name: found[name] for name in FOUND[2:]}
    results |= {ROW: arrow.array(part.rows), SOURCE: arrow.array(sources, "string")}
    columns |= {title: results[name] for name, title in titles.results.items() if name in results}
    return arrow.table(columns)


def numeric(samples: TableSamples) -> list[str]:
    """The features that are numbers."""
    if samples.chosen is None:
        return []
    others = {*samples.chosen.categories, *samples.table.lists}
    return [name for name in samples.chosen.names if name not in others]


def numbers_of(table: Table, column: Any) -> Any:
    """The numbers of a column of texts; the texts where one is no number."""
    cells = table.as_numbers(column.to_pylist())
    values = [None if is_gap(cell) else as_number(cell) for cell in cells]
    odd = any(value is None and not is_gap(x) for value, x in zip(values, cells, strict=True))
    return column if odd else pyarrow().array(values, "double")


def found_of(answers: Answers) -> Any:
    """What `filled` needs to know of all samples."""
    arrow, rows = pyarrow(), range(len(answers))
    return arrow.table(
        {
            LABEL: arrow.array(map(answers.label, rows), "string"),
            SOURCE: [CORRECTED if row in answers.corrected else PREDICTED for row in rows],
            PREDICTION: [answers.prediction(row) or None for row in rows],
            "probability": known(answers.probability),
            "doubt": known(answers.doubt),
        }
    )


def known(values: Tensor) -> Any:
    """A column of these numbers, without NaN."""
    return pyarrow().array(values.double().numpy(), from_pandas=True)


# --- all samples with their labels ----------------------------------------------------------------


def all_samples(corrected: Corrected, answers: Answers, titles: Titles, *, numbers: bool) -> Any:
    """The rows of the user's table, in its order; with labelled samples of other data before."""
    source, examples = corrected.source, corrected.source.examples
    samples, rows = source.samples, source.rows
    assert isinstance(samples, TableSamples)
    pairs = zip(corrected.example_labels, examples.truth or [], strict=True)
    changed = {place: label for place, (label, given) in enumerate(pairs) if label != given}
    if rows is not None and changed:
        row_of = rows.row_numbers()
        changed = {row_of[place]: label for place, label in changed.items()}
    cells, found = own_cells(rows), found_of(answers)

    before: list[Any] = []
    of_new = changed
    if rows is None or rows.table is not samples.table:
        of_new = {}  # the rows to classify have numbers of their own
    if rows is None and examples.names:
        before = [named_samples(corrected, titles, changed)]
    elif rows is not None and rows.table is not samples.table:
        before = [*filled(rows, titles, None, changed, cells, numbers=numbers)]
    after = [*filled(samples, titles, found, of_new, cells, numbers=numbers)]

    if DATA in titles.results:
        before = [with_data(piece, titles, corrected.data.labelled) for piece in before]
        after = [with_data(piece, titles, corrected.data.new) for piece in after]
    whole = stacked([*before, *after])
    last = [title for name, title in titles.results.items() if name != DATA]
    return whole.select([name for name in whole.column_names if name not in last] + last)


def named_samples(corrected: Corrected, titles: Titles, changed: Mapping[int, str]) -> Any:
    """Labelled samples that are in no table."""
    names, labels = corrected.source.examples.names, corrected.example_labels
    return pyarrow().table(
        {
            titles.results[ROW]: column_of([int(x) if x.isdecimal() else x for x in names]),
            titles.label: column_of(labels),
            titles.results[SOURCE]: [
                CORRECTED if place in changed else GIVEN for place in range(len(names))
            ],
        }
    )


def with_data(piece: Any, titles: Titles, name: str) -> Any:
    return piece.add_column(0, titles.results[DATA], [[name] * piece.num_rows])


def stacked(pieces: Sequence[Any]) -> Any:
    """Tables below one another, each with its own columns; of several types become texts."""
    arrow, kinds = pyarrow(), dict[str, set[str]]()
    for piece in pieces:
        for column in piece.schema:
            if not arrow.types.is_null(column.type):
                kinds.setdefault(column.name, set()).add(str(column.type))
    mixed = {name for name, own in kinds.items() if len(own) > 1}
    return arrow.concat_tables([as_texts(x, mixed) for x in pieces], promote_options="default")


def as_texts(piece: Any, names: set[str]) -> Any:
    """The table with these columns as texts."""
    for place, name in enumerate(piece.column_names):
        if name in names:
            values = python_values(piece[name])
            texts = [None if value is None else str(value) for value in values]
            piece = piece.set_column(place, name, [column_of(texts)])
    return piece
