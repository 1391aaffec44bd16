"""Likelihoods with a linear correction, for labelled rows that many batches share.

Distances to class means ignore which rows are hard to classify. With many labelled rows, W and b
correct the logits of a row x by x W + b; docs/estimator.md has what they minimise. Letters as in
`likelihood`; here B = 1.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..rows import power_of_two
from .group_folds import likelihood_by_groups
from .label_noise import MOST_LEFT_OUT, left_out_logits, models_noise, weigh_labels
from .learn import learned, likelihood_of
from .likelihood import Likelihood, reweighted

SHOTS = 16  # from this many labelled rows per class on, a correction pays
WORK = 2**29  # limit on the multiplications of one pass over the rows
INVERSE_REGULARISATION = 3.0  # C, of embeddings
TOL = 0.05  # norm of the gradient at which the fit stops: labels hardly change any more
MAX_ITER = 200
LEAST_CURVATURE = 1e-3  # on the diagonal of the approximate Hessian: a constant has almost none
FLAT = 0.25  # a line search ends once the slope is at most this share of the one at its start
FARTHEST = 8.0  # limit on its first step, which is usually about 1
TRIALS = 20  # steps tried in a line search; any two of them at least halve the interval


def corrected_likelihood(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    weights: Tensor | None = None,  # [S] of the rows in their classes, from 1e-30 to 1e30, float64
    label_noise: float | str = 0.0,
    trusted: Tensor | None = None,  # [S] whether the label is right
    inverse_regularisation: float = INVERSE_REGULARISATION,  # C
    groups: Tensor | None = None,  # [S] those of the rows
) -> Likelihood:
    """The likelihood learned from labelled rows [S, D], with a correction where it pays.

    With groups all labels are trusted, and there is no correction: it would fit what rows of a
    group have in common, and claim too much of other groups.
    """
    K, S, total = num_classes, len(labels), weights
    worth = SHOTS * K <= S and S * K * (support.shape[1] + 1) <= WORK
    corrects = groups is None and worth and S * K <= MOST_LEFT_OUT
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    given = None
    if weights is not None:
        # Class means depend on ratios within a class alone, and a power of two divides exactly: so
        # the squares of the weights cannot overflow in single precision.
        largest = weights.new_zeros(K).scatter_reduce(0, labels, weights, "amax")
        given = (weights / power_of_two(largest)[labels]).unsqueeze(0)
    if groups is None and models_noise(label_noise, S, K):
        sure = None if trusted is None else trusted.unsqueeze(0)
        weighed = weigh_labels(rows, own, K, label_noise, trusted=sure)
        likelihood = weighed.likelihood
        if bool(weighed.rate > 0):  # the likelihood has these weights already
            right = weighed.weights[0]
            total = right if weights is None else right * weights
            given = None if given is None else right * given
        rest = LeftOut.of(likelihood, rows, own, weighed.logits)
    elif corrects:
        likelihood, rest = left_out_rows(support, labels, K)
    else:
        likelihood = (
            likelihood_of(rows, own, K)
            if groups is None
            else likelihood_by_groups(rows, own, K, groups)
        )
    if corrects:
        likelihood = replace(
            likelihood, correction=correction_of(rest, total, inverse_regularisation)
        )
    if given is None:
        return likelihood
    return reweighted(likelihood, likelihood.centred(rows), own, given)


class LeftOut(NamedTuple):
    """Labelled rows classified as if they were new: each is left out of its class."""

    x: Tensor  # [S, D] centred
    own: Tensor  # [S] int64 labels
    counts: Tensor  # [S] 1, or 0 for the only row of a class, which cannot be left out
    logits: Tensor  # [S, K]

    @classmethod
    def of(cls, likelihood: Likelihood, rows: Tensor, labels: Tensor, logits: Tensor) -> "LeftOut":
        """For one task with rows [1, S, D], labels [1, S] and left-out logits [1, S, K]."""
        counts = (labels[0].bincount() > 1).to(logits.dtype)[labels[0]]
        return cls(likelihood.centred(rows)[0], labels[0], counts, logits[0])


def left_out_rows(support: Tensor, labels: Tensor, num_classes: int) -> tuple[Likelihood, LeftOut]:
    """The likelihood of labelled rows [S, D], and each of them classified without itself."""
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    likelihood, distances = learned(rows, own, num_classes, left_out=True)
    assert distances is not None
    logits = left_out_logits(likelihood, distances)
    return likelihood, LeftOut.of(likelihood, rows, own, logits)


def correction_of(
    rows: LeftOut, weights: Tensor | None = None, C: float = INVERSE_REGULARISATION
) -> Tensor:
    """W and b as one matrix [D + 1, K]; `weights` [S] of the rows are divided by their mean."""
    K, dtype = rows.logits.shape[-1], rows.x.dtype
    if weights is not None:
        weights = weights * (len(weights) / weights.sum())
    counts = rows.counts if weights is None else rows.counts * weights.to(dtype)
    n = rows.own.bincount(weights, minlength=K).to(dtype)
    logits = rows.logits + n.clamp(min=torch.finfo(dtype).tiny).log()
    return fitted(rows.x, rows.own, counts * C, logits)


def fitted(x: Tensor, labels: Tensor, weights: Tensor, logits: Tensor) -> Tensor:
    """The minimum [D + 1, K] by conjugate gradients: a fifth of the time of torch.optim.LBFGS."""
    x = torch.cat([x, x.new_ones(len(x), 1)], -1)
    own, r = labels.unsqueeze(-1), weights.unsqueeze(-1)
    penalty = x.new_ones(x.shape[1], 1)
    penalty[-1] = 0
    W, p = x.new_zeros(x.shape[1], logits.shape[1]), logits.softmax(-1)
    precondition = preconditioner(x, own, r, p, penalty)
    gradient, direction, size = W, W, math.inf
    for _ in range(MAX_ITER):
        before, size_before = gradient, size
        gradient = x.mT @ (r * p).scatter_add_(-1, own, -r) + penalty * W
        scaled = precondition(gradient)
        size = inner(gradient, scaled)
        if size <= TOL**2:
            break
        share = max(0.0, (size - inner(before, scaled)) / size_before)
        direction = share * direction - scaled
        start = inner(gradient, direction)
        if start >= 0:  # not downhill
            direction, start = -scaled, -size
        change = x @ direction  # of the logits
        own_change, penalised = change.gather(-1, own), penalty * direction
        curved, rising = inner(penalised, direction), inner(penalised, W)
        moved = p * change
        spread = (moved * change).sum(-1, keepdim=True) - moved.sum(-1, keepdim=True).square()
        # The slope increases with the step. After a first Newton step its zero is bracketed, and
        # false position and bisection take turns.
        step = min(-start / max(inner(r, spread) + curved, torch.finfo(x.dtype).tiny), FARTHEST)
        low, low_slope, high, high_slope = 0.0, start, math.inf, -start
        for trial in range(TRIALS):
            p = (logits + step * change).softmax(-1)
            mean_change = (p * change).sum(-1, keepdim=True)
            slope = inner(r, mean_change - own_change) + rising + step * curved
            if abs(slope) <= FLAT * abs(start) or trial == TRIALS - 1:
                break
            if slope < 0:
                low, low_slope = step, slope
            else:
                high, high_slope = step, slope
            between = 0.5 if trial % 2 else low_slope / (low_slope - high_slope)
            step = FARTHEST * step if high == math.inf else low + between * (high - low)
        W, logits = W + step * direction, logits + step * change
    W[-1] -= W[-1].mean()
    return W


def preconditioner(
    x: Tensor, own: Tensor, r: Tensor, p: Tensor, penalty: Tensor
) -> Callable[[Tensor], Tensor]:
    """The inverse of an approximate Hessian at p: a diagonal, and a rank-one term a class."""
    # The rows of a class contribute most curvature to its own weights, and their mean gives the
    # rank-one term; all others contribute to the diagonal, as if equally uncertain.
    own_p = p.gather(-1, own)
    sums = x.mT @ torch.zeros_like(p).scatter_(-1, own, r * own_p * (1 - own_p))
    uncertainty = sums[-1:]  # the last feature is 1, [1, K]
    others = r.mT @ (p * (1 - p)) - uncertainty
    shared = (r.mT @ x.square()).mT * others / r.sum()
    diagonal = (penalty + shared).clamp(min=LEAST_CURVATURE)
    means = sums / uncertainty.clamp(min=torch.finfo(x.dtype).tiny)
    scaled_means = means / diagonal
    factor = uncertainty / (1 + uncertainty * (means * scaled_means).sum(0))

    def apply(gradient: Tensor) -> Tensor:
        along_means = factor * (scaled_means * gradient).sum(0)
        return gradient / diagonal - along_means * scaled_means

    return apply


def inner(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())
