"""Which predictions a person should look at, in one order, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .answers import RATE, Answers

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
    return RATE * int((answers.predicted()).sum() - len(answers.unjudged()))


def about_strangers(answers: Answers, shots: Tensor) -> str:
    """For which samples nothing can be said about unknown classes; empty if for none.

    `shots` [K] are the numbers of labelled samples of the classes.
    """
    unjudged = answers.unjudged()
    if not len(unjudged):
        return ""
    if answers.novelty is None:
        return (
            "no class has two labelled samples, so nothing can be said about samples of unknown "
            "classes"
        )
    lonely = [k for k in sorted(set(answers.labels[unjudged].tolist())) if shots[k] < 2]
    names = ", ".join(answers.class_names[k] for k in lonely[:5])
    more = f" and {len(lonely) - 5:,} others" if len(lonely) > 5 else ""
    have = "has" if len(lonely) == 1 else "have"
    return (
        f"{names}{more} {have} fewer than two labelled samples, so nothing can be said about "
        f"whether the {len(unjudged):,} samples predicted as such are of an unknown class"
    )
