"""The method `adaptive` with class names, in plain torch and float64, task by task.

Letters as in `reference.adaptive`; t_k is the name of class k. The equations are in docs/names.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .adapt import adapt
from .adaptive import centred, likelihood, moved_distances, posterior, sharpness_of, squared
from .paddle import unit_rows

SHARPNESS, ANCHOR, ANCHOR_ROWS, SLOPE = 12.0, 0.3, 0.5, 0.4
NAME_SHARPNESS, NAME_WEIGHT = 20.0, 0.7


class NamedTask(NamedTuple):
    """One task with class prototypes or zero-shot logits, in float64."""

    support: Tensor  # [S, D]; S may be 0
    labels: Tensor  # [S]
    query: Tensor  # [Q, D]
    num_classes: int
    prototypes: Tensor | None  # [K, D]
    logits: Tensor | None  # [Q, K]


class NameLogits:
    """Logits of the names for queries and judges, minus their mean over the classes, weighted."""

    def __init__(self, task: NamedTask, logit_scale: float) -> None:
        shots = shots_of(task)
        weight = sum(min(1.0, 1.4 / (1 + float(n))) for n in shots) / len(shots)
        self.judging = evenly(len(task.support))
        self.away: Tensor | None = None
        self.judges: Tensor | None = None
        if task.prototypes is None:
            assert task.logits is not None
            self.query = NAME_WEIGHT * weight * less_mean(task.logits)
            return
        names = unit_rows(task.prototypes)
        self.away = names - names.mean(0)
        z, s = unit_rows(task.query), unit_rows(task.support)
        width = max(mean_deviation(z), mean_deviation(s) if len(s) else 0.0) * float(
            self.away.norm(dim=1).mean()
        )
        scale = min(logit_scale, NAME_SHARPNESS / width) if width > 0 else logit_scale
        if len(s):
            self.judges = scale * s[self.judging] @ self.away.mT
            factor, _ = fitted(self.judges, task.labels[self.judging])
            weight = weight * min(1.0, factor)
            self.judges = NAME_WEIGHT * weight * self.judges
        self.query = NAME_WEIGHT * weight * scale * z @ self.away.mT


def less_mean(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def mean_deviation(x: Tensor) -> float:
    """The mean distance of rows to their mean."""
    return float((x - x.mean(0)).norm(dim=1).mean())


def shots_of(task: NamedTask) -> Tensor:
    return torch.stack([(task.labels == k).sum() for k in range(task.num_classes)]).double()


def evenly(S: int) -> Tensor:
    """The indices of the judges among S labelled rows."""
    R = min(S, 256)
    return torch.tensor([(2 * i + 1) * S // (2 * R) for i in range(R)], dtype=torch.int64)


def fitted(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The factor on logits that fits the labels best, and the misfit."""
    sharpness, misfit = sharpness_of(-logits / 8, labels)
    return sharpness / 16, misfit


# --- prototypes that start as names -----------------------------------------------------------


def centre_of(task: NamedTask, away: Tensor | None, u: Tensor) -> Tensor:
    z, share = unit_rows(task.query), u.mean(0)
    names = torch.zeros(task.num_classes, z.shape[1]).double() if away is None else away
    centre = z.mean(0) - SLOPE * share @ names
    seen = sorted(set(task.labels.tolist()))
    if not seen:
        return centre
    s = unit_rows(task.support)
    other = torch.stack([s[task.labels == k].mean(0) - SLOPE * names[k] for k in seen]).mean(0)
    present = float(1 / share.square().sum())
    return (present * centre + len(seen) * other) / (present + len(seen))


def by_anchors(task: NamedTask, logit_scale: float, max_iter: int, tol: float) -> Tensor:
    names = NameLogits(task, logit_scale)
    (Q, K), shots = names.query.shape, shots_of(task)
    weight = min(1.0, 8 * K / Q)
    first = adapt(names.query / NAME_WEIGHT, weight=weight, max_iter=min(3, max_iter), tol=tol)
    centre = centre_of(task, names.away, first.probabilities)
    x, s = centred(task.query, centre), centred(task.support, centre)
    anchors = torch.zeros(K, x.shape[1]).double()
    if task.prototypes is not None:
        anchors = (
            ANCHOR_ROWS * ANCHOR * centred(task.prototypes, unit_rows(task.prototypes).mean(0))
        )
    sums = torch.stack([anchors[k] + s[task.labels == k].sum(0) for k in range(K)])
    mass = ANCHOR_ROWS + shots
    prototypes = sums / mass.unsqueeze(1)
    eye = torch.eye(x.shape[1]).double()
    factor, query, start = 1.0, names.query, first
    if len(s):
        judges, own = s[names.judging], task.labels[names.judging]
        d = squared(judges, prototypes, eye)
        rate = (mass[own] + 1) / (mass[own] - 1)
        place = torch.arange(len(own))
        d[place, own] = d[place, own] * rate
        logits = -SHARPNESS / 2 * d
        if names.judges is not None:
            logits = logits + names.judges
        factor = min(fitted(logits, own)[0], 1.25)
        query = query if names.judges is None else factor * query
        logits = query - factor * SHARPNESS / 2 * squared(x, prototypes, eye)
        start = adapt(logits, weight=weight, max_iter=min(3, max_iter), tol=tol)

    kept = start.proportions.topk(min(K, max(256, Q))).indices.sort().values
    u = start.probabilities[:, kept]
    for _ in range(2):
        moved = moved_distances(x, prototypes[kept], mass[kept], u.square(), eye)
        logits = query[:, kept] - factor * SHARPNESS / 2 * moved
        u = adapt(logits, weight=weight, max_iter=min(10, max_iter), tol=tol).probabilities
    probabilities = torch.zeros(Q, K).double()
    probabilities[:, kept] = u
    return probabilities


# --- every class has labelled rows ------------------------------------------------------------


def by_rows(task: NamedTask, metric: str, logit_scale: float, max_iter: int, tol: float) -> Tensor:
    names, labels = NameLogits(task, logit_scale), task.labels
    known = likelihood(task.support, labels, task.num_classes, metric)
    share, factor = 1.0, 1.0
    if names.judges is not None:
        own = labels[names.judging]
        d = known.distances(centred(task.support[names.judging], known.centre))
        place, n = torch.arange(len(own)), known.shots[own]
        d[place, own] = d[place, own] * (n + 1) / (n - 1).clamp(min=1)
        logits, counts = known.logits(d), (n > 1).unsqueeze(1)
        factor, misfit = fitted((logits + names.judges) * counts, own)
        for other, price in ((0.0, 2.0), (0.5, 1.0), (2.0, 1.0)):
            fit = fitted((logits + other * names.judges) * counts, own)
            if fit[1] + price < misfit:
                factor, misfit, share = fit[0], fit[1] + price, other
        factor = min(factor, 1.0)
    known = known._replace(sharpness=factor * known.sharpness, bias=factor * known.bias)
    added = factor * share * names.query
    return posterior(known, task.query, max_iter, tol, added).probabilities


def names(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    prototypes: Tensor | None = None,
    logits: Tensor | None = None,
    metric: str = "auto",
    max_iter: int = 100,
    tol: float = 1e-3,
    logit_scale: float = 100.0,
) -> Tensor:
    """Classify queries by names, labelled rows and the class proportions of their batch.

    Parameters
    ----------
    support, support_labels, query, prototypes, logits
        As in `paddle_ext.methods.Method.predict`; either `prototypes` or `logits` are given.
    metric, max_iter, tol, logit_scale
        As in `paddle_ext.methods.Adaptive`.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.
    """

    given = prototypes if logits is None else logits
    assert given is not None
    K = given.shape[-2 if logits is None else -1]

    def own(x: Tensor | None, b: int, rank: int) -> Any:
        """The tensor of task b, in float64; one without a batch dimension is shared."""
        if x is None or x.dim() < rank:
            return None if x is None else x.detach().double()
        return x[b].detach().double()

    results = []
    for b in range(len(query) if query.dim() == 3 else 1):
        labels = own(support_labels, b, 2).long()
        rows = [own(x, b, 3) for x in (support, query, prototypes, logits)]
        task = NamedTask(rows[0], labels, rows[1], K, rows[2], rows[3])
        if len(labels) >= 2 * K and bool((shots_of(task) > 0).all()):
            results.append(by_rows(task, metric, logit_scale, max_iter, tol))
        else:
            results.append(by_anchors(task, logit_scale, max_iter, tol))
    return torch.stack(results) if query.dim() == 3 else results[0]
