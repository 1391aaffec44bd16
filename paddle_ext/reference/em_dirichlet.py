"""EM-Dirichlet in plain torch, task by task and class by class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .paddle import unit_rows
from .zero_shot import NamedTask, one_by_one

EPSILON = 1e-15


def fit(alpha: Tensor, mean_log: Tensor, max_iter: int) -> Tensor:
    """The most likely Dirichlet parameters [C] for the mean of ln x, by majorisation."""
    trigamma = torch.polygamma(1, torch.ones((), dtype=torch.float64))
    for i in range(max_iter):
        digamma = torch.digamma(alpha + 1)
        curve = 2 * (digamma * alpha - torch.lgamma(alpha + 1)) / alpha**2
        # For smaller alpha the difference is lost to rounding, and the series is used instead.
        curve = torch.where(alpha > 1e-3, curve, trigamma - 4 / 3 * 1.2020569031595943 * alpha)
        b = digamma - torch.digamma(alpha.sum()) - curve * alpha - mean_log
        before, alpha = alpha, (-b + (b**2 + 4 * curve).sqrt()) / (2 * curve)
        if i and i % 50 == 0 and (alpha - before).square().sum() < 1e-11 * before.square().sum():
            break
    return alpha


def best_classes(value: Tensor, clusters: Sequence[int]) -> dict[int, int]:
    """A class for each cluster, one to one, maximising the sum of values [K, K].

    Clusters are added one at a time; each takes the cheapest chain of changes (Bellman-Ford on the
    graph of possible changes).
    """
    K = len(value)
    cost = (-value).tolist()
    owner: dict[int, int] = {}  # cluster of a class
    for new in clusters:
        reach = [cost[new][k] for k in range(K)]
        before: list[int | None] = [None] * K
        for _ in range(len(owner)):
            for k, cluster in owner.items():
                for j in range(K):
                    length = reach[k] - cost[cluster][k] + cost[cluster][j]
                    if length < reach[j] - 1e-12:
                        reach[j], before[j] = length, k
        free = [k for k in range(K) if k not in owner]
        place = min(free, key=lambda k: reach[k])
        while (last := before[place]) is not None:
            owner[place] = owner[last]
            place = last
        owner[place] = new
    return {cluster: k for k, cluster in owner.items()}


def renamed(u: Tensor, x: Tensor) -> Tensor:
    """u [Q, K] with each cluster moved to the class that it matches."""
    K, labels = u.shape[1], u.argmax(-1)
    held = [k for k in range(K) if bool((labels == k).any())]
    means = torch.zeros(K, K, dtype=x.dtype)
    for k in held:
        means[k] = x[labels == k].mean(0)
    match = best_classes(means, held)
    left = iter(k for k in range(K) if k not in match.values())
    result = torch.empty_like(u)
    for k in range(K):
        result[:, match[k] if k in match else next(left)] = u[:, k]
    return result


def em_dirichlet(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    prototypes: Tensor | None = None,
    logits: Tensor | None = None,
    assignment: str = "soft",
    lam: float | None = None,
    k_eff: int = 5,
    temperature: float = 30.0,
    schedule: Sequence[tuple[float, float]] | None = None,
    max_iter: int | None = None,
    fit_iter: int = 1000,
    logit_scale: float = 100.0,
) -> Tensor:
    """Classify queries by EM-Dirichlet; see `paddle_ext.methods.EmDirichlet` for the updates.

    Parameters
    ----------
    support, support_labels, query, prototypes, logits, logit_scale
        As in `paddle_ext.reference.transclip`.
    assignment : {"soft", "hard"}
        "hard" assigns each query to one class at the end of an iteration.
    lam : float, optional
        Weight of the penalty for many classes; by default K // k_eff times Q.
    k_eff : int
        Number of classes among the queries assumed by the default of `lam`.
    temperature : float
        Factor on the cosines of rows and prototypes.
    schedule : pairs of floats, optional
        lam / Q and a temperature for each iteration.
    max_iter, fit_iter : int
        Iterations, by default 20, and 10 for "hard"; steps of the fit in each.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> names, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> em_dirichlet(query[:0], torch.zeros(0).long(), query, prototypes=names).argmax(-1)
    tensor([0])
    """

    def solve(task: NamedTask) -> Tensor:
        K, Q = task.num_classes, len(task.query)
        x = torch.softmax(temperature / logit_scale * task.zero_shot_logits(logit_scale), dim=-1)
        log_x, log_s = (x + EPSILON).log(), x[:0]
        if len(task.support):
            assert task.prototypes is not None
            cosines = unit_rows(task.support) @ unit_rows(task.prototypes).mT
            log_s = (torch.softmax(temperature * cosines, dim=-1) + EPSILON).log()
        weight = K // k_eff if lam is None else lam / Q
        default = 20 if assignment == "soft" else 10
        steps = schedule or [(weight, 1.0)] * (max_iter or default)
        alpha = torch.ones(K, K, dtype=torch.float64)
        u = soft = x
        for penalty, softness in steps:
            for k in range(K):
                own = log_s[task.labels == k]
                mass = float(u[:, k].sum()) + len(own)
                if mass > EPSILON:
                    mean_log = (u[:, k] @ log_x + own.sum(0)) / mass
                    alpha[k] = fit(alpha[k], mean_log, fit_iter)
            density = [
                torch.lgamma(a.sum()) - torch.lgamma(a).sum() + log_x @ (a - 1) for a in alpha
            ]
            v = 1 + (u.mean(0) + EPSILON).log()
            u = soft = torch.softmax((torch.stack(density, -1) + penalty * v) / softness, dim=-1)
            if assignment == "hard":
                u = torch.nn.functional.one_hot(u.argmax(-1), K).double()
        return soft if len(task.support) else renamed(soft, x)

    return one_by_one(solve, support, support_labels, query, prototypes, logits)
