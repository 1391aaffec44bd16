"""The method `adaptive` in plain torch, task by task: the specification.

Letters: S labelled rows, Q queries, K classes, D features; class k has n_k labelled rows with mean
w_k; v_i is the difference of row i from its class mean. The equations are in docs/adaptive.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..solution import Solution
from .adapt import adapt
from .calibrate import calibrate
from .paddle import batched, computing_dtype, unit_rows

SHARPNESS = 16.0  # of one shot, and the centre of its prior
SAME, NO_SCATTER = 1e-6, 1e-10  # rounding, of lengths and of squared distances
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)
SOFTER, FEW = 0.7, 0.02  # logits are reduced by this share if the concentration is far below this
CAUTIOUS, SHOTS = range(150, 2**14 + 1), 10  # so many queries with 2 to 10 shots prefer
ODDS, ENOUGH = 1.0, 0.04  # the nearest mean by these odds, unless they promise this gain
BEFORE, MANY = 0.5, 10.0  # of one shot: largest share of distances before the second unit norm;
# it requires a large batch, and a concentration far above this


class Judged(NamedTuple):
    """Distances in one metric, of queries and of the calibration rows."""

    query: Tensor  # [Q, K]
    rows: Tensor  # [R, K], each row left out of its own class
    metric: Tensor  # [D, D]


class Rows(NamedTuple):
    """The calibration rows."""

    x: Tensor  # [R, D]
    own: Tensor  # [R] their classes
    shots: Tensor  # [R] of their classes
    off: Tensor  # [R, D] v


def centred(x: Tensor, centre: Tensor) -> Tensor:
    """Unit-norm rows, minus the centre, unit-norm again; a row at the centre becomes zero."""
    x = unit_rows(x) - centre
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm > SAME, x / norm.clamp(min=SAME), 0)


def means_of(x: Tensor, labels: Tensor, K: int) -> Tensor:
    return torch.stack([x[labels == k].mean(0) for k in range(K)])


def calibrating(x: Tensor, labels: Tensor, means: Tensor, shots: Tensor, full: bool) -> Rows:
    """Of classes with two rows or more, evenly spread: 128 rows, 256 for the full metric, or K."""
    S, K = len(x), len(means)
    able = [i for i in range(S) if shots[labels[i]] >= 2]
    R = min(len(able), max(256 if full else 128, min(K, 2**24 // K)))
    chosen = torch.tensor([able[(2 * i + 1) * len(able) // (2 * R)] for i in range(R)])
    chosen = chosen.to(labels.device)
    own = labels[chosen]
    return Rows(x[chosen], own, shots[own], x[chosen] - means[own])


def feature_scale(rows: Rows) -> Tensor:
    """Feature weights, lower for large variance within the classes, [D]."""
    degrees = ((rows.shots - 1) / rows.shots).sum()
    variance = rows.off.square().sum(0) / degrees
    mean = variance.mean()
    variance = (degrees * variance + 10 * mean) / (degrees + 10)
    scale = 1 / (variance + mean + NO_SCATTER / len(variance))
    return scale / scale.mean()


def squared(x: Tensor, w: Tensor, metric: Tensor) -> Tensor:
    """Squared distances of rows [N, D] to rows [K, D] in a metric [D, D], [N, K]."""
    away = x.unsqueeze(1) - w
    return ((away @ metric) * away).sum(-1)


def less_noise(query: Tensor, others: Tensor, own: Tensor, rows: Rows, shots: Tensor) -> Judged:
    """The distances minus the noise of the class means."""
    judged = others.scatter(1, rows.own.unsqueeze(1), own.unsqueeze(1))
    noise = 0.6 * (own * rows.shots / (rows.shots + 1)).mean() / shots
    return Judged(query - noise, judged - noise, torch.empty(0))


def by_scale(query: Tensor, rows: Rows, means: Tensor, shots: Tensor) -> tuple[Judged, Tensor]:
    """Distances in the diagonal metric, and those to the own classes, [R]."""
    metric = feature_scale(rows).diag()
    squares = ((rows.off @ metric) * rows.off).sum(-1)
    own = (rows.shots + 1) / (rows.shots - 1) * squares
    found = less_noise(
        squared(query, means, metric), squared(rows.x, means, metric), own, rows, shots
    )
    return found._replace(metric=metric), own


def by_covariance(
    query: Tensor, rows: Rows, means: Tensor, shots: Tensor, off: Tensor, scale: Tensor, own: Tensor
) -> Judged:
    """Distances in the full metric, for each row as if it were absent.

    `off` is v of all labelled rows, `scale` the diagonal metric, `own` its own distances.
    """
    D = len(scale)
    degrees = len(off) - len(means)
    root = scale.sqrt()
    covariance = (off * root).mT @ (off * root) / degrees
    level = covariance.trace() / D + NO_SCATTER / D
    inverse = torch.linalg.inv(covariance / level + torch.eye(D).to(covariance))
    metric = root.unsqueeze(1) * inverse * root

    # Without row i the covariance loses cut v v^T, and its inverse follows in closed form.
    cut = rows.shots / ((rows.shots - 1) * degrees * level)
    square = ((rows.off @ metric) * rows.off).sum(-1)
    kept = (1 - cut * square).clamp(min=1e-3)
    along = ((rows.x.unsqueeze(1) - means) @ metric * rows.off.unsqueeze(1)).sum(-1)
    others = squared(rows.x, means, metric) + (cut / kept).unsqueeze(1) * along.square()
    own_full = (rows.shots + 1) / (rows.shots - 1) * square / kept

    kappa = (own_full.mean() + NO_SCATTER) / (own.mean() + NO_SCATTER)
    found = less_noise(squared(query, means, metric), others, own_full, rows, shots)
    return Judged(found.query / kappa, found.rows / kappa, metric / kappa)


def sharpness_of(distances: Tensor, own: Tensor) -> tuple[float, float]:
    """The calibrated sharpness, and the objective it minimises."""
    count = torch.tensor([len(own)], device=own.device)
    found = calibrate(distances.unsqueeze(0), own.unsqueeze(0), count)
    return float(found[0]), float(found[1])


def hubs(distances: Tensor, rows: Rows, f: float) -> Tensor:
    """Lower bias for classes that attract rows of others, [K]."""
    R, K = distances.shape
    p = torch.softmax(-f / 2 * distances, dim=-1)
    drawn = p.scatter(1, rows.own.unsqueeze(1), 0.0).sum(0)
    return -torch.log(1 + (drawn - drawn.mean()) / (R / K + 1))


def one_shot_hubs(means: Tensor) -> Tensor:
    """The same with the class means as rows, each without its own class."""
    K = len(means)
    if K == 1:
        return means.new_zeros(1)
    distances = squared(means, means, torch.eye(means.shape[1]).to(means))
    distances = distances.fill_diagonal_(math.inf)
    drawn = torch.softmax(-SHARPNESS / 2 * distances, dim=-1).sum(0)
    return -torch.log(1 + (drawn - 1) / 2)


def moved_distances(
    x: Tensor, means: Tensor, shots: Tensor, weights: Tensor, metric: Tensor
) -> Tensor:
    """Distances to prototypes that absorbed the queries by weights [Q, K], without each itself."""
    found = []
    for q in range(len(x)):
        others = weights.clone()
        others[q] = 0
        sums = shots.unsqueeze(1) * means + others.mT @ x
        prototypes = sums / (shots + others.sum(0)).unsqueeze(1)
        found.append(squared(x[q : q + 1], prototypes, metric))
    return torch.cat(found)


def less_sharp(logits: Tensor, a: Tensor) -> Tensor:
    """The factor on logits if few classes are present: odds exceed those seen in labelled rows."""
    return logits * (1 - SOFTER / (1 + a / FEW))


def with_lengths(
    logits: Tensor, support: Tensor, query: Tensor, labels: Tensor, centre: Tensor, share: Tensor
) -> Tensor:
    """For one shot: adds the plain nearest mean if all classes seem present.

    `share` is its weight.
    """
    rows = means_of(unit_rows(support) - centre, labels, logits.shape[1])
    scatter = rows.square().sum(-1).mean().clamp(min=SAME**2)
    away = (unit_rows(query) - centre).unsqueeze(1) - rows
    plain = -SHARPNESS / 2 * away.square().sum(-1) / scatter
    return (1 - share) * logits + share * plain


def with_caution(u: Tensor, support: Tensor, query: Tensor, labels: Tensor) -> Tensor:
    """Prefers the class with the nearest mean, if the batch promises little else."""
    away = unit_rows(query).unsqueeze(1) - means_of(unit_rows(support), labels, u.shape[1])
    near, label = away.square().sum(-1).argmin(-1), u.argmax(-1)
    row = torch.arange(len(u), device=u.device)
    most, other = u[row, label], u[row, near]
    odds = ODDS * (1 - ((most - other).mean() / ENOUGH).square()).clamp(min=0).square()
    swap = most < (1 + odds) * other
    found = u.clone()
    found[row, label] = torch.where(swap, other, most)
    found[row, near] = torch.where(swap, most, other)
    return found


def takes_full_metric(metric: str, S: int, K: int, D: int) -> bool:
    if metric != "auto":
        return metric == "full"
    shots = 4 if S * D * min(S, D) <= 2**27 else 8
    return shots * K <= S


def solve_task(
    support: Tensor, one_hot: Tensor, query: Tensor, metric: str, max_iter: int, tol: float
) -> Solution:
    """One task, without a batch dimension, in float64."""
    (S, K), (Q, D) = one_hot.shape, query.shape
    labels, shots = one_hot.argmax(-1), one_hot.sum(0)
    centre = means_of(unit_rows(support), labels, K).mean(0) if K > 1 else support.new_zeros(D)
    x, z = centred(support, centre), centred(query, centre)
    means = means_of(x, labels, K)
    if S == K:
        f, temper = SHARPNESS, 0.7
        eye = torch.eye(D).to(x)
        best = Judged(squared(z, means, eye), torch.empty(0), eye)
        bias = one_shot_hubs(means)
    else:
        temper = 1.0
        full_metric = takes_full_metric(metric, S, K, D)
        rows = calibrating(x, labels, means, shots, full_metric)
        plain, own = by_scale(z, rows, means, shots)
        f, objective = sharpness_of(plain.rows, rows.own)
        best = plain
        if full_metric:
            scale = plain.metric.diagonal()
            full = by_covariance(z, rows, means, shots, x - means[labels], scale, own)
            for t in MIXTURES[1:]:
                mixed = Judged(*((1 - t) * a + t * b for a, b in zip(plain, full, strict=True)))
                f_mixed, objective_mixed = sharpness_of(mixed.rows, rows.own)
                if objective_mixed < objective:
                    f, objective, best = f_mixed, objective_mixed, mixed
        bias = hubs(best.rows, rows, f)

    weight = 2 * S / (2 * S + Q)
    logits = -f / 2 * best.query + bias
    found = adapt(logits, weight=weight, max_iter=max_iter, tol=tol)
    assert found.concentration is not None
    a = found.concentration
    counts = weight * found.probabilities.sum(0)
    weights = (found.probabilities * counts / (counts + a)).square()
    moved = moved_distances(z, means, shots, weights, best.metric)
    still = squared(z, means, best.metric)
    logits = logits - f / 2 * (moved - still)
    if S == K:
        share = BEFORE * (1 - weight) * a / (MANY + a)
        logits = with_lengths(logits, support, query, labels, centre, share)
    else:
        logits = less_sharp(logits, a)
    others = (counts - weight * found.probabilities).clamp(min=0)  # of each query, [Q, K]
    logits = logits + torch.log(others + a)
    u = torch.softmax(temper * logits, dim=-1)
    if Q in CAUTIOUS and K < S < SHOTS * K:
        u = with_caution(u, support, query, labels)
    return found._replace(labels=u.argmax(-1), probabilities=u)


def adaptive(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    metric: str = "auto",
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Solution:
    """Classify queries by calibrated distances and the class proportions of their batch.

    Parameters
    ----------
    support, support_labels, query, num_classes
        As in `paddle_ext.reference.solve`.
    metric, max_iter, tol
        As in `paddle_ext.methods.Adaptive`.

    Returns
    -------
    Solution
        In float64 for float64 features, else in float32.

    Examples
    --------
    >>> import torch
    >>> support, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> adaptive(support, torch.tensor([0, 1]), query).labels
    tensor([0])
    """
    rows, one_hot, queries = batched(support, support_labels, query, num_classes)
    found = [
        solve_task(rows[b % len(rows)], one_hot[b % len(rows)], queries[b], metric, max_iter, tol)
        for b in range(len(queries))
    ]
    together: dict[str, Any] = {}
    for name, first in found[0]._asdict().items():
        if isinstance(first, Tensor):
            x = torch.stack([getattr(one, name) for one in found]) if query.dim() == 3 else first
            together[name] = x.to(computing_dtype(query)) if x.is_floating_point() else x
    return found[0]._replace(**together)
