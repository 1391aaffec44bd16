"""What a run found out: what to check, which labels to look at, what accuracy to expect."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..adaptive_rule.group_folds import recognised_without_groups
from ..adaptive_rule.label_noise import MOST_LEFT_OUT
from ..labels import numbered, sorted_names
from ..limits import FEWEST_TO_CALIBRATE, SEVERAL
from ..presence import Suggestions
from ..presence.labels import doubt_of_labels
from ..prevalence import RATE, Prevalence, with_certain
from ..solution import calibrates, outweigh_names
from ..text import plural, several
from .answering import things_of
from .answers import NO_CLASS, Answers
from .corrections import Corrected
from .read.opening import Source
from .read.samples import Labelled

MOST_NAMED = 5  # samples or classes in a line of the terminal
DOUBTFUL = 0.5  # samples of at least this doubt are to be checked
SUSPECT = 0.9  # a label of at least this doubt is likely wrong
NORMAL = 1.645  # quantile of the 90 % interval
MOST_ABOVE_EXPECTED = 0.1  # of the mean probability, above the expected accuracy
# From this share of strangers on, for sure, samples may be of another source: 55 to 95 of 100 such
# batches reach it, and none like the labelled samples (docs/presence.md).
MANY_STRANGERS = 0.2


# --- predictions to check -------------------------------------------------------------------------


class ToCheck(NamedTuple):
    row: int
    wrong: float  # how likely its label is wrong
    reason: str  # "no text", "unknown" (unlike its class) or "doubtful" (the others are as likely)


def to_check(answers: Answers) -> list[ToCheck]:
    """Samples without a text, doubtful ones and strangers, those most likely wrong first."""
    unknown = torch.zeros(len(answers), dtype=torch.bool)
    unknown[answers.strangers()] = True
    doubtful = (answers.doubt >= DOUBTFUL) & answers.predicted()
    wrong = 1 - (1 - answers.doubt.double()) * (1 - unknown * share_of_strangers(answers))
    rows = (doubtful | unknown).nonzero().view(-1)
    rows = rows[wrong[rows].argsort(descending=True, stable=True)]
    no_text = sorted(answers.no_text - answers.corrected.keys())
    return [ToCheck(row, 1.0, "no text") for row in no_text] + [
        ToCheck(row, float(wrong[row]), "unknown" if unknown[row] else "doubtful")
        for row in rows.tolist()
    ]


def share_of_strangers(answers: Answers) -> Tensor:
    """The share of real strangers among the samples at least as strange as each, [N] float64.

    Of n samples of known classes, n (1 - novelty) look at least as strange by chance alone.
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


# --- groups ---------------------------------------------------------------------------------------


class ClassInGroup(NamedTuple):
    name: str
    samples: int
    share: float  # of the group, with its 90 % interval
    low: float
    high: float


def classes_by_group(answers: Answers) -> dict[str, list[ClassInGroup]]:
    """The classes in each group, the largest share first, and then what is of no known class."""
    names, K = sorted_names(answers.groups or []), len(answers.class_names)
    place, final = numbered(answers.groups or [], names), answers.final()
    if not names:
        return {}

    def counted(rows: Tensor) -> Tensor:
        pairs = place[rows] * (K + 1) + final[rows] % (K + 1)  # -1 is the last
        return pairs.bincount(minlength=len(names) * (K + 1)).view(-1, K + 1)

    fixed = torch.tensor([*answers.corrected], dtype=torch.int64)
    certain, judged = counted(fixed).double(), answers.predicted().index_fill_(0, fixed, True)
    counts = counted(judged).tolist()
    none = torch.zeros(10, K + 1, dtype=torch.float64)
    of_groups = [answers.group_sums.get(name, none) for name in names]
    sums = torch.stack(of_groups)
    if len(answers.prevalence.estimate) == K:  # nothing is known of samples of no known class
        sums = sums[:, :4, :K]
    shares, found = torch.stack([*with_certain(sums, certain)], -1).tolist(), {}
    for g, name in enumerate(names):
        own = sorted((k for k in range(K) if counts[g][k]), key=lambda k: -shares[g][k][0])
        rows = [(k, answers.class_names[k]) for k in own]
        if len(shares[g]) > K and (counts[g][K] or shares[g][K][0] > 0):
            rows.append((K, NO_CLASS))
        found[name] = [ClassInGroup(x, counts[g][k], *shares[g][k]) for k, x in rows]
    return found


# --- the labelled samples -------------------------------------------------------------------------


class Expected(NamedTuple):
    """An expected accuracy with its 90 % interval."""

    share: float
    low: float
    high: float
    samples: int  # labelled samples that it is estimated from


@dataclass(frozen=True)
class LabelledCheck:
    """Doubts about labelled samples, based on those that are not the same thing."""

    labelled: Labelled
    things: Tensor  # [T] int64, the first sample of each thing
    suggestion: Tensor  # [S] int64, the most probable class
    # [S] the same of a sample without its group, if there are groups, and whether it is a test
    recognised: Tensor
    tested: Tensor
    doubt: Tensor  # [S], see `paddle_ext.presence.label_doubt`

    def order(self) -> list[int]:
        """Rows, most doubtful first."""
        rows: list[int] = self.doubt.argsort(descending=True, stable=True).tolist()
        return rows

    def shown(self, row: int) -> str:
        """The sample as a person knows it: its file, its text, or its row."""
        return self.labelled.texts[row] or str(row)

    def label(self, row: int) -> str:
        return self.labelled.class_names[int(self.labelled.labels[row])]

    def suggested(self, row: int) -> str:
        return self.labelled.class_names[int(self.suggestion[row])]


@dataclass(frozen=True)
class ExpectedAccuracy:
    """The accuracy of each class, and of a batch of classes in some proportions."""

    right: Tensor  # [K] labelled samples that the others recognise
    tested: Tensor  # [K] labelled samples of classes with two or more

    def of_class(self, k: int) -> Expected | None:
        """How many samples of a class are recognised; None with fewer than two labelled ones.

        Samples of a class that classify one another are one test fewer: two of them, for example,
        are both near or both far from each other.
        """
        right, n = float(self.right[k]), int(self.tested[k])
        return Expected(right / n, *wilson(right / n, max(1, n - 1)), n) if n else None

    @property
    def caution(self) -> str:
        """A word to add if most classes have two labelled samples: the share may be too high."""
        few = int(self.tested.sum()) <= 2 * int((self.tested > 0).sum())
        return ", or less: two labels of a class say little" if few else ""

    def of_batch(self, counts: Tensor) -> Expected | None:
        """Of samples one by one, with these numbers [K] of each class, as predicted.

        Classes without a test count as the mean of the others. The interval is wider for few
        samples, some of which are right or wrong by luck.
        """
        there = (self.tested > 0) & (counts > 0)
        if not there.any():
            return None
        total = float(counts[there].sum())
        weight = counts[there].double() / total
        n = self.tested[there].double()
        share = self.right[there] / n
        mean = float(weight @ share)
        # A number of tests with the same precision.
        effective = 1 / (float((weight.square() / (n - 1).clamp(min=1)).sum()) + 1 / total)
        return Expected(mean, *wilson(mean, effective), int(n.sum()))


def wilson(share: float, n: float) -> tuple[float, float]:
    """The interval of a share of n samples by Wilson's score."""
    z2 = NORMAL**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def expected_accuracy(checked: LabelledCheck | None, given: int) -> ExpectedAccuracy | None:
    """By the first `given` labelled samples; the rest were corrected, so they are no fair test."""
    if checked is None or checked.labelled.prototypes is not None:
        return None
    things, K = checked.things[checked.things < given], len(checked.labelled.class_names)
    labels, tested = checked.labelled.labels[things], checked.tested[things]
    right = tested & (checked.recognised[things] == labels)
    return ExpectedAccuracy(
        torch.bincount(labels[right], minlength=K), torch.bincount(labels[tested], minlength=K)
    )


def check_labelled(labelled: Labelled, device: torch.device) -> LabelledCheck | None:
    """Judge each label by the others; None if no class has two things, or there are too many."""
    classes, number = labelled.classes_with_samples()
    tied, T = labelled.tied, int(labelled.shots().sum())
    if len(classes) >= T or len(classes) < 2 or T * len(classes) > MOST_LEFT_OUT:
        return None
    known, index = things_of(labelled, device), number.to(device)
    found = doubt_of_labels(known.support, index[known.labels], len(classes), known.trusted)
    first, of_row = (torch.arange(T),) * 2 if tied is None else (tied.first, tied.of_row)
    doubt, suggestion = (x.cpu()[of_row] for x in found)
    recognised, tested = suggestion, (labelled.shots() > 1)[labelled.labels]
    if known.sources is not None:
        rows = known.support, index[known.labels], len(classes), known.sources
        recognised, tested = (x.cpu()[of_row] for x in recognised_without_groups(*rows))
    return LabelledCheck(
        labelled=labelled,
        things=first,
        suggestion=classes[suggestion],
        recognised=classes[recognised],
        tested=tested,
        doubt=doubt,
    )


def suspects(checked: LabelledCheck | None) -> list[int]:
    """Labelled samples whose label is doubtful, unless the user has said what they are."""
    if checked is None:
        return []
    sure = checked.labelled.trusted
    wrong = (checked.doubt > SUSPECT) & (checked.suggestion != checked.labelled.labels)
    return [row for row in checked.order() if wrong[row] and (sure is None or not sure[row])]


# --- what a user must know before relying on the results ------------------------------------------


def about_claim(claimed: float, expected: Expected | None) -> list[str]:
    """A note where the probabilities claim much more than the labelled samples let one expect."""
    if expected is None or not claimed - expected.share > MOST_ABOVE_EXPECTED:
        return []
    note = (
        f"the mean probability is {100 * claimed:.0f} %, but the expected accuracy of single "
        f"samples {100 * expected.share:.0f} %: check some predictions before you rely on the "
        "probabilities"
    )
    return [note]


def about_trust(labelled: Labelled) -> list[str]:
    """A note where labelled samples are too few to calibrate the probabilities."""
    counts, named = labelled.shots(), labelled.prototypes is not None
    if calibrates(counts, named):
        return []
    several = counts >= SEVERAL
    if named and not outweigh_names(counts):
        why = (
            "they rest on class names, and three labelled samples of every class would calibrate "
            "them"
        )
    elif 2 * several.sum() <= len(counts):
        why = f"half of the classes or more have fewer than {SEVERAL} labelled samples"
    else:
        samples = plural(int(counts[several].sum()), "labelled sample")
        why = (
            f"they are calibrated on {samples}, and need {FEWEST_TO_CALIBRATE}, of classes with "
            f"{SEVERAL} or more"
        )
    return [f"do not trust the probabilities: {why}"]


def about_strangers(prevalence: Prevalence, labelled: Labelled) -> list[str]:
    """A note where many samples are of no known class, for sure."""
    low, K = prevalence.low, len(labelled.class_names)
    if len(low) == K or low[K] < MANY_STRANGERS:
        return []
    note = (
        f"at least {100 * low[K]:.0f} % of the samples are unlike the labelled ones: of no known "
        "class, or all samples are from another source, and then probabilities are too high"
    )
    return [note]


def about_copies(copies: int, total: int) -> list[str]:
    """A note where most samples of a batch are copies of one, as from a sensor that is stuck."""
    if not copies:
        return []
    note = (
        f"{copies:,} of {plural(total, 'sample')} are copies of one, most of their batch: is a "
        "sensor or the encoder stuck?"
    )
    return [note]


def about_unjudged(counts: Tensor, labelled: Labelled, *, strangers: bool) -> list[str]:
    """A note where nothing can be said about strangers among these numbers [K] of predictions.

    `strangers` is whether any class has enough labelled samples for that.
    """
    total = int(counts.sum())
    if not total:
        return []
    if not strangers:
        note = (
            f"{math.ceil(1 / RATE) - 1} labelled samples, of classes with two or more, are "
            "needed to say which samples are of unknown classes"
        )
        return [note]
    shots = labelled.shots()
    lonely = [k for k in counts.nonzero().view(-1).tolist() if shots[k] < 2]
    names = several([labelled.class_names[k] for k in lonely], MOST_NAMED)
    have = "has" if len(lonely) == 1 else "have"
    note = (
        f"{names} {have} fewer than two labelled samples, so nothing can be said about whether "
        f"what is predicted as such ({plural(total, 'sample')}) is of an unknown class"
    )
    return [note]


def about_groups(source: Source) -> list[str]:
    """How many groups and things there are."""
    notes = []
    if (tied := source.labelled.tied) is not None:
        of_all = plural(len(tied.of_row), "labelled sample")
        notes.append(f"labelled things: {len(tied.names):,} in {of_all}, each counted once")
    if (sources := source.labelled.sources) is not None:
        count = int(sources.max()) + 1
        notes.append(f"labelled groups: {count:,}, left out whole to calibrate the probabilities")
    if source.same is not None:
        notes.append(f"things: {len(set(source.same)):,}, each with one label, and counted once")
    if source.groups is not None:
        notes.append(f"groups: {len(set(source.groups)):,}, each classified as one batch")
    return notes


# --- all of it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    answers: Answers
    corrected: Corrected
    checked: LabelledCheck | None
    accuracy: ExpectedAccuracy | None
    suggested: dict[int, str] | None = None  # samples to label next, and why

    @property
    def source(self) -> Source:
        return self.corrected.source

    @cached_property
    def by_group(self) -> dict[str, list[ClassInGroup]]:
        """What is in each group; empty without groups."""
        return classes_by_group(self.answers)

    def to_check_of_class(self) -> Tensor:
        """How many samples of each class are to be checked, [K]."""
        classes = self.answers.final()[[one.row for one in to_check(self.answers)]]
        return torch.bincount(classes[classes >= 0], minlength=len(self.answers.class_names))

    def expected(self, k: int | None = None) -> Expected | None:
        """The expected accuracy of a class, or of all predictions; None: it is not known."""
        if self.accuracy is None:
            return None
        if k is not None:
            return self.accuracy.of_class(k)
        own = self.answers.labels[self.answers.predicted()]
        return self.accuracy.of_batch(torch.bincount(own, minlength=len(self.accuracy.right)))

    def about_claim(self) -> list[str]:
        """See `about_claim`, of the predictions."""
        own = self.answers.probability[self.answers.predicted()]
        return about_claim(float(own.mean()), self.expected()) if len(own) else []

    def about_unjudged(self) -> list[str]:
        """See `about_unjudged`, of the predictions."""
        answers, labelled = self.answers, self.source.labelled
        unjudged = answers.labels[answers.unjudged()]
        counts = torch.bincount(unjudged, minlength=len(answers.class_names))
        return about_unjudged(counts, labelled, strangers=answers.novelty is not None)


def reasons_to_label(answers: Answers, chosen: Suggestions) -> dict[int, str]:
    """Why the label of each would help; it stands for samples with no nearer label."""
    strange, reasons = set(answers.strangers().tolist()), {}
    for row, size in zip(*(x.tolist() for x in chosen), strict=True):
        first = "unsure, " if answers.doubt[row] > 0.5 else ""
        first = "possibly of an unknown class, " if row in strange else first
        alike = f"like {plural(size - 1, 'other')}" if size > 1 else "unlike the others"
        reasons[row] = first + ("like a labelled one" if size == 0 else alike)
    return reasons
