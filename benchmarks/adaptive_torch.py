"""`adaptive` in batched torch, from features to probabilities: what a careful PyTorch user writes.

One model: the mean of class k is drawn from N(0, C / n0) and its rows from N(mean, C), where C is
the covariance inside classes: as if n0 rows at the centre were labelled. A labelled row is a row
whose class is known; a query is a row whose class is not. Everything else follows from the
predictive density of a row, given the rows that a class has so far, with two corrections for
features that are not Gaussian: one factor on all distances (the sharpness) and one bias for each
class (hubs), both from labelled rows left out.

Letters: B tasks, S labelled rows, Q queries, K classes, D features, G groups, F folds. n_k is the
number of rows of class k. Numbers in parentheses are the equations of docs/adaptive.md. All tasks
are computed at once, and the full metric is never inverted: it is applied by triangular solves.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from laboratory.tasks import Tasks, unit_norm
from torch import Tensor

from paddle_ext.reference.adapt import adapt as adapt_with_prior
from paddle_ext.reference.adapt import measures

# A priori, before any row is left out.
SHARPNESS = 40.0
SPREAD = math.log(2.0)  # of the logarithm of the sharpness
VARIANCE_INSIDE = 0.65  # part of the squared length of a row that varies inside its class
PRIOR_DEGREES = 10.0  # what a priori variances weigh, in degrees of freedom

DETERMINANT = 0.5  # part of the log-determinant by which classes with few labels are less likely
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the feature weights and the full metric
STANDARD_ERROR = 0.5  # of a log-likelihood, one standard error from its maximum; not estimated
ROUNDS = 3
FOLDS = 10  # of labelled groups
SET_CLASSES = 8  # of a group: sets of its likeliest classes
CHANCES = [math.sin(i * math.pi / 32) ** 2 for i in range(17)]  # that two rows are one draw

# How finely it is computed.
NEWTON_STEPS = 20
LONGEST_STEP = 1.5  # in the logarithm of the sharpness
ARRIVED = 1e-3  # a step that is shorter is the last
MIXTURE_STEPS = 20
LOG_LEAST, LOG_MOST = math.log(0.1), math.log(1e4)  # of the sharpness
LEAST, MOST = 1e-4, 1e4  # of a concentration; the smallest chance
TINY = 1e-30
CHECK_EVERY = 4  # iterations of the proportions between two looks at the criterion


# --- rows and metric ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labelled:
    """Labelled rows in the coordinates (1)."""

    rows: Tensor  # [B, S, D]
    labels: Tensor  # [B, S]
    members: Tensor  # [B, S, K] one-hot labels; a row that is left out has zeros
    counts: Tensor  # [B, K] n_k

    @property
    def counts_of_rows(self) -> Tensor:
        """n of the class of each row, [B, S]."""
        return self.counts.gather(1, self.labels)

    @property
    def means(self) -> Tensor:
        """Class means, [B, K, D]; zero for a class without rows."""
        return (self.members.mT @ self.rows) / self.counts.clamp(min=1).unsqueeze(-1)

    @property
    def weights(self) -> Tensor:
        """1 for rows that show variance inside their class, [B, S]: others of it are there, too."""
        return self.members.sum(-1) * (self.counts_of_rows >= 2)

    @property
    def degrees(self) -> Tensor:
        """Degrees of freedom of a variance inside classes, [B, 1]: rows minus classes with rows."""
        rows = self.counts.sum(1, keepdim=True)
        return rows - (self.counts > 0).sum(1, keepdim=True)


def coordinates(tasks: Tasks, dtype: torch.dtype = torch.float64) -> tuple[Labelled, Tensor]:
    """(1) Unit-norm rows, minus the mean of the class means, unit-norm again."""
    members = F.one_hot(tasks.labels, tasks.num_classes).to(dtype)
    counts = members.sum(1)
    support = unit_norm(tasks.support.to(dtype))
    query = unit_norm(tasks.query.to(dtype))
    centre = ((members.mT @ support) / counts.unsqueeze(-1)).mean(1, keepdim=True)
    centre = centre * (tasks.num_classes > 1)
    labelled = Labelled(unit_norm(support - centre), tasks.labels, members, counts)
    return labelled, unit_norm(query - centre)


@dataclass(frozen=True)
class Rows:
    """Rows as the metric sees them."""

    scaled: Tensor  # [B, N, D] times the root of the feature weights
    projected: Tensor  # [B, N, S] onto the offsets of the labelled rows

    def products(self, other: Rows) -> tuple[Tensor, Tensor]:
        """Products in the feature weights and in the full metric, [B, N, M] each."""
        plain = self.scaled @ other.scaled.mT
        return plain, plain - self.projected @ other.projected.mT

    def squares(self) -> tuple[Tensor, Tensor]:
        """The same of each row with itself, [B, N]."""
        plain = self.scaled.square().sum(-1)
        return plain, plain - self.projected.square().sum(-1)


@dataclass(frozen=True)
class Metric:
    """Feature weights (2), and the full metric (3): the inverse of a covariance inside classes."""

    root: Tensor  # [B, 1, D] of the feature weights
    offsets: Tensor  # [B, S, D] of the labelled rows from their class means, scaled
    ridge: Tensor  # [B, 1, 1] mean squared length of the offsets
    factor: Tensor | None  # [B, S, S] of the products of offsets, plus the ridge; None: only (2)

    @property
    def mixtures(self) -> tuple[float, ...]:
        return MIXTURES[:1] if self.factor is None else MIXTURES

    def see(self, rows: Tensor) -> Rows:
        scaled = rows * self.root
        if self.factor is None:
            return Rows(scaled, scaled[..., :0])
        projected = torch.linalg.solve_triangular(
            self.factor, self.offsets @ scaled.mT, upper=False
        ).mT
        return Rows(scaled, projected)


def relative(variance: Tensor) -> Tensor:
    """Divided by its mean over the features."""
    return variance / variance.mean(-1, keepdim=True).clamp(min=TINY)


def metric_of(labelled: Labelled, full: bool = True) -> Metric:
    means = labelled.means
    offsets = labelled.rows - labelled.members @ means
    offsets = offsets * labelled.members.sum(-1, keepdim=True)

    # (2) The variance inside classes; where few rows show it, the scatter of the class means,
    # which rests on as many of them as share the large values of a feature.
    inside = (offsets.square() * labelled.weights.unsqueeze(-1)).sum(1, keepdim=True)
    between = means.square().sum(1, keepdim=True)
    resting = between.square() / means.pow(4).sum(1, keepdim=True).clamp(min=TINY)
    degrees = labelled.degrees.unsqueeze(-1)
    variance = degrees * relative(inside) + resting * relative(between) + PRIOR_DEGREES
    variance = variance / (degrees + resting + PRIOR_DEGREES)
    weights = 1 / (variance + 1)
    root = relative(weights).sqrt()

    # (3) A = (offsets' offsets / ridge + 1)^-1, by the Woodbury identity: as if D further rows
    # had spread evenly in all directions.
    offsets = offsets * root
    ridge = offsets.square().sum((-2, -1), keepdim=True) / degrees.clamp(min=1) + 1e-12
    if not full:
        return Metric(root, offsets, ridge, None)
    gram = offsets @ offsets.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge.squeeze(-1))
    return Metric(root, offsets, ridge, torch.linalg.cholesky(gram))


@dataclass(frozen=True)
class Mixture:
    """Between the feature weights (share 0) and the full metric (share 1), as long on average."""

    share: Tensor  # [B]
    length: Tensor  # [B] how long distances are in the full metric

    def of(self, products: tuple[Tensor, Tensor]) -> Tensor:
        plain, full = products
        shape = (-1,) + (1,) * (plain.dim() - 1)
        share = self.share.view(shape)
        return (1 - share) * plain + share / self.length.view(shape) * full


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """(4) Row ~ N(mean, C) and mean ~ N(0, C / n0), as if n0 rows at the centre were labelled."""

    variance: Tensor  # [B, 1, 1] V inside classes, in squared length
    prior_rows: Tensor  # [B, 1, 1] n0

    def prototypes(self, labelled: Labelled) -> Prototypes:
        """The means of the labelled rows of each class and its n0 rows."""
        counts = labelled.counts.unsqueeze(-1)
        mass = counts + self.prior_rows
        return Prototypes(labelled.means * counts / mass, mass.mT)

    def distances(
        self, xx: Tensor, xm: Tensor, mm: Tensor, mass: Tensor, labelled_mass: Tensor | None = None
    ) -> Tensor:
        """(5) -2/f times the log predictive density of row x, given a prototype m of so many rows.

        `labelled_mass` is that without the rows of a batch, if there are some.
        """
        spread = 1 + 1 / mass
        spread_of_labels = spread if labelled_mass is None else 1 + 1 / labelled_mass
        determinant = DETERMINANT * spread_of_labels.log() + (spread / spread_of_labels).log()
        return (xx - 2 * xm + mm) / spread + self.variance * determinant


@dataclass(frozen=True)
class Prototypes:
    rows: Tensor  # [B, K, D]
    mass: Tensor  # [B, 1, K] n + n0: of how many rows each is the mean


def model_of(labelled: Labelled, metric: Metric) -> Model:
    n = labelled.counts_of_rows
    squares = (labelled.rows * metric.root).square().sum(-1).mean(1, keepdim=True).clamp(min=TINY)
    offsets = metric.offsets.square().sum(-1)
    seen = (n / (n - 1).clamp(min=1) * offsets * labelled.weights).sum(1, keepdim=True)
    seen = seen / labelled.weights.sum(1, keepdim=True).clamp(min=TINY)
    degrees = labelled.degrees
    variance = degrees * seen + PRIOR_DEGREES * VARIANCE_INSIDE * squares
    variance = variance / (degrees + PRIOR_DEGREES)
    inside = (variance / squares).clamp(0.02, 0.98)
    return Model(variance.unsqueeze(-1), (inside / (1 - inside)).unsqueeze(-1))


# --- labelled rows left out -----------------------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """Labelled rows as if they were new ones."""

    distances: Tensor  # [T, B, S, K] in each of the T mixtures
    lengths: Tensor  # [B] as in Mixture
    weights: Tensor  # [B, S] 1 for rows that are judged


def leave_rows_out(labelled: Labelled, metric: Metric, model: Model) -> LeftOut:
    """(6) Each row without itself, in its prototype and in the metric, in closed form."""
    prototypes = model.prototypes(labelled)
    rows, means = metric.see(labelled.rows), metric.see(prototypes.rows)
    member = labelled.members.bool()
    n = labelled.counts_of_rows
    # A class mean is (n + n0) / n times the prototype: nothing needs to be projected again.
    stretch = prototypes.mass / labelled.counts.clamp(min=1).unsqueeze(1)  # [B, 1, K]
    own_means = (labelled.members * stretch) @ means.projected
    offsets = Rows(metric.offsets, rows.projected - own_means)

    def of_own(x: Tensor) -> Tensor:
        return x.gather(2, labelled.labels.unsqueeze(-1)).squeeze(-1)

    def put_own(x: Tensor, value: Tensor) -> Tensor:
        return torch.where(member, value.unsqueeze(-1), x)

    # Products of row x, its offset v and the prototypes m, in both metrics.
    xx = rows.squares()
    xm = rows.products(means)
    vm = offsets.products(means)[1]
    mm = means.squares()
    vv = offsets.squares()
    xv = (rows.scaled * offsets.scaled).sum(-1) - (rows.projected * offsets.projected).sum(-1)

    # Without row i the metric gains the rank-one term  gain (A v)(A v)'.
    # The offset of a row from the mean of the others is v n / (n - 1).
    cut = n / (n - 1).clamp(min=1) / metric.ridge.squeeze(-1)
    gain = cut / (1 - cut * vv[1]).clamp(min=1e-3)
    column = gain.unsqueeze(-1)
    xx_full = xx[1] + gain * xv.square()
    xm_full = xm[1] + column * xv.unsqueeze(-1) * vm
    mm_full = mm[1].unsqueeze(1) + column * vm.square()
    vv_full = vv[1] * (1 + gain * vv[1])

    weights = labelled.weights * (n / (n - 1).clamp(min=1)).square()
    length = (weights * vv_full).sum(1) / (weights * vv[0]).sum(1).clamp(min=TINY)
    length = torch.where(labelled.weights.sum(1) > 0, length.clamp(min=1e-9), 1.0)

    mass = prototypes.mass.expand_as(xm_full)
    own_mass = of_own(mass)
    rest = own_mass - labelled.members.sum(-1)
    mass_left = put_own(mass, rest)
    found = []
    for share in metric.mixtures:
        mixture = Mixture(torch.full_like(length, share), length)
        row = mixture.of((xx[0], xx_full))
        cross = mixture.of((xm[0], xm_full))
        square = mixture.of((mm[0].unsqueeze(1).expand_as(mm_full), mm_full))
        # The own prototype without the row is  (mass m - x) / (mass - 1).
        own_cross = (own_mass * of_own(cross) - row) / rest
        own_square = own_mass.square() * of_own(square) - 2 * own_mass * of_own(cross) + row
        square = put_own(square, own_square / rest.square())
        cross = put_own(cross, own_cross)
        found.append(model.distances(row.unsqueeze(-1), cross, square, mass_left))
    return LeftOut(torch.stack(found), length, labelled.weights)


def leave_groups_out(
    labelled: Labelled, groups: Tensor, model: Model, full: bool = True
) -> LeftOut:
    """(6) The same where labelled rows belong to groups: rows without all rows of their group.

    Folds of whole groups, at most ten; groups are dealt to folds by their sorted numbers.
    """
    distances = []
    lengths = []
    judged = []
    for b in range(len(groups)):
        number = torch.unique(groups[b], return_inverse=True)[1]
        folds = min(FOLDS, int(number.max()) + 1)
        of_fold = number % folds == torch.arange(folds, device=number.device).unsqueeze(1)  # [F, S]
        kept = (~of_fold).to(labelled.rows).unsqueeze(-1)
        members = labelled.members[b] * kept
        rest = Labelled(
            rows=labelled.rows[b].expand(folds, -1, -1),
            labels=labelled.labels[b].expand(folds, -1),
            members=members,
            counts=members.sum(1),
        )
        metric = metric_of(rest, full)
        own_model = Model(model.variance[b : b + 1], model.prior_rows[b : b + 1])
        prototypes = own_model.prototypes(rest)
        rows, means = metric.see(rest.rows), metric.see(prototypes.rows)
        xx = rows.squares()
        xm = rows.products(means)
        mm = means.squares()
        left = of_fold.to(labelled.rows)
        plain_length = (xx[0] * left).sum()
        length = (xx[1] * left).sum().clamp(min=1e-9) / plain_length.clamp(min=TINY)
        length = torch.where(plain_length > TINY, length, 1.0)
        found = []
        for share in metric.mixtures:
            mixture = Mixture(left.new_full((folds,), share), length.expand(folds))
            to_classes = own_model.distances(
                mixture.of(xx).unsqueeze(-1),
                mixture.of(xm),
                mixture.of(mm).unsqueeze(1),
                prototypes.mass,
            )
            found.append((to_classes * left.unsqueeze(-1)).sum(0))

        # A row whose class is left with no row cannot be judged by it.
        rows_left = rest.counts.gather(1, rest.labels) > 0
        judged.append((left * rows_left).sum(0))
        distances.append(torch.stack(found))
        lengths.append(length)
    return LeftOut(torch.stack(distances, 1), torch.stack(lengths), torch.stack(judged))


@dataclass(frozen=True)
class Calibration:
    sharpness: Tensor  # [B] f
    mixture: Mixture
    bias: Tensor  # [B, K] of hubs
    expected_accuracy: Tensor  # [B] of single rows, from those left out; nan if none is


def calibrate(labelled: Labelled, left: LeftOut) -> Calibration:
    """(7) The sharpness and the mixture that make the labels of the rows left out most likely."""
    sharpness, objective = likeliest_sharpness(left, labelled.labels)

    # Up from t = 0 while the objective stays within one standard error of its lowest so far.
    good = objective < objective.cummin(0).values + STANDARD_ERROR
    best = good.int().cumprod(0).sum(0) - 1
    task = torch.arange(len(best), device=best.device)
    f = sharpness[best, task]
    share = torch.tensor(MIXTURES, dtype=f.dtype, device=f.device)[best]
    distances = left.distances[best, task]

    # (8) Hubs: what a class attracts of the rows of others. A class that is left with no row does
    # not compete for the one that is left out.
    member = labelled.members.bool()
    S, K = member.shape[1:]
    alone = (left.weights == 0).unsqueeze(-1) & member & (K > 1)
    p = (-f.view(-1, 1, 1) / 2 * distances.masked_fill(alone, math.inf)).softmax(-1)
    attracted = (p * ~member).sum(1)
    usual = S / K
    bias = -torch.log1p((attracted - attracted.mean(-1, keepdim=True)) / (usual + 1))

    right = (distances.argmin(-1) == labelled.labels).double()
    expected = (right * left.weights).sum(1) / left.weights.sum(1)
    return Calibration(f, Mixture(share, left.lengths), bias, expected)


def likeliest_sharpness(left: LeftOut, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sharpness f, and minus its log posterior, [T, B]: Newton steps in ln f in a bracket."""
    d, weights = left.distances, left.weights
    own = d.gather(-1, labels.expand(d.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    middle, precision = math.log(SHARPNESS), SPREAD**-2
    at = d.new_full(d.shape[:2], middle)
    low, high = torch.full_like(at, LOG_LEAST), torch.full_like(at, LOG_MOST)
    for _ in range(NEWTON_STEPS):
        f = at.exp()
        p = (d * (f / -2)[..., None, None]).softmax(-1)
        mean = (p * d).sum(-1)
        spread = (p * (d - mean.unsqueeze(-1)).square()).sum(-1)
        first = f / 2 * ((own - mean) * weights).sum(-1)
        slope = first + (at - middle) * precision
        curvature = first + f.square() / 4 * (spread * weights).sum(-1) + precision
        low = torch.where(slope < 0, at, low)
        high = torch.where(slope >= 0, at, high)
        step = at - (slope / curvature).clamp(-LONGEST_STEP, LONGEST_STEP)
        inside = (curvature > 0) & (step >= low) & (step <= high)
        moved = torch.where(inside, step, (low + high) / 2)
        arrived = (moved - at).abs().max() < ARRIVED
        at = moved
        if arrived:
            break
    f = at.exp()
    half = f / -2
    entropy = (d * half[..., None, None]).logsumexp(-1) - own * half.unsqueeze(-1)
    return f, (entropy * weights).sum(-1) + (at - middle).square() * (precision / 2)


# --- the batch ------------------------------------------------------------------------------------


def next_concentration(a: Tensor, counts: Tensor, total: float, m: Tensor) -> Tensor:
    """A Newton step in ln a towards the maximum of the bound, [B, 1]; counts and m [B, K]."""
    K = counts.shape[-1]
    psi, psi1 = torch.special.digamma, torch.special.polygamma
    own = torch.where(m > 0, a * m, 1)
    slope = K * (psi(K * a) - psi(total + K * a))
    slope = slope + (m * (psi(counts + own) - psi(own))).sum(-1, True)
    curvature = K**2 * (psi1(1, K * a) - psi1(1, total + K * a))
    curvature = curvature + (m.square() * (psi1(1, counts + own) - psi1(1, own))).sum(-1, True)
    first = a * slope
    second = first + a.square() * curvature  # in ln a
    step = torch.where(second < 0, -first / second, first.sign()).clamp_(-1, 1)
    return (a * step.exp()).clamp_(LEAST, MOST)


def adapt(
    logits: Tensor, *, weight: float = 1.0, max_iter: int = 100, tol: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """(9) without a prior: probabilities [B, Q, K] and concentration [B, 1] of each batch.

    Counts are in float64, and tasks that have converged keep theirs.
    """
    B, Q, K = logits.shape
    total = weight * Q
    e = logits.new_zeros(B, K)
    a = torch.ones(B, 1, dtype=torch.float64, device=logits.device)
    counts = torch.zeros(B, K, dtype=torch.float64, device=logits.device)
    even = torch.ones_like(counts)
    live = torch.ones_like(a, dtype=torch.bool)
    for i in range(max_iter):
        u = (logits + e.unsqueeze(1)).softmax(-1)
        new = u.sum(1, dtype=torch.float64).mul_(weight)
        moved = (new - counts).abs().amax(-1, keepdim=True)
        counts, a = new, torch.where(live, next_concentration(a, new, total, even), a)
        dual = torch.special.digamma(counts + a) - torch.special.digamma(total + K * a)
        e = torch.where(live, dual.to(e.dtype), e)
        if tol > 0:
            live = live & (moved > tol)
            if i % CHECK_EVERY == CHECK_EVERY - 1 and not live.any():
                break
    return (logits + e.unsqueeze(1)).softmax(-1), a


@dataclass(frozen=True)
class Batch:
    """What the rounds need of the queries, in the metric."""

    gram: Tensor  # [B, Q, Q] products of the queries
    squares: Tensor  # [B, Q, 1]
    cross: Tensor  # [B, Q, K] with the prototypes
    prototype_squares: Tensor  # [B, 1, K]
    mass: Tensor  # [B, 1, K] of the prototypes
    labelled_counts: Tensor  # [B, K]
    half: Tensor  # [B, 1, 1] half of the sharpness
    bias: Tensor  # [B, 1, K]
    model: Model

    def first_logits(self) -> Tensor:
        distances = self.model.distances(
            self.squares, self.cross, self.prototype_squares, self.mass
        )
        return self.bias - self.half * distances

    def absorbed_logits(self, weights: Tensor) -> Tensor:
        """(10) Logits after the classes absorbed the queries by weights [B, Q, K].

        Each query without itself.
        """
        inner = self.gram @ weights
        x_sum = self.mass * self.cross + inner  # x . the sum of the rows of a prototype
        square = self.mass.square() * self.prototype_squares
        square = square + (weights * (inner + 2 * self.mass * self.cross)).sum(1, keepdim=True)
        mass = self.mass + weights.sum(1, keepdim=True) - weights
        own = weights * self.squares
        cross = (x_sum - own) / mass
        square = (square - 2 * weights * x_sum + weights * own) / mass.square()
        distances = self.model.distances(self.squares, cross, square, mass, self.mass)
        return self.bias - self.half * distances


def rounds_of_a_batch(
    batch: Batch, labelled_rows: int, max_iter: int = 100, tol: float = 1e-3
) -> Tensor:
    """(11) Prototypes and proportions in turns; every query is judged by the others."""
    logits = batch.first_logits()
    Q = logits.shape[1]
    weight = labelled_rows / (labelled_rows + Q)
    absorbing = 2 * labelled_rows / (2 * labelled_rows + Q)
    # (9) All classes are equally likely a priori, or as likely as among the labels: where these
    # are a random sample, the batch agrees with them, and its evidence shows it.
    steps: dict[str, Any] = {"max_iter": max_iter, "tol": tol}
    adapted = adapt_with_prior(logits, weight=weight, prior=batch.labelled_counts, **steps)
    even, of_labels = measures(batch.labelled_counts, len(logits))
    measure = torch.where(adapted.prior_used.unsqueeze(-1), of_labels, even)
    u = adapted.probabilities
    a = adapted.concentration.unsqueeze(-1).double()
    for _ in range(ROUNDS):
        logits = batch.absorbed_logits(absorbing * u.square())
        counts = weight * u.sum(1, keepdim=True)
        a = next_concentration(a, counts.squeeze(1).double(), weight * Q, measure)
        others = (counts - weight * u).clamp(min=0) + (a * measure).to(u).unsqueeze(1)
        u = (logits + others.log()).softmax(-1)
    return u


# --- groups ---------------------------------------------------------------------------------------


def rounds_of_groups(batch: Batch, rows: Rows, mixture: Mixture, groups: Tensor, S: int) -> Tensor:
    """(12) The same where each group has class proportions of its own; groups [B, Q].

    Rows of a real group have more in common than their class, so that n of them are worth fewer.
    """
    number = torch.stack([torch.unique(g, return_inverse=True)[1] for g in groups])
    members = F.one_hot(number).to(batch.gram)  # [B, Q, G]
    size = members.sum(1)
    weight = S / (S + size)  # [B, G]
    weight_of_row = members @ weight.unsqueeze(-1)  # [B, Q, 1]
    Q = groups.shape[1]

    logits = batch.first_logits()
    u = logits.softmax(-1)
    concentration = concentration_by_pairs(u, members)
    prior = members @ concentration.unsqueeze(-1)  # [B, Q, 1]
    for i in range(ROUNDS):
        alike = correlation_inside_groups(batch, rows, mixture, members, u)
        worth = 1 / (1 + (size - 1) * alike.squeeze(-1))
        if i > 0:
            absorbing = 2 * S / (2 * S + Q) * (members @ worth.unsqueeze(-1))
            logits = batch.absorbed_logits(absorbing * u.square())

        for _ in range(ROUNDS):
            counts = members @ (members.mT @ (weight_of_row * u))
            others = (counts - weight_of_row * u + prior).clamp(min=TINY)
            # exp(E ln p) of a proportion, not E p; here the row's own count stays in.
            others = others * (counts + prior + 0.5) / (counts + prior + 1)
            u = (logits + (1 - alike) * others.log()).softmax(-1)

        u = few_classes(logits, u, members, concentration, worth * weight)
        u = (alike * logits.log_softmax(-1) + (1 - alike) * u.clamp(min=TINY).log()).softmax(-1)
    return u


def few_classes(logits: Tensor, u: Tensor, members: Tensor, a: Tensor, weight: Tensor) -> Tensor:
    """(15) Averaged over what a group may hold: any proportions, or 1, 2, .. classes, equally many.

    u [B, Q, K] are the probabilities under any proportions, with the concentrations a [B, G]; a row
    weighs `weight` [B, G]. All groups choose how frequent each number of classes is.
    """
    K = logits.shape[-1]
    count = min(SET_CLASSES, K)
    sets = torch.tensor(list(itertools.product((0.0, 1.0), repeat=count))[1:]).to(logits)
    set_sizes = sets.sum(-1)
    weight = weight.unsqueeze(-1)

    # Likelihoods in the likeliest classes of the row's group, relative to all classes alike.
    mass = members.mT @ u  # [B, G, K]
    classes = mass.argsort(dim=-1, descending=True, stable=True)[..., :count]
    group_of_row = members.argmax(-1, keepdim=True).expand(-1, -1, count)
    classes_of_row = classes.gather(1, group_of_row)
    relative_logits = logits - logits.logsumexp(-1, keepdim=True) + math.log(K)
    likelihood = relative_logits.gather(-1, classes_of_row).exp()  # [B, Q, count]

    # The evidence of each set, and of each number of classes.
    sums = (likelihood @ sets.mT).clamp(min=TINY)  # [B, Q, 255]
    of_sets = weight * (members.mT @ (sums / set_sizes).log())  # [B, G, 255]
    evidence = []
    for size in range(1, count + 1):
        of_size = of_sets[..., set_sizes == size].logsumexp(-1)
        evidence.append(of_size - math.log(math.comb(K, size)))

    # That of any proportions: the bound (9), at least that of all classes alike.
    counts = weight * mass
    total = counts.sum(-1, keepdim=True)
    prior = a.unsqueeze(-1)
    dual = torch.digamma(counts + prior) - torch.digamma(total + K * prior)
    of_rows = (relative_logits + members @ dual).logsumexp(-1, keepdim=True)
    bound = (weight * (members.mT @ of_rows)).squeeze(-1) - (counts * dual).sum(-1)
    bound = bound + (torch.lgamma(K * prior) - torch.lgamma(total + K * prior)).squeeze(-1)
    bound = bound + (torch.lgamma(counts + prior) - torch.lgamma(prior)).sum(-1)
    evidence.append(bound.clamp(min=0))

    chance = mixture_posterior(torch.stack(evidence, -1), members)  # [B, G, count + 1]
    weight_of_sets = torch.zeros_like(of_sets)
    for size in range(1, count + 1):
        of_size = set_sizes == size
        within = of_sets[..., of_size].softmax(-1)
        weight_of_sets[..., of_size] = chance[..., size - 1 : size] * within
    in_sets = ((members @ weight_of_sets) / sums) @ sets * likelihood
    mixed = (members @ chance[..., -1:]) * u
    mixed = mixed.scatter_add(-1, classes_of_row, in_sets)
    return mixed / mixed.sum(-1, keepdim=True).clamp(min=TINY)


def mixture_posterior(evidence: Tensor, members: Tensor) -> Tensor:
    """Chances [B, G, C] of the cases of each group, by their log evidence [B, G, C].

    Shares of the cases, the same for all groups, make the groups most likely.
    """
    likely = (evidence - evidence.amax(-1, keepdim=True)).exp()
    is_group = (members.sum(1) > 0).unsqueeze(-1)  # tasks with fewer groups have empty columns
    shares = torch.full_like(likely[:, :1], 1 / likely.shape[-1])
    for _ in range(MIXTURE_STEPS):
        own = likely * shares
        own = own / own.sum(-1, keepdim=True)
        shares = (own * is_group).sum(1, keepdim=True) / is_group.sum(1, keepdim=True)
        shares = shares.clamp(min=1e-100)
    own = likely * shares
    return own / own.sum(-1, keepdim=True)


def concentration_by_pairs(t: Tensor, members: Tensor) -> Tensor:
    """(13) The concentration of each group, [B, G], from pairs of its rows.

    Two rows of a group are one draw with the chance c = 1 / (1 + K a), else two draws. Chances are
    drawn from a mixture, whose shares make all groups most likely.
    """
    K = t.shape[-1]
    same = (members @ members.mT).bool()
    same.diagonal(dim1=-2, dim2=-1).fill_(False)
    together = (K * t @ t.mT).clamp(min=TINY)
    partners = same.sum(-1).clamp(min=1)
    chances = torch.tensor(CHANCES, dtype=t.dtype, device=t.device)
    evidence = []
    for c in CHANCES:
        pair = (1 - c + c * together).clamp(min=TINY).log() * same
        of_row = pair.sum(-1) / (2 * partners)
        evidence.append((members.mT @ of_row.unsqueeze(-1)).squeeze(-1))
    chance = (mixture_posterior(torch.stack(evidence, -1), members) * chances).sum(-1)
    chance = chance.clamp(LEAST, 1 - LEAST)
    return (1 - chance) / (chance * K)


def correlation_inside_groups(
    batch: Batch, rows: Rows, mixture: Mixture, members: Tensor, u: Tensor
) -> Tensor:
    """(14) How alike the rows of a class are inside a group, [B, 1, 1]: 0 as any, 1 copies.

    Rows of a real group share an offset (a patient, a background). Then they repeat the same
    error, and the group says less about its rows. Rows of a class share the error of its mean in
    any case, which pairs of different groups show.
    """
    xm, mm = batch.cross, batch.prototype_squares
    residual = (batch.squares - 2 * xm + mm).clamp(min=0)  # |x - m|^2
    usual = (u * residual).sum((1, 2)) / u.shape[1]
    itself = (u.square() * residual).sum((1, 2))
    number_itself = u.square().sum((1, 2))

    def pairs(of: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over pairs of rows of u u' (x - m).(x' - m), and of u u'."""

        def squared_sums(x: Tensor) -> Tensor:
            return torch.einsum("bqg,bqk,bqd->bgkd", of, u, x).square().sum(-1)

        plain = squared_sums(rows.scaled)
        sums = mixture.of((plain, plain - squared_sums(rows.projected)))
        mass = of.mT @ u
        sums = sums - 2 * mass * (of.mT @ (u * xm)) + mass.square() * mm
        return sums.sum((1, 2)) - itself, mass.square().sum((1, 2)) - number_itself

    within, number_within = pairs(members)
    every, number_every = pairs(torch.ones_like(members[..., :1]))
    inside = within / number_within.clamp(min=1e-9)
    across = (every - within) / (number_every - number_within).clamp(min=1e-9)
    found = (inside - across) / (usual - across).clamp(min=TINY)
    known = (number_within > 1e-6) & (number_every - number_within > 1e-6)
    known = known & (usual - across > 1e-9)
    return torch.where(known, found, 0.0).clamp(0, 1).view(-1, 1, 1)


# --- the rule -------------------------------------------------------------------------------------


def claimed(u: Tensor, counts: Tensor) -> Tensor:
    """(16) Probabilities of a class with n labelled rows count n / (n + 1); no label changes.

    Rounds confirm each other, the more, the fewer labelled rows hold them.
    """
    confidence = (u * (counts / (counts + 1)).unsqueeze(1)).sum(-1, keepdim=True)
    return (confidence * u.log()).softmax(-1)


@dataclass(frozen=True)
class Learned:
    """What labelled rows determine, for any batch."""

    labelled: Labelled
    metric: Metric
    prototypes: Prototypes
    model: Model
    calibration: Calibration


def learn(tasks: Tasks, labelled: Labelled, *, full: bool = True) -> Learned:
    metric = metric_of(labelled, full)
    model = model_of(labelled, metric)
    groups = tasks.support_groups
    # A single group cannot be left out.
    if groups is not None and bool((groups != groups[:, :1]).any(1).all()):
        left = leave_groups_out(labelled, groups, model, full)
    else:
        left = leave_rows_out(labelled, metric, model)
    return Learned(labelled, metric, model.prototypes(labelled), model, calibrate(labelled, left))


def batch_of(learned: Learned, rows: Rows) -> Batch:
    mixture = learned.calibration.mixture
    prototypes = learned.metric.see(learned.prototypes.rows)
    gram = mixture.of(rows.products(rows))
    return Batch(
        gram=gram,
        squares=gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1),
        cross=mixture.of(rows.products(prototypes)),
        prototype_squares=mixture.of(prototypes.squares()).unsqueeze(1),
        mass=learned.prototypes.mass,
        labelled_counts=learned.labelled.counts,
        half=learned.calibration.sharpness.view(-1, 1, 1) / 2,
        bias=learned.calibration.bias.unsqueeze(1),
        model=learned.model,
    )


def classify(
    tasks: Tasks,
    groups: str = "given",
    *,
    full: bool = True,
    dtype: torch.dtype = torch.float64,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Tensor:
    """Probabilities [B, Q, K]; groups "given", "ignored", or each "alone", without the others.

    `full`, or only the diagonal metric. Class proportions are computed in float64, the rest in
    the `dtype`.
    """
    if groups not in ("given", "ignored", "alone"):
        raise ValueError(f'groups must be "given", "ignored" or "alone", got {groups!r}')
    if tasks.num_classes == 1:
        return torch.ones_like(tasks.query[..., :1], dtype=dtype)

    labelled, query = coordinates(tasks, dtype)
    learned = learn(tasks, labelled, full=full)
    rows = learned.metric.see(query)
    S = tasks.support.shape[1]
    if tasks.query_groups is None or groups == "ignored":
        u = rounds_of_a_batch(batch_of(learned, rows), S, max_iter, tol)
    elif groups == "given":
        batch = batch_of(learned, rows)
        u = rounds_of_groups(batch, rows, learned.calibration.mixture, tasks.query_groups, S)
    else:
        u = each_alone(learned, rows, tasks.query_groups)
    return claimed(u, labelled.counts)


def each_alone(learned: Learned, rows: Rows, groups: Tensor) -> Tensor:
    """Every group as a batch of its own, for one task."""
    if len(groups) != 1:
        raise ValueError(f"each group alone takes one task, got {len(groups)}")
    S = learned.labelled.rows.shape[1]
    u = rows.scaled.new_zeros(1, groups.shape[1], learned.labelled.counts.shape[1])
    for g in groups[0].unique():
        inside = groups[0] == g
        of_group = Rows(rows.scaled[:, inside], rows.projected[:, inside])
        u[:, inside] = rounds_of_a_batch(batch_of(learned, of_group), S)
    return u


def expected_accuracy(tasks: Tasks) -> Tensor:
    """The share of labelled rows that are right when left out, [B]: of single rows, no batch."""
    labelled, _ = coordinates(tasks)
    return learn(tasks, labelled).calibration.expected_accuracy
