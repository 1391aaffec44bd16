"""How much of a batch each class is, with intervals. Letters: Q queries, K classes.

With u the probability of a class for each query, the class holds ``N = sum_q u`` queries. Two
errors add up:

- Every query is of the class or not, which gives the count the variance ``V = sum_q u (1 - u)``.
- The mean of a class with few labelled rows is inexact, which shifts all logits of the class
  together. A shift by d changes N by d V, so a standard deviation s of d adds ``(s V)^2``.

The interval lies between quantiles of a gamma distribution with mean N and variance
``V + (s V)^2``. If N > Q / 2, the interval for Q - N is computed and mirrored, so that it stays
within 0 and Q. The ends are rounded inwards to whole counts, as in mid-P intervals: rounded
outwards, the interval would cover more than it should.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import check

# The standard deviation s of the shift of a class's logits. With it, intervals of 90 % cover 90 %
# on average over mini-ImageNet, CLINC150 and DTD, 5 to 20 labelled rows a class, 75 to 1000
# queries, five classes present or all. One value suits any number of labelled rows, because V
# already depends on that number.
LOGIT_ERROR = 1.2


class Prevalence(NamedTuple):
    """The share of each class, between 0 and 1, in float64."""

    estimate: Tensor  # [.., K], with a sum of 1
    low: Tensor  # [.., K] lower end of the interval
    high: Tensor  # [.., K] upper end


def sums_of(
    labels: Tensor, probabilities: Tensor, classes: Tensor | None, held: Tensor | None
) -> Tensor:
    """Sums over the queries of labels, probabilities u, and u (1 - u): [.., 3, K] in float64.

    The arguments are fields of `Solution`. If it keeps only the largest probabilities, the sum of
    u (1 - u) is an upper bound, because it is computed without the squares of the others.
    """
    if classes is None or held is None:
        held = probabilities.sum(-2, dtype=torch.float64)
        squares = torch.linalg.vector_norm(probabilities, dim=-2, dtype=torch.float64).square()
    else:
        squares = torch.zeros_like(held, dtype=torch.float64).scatter_add_(
            -1, classes.flatten(-2), probabilities.double().square().flatten(-2)
        )
    counted = counts_of(labels, torch.zeros_like(held, dtype=torch.float64))
    return torch.stack([counted, held.double(), (held - squares).clamp(min=0)], -2)


def counts_of(labels: Tensor, counts: Tensor) -> Tensor:
    """Count the labels [.., Q] of each class; adds to `counts` [.., K] in place and returns it."""
    return counts.scatter_add_(-1, labels, counts.new_ones(()).expand_as(labels))


def estimated_shares(counted: Tensor, held: Tensor, queries: float | Tensor) -> Tensor:
    """The estimated shares of the classes, [.., K]: a mean of label and probability counts.

    Label counts are better if few classes are present, so the weight of the probability counts is
    the share of the classes that have a label.
    """
    labelled_share = (counted > 0).to(counted.dtype).mean(-1, keepdim=True)
    return torch.lerp(counted, held, labelled_share) / queries


def from_sums(sums: Tensor, coverage: float = 0.9, sampling: bool = False) -> Prevalence:
    """The prevalence of the classes in one batch, or in several together.

    Parameters
    ----------
    sums : Tensor [.., 3, K]
        `Solution.class_sums`; those of batches with the same labelled rows may be added up.
    coverage, sampling
        As in `Solution.prevalence`.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> from paddle_ext.prevalence import from_sums
    >>> logits = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    >>> batches = [paddle_ext.adapt(logits), paddle_ext.adapt(-logits)]
    >>> from_sums(sum(batch.class_sums() for batch in batches)).estimate
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    coverage = check.real("coverage", coverage, positive=True, most=1.0)
    if coverage == 1.0:
        raise check.ArgumentValueError("coverage", f"must be > 0 and below 1, got {coverage:g}")
    check.flag("sampling", sampling)
    counted, held, label_variance = sums.double().unbind(-2)
    Q = counted.sum(-1, keepdim=True).clamp(min=1)
    estimate = estimated_shares(counted, held, Q)
    variance = label_variance + (LOGIT_ERROR * label_variance).square()
    if sampling:  # with Jeffreys' prior of half a query, inside the class and outside
        held = (held + 0.5) * Q / (Q + 1)
        variance = variance + held * (Q - held) / (Q + 2)
    mirrored = held > Q / 2
    mean = torch.where(mirrored, Q - held, held).clamp(min=0)
    tail = (1 - coverage) / 2
    low, high = gamma_quantile(mean, variance, tail), gamma_quantile(mean, variance, 1 - tail)
    if not sampling:
        nearest = mean.round()
        low, high = torch.minimum(low.ceil(), nearest), torch.maximum(high.floor(), nearest)
        # A class whose expected count is not tiny may hold at least one query.
        high = torch.maximum(high, (mean > 2 * tail).double())
    low, high = torch.where(mirrored, Q - high, low) / Q, torch.where(mirrored, Q - low, high) / Q
    low, high = torch.minimum(low.clamp(min=0), estimate), torch.maximum(high, estimate)
    return Prevalence(estimate, low, high.clamp(max=1))


def gamma_quantile(mean: Tensor, variance: Tensor, share: float) -> Tensor:
    """The quantile of a gamma distribution, by Wilson and Hilferty's approximation."""
    relative = variance.sqrt() / mean.clamp(min=1e-12)  # standard deviation
    z = math.sqrt(2) * float(torch.special.erfinv(torch.tensor(2 * share - 1).double()))
    return mean * (1 - relative.square() / 9 + z * relative / 3).clamp(min=0) ** 3
