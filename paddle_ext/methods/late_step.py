"""The late step of `adaptive`: prototypes absorb the queries, each classified without itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.calibrate import CENTRE
from ..ops.step import step
from ..solution import Solution
from .calibration import Likelihood, column

SOFTER, FEW = 0.7, 0.02  # logits are reduced by this share if the concentration is far below this
# With one shot, the share of the logits of the nearest class mean: at most the first, and much less
# below a concentration of the second.
PLAIN, MANY = 0.5, 10.0
SAME = 1e-6  # a unit-norm row this near to the centre is the centre


def late_step(
    likelihood: Likelihood,
    found: Solution,
    weight: float,
    x: Tensor,
    lengths: Tensor,
    cross: Tensor,
    *,
    added: Tensor | None = None,
    factor: Tensor | float = 1.0,
) -> Solution:
    """The solution after prototypes have absorbed the queries.

    Query q has weight ``W_qk = (u_qk N_k / (N_k + a))^2`` in class k, next to the labelled rows,
    and is classified by the proportions of the other queries.

    Parameters
    ----------
    likelihood, found : Likelihood, Solution
        Of the labelled rows, and of the batch before the step.
    weight : float
        Of a query in the counts.
    x, lengths : Tensor [B, Q, D], Tensor [B, Q]
        The queries in the coordinates of the likelihood, and their norms before the last division.
    cross : Tensor [B, Q, K]
        Their products with the prototypes.
    added : Tensor [B, Q, K], optional
        External logits.
    factor : Tensor [B] or float
        On all logits.
    """
    u, a = found.probabilities, found.concentration
    Q, K = u.shape[-2:]
    assert a is not None
    total = found.proportions * (weight * Q + K * a).unsqueeze(-1)  # N + a
    trust = (1 - a.unsqueeze(-1) / total).clamp_(min=0)
    inner, own = likelihood.weighted_products(x, (u * trust.unsqueeze(-2)).square_())
    half = likelihood.sharpness.unsqueeze(-1) / 2
    constant = torch.addcmul(likelihood.bias, half, likelihood.squares)
    if likelihood.lengths is None:
        share = factor * softer_share(a)
        extra = None if added is None else added * column(share)
    else:
        plain = plain_share(a, weight)
        share = 1 - plain
        extra = plain_logits(cross, lengths, likelihood.lengths, plain)
    probabilities, labels = step(
        u,
        cross,
        inner,
        own,
        extra,
        likelihood.shots,
        likelihood.squares,
        likelihood.sharpness * share,
        constant * share.unsqueeze(-1),
        total,
        a,
        weight=weight,
        temper=likelihood.temper,
    )
    return found._replace(labels=labels, probabilities=probabilities)


def softer_share(a: Tensor) -> Tensor:
    """The factor on logits at concentration `a`: lower if few classes are present."""
    return 1 - SOFTER / (1 + a / FEW)


def plain_share(a: Tensor, weight: float) -> Tensor:
    """With one shot, the share of the logits of the nearest class mean."""
    return PLAIN * (1 - weight) * a / (MANY + a)


def plain_factor(share: Tensor, means: Tensor) -> Tensor:
    """The factor on those logits, for class means with norms [B or 1, K] before normalisation."""
    return share * CENTRE / means.square().mean(-1).clamp(min=SAME**2)


def plain_logits(cross: Tensor, lengths: Tensor, means: Tensor, share: Tensor) -> Tensor:
    """`share` [B] of the logits of the nearest class mean, for one shot, [B, Q, K].

    `cross` are the products of unit-norm rows; `lengths` [B, Q] and `means` [B or 1, K] are their
    norms before normalisation.
    """
    factor = plain_factor(share, means)
    halves = (means / 2).unsqueeze(-2)
    found = torch.addcmul(-halves, cross, lengths.unsqueeze(-1))
    return found.mul_(means.unsqueeze(-2) * column(factor))
