"""TransCLIP in plain torch, task by task, with a graph matrix and all differences explicit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .paddle import unit_rows
from .simpleshot import distances
from .zero_shot import NamedTask, one_by_one

GAMMAS = (0.002, 0.01, 0.02, 0.2)


def affinity(rows: Tensor, query: Tensor, knn: int) -> Tensor:
    """Cosines of unit-norm rows with the queries nearest to them, else zero, [N, Q].

    A query is not its own neighbour. Squared distances plus 2^-20 are compared in single precision,
    so that equal ones compare equal; of equals, the first are taken.
    """
    compared = (distances(rows, query) + 2.0**-20).float()
    count = min(knn, len(query))
    if rows is query:
        compared.fill_diagonal_(torch.inf)
        count = min(knn, len(query) - 1)
    chosen = torch.zeros_like(compared, dtype=torch.bool)
    chosen.scatter_(1, compared.sort(stable=True).indices[:, :count], True)
    return (rows @ query.mT) * chosen


def certain_means(query: Tensor, log_y: Tensor, confident: int) -> Tensor:
    """For each class the unit-norm mean of its most certain queries by their y, [K, D]."""
    means = []
    for log_y_k in log_y.unbind(-1):
        first = (1 - log_y_k).float().sort(stable=True).indices[:confident]
        weights = (log_y_k[first] - log_y_k.max()).exp()
        means.append(unit_rows(weights @ query[first]))
    return torch.stack(means)


def iterate(
    task: NamedTask,
    log_y: Tensor,
    *,
    lam: float,
    gamma: float,
    knn: int,
    confident: int,
    max_iter: int,
    inner_iter: int,
) -> Tensor:
    """z of one task with one gamma, [Q, K]."""
    x, rows = unit_rows(task.query), unit_rows(task.support)
    (Q, D), S = x.shape, len(rows)
    Y = torch.nn.functional.one_hot(task.labels, task.num_classes).double()
    W, labelled = affinity(x, x, knn), affinity(rows, x, knn)
    # Log weights of all rows, queries first.
    features = torch.cat([x, rows])
    log_labels = (50 * gamma / max(S, 1) * Y).log()
    mu = certain_means(x, log_y, confident)
    for k in set(task.labels.tolist()):
        mu[k] = unit_rows(rows[task.labels == k].sum(0))
    variance = torch.full((D,), 1 / D, dtype=torch.float64, device=x.device)
    log_z = log_y
    for i in range(max_iter + 1):
        likelihood = -0.5 * distances(x / variance.sqrt(), mu / variance.sqrt())
        for _ in range(inner_iter):
            z = log_z.exp()
            pull = 50 / (2 * knn) * (W @ z + W.mT @ z + labelled.mT @ Y)
            log_z = torch.log_softmax(lam * log_y + (likelihood + pull) / 50, dim=-1)
        if i == max_iter:
            break
        log_weights = torch.cat([log_z - math.log(Q), log_labels])  # [Q + S, K]
        relative = (log_weights - log_weights.amax(0)).exp()
        mu = unit_rows(relative.mT @ features)
        weights = log_weights.exp()
        around = [weights[:, k] @ (features - mu[k]).square() for k in range(task.num_classes)]
        variance = (torch.stack(around).sum(0) / weights.sum()).clamp(min=1e-8)
    return log_z.exp()


def transclip(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    prototypes: Tensor | None = None,
    logits: Tensor | None = None,
    lam: float | None = None,
    gamma: float | None = None,
    knn: int = 3,
    confident: int = 8,
    max_iter: int = 10,
    inner_iter: int = 5,
    logit_scale: float = 100.0,
) -> Tensor:
    """Classify queries by TransCLIP; see `paddle_ext.methods.TransClip` for the updates.

    Parameters
    ----------
    support : Tensor [S, D] or [B, S, D]
        Labelled features; S may be 0.
    support_labels : Tensor [S] or [B, S]
        Their classes.
    query, prototypes, logits, logit_scale
        As in `paddle_ext.reference.zero_shot`.
    lam : float, optional
        Weight of the zero-shot probabilities; by default 1 without labelled rows, else 0.5.
    gamma : float, optional
        Weight of the labelled rows; default: the one of four with which most of them agree with
        their nearest query.
    knn, confident, max_iter, inner_iter : int
        Neighbours of a query, queries from which a mean starts, iterations, and their sweeps.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> names, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> transclip(query[:0], torch.zeros(0).long(), query, prototypes=names).argmax(-1)
    tensor([0])
    """

    def solve(task: NamedTask) -> Tensor:
        log_y = torch.log_softmax(task.zero_shot_logits(logit_scale), dim=-1)
        labelled = len(task.support) > 0
        weight = (0.5 if labelled else 1.0) if lam is None else lam
        numbers = {"knn": knn, "confident": confident}
        numbers |= {"max_iter": max_iter, "inner_iter": inner_iter}
        if not labelled or gamma is not None:
            return iterate(task, log_y, lam=weight, gamma=gamma or 0.0, **numbers)
        x, rows = unit_rows(task.query), unit_rows(task.support)
        nearest = (distances(rows, x) + 2.0**-20).float().sort(stable=True).indices[:, 0]
        best, most = log_y, -1
        for one in GAMMAS:
            z = iterate(task, log_y, lam=weight, gamma=one, **numbers)
            right = int((z.argmax(-1)[nearest] == task.labels).sum())
            if right > most:
                best, most = z, right
        return best

    return one_by_one(solve, support, support_labels, query, prototypes, logits)
