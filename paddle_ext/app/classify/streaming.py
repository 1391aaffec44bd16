"""From one Parquet file to another: any number of rows, few of them in memory."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ... import check
from ...methods.base import Prediction
from ...ops.large.ahead import ahead
from ...ops.large.parquet import libraries
from ...research.files import check_regular, replacing
from ...research.printable import spreadsheet_cell
from ...research.progress import Progress
from ...rule.solve import adaptive
from ...solution import Solution
from .answering import batch_sizes, solver
from .parquet_rows import (
    Part,
    SampleRows,
    Streamed,
    checked_features,
    open_streamed,
    read_parts,
    regrouped,
)
from .settings import Settings

SUFFIXES = (".parquet", ".csv")
ANSWERS = ("label", "probability", "doubt")
READ_AHEAD = 2**25  # bytes of features read while others are classified

Write: TypeAlias = Callable[[Any], None]  # a pyarrow.Table


@dataclass(frozen=True)
class StreamReport:
    """The result of `stream`.

    Parameters
    ----------
    class_names : tuple of str
    counts : Tensor [K] int64
        Samples of each class.
    probability : Tensor [K]
        The mean probability of these samples; 0 where there are none.
    right, known : int
        Correctly labelled samples, and samples with a true class; 0 if unknown.
    output : Path
    notes : list of str
        Messages for the user.
    seconds : float
    """

    class_names: tuple[str, ...]
    counts: Tensor
    probability: Tensor
    right: int
    known: int
    output: Path
    notes: list[str]
    seconds: float


def streams(output: str | Path) -> bool:
    """Whether the output is one file instead of a folder."""
    path = Path(output)
    return path.suffix in SUFFIXES and not path.is_dir()


def stream(
    labelled: str | Path,
    unlabelled: str | Path | None,
    output: str | Path,
    settings: Settings | None = None,
    *,
    one_batch: bool = False,
) -> StreamReport:
    """Classify the rows of a Parquet file into another Parquet file or a CSV file.

    The output has the columns of the input except the features, followed by ``label``,
    ``probability`` and ``doubt``. It gets its final name once it is complete.

    Parameters
    ----------
    labelled, unlabelled
        As in `classify`; the data to classify is a ``.parquet`` file.
    output : path
        Ends in ``.parquet`` or ``.csv``.
    settings : Settings or None
    one_batch : bool
        Whether all rows are one batch, with the class frequencies of the whole file, which is then
        read a few times.

    Returns
    -------
    StreamReport

    Raises
    ------
    ValueError, OSError, ImportError
        A one-sentence error that says what to change.

    Examples
    --------
    >>> stream("known.npz", "big.parquet", "answers.parquet")  # doctest: +SKIP
    """
    settings = settings or Settings()
    began = time.perf_counter()
    known, target = Path(labelled), Path(output)
    new = None if unlabelled is None else Path(unlabelled)
    check_settings(settings, check.flag("one_batch", one_batch))
    check_paths(known, new, target)
    device = check.device(settings.device)
    source = open_streamed(known, new, settings, device)
    if source.total == 0:
        raise ValueError(f"{source.path} must have at least one sample to classify, got none")
    kept, notes = kept_columns(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if one_batch:
        classifier: Classifier = WholeClassifier(source, device, progress=settings.progress)
    else:
        classifier = Classifier(source, settings.batch, device)
    write_answers(source, classifier, kept, target, progress=settings.progress)
    seconds = time.perf_counter() - began
    return classifier.report(target, source.notes + notes, seconds)


def write_answers(
    source: Streamed, classifier: Classifier, kept: dict[str, str], output: Path, *, progress: bool
) -> None:
    """Classify a few batches at a time while the next ones are read.

    A remainder smaller than a batch is added to the last batches.
    """
    D = source.labelled.features.shape[1]
    at_once = max(1, READ_AHEAD // (4 * D * classifier.size)) * classifier.size
    sizes = part_sizes(source.total, at_once, classifier.size)
    parts = regrouped(read_parts(source, list(kept)), sizes)
    with (
        replacing(output) as unfinished,
        written(unfinished) as write,
        Progress("classifying", source.total, show=progress) as shown,
        closing(ahead(lambda: next(parts, None), Event())) as read,
    ):
        for part in read:
            found = classifier(part, shown)
            columns = part.kept.rename_columns([kept[name] for name in part.kept.column_names])
            write(answer_table(columns, part, found))


def check_settings(settings: Settings, one_batch: bool) -> None:
    for name, given in (("save", settings.save), ("corrected", settings.corrected)):
        if given is not None:
            raise check.ArgumentValueError(
                name, f"must be omitted unless the output is a folder, got {given}"
            )
    if one_batch and settings.batch is not None:
        raise check.ArgumentValueError(
            "batch", f"must be omitted if all rows are one batch, got {settings.batch}"
        )


def check_paths(labelled: Path, unlabelled: Path | None, output: Path) -> None:
    path = labelled if unlabelled is None else unlabelled
    if path.suffix != ".parquet" or path.is_dir():
        raise check.ArgumentValueError(
            "output",
            "must be a folder unless the data to classify is a .parquet file, "
            f"got {output} for {path}",
        )
    for given in (labelled, unlabelled):
        if given is not None and output.exists() and output.samefile(given):
            raise check.ArgumentValueError("output", f"must not be an input file, got {output}")
    check_regular(path)


def kept_columns(source: Streamed) -> tuple[dict[str, str], list[str]]:
    """Output names of the copied columns, and messages for the user."""
    samples, notes = source.samples, list[str]()
    left_out = {*samples.features, *([samples.columns.label] if samples.columns.label else [])}
    kept: dict[str, str] = {}
    for name in samples.table.names:
        if name in left_out:
            continue
        if name not in ANSWERS:
            kept[name] = name
        elif name == samples.columns.truth and "truth" not in samples.table.names:
            kept[name] = "truth"
        else:
            notes.append(
                f"the column {name!r} of {source.path} is not copied: the output has its own "
                "column of that name"
            )
    return kept, notes


def part_sizes(total: int, at_once: int, least: int) -> Iterator[int]:
    """Sizes of parts; none is smaller than `least`, unless the total is."""
    left = total
    while left:
        size = left if left < at_once + least else at_once
        yield size
        left -= size


class Classifier:
    """Classifies parts and counts the predictions.

    Parameters
    ----------
    source : Streamed
    batch : int or None
        As in `answer`.
    device : torch.device
    """

    def __init__(self, source: Streamed, batch: int | None, device: torch.device) -> None:
        self.source, self.device = source, device
        self.labelled = source.labelled
        self.size, self.together = batch_sizes(self.labelled, batch)
        K = len(self.labelled.class_names)
        self.names = np.array(self.labelled.class_names, dtype=object)
        self.counts = torch.zeros(K, dtype=torch.int64)
        self.sums = torch.zeros(K, dtype=torch.float64)
        self.right = self.known = 0

    def __call__(self, part: Part, shown: Progress) -> tuple[Any, Tensor, Tensor]:
        """Class names, probability and doubt, each [n]."""
        labels, probability, doubt = self.answers(part, shown)
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        self.sums.index_add_(0, labels, probability.double())
        names = self.names[labels.numpy()]
        for name, truth in zip(names, part.truth, strict=bool(part.truth)):
            self.known += bool(truth)
            self.right += name == truth
        return names, probability, doubt

    @cached_property
    def solve(self) -> Callable[[Tensor], Solution | Prediction]:
        return solver(self.labelled, self.device)

    def answers(self, part: Part, shown: Progress) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, probability and doubt, each [n], on the CPU."""
        found = []
        for batches in grouped(checked_features(part, self.source), self.size, self.together):
            solution = self.solve(batches.to(self.device, torch.float32))
            probability, labels = solution.probabilities.max(-1)
            answers = (labels, probability, solution.doubt())
            found.append([x.flatten().cpu() for x in answers])
            shown.advance(batches.shape[0] * batches.shape[1])
        labels, probability, doubt = (torch.cat(column) for column in zip(*found, strict=True))
        return labels, probability, doubt

    def report(self, output: Path, notes: list[str], seconds: float) -> StreamReport:
        means = self.sums / self.counts.clamp(min=1)
        return StreamReport(
            self.labelled.class_names,
            self.counts,
            means,
            self.right,
            self.known,
            output,
            notes,
            seconds,
        )


class WholeClassifier(Classifier):
    """Classifies all rows as one batch, on construction.

    Parameters
    ----------
    source : Streamed
    device : torch.device
    progress : bool
    """

    def __init__(self, source: Streamed, device: torch.device, *, progress: bool) -> None:
        super().__init__(source, None, device)
        known = source.labelled
        if known.prototypes is not None:
            raise check.ArgumentValueError(
                "one_batch", "must be omitted with class names, got True"
            )
        support = known.features.to(device, torch.float32)
        rows = SampleRows(source, device, progress=progress)
        solution = adaptive(
            support,
            known.labels.to(device),
            rows,
            num_classes=len(known.class_names),
            return_assignments=False,
            top=1,
        )
        answers = (solution.labels, solution.probabilities[:, 0], solution.doubt())
        self.labels, self.probability, self.doubt = (x.cpu() for x in answers)
        self.row = 0

    def answers(self, part: Part, shown: Progress) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, probability and doubt of the next rows."""
        own = slice(self.row, self.row + len(part.rows))
        self.row = own.stop
        shown.advance(len(part.rows))
        return self.labels[own], self.probability[own], self.doubt[own]


def grouped(features: Tensor, size: int, together: int) -> Iterator[Tensor]:
    """Batches [B, n, D] with n = `size`; the last two are about equal, as in `rebatched`."""
    whole = max(0, len(features) // size - 1)
    for start in range(0, whole, together):
        stop = min(start + together, whole)
        yield features[start * size : stop * size].view(stop - start, size, -1)
    rest = features[whole * size :]
    parts = [rest] if len(rest) <= size else [rest[: len(rest) // 2], rest[len(rest) // 2 :]]
    yield from (part.unsqueeze(0) for part in parts)


# --- output -------------------------------------------------------------------------------------


def answer_table(kept: Any, part: Part, found: tuple[Any, Tensor, Tensor]) -> Any:
    """A pyarrow.Table; rows without other columns are identified by their number."""
    arrow = libraries()[0]
    names, probability, doubt = found
    columns = dict(zip(kept.column_names, kept.columns, strict=True))
    if not columns:
        columns["row"] = arrow.array(part.rows)
    answers = (
        arrow.array(names, arrow.string()),
        arrow.array(probability.float().numpy()),
        arrow.array(doubt.float().numpy()),
    )
    return arrow.table(columns | dict(zip(ANSWERS, answers, strict=True)))


@contextmanager
def written(path: Path) -> Iterator[Write]:
    """A file that tables are appended to."""
    if path.suffix == ".parquet":
        with closing(ParquetAnswers(path)) as answers:
            yield answers.write
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        empty = True

        def write(table: Any) -> None:
            nonlocal empty
            if empty:
                lines.writerow(map(spreadsheet_cell, table.column_names))
                empty = False
            cells = [csv_cells(table, name) for name in table.column_names]
            lines.writerows(zip(*cells, strict=True))

        yield write


class ParquetAnswers:
    """Tables of one schema, each a row group of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: Any = None

    def write(self, table: Any) -> None:
        if self.writer is None:
            self.writer = libraries()[1].ParquetWriter(self.path, table.schema)
        self.writer.write_table(table)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def csv_cells(table: Any, name: str) -> list[str]:
    values = table.column(name).to_pylist()
    if name in ("probability", "doubt"):
        return [f"{value:.4f}" for value in values]
    return ["" if value is None else spreadsheet_cell(str(value)) for value in values]
