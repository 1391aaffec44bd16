"""`adapt` for large tasks with given logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ... import check
from .fixed import RowResults, classify_rows, iterate_dual
from .group import ALONE, Group
from .queries import Queries
from .sources import TensorRows
from .steps import State


class GivenScores:
    """Logits [Q, K] of one task; see `fixed.Scores`."""

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
    top: int = 1,
    all_classes: bool = True,
    group: Group = ALONE,
) -> tuple[RowResults, State, Tensor, Tensor]:
    """The results for rows of [Q, K], the state, proportions [1, K] and bound [1]."""
    scores = GivenScores(logits)
    Q, K = logits.shape
    total = weight * group.count(Q, logits.device)
    state = State(
        1,
        K,
        logits.device,
        prior=check.PRIORS["dirichlet"],
        total=total,
        weight=weight,
        epsilon=1.0,
        tol=tol,
    )
    iterate_dual(scores, state, group, max_iter)
    results = classify_rows(scores, state.dual, group, top=top, all_classes=all_classes)
    a, counts = state.concentration.unsqueeze(-1), weight * results.held
    queries = weight * results.log_sums - (counts * state.dual).sum(-1)
    prior = torch.lgamma(K * a) - K * torch.lgamma(a) - torch.lgamma(total + K * a)
    bound = queries + prior.squeeze(-1) + torch.lgamma(counts + a).sum(-1)
    return results, state, state.proportions(counts), bound
