"""The method `adaptive` in plain torch, task by task: the specification.

Letters: S labelled rows, Q queries, K classes, D features; class k has n_k labelled rows with mean
w_k; v_i is the difference of row i from its class mean. The equations are in docs/adaptive.md.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..solution import Solution
from .adapt import adapt, measures
from ._former_label_noise import (
    MIXTURES,
    NO_SCATTER,
    STANDARD_ERROR,
    Mixture,
    excess_of,
    full_metric,
    weigh_labels,
)
from .paddle import batched, computing_dtype, unit_rows

SHARPNESS = 16.0  # the median of its prior, and its value for one row per class
LEAST_SHARPNESS, MOST_SHARPNESS = 0.1, 1e4
CALIBRATION_STEPS = 40  # limit on steps of Newton's method for ln f, f the sharpness
LAST_STEP, LONGEST_STEP = 1e-3, 1.5  # a shorter one is the last; limit on their length
SAME = {torch.float32: 1e-6, torch.float64: 1e-12}  # smaller lengths are rounding
MOST_ENTRIES = 2**24  # limit on judges times classes, if there are more than 128 judges
SOFTER, FEW = 0.7, 0.02  # logits lose up to this share, half of it at this concentration
ONE_SHOT_TEMPER = 0.7  # factor on logits that cannot be calibrated


class CalibrationRows(NamedTuple):
    """The calibration rows, or judges: labelled rows of classes with at least two."""

    x: Tensor  # [R, D]
    own: Tensor  # [R] their classes
    shots: Tensor  # [R] labelled rows of their classes
    off: Tensor  # [R, D] v, their offsets from the class mean


class Judged(NamedTuple):
    """A metric, and the distances of the calibration rows in it, each left out of its class."""

    metric: Tensor  # [D, D]
    rows: Tensor  # [R, K] squared distances

    def own(self, rows: CalibrationRows) -> Tensor:
        return self.rows.gather(1, rows.own.unsqueeze(1)).squeeze(1)


class Likelihood(NamedTuple):
    """What labelled rows determine; the logits of a row are ``bias - sharpness / 2 distances``."""

    centre: Tensor  # [D]
    means: Tensor  # [K, D]
    shots: Tensor  # [K]
    metric: Tensor  # [D, D]
    sharpness: float
    bias: Tensor  # [K]
    temper: float
    rows: int  # S
    variance: float = 0.0  # mean squared distance of a row to the mean of its class

    def excess(self, more: Tensor | float = 0.0) -> Tensor:
        """How much farther prototypes of few rows are, with `more` rows; it is in the bias."""
        usual = self.rows / len(self.shots)
        return excess_of(self.variance, self.shots + more, usual + more)

    def distances(self, x: Tensor) -> Tensor:
        """Squared distances of rows in the coordinates to the class means, [N, K]."""
        return squared(x, self.means, self.metric)

    def logits(self, distances: Tensor) -> Tensor:
        return self.bias - self.sharpness / 2 * distances


def centred(x: Tensor, centre: Tensor) -> Tensor:
    """Unit-norm rows, minus the centre, unit-norm again; a row at the centre becomes zero."""
    x = unit_rows(x) - centre
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm > SAME[x.dtype], x / norm.clamp(min=SAME[x.dtype]), 0)


def means_of(x: Tensor, labels: Tensor, K: int) -> Tensor:
    return torch.stack([x[labels == k].mean(0) for k in range(K)])


def chosen_to_judge(count: int, K: int, full: bool) -> list[int]:
    """The indices of the judges among `count` rows, evenly spread: 128, 256 if `full`, or K."""
    R = min(count, max(256 if full else 128, min(K, MOST_ENTRIES // K)))
    return [(2 * i + 1) * count // (2 * R) for i in range(R)]


def choose_calibration_rows(
    x: Tensor, labels: Tensor, means: Tensor, shots: Tensor, full: bool
) -> CalibrationRows:
    """Choose the calibration rows among the rows x [S, D] of classes with two rows or more."""
    S, K = len(x), len(means)
    candidates = [i for i in range(S) if shots[labels[i]] >= 2]
    chosen = torch.tensor([candidates[i] for i in chosen_to_judge(len(candidates), K, full)])
    chosen = chosen.to(labels.device)
    own = labels[chosen]
    return CalibrationRows(x[chosen], own, shots[own], x[chosen] - means[own])


def feature_scale(rows: CalibrationRows) -> Tensor:
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


def by_scale(rows: CalibrationRows, means: Tensor) -> Judged:
    """The diagonal metric, and the distances of the calibration rows in it."""
    metric = feature_scale(rows).diag()
    squares = ((rows.off @ metric) * rows.off).sum(-1)
    own = (rows.shots + 1) / (rows.shots - 1) * squares
    return judged(metric, squared(rows.x, means, metric), own, rows)


def by_covariance(rows: CalibrationRows, means: Tensor, off: Tensor, plain: Judged) -> Judged:
    """The full metric, and the distances of each calibration row in the one learned without it."""
    metric, length = full_metric(off, len(off) - len(means), plain.metric)

    # Without row i the inverse of A loses cut v v^T, and A follows in closed form.
    cut = rows.shots / ((rows.shots - 1) * length)
    square = ((rows.off @ metric) * rows.off).sum(-1)
    kept = (1 - cut * square).clamp(min=1e-3)
    along = ((rows.x.unsqueeze(1) - means) @ metric * rows.off.unsqueeze(1)).sum(-1)
    others = squared(rows.x, means, metric) + (cut / kept).unsqueeze(1) * along.square()
    own = (rows.shots + 1) / (rows.shots - 1) * square / kept

    kappa = (own.mean() + NO_SCATTER) / (plain.own(rows).mean() + NO_SCATTER)
    raw = judged(metric, others, own, rows)
    return Judged(raw.metric / kappa, raw.rows / kappa)


def judged(metric: Tensor, others: Tensor, own: Tensor, rows: CalibrationRows) -> Judged:
    """The metric with distances to `others` [R, K], and to the own class without the row, [R]."""
    return Judged(metric, others.scatter(1, rows.own.unsqueeze(1), own.unsqueeze(1)))


def calibrate(distances: Tensor, labels: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sharpness [B], the minimum [B], and what classes attract from rows of others [B, K].

    For rows i with distances d_ik to the classes [B, R, K] and own classes y_i, of which the first
    `count` [B] count, each task minimises over ln f

        sum_i CE_i( softmax_k( -f/2 d_ik ) ) + (ln f - ln 16)^2 / (2 ln(2)^2)

    by Newton steps inside a bracket; a step outside the bracket becomes a bisection.
    """
    d = distances.detach().double()
    B, R, _ = d.shape
    counts = (torch.arange(R, device=d.device) < count.unsqueeze(-1)).double()  # [B, R]
    own = d.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    middle, precision = math.log(SHARPNESS), math.log(2.0) ** -2
    low, high = (d.new_full((B,), math.log(f)) for f in (LEAST_SHARPNESS, MOST_SHARPNESS))
    at = d.new_full((B,), middle)
    running = torch.ones(B, dtype=torch.bool, device=d.device)
    for _ in range(CALIBRATION_STEPS):
        f = at.exp()
        p = (-0.5 * f.view(-1, 1, 1) * d).softmax(-1)
        mean = (p * d).sum(-1)
        variance = (p * (d - mean.unsqueeze(-1)).square()).sum(-1)
        first = 0.5 * f * ((own - mean) * counts).sum(-1)
        slope = first + (at - middle) * precision
        curvature = first + 0.25 * f.square() * (variance * counts).sum(-1) + precision
        low = torch.where(running & (slope < 0), at, low)
        high = torch.where(running & (slope >= 0), at, high)
        step = at - (slope / curvature).clamp(-LONGEST_STEP, LONGEST_STEP)
        inside = (curvature > 0) & (step >= low) & (step <= high)
        step = torch.where(inside, step, (low + high) / 2)
        moved = (step - at).abs() > LAST_STEP
        at = torch.where(running, step, at)
        running = running & moved
        if not running.any():
            break
    logits = -0.5 * at.exp().view(-1, 1, 1) * d
    own_logits = logits.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    entropy = ((logits.logsumexp(-1) - own_logits) * counts).sum(-1)
    objective = entropy + 0.5 * (at - middle).square() * precision
    drawn = logits.softmax(-1).scatter(-1, labels.long().unsqueeze(-1), 0.0)
    drawn = (drawn * counts.unsqueeze(-1)).sum(1)
    dtype = distances.dtype
    return at.exp().to(dtype), objective.to(dtype), drawn.to(dtype)


def sharpness_of(distances: Tensor, own: Tensor) -> tuple[float, float]:
    """The calibrated sharpness, and the objective it minimises."""
    count = torch.tensor([len(own)], device=own.device)
    fit = calibrate(distances.unsqueeze(0), own.unsqueeze(0), count)
    return float(fit[0]), float(fit[1])


def hubs(distances: Tensor, rows: CalibrationRows, f: float) -> Tensor:
    """A bias [K] that is lower for classes that attract rows of others."""
    p = torch.softmax(-f / 2 * distances, dim=-1)
    return bias_of(p.scatter(1, rows.own.unsqueeze(1), 0.0))


def one_shot_scale(means: Tensor) -> Tensor:
    """Feature weights from one row of each class, lower where most of the rows are large, [D]."""
    K, D = means.shape
    scatter = means.square().sum(0)
    rows = (scatter.square() / means.pow(4).sum(0).clamp(min=1e-30)).clamp(min=1)
    variance = scatter / K
    mean = variance.mean()
    variance = (rows * variance + 10 * mean) / (rows + 10)
    scale = 1 / (variance + mean + NO_SCATTER / D)
    scale = scale / scale.mean()
    return scale * (scatter.sum() + NO_SCATTER) / ((scale * scatter).sum() + NO_SCATTER)


def one_shot_hubs(means: Tensor, metric: Tensor) -> Tensor:
    """`hubs` for one row per class: rows judge all classes but their own; reduced if few judge."""
    K = len(means)
    if K == 1:
        return means.new_zeros(1)
    chosen = torch.tensor(chosen_to_judge(K, K, False)).to(means.device)
    distances = squared(means[chosen], means, metric)
    distances = distances.scatter(1, chosen.unsqueeze(1), math.inf)
    R = len(chosen)
    return R / (R + 10) * bias_of(torch.softmax(-SHARPNESS / 2 * distances, dim=-1))


def bias_of(attracted: Tensor) -> Tensor:
    """The bias of classes, [K], from the probability that each attracts from each judge, [R, K]."""
    R, K = attracted.shape
    drawn = attracted.sum(0)
    return -torch.log(1 + (drawn - drawn.mean()) / (R / K + 1))


def moved_distances(
    x: Tensor, means: Tensor, shots: Tensor, weights: Tensor, metric: Tensor
) -> Tensor:
    """Squared distances of queries to prototypes that absorbed all others, by weights [Q, K]."""
    parts = []
    for q in range(len(x)):
        others = weights.clone()
        others[q] = 0
        sums = shots.unsqueeze(1) * means + others.mT @ x
        prototypes = sums / (shots + others.sum(0)).unsqueeze(1)
        parts.append(squared(x[q : q + 1], prototypes, metric))
    return torch.cat(parts)


def likelihood(
    support: Tensor,
    labels: Tensor,
    K: int,
    metric: str,
    label_noise: float | str = 0.0,
    trusted: Tensor | None = None,
) -> Likelihood:
    """Learn from the labelled rows [S, D] of one task, in float64; `trusted` labels are right."""
    S, D = support.shape
    shots = torch.stack([(labels == k).sum() for k in range(K)]).to(support.dtype)
    centre = means_of(unit_rows(support), labels, K).mean(0) if K > 1 else support.new_zeros(D)
    x = centred(support, centre)
    means = means_of(x, labels, K)
    if S == K:
        scale = one_shot_scale(means).diag()
        bias = one_shot_hubs(means, scale)
        return Likelihood(centre, means, shots, scale, SHARPNESS, bias, ONE_SHOT_TEMPER, S)
    off, full = x - means[labels], metric != "diagonal"
    rows = choose_calibration_rows(x, labels, means, shots, full)
    plain = by_scale(rows, means)
    variance = float((plain.own(rows) * rows.shots / (rows.shots + 1)).mean())
    excess = excess_of(variance, shots, S / K)
    best, share = plain, 0.0
    f, least = sharpness_of(plain.rows - excess, rows.own)
    other = by_covariance(rows, means, off, plain) if full else plain
    for t in MIXTURES if full else ():
        mixed = Judged(*((1 - t) * a + t * b for a, b in zip(plain, other, strict=True)))
        f_mixed, objective = sharpness_of(mixed.rows - excess, rows.own)
        if objective >= least + STANDARD_ERROR:
            break
        f, least, best, share = f_mixed, min(least, objective), mixed, t
    bias = hubs(best.rows - excess, rows, f) + f / 2 * excess
    learned = Likelihood(centre, means, shots, best.metric, f, bias, 1.0, S, variance)
    if label_noise == 0.0 or K == 1:
        return learned
    # The raw full metric is kappa times the one that is as long as the diagonal one.
    raw = full_metric(off, S - K, plain.metric)[0]
    before = Mixture(share, float(raw.trace() / other.metric.trace())) if full else None
    judges = torch.tensor(chosen_to_judge(S, K, True), device=labels.device)
    judged = judges, label_noise, variance, trusted
    noisy = weigh_labels(x, labels, plain.metric, before, *judged)
    if noisy is None:
        return learned
    learned = learned._replace(
        means=noisy.means, shots=noisy.shots, metric=noisy.metric, sharpness=noisy.sharpness
    )
    return learned._replace(bias=noisy.hubs + noisy.sharpness / 2 * learned.excess())


def posterior(
    known: Likelihood,
    query: Tensor,
    max_iter: int,
    tol: float,
    added: Tensor | None = None,
    prior: Tensor | None = None,
) -> Solution:
    """Classify queries [Q, D] of one task; `added` [Q, K] are further logits."""
    Q, K, S = len(query), len(known.shots), known.rows
    z = centred(query, known.centre)
    distances, more = known.distances(z), 0.0 if added is None else added
    weight = 2 * S / (2 * S + Q)
    logits = known.logits(distances) + more
    adapted = adapt(logits, weight=weight, prior=prior, max_iter=max_iter, tol=tol)
    assert adapted.concentration is not None
    u, a = adapted.probabilities, adapted.concentration
    W = u.square() * Q / (Q + K)
    moved = moved_distances(z, known.means, known.shots, W, known.metric)
    moved = moved + known.excess() - known.excess(W.sum(0))
    logits = (known.logits(moved) + more) * (1 - SOFTER / (1 + a / FEW))
    even, own = (x.to(u) for x in measures(torch.ones(K) if prior is None else prior, 1))
    m = own if adapted.prior_used else even
    counts = weight * u.sum(0)
    two_classes = (K - 1) * a / (1 + K * a)  # the chance that two queries differ, a priori
    kept = 1 - two_classes * counts / (counts + known.shots)  # they are in the prototypes already
    others = weight * (u.sum(0) - u)  # class counts without each query, [Q, K]
    left = torch.log(kept * others.clamp(min=0) + a * m)
    u = torch.softmax(known.temper * (logits + left), dim=-1)
    labels = u.argmax(-1)
    counted = torch.stack([(labels == k).sum() for k in range(K)])
    labelled_share = int((counted > 0).sum()) / K
    shares = (1 - labelled_share) * counted / Q + labelled_share * u.mean(0)
    return adapted._replace(labels=labels, probabilities=u, proportions=shares)


def adaptive(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    metric: str = "auto",
    label_noise: float | str = 0.0,
    prior: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Solution:
    """Classify queries by calibrated distances and the class proportions of their batch.

    See `paddle_ext.adaptive` for the parameters; the result is in float64 for float64 features,
    else in float32.
    """
    rows, one_hot, queries = batched(support, support_labels, query, num_classes)
    K = one_hot.shape[-1]
    solutions = [
        posterior(
            likelihood(
                rows[b % len(rows)], one_hot[b % len(rows)].argmax(-1), K, metric, label_noise
            ),
            queries[b],
            max_iter,
            tol,
            prior=prior if prior is None or prior.dim() == 1 else prior[b],
        )
        for b in range(len(queries))
    ]
    together: dict[str, Any] = {}
    for name, first in solutions[0]._asdict().items():
        if isinstance(first, Tensor):
            every = torch.stack([getattr(solution, name) for solution in solutions])
            x = every if query.dim() == 3 else first
            together[name] = x.to(computing_dtype(query)) if x.is_floating_point() else x
    return solutions[0]._replace(**together)
