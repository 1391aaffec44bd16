"""Strangers: queries of no known class.

The probabilities of a solution only compare classes with each other, so this needs the features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.learn import likelihood_of
from ..adaptive_rule.likelihood import coordinates
from ..methods import Prediction
from ..rows import (
    PART,
    class_means,
    computing_dtype,
    parts,
    products,
    sample_by_content,
    unit_rows,
)
from ..solution import Solution
from ..task import without_autocast

MOST_ORDINARY = 1024  # limit on labelled rows that queries are compared with
NO_SPREAD = 1e-6  # a smaller deviation is rounding
SAME_SCORE = 1e-5  # and so is a smaller difference of scores, as a share of the largest
SPREAD_SHARE = 0.25  # the deviation expected a priori, as a share of the mean
PRIOR_ROWS = 8  # weight of a prior, in rows
IN_CACHE = 2**21  # how many numbers the CPU judges at once, to stay in its cache
FOLDS = 5  # groups of classes, each left out in turn to simulate strangers
NO_PEERS = "support_labels must have a class of two rows or more, got one of each"


def strangers(
    solution: Solution | Prediction,
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    rate: float = 0.05,
) -> Tensor:
    """Flag queries of no known class; about `rate` of the queries of known classes are flagged too.

    Flags a `novelty` above 1 - `rate`. The rate holds on average, if labelled rows are like the
    queries. With n labelled rows of classes with two or more, a rate below 1 / (n + 1) cannot be
    held, and is refused: docs/presence.md says why. Samples of a class with a single labelled row,
    whose spread is unknown, are flagged more often.

    Parameters
    ----------
    solution, support, support_labels, query
        As in `novelty`.
    rate : float
        Share of the queries of known classes that may be flagged, in (0, 1].

    Returns
    -------
    Tensor [Q] bool
    """
    rate = check.real("rate", rate, positive=True, most=1)
    found = novelty(solution, support, support_labels, query)
    check_rate(rate, check.as_tensor(support_labels).long().bincount())
    return found > 1 - rate


@without_autocast()
def novelty(
    solution: Solution | Prediction, support: Tensor, support_labels: Tensor, query: Tensor
) -> Tensor:
    """How unlike its class each query is: near 1 for a sample of an unknown class.

    It is the share of labelled rows, each left out of its class, that are less strange than the
    query: about 5 in 100 samples like the labelled ones exceed 0.95. docs/presence.md has the three
    signs that make a row strange, and how they are weighed. For a PADDLE solution the class of a
    row is the one most probable for it alone, because a large class may have absorbed the rows of
    another.

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
    >>> novelty(found, support, labels, query).argmax(), strangers(found, support, labels, query)
    (tensor(2), tensor([False, False,  True]))
    """
    support, support_labels, query = check.tensors(support, support_labels, query)
    check.dense(support, support_labels, query)
    u = solution.probabilities
    if u.dim() != 2 or u.shape[0] != len(query):
        raise ValueError(
            "solution must belong to the one given task, with probabilities of shape "
            f"[{len(query)}, K], got {list(u.shape)}"
        )
    whole = solution.proportions if isinstance(solution, Solution) else u
    K = check.dense_values(support, support_labels, query, whole.shape[-1])
    model = familiar(support, support_labels.long(), K, None)
    if model is None:
        raise ValueError(NO_PEERS)
    of_paddle = isinstance(solution, Solution) and solution.concentration is None
    return model.novelty(query, None if of_paddle else solution.labels)


def hidden(support: Tensor, support_labels: Tensor) -> float:
    """How many samples of no known class look ordinary: have a `novelty` up to 1/2, as half of the
    samples of known classes have.

    `Solution.prevalence` needs it to say how much of a batch may be of no known class. The labelled
    rows tell it, with a fifth of the classes left out in turn. Of one or two classes none can be
    left out; then it is 0.

    Parameters
    ----------
    support, support_labels : Tensor [S, D], [S]
        As in `novelty`.

    Examples
    --------
    >>> import torch
    >>> labels = torch.arange(10).repeat(5)
    >>> hidden(torch.eye(10)[labels] + 0.01 * torch.randn(50, 10), labels)
    0.0
    """
    support, labels, K = check.labelled_rows(support, support_labels)
    model = familiar(support, labels, K, None)
    if model is None:
        raise ValueError(NO_PEERS)
    return float(model.hidden)


@dataclass(frozen=True)
class KnownClasses:
    """What is learned from the labelled rows of known classes; can be stored as arrays."""

    centre: Tensor  # [D]
    root: Tensor  # [D] square root of the feature weights
    prototypes: Tensor  # [K, D] in the coordinates, times the root
    mass: Tensor  # [K] of how many rows each is the mean
    unit_means: Tensor  # [K, D] class means of unit-norm rows
    shots: Tensor  # [K] labelled rows
    variance: Tensor  # [1] V, inside classes
    sharpness: Tensor  # [1] f
    hubs: Tensor  # [K] bias of the classes

    @classmethod
    def of(cls, rows: Tensor, unit: Tensor, labels: Tensor, num_classes: int) -> "KnownClasses":
        """Learn from labelled rows [S, D], the same rows with unit norm, and labels [S]."""
        found = likelihood_of(rows.unsqueeze(0), labels.unsqueeze(0), num_classes, "diagonal")
        root = found.scale[0].sqrt()
        return cls(
            centre=found.centre[0],
            root=root,
            prototypes=found.prototypes[0] * root,
            mass=found.mass[0],
            unit_means=class_means(unit, labels, num_classes),
            shots=found.shots[0],
            variance=found.variance,
            sharpness=found.sharpness,
            hubs=found.bias[0],
        )

    def signs(self, unit: Tensor, labels: Tensor | None, own: Tensor | None = None) -> Tensor:
        """Signs of strangeness of unit-norm rows [n, D], large for strange ones; [n, 3] float64.

        The distance to the class of `labels`, by default the most probable one; 1 minus the largest
        product with a class mean; and 1 minus the largest probability. With `own` [n], the rows are
        labelled rows of these classes, and each is left out of its class mean.
        """
        x = coordinates(unit.unsqueeze(0), self.centre.unsqueeze(0))[0]
        # The mean of the class means is near 0, so nothing cancels.
        squares = (x.square() @ self.root.square()).unsqueeze(1) + self.prototypes.square().sum(1)
        squares = (squares - 2 * products(x, self.prototypes * self.root)).clamp(min=0)
        alike = products(unit, self.unit_means)

        # The density of the rule: |x - m|^2 / c + V/2 ln c with c = 1 + 1 / M.
        spread = 1 + 1 / self.mass
        distances = squares / spread
        determinant = self.variance / 2 * spread.log()
        if own is not None:
            # Without a row its class has the prototype (M m - x) / (M - 1).
            at, M, n = own.unsqueeze(1), self.mass[own, None], self.shots[own, None]
            distances = distances.scatter(1, at, distances.gather(1, at) * (M + 1) / (M - 1))
            without = self.variance / 2 * (M / (M - 1)).log()
            determinant = determinant.expand_as(distances).scatter(1, at, without)
            alike = alike.scatter(1, at, (n * alike.gather(1, at) - 1) / (n - 1))
        logits = self.hubs - self.sharpness / 2 * (distances + determinant)
        labels = logits.argmax(1) if labels is None else labels
        # A classifier prefers classes with many rows, so a class with fewer may be the true one:
        # the distance is to the nearest of the label's class and all that have fewer rows.
        at = labels.unsqueeze(1)
        nearest = distances.gather(1, at).squeeze(1)
        if (self.shots != self.shots[0]).any():
            others = (self.shots >= self.shots[at]).scatter(1, at, False)
            nearest = distances.masked_fill(others, torch.inf).amin(1)
        doubt = 1 - logits.softmax(1).amax(1)
        return torch.stack([nearest, 1 - alike.amax(1), doubt], dim=1).double()


@dataclass(frozen=True)
class Familiar(KnownClasses):
    """A model of what samples of known classes look like."""

    weights: Tensor  # [3] float64: weights of the signs
    hidden: Tensor  # [] float64: the share of strangers with a novelty up to 1/2
    ordinary: Tensor  # [m] float64: sorted strangeness scores of labelled rows

    def novelty(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Novelty of rows [n, D] with these labels, by default the most probable; float64."""
        row = 3 * rows.shape[-1] + 5 * len(self.mass)
        found = []
        for part in parts(len(rows), row, IN_CACHE if rows.is_cpu else PART):
            unit = unit_as(rows[part], self.mass.dtype)
            found.append(self.signs(unit, None if labels is None else labels[part]) @ self.weights)
        return rank(self.ordinary, torch.cat(found))


def unit_as(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Unit-norm rows [n, D] in this dtype."""
    if rows.dtype is dtype:
        nothing = rows.new_zeros(1, rows.shape[1])
        return coordinates(rows.unsqueeze(0), nothing)[0]
    # Unit-norm first: float64 values may be too large.
    return unit_rows(rows.double()).to(dtype)


def check_rate(rate: float, shots: Tensor) -> None:
    """Reject a rate of flagged rows that labelled rows, so many of each class, cannot hold."""
    rows = min(int(shots[shots > 1].sum()), MOST_ORDINARY)
    if rate * (rows + 1) < 0.99:  # the least, rounded as below, is enough
        raise ValueError(
            f"rate must be at least {1 / (rows + 1):.3g}, the lowest that {rows} labelled rows of "
            f"classes with two or more can hold, got {rate:g}"
        )


def familiar(support: Tensor, labels: Tensor, K: int, fair: Tensor | None) -> Familiar | None:
    """Learn from labelled rows; what is ordinary, from the `fair` [S]. None if none has a peer."""
    rows = support.to(computing_dtype(support))
    peers = (labels.bincount(minlength=K) > 1)[labels]
    with_peers = (peers if fair is None else peers & fair).nonzero().view(-1)
    if len(with_peers) == 0:
        return None
    unit = unit_rows(rows.double()).to(rows.dtype)
    found = KnownClasses.of(rows, unit, labels, K)
    chosen = with_peers[sample_by_content(rows[with_peers], MOST_ORDINARY)]
    pieces = [chosen[part] for part in parts(len(chosen), 3 * rows.shape[1] + 5 * K)]
    # A batch corrects some of the labels that single rows get, so scores with either label count.
    alone, corrected = (
        torch.cat([found.signs(unit[i], labels[i] if true else None, labels[i]) for i in pieces])
        for true in (False, True)
    )
    strange = signs_as_strangers(rows, unit, labels, chosen, K)
    weights = discriminant(alone, strange)
    ordinary = ((alone + corrected) @ weights / 2).sort().values
    hidden = (rank(ordinary, strange @ weights) <= 0.5).sum() / (len(strange) + PRIOR_ROWS)
    return Familiar(**vars(found), weights=weights, hidden=hidden.double(), ordinary=ordinary)


def signs_as_strangers(
    rows: Tensor, unit: Tensor, labels: Tensor, chosen: Tensor, K: int
) -> Tensor:
    """Signs [n, 3] of chosen rows, their fifth of the classes left out; none for two classes."""
    folds = min(FOLDS, K) if K > 2 else 0
    fold = torch.arange(K, device=labels.device) % max(1, folds)
    signs = [rows.new_empty(0, 3, dtype=torch.float64)]
    for number in range(folds):
        rest = fold != number
        among = rest[labels]
        places = (rest.cumsum(0) - 1)[labels[among]]
        known = KnownClasses.of(rows[among], unit[among], places, int(rest.sum()))
        strange = chosen[~among[chosen]]
        for part in parts(len(strange), 3 * rows.shape[1] + 5 * K):
            signs.append(known.signs(unit[strange[part]], None))
    return torch.cat(signs)


def discriminant(known: Tensor, strange: Tensor) -> Tensor:
    """Weights [3] of the signs by Fisher's linear discriminant of rows [.., 3], none below 0.

    With few rows they are shrunk towards weighing products only. For known rows the weighted sum
    has a deviation of 1.
    """
    unit = torch.stack([shrunk_deviation(x) for x in known.unbind(1)])
    known, strange = known / unit, strange / unit
    off = torch.cat([x - x.mean(0) for x in (known, strange) if len(x)])
    m, prior = min(len(known), len(strange)), known.new_tensor([0.0, 1.0, 0.0])
    covariance = off.mT @ off
    covariance.diagonal().add_(PRIOR_ROWS)
    covariance /= len(off) + PRIOR_ROWS
    apart = strange.mean(0) - known.mean(0) if m else prior
    apart = (m * apart + PRIOR_ROWS * prior) / (m + PRIOR_ROWS)
    weights = torch.linalg.solve(covariance, apart).clamp(min=0)
    weights[1] += weights.sum() == 0  # products, if nothing identifies strangers
    found: Tensor = weights / shrunk_deviation(known @ weights) / unit
    return found


def shrunk_deviation(x: Tensor) -> Tensor:
    """The standard deviation of numbers >= 0; if they are few, shrunk to a share of their mean."""
    mean = x.mean()
    squares = (x - mean).square().sum() + PRIOR_ROWS * (SPREAD_SHARE * mean) ** 2
    return (squares / (len(x) + PRIOR_ROWS)).sqrt().clamp(min=NO_SPREAD)


def rank(ordinary: Tensor, scores: Tensor) -> Tensor:
    """The share of sorted scores [m] below each score, and of half of those equal to it.

    Scores are equal up to rounding; beyond that the share increases strictly with the score.
    """
    ordinary, scores = ordinary.double(), scores.double()
    m, near = len(ordinary), SAME_SCORE * ordinary.abs().amax()
    first = torch.searchsorted(ordinary, scores - near)
    place = torch.searchsorted(ordinary, scores + near, right=True)
    low, high = ordinary[(place - 1).clamp(min=0)], ordinary[place.clamp(max=m - 1)]
    inside = (scores - low) / (high - low).clamp(min=torch.finfo(ordinary.dtype).tiny)
    above, below = ((scores - ordinary[i]).abs() for i in (-1, 0))
    outside = torch.where(place == m, above / (1 + above), 1 / (1 + below))
    share = torch.where((place > 0) & (place < m), inside, outside)
    return torch.where(place > first, (first + 1 + place) / 2, place + share) / (m + 1)
