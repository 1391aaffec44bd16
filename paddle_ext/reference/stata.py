"""StatA in plain torch, task by task, with the graph as a matrix and all differences explicit."""

from __future__ import annotations

import torch
from torch import Tensor

from .paddle import unit_rows
from .transclip import affinity
from .zero_shot import NamedTask, one_by_one


def stata(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    prototypes: Tensor,
    alpha: float = 1.0,
    knn: int = 3,
    max_iter: int = 10,
    inner_iter: int = 5,
    logit_scale: float = 100.0,
) -> Tensor:
    """Classify queries by StatA; see `paddle_ext.methods.StatA` for the updates.

    Parameters
    ----------
    support, support_labels, query, prototypes, logit_scale
        As in `paddle_ext.reference.zero_shot`.
    alpha : float
        Weight of the prototypes, in queries.
    knn, max_iter, inner_iter : int
        Neighbours of a query, iterations, and their sweeps.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> names, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> stata(query[:0], torch.zeros(0).long(), query, prototypes=names).argmax(-1)
    tensor([0])
    """

    def solve(task: NamedTask) -> Tensor:
        assert task.prototypes is not None
        x, anchors, K = unit_rows(task.query), unit_rows(task.prototypes), task.num_classes
        log_y = torch.log_softmax(task.zero_shot_logits(logit_scale), dim=-1)
        W, z = affinity(x, x, knn), log_y.exp()
        spread = [z[:, k] @ (x - anchors[k]).square() for k in range(K)]
        first = (torch.stack(spread).sum(0) / len(x)).clamp(min=1e-8)
        mu, variances = anchors.clone(), first.repeat(K, 1)
        for i in range(max_iter + 1):
            likelihood = torch.stack(
                [
                    -0.5 * ((x - mu[k]).square() / variances[k] + variances[k].log()).sum(-1)
                    for k in range(K)
                ],
                dim=-1,
            )
            for _ in range(inner_iter):
                pull = 50 / (2 * knn) * (W @ z + W.mT @ z)
                z = torch.softmax(log_y + (likelihood + pull) / 50, dim=-1)
            if i == max_iter:
                break
            labels = z.argmax(-1)
            for k in range(K):
                count = int((labels == k).sum())
                if count == 0:
                    mu[k], variances[k] = anchors[k], first
                    continue
                b, weights = count / (count + alpha), z[:, k] / z[:, k].sum()
                mu[k] = unit_rows(b * unit_rows(weights @ x) + (1 - b) * anchors[k])
                around = weights @ (x - mu[k]).square()
                apart = first + (anchors[k] - mu[k]).square()
                variances[k] = (b * around + (1 - b) * apart).clamp(min=1e-8)
        return z

    return one_by_one(solve, support, support_labels, query, prototypes, None)
