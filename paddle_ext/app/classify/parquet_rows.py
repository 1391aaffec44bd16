"""Samples of a Parquet file as Arrow data: columns that are only copied are never decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...ops.large.ahead import ahead
from ...ops.large.parquet import is_lists, libraries, opened, record_batches, vectors, width_of
from ...research.data.labels import label_text
from ...research.progress import Progress
from .naming import given_names, known_classes
from .run import opened as opened_source
from .samples import Examples, Labelled, check_finite
from .settings import Settings
from .sources import feature_source, gap_notes, names_of_rows, opened_table
from .tables import TableSamples, cell_text, cell_value

READ_AT_ONCE = 2048  # rows


@dataclass(frozen=True)
class Streamed:
    """A Parquet file to classify, and what is known about the classes.

    Parameters
    ----------
    labelled : Labelled
    samples : TableSamples
        Which rows of which columns.
    total : int
        Number of rows.
    notes : list of str
    """

    labelled: Labelled
    samples: TableSamples
    total: int
    notes: list[str]

    @property
    def path(self) -> Path:
        return self.samples.table.path


class Part(NamedTuple):
    """Consecutive rows."""

    kept: Any  # pyarrow.Table [n] of the columns copied to the output
    rows: npt.NDArray[np.int64]  # [n] their numbers in the file
    features: Tensor | None  # [n, D] float32; None: computed from the texts
    texts: list[str]
    truth: list[str]  # true classes, if the user wants the accuracy

    def cut(self, start: int, stop: int) -> Part:
        features = None if self.features is None else self.features[start:stop]
        return Part(
            self.kept.slice(start, stop - start),
            self.rows[start:stop],
            features,
            self.texts[start:stop],
            self.truth[start:stop],
        )


def joined(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    features = [part.features for part in parts if part.features is not None]
    return Part(
        libraries()[0].concat_tables([part.kept for part in parts]),
        np.concatenate([part.rows for part in parts]),
        torch.cat(features) if features else None,
        [text for part in parts for text in part.texts],
        [truth for part in parts for truth in part.truth],
    )


# --- opening ------------------------------------------------------------------------------------


def open_streamed(
    labelled: Path, unlabelled: Path | None, settings: Settings, device: torch.device
) -> Streamed:
    """Open a Parquet file: `unlabelled`, or the rows of `labelled` without a label.

    With a model, the only file is the one to classify.
    """
    path = labelled if unlabelled is None else unlabelled
    with opened(path) as table:
        schema, count = table.schema_arrow, int(table.metadata.num_rows)
    if len(set(schema.names)) < len(schema.names):
        raise ValueError(f"{path} must have unique column names, got one twice")
    if unlabelled is None and settings.model is None:
        return open_alone(path, count, settings, device)
    source = opened_source(labelled, unlabelled, settings, device)
    assert isinstance(source.unlabelled, TableSamples)
    return Streamed(source.labelled, source.unlabelled, count, source.notes)


def open_alone(path: Path, count: int, settings: Settings, device: torch.device) -> Streamed:
    """A table with missing labels; with names the column of labels may be missing."""
    given = given_names(settings)
    table = opened_table(path, settings)
    asked, notes = settings.columns, list[str]()
    label = table.label_column_if_any(asked.label, asked.truth)
    if label is None and given is None:
        label = table.label_column(None)  # raises an error if there is none
    columns = replace(asked, label=label)
    embedder, features, _ = feature_source(table, columns, settings, device, notes)
    named = names_of_rows(given, embedder, [], settings, device)
    if label is None:
        assert named is not None
        samples = TableSamples(table, columns, features, embedder, "all")
        return Streamed(named.labelled(None), samples, count, notes)
    known = TableSamples(table, replace(columns, truth=None), features, embedder, "labelled")
    examples = labelled_examples(known, label)
    if named is None and not examples.labels:
        raise ValueError(f"{path} must have rows with a label in column {label!r}, got none")
    notes += gap_notes(known)
    samples = TableSamples(table, columns, features, embedder, "unlabelled")
    return Streamed(known_classes(examples, named), samples, count - len(examples.labels), notes)


def labelled_examples(samples: TableSamples, label: str) -> Examples:
    """All rows with a label; features of row groups without any are not read."""
    path = samples.table.path
    features: list[Tensor] = []
    labels: list[str] = []
    texts: list[str] = []
    begin = 0
    with opened(path) as table:
        for group in range(table.metadata.num_row_groups):
            found = [
                samples.label(value)
                for batch in record_batches(table, path, READ_AT_ONCE, [label], [group])
                for value in batch.column(0).to_pylist()
            ]
            if any(found):
                for part in parts_of(samples, table, [], found, [group], begin):
                    features.append(features_of(part, samples))
                    texts += part.texts or [f"row {row}" for row in part.rows]
                labels += [value for value in found if value]
            begin += len(found)
    rows = torch.cat(features) if features else torch.empty(0, 0)
    return Examples(rows, labels, tuple(texts), str(path))


# --- reading ------------------------------------------------------------------------------------


def read_parts(source: Streamed, kept: Sequence[str]) -> Iterator[Part]:
    """The rows to classify, in order, with the columns copied to the output."""
    with opened(source.path) as table:
        yield from parts_of(source.samples, table, kept)


def parts_of(
    samples: TableSamples,
    table: Any,
    kept: Sequence[str],
    wanted: Sequence[object] | None = None,
    groups: Sequence[int] | None = None,
    begin: int = 0,
) -> Iterator[Part]:
    """Rows of an opened file.

    Parameters
    ----------
    samples : TableSamples
    table : pyarrow.parquet.ParquetFile
    kept : sequence of str
        Columns to copy.
    wanted : sequence or None
        Which rows; None: those of `samples`.
    groups, begin
        Groups of rows, and the number of their first row.
    """
    columns, path = samples.columns, samples.table.path
    needed = dict.fromkeys([*samples.features, *kept])
    for name in (columns.text, columns.truth, columns.label):
        if name is not None and name in samples.table.names:
            needed[name] = None
    row, width = begin, None
    for batch in record_batches(table, path, READ_AT_ONCE, [*needed], groups):
        if wanted is not None:
            mask = np.array(wanted[row - begin : row - begin + len(batch)], bool)
        elif columns.label is not None and samples.rows == "unlabelled":
            labels = batch.column(columns.label).to_pylist()
            mask = np.array([not samples.label(value) for value in labels], bool)
        else:
            mask = np.ones(len(batch), bool)
        features = None
        if samples.embedder is None and mask.any():
            features, width = numbers(batch, samples, row, width)
            features = features[torch.from_numpy(mask)]
        if mask.any():
            chosen = batch if mask.all() else batch.filter(libraries()[0].array(mask))
            yield Part(
                libraries()[0].Table.from_batches([chosen]).select(list(kept)),
                row + np.flatnonzero(mask),
                features,
                column_texts(chosen, columns.text),
                column_labels(chosen, columns.truth),
            )
        row += len(batch)


def numbers(
    batch: Any, samples: TableSamples, row: int, width: int | None
) -> tuple[Tensor, int | None]:
    """Features [n, D] float32 of a batch, and the length of its lists, if it has lists."""
    names, path = samples.features, samples.table.path
    if len(names) == 1:
        column = batch.column(names[0])
        kind = getattr(column.type, "storage_type", column.type)
        if is_lists(kind):
            width = width_of(column) if width is None else width
            found = vectors(column, max(width, 1), f"{path}, column {names[0]!r},", row)
            return torch.from_numpy(as_float(found, names[0], path)), width
    cells = [
        as_float(batch.column(name).to_numpy(zero_copy_only=False), name, path) for name in names
    ]
    return torch.from_numpy(np.stack(cells, 1)), width


def as_float(values: Any, name: str, path: Path) -> npt.NDArray[np.float32]:
    try:
        return np.array(values, np.float32)
    except (TypeError, ValueError):
        raise ValueError(
            f"{path} must have numbers or lists of numbers in column {name!r}, got something else"
        ) from None


class SampleRows:
    """All samples to classify, as `paddle_ext.ops.large.sources.Rows`.

    Parameters
    ----------
    source : Streamed
    device : torch.device
    progress : bool
        Whether to show a progress bar for each pass.
    """

    def __init__(self, source: Streamed, device: torch.device, *, progress: bool) -> None:
        self.source, self.progress = source, progress
        self.shape = (source.total, source.labelled.features.shape[1])
        self.dtype, self.device = torch.float32, device

    def chunks(self, size: int) -> Iterator[Tensor]:
        """One chunk is read while another is in use."""
        total = self.source.total
        sizes = (min(size, total - start) for start in range(0, total, size))
        parts = regrouped(read_parts(self.source, []), sizes)
        with (
            Progress("reading", total, show=self.progress) as shown,
            closing(ahead(lambda: next(parts, None), Event())) as read,
        ):
            for part in read:
                yield checked_features(part, self.source).to(self.device, self.dtype)
                shown.advance(len(part.rows))


def checked_features(part: Part, source: Streamed) -> Tensor:
    """[n, D], with as many features as the labelled samples, all finite."""
    features = features_of(part, source.samples)
    D, width = source.labelled.features.shape[1], features.shape[1]
    if width != D:
        raise ValueError(
            f"{source.path} must have as many features as {source.labelled.source}, {D}, "
            f"got {width}"
        )
    check_finite(features, str(source.path), part.rows.tolist())
    return features


def features_of(part: Part, samples: TableSamples) -> Tensor:
    """[n, D], computed from the texts if missing."""
    if part.features is not None:
        return part.features
    assert samples.embedder is not None
    return samples.embedder(part.texts)


def column_texts(batch: Any, name: str | None) -> list[str]:
    return [] if name is None else [cell_text(value) for value in batch.column(name).to_pylist()]


def column_labels(batch: Any, name: str | None) -> list[str]:
    if name is None:
        return []
    return [label_text(cell_value(value)) for value in batch.column(name).to_pylist()]


def regrouped(parts: Iterable[Part], sizes: Iterable[int]) -> Iterator[Part]:
    """The same rows in parts of these sizes, which must sum to the number of rows."""
    waiting: list[Part] = []
    count = 0
    more = iter(parts)
    for size in sizes:
        while count < size:
            waiting.append(next(more))
            count += len(waiting[-1].rows)
        whole = joined(waiting)
        yield whole.cut(0, size)
        waiting, count = [whole.cut(size, count)], count - size
