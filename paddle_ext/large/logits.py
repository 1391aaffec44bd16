"""`adapt` for large tasks with given logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .fixed import RowResults, best_prior, classify_rows, dirichlet_priors
from .queries import Queries
from .sources import TensorRows
from .steps import State


class GivenScores:
    """The given logits [Q, K] of one task; implements `fixed.Scores`."""

    def __init__(self, logits: Tensor) -> None:
        self.rows = Queries(TensorRows(logits))
        self.shape = (1, *logits.shape)
        self.slope = logits.new_ones(1, dtype=self.rows.dtype)
        self.bias = logits.new_zeros(1, logits.shape[1], dtype=torch.float64)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        for part, logits in self.rows.chunks(self.shape[2]):
            copy = torch.empty(logits.shape, dtype=self.slope.dtype, device=logits.device)
            yield part, copy.copy_(logits), None


def adapt_large(
    logits: Tensor,
    weight: float,
    max_iter: int,
    tol: float,
    *,
    measures: Tensor | None = None,
    top: int = 1,
    all_classes: bool = True,
) -> tuple[RowResults, State, Tensor, Tensor, int]:
    """Adapt the logits [Q, K] of one task; `measures` [n, K] are the priors to choose from.

    Returns the results for the rows, the final state, the proportions [1, K], the bound [1], and
    the number of the chosen prior.
    """
    scores = GivenScores(logits)
    Q, K = logits.shape
    total = weight * Q
    priors = dirichlet_priors(K, logits.device, measures, total=total, weight=weight, tol=tol)
    _, state, chosen = best_prior(scores, priors, max_iter)
    results = classify_rows(scores, state.dual, top=top, all_classes=all_classes)
    bound = state.bound(results.held, results.log_sums)
    return results, state, state.proportions(weight * results.held), bound, chosen
