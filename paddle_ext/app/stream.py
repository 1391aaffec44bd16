"""From files, folders or one table to predictions in one file, with few samples in memory."""

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import compress, starmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import check
from ..files import ahead
from ..parquet import pyarrow
from ..solution import Solution
from .answering import Shares, classified
from .answers import UNKNOWN
from .corrections import CORRECTED_FILE, DataNames, corrected_source, is_ours
from .outcome import (
    Expected,
    ExpectedAccuracy,
    LabelledCheck,
    about_claim,
    about_copies,
    about_groups,
    about_strangers,
    about_trust,
    about_unjudged,
    check_labelled,
    expected_accuracy,
)
from .read.input_check import Finding, check_input
from .read.opening import Source, encode, open_data
from .read.samples import Batch, Labelled, concatenated, matched_names
from .read.tables import TableSamples
from .run import check_can_classify, existing, inputs_of
from .settings import Settings, refuse_unused
from .write import tables
from .write.own_table import PREDICTED, filled, own_cells, titles_of

ADDED = ("label", "probability", "doubt")  # columns of the output
ONLY_WITH_A_FOLDER = (
    *("save", "corrected", "final", "sort_into", "label_studio", "parents", "prior", "suggest"),
)


@dataclass
class StreamReport:
    """The result of `stream`."""

    class_names: tuple[str, ...]
    output: Path
    notes: list[str]  # for the user
    unreadable: dict[str, str] = field(default_factory=dict)  # files, and why
    right: int = 0  # correctly labelled samples, if true classes are known
    judged: int = 0  # samples with a true class
    seconds: float = 0.0
    checked: LabelledCheck | None = None
    accuracy: ExpectedAccuracy | None = None
    counts: Tensor = field(init=False)  # [K] int64, samples of each class

    def __post_init__(self) -> None:
        self.counts = torch.zeros(len(self.class_names), dtype=torch.int64)
        self.sums = torch.zeros(len(self.class_names), dtype=torch.float64)
        self.names = np.array(self.class_names, dtype=object)

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def probability(self) -> Tensor:
        """The mean probability of the samples of each class, [K]; 0 where there are none."""
        return self.sums / self.counts.clamp(min=1)

    @property
    def expected(self) -> Expected | None:
        """The expected accuracy of the samples one by one; None: it is not known."""
        return None if self.accuracy is None else self.accuracy.of_batch(self.counts)

    def count(self, labels: Tensor, probability: Tensor, truth: list[str]) -> Any:
        """Add samples [n] with the names of their true classes, if known; returns the predicted."""
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        self.sums.index_add_(0, labels, probability.double())
        names = self.names[labels.numpy()]
        for name, true in zip(names, truth, strict=bool(truth)):
            self.judged += bool(true)
            self.right += name == true
        return names


def streams(output: str | Path) -> bool:
    """Whether the output is one file instead of a folder."""
    path = Path(output)
    return path.suffix.lower() in tables.SUFFIXES and not path.is_dir()


def stream(
    labelled: str | Path,
    unlabelled: str | Path | None,
    output: str | Path,
    settings: Settings | None = None,
    *,
    show: Callable[[list[Finding]], None] | None = None,
    accepted: Callable[[], None] | None = None,
) -> StreamReport:
    """Classify data into one file, ``.parquet``, ``.csv`` or ``.xlsx``; otherwise as `classify`.

    A table is written with all of its columns and rows and with its label column filled in; into
    ``.parquet`` without features and labelled rows, so that it may have any size. Other data are
    the names of the samples. The results are the last columns. The file gets its final name once it
    is complete.

    Examples
    --------
    >>> stream("known.npz", "big.parquet", "answers.parquet")  # doctest: +SKIP
    """
    settings = settings or Settings()
    began = time.perf_counter()
    (first, new), target = existing(labelled, unlabelled), Path(output)
    kept = target.name == CORRECTED_FILE and target.is_file() and is_ours(target)
    tables.check_file("output", target, [*inputs_of(first, new, settings), *[target] * kept])
    given = ((name, getattr(settings, name) or None) for name in ONLY_WITH_A_FOLDER)
    refuse_unused(*((*option, False, "the output is a folder") for option in given))
    device = check.device(settings.device)
    source = open_data(first, new, settings)
    samples, copied = source.samples, {"name": "file" if source.kind == "pictures" else "row"}
    notes: list[str] = []
    whole = isinstance(samples, TableSamples) and target.suffix != ".parquet"
    if isinstance(samples, TableSamples) and not whole:
        copied, notes = copied_columns(samples)
        samples.copied = list(copied)
    if show is not None:
        show(check_input(source))
    check_can_classify(source)
    if accepted is not None:
        accepted()
    encode(source, device)
    corrected = corrected_source(source, (), DataNames.of(first, new))
    labelled_samples, batches = source.labelled, iter(source.unlabelled)
    notes = [*dict.fromkeys([*source.notes, *notes, *about_groups(source)])]
    report = StreamReport(labelled_samples.class_names, target, notes, source.unreadable)
    shares = Shares(labelled_samples, device)
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(ahead(lambda: next(batches, None))) as read:
        calls = classified(
            labelled_samples,
            read,
            device,
            batch=settings.batch,
            label_noise=settings.label_noise,
            share=settings.share,
            source=source.name,
            total=source.total,
            progress=settings.progress,
        )

        def part(group: list[Batch], rows: Tensor, solution: Solution) -> tuple[Batch, Any]:
            batch = concatenated(group)
            there = source.usable(batch)
            usable = torch.tensor(there, device=rows.device)
            novelty = shares.novelty(rows, solution)
            novelty.view(-1)[~usable] = math.nan  # with groups it has one dimension
            shares.add(solution, novelty)
            for own, wanted in zip(rows, usable.view(rows.shape[:2]), strict=True):
                shares.look_for_copies(own[wanted])
            return batch, found_table(batch, solution, report, there)

        parts, style = starmap(part, calls), tables.CsvStyle.of(source)
        if whole:
            report.notes += write_whole(target, source, [found for _, found in parts], style)
        else:
            rows = (with_copies(batch, found, copied) for batch, found in parts)
            report.notes += tables.write_file(target, rows, style)
    report.checked = check_labelled(labelled_samples, device)
    report.accuracy = expected_accuracy(report.checked, len(corrected.used))
    report.notes += [*source.gap_notes(), *what_to_know(report, labelled_samples, shares)]
    report.seconds = time.perf_counter() - began
    return report


def what_to_know(report: StreamReport, labelled: Labelled, shares: Shares) -> list[str]:
    """What the user must know before relying on the results, as a folder says it."""
    counts, nobody = report.counts, torch.zeros(len(report.class_names) + 1, dtype=torch.float64)
    claimed = float(report.sums.sum()) / max(1, len(report))
    known = shares.known is not None
    unjudged = torch.where(labelled.shots() < 2, counts, 0) if known else counts
    return [
        *about_claim(claimed, report.expected),
        *about_trust(labelled),
        *about_strangers(shares.prevalence(nobody), labelled),
        *about_copies(shares.copies, len(report)),
        *about_unjudged(unjudged, labelled, strangers=known),
    ]


def copied_columns(samples: TableSamples) -> tuple[dict[str, str], list[str]]:
    """Output names of the copied columns, and messages for the user."""
    table, columns, notes = samples.table, samples.columns, list[str]()
    copied: dict[str, str] = {}
    categories = () if samples.chosen is None else samples.chosen.categories
    numbers = set(samples.features).difference(categories)
    for name in table.names:
        if name in numbers or name == columns.label:
            continue
        if name not in ADDED:
            copied[name] = name
        elif name == columns.truth and "truth" not in table.names:
            copied[name] = "truth"
        else:
            notes.append(
                f"the column {name!r} of {table.path} is not copied: the output has its own "
                "column of that name"
            )
    return copied, notes


def found_table(batch: Batch, solution: Solution, report: StreamReport, usable: list[bool]) -> Any:
    """The results as a pyarrow.Table, counted by `report`; unknown if not `usable`."""
    arrow = pyarrow()
    found = solution.probabilities.amax(-1), solution.labels, solution.doubt()
    probability, labels, doubt = (x.flatten().cpu() for x in found)
    there = np.array(usable)
    names = np.full(len(there), UNKNOWN, dtype=object)
    truth = list(compress(matched_names(batch.truth or [], report.class_names), there))
    names[there] = report.count(labels[there], probability[there], truth)
    answers = (
        arrow.array(names, arrow.string()),
        arrow.array(probability.float().numpy(), mask=~there),
        arrow.array(doubt.float().numpy(), mask=~there),
    )
    return arrow.table(answers, ADDED)


def with_copies(batch: Batch, found: Any, copied: dict[str, str]) -> Any:
    """The results, after the copied columns."""
    header = [*(copied.values() or ["row"]), *ADDED]
    own = [pyarrow().array(batch.names)] if batch.copied is None else batch.copied.columns
    return pyarrow().Table.from_arrays([*own, *found.columns], header)


def write_whole(
    target: Path, source: Source, parts: list[Any], style: tables.CsvStyle
) -> list[str]:
    """Write the user's own table, filled in with the results; returns notes for the user."""
    arrow, titles = pyarrow(), titles_of(source)
    found = arrow.concat_tables(parts).combine_chunks()
    label = found["label"]
    prediction = arrow.array([None if name == UNKNOWN else name for name in label.to_pylist()])
    found = found.append_column("prediction", [prediction.cast("string")])
    found = found.append_column("source", [[PREDICTED] * len(label)])
    cells, numbers = own_cells(source.rows), target.suffix != ".csv"
    assert isinstance(source.samples, TableSamples)
    rows = filled(source.samples, titles, found, cells=cells, numbers=numbers)
    return tables.write_file(target, rows, style, titles.rounded)
