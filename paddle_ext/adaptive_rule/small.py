"""The engine for many small tasks, which solves all of them at once.

Letters: B tasks, Q queries, K classes, D features. The equations are in docs/adaptive.md.
"""

from __future__ import annotations

from torch import Tensor

from ..solution import Solution
from .kernels import posterior
from .likelihood import Likelihood

SOFTER, FEW = 0.7, 0.02  # logits lose up to this share, half of it at this concentration


def softer_share(a: Tensor) -> Tensor:
    """The factor on logits at concentration `a`: lower if few classes are present."""
    return 1 - SOFTER / (1 + a / FEW)


def trust_in_queries(queries: float, num_classes: int) -> float:
    """The weight in a prototype of a query with probability 1: less with few queries per class."""
    return queries / (queries + num_classes)


def solve_small(
    likelihood: Likelihood,
    query: Tensor,
    added: Tensor | None,
    *,
    measures: Tensor | None = None,
    max_iter: int,
    tol: float,
) -> tuple[Solution, Tensor]:
    """Classify the queries [B, Q, D] of tasks.

    `added` [B, Q, K] are further logits, `measures` [B or 1, n, K] the priors to choose from. Also
    returns [B] bool: True if the queries of a task are finite; False is inconclusive.
    """
    if likelihood.correction is not None:
        correction = likelihood.corrected(likelihood.coordinates(query))
        added = correction if added is None else correction.add_(added)
    return posterior(
        query,
        likelihood.centre,
        likelihood.scaled,
        likelihood.scale,
        likelihood.squares,
        likelihood.bias,
        likelihood.shots,
        likelihood.variance,
        likelihood.sharpness,
        likelihood.factor,
        likelihood.solved,
        likelihood.shares,
        added,
        measures,
        weight=likelihood.weight_of(query.shape[1]),
        temper=likelihood.temper,
        mean_shots=likelihood.mean_shots,
        max_iter=max_iter,
        tol=tol,
    )
