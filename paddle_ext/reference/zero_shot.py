"""Zero-shot in plain torch, and a loop over tasks with class prototypes or zero-shot logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .paddle import unit_rows


@dataclass(frozen=True)
class NamedTask:
    """One task with class prototypes or zero-shot logits, in float64."""

    support: Tensor  # [S, D]
    labels: Tensor  # [S]
    query: Tensor  # [Q, D]
    num_classes: int
    prototypes: Tensor | None  # [K, D]
    logits: Tensor | None  # [Q, K]

    def zero_shot_logits(self, logit_scale: float) -> Tensor:
        if self.logits is not None:
            return self.logits
        assert self.prototypes is not None
        return logit_scale * unit_rows(self.query) @ unit_rows(self.prototypes).mT


def one_by_one(
    solve: Callable[[NamedTask], Tensor],
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    prototypes: Tensor | None,
    logits: Tensor | None,
) -> Tensor:
    """The probabilities from `solve` for each task, [.., Q, K]."""
    given = prototypes if logits is None else logits
    assert given is not None
    K = given.shape[-2 if logits is None else -1]

    def of(x: Tensor | None, task: int, rank: int) -> Tensor | None:
        return x if x is None or x.dim() < rank else x[task]

    def double(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.detach().double()

    results = []
    for b, rows in enumerate(query if query.dim() == 3 else query.unsqueeze(0)):
        own, labels = of(double(support), b, 3), of(support_labels.long(), b, 2)
        assert own is not None
        assert labels is not None
        found = [of(double(x), b, 3) for x in (prototypes, logits)]
        results.append(solve(NamedTask(own, labels, rows.detach().double(), K, *found)))
    return torch.stack(results) if query.dim() == 3 else results[0]


def zero_shot(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    prototypes: Tensor | None = None,
    logits: Tensor | None = None,
    logit_scale: float = 100.0,
) -> Tensor:
    """Classify queries by the nearest prototype: ``softmax_k( logit_scale cos(x_q, t_k) )``.

    Parameters
    ----------
    support, support_labels : Tensor [.., S, D] and [.., S]
        Not used.
    query : Tensor [Q, D] or [B, Q, D]
        Features to classify.
    prototypes : Tensor [K, D] or [B, K, D]
        One embedding per class; or
    logits : Tensor [Q, K] or [B, Q, K]
        external zero-shot logits.
    logit_scale : float
        Factor on the cosines.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> names, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> zero_shot(query[:0], torch.zeros(0).long(), query, prototypes=names).argmax(-1)
    tensor([0])
    """

    def solve(task: NamedTask) -> Tensor:
        return torch.softmax(task.zero_shot_logits(logit_scale), dim=-1)

    return one_by_one(solve, support, support_labels, query, prototypes, logits)
