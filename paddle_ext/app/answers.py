"""What is known about the samples after classification: predictions, and corrected labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from ..labels import label_text, numbered
from ..prevalence import RATE, Prevalence, with_certain
from .read.samples import Batch, no_samples

UNKNOWN = "unknown"  # what the user calls a sample of no class


def corrected_label(text: str) -> str:
    """The label of a correction; empty if the text means that there is none."""
    return text.strip() if text.strip().lower() == UNKNOWN else label_text(text)


NO_CLASS = "of no known class"  # what the share of such samples is called
BINS = 10  # of the calibration error
LIKELIEST = 5  # classes to choose from by a key
# The fields of `Answers` that have a value for each sample.
OF_SAMPLES = (
    *("names", "texts", "labels", "second", "likeliest", "probability", "second_probability"),
    *("doubt", "truth", "novelty", "nodes", "node_probability", "digests", "groups"),
)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Predicted classes of N samples."""

    class_names: tuple[str, ...]
    names: list[str]  # of the samples
    texts: list[str]  # of these, as shown to the user
    labels: Tensor  # [N] int64, the most probable class
    second: Tensor  # [N] int64, the second most probable class
    probability: Tensor  # [N]
    second_probability: Tensor  # [N]
    doubt: Tensor  # [N] in [0, 1], see `paddle_ext.Solution.doubt`
    present: Tensor  # [K] bool, in any batch, see `paddle_ext.Solution.present`
    truth: list[str] | None = None  # names of the true classes, if known
    # [N], see `paddle_ext.presence.novelty`; NaN for classes of fewer than two labelled samples.
    novelty: Tensor | None = None
    # See `paddle_ext.presence.roll_up`; empty where no node is probable enough.
    nodes: list[str] | None = None
    node_probability: Tensor | None = None  # [N]
    # Shares with 90 % intervals. The last is of no known class, if anything is known of that.
    prevalence: Prevalence
    # Groups of strangers that resemble one another, the largest first.
    alike: list[list[int]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)  # of the contents of samples, as in `Key`
    # [N, 5] int64: the most probable classes, `labels` and `second` first; -1: no class.
    likeliest: Tensor
    # Labels by the user, which may be ``unknown``; predictions do not use these samples.
    corrected: dict[int, str] = field(default_factory=dict)
    no_text: frozenset[int] = frozenset()  # samples without a text, so without a prediction
    groups: list[str] | None = None  # what the samples belong to, if the user knows it
    copies: int = 0  # samples that are copies of one, in batches of which most are
    # `Solution.class_sums` [10, K + 1] of each group, without corrected samples.
    group_sums: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def label(self, row: int) -> str:
        """The label by the user, or else the predicted one, or ``unknown`` if there is none."""
        return self.corrected.get(row) or self.prediction(row) or UNKNOWN

    def prediction(self, row: int) -> str:
        """The predicted class; empty if there is none."""
        return "" if row in self.no_text else self.class_names[int(self.labels[row])]

    def final(self) -> Tensor:
        """Indices of these labels, [N]; -1: unknown."""
        final = self.labels.clone()
        final[list(self.no_text)] = -1
        place = {name: k for k, name in enumerate(self.class_names)}
        for row, label in self.corrected.items():
            final[row] = place.get(label, -1)
        return final

    def predicted(self) -> Tensor:
        """Samples whose label is the predicted class, [N] bool."""
        own = torch.ones(len(self), dtype=torch.bool)
        own[torch.tensor([*self.corrected, *self.no_text], dtype=torch.int64)] = False
        return own

    def counts(self) -> Tensor:
        """Samples of each class, corrected ones included, unknown ones not, [K]."""
        final = self.final()
        return torch.bincount(final[final >= 0], minlength=len(self.class_names))

    def share(self, k: int) -> str:
        """The share of a class with its 90 % interval, for people; K: of no known class."""
        if k >= len(self.prevalence.estimate):
            return ""
        share, low, high = (100 * float(x[k]) for x in self.prevalence)
        return f"{share:.1f} % ({low:.1f} to {high:.1f})"

    def unknown(self) -> int:
        return sum(label == UNKNOWN for label in self.corrected.values())

    def accuracy(self) -> tuple[float, int, int] | None:
        """Share of correct predictions; numbers of samples with a true and with a foreign class."""
        if self.truth is None:
            return None
        true = [name for name in compress(self.truth, self.predicted()) if name]
        classes = set(self.class_names)
        foreign = sum(name not in classes for name in true)
        right = int(self.right()[self.predicted()].sum())
        return right / max(1, len(true)), len(true), foreign

    def strangers(self) -> Tensor:
        """Samples that may be of an unknown class, strangest first, [n] int64."""
        if self.novelty is None:
            return torch.empty(0, dtype=torch.int64)
        order = torch.argsort(self.novelty.nan_to_num(-1.0), descending=True, stable=True)
        return order[(self.novelty[order] > 1 - RATE) & self.predicted()[order]]

    def unjudged(self) -> Tensor:
        """Samples that cannot be compared with the labelled ones of their class, [n] int64."""
        if self.novelty is None:
            return self.predicted().nonzero().view(-1)
        return (self.novelty.isnan() & self.predicted()).nonzero().view(-1)

    def right(self) -> Tensor:
        """Whether each prediction is correct, [N]; not if the true class is unknown."""
        pairs = zip(self.labels.tolist(), self.truth or [], strict=True)
        return torch.tensor([self.class_names[label] == name for label, name in pairs])

    def calibration_error(self) -> float | None:
        """Mean gap between probability and share of correct labels, over ten bins."""
        if self.truth is None:
            return None
        judged = torch.tensor([bool(name) for name in self.truth]) & self.predicted()
        if not judged.any():
            return None
        right = self.right()[judged]
        probability = self.probability[judged].double()
        place = (probability * BINS).long().clamp(max=BINS - 1)
        gap = torch.zeros(BINS, dtype=torch.float64)
        gap.index_add_(0, place, probability - right.double())
        return float(gap.abs().sum()) / len(place)


def label_counts(labels: Sequence[str], class_names: Sequence[str]) -> Tensor:
    """How many labels each class has and, in the last place, how many are of none; [K + 1]."""
    known = set(class_names)
    numbers = numbered([label for label in labels if label in known], class_names)
    counts = torch.bincount(numbers, minlength=len(class_names) + 1).double()
    counts[-1] = len(labels) - len(numbers)
    return counts


def inserted(rest: Answers, more: Answers, places: Sequence[int]) -> Answers:
    """Put `more` samples back at their `places` among the `rest`."""
    other = torch.ones(len(more) + len(rest), dtype=torch.bool)
    other[torch.tensor(places, dtype=torch.int64)] = False
    others: list[int] = other.nonzero().view(-1).tolist()
    order = torch.tensor([*places, *others], dtype=torch.int64).argsort()
    number = torch.tensor([*map(rest.class_names.index, more.class_names), -1])
    classes = ("labels", "second", "likeliest")
    renumbered: Any = {name: number[getattr(more, name)] for name in classes}
    parts = (replace(more, **renumbered), rest)

    def joined(name: str) -> Any:
        """A column of all samples; None if no part has it."""
        values = [(getattr(one, name), len(one)) for one in parts]
        kinds = {type(x) for x, _ in values} - {type(None)}
        if Tensor in kinds:
            whole = [torch.full((n,), math.nan) if x is None else x for x, n in values]
            return torch.cat(whole)[order]
        both = [text for x, n in values for text in ([""] * n if x is None else x)]
        return [both[row] for row in order.tolist()] if kinds else None

    columns: dict[str, Any] = {name: joined(name) for name in OF_SAMPLES}
    columns["alike"] = [[others[row] for row in group] for group in rest.alike]
    columns["no_text"] = frozenset(others[row] for row in rest.no_text)
    return replace(rest, **columns)


def without_prediction(
    class_names: tuple[str, ...], counts: Tensor, samples: Batch | None = None
) -> Answers:
    """Samples of which nothing can be said; shares come from `counts` [K + 1] of other labels."""
    samples = no_samples() if samples is None else samples
    n, sums = len(samples.names), torch.zeros(10, len(counts), dtype=torch.float64)
    none, nan = torch.zeros(n, dtype=torch.int64), torch.full((n,), math.nan)
    return Answers(
        class_names=class_names,
        names=samples.names,
        texts=samples.texts,
        labels=none,
        second=none,
        probability=nan,
        second_probability=nan,
        doubt=nan,
        present=counts[:-1] > 0,
        truth=samples.truth,
        prevalence=with_certain(sums, counts),
        digests=samples.digests(),
        likeliest=torch.full((n, LIKELIEST), -1),
        groups=samples.groups,
    )
