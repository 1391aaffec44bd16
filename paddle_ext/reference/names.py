"""The method `adaptive` with class names, in plain torch and float64, task by task.

Letters as in `reference.adaptive`; t_k is the name of class k. The equations are in docs/names.md.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .adapt import adapt
from .groups import Members, posterior_of_groups, start_of
from .paddle import unit_rows
from .rule import SHARPNESS as USUAL_SHARPNESS
from .rule import centred, classify, learn, likeliest_sharpness, squared

SHARPNESS, ANCHOR, ANCHOR_ROWS = 3.0, 0.4, 0.5
NAME_SHARPNESS, NAME_WEIGHT = 20.0, 0.7


class NamedTask(NamedTuple):
    """One task with class prototypes or zero-shot logits, in float64."""

    support: Tensor  # [S, D]; S may be 0
    labels: Tensor  # [S]
    query: Tensor  # [Q, D]
    num_classes: int
    prototypes: Tensor | None  # [K, D]
    logits: Tensor | None  # [Q, K]
    groups: Tensor | None = None  # [Q] of queries that share
    prior: Tensor | None = None  # [K] or [G, K]


class NameLogits:
    """Logits of the names for queries and judges, minus their mean over the classes, weighted."""

    def __init__(self, task: NamedTask, logit_scale: float) -> None:
        shots = shots_of(task)
        weight = sum(min(1.0, 1.4 / (1 + float(n))) for n in shots) / len(shots)
        self.judging = evenly(len(task.support))
        self.judges: Tensor | None = None
        self.factor = 1.0
        if task.prototypes is None:
            assert task.logits is not None
            self.query = NAME_WEIGHT * weight * (task.logits - task.logits.mean(1, keepdim=True))
            return
        names = unit_rows(task.prototypes)
        away = names - names.mean(0)
        z, s = unit_rows(task.query), unit_rows(task.support)
        self.deviation = max(mean_deviation(z), mean_deviation(s) if len(s) else 0.0)
        width = self.deviation * float(away.norm(dim=1).mean())
        scale = min(logit_scale, NAME_SHARPNESS / width) if width > 0 else logit_scale
        if len(s):
            self.judges = scale * s[self.judging] @ away.mT
            factor, _ = fitted(self.judges, task.labels[self.judging])
            self.factor = min(1.0, factor)
            weight = weight * self.factor**2
            self.judges = NAME_WEIGHT * weight * self.judges
        self.query = NAME_WEIGHT * weight * scale * z @ away.mT


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
    found = likeliest_sharpness(-2 / USUAL_SHARPNESS * logits, labels)
    return found.f / USUAL_SHARPNESS, found.objective


# --- prototypes that start as names and absorb the batch in rounds ----------------------------


class Rows(NamedTuple):
    """Rows minus their mean, and names as rows."""

    every: Tensor  # [Q + S, D] queries, then labelled rows
    known: Tensor  # [S, K] 1 for the class of a labelled row, 0 for the others
    anchors: Tensor  # [K, D]


def centred_rows(task: NamedTask, names: NameLogits) -> Rows:
    every = unit_rows(torch.cat([task.query, task.support]))
    anchors = torch.zeros(task.num_classes, every.shape[1]).double()
    if task.prototypes is not None:
        directions = centred(task.prototypes, unit_rows(task.prototypes).mean(0))
        anchors = ANCHOR * names.factor * names.deviation * directions
    known = (task.labels.unsqueeze(1) == torch.arange(task.num_classes)).double()
    return Rows(every - every.mean(0), known, anchors)


def trust(rows: Rows) -> float:
    """The weight of distances: few rows hardly know their own centre."""
    return 1 / (1 + (8 / len(rows.every)) ** 3)


def first_logits(rows: Rows) -> Tensor:
    """What names and labelled rows say of the queries by their distances, [Q, K]."""
    K, Q = len(rows.anchors), len(rows.every) - len(rows.known)
    mass = ANCHOR_ROWS + rows.known.sum(0).unsqueeze(1)
    w = (rows.known.mT @ rows.every[Q:] + ANCHOR_ROWS * rows.anchors) / mass
    variance = float(rows.every.square().sum(1).mean())
    sharpness = trust(rows) * SHARPNESS * (1 + math.log(K))
    scale = sharpness / variance if variance > 1e-24 else 0.0
    return -scale / 2 * squared(rows.every[:Q], w)


def round_logits(rows: Rows, u: Tensor, joint: bool) -> Tensor:
    """What prototypes say of the queries [Q, K], each without itself; they have the weights u."""
    every, (Q, K) = rows.every, u.shape
    x = every[:Q]
    weights = torch.cat([u, rows.known])
    anchors = rows.anchors - weights.sum(0) / len(every) @ rows.anchors
    mass = ANCHOR_ROWS + weights.sum(0)
    w = (weights.mT @ every + ANCHOR_ROWS * anchors) / mass.unsqueeze(1)
    off = every.unsqueeze(1) - w  # [Q + S, K, D]
    variance = (weights.unsqueeze(-1) * off.square()).sum((0, 1)) / len(every)
    mean = variance.mean()
    if float(mean) <= 1e-24:
        return torch.zeros(Q, K).double()
    metric = (1 / (variance + mean / len(every))).diag()
    own = (variance * metric.diagonal()).sum()
    sharpness = trust(rows) * SHARPNESS * (1 + torch.special.entr(u.mean(0)).sum())
    if joint:
        # Products with the prototypes, and their covariance inside classes.
        y, scores = x @ metric @ w.mT, w @ metric @ w.mT
        apart = y.unsqueeze(1) - scores  # [Q, K, K]
        covariance = torch.einsum("qk,qki,qkj->ij", u, apart, apart)
        covariance = (covariance + K * own / sharpness * scores) / (Q + K)
        jitter = 0.01 * covariance.diagonal().mean() * torch.eye(K).double()
        d = squared(y, scores, torch.linalg.inv(covariance + jitter))
    else:
        d = sharpness / own * squared(x, w, metric)
    return -(mass / (mass - u)).square() * d / 2


def by_rounds(task: NamedTask, logit_scale: float, max_iter: int, tol: float) -> Tensor:
    names = NameLogits(task, logit_scale)
    rows, (Q, K) = centred_rows(task, names), names.query.shape

    def adapted(logits: Tensor, enough: float, most: int, prior: Tensor | None) -> Tensor:
        if task.groups is None:
            steps: Any = {"max_iter": min(most, max_iter), "tol": tol}
            return adapt(logits, weight=min(1.0, enough / Q), prior=prior, **steps).probabilities
        # These logits are too rough to compare sets of classes (15).
        members = Members.of(task.groups)
        weights = (enough / members.sizes).clamp(max=1)
        return start_of(logits, members, weights, prior).groups.probabilities(logits, weights)

    S = len(rows.known)
    known = 2 * (S + ANCHOR_ROWS * K)
    enough, most = (min(8 * K, known * Q / (known + Q)), 10) if S else (8 * K, 3)
    u = adapted(names.query + first_logits(rows), enough, most, task.prior)
    found = torch.nn.functional.one_hot(u.argmax(1), K).sum(0)
    order = u.mean(0) + (found + rows.known.sum(0) > 0)
    kept = order.topk(min(K, max(128, len(rows.every)))).indices.sort().values
    rows = rows._replace(known=rows.known[:, kept], anchors=rows.anchors[kept])
    u = u[:, kept] / u[:, kept].sum(1, keepdim=True)
    prior = None if task.prior is None else task.prior[..., kept]
    for joint in [False] * 2 + [True] * (2 if Q > 8 * K else 0):
        logits = names.query[:, kept] + round_logits(rows, u, joint)
        u = adapted(logits, 8 * K, 10, prior)
    probabilities = torch.zeros(Q, K).double()
    probabilities[:, kept] = u
    return probabilities


# --- every class has labelled rows ------------------------------------------------------------


def by_rows(task: NamedTask, metric: str, logit_scale: float, max_iter: int, tol: float) -> Tensor:
    names, labels = NameLogits(task, logit_scale), task.labels
    known = learn(task.support, labels, task.num_classes, metric=metric)
    share, factor = 1.0, 1.0
    if names.judges is not None:
        # A row whose class has no other row says nothing of the factor.
        own, counts = labels[names.judging], known.judged[names.judging].unsqueeze(1)
        logits = known.left_out[names.judging]
        factor, misfit = fitted((logits + names.judges) * counts, own)
        for other, price in ((0.0, 2.0), (0.5, 1.0), (2.0, 1.0)):
            fit = fitted((logits + other * names.judges) * counts, own)
            if fit[1] + price < misfit:
                factor, misfit, share = fit[0], fit[1] + price, other
        factor = min(factor, 1.0)
    known = dataclasses.replace(known, sharpness=factor * known.sharpness, bias=factor * known.bias)
    added = factor * share * names.query
    query, prior = task.query, task.prior
    if task.groups is not None:
        found = posterior_of_groups(known, query, task.groups, prior=prior, added=added)
        return found.probabilities
    found = classify(known, query, prior=prior, added=added, max_iter=max_iter, tol=tol)
    return found.probabilities


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
    groups: Tensor | None = None,
    prior: Tensor | None = None,
) -> Tensor:
    """Classify queries by names, labelled rows and the class proportions of their batch.

    The tensors are as in `paddle_ext.methods.Method.predict`, either `prototypes` or `logits`; the
    options as in `paddle_ext.methods.Adaptive`, and groups, which share, and the prior as in
    `paddle_ext.adaptive`. Returns the probabilities [.., Q, K] in float64.
    """
    given = prototypes if logits is None else logits
    assert given is not None
    K = given.shape[-2 if logits is None else -1]

    def own(x: Tensor | None, b: int, rank: int) -> Any:
        """The tensor of task b, in float64; one without a batch dimension is shared."""
        return None if x is None else (x if x.dim() < rank else x[b]).detach().double()

    results = []
    for b in range(len(query) if query.dim() == 3 else 1):
        labels = own(support_labels, b, 2).long()
        rows = [own(x, b, 3) for x in (support, query, prototypes, logits)]
        task = NamedTask(rows[0], labels, rows[1], K, rows[2], rows[3], groups, prior)
        if len(labels) >= 3 * K and bool((shots_of(task) > 0).all()):
            results.append(by_rows(task, metric, logit_scale, max_iter, tol))
        else:
            results.append(by_rounds(task, logit_scale, max_iter, tol))
    return torch.stack(results) if query.dim() == 3 else results[0]
