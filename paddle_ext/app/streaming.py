"""From data of any kind to one file, with few samples in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import check
from ..files import ahead
from ..parquet import pyarrow
from ..solution import Solution
from .answering import classified
from .answers import UNKNOWN
from .corrections import DataNames, corrected_source
from .read.input_check import Finding, check_input
from .read.opening import encode, open_data
from .read.samples import Batch, concatenated, has_text, matched_names
from .read.tables import TableSamples
from .run import existing
from .settings import Settings
from .write.tables import SUFFIXES, check_file, write_file

ANSWERS = ("label", "probability", "doubt")


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
    return path.suffix in SUFFIXES and not path.is_dir()


def stream(
    labelled: str | Path,
    unlabelled: str | Path | None,
    output: str | Path,
    settings: Settings | None = None,
    *,
    show: Callable[[list[Finding]], None] | None = None,
) -> StreamReport:
    """Classify data into one file, ``.parquet``, ``.csv`` or ``.xlsx``; otherwise as `classify`.

    The output has the columns of a table except the features, or the names of the samples, followed
    by ``label``, ``probability`` and ``doubt``. It gets its final name once it is complete.

    Examples
    --------
    >>> stream("known.npz", "big.parquet", "answers.parquet")  # doctest: +SKIP
    """
    settings = settings or Settings()
    began = time.perf_counter()
    first, target = existing(labelled), Path(output)
    new = None if unlabelled is None else existing(unlabelled)
    check_file("output", target, (first, new))
    only_with_a_folder = ("save", "corrected", "final", "sort_into", "label_studio", "parents")
    for name in (*only_with_a_folder, "prior", "suggest"):
        if (given := getattr(settings, name)) not in (None, ()):
            raise check.ArgumentValueError(
                name, f"must be omitted unless the output is a folder, got {given}"
            )
    device = check.device(settings.device)
    source = open_data(first, new, settings)
    samples, copied = source.samples, {"name": "file" if source.kind == "pictures" else "row"}
    notes: list[str] = []
    if isinstance(samples, TableSamples):
        copied, notes = copied_columns(samples)
        samples.copied = list(copied)
    if show is not None:
        show(check_input(source))
    encode(source, device)
    corrected_source(source, (), DataNames.of(first, new))
    batches = iter(source.unlabelled)
    report = StreamReport(
        source.labelled.class_names, target, source.notes + notes, source.unreadable
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(ahead(lambda: next(batches, None))) as read:
        calls = classified(
            source.labelled,
            read,
            device,
            batch=settings.batch,
            label_noise=settings.label_noise,
            share=settings.share,
            source=source.name,
            total=source.total,
            progress=settings.progress,
        )
        tables = (
            answer_table(concatenated(group), solution, copied, report, texts=source.embeds_texts)
            for group, _, solution in calls
        )
        report.notes += write_file(target, tables)
    report.seconds = time.perf_counter() - began
    return report


def copied_columns(samples: TableSamples) -> tuple[dict[str, str], list[str]]:
    """Output names of the copied columns, and messages for the user."""
    table, columns, notes = samples.table, samples.columns, list[str]()
    copied: dict[str, str] = {}
    categories = () if samples.chosen is None else samples.chosen.categories
    numbers = set(samples.features).difference(categories)
    for name in table.names:
        if name in numbers or name == columns.label:
            continue
        if name not in ANSWERS:
            copied[name] = name
        elif name == columns.truth and "truth" not in table.names:
            copied[name] = "truth"
        else:
            notes.append(
                f"the column {name!r} of {table.path} is not copied: the output has its own "
                "column of that name"
            )
    return copied, notes


def answer_table(
    batch: Batch, solution: Solution, copied: dict[str, str], report: StreamReport, *, texts: bool
) -> Any:
    """Rows of the output as a pyarrow.Table, counted by `report`; without a text: unknown."""
    arrow = pyarrow()
    found = (*solution.probabilities.max(-1), solution.doubt())
    probability, labels, doubt = (x.flatten().cpu() for x in found)
    there = np.array(has_text(batch.texts) if texts else [True] * len(batch.names))
    names = np.full(len(there), UNKNOWN, dtype=object)
    truth = list(compress(matched_names(batch.truth or [], report.class_names), there))
    names[there] = report.count(labels[there], probability[there], truth)
    answers = (
        arrow.array(names, arrow.string()),
        arrow.array(probability.float().numpy(), mask=~there),
        arrow.array(doubt.float().numpy(), mask=~there),
    )
    header = [*(copied.values() or ["row"]), *ANSWERS]
    own = [arrow.array(batch.names)] if batch.copied is None else batch.copied.columns
    return arrow.Table.from_arrays([*own, *answers], header)
