"""Strangers: queries of no known class.

The probabilities of a solution only compare classes with each other, so this needs the features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import check
from ..methods import Prediction
from ..ops.adaptive import labelled
from ..ops.coordinates import coordinates
from ..ops.values import dense_values
from ..rows import (
    class_sums,
    computing_dtype,
    evenly_spread,
    parts,
    squared_distances,
    unit_rows,
)
from ..rule.likelihood import how_many_calibrate
from ..solution import Solution

ALONE = "support_labels must have a class of two rows or more, got one of each"
MOST_ROWS = 1024  # limit on labelled rows that queries are compared with
NO_SPREAD = 1e-6  # of labelled rows; less is rounding
SPREAD_SHARE = 0.25  # of the mean: the spread a priori
PRIOR_ROWS = 8  # weight of a prior, in rows
FOLDS = 5  # of classes left out together, to simulate strangers


def novelty(
    solution: Solution | Prediction, support: Tensor, support_labels: Tensor, query: Tensor
) -> Tensor:
    """How unlike its class each query is: near 1 for a sample of an unknown class.

    The share of labelled rows that are less strange than the query, each of them left out of its
    class. A row is strange if it is far from the mean of its class, in the feature scale of the
    method `adaptive`, and if its cosine with it, and its largest with any class mean, are small.
    The weights of distances and cosines are chosen on labelled rows that are scored twice: with
    their class known, and without it, as strangers. With few rows, cosines dominate. The cosine
    with the class is ignored if most labelled rows have their largest cosine with another class,
    because labels are then often wrong. About 5 in 100 samples like the labelled ones exceed 0.95.
    Class means are those of the labelled rows, whatever the solver: those of a solution may have
    moved to the strangers. For a PADDLE solution the class of a row is that of the largest cosine,
    because a large class may have absorbed the rows of another.

    Parameters
    ----------
    solution : Solution or Prediction
        The result of `solve`, or of a method's `predict`, for the following; one task.
    support, support_labels, query : Tensor [S, D], [S], [Q, D]
        At least one class must have two rows or more: a single row says nothing about the spread of
        its class.

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
            "solution must belong to the one given task, with probabilities of shape "
            f"[{len(query)}, K], got {list(u.shape)}"
        )
    K = dense_values(support, support_labels, query, u.shape[-1])
    known = familiar(support.detach(), support_labels.long(), K)
    if known is None:
        raise ValueError(ALONE)
    of_paddle = isinstance(solution, Solution) and solution.concentration is None
    return known.novelty(query.detach(), None if of_paddle else solution.labels)


@dataclass(frozen=True)
class KnownClasses:
    """Location of the labelled rows of classes."""

    centre: Tensor  # [D]
    means: Tensor  # [K, D] class means, minus the centre
    scale: Tensor  # [D] feature weights
    directions: Tensor  # [K, D] unit-norm class means

    def signs(self, unit: Tensor, labels: Tensor | None) -> Tensor:
        """Signs of unit-norm rows with these labels, by default the largest cosines', [n, 3]."""
        best, nearest = (cosines := unit @ self.directions.mT).max(1)
        own = nearest if labels is None else labels
        cosine = cosines.gather(1, own.unsqueeze(1)).squeeze(1)
        return signs(self.distances(unit, own), cosine, best)

    def distances(self, unit: Tensor, labels: Tensor) -> Tensor:
        """Squared distances of unit-norm rows to the means of their classes, [n]."""
        x = coordinates(unit.unsqueeze(0), self.centre.unsqueeze(0))[0]
        return ((x - self.means[labels]).square() * self.scale).sum(-1)

    def nearest(self, unit: Tensor) -> Tensor:
        """The class of the smallest distance, [n]."""
        x = coordinates(unit.unsqueeze(0), self.centre.unsqueeze(0))[0]
        scale = self.scale.sqrt()
        return squared_distances(x * scale, self.means * scale).argmin(1)


@dataclass(frozen=True)
class Familiar(KnownClasses):
    """A model of samples of known classes; tensors, so that they can be stored as arrays."""

    weights: Tensor  # [3] float64: weights of the signs
    ordinary: Tensor  # [m] float64: sorted strangeness of labelled rows

    def novelty(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Novelty of rows [n, D] with these labels, by default the largest cosines'; float64."""
        found = []
        for part in parts(len(rows), 3 * rows.shape[-1] + len(self.means)):
            # Unit-norm first: float64 values may be too large for the dtype of the means.
            unit = unit_rows(rows[part].double()).to(self.means.dtype)
            found.append(self.signs(unit, None if labels is None else labels[part]) @ self.weights)
        return rank(self.ordinary, torch.cat(found))


def signs(distance: Tensor, own: Tensor, best: Tensor) -> Tensor:
    """Signs of strangeness, large for strange rows: distance and lack of cosines, [n, 3] float64.

    From the distance to the class mean, the cosine with it and the largest cosine, [n] each.
    """
    return torch.stack([distance.double(), 1 - own.double(), 1 - best.double()], dim=1)


def familiar(support: Tensor, labels: Tensor, num_classes: int) -> Familiar | None:
    """The model of labelled rows [S, D] of all classes; None if no class has two."""
    K = num_classes
    rows = support.to(computing_dtype(support))
    shots = labels.bincount(minlength=K)
    able = (shots > 1)[labels].nonzero().view(-1)
    if len(able) == 0:
        return None
    unit = unit_rows(rows.double()).to(rows.dtype)
    sums = class_sums(unit, labels, K)[0].to(rows.dtype)
    found = known_classes(rows, labels, unit_rows(sums))
    m = min(len(able), MOST_ROWS)
    chosen = able[evenly_spread(m, len(able), able.device)]
    ordinary = torch.cat(
        [
            judged_as_known(found, unit[part], labels[part], sums, shots)
            for part in (chosen[one] for one in parts(m, 4 * rows.shape[1] + 2 * K))
        ]
    )
    strange = judged_as_strange(found, rows, unit, labels, chosen)
    # If labels are mostly wrong, strangers may fit theirs better than known rows do.
    own_is_largest = int((ordinary[:, 1] == ordinary[:, 2]).sum())
    trusted = float(2 * (own_is_largest + PRIOR_ROWS) > m + PRIOR_ROWS)
    combined = ordinary.new_tensor([[1.0, 0.0], [0.0, trusted], [0.0, 1.0]])  # the cosines together
    weights = combined @ discriminant(ordinary @ combined, strange @ combined)
    return Familiar(**vars(found), weights=weights, ordinary=(ordinary @ weights).sort().values)


def known_classes(rows: Tensor, labels: Tensor, directions: Tensor) -> KnownClasses:
    S, K = len(rows), len(directions)
    judging = 0 if S == K else how_many_calibrate(S, K, False)
    found = labelled(rows.unsqueeze(0), labels.unsqueeze(0), K, judging)
    return KnownClasses(found.centre[0], found.means[0], found.scale[0], directions)


def judged_as_known(
    found: KnownClasses, x: Tensor, labels: Tensor, sums: Tensor, shots: Tensor
) -> Tensor:
    """Signs of labelled unit-norm rows, as for new rows of their classes; [n, 3].

    A row is part of the mean of its class. The mean without it is shorter, but has the same product
    with the row as the true mean, on average; a new row would see the length of the whole.
    """
    n, own = shots[labels].to(x.dtype), labels.unsqueeze(1)
    distance = found.distances(x, labels) * (n + 1) / (n - 1)
    product = ((sums[labels] - x) * x).sum(-1) / (n - 1)
    length = torch.linalg.vector_norm(sums[labels], dim=-1) / n
    cosine = (product / length.clamp(min=NO_SPREAD)).clamp(min=-1)
    best = (x @ found.directions.mT).scatter(1, own, cosine.unsqueeze(1)).amax(1)
    return signs(distance, cosine, best)


def judged_as_strange(
    found: KnownClasses, rows: Tensor, unit: Tensor, labels: Tensor, chosen: Tensor
) -> Tensor:
    """Signs of the chosen rows if their class and others were unknown; none for two classes."""
    K = len(found.means)
    folds = min(FOLDS, K) if K > 2 else 0
    fold = torch.arange(K, device=labels.device) % max(1, folds)
    judged = [rows.new_empty(0, 3, dtype=torch.float64)]
    for number in range(folds):
        rest = fold != number
        among = rest[labels]
        known = known_classes(
            rows[among], (rest.cumsum(0) - 1)[labels[among]], found.directions[rest]
        )
        strange = chosen[~among[chosen]]
        for part in parts(len(strange), 4 * rows.shape[1] + 2 * K):
            x = unit[strange[part]]
            judged.append(known.signs(x, known.nearest(x)))
    return torch.cat(judged)


def discriminant(known: Tensor, strange: Tensor) -> Tensor:
    """Weights of the signs: Fisher's linear discriminant of rows [.., 2], none below 0; [2].

    Few rows are shrunk towards independent signs of which only the cosines are informative. For
    known rows the weighted sum has a spread of 1.
    """
    unit = torch.stack([spread(x) for x in known.unbind(1)])
    known, strange = known / unit, strange / unit
    off = torch.cat([x - x.mean(0) for x in (known, strange) if len(x)])
    m, prior = min(len(known), len(strange)), known.new_tensor([0.0, 1.0])
    covariance = (off.mT @ off + PRIOR_ROWS * torch.eye(2).to(off)) / (len(off) + PRIOR_ROWS)
    apart = strange.mean(0) - known.mean(0) if m else prior
    apart = (m * apart + PRIOR_ROWS * prior) / (m + PRIOR_ROWS)
    weights = torch.linalg.solve(covariance, apart).clamp(min=0)
    weights[1] += weights.sum() == 0  # cosines, if nothing identifies strangers
    found: Tensor = weights / spread(known @ weights) / unit
    return found


def spread(x: Tensor) -> Tensor:
    """The spread of non-negative numbers; for few numbers, shrunk to a share of the mean."""
    mean = x.mean()
    squares = (x - mean).square().sum() + PRIOR_ROWS * (SPREAD_SHARE * mean) ** 2
    return (squares / (len(x) + PRIOR_ROWS)).sqrt().clamp(min=NO_SPREAD)


def rank(ordinary: Tensor, scores: Tensor) -> Tensor:
    """The share of sorted `ordinary` scores [m] below each score, interpolated and extrapolated.

    It increases strictly with the score, so that the order is preserved.

    Examples
    --------
    >>> rank(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([-9.0, 0.0, 0.5, 2.0, 99.0]))
    tensor([0.0250, 0.2500, 0.3750, 0.7500, 0.9974], dtype=torch.float64)
    """
    ordinary, scores = ordinary.double(), scores.double()
    m = len(ordinary)
    place = torch.searchsorted(ordinary, scores, right=True)
    low, high = ordinary[(place - 1).clamp(min=0)], ordinary[place.clamp(max=m - 1)]
    inside = (scores - low) / (high - low).clamp(min=torch.finfo(ordinary.dtype).tiny)
    above, below = ((scores - ordinary[i]).abs() for i in (-1, 0))
    outside = torch.where(place == m, above / (1 + above), 1 / (1 + below))
    share = torch.where((place > 0) & (place < m), inside, outside)
    return (place + share) / (m + 1)
