"""All that a run found out, for the tables, the page and the terminal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..presence import Suggestions
from ..text import plural
from .answers import Answers
from .corrections import Corrected
from .labelled_check import Expected, ExpectedAccuracy, LabelledCheck
from .read.samples import Source
from .review import ToCheck, about_strangers, to_check

MOST_SUGGESTIONS_NAMED = 5  # in the terminal


@dataclass(frozen=True)
class Outcome:
    """Predictions, corrections, and what the labelled samples say about both."""

    answers: Answers
    corrected: Corrected
    checked: LabelledCheck | None
    accuracy: ExpectedAccuracy | None

    @property
    def source(self) -> Source:
        return self.corrected.source

    def to_check(self) -> list[ToCheck]:
        return to_check(self.answers)

    def to_check_of_class(self) -> Tensor:
        """How many samples of each class are to be checked, [K]."""
        classes = self.answers.final()[[one.row for one in self.to_check()]]
        return torch.bincount(classes[classes >= 0], minlength=len(self.answers.class_names))

    def expected(self, k: int | None = None) -> Expected | None:
        """The expected accuracy of a class, or of all predictions; None: it is not known."""
        if self.accuracy is None:
            return None
        if k is not None:
            return self.accuracy.of_class(k)
        own = self.answers.labels[self.answers.predicted()]
        return self.accuracy.of_batch(torch.bincount(own, minlength=len(self.accuracy.right)))

    @property
    def caution(self) -> str:
        """What to add to the expected accuracy."""
        return "" if self.accuracy is None else self.accuracy.caution

    def suspects(self) -> list[int]:
        """Labelled samples whose label looks wrong, unless the user has said what they are."""
        if self.checked is None:
            return []
        keys, kept = self.corrected.keys, self.corrected.kept
        return [row for row in self.checked.suspects() if keys[row] not in kept]

    def about_strangers(self) -> str:
        """For which samples nothing can be said about unknown classes."""
        known = self.source.labelled
        shots = torch.bincount(known.labels, minlength=len(known.class_names))
        return about_strangers(self.answers, shots)


@dataclass(frozen=True)
class Suggested:
    """Samples to label next, and what was predicted for all."""

    answers: Answers
    suggestions: Suggestions

    def names(self) -> list[str]:
        return [self.answers.names[row] for row in self.suggestions.queries.tolist()]

    def reasons(self) -> list[str]:
        """For each of them, why its label would help.

        Its label is in doubt or its class may be unknown, and how many unlabelled samples have no
        labelled or suggested sample nearer to them.
        """
        strange = set(self.answers.strangers().tolist())
        reasons = []
        for row, size in zip(*(x.tolist() for x in self.suggestions), strict=True):
            first = "unsure, " if self.answers.doubt[row] > 0.5 else ""
            first = "possibly of an unknown class, " if row in strange else first
            alike = f"like {plural(size - 1, 'other')}" if size > 1 else "unlike the others"
            reasons.append(first + ("like a labelled one" if size == 0 else alike))
        return reasons

    def line(self) -> str:
        """The first of them, for the terminal."""
        names = self.names()
        more = len(names) - MOST_SUGGESTIONS_NAMED
        rest = f" and {plural(more, 'other')}" if more > 0 else ""
        return f"label next: {', '.join(names[:MOST_SUGGESTIONS_NAMED])}{rest}"
