"""Which queries are of no class at all, and which labelled rows have a wrong label.

The probabilities of a solution only compare classes with each other, so this needs the features.
Which classes are present, and which labels are doubtful, a `Solution` tells by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from . import check
from .methods import Prediction
from .methods.calibration import calibrated
from .methods.shared_rows import left_out
from .ops.labelled import coordinates
from .rows import class_sums, computing_dtype, parts, unit_rows
from .solution import Solution

__all__ = ["LabelDoubt", "label_doubt", "novelty"]

ALONE = "support_labels must have a class of two rows or more, got one of each"
MOST_ROWS = 1024  # labelled rows that queries are compared with, at most
NO_SPREAD = 1e-6  # of labelled rows; less is rounding
SPREAD_SHARE, SPREAD_ROWS = 0.25, 4  # before any row is seen, and what that counts


def novelty(
    solution: Solution | Prediction, support: Tensor, support_labels: Tensor, query: Tensor
) -> Tensor:
    """How unlike its class each query is: near 1 for a sample of none of the classes.

    The share of the labelled rows that are less strange than the query, each of them left out of
    its class. A row is strange if it is far from the mean of its class, in the feature scale of the
    method `adaptive`, has a small cosine with it, and a small one with any other class mean too.
    Of samples like the labelled ones, about 5 in 100 exceed 0.95. Class means are those of the
    labelled rows, whatever the solver: those of a solution may have moved onto the strangers. For
    a solution of PADDLE the class of a row is that of the largest cosine, because a large class may
    have swallowed the rows of another.

    Parameters
    ----------
    solution : Solution or Prediction
        What `solve`, or a method's `predict`, gave for the following; one task.
    support, support_labels, query : Tensor [S, D], [S], [Q, D]
        At least one class must have two rows or more: a class with one says nothing about how far
        its samples lie apart.

    Returns
    -------
    Tensor [Q]
        In [0, 1], float64.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> labels = torch.arange(2).repeat(20)
    >>> support = 9 * torch.eye(2)[labels] + torch.randn(40, 2)
    >>> query = torch.tensor([[9.0, 0.0], [0.0, 9.0], [-9.0, -9.0]])  # the last is neither
    >>> found = paddle_ext.methods.create("adaptive").predict(support, labels, query)
    >>> novelty(found, support, labels, query).argmax()
    tensor(2)
    """
    support, support_labels, query = check.tensors(support, support_labels, query)
    check.dense(support, support_labels, query)
    u = solution.probabilities
    if u.dim() != 2 or u.shape[0] != len(query):
        raise ValueError(
            "solution must be that of the one task given, with probabilities of shape "
            f"[{len(query)}, K], got {list(u.shape)}"
        )
    K = check.dense_values(support, support_labels, query, u.shape[-1])
    known = familiar(support.detach(), support_labels.long(), K)
    if known is None:
        raise ValueError(ALONE)
    swallowed = isinstance(solution, Solution) and solution.concentration is None
    return known.novelty(query.detach(), None if swallowed else solution.labels)


class LabelDoubt(NamedTuple):
    """How likely the labels of labelled rows are to be wrong."""

    doubt: Tensor  # [S]: the probability of all other classes; 0 for a row alone in its class
    suggestion: Tensor  # [S] int64: the most probable class

    def suspects(self, threshold: float = 0.9) -> Tensor:
        """Rows whose label has less than 1 - `threshold`, the most doubtful first, [n] int64."""
        threshold = check.real("threshold", threshold)
        order = self.doubt.argsort(descending=True, stable=True)
        return order[self.doubt[order] > threshold]


def label_doubt(support: Tensor, support_labels: Tensor) -> LabelDoubt:
    """Look for wrong labels among labelled rows.

    Each row is classified by all the others, as the method `adaptive` would classify one new row
    of which nothing is known but that it is as likely of one class as of another.

    Parameters
    ----------
    support, support_labels : Tensor [S, D], [S]
        Every class from 0 to the largest label must have a row.

    Returns
    -------
    LabelDoubt
        What a class of one row has to say about itself is nothing: its doubt is 0.

    Examples
    --------
    >>> import torch
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> truth = torch.arange(3).repeat(20)
    >>> support = 4 * torch.eye(3)[truth] + torch.randn(60, 3)
    >>> labels = truth.clone()
    >>> labels[7] = 2  # is of class 1
    >>> found = label_doubt(support, labels)
    >>> found.suspects()[0], found.suggestion[7]
    (tensor(7), tensor(1))
    """
    support, support_labels = check.tensors(support, support_labels)
    check.dense(support, support_labels, support)
    K = check.dense_values(support, support_labels, support, None)
    rows = support.detach().to(computing_dtype(support))
    return doubt_of_labels(rows, support_labels.long(), K)


def doubt_of_labels(rows: Tensor, labels: Tensor, num_classes: int) -> LabelDoubt:
    """The same for rows that were checked."""
    if len(labels) == num_classes:
        return LabelDoubt(rows.new_zeros(len(labels)), labels)
    likelihood = calibrated(rows.unsqueeze(0), labels.unsqueeze(0), num_classes)
    found = left_out(likelihood, rows, labels)
    alone = found.counts == 0
    u = found.logits.softmax(-1)
    own = u.gather(1, labels.unsqueeze(1)).squeeze(1)
    doubt = (1 - own).clamp(min=0).masked_fill(alone, 0)
    return LabelDoubt(doubt, torch.where(alone, labels, u.argmax(-1)))


@dataclass(frozen=True)
class Familiar:
    """What samples of the known classes look like; tensors, so that they may be kept as arrays."""

    centre: Tensor  # [D]
    means: Tensor  # [K, D] class means, less the centre
    scale: Tensor  # [D] how features count
    directions: Tensor  # [K, D] unit-norm class means
    moments: Tensor  # [4] mean and spread of distances and of cosines, of labelled rows
    usual: Tensor  # [m] float64: how strange labelled rows are, sorted

    def novelty(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Of rows [n, D] with these labels, by default those of the largest cosines; float64."""
        found = []
        for part in parts(len(rows), 3 * rows.shape[-1] + len(self.means)):
            # Unit-norm first: what float64 can hold may be too large for the dtype of the means.
            unit = unit_rows(rows[part].double()).to(self.means.dtype)
            best, nearest = (cosines := unit @ self.directions.mT).max(1)
            own = nearest if labels is None else labels[part]
            cosine = cosines.gather(1, own.unsqueeze(1)).squeeze(1)
            found.append(self.strangeness(self.distances(unit, own), cosine, best))
        return rank(self.usual, torch.cat(found))

    def distances(self, unit: Tensor, labels: Tensor) -> Tensor:
        """Squared, of unit-norm rows to the means of their classes, [n]."""
        x = coordinates(unit.unsqueeze(0), self.centre.unsqueeze(0))[0][0]
        return ((x - self.means[labels]).square() * self.scale).sum(-1)

    def strangeness(self, distance: Tensor, own: Tensor, best: Tensor) -> Tensor:
        """From the distance and the cosine to the own class, and the largest cosine; float64."""
        far, far_spread, near, near_spread = self.moments.unbind()
        distance, own, best = (x.double() for x in (distance, own, best))
        return (distance - far) / far_spread - (own + best - 2 * near) / near_spread


def familiar(support: Tensor, labels: Tensor, num_classes: int) -> Familiar | None:
    """What labelled rows [S, D] of all classes say; None if each is alone in its class."""
    K = num_classes
    rows = support.to(computing_dtype(support))
    shots = labels.bincount(minlength=K)
    able = (shots > 1)[labels].nonzero().view(-1)
    if len(able) == 0:
        return None
    likelihood = calibrated(rows.unsqueeze(0), labels.unsqueeze(0), K, "diagonal")
    unit = unit_rows(rows.double()).to(rows.dtype)
    sums = class_sums(unit, labels, K)[0].to(rows.dtype)
    found = Familiar(
        centre=likelihood.centre[0],
        means=likelihood.prototypes[0],
        scale=likelihood.scale[0, 0],
        directions=unit_rows(sums),
        moments=torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64, device=rows.device),
        usual=torch.empty(0, dtype=torch.float64, device=rows.device),
    )
    m = min(len(able), MOST_ROWS)
    chosen = able[(2 * torch.arange(m, device=able.device) + 1) * len(able) // (2 * m)]
    x, k = unit[chosen], labels[chosen]
    n = shots[k].to(rows.dtype)
    # As far as a new row would be from the mean, of which this one is a part.
    distance = found.distances(x, k) * (n + 1) / (n - 1)
    own = (unit_rows(sums[k] - x) * x).sum(-1)
    best = (x @ found.directions.mT).scatter(1, k.unsqueeze(1), own.unsqueeze(1)).amax(1)
    moments = torch.stack([*mean_and_spread(distance), *mean_and_spread(1 - own)])
    moments[2] = 1 - moments[2]
    found = replace(found, moments=moments)
    return replace(found, usual=found.strangeness(distance, own, best).sort().values)


def mean_and_spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of positive numbers; the spread of a few of them is drawn to a share of the mean."""
    x = x.double()
    mean = x.mean()
    squares = (x - mean).square().sum() + SPREAD_ROWS * (SPREAD_SHARE * mean) ** 2
    return mean, (squares / (len(x) + SPREAD_ROWS)).sqrt().clamp(min=NO_SPREAD)


def rank(usual: Tensor, scores: Tensor) -> Tensor:
    """The share of sorted `usual` scores [m] below each score, in between and beyond it smooth.

    It grows with the score everywhere, so that nothing of the order is lost.

    Examples
    --------
    >>> rank(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([-9.0, 0.0, 0.5, 2.0, 99.0]))
    tensor([0.0250, 0.2500, 0.3750, 0.7500, 0.9974], dtype=torch.float64)
    """
    usual, scores = usual.double(), scores.double()
    m = len(usual)
    place = torch.searchsorted(usual, scores, right=True)
    low, high = usual[(place - 1).clamp(min=0)], usual[place.clamp(max=m - 1)]
    inside = (scores - low) / (high - low).clamp(min=torch.finfo(usual.dtype).tiny)
    above, below = ((scores - usual[i]).abs() for i in (-1, 0))
    outside = torch.where(place == m, above / (1 + above), 1 / (1 + below))
    share = torch.where((place > 0) & (place < m), inside, outside)
    return (place + share) / (m + 1)
