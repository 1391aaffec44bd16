"""`adaptive` in batched torch, from features to probabilities: what a careful PyTorch user writes.

Letters: B tasks, S labelled rows, Q queries, K >= 2 classes, D features, R calibration rows; M =
min(S, D). The equations are in docs/adaptive.md. All tasks are computed at once, distances are
``w.w - 2 x.w``, and the full metric is applied by one triangular solve for all rows that need it:
it is never inverted. The host waits for the device only to stop the two iterations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SHARPNESS, SPREAD = 16.0, math.log(2.0)  # a priori, and the spread of its logarithm
SAME, NO_SCATTER = 1e-6, 1e-10  # rounding, of lengths and of squared distances
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # weights of the full metric
STANDARD_ERROR = 0.5  # a log-likelihood is this much lower one standard error from its maximum
SOFTER, FEW = 0.7, 0.02  # logits are reduced by this share if the concentration is far below this
ONE_SHOT_TEMPER = 0.7
LOG_LEAST, LOG_MOST = math.log(0.1), math.log(1e4)  # of the sharpness
NEWTON_STEPS, ARRIVED, LONGEST = 40, 1e-3, 1.5
CHECK_EVERY = 4  # iterations of the proportions between two looks at the criterion


class MetricRows(NamedTuple):
    """Rows in the coordinates; x A y is ``plain x.(scale y) + sign (P x).(P y)`` if full."""

    x: Tensor  # [B, N, D]
    scaled: Tensor  # [B, N, D] times the feature scale
    projected: Tensor | None = None  # [B, N, M] P x


class Metric(NamedTuple):
    """x.y becomes ``plain x.(scale y) + projected (P x).(P y)``."""

    plain: Tensor | float  # [B, 1, 1]
    projected: Tensor | float = 0.0  # [B, 1, 1]

    def products(self, a: MetricRows, b: MetricRows) -> Tensor:
        found = (a.x @ b.scaled.mT) * self.plain
        if a.projected is None or b.projected is None:
            return found
        return found.add_((a.projected @ b.projected.mT) * self.projected)

    def squares(self, a: MetricRows) -> Tensor:
        found = (a.x * a.scaled).sum(-1, keepdim=True) * self.plain
        if a.projected is not None:
            found = found + a.projected.square().sum(-1, keepdim=True) * self.projected
        return found.squeeze(-1)


class Judges(NamedTuple):
    """Calibration rows: labelled rows of classes with two or more, evenly spread."""

    x: Tensor  # [B, R, D]
    own: Tensor  # [B, R] their classes
    shots: Tensor  # [B, R] of their classes
    counts: Tensor  # [B, R] 1 for a row that counts, 0 for padding

    def of(self, x: Tensor) -> Tensor:
        """The entries of the own classes, [B, R, K] -> [B, R]."""
        return x.gather(-1, self.own.unsqueeze(-1)).squeeze(-1)

    def mean(self, x: Tensor) -> Tensor:
        """Over the rows that count, [B, R] -> [B, 1]."""
        return (x * self.counts).sum(-1, keepdim=True) / self.counts.sum(-1, keepdim=True)

    @property
    def rate(self) -> Tensor:
        """By how much a row is farther from the mean of the others, squared; [B, R]."""
        return (self.shots + 1) / (self.shots - 1)


# --- coordinates ----------------------------------------------------------------------------------


def flat(index: Tensor, size: int) -> Tensor:
    """Numbers within each task, [B, N], as numbers in a batch of `size` each, [B N]."""
    start = torch.arange(0, len(index) * size, size, device=index.device)
    return (index + start.unsqueeze(-1)).flatten()


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows by their numbers in each task: [B, N, D] and [B, R] -> [B, R, D]."""
    found = rows.flatten(0, 1).index_select(0, flat(index, rows.shape[1]))
    return found.view(*index.shape, rows.shape[2])


def class_means(rows: Tensor, labels: Tensor, shots: Tensor) -> Tensor:
    B, _, D = rows.shape
    sums = rows.new_zeros(shots.numel(), D)
    sums.index_add_(0, flat(labels, shots.shape[1]), rows.flatten(0, 1))
    return sums.view(B, -1, D) / shots.unsqueeze(-1)


def centred(unit: Tensor, centre: Tensor) -> Tensor:
    """Unit-norm rows minus the centre, unit-norm again; a row at the centre becomes zero."""
    x = unit - centre
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x.mul_(torch.where(norm > SAME, 1 / norm, 0))


def judges(x: Tensor, labels: Tensor, shots: Tensor, most: int) -> Judges:
    of_class = shots.gather(1, labels)  # [B, S]
    able = of_class >= 2
    first = able.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    number = able.sum(1, keepdim=True)
    R = min(labels.shape[1], most)
    count = number.clamp(max=R)
    place = torch.arange(R, device=labels.device)
    spread = (2 * place + 1) * number // (2 * count)
    counts = place < count
    chosen = first.gather(1, spread.where(counts, 0))
    return Judges(
        x=take(x, chosen),
        own=labels.gather(1, chosen),
        shots=of_class.gather(1, chosen).clamp(min=2),
        counts=counts.to(x.dtype),
    )


# --- metrics --------------------------------------------------------------------------------------


def feature_scale(who: Judges, means: Tensor) -> Tensor:
    """Lower for large variance within the classes, [B, 1, D]."""
    off = (who.x - take(means, who.own)).mul_(who.counts.unsqueeze(-1))
    degrees = ((1 - 1 / who.shots) * who.counts).sum(-1).view(-1, 1, 1)
    squares = off.square_().sum(1, keepdim=True)
    mean = squares.mean(-1, keepdim=True) / degrees
    variance = (squares + 10 * mean) / (degrees + 10)
    scale = 1 / (variance + mean + NO_SCATTER / off.shape[-1])
    return scale / scale.mean(-1, keepdim=True)


class Full(NamedTuple):
    """The full metric: P x is the solution of ``factor (P x) = right x``."""

    factor: Tensor  # [B, M, M] lower triangle
    right: Tensor | None  # [B, M, D]; None: x times the root of the scale
    root: Tensor  # [B, 1, D]
    plain: float
    sign: float
    inverse_scatter: Tensor  # [B, 1] 1 / mean squared length of offsets

    def project(self, x: Tensor) -> Tensor:
        right = (x * self.root).mT if self.right is None else self.right @ x.mT
        return torch.linalg.solve_triangular(self.factor, right, upper=False).mT


def full_metric(x: Tensor, labels: Tensor, means: Tensor, scale: Tensor) -> Full:
    """From the offsets of all labelled rows: by the Woodbury identity if there are few."""
    _, S, D = x.shape
    root = scale.sqrt()
    off = (x - take(means, labels)).mul_(root)
    rows = S - means.shape[1]
    scatter = off.square().sum((-2, -1)).div_(rows).add_(rows * NO_SCATTER)
    few = S < D
    gram = off @ off.mT if few else off.mT @ off
    gram.diagonal(dim1=-2, dim2=-1).add_(scatter.unsqueeze(-1))
    factor = torch.linalg.cholesky_ex(gram).L
    if not few:  # of the covariance divided by the scatter
        factor = factor / scatter.sqrt().view(-1, 1, 1)
    return Full(
        factor=factor,
        right=off.mul_(root) if few else None,
        root=root,
        plain=1.0 if few else 0.0,
        sign=-1.0 if few else 1.0,
        inverse_scatter=1 / scatter.unsqueeze(-1),
    )


def plain_distances(who: Judges, rows: MetricRows, means: MetricRows) -> tuple[Tensor, Tensor]:
    """To all classes [B, R, K], up to a constant per row, and to the own, without the row [B, R].

    In the feature scale.
    """
    plain = Metric(1.0)
    off = rows.x - take(means.x, who.own)
    off = (off * (rows.scaled - take(means.scaled, who.own))).sum(-1)
    own = who.rate * off
    to = plain.squares(means).unsqueeze(1) - 2 * plain.products(rows, means)
    return to.scatter_add_(-1, who.own.unsqueeze(-1), (own - off).unsqueeze(-1)), own


def full_distances(
    who: Judges, rows: MetricRows, means: MetricRows, full: Full, plain_own: Tensor
) -> tuple[Tensor, Tensor]:
    """The same in the full metric, as large on average, and the factor for that [B, 1]."""
    metric = Metric(full.plain, full.sign)
    cross, gram = metric.products(rows, means), metric.products(means, means)
    squares = gram.diagonal(dim1=-2, dim2=-1)
    assert rows.projected is not None
    assert means.projected is not None
    off = (rows.projected - take(means.projected, who.own)).square_().sum(-1)
    off = (full.sign * off + full.plain * plain_own / who.rate).clamp(min=0)  # v A v
    with_off = cross - take(gram, who.own)  # v A w
    away = (off + who.of(with_off)).unsqueeze(-1) - with_off  # v A (x - w)
    cut = who.shots / (who.shots - 1) * full.inverse_scatter
    kept = (1 - cut * off).clamp(min=1e-3)
    own = who.rate * off / kept
    to = squares.unsqueeze(1) - 2 * cross
    to.addcmul_((cut / kept).unsqueeze(-1), away.square_())
    row = off - squares.gather(1, who.own) + 2 * who.of(cross)  # x A x, missing in all others
    to.scatter_(-1, who.own.unsqueeze(-1), (own - row).unsqueeze(-1))
    shrink = (who.mean(plain_own) + NO_SCATTER) / (who.mean(own) + NO_SCATTER)
    return to.mul_(shrink.unsqueeze(-1)), shrink


# --- sharpness and hubs ---------------------------------------------------------------------------


def calibrated(d: Tensor, who: Judges) -> tuple[Tensor, Tensor]:
    """The sharpness and the objective it minimises, [T, B]; distances [T, B, R, K].

    Newton steps in ln f inside a bracket, for all tasks and mixtures at once.
    """
    own = d.gather(-1, who.own.expand(d.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    precision, middle = SPREAD**-2, math.log(SHARPNESS)
    at = d.new_full(d.shape[:2], middle)
    low, high = torch.full_like(at, LOG_LEAST), torch.full_like(at, LOG_MOST)
    running = torch.ones_like(at, dtype=torch.bool)
    for _ in range(NEWTON_STEPS):
        f = at.exp()
        p = (d * (f / -2)[..., None, None]).softmax(-1)
        mean = torch.linalg.vecdot(p, d)
        variance = torch.linalg.vecdot(p, (d - mean.unsqueeze(-1)).square_())
        first = f / 2 * ((own - mean) * who.counts).sum(-1)
        slope = first + (at - middle) * precision
        curvature = first + f.square() / 4 * (variance * who.counts).sum(-1) + precision
        low = torch.where(running & (slope < 0), at, low)
        high = torch.where(running & (slope >= 0), at, high)
        step = at - (slope / curvature).clamp(-LONGEST, LONGEST)
        inside = (curvature > 0) & (step >= low) & (step <= high)
        step = torch.where(inside, step, (low + high) / 2)
        moved = (step - at).abs() > ARRIVED
        at = torch.where(running, step, at)
        running = running & moved
        if not running.any():
            break
    f = at.exp()
    half = f / -2
    entropy = (d * half[..., None, None]).logsumexp(-1) - own * half.unsqueeze(-1)
    return f, (entropy * who.counts).sum(-1) + (at - middle).square() * (precision / 2)


def hubs(d: Tensor, who: Judges, f: Tensor) -> Tensor:
    """Bias, lower for classes that attract rows of others, [B, K]."""
    p = (d * (f / -2).view(-1, 1, 1)).softmax(-1)
    p = p.scatter_(-1, who.own.unsqueeze(-1), 0.0)
    drawn = (who.counts.unsqueeze(1) @ p).squeeze(1)
    rows = who.counts.sum(-1, keepdim=True) / d.shape[-1]
    return -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (rows + 1))


def one_shot_hubs(means: MetricRows) -> Tensor:
    """The same with the class means as rows, each without its own class; less if they are few."""
    K, plain = means.x.shape[1], Metric(1.0)
    logits = SHARPNESS * plain.products(means, means)
    logits -= SHARPNESS / 2 * plain.squares(means).unsqueeze(1)
    logits.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
    return -K / (K + 10) * torch.log1p((logits.softmax(-1).sum(1) - 1) / 2)


# --- the labelled rows ----------------------------------------------------------------------------


class Model(NamedTuple):
    """Logits are ``bias - sharpness / 2`` times the distances of the queries to the means."""

    means: MetricRows
    query: MetricRows
    metric: Metric
    sharpness: Tensor  # [B]
    bias: Tensor  # [B, K]
    temper: float  # factor on the final logits
    variance: Tensor | float = 0.0  # [B, 1] squared distance of a row to the mean of its class


def one_shot_scale(means: Tensor) -> Tensor:
    """Weights of the features from the only rows of the classes, [B, 1, D]."""
    squares = means.square()
    total = squares.sum(1, keepdim=True)
    rows = total.square() / squares.square().sum(1, keepdim=True).clamp(min=1e-30)
    rows = rows.clamp(min=1)
    variance = total / means.shape[1]
    mean = variance.mean(-1, keepdim=True)
    scale = 1 / ((rows * variance + 10 * mean) / (rows + 10) + mean)
    return scale * (total.sum(-1, keepdim=True) / (scale * total).sum(-1, keepdim=True))


def excess(variance: Tensor | float, shots: Tensor, mean_shots: Tensor | float) -> Tensor:
    """How much farther means of few rows seem, [B, K]."""
    known, part = torch.as_tensor(1 - variance).clamp(min=0), 2 / shots.shape[-1]
    few, usual = (variance / n * (1 + part * (known + variance / n)) for n in (shots, mean_shots))
    return few - usual


def one_shot(means: Tensor, query: Tensor) -> Model:
    scale = one_shot_scale(means)
    w, z = (MetricRows(x, x * scale) for x in (means, query))
    sharpness = means.new_full((len(means),), SHARPNESS)
    return Model(w, z, Metric(1.0), sharpness, one_shot_hubs(w), ONE_SHOT_TEMPER)


def learned(
    x: Tensor, labels: Tensor, means: Tensor, shots: Tensor, query: Tensor, full: bool
) -> Model:
    """All rows are in the coordinates."""
    B, K = shots.shape
    who = judges(x, labels, shots, max(256 if full else 128, min(K, 2**24 // K)))
    scale = feature_scale(who, means)
    rows, w, z = (MetricRows(part, part * scale) for part in (who.x, means, query))
    d, own = plain_distances(who, rows, w)
    variance = who.mean(own * who.shots / (who.shots + 1)).view(-1, 1)
    farther = excess(variance, shots, x.shape[1] / K)
    near = farther.unsqueeze(1)
    if not full:
        f = calibrated((d - near).unsqueeze(0), who)[0].squeeze(0)
        bias = hubs(d - near, who, f) + f.unsqueeze(1) / 2 * farther
        return Model(w, z, Metric(1.0), f, bias, 1.0, variance)
    found = full_metric(x, labels, means, scale)
    projected = found.project(torch.cat([rows.x, w.x, z.x], 1))
    parts = projected.split([part.x.shape[1] for part in (rows, w, z)], 1)
    rows, w, z = (r._replace(projected=p) for r, p in zip((rows, w, z), parts, strict=True))
    other, shrink = full_distances(who, rows, w, found, own)
    mixed = torch.stack([torch.lerp(d, other, t) - near for t in MIXTURES])
    sharpness, objective = calibrated(mixed, who)
    good = objective < objective.cummin(0).values + STANDARD_ERROR
    best, task = good.int().cumprod(0).sum(0) - 1, torch.arange(B, device=x.device)
    f = sharpness[best, task]
    t = x.new_tensor(MIXTURES)[best].view(-1, 1, 1)
    share = t * shrink.unsqueeze(-1)
    metric = Metric(1 - t + found.plain * share, found.sign * share)
    bias = hubs(mixed[best, task], who, f) + f.unsqueeze(1) / 2 * farther
    return Model(w, z, metric, f, bias, 1.0, variance)


# --- the batch ------------------------------------------------------------------------------------


def next_concentration(a: Tensor, counts: Tensor, total: float) -> Tensor:
    """A Newton step in ln a towards the maximum of the bound, [B, 1]; counts [B, K]."""
    K = counts.shape[-1]
    ends = torch.cat([K * a, total + K * a, a], -1)
    psi, psi1 = torch.special.digamma(ends), torch.special.polygamma(1, ends)
    each = counts + a
    slope = K * (psi[:, :1] - psi[:, 1:2] - psi[:, 2:])
    slope = slope + torch.special.digamma(each).sum(-1, True)
    curvature = K**2 * (psi1[:, :1] - psi1[:, 1:2]) - K * psi1[:, 2:]
    curvature = curvature + torch.special.polygamma(1, each).sum(-1, True)
    first = a * slope
    second = first + a.square() * curvature  # in ln a
    step = torch.where(second < 0, -first / second, first.sign()).clamp_(-1, 1)
    return (a * step.exp()).clamp_(1e-4, 1e4)


def adapt(
    logits: Tensor, *, weight: float = 1.0, max_iter: int = 100, tol: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """The class proportions of each batch: probabilities [B, Q, K] and concentration [B, 1].

    Counts are in float64, and tasks that have converged keep theirs.
    """
    B, Q, K = logits.shape
    total = weight * Q
    e = logits.new_zeros(B, K)
    a = torch.ones(B, 1, dtype=torch.float64, device=logits.device)
    counts = torch.zeros(B, K, dtype=torch.float64, device=logits.device)
    live = torch.ones_like(a, dtype=torch.bool)
    for i in range(max_iter):
        u = (logits + e.unsqueeze(1)).softmax(-1)
        new = u.sum(1, dtype=torch.float64).mul_(weight)
        moved = (new - counts).abs().amax(-1, keepdim=True)
        counts, a = new, torch.where(live, next_concentration(a, new, total), a)
        dual = torch.special.digamma(counts + a) - torch.special.digamma(total + K * a)
        e = torch.where(live, dual.to(e.dtype), e)
        if tol > 0:
            live = live & (moved > tol)
            if i % CHECK_EVERY == CHECK_EVERY - 1 and not live.any():
                break
    return (logits + e.unsqueeze(1)).softmax(-1), a


def absorbed(
    cross: Tensor, gram: Tensor, squares: Tensor, shots: Tensor, weights: Tensor
) -> Tensor:
    """Distances to prototypes that absorbed the queries by weights [B, Q, K], without each itself.

    Up to a constant per query. `cross` x.w [B, Q, K], `gram` x.x [B, Q, Q], `squares` w.w [B, K].
    """
    n = shots.unsqueeze(1)
    inner = gram @ weights
    sums = torch.addcmul(inner, n, cross)  # x . the sum of class k
    length = n.square() * squares.unsqueeze(1)
    length = length + (weights * (inner + 2 * n * cross)).sum(1, keepdim=True)
    own = gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) * weights
    mass = n + weights.sum(1, keepdim=True) - weights
    without = length + weights * (own - 2 * sums)
    return without / mass.square() - 2 * (sums - own) / mass


def adaptive(
    support: Tensor,
    labels: Tensor,
    query: Tensor,
    num_classes: int,
    *,
    full: bool,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Labels [B, Q] and probabilities [B, Q, K], for rows [B, S, D] with labels and [B, Q, D]."""
    (B, S, _), Q, K = support.shape, query.shape[1], num_classes
    shots = support.new_zeros(B, K).scatter_add_(1, labels, torch.ones_like(support[..., 0]))
    x = F.normalize(support, dim=-1)
    centre = class_means(x, labels, shots).mean(1, keepdim=True)
    x, z = centred(x, centre), centred(F.normalize(query, dim=-1), centre)
    means = class_means(x, labels, shots)
    model = one_shot(means, z) if S == K else learned(x, labels, means, shots, z, full)

    half, bias = (model.sharpness / -2).view(-1, 1, 1), model.bias.unsqueeze(1)
    squares = model.metric.squares(model.means)
    cross = model.metric.products(model.query, model.means)
    gram = model.metric.products(model.query, model.query)
    logits = (squares.unsqueeze(1) - 2 * cross).mul_(half).add_(bias)
    weight = 2 * S / (2 * S + Q)
    u, a = adapt(logits, weight=weight, max_iter=max_iter, tol=tol)
    a = a.to(u.dtype).unsqueeze(-1)
    W = u.square() * (Q / (Q + K))
    logits, more = absorbed(cross, gram, squares, shots, W), W.sum(1)
    late = excess(model.variance, shots + more, S / K + more)
    logits += (excess(model.variance, shots, S / K) - late).unsqueeze(1)
    logits = logits.mul_(half).add_(bias).mul_(1 - SOFTER / (1 + a / FEW))
    counts = u.sum(1, keepdim=True)
    others = (counts - u).mul_(weight).clamp_(min=0)
    counts.mul_(weight)
    kept = 1 - (K - 1) * a / (1 + K * a) * counts / (counts + shots.unsqueeze(1))
    others.mul_(kept).add_(a)
    u = logits.add_(others.log_()).mul_(model.temper).softmax(-1)
    return u.argmax(-1), u
