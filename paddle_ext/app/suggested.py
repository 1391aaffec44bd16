"""Which samples to label next, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import check
from ..presence import Suggestions, suggest
from ..text import plural
from .answers import Answers
from .read.samples import Batch, Labelled
from .read.text_files import write_rows
from .settings import Settings
from .write.tables import decimals

SUGGESTIONS = "suggestions.csv"
NAMED = 5  # in the terminal


def stale_note(folder: Path) -> list[str]:
    """A word on suggestions of an earlier run, which stay because labels may be written to them."""
    path = folder / SUGGESTIONS
    return [f"{path} is of an earlier run; --suggest makes a new one"] if path.exists() else []


def remembered(batches: Iterable[Batch], features: list[Tensor]) -> Iterator[Batch]:
    """The same batches; their features are added to a list."""
    for batch in batches:
        features.append(batch.features)
        yield batch


@dataclass(frozen=True)
class Suggested:
    """Samples to label next, and what was predicted for all."""

    answers: Answers
    found: Suggestions

    @classmethod
    def of(
        cls,
        answers: Answers,
        rows: list[int],
        labelled: Labelled,
        features: Tensor,
        settings: Settings,
    ) -> Suggested:
        """Of the samples in these rows, from their features."""
        assert settings.suggest is not None
        device = check.device(settings.device)
        query = labelled.columns.of(features.to(device, torch.float32))
        found = suggest(labelled.rows(device), query, settings.suggest)
        queries = torch.tensor(rows)[found.queries.cpu()]
        return cls(answers, Suggestions(queries, found.stands_for.cpu()))

    def names(self) -> list[str]:
        return [self.answers.names[row] for row in self.found.queries.tolist()]

    def reasons(self) -> list[str]:
        """For each of them, why its label would help.

        Its label is in doubt or its class may be unknown, and how many unlabelled samples have no
        labelled or suggested sample nearer to them.
        """
        strange = set(self.answers.strangers().tolist())
        reasons = []
        for row, size in zip(*(x.tolist() for x in self.found), strict=True):
            first = "unsure, " if self.answers.doubt[row] > 0.5 else ""
            first = "possibly of an unknown class, " if row in strange else first
            alike = f"like {plural(size - 1, 'other')}" if size > 1 else "unlike the others"
            reasons.append(first + ("like a labelled one" if size == 0 else alike))
        return reasons

    def line(self) -> str:
        """The first of them, for the terminal."""
        names = self.names()
        more = len(names) - NAMED
        rest = f" and {plural(more, 'other')}" if more > 0 else ""
        return f"label next: {', '.join(names[:NAMED])}{rest}"

    def write(self, path: Path, name_column: str, *, texts: bool) -> None:
        """A CSV file, the most useful sample first; with a column of texts if asked for."""
        rows = self.found.queries
        shown = [self.answers.texts[row] for row in rows.tolist()]
        classes = [self.answers.class_names[k] for k in self.answers.labels[rows].tolist()]
        columns = (classes, decimals(self.answers.probability[rows]), self.reasons())
        header = (name_column, *["text"] * texts, "label", "probability", "reason")
        write_rows(path, header, zip(self.names(), *[shown] * texts, *columns, strict=True))
