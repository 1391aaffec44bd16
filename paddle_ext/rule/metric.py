"""Metrics chosen by labelled rows: distances of calibration rows, each left out of its class.

Letters: B tasks, or 1 for labelled rows shared by all tasks; S labelled rows, K classes, D
features; R calibration rows; M = min(S, D). The equations are in docs/adaptive.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.adaptive import Labelled

NO_SCATTER = 1e-10  # squared distances below are rounding
FULL_SHOTS = 4  # rows per class from which the full metric is used if cheap, and
FULL_WORK = 2**27  # limit on cheap multiplications; with twice as many rows it is always used


@dataclass(frozen=True)
class Judges:
    """Calibration rows: labelled rows of classes with two or more, evenly spread."""

    x: Tensor  # [B, R, D]
    own: Tensor  # [B, R] their classes
    counts: Tensor  # [B, R] 1 for a row that counts, 0 for padding
    count: Tensor  # [B] number of rows that count
    shots: Tensor  # [B, R] of their classes, at least 2
    off: Tensor  # [B, R] squared distances to their class means, in the feature scale

    @property
    def rate(self) -> Tensor:
        """Factor by which a row is farther from the mean of the others, squared; [B, R]."""
        return (self.shots + 1) / (self.shots - 1)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over the rows that count, [B, R] -> [B, 1]."""
        return (x * self.counts).sum(-1, keepdim=True) / self.count.unsqueeze(-1)

    def of(self, x: Tensor) -> Tensor:
        """The entries of the own classes, [B, R, K] -> [B, R]."""
        return x.gather(-1, self.own.unsqueeze(-1)).squeeze(-1)


def judges(data: Labelled) -> Judges:
    places = torch.arange(data.own.shape[-1], device=data.own.device)
    return Judges(
        x=data.x,
        own=data.own,
        counts=(places < data.judging.unsqueeze(-1)).to(data.x.dtype),
        count=data.judging,
        shots=data.shots.gather(1, data.own).clamp(min=2),
        off=data.off,
    )


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows by their numbers in each task: [B, N, D] and [B, R] -> [B, R, D]."""
    B, N, D = rows.shape
    start = torch.arange(0, B * N, N, device=rows.device).unsqueeze(-1)
    found = rows.reshape(-1, D).index_select(0, (index + start).reshape(-1))
    return found.view(*index.shape, D)


@dataclass(frozen=True)
class Distances:
    """Squared distances of the calibration rows in one metric, each left out of its class."""

    to: Tensor  # [B, R, K], up to a constant per row
    own: Tensor  # [B, R] to the mean of the other rows of its class


def scaled_distances(who: Judges, squares: Tensor, cross: Tensor) -> Distances:
    """In the metric of the feature scale; `squares` w.w [B, K], `cross` x.w [B, R, K]."""
    own = who.rate * who.off
    to = torch.sub(squares.unsqueeze(1), cross, alpha=2)
    to.scatter_add_(-1, who.own.unsqueeze(-1), (own - who.off).unsqueeze(-1))
    return Distances(to, own)


@dataclass(frozen=True)
class FullMetric:
    """x A y with A = (C / level + 1)^-1, C the within-class covariance, level its mean.

    x A y is ``plain x.y + sign (P x).(P y)``, the first product in the feature scale. P has S rows
    (by the Woodbury identity) or D, whichever is cheaper.
    """

    projection: Tensor  # P [B, M, D]
    plain: float
    sign: float
    inverse_scatter: Tensor  # [B, 1] 1 / (degrees of freedom x level)

    def product(self, plain: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """From the plain products [B, N, L] and the projections of both sides."""
        found = (self.sign * x) @ y.mT
        return found.add_(plain) if self.plain else found


def full_metric(data: Labelled, support: Tensor, labels: Tensor) -> FullMetric:
    B, S, D = support.shape
    labels = labels.clamp(0, data.shots.shape[-1] - 1)  # unchecked ones may be no class
    root = data.scale.unsqueeze(1).sqrt()
    off = torch.addcmul(-data.centre.unsqueeze(1), support, data.first.unsqueeze(-1))
    off = off.mul_(data.second.unsqueeze(-1)).sub_(take(data.means, labels)).mul_(root)
    degrees = S - data.shots.shape[-1]
    scatter = off.square().sum((-2, -1)).div_(D).add_(degrees * NO_SCATTER / D).view(B, 1, 1)
    if S < D:
        gram = (off @ off.mT).add_(scatter * torch.eye(S, dtype=off.dtype, device=off.device))
        right = off.mul_(root)
    else:
        eye = torch.eye(D, dtype=off.dtype, device=off.device)
        gram = (off.mT @ off).div_(scatter).add_(eye)
        right = eye * root
    factor = torch.linalg.cholesky_ex(gram).L
    projection = torch.linalg.solve_triangular(factor, right, upper=False)
    plain, sign = (1.0, -1.0) if S < D else (0.0, 1.0)
    return FullMetric(projection, plain, sign, 1 / scatter.view(B, 1))


def full_distances(
    who: Judges, data: Labelled, metric: FullMetric, base: Distances, weights: Tensor, cross: Tensor
) -> tuple[Distances, Tensor]:
    """In the full metric without the row itself, as large as `base` on average; and 1 / kappa.

    Removing a row removes ``cut v v^T`` from the covariance, where v is its difference from the
    class mean, so the metric without it follows from the metric with it.
    """
    x, w = who.x @ metric.projection.mT, data.means @ metric.projection.mT
    cross = metric.product(cross, x, w)
    if cross.shape[-2] < cross.shape[-1]:  # too many classes for their matrix
        squares = metric.plain * (data.means * weights).sum(-1) + metric.sign * w.square().sum(-1)
        own_class = metric.product(take(data.means, who.own) @ weights.mT, take(w, who.own), w)
    else:
        gram = metric.product(data.means @ weights.mT, w, w)
        squares = gram.diagonal(dim1=-2, dim2=-1)
        own_class = take(gram, who.own)
    off = (x - take(w, who.own)).square_().sum(-1) * metric.sign  # v A v
    off = (off + metric.plain * base.own / who.rate).clamp(min=0)
    with_off = cross - own_class  # v A w, [B, R, K]
    away = (off + who.of(with_off)).unsqueeze(-1) - with_off  # v A (x - w)

    cut = who.shots / (who.shots - 1) * metric.inverse_scatter
    kept = (1 - cut * off).clamp(min=1e-3)
    own = who.rate * off / kept
    to = torch.sub(squares.unsqueeze(1), cross, alpha=2)
    row = off - squares.gather(1, who.own) + 2 * who.of(cross)  # x A x, missing in all others
    to.addcmul_((cut / kept).unsqueeze(-1), away.square_())
    to.scatter_(-1, who.own.unsqueeze(-1), (own - row).unsqueeze(-1))
    shrink = (who.mean(base.own) + NO_SCATTER) / (who.mean(own) + NO_SCATTER)
    to.mul_(shrink.unsqueeze(-1))
    return Distances(to, own * shrink), shrink.squeeze(-1)


def takes_full_metric(metric: str, S: int, K: int, D: int) -> bool:
    if metric != "auto":
        return metric == "full"
    shots = FULL_SHOTS if S * D * min(S, D) <= FULL_WORK else 2 * FULL_SHOTS
    return shots * K <= S
