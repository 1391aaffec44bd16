"""The engine for many small tasks: all queries of all tasks at once.

Letters: B tasks, Q queries, K classes, D features. The equations are in docs/adaptive.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.adapt import adapt
from ..ops.adaptive import late_step, posterior
from ..solution import Solution
from .likelihood import Likelihood, column, has_gram

SOFTER, FEW = 0.7, 0.02  # logits are reduced by this share if the concentration is far below this


def softer_share(a: Tensor) -> Tensor:
    """The factor on logits at concentration `a`: lower if few classes are present."""
    return 1 - SOFTER / (1 + a / FEW)


def trust_in_queries(queries: float, num_classes: int) -> float:
    """The weight of a sure query in a prototype: less where there is hardly a query per class."""
    return queries / (queries + num_classes)


def solve_small(
    likelihood: Likelihood, query: Tensor, added: Tensor | None, *, max_iter: int, tol: float
) -> tuple[Solution, Tensor | None]:
    """Classify the queries [B, Q, D] of tasks; `added` [B, Q, K] are further logits.

    Also returns whether the queries of each task are plainly finite, [B], if that was found out.
    """
    _, Q, D = query.shape
    K = likelihood.bias.shape[1]
    weight = likelihood.weight_of(Q)
    linear = likelihood.projection is None and likelihood.correction is None and added is None
    if linear and (query.is_cpu or has_gram(Q, D, K)):
        return posterior(
            query,
            likelihood.centre,
            likelihood.weights,
            likelihood.scale,
            likelihood.squares,
            likelihood.bias,
            likelihood.shots,
            likelihood.sharpness,
            weight=weight,
            temper=likelihood.temper,
            max_iter=max_iter,
            tol=tol,
        )
    x = likelihood.coordinates(query)
    if likelihood.correction is not None:
        correction = likelihood.corrected(x)
        added = correction if added is None else correction.add_(added)
    cross = likelihood.products(x)
    logits = torch.addcmul(likelihood.bias.unsqueeze(-2), cross, column(likelihood.sharpness))
    if added is not None:
        logits = logits.add_(added)
    found = adapt(logits, weight=weight, max_iter=max_iter, tol=tol, validate=False)
    u, a = found.probabilities, found.concentration
    assert a is not None
    inner, own = likelihood.weighted_products(x, u.square().mul_(trust_in_queries(Q, K)))
    share = softer_share(a)
    half = likelihood.sharpness.unsqueeze(-1) / 2
    constant = torch.addcmul(likelihood.bias, half, likelihood.squares)
    probabilities, labels = late_step(
        u,
        cross,
        inner,
        own,
        None if added is None else added * column(share),
        likelihood.shots,
        likelihood.squares,
        likelihood.sharpness * share,
        constant * share.unsqueeze(-1),
        found.proportions * (weight * Q + K * a).unsqueeze(-1),
        a,
        weight=weight,
        temper=likelihood.temper,
    )
    return found._replace(labels=labels, probabilities=probabilities), None
