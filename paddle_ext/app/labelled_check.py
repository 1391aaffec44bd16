"""Find labelled samples whose label looks wrong, and estimate the accuracy from all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..adaptive_rule.label_noise import MOST_LEFT_OUT
from ..presence.labels import doubt_of_labels
from .read.samples import Labelled

SUSPECT = 0.9  # a label of at least this doubt is likely wrong
NORMAL = 1.645  # quantile of the 90 % interval


class Expected(NamedTuple):
    """An expected accuracy with its 90 % interval."""

    share: float
    low: float
    high: float
    samples: int  # labelled samples that it is estimated from


@dataclass(frozen=True)
class LabelledCheck:
    """Doubts about the labels of labelled samples, based on the other labelled samples."""

    class_names: tuple[str, ...]
    names: list[str]  # of the samples: a path, a text, or a row number
    labels: Tensor  # [S] int64, as given
    suggestion: Tensor  # [S] int64, the most probable class
    doubt: Tensor  # [S], see `paddle_ext.presence.label_doubt`

    def order(self) -> list[int]:
        """Rows, most doubtful first."""
        rows: list[int] = self.doubt.argsort(descending=True, stable=True).tolist()
        return rows

    def suspects(self) -> list[int]:
        """Rows whose label is likely wrong."""
        wrong = (self.doubt > SUSPECT) & (self.suggestion != self.labels)
        return [row for row in self.order() if wrong[row]]

    def label(self, row: int) -> str:
        return self.class_names[int(self.labels[row])]

    def suggested(self, row: int) -> str:
        return self.class_names[int(self.suggestion[row])]


@dataclass(frozen=True)
class ExpectedAccuracy:
    """The accuracy of each class, and of a batch of classes in some proportions."""

    right: Tensor  # [K] labelled samples that the others recognise
    tested: Tensor  # [K] labelled samples of classes with two or more

    def of_class(self, k: int) -> Expected | None:
        """None if a class has fewer than two labelled samples.

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
        """With these numbers [K] of samples of each class, as predicted.

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


def expected_accuracy(
    checked: LabelledCheck | None, labelled: Labelled, given: int
) -> ExpectedAccuracy | None:
    """From the first `given` labelled samples, each classified by all others.

    The rest were corrected, so they are not a fair sample. None if nothing was checked, or with
    names of classes, which the check does not use.
    """
    if checked is None or labelled.prototypes is not None:
        return None
    K = len(labelled.class_names)
    several = torch.bincount(labelled.labels, minlength=K) > 1
    labels = checked.labels[:given]
    tested = several[labels]
    right = tested & (checked.suggestion[:given] == labels)
    return ExpectedAccuracy(
        torch.bincount(labels[right], minlength=K), torch.bincount(labels[tested], minlength=K)
    )


def check_labelled(labelled: Labelled, device: torch.device) -> LabelledCheck | None:
    """None if no class has two samples, or if there are too many to compare."""
    classes, number = labelled.classes_with_samples()
    S = len(labelled.labels)
    if len(classes) >= S or len(classes) < 2 or S * len(classes) > MOST_LEFT_OUT:
        return None
    doubts = doubt_of_labels(
        labelled.rows(device), number[labelled.labels].to(device), len(classes)
    )
    return LabelledCheck(
        labelled.class_names,
        [text or str(row) for row, text in enumerate(labelled.texts)],
        labelled.labels,
        classes[doubts.suggestion.cpu()],
        doubts.doubt.cpu(),
    )
