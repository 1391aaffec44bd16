"""What labelled rows say about likelihoods: the part of `adaptive` that needs no queries.

Letters: B tasks, or 1 for labelled rows that all tasks share; S labelled rows, K classes, D
features; R of the labelled rows calibrate; M = min(S, D). docs/adaptive.md has the equations.

A distance counts up to a constant for each row: ||x||^2 is never needed, and ||x - w_k||^2 is
``w.w - 2 x.w``. No value of a tensor decides what is computed, only shapes do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.calibrate import CENTRE, calibrate
from ..rows import class_sums, products

MOST_ROWS = 256  # that calibrate, or K if that is more, unless
MOST_ENTRIES = 2**24  # of a matrix of them and the classes would be exceeded
PRIOR_ROWS = 10.0  # that the mean variance counts for in the variance of a feature
NOISE = 0.6  # share of the noise of a class mean that is taken off its distances
FULL_SHOTS = 4  # rows a class, from which the full metric is taken if it is cheap, and
FULL_WORK = 2**27  # multiplications up to which it is; with twice as many rows it always is
MIXTURES = (0.25, 0.5, 0.75, 1.0)  # weights of the full metric, beside 0
ONE_SHOT_TEMPER = 0.7  # of probabilities that nothing calibrated
SAME = 1e-6  # a unit-norm row this near to the centre is the centre: that is how they are rounded
NO_SCATTER = 1e-10  # squared distances below are rounding too


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihoods of rows, up to a constant for each row, calibrated by labelled rows.

    With x a row in the coordinates of `coordinates`, they are ``sharpness x.weights_k + bias_k``.
    """

    centre: Tensor  # [B or 1, 1, D]
    prototypes: Tensor  # [B or 1, K, D] class means, in these coordinates
    weights: Tensor  # [B or 1, K, D] the prototypes times the metric
    squares: Tensor  # [B or 1, K] prototype . weights
    bias: Tensor  # [B or 1, K]
    shots: Tensor  # [B or 1, K] labelled rows of each class
    sharpness: Tensor  # [B or 1]
    mixture: Tensor  # [B or 1] weight of the full metric, in [0, 1]
    temper: float  # factor on the last logits, before they are probabilities
    rows: int  # S
    usual: Tensor  # [B or 1, R] squared distances to the own class, as of new rows; NaN: none
    # The metric: x.y becomes `plain` sum_d scale_d x_d y_d + `projected` (P x).(P y).
    scale: Tensor  # [B or 1, 1, D]
    projection: Tensor | None  # P [B or 1, M, D]
    plain: Tensor  # [B or 1]
    projected: Tensor  # [B or 1]

    def coordinates(self, rows: Tensor) -> Tensor:
        """Rows [B, N, D] less the centre, unit-norm before and after."""
        rows = torch.addcmul(-self.centre, rows, reciprocal(norms(rows)).to(rows.dtype))
        return rows.mul_(reciprocal_of_centred(rows))

    def products(self, x: Tensor) -> Tensor:
        """Of rows in the coordinates with the prototypes, in the metric, [B, N, K]."""
        return products(x, self.weights)

    def weighted_products(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """In the metric, of rows in the coordinates with weighted sums of them and with themselves.

        [B, N, D] and [B, N, K] -> [B, N, K] and [B, N, 1].
        """
        scaled = x * (self.scale * column(self.plain))
        inner = None if self.projection is None else products(x, self.projection)
        if has_gram(x.shape[-2], x.shape[-1], weights.shape[-1]):
            gram = torch.bmm(scaled, x.mT)
            if inner is not None:
                gram = gram + torch.bmm(inner * column(self.projected), inner.mT)
            return torch.bmm(gram, weights), gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        found = torch.bmm(scaled, torch.bmm(x.mT, weights))
        own = (scaled * x).sum(-1, keepdim=True)
        if inner is not None:
            other = inner * column(self.projected)
            found = found.add_(torch.bmm(other, torch.bmm(inner.mT, weights)))
            own = own.add_((other * inner).sum(-1, keepdim=True))
        return found, own

    def distances_to_own(self, x: Tensor, labels: Tensor) -> Tensor:
        """Squared, of rows in the coordinates to the prototypes of their labels, [B, N]."""
        away = x - take(self.prototypes, labels)
        plain = (away.square() * (self.scale * column(self.plain))).sum(-1)
        if self.projection is None:
            return plain
        inner = products(away, self.projection).square().sum(-1)
        return (plain + inner * self.projected.unsqueeze(-1)).clamp(min=0)

    def logits(self, rows: Tensor) -> Tensor:
        """Of rows [N, D] or [B, N, D] as they are given, [.., N, K].

        Each row is judged by itself; the dual of a batch's `Solution`, added to them, makes them
        those of one more row of that batch.
        """
        x = self.coordinates(rows.to(self.weights.dtype).reshape(-1, *rows.shape[-2:]))
        found = self.products(x).mul_(column(self.sharpness)).add_(self.bias.unsqueeze(-2))
        return found.reshape(*rows.shape[:-1], -1)


def has_gram(N: int, D: int, K: int) -> bool:
    """Whether the products of all rows with one another are less work than sums of rows."""
    return N * (D + K) <= 2 * D * K


def column(x: Tensor) -> Tensor:
    """One number a task, beside matrices."""
    return x.view(-1, 1, 1)


# --- coordinates --------------------------------------------------------------------------------


def norms(x: Tensor) -> Tensor:
    """Of rows of any magnitude, [.., N, 1]; in float64 where squares might leave the range."""
    if x.dtype is torch.float64:
        largest = x.abs().amax(-1, keepdim=True)
        return largest * norm(x / torch.where(largest > 0, largest, 1))
    if x.is_cpu and x.numel():  # three times as fast, for rows of common magnitudes
        single = norm(x)
        least, most = (extreme.item() for extreme in torch.aminmax(single))
        if least > 1e-15 and most < 1e15:
            return single
    return norm(x, torch.float64)


def norm(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    return found


def reciprocal(length: Tensor) -> Tensor:
    """1 / length; anything finite for a row of zeros."""
    return length.clamp(min=torch.finfo(torch.float32).tiny).reciprocal_()


def reciprocal_of_centred(x: Tensor) -> Tensor:
    """1 / norm, [.., N, 1]; 0 for a row that is the centre, up to rounding."""
    return torch.threshold_(norm(x), SAME, math.inf).reciprocal_()


@dataclass(frozen=True)
class Labelled:
    """Labelled rows less their centre, and who of them calibrates."""

    rows: Tensor  # [B, S, D] less the centre, not yet unit-norm again
    length: Tensor  # [B, S, 1] factor that makes them so
    labels: Tensor  # [B, S]
    centre: Tensor  # [B, 1, D]
    means: Tensor  # [B, K, D] of the unit-norm rows of each class
    shots: Tensor  # [B, K]

    def take(self, index: Tensor) -> Tensor:
        """Unit-norm rows by their numbers [B, R], [B, R, D]."""
        return take(self.rows, index).mul_(self.length.gather(1, index.unsqueeze(-1)))


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows by their numbers in each task: [B, N, D] and [B, R] -> [B, R, D]."""
    B, N, D = rows.shape
    start = torch.arange(0, B * N, N, device=rows.device).unsqueeze(-1)
    found = rows.reshape(-1, D).index_select(0, (index + start).view(-1))
    return found.view(*index.shape, D)


def labelled(support: Tensor, labels: Tensor, num_classes: int) -> Labelled:
    K, dtype = num_classes, support.dtype
    shots = torch.zeros(len(labels), K, dtype=torch.int64, device=labels.device)
    shots = shots.scatter_add_(1, labels, torch.ones_like(labels)).to(dtype)
    length = reciprocal(norms(support))
    share = 1 / (K * shots.gather(1, labels).unsqueeze(-1))
    weight = (length * share if K > 1 else length * 0).to(dtype)  # one class is not centred
    centre = torch.bmm(weight.mT, support)
    rows = torch.addcmul(-centre, support, length.to(dtype))
    again = reciprocal_of_centred(rows)
    sums, _ = class_sums(rows, labels, K, again.squeeze(-1))
    return Labelled(rows, again, labels, centre, sums / shots.unsqueeze(-1), shots)


# --- rows that calibrate ------------------------------------------------------------------------


@dataclass(frozen=True)
class Judges:
    """Labelled rows that calibrate: of classes with two rows or more, evenly spread."""

    x: Tensor  # [B, R, D]
    own: Tensor  # [B, R] their classes
    counts: Tensor  # [B, R] 1 for a row that counts, 0 for one that fills up
    count: Tensor  # [B] how many count
    shots: Tensor  # [B, R] of their classes, at least 2
    squares: Tensor  # [B, R, D] of what they are off their class means

    @property
    def rate(self) -> Tensor:
        """A row is so much farther from the mean of the others, in squares; [B, R]."""
        return (self.shots + 1) / (self.shots - 1)

    def mean(self, x: Tensor) -> Tensor:
        """Over the rows that count, [B, R] -> [B, 1]."""
        return (x * self.counts).sum(-1, keepdim=True) / self.count.unsqueeze(-1)

    def of(self, x: Tensor) -> Tensor:
        """The entries of the own classes, [B, R, K] -> [B, R]."""
        return x.gather(-1, self.own.unsqueeze(-1)).squeeze(-1)


def how_many_calibrate(S: int, K: int) -> int:
    return min(S, max(MOST_ROWS, min(K, MOST_ENTRIES // K)))


def judges(data: Labelled) -> Judges:
    B, S = data.labels.shape
    R = how_many_calibrate(S, data.shots.shape[-1])
    row_shots = data.shots.gather(1, data.labels)
    number = (row_shots >= 2).cumsum(1)  # of each row among those of classes with two or more
    total = number[:, -1:]
    count = total.clamp(max=R)
    place = torch.arange(R, device=total.device).expand(B, R)
    wanted = torch.div((2 * place + 1) * total, 2 * count, rounding_mode="floor") + 1
    index = torch.searchsorted(number, wanted).clamp(max=S - 1)
    own, x = data.labels.gather(1, index), data.take(index)
    return Judges(
        x=x,
        own=own,
        counts=(place < count).to(x.dtype),
        count=count.squeeze(-1),
        shots=row_shots.gather(1, index).clamp(min=2),
        squares=take(data.means, own).sub_(x).square_(),
    )


# --- metrics ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distances:
    """Squared distances in one metric, of the rows that calibrate, each left out of its class."""

    to: Tensor  # [B, R, K], up to a constant for each row, less the noise
    own: Tensor  # [B, R] to the mean of the other rows of its class
    noise: Tensor  # [B, K] what is taken off


def noise_of_means(own: Tensor, who: Judges, shots: Tensor) -> Tensor:
    """A mean of few rows is farther from everybody: by how much, [B, K]."""
    return NOISE * who.mean(own * who.shots / (who.shots + 1)) / shots


def feature_scale(who: Judges) -> Tensor:
    """Features that vary much inside the classes count less; [B, 1, D], 1 on average."""
    D = who.x.shape[-1]
    degrees = (who.counts * (who.shots - 1) / who.shots).sum(-1).view(-1, 1, 1)
    variance = torch.bmm(who.counts.unsqueeze(1), who.squares) / degrees
    mean = variance.mean(-1, keepdim=True)
    variance = (degrees * variance + PRIOR_ROWS * mean) / (degrees + PRIOR_ROWS)
    scale = 1 / (variance + mean + NO_SCATTER / D)
    return scale / scale.mean(-1, keepdim=True)


def scaled_distances(
    who: Judges, data: Labelled, scale: Tensor, squares: Tensor, cross: Tensor
) -> Distances:
    """In the metric of the feature scale; `squares` w.w [B, K], `cross` x.w [B, R, K]."""
    off = torch.bmm(who.squares, scale.mT).squeeze(-1)
    own = who.rate * off
    noise = noise_of_means(own, who, data.shots)
    to = torch.sub((squares - noise).unsqueeze(1), cross, alpha=2)
    to.scatter_add_(-1, who.own.unsqueeze(-1), (own - off).unsqueeze(-1))
    return Distances(to, own, noise)


@dataclass(frozen=True)
class FullMetric:
    """x A y with A = (C / level + 1)^-1, C the covariance inside the classes, level its mean.

    x A y is ``plain x.y + sign (P x).(P y)``, the first product in the feature scale. P has as many
    rows as is cheaper: S by the identity of Woodbury, or D.
    """

    projection: Tensor  # P [B, M, D]
    plain: float
    sign: float
    inverse_scatter: Tensor  # [B, 1] 1 / (degrees of freedom x level)

    def product(self, plain: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """From the plain products [B, N, L] and the projections of both sides."""
        found = (self.sign * x) @ y.mT
        return found.add_(plain) if self.plain else found


def full_metric(data: Labelled, scale: Tensor) -> FullMetric:
    B, S, D = data.rows.shape
    root = scale.sqrt()
    off = (data.rows * data.length).sub_(take(data.means, data.labels)).mul_(root)
    degrees = S - data.shots.shape[-1]
    scatter = off.square().sum((-2, -1)).div_(D).add_(degrees * NO_SCATTER / D).view(B, 1, 1)
    if S < D:
        gram = (off @ off.mT).add_(scatter * torch.eye(S, dtype=off.dtype, device=off.device))
        right = off.mul_(root)
    else:
        eye = torch.eye(D, dtype=off.dtype, device=off.device)
        gram = (off.mT @ off).div_(scatter).add_(eye)
        right = eye * root
    factor = torch.linalg.cholesky_ex(gram).L
    projection = torch.linalg.solve_triangular(factor, right, upper=False)
    plain, sign = (1.0, -1.0) if S < D else (0.0, 1.0)
    return FullMetric(projection, plain, sign, 1 / scatter.view(B, 1))


def full_distances(
    who: Judges, data: Labelled, metric: FullMetric, base: Distances, weights: Tensor, cross: Tensor
) -> tuple[Distances, Tensor]:
    """In the full metric that the row left behind, as large as `base` on average; and 1 / kappa.

    A row leaves ``cut v v^T`` of the covariance with it, v what it is off its class mean, so that
    the metric without it follows from that with it.
    """
    x, w = who.x @ metric.projection.mT, data.means @ metric.projection.mT
    cross = metric.product(cross, x, w)
    if cross.shape[-2] < cross.shape[-1]:  # so many classes that their matrix would be too large
        squares = metric.plain * (data.means * weights).sum(-1) + metric.sign * w.square().sum(-1)
        own_class = metric.product(take(data.means, who.own) @ weights.mT, take(w, who.own), w)
    else:
        gram = metric.product(data.means @ weights.mT, w, w)
        squares = gram.diagonal(dim1=-2, dim2=-1)
        own_class = take(gram, who.own)
    off = (x - take(w, who.own)).square_().sum(-1) * metric.sign  # v A v
    off = (off + metric.plain * base.own / who.rate).clamp(min=0)
    with_off = cross - own_class  # v A w, [B, R, K]
    away = (off + who.of(with_off)).unsqueeze(-1) - with_off  # v A (x - w)

    cut = who.shots / (who.shots - 1) * metric.inverse_scatter
    kept = (1 - cut * off).clamp(min=1e-3)
    own = who.rate * off / kept
    noise = noise_of_means(own, who, data.shots)
    to = torch.sub((squares - noise).unsqueeze(1), cross, alpha=2)
    row = off - squares.gather(1, who.own) + 2 * who.of(cross)  # x A x, which all others lack
    own_entry = own - row - noise.gather(1, who.own)
    to.addcmul_((cut / kept).unsqueeze(-1), away.square_())
    to.scatter_(-1, who.own.unsqueeze(-1), own_entry.unsqueeze(-1))
    shrink = (who.mean(base.own) + NO_SCATTER) / (who.mean(own) + NO_SCATTER)
    to.mul_(shrink.unsqueeze(-1))
    return Distances(to, own * shrink, noise * shrink), shrink.squeeze(-1)


def takes_full_metric(metric: str, S: int, K: int, D: int) -> bool:
    if metric != "auto":
        return metric == "full"
    shots = FULL_SHOTS if S * D * min(S, D) <= FULL_WORK else 2 * FULL_SHOTS
    return shots * K <= S


# --- likelihoods --------------------------------------------------------------------------------


def calibrated(
    support: Tensor, support_labels: Tensor, num_classes: int, metric: str = "auto"
) -> Likelihood:
    """The likelihoods that labelled rows [B, S, D] with labels [B, S] speak for.

    Float32 or float64; every class must have a row. `metric` as in `Adaptive`.
    """
    K = num_classes
    _, S, D = support.shape
    data = labelled(support, support_labels, K)
    if S == K:
        return one_shot(data)
    who = judges(data)
    scale = feature_scale(who)
    weights = data.means * scale
    squares = (weights * data.means).sum(-1)
    cross = torch.bmm(who.x, weights.mT)
    base = scaled_distances(who, data, scale, squares, cross)
    sharpness, objective = calibrate(base.to, who.own, who.count)
    to, own, noise, projection = base.to, base.own, base.noise, None
    mixture = projected = torch.zeros_like(sharpness)
    plain = torch.ones_like(sharpness)
    if takes_full_metric(metric, S, K, D):
        full = full_metric(data, scale)
        other, shrink = full_distances(who, data, full, base, weights, cross)
        for share in MIXTURES:
            found = calibrate(torch.lerp(base.to, other.to, share), who.own, who.count)
            better = found[1] < objective
            sharpness = torch.where(better, found[0], sharpness)
            objective = torch.where(better, found[1], objective)
            mixture = torch.where(better, share, mixture)
        to = torch.lerp(base.to, other.to, column(mixture))
        own = torch.lerp(base.own, other.own, mixture.unsqueeze(-1))
        noise = torch.lerp(base.noise, other.noise, mixture.unsqueeze(-1))
        projection = full.projection
        projected = full.sign * mixture * shrink
        plain = 1 - mixture + full.plain * mixture * shrink
        inner = data.means @ projection.mT
        weights = weights * column(plain) + (inner * column(projected)) @ projection
        squares = (weights * data.means).sum(-1)
    bias = hubs(to, who, sharpness) - (squares - noise) * (sharpness / 2).unsqueeze(-1)
    return Likelihood(
        centre=data.centre,
        prototypes=data.means,
        weights=weights,
        squares=squares,
        bias=bias,
        shots=data.shots,
        sharpness=sharpness,
        mixture=mixture,
        temper=1.0,
        rows=S,
        usual=torch.where(who.counts > 0, own, math.nan),
        scale=scale,
        projection=projection,
        plain=plain,
        projected=projected,
    )


def hubs(to: Tensor, who: Judges, sharpness: Tensor) -> Tensor:
    """Classes that draw many rows of others get less; [B, K]."""
    K = to.shape[-1]
    drawn = torch.softmax(to * column(-sharpness / 2), dim=-1)
    drawn = drawn.scatter_(-1, who.own.unsqueeze(-1), 0.0)
    drawn = torch.bmm(who.counts.unsqueeze(1), drawn).squeeze(1)
    rows = (who.count / K).unsqueeze(-1)
    return -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (rows + 1))


def drawn_by_one_shot(means: Tensor, bias: Tensor) -> Tensor:
    """What each class draws of the others, [B, K]; for some of these after the others."""
    K = means.shape[-2]
    drawn = torch.zeros_like(bias)
    for start in range(0, K, max(1, MOST_ENTRIES // K)):
        part = means[:, start : start + max(1, MOST_ENTRIES // K)]
        logits = CENTRE * (part @ means.mT) + bias.unsqueeze(1)
        logits.diagonal(offset=start, dim1=-2, dim2=-1).fill_(-math.inf)
        drawn += logits.softmax(-1).sum(1)
    return drawn


def one_shot(data: Labelled) -> Likelihood:
    """Nothing can be calibrated: the sharpness is the prior's, and hubs are those of the means."""
    means = data.means
    B, K, D = means.shape
    squares = means.square().sum(-1)
    one, none = means.new_ones(B), means.new_zeros(B)
    bias = -CENTRE / 2 * squares
    if K > 1:
        bias = bias - torch.log1p((drawn_by_one_shot(means, bias) - 1) / 2)
    return Likelihood(
        centre=data.centre,
        prototypes=means,
        weights=means,
        squares=squares,
        bias=bias,
        shots=data.shots,
        sharpness=CENTRE * one,
        mixture=none,
        temper=ONE_SHOT_TEMPER,
        rows=K,
        usual=means.new_empty(B, 0),
        scale=means.new_ones(B, 1, D),
        projection=None,
        plain=one,
        projected=none,
    )
