"""All that a run found out, for the tables, the page and the terminal; and what to check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..presence import Suggestions
from ..text import plural
from .answers import RATE, Answers
from .corrections import Corrected
from .labelled_check import Expected, ExpectedAccuracy, LabelledCheck
from .read.samples import Source

MOST_SUGGESTIONS_NAMED = 5  # in the terminal
MOST_CLASSES_NAMED = 5  # in a note
DOUBTFUL = 0.5  # samples of at least this doubt are to be checked


class ToCheck(NamedTuple):
    """A sample to check."""

    row: int
    wrong: float  # how likely its label is wrong
    doubtful: bool  # another class is as likely
    unknown: bool  # it is unlike the labelled samples of its class
    no_text: bool = False  # it has no text, so it has no class

    @property
    def reason(self) -> str:
        return "no text" if self.no_text else "unknown" if self.unknown else "doubtful"


def to_check(answers: Answers) -> list[ToCheck]:
    """Samples without a text, doubtful ones and strangers, those most likely wrong first.

    A label is right if the sample is of a known class, and of this one.
    """
    unknown = torch.zeros(len(answers), dtype=torch.bool)
    unknown[answers.strangers()] = True
    doubtful = (answers.doubt >= DOUBTFUL) & answers.predicted()
    wrong = 1 - (1 - answers.doubt.double()) * (1 - unknown * real_share(answers))
    rows = (doubtful | unknown).nonzero().view(-1)
    rows = rows[wrong[rows].argsort(descending=True, stable=True)]
    no_text = sorted(answers.no_text - answers.corrected.keys())
    return [ToCheck(row, 1.0, False, False, no_text=True) for row in no_text] + [
        ToCheck(row, float(wrong[row]), bool(doubtful[row]), bool(unknown[row]))
        for row in rows.tolist()
    ]


def real_share(answers: Answers) -> Tensor:
    """The share of strangers among the samples at least as strange as each, [N] float64.

    Of n samples of known classes, n (1 - novelty) are at least as strange by chance; the others
    are not.
    """
    shares = torch.zeros(len(answers), dtype=torch.float64)
    if answers.novelty is None:
        return shares
    judged = (answers.predicted() & ~answers.novelty.isnan()).nonzero().view(-1)
    novelty = answers.novelty[judged].double()
    order = novelty.argsort(descending=True, stable=True)
    chance = len(judged) * (1 - novelty[order]) / torch.arange(1, len(judged) + 1)
    # The lowest share of chance that any limit at most as high reaches.
    chance = chance.flip(0).cummin(0).values.flip(0) if len(chance) else chance
    shares[judged[order]] = (1 - chance).clamp(min=0)
    return shares


def reasons(answers: Answers) -> list[str]:
    """Why to check each sample: ``no text``, ``unknown``, ``doubtful``, or nothing."""
    reason_of = {one.row: one.reason for one in to_check(answers)}
    return [reason_of.get(row, "") for row in range(len(answers))]


def to_check_words(check: Sequence[ToCheck]) -> str:
    """How many samples there are to check for which reason, such as "1 doubtful"."""
    counts = Counter(one.reason for one in check)
    words = {"no text": "without a text", "doubtful": "doubtful"}
    words["unknown"] = "possibly of an unknown class"
    return ", ".join(f"{counts[why]:,} {text}" for why, text in words.items() if counts[why])


def by_chance(answers: Answers) -> float:
    """How many samples of known classes look like strangers by chance."""
    return RATE * (int(answers.predicted().sum()) - len(answers.unjudged()))


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
        """For which samples nothing can be said about unknown classes; empty if for none."""
        answers, labelled = self.answers, self.source.labelled
        unjudged = answers.unjudged()
        if not len(unjudged):
            return ""
        if answers.novelty is None:
            return (
                "no class has two labelled samples, so nothing can be said about samples of "
                "unknown classes"
            )
        shots = torch.bincount(labelled.labels, minlength=len(labelled.class_names))
        lonely = [k for k in sorted(set(answers.labels[unjudged].tolist())) if shots[k] < 2]
        names = ", ".join(answers.class_names[k] for k in lonely[:MOST_CLASSES_NAMED])
        others = len(lonely) - MOST_CLASSES_NAMED
        more = f" and {others:,} others" if others > 0 else ""
        have = "has" if len(lonely) == 1 else "have"
        return (
            f"{names}{more} {have} fewer than two labelled samples, so nothing can be said about "
            f"whether the {len(unjudged):,} samples predicted as such are of an unknown class"
        )


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
