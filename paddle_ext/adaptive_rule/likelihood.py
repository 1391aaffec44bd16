"""Likelihoods from labelled rows: the part of `adaptive` that needs no queries.

Letters: B tasks, or 1 for labelled rows shared by all tasks; S labelled rows, K classes, D
features; R calibration rows; M = min(S, D). The equations are in docs/adaptive.md.

Distances are only needed up to a constant per row: ||x||^2 is never computed, and ||x - w_k||^2 is
``w.w - 2 x.w``. Which code runs depends on shapes only, not on values of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..native.coordinates import as_split, coordinates, numbers
from ..native.load import module as native
from ..rows import class_sums, laid_out, products
from .hubs import one_shot_hubs
from .kernels import CENTRE, Labelled, Likelihoods, labelled, likelihood

MOST_ROWS = 128  # calibration rows; twice as many for the full metric, or K if that is more
MOST_ENTRIES = 2**24  # limit on calibration rows times classes, if there are more than `MOST_ROWS`
ONE_SHOT_TEMPER = 0.7  # factor on logits that cannot be calibrated


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihoods of rows, up to a constant per row, calibrated on labelled rows.

    With x a row in the coordinates of `coordinates`, they are ``sharpness x.weights_k + bias_k``,
    plus a linear correction of x if there is one.
    """

    centre: Tensor  # [B or 1, D]
    prototypes: Tensor  # [B or 1, K, D] class means, in these coordinates
    scaled: Tensor  # [B or 1, N, D] this and what has no comment: as in `Likelihoods`
    squares: Tensor  # [B or 1, K]
    bias: Tensor  # [B or 1, K]
    shots: Tensor  # [B or 1, K] labelled rows of each class
    sharpness: Tensor  # [B or 1]
    variance: Tensor  # [B or 1] mean squared distance of a labelled row to its prototype
    temper: float  # factor on the final logits
    rows: int  # S
    scale: Tensor  # [B or 1, D]
    # With a full metric only:
    factor: Tensor | None = None  # [B or 1, M, M]
    solved: Tensor | None = None  # [B or 1, K, M]
    shares: Tensor | None = None  # [B or 1, 3]
    correction: Tensor | None = None  # [D + 1, K] of one task, the last row a constant
    # [B or 1] bool: True if every class has a row and all are finite, False is inconclusive; None:
    # already checked
    finite: Tensor | None = None

    @cached_property
    def weights(self) -> Tensor:
        """The prototypes times the metric, [B or 1, K, D]."""
        return laid_out(self.in_metric(self.prototypes))

    @cached_property
    def diagonal(self) -> Tensor:
        """The weights of the features in the metric, [B or 1, D]."""
        return self.scale if self.shares is None else self.scale * self.shares[:, 1:2]

    @cached_property
    def projection(self) -> tuple[Tensor, Tensor] | None:
        """P and c of the full metric: x.y is ``sum_d diagonal_d x_d y_d + c (P x).(P y)``.

        [B or 1, M, D] and [B or 1].
        """
        if self.factor is None or self.shares is None:
            return None
        root = self.scale.sqrt()
        offsets = numbers(self.scaled[:, : -self.bias.shape[1]], root.shape[-1])
        right = offsets * root.unsqueeze(1) if offsets.shape[1] else torch.diag_embed(root)
        return solved_by(numbers(self.factor, self.factor.shape[1]), right), self.shares[:, 2]

    def task(self, number: int) -> Likelihood:
        """The likelihood of one task, [1, ..]."""
        if len(self.bias) == 1:
            return self
        part = slice(number, number + 1)
        own: Any = {name: x[part] for name, x in self.tensors().items()}
        return replace(self, **own)

    def to(self, device: torch.device | str) -> Likelihood:
        if self.bias.device == torch.device(device):
            return self
        moved: Any = {name: x.to(device) for name, x in self.tensors().items()}
        for name, width in self.widths().items():
            moved[name] = as_split(numbers(getattr(self, name), width).to(device))
        return replace(self, **moved)

    def widths(self) -> dict[str, int]:
        """The tensors that are split into halves on CUDA, with the length of their rows."""
        found = {"scaled": self.scale.shape[-1]}
        if self.factor is not None:
            found |= dict.fromkeys(("factor", "solved"), self.factor.shape[1])
        return found

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in found.items() if isinstance(x, Tensor)}

    def coordinates(self, rows: Tensor) -> Tensor:
        """Rows [B, N, D] made unit-norm, minus the centre, and made unit-norm again."""
        return coordinates(rows, self.centre)

    def products(self, x: Tensor) -> Tensor:
        """Products of rows in the coordinates with the prototypes, in the metric, [B, N, K]."""
        return products(x, self.weights)

    def distances_to_own(self, x: Tensor, labels: Tensor) -> Tensor:
        """Squared distances of rows, in the coordinates, to their own prototypes, [B, N]."""
        return self.squared(x - take(self.prototypes, labels)).clamp(min=0)

    def in_metric(self, x: Tensor) -> Tensor:
        """Rows [B, N, D] in the coordinates times the metric."""
        found = x * self.diagonal.unsqueeze(-2)
        if self.projection is None:
            return found
        P, projected = self.projection
        return found + (products(x, P) * column(projected)) @ P

    def squared(self, x: Tensor) -> Tensor:
        """Products of rows [B, N, D] in the coordinates with themselves, in the metric, [B, N]."""
        plain: Tensor = (x.square() * self.diagonal.unsqueeze(-2)).sum(-1)
        if self.projection is None:
            return plain
        P, projected = self.projection
        return plain + products(x, P).square().sum(-1) * projected.unsqueeze(-1)

    @property
    def mean_shots(self) -> float:
        return self.rows / self.bias.shape[-1]

    def excess(self, more: Tensor | float = 0.0) -> Tensor:
        """How much farther prototypes are because they have few rows, [B or 1, K].

        The mean of n rows is variance / n from the mean of its class, in squared distance; this is
        relative to classes of `mean_shots` rows. `more` [1, K] is the weight of further rows.
        """
        v, few = self.variance.unsqueeze(-1), self.shots.clamp(min=1)
        return v / (few + more) - v / (more + max(self.mean_shots, 1.0))

    def weight_of(self, queries: float) -> float:
        """The weight of a query in the class counts, if there are this many queries.

        It falls with their number, so that a large batch does not overrule the labelled rows.
        """
        return 2 * self.rows / (2 * self.rows + queries)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of rows [N, D] or [B, N, D] in input coordinates, [.., N, K].

        Each row is independent; adding the dual of a batch's `Solution` gives the logits of one
        more row of that batch.
        """
        x = self.coordinates(rows.to(self.bias.dtype).reshape(-1, *rows.shape[-2:]))
        found = self.products(x).mul_(column(self.sharpness)).add_(self.bias.unsqueeze(-2))
        if self.correction is not None:
            found += self.corrected(x)
        return found.reshape(*rows.shape[:-1], -1)

    def corrected(self, x: Tensor) -> Tensor:
        """What the correction adds to the logits of rows in the coordinates, [B, N, K]."""
        assert self.correction is not None
        return x @ self.correction[:-1] + self.correction[-1]


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows by their numbers in each task: [B, N, D] and [B, R] -> [B, R, D]."""
    B, N, D = rows.shape
    start = torch.arange(0, B * N, N, device=rows.device).unsqueeze(-1)
    found = rows.reshape(-1, D).index_select(0, (index + start).reshape(-1))
    return found.view(*index.shape, D)


def solved_by(factor: Tensor, right: Tensor) -> Tensor:
    """L^-1 times a matrix [B, M, D], L given as the `factor` of `Likelihoods`."""
    M = right.shape[1]
    found = torch.empty_like(right)
    for start in range(0, M, native.FACTOR_BLOCK):
        here = slice(start, min(start + native.FACTOR_BLOCK, M))
        left = right[:, here] - factor[:, here, :start] @ found[:, :start]
        found[:, here] = factor[:, here, here] @ left
    return found


def column(x: Tensor) -> Tensor:
    """One number per task, shaped to multiply matrices."""
    return x.view(-1, 1, 1)


def calibration_count(S: int, K: int, full: bool) -> int:
    """How many of S labelled rows calibrate the sharpness and, if `full`, choose the metric."""
    most = 2 * MOST_ROWS if full else MOST_ROWS
    return min(S, max(most, min(K, MOST_ENTRIES // K)))


def uses_full_metric(metric: str, S: int, K: int) -> bool:
    """Whether the option `metric` means the full metric for S labelled rows of K classes."""
    return S > K and metric != "diagonal"


def likelihood_of(
    support: Tensor, support_labels: Tensor, num_classes: int, metric: str = "auto"
) -> Likelihood:
    """The likelihood learned from labelled rows [B, S, D] with labels [B, S].

    Float32 or float64; every class must have a row. `metric` as in `paddle_ext.adaptive`.
    """
    K, S = num_classes, support.shape[1]
    if S == K:
        return one_shot(labelled(support, support_labels, K, 0), calibration_count(S, K, False))
    return calibrated(learned(support, support_labels, K, metric), S)


def learned(
    support: Tensor, labels: Tensor, num_classes: int, metric: str = "auto", *, every: bool = False
) -> Likelihoods:
    """The native likelihoods of more labelled rows than classes; `every` as in `likelihood`."""
    S = support.shape[1]
    full = uses_full_metric(metric, S, num_classes)
    rows = calibration_count(S, num_classes, full)
    return likelihood(support, labels, num_classes, rows, full, every)


def calibrated(found: Likelihoods, rows: int) -> Likelihood:
    """The result of the native code as a `Likelihood`; `rows` is the number of labelled rows."""
    return Likelihood(
        centre=found.centre,
        prototypes=found.means,
        scaled=found.scaled,
        squares=found.squares,
        bias=found.bias,
        shots=found.shots,
        sharpness=found.sharpness,
        variance=found.variance,
        temper=1.0,
        rows=rows,
        scale=found.scale,
        factor=found.factor,
        solved=found.solved,
        shares=found.shares,
        finite=found.finite,
    )


def one_shot(data: Labelled, R: int) -> Likelihood:
    """The likelihood for one row per class: the sharpness is the prior's, and R rows find hubs."""
    means, K = data.means, data.means.shape[1]
    squares, hubs = one_shot_hubs(means, data.scale, R)
    return Likelihood(
        centre=data.centre,
        prototypes=means,
        scaled=as_split(means, data.scale),
        squares=squares,
        bias=hubs - CENTRE / 2 * squares,
        shots=data.shots,
        sharpness=means.new_full((len(means),), CENTRE),
        variance=means.new_zeros(len(means)),
        temper=ONE_SHOT_TEMPER,
        rows=K,
        scale=data.scale,
    )


def reweighted(likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor) -> Likelihood:
    """The likelihood with weighted class means; its metric stays as it is.

    Labelled rows x [B, S, D] are in the coordinates, labels and weights > 0 are [B, S].
    """
    K = likelihood.shots.shape[-1]
    w = weights.to(x.dtype)
    mass, squared_mass = masses(labels, K, w)
    means = class_sums(x, labels, K, w)[0] / mass.unsqueeze(-1)
    squares = likelihood.squared(means)
    half = (likelihood.sharpness / 2).unsqueeze(-1)
    scaled = torch.cat([likelihood.scaled[:, :-K], as_split(means, likelihood.scale)], 1)
    solved = likelihood.solved
    if likelihood.factor is not None and likelihood.projection is not None:
        found = products(means, likelihood.projection[0])
        pad = (0, likelihood.factor.shape[1] - found.shape[-1])
        solved = as_split(torch.nn.functional.pad(found, pad))
    moved = replace(
        likelihood,
        prototypes=means,
        scaled=scaled,
        solved=solved,
        squares=squares,
        shots=(mass.square() / squared_mass).to(likelihood.shots.dtype),
    )
    nearer = likelihood.squares - likelihood.excess() - squares + moved.excess()
    return replace(moved, bias=likelihood.bias + nearer * half)


def masses(labels: Tensor, num_classes: int, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the weights [B, S] of each class, and of their squares; [B, K] both."""
    both = torch.stack([weights, weights.square()], -1)
    mass, squared = class_sums(both, labels, num_classes)[0].unbind(-1)
    return mass, squared
