"""Likelihoods from labelled rows: the part of `adaptive` that needs no queries.

Letters: B tasks, or 1 for labelled rows shared by all tasks; S labelled rows, K classes, D
features; R calibration rows; M = min(S, D). The equations are in docs/adaptive.md.

Distances are only needed up to a constant per row: ||x||^2 is never computed, and ||x - w_k||^2 is
``w.w - 2 x.w``. Which code runs depends on shapes only, not on values of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..ops.adaptive import CENTRE, Labelled, calibrate, coordinates, labelled, likelihood
from ..rows import laid_out, products
from .hubs import hubs, one_shot_hubs
from .metric import (
    full_distances,
    full_metric,
    judges,
    scaled_distances,
    take,
    takes_full_metric,
)

MOST_ROWS = 128  # calibration rows, twice as many for the full metric, or K if larger, unless
MOST_ENTRIES = 2**24  # their matrix with the classes would exceed this
MIXTURES = (0.25, 0.5, 0.75, 1.0)  # weights of the full metric, in addition to 0
ONE_SHOT_TEMPER = 0.7  # of uncalibrated probabilities


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihoods of rows, up to a constant per row, calibrated on labelled rows.

    With x a row in the coordinates of `coordinates`, they are ``sharpness x.weights_k + bias_k``,
    plus a linear correction of x if there is one.
    """

    centre: Tensor  # [B or 1, D]
    prototypes: Tensor  # [B or 1, K, D] class means, in these coordinates
    weights: Tensor  # [B or 1, K, D] the prototypes times the metric
    squares: Tensor  # [B or 1, K] prototype . weights
    bias: Tensor  # [B or 1, K]
    shots: Tensor  # [B or 1, K] labelled rows of each class
    sharpness: Tensor  # [B or 1]
    temper: float  # factor on the final logits
    rows: int  # S
    # The metric: x.y becomes sum_d scale_d x_d y_d + projected (P x).(P y), the latter if full.
    scale: Tensor  # [B or 1, D]
    projection: Tensor | None = None  # P [B or 1, M, D]
    projected: Tensor | None = None  # [B or 1]
    mixture: Tensor | None = None  # [B or 1] weight of the full metric, in [0, 1]
    correction: Tensor | None = None  # [D + 1, K] of one task, the last row a constant
    # [B or 1] bool: every class has a row, and each is plainly finite; None: checked before
    finite: Tensor | None = None

    def task(self, number: int) -> Likelihood:
        """The likelihood of one task, [1, ..]."""
        if len(self.bias) == 1:
            return self
        part = slice(number, number + 1)
        own: Any = {name: x[part] for name, x in self.tensors().items()}
        return replace(self, **own)

    def to(self, device: torch.device | str) -> Likelihood:
        moved: Any = {name: x.to(device) for name, x in self.tensors().items()}
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tensor]:
        """Those of the fields that are tensors."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}

    def coordinates(self, rows: Tensor) -> Tensor:
        """Rows [B, N, D] minus the centre, normalised before and after."""
        return coordinates(rows, self.centre)

    def products(self, x: Tensor) -> Tensor:
        """Products of rows in the coordinates with the prototypes, in the metric, [B, N, K]."""
        return products(x, self.weights)

    def weighted_products(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Products in the metric of rows with weighted sums of rows and with themselves.

        [B, N, D] and [B, N, K] -> [B, N, K] and [B, N].
        """
        scaled = x * self.scale.unsqueeze(-2)
        inner = other = None
        if self.projection is not None and self.projected is not None:
            inner = products(x, self.projection)
            other = inner * column(self.projected)
        if has_gram(x.shape[-2], x.shape[-1], weights.shape[-1]):
            gram = products(scaled, x)
            if inner is not None and other is not None:
                gram = gram + products(other, inner)
            return torch.bmm(gram, weights), gram.diagonal(dim1=-2, dim2=-1)
        found = torch.bmm(scaled, torch.bmm(x.mT, weights))
        own = (scaled * x).sum(-1)
        if inner is not None and other is not None:
            found = found.add_(torch.bmm(other, torch.bmm(inner.mT, weights)))
            own = own.add_((other * inner).sum(-1))
        return found, own

    def distances_to_own(self, x: Tensor, labels: Tensor) -> Tensor:
        """Squared distances of rows, in the coordinates, to their own prototypes, [B, N]."""
        return self.squared(x - take(self.prototypes, labels)).clamp(min=0)

    def in_metric(self, x: Tensor) -> Tensor:
        """Rows [B, N, D] in the coordinates times the metric."""
        found = x * self.scale.unsqueeze(-2)
        if self.projection is None or self.projected is None:
            return found
        inner = products(x, self.projection) * column(self.projected)
        return found + inner @ self.projection

    def squared(self, x: Tensor) -> Tensor:
        """Products of rows [B, N, D] in the coordinates with themselves, in the metric, [B, N]."""
        plain: Tensor = (x.square() * self.scale.unsqueeze(-2)).sum(-1)
        if self.projection is None or self.projected is None:
            return plain
        inner = products(x, self.projection).square().sum(-1)
        return plain + inner * self.projected.unsqueeze(-1)

    def weight_of(self, queries: float) -> float:
        """The weight of one of this many queries in the class counts, next to the labelled rows."""
        return 2 * self.rows / (2 * self.rows + queries)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of rows [N, D] or [B, N, D] in input coordinates, [.., N, K].

        Each row is independent; adding the dual of a batch's `Solution` gives the logits of one
        more row of that batch.
        """
        x = self.coordinates(rows.to(self.weights.dtype).reshape(-1, *rows.shape[-2:]))
        found = self.products(x).mul_(column(self.sharpness)).add_(self.bias.unsqueeze(-2))
        if self.correction is not None:
            found += self.corrected(x)
        return found.reshape(*rows.shape[:-1], -1)

    def corrected(self, x: Tensor) -> Tensor:
        """What the correction adds to the logits of rows in the coordinates, [B, N, K]."""
        assert self.correction is not None
        return x @ self.correction[:-1] + self.correction[-1]


def has_gram(N: int, D: int, K: int) -> bool:
    """Whether the Gram matrix of the rows is less work than sums of rows."""
    return N * (D + K) <= 2 * D * K


def column(x: Tensor) -> Tensor:
    """One number per task, shaped to multiply matrices."""
    return x.view(-1, 1, 1)


def how_many_calibrate(S: int, K: int, full: bool) -> int:
    most = 2 * MOST_ROWS if full else MOST_ROWS
    return min(S, max(most, min(K, MOST_ENTRIES // K)))


def likelihood_of(
    support: Tensor, support_labels: Tensor, num_classes: int, metric: str = "auto"
) -> Likelihood:
    """The likelihoods estimated from labelled rows [B, S, D] with labels [B, S].

    Float32 or float64; every class must have a row. `metric` as in `paddle_ext.adaptive`.
    """
    K = num_classes
    _, S, D = support.shape
    if S == K:
        return one_shot(labelled(support, support_labels, K, 0), how_many_calibrate(S, K, False))
    full = takes_full_metric(metric, S, K, D)
    R = how_many_calibrate(S, K, full)
    return (full_likelihood if full else scaled_likelihood)(support, support_labels, K, R)


def full_likelihood(support: Tensor, labels: Tensor, K: int, R: int) -> Likelihood:
    """In the mixture of both metrics that makes the labels of the calibration rows most likely."""
    data = labelled(support, labels, K, R)
    who, scale = judges(data), data.scale.unsqueeze(1)
    weights = laid_out(data.means * scale)
    squares = products(data.means.square(), scale).squeeze(-1)
    cross = products(who.x, weights)
    base = scaled_distances(who, squares, cross)
    full = full_metric(data, support, labels)
    other, shrink = full_distances(who, data, full, base, weights, cross)
    sharpness, objective, drawn = calibrate(base.to, who.own, who.count)
    mixture = torch.zeros_like(sharpness)
    for share in MIXTURES:
        found = calibrate(torch.lerp(base.to, other.to, share), who.own, who.count)
        better = found.objective < objective
        sharpness = torch.where(better, found.sharpness, sharpness)
        objective = torch.where(better, found.objective, objective)
        drawn = torch.where(better.unsqueeze(-1), found.drawn, drawn)
        mixture = torch.where(better, share, mixture)
    projection, projected = full.projection, full.sign * mixture * shrink
    plain = 1 - mixture + full.plain * mixture * shrink
    inner = data.means @ projection.mT
    weights = weights * column(plain) + (inner * column(projected)) @ projection
    squares = (weights * data.means).sum(-1)
    return Likelihood(
        centre=data.centre,
        prototypes=data.means,
        weights=weights,
        squares=squares,
        bias=hubs(drawn, who.count.unsqueeze(-1)) - squares * (sharpness / 2).unsqueeze(-1),
        shots=data.shots,
        sharpness=sharpness,
        temper=1.0,
        rows=support.shape[1],
        scale=data.scale * plain.unsqueeze(-1),
        projection=projection,
        projected=projected,
        mixture=mixture,
    )


def scaled_likelihood(support: Tensor, labels: Tensor, K: int, R: int) -> Likelihood:
    """In the metric of the feature scale alone, in one native call."""
    found = likelihood(support, labels, K, R)
    return Likelihood(
        centre=found.centre,
        prototypes=found.means,
        weights=found.weights,
        squares=found.squares,
        bias=found.bias,
        shots=found.shots,
        sharpness=found.sharpness,
        temper=1.0,
        rows=support.shape[1],
        scale=found.scale,
        finite=found.finite,
    )


def one_shot(data: Labelled, R: int) -> Likelihood:
    """Without calibration: the sharpness is the prior's, and R of the rows judge which are hubs."""
    means = data.means
    B, K, D = means.shape
    squares = means.square().sum(-1)
    bias = -CENTRE / 2 * squares
    bias = bias + one_shot_hubs(means, bias, R)
    return Likelihood(
        centre=data.centre,
        prototypes=means,
        weights=means,
        squares=squares,
        bias=bias,
        shots=data.shots,
        sharpness=means.new_full((B,), CENTRE),
        temper=ONE_SHOT_TEMPER,
        rows=K,
        scale=means.new_ones(B, D),
    )
