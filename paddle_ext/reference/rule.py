"""The rule of `adaptive` in plain torch, task by task and in float64: the specification.

Letters: S labelled rows, Q queries, K classes, D features; class k has n_k labelled rows with mean
w_k. Numbers in parentheses are the equations of docs/adaptive.md.

The mean of class k is drawn from N(0, C / n0) and its rows from N(mean, C): as if n0 rows at the
centre were labelled. Every prototype is the mean of these, of its labelled rows, and of what a
batch adds, and its `mass` is how many rows that are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..solution import Solution
from .adapt import IMPOSSIBLE, LEAST, adapt, measures, next_concentration
from .paddle import unit_rows

SHARPNESS = 40.0  # the median of f a priori
SPREAD = math.log(2.0)  # of ln f a priori
VARIANCE_INSIDE = 0.65  # a priori, of the squared length of a row
PRIOR_DEGREES = 10.0  # degrees of freedom that a priori variances weigh
DETERMINANT = 0.5  # part of the log-determinant of labelled rows
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the full metric
STANDARD_ERROR = 0.5  # of a log-likelihood, where it is one standard error below its maximum
ROUNDS = 3
FOLDS = 10  # of groups of labelled rows, at most

LEAST_SHARPNESS, MOST_SHARPNESS = 0.1, 1e4
BISECTIONS = 60
SAME = 1e-12  # rows that are this near to the centre differ from it by rounding
NO_SCATTER = 1e-10  # squared distances below are rounding
TINY = 1e-30


# --- rows and metric ------------------------------------------------------------------------------


def centred(x: Tensor, centre: Tensor) -> Tensor:
    """(1) Unit-norm rows, minus the centre, unit-norm again; a row at the centre becomes zero."""
    x = unit_rows(x) - centre
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm > SAME, x / norm.clamp(min=SAME), 0)


def squared(x: Tensor, w: Tensor, metric: Tensor | None = None) -> Tensor:
    """Squared distances of rows [N, D] to rows [K, D], perhaps in a metric [D, D], [N, K]."""
    away = x.unsqueeze(1) - w
    return ((away if metric is None else away @ metric) * away).sum(-1)


@dataclass(frozen=True)
class Labelled:
    """Labelled rows in the coordinates (1)."""

    rows: Tensor  # [S, D]
    labels: Tensor  # [S]
    num_classes: int

    @property
    def counts(self) -> Tensor:
        """n_k, [K]."""
        return self.labels.bincount(minlength=self.num_classes).double()

    @property
    def means(self) -> Tensor:
        """w_k, [K, D]; zero for a class without rows."""
        sums = self.rows.new_zeros(self.num_classes, self.rows.shape[1])
        sums = sums.index_add(0, self.labels, self.rows)
        return sums / self.counts.clamp(min=1).unsqueeze(1)

    @property
    def offsets(self) -> Tensor:
        """o_i, [S, D]: rows minus the means of their classes."""
        return self.rows - self.means[self.labels]

    @property
    def degrees(self) -> float:
        """nu: rows minus classes with rows."""
        return float(len(self.rows) - (self.counts > 0).sum())

    @property
    def has_others(self) -> Tensor:
        """Which rows have others in their class, [S]; the others show no variance inside it."""
        return self.counts[self.labels] >= 2

    def without(self, left_out: Tensor) -> Labelled:
        """Without the rows that a mask [S] selects."""
        return Labelled(self.rows[~left_out], self.labels[~left_out], self.num_classes)


def relative(variance: Tensor, rounding: float = 0.0) -> Tensor:
    """Divided by the mean over the features; a sum over these of less than `rounding` is none."""
    mean = (variance.sum() + rounding) / len(variance)
    return variance / mean.clamp(min=TINY)


def feature_weights(labelled: Labelled) -> Tensor:
    """(2) The weight g of each feature, [D], lower if it varies inside classes."""
    means, degrees = labelled.means, labelled.degrees
    inside = labelled.offsets[labelled.has_others].square().sum(0)
    between = means.square().sum(0)
    resting = between.square() / means.pow(4).sum(0).clamp(min=TINY)

    relative_inside = relative(inside, degrees * NO_SCATTER)
    variance = degrees * relative_inside + resting * relative(between) + PRIOR_DEGREES
    variance = variance / (degrees + resting + PRIOR_DEGREES)
    return relative(1 / (variance + 1))


@dataclass(frozen=True)
class FullMetric:
    """(3) For rows times the root of g."""

    matrix: Tensor  # [D, D] A
    ridge: float  # L


def full_metric(labelled: Labelled, weights: Tensor) -> FullMetric:
    offsets = labelled.offsets * weights.sqrt()
    rows = max(labelled.degrees, 1.0)
    ridge = float(offsets.square().sum()) / rows + rows * NO_SCATTER
    identity = torch.eye(len(weights)).to(offsets)
    return FullMetric(torch.linalg.inv(offsets.mT @ offsets / ridge + identity), ridge)


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prototypes:
    rows: Tensor  # [K, D]
    mass: Tensor  # [K] M_k, of how many rows each is the mean

    def absorb(self, x: Tensor, weights: Tensor) -> Prototypes:
        """With further rows [Q, D], which count by weights [Q, K]."""
        mass = self.mass + weights.sum(0)
        sums = self.mass.unsqueeze(1) * self.rows + weights.mT @ x
        return Prototypes(sums / mass.unsqueeze(1), mass)


@dataclass(frozen=True)
class Model:
    variance: float  # V inside classes, in squared length
    prior_rows: float  # n0

    def prototypes(self, means: Tensor, counts: Tensor) -> Prototypes:
        """From the means [K, D] of so many labelled rows [K]."""
        mass = counts + self.prior_rows
        return Prototypes(means * (counts / mass).unsqueeze(1), mass)

    def distances(self, squares: Tensor, mass: Tensor, labelled_mass: Tensor) -> Tensor:
        """(5) -2/f times the log predictive density, from squared distances to the prototypes."""
        spread, spread_of_labels = 1 + 1 / mass, 1 + 1 / labelled_mass
        determinant = DETERMINANT * spread_of_labels.log() + (spread / spread_of_labels).log()
        return squares / spread + self.variance * determinant


def model_of(labelled: Labelled, weights: Tensor) -> Model:
    """(4) V and n0, from the rows that have others in their class."""
    square = max(float((labelled.rows.square() @ weights).mean()), TINY)
    n = labelled.counts[labelled.labels]
    seen = n / (n - 1).clamp(min=1) * (labelled.offsets.square() @ weights)
    has_others = labelled.has_others
    inside = float(seen[has_others].mean()) if has_others.any() else 0.0

    degrees = labelled.degrees
    variance = degrees * inside + PRIOR_DEGREES * VARIANCE_INSIDE * square
    variance = variance / (degrees + PRIOR_DEGREES)
    share = min(max(variance / square, 0.02), 0.98)
    return Model(variance, share / (1 - share))


# --- labelled rows left out -----------------------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """Labelled rows as if they were new ones, in each of the mixtures."""

    distances: Tensor  # [T, S, K]
    judged: Tensor  # [S] whether the class of the row has others left
    length: float  # how long distances are in the full metric


def leave_rows_out(labelled: Labelled, weights: Tensor, model: Model) -> LeftOut:
    """(6) Every row without itself in its prototype and in A, by the definition."""
    root = weights.sqrt()
    full_of_all = full_metric(labelled, weights)
    A, ridge = full_of_all.matrix, full_of_all.ridge
    S = len(labelled.rows)
    plain, full, mass = (labelled.rows.new_zeros(S, labelled.num_classes) for _ in range(3))
    length_of_plain = length_of_full = 0.0
    offsets, counts = labelled.offsets * root, labelled.counts[labelled.labels]
    number = torch.arange(S, device=labelled.labels.device)
    for i in range(S):
        rest = labelled.without(number == i)
        prototypes = model.prototypes(rest.means, rest.counts)
        n = float(counts[i])
        A_without = A
        if n >= 2:
            # Without the row the scatter inside its class loses  n / (n - 1) o o'.
            cut = n / (n - 1) / ridge
            along = A @ offsets[i]
            kept = max(1 - cut * float(offsets[i] @ along), 1e-3)
            A_without = A + cut / kept * torch.outer(along, along)

            of_others = offsets[i] * n / (n - 1)  # from the mean of the other rows
            length_of_plain += float(of_others @ of_others)
            length_of_full += float(of_others @ A_without @ of_others)
        row = (labelled.rows[i] * root).unsqueeze(0)
        plain[i] = squared(row, prototypes.rows * root)
        full[i] = squared(row, prototypes.rows * root, A_without)
        mass[i] = prototypes.mass

    judged = labelled.has_others
    rounding = S * NO_SCATTER
    length = (length_of_full + rounding) / (length_of_plain + rounding)
    return LeftOut(in_mixtures(model, plain, full / length, mass), judged, length)


def leave_groups_out(labelled: Labelled, groups: Tensor, model: Model) -> LeftOut:
    """(6) Rows without all rows of their group, in up to ten folds of whole groups."""
    number = torch.unique(groups, return_inverse=True)[1]
    folds = min(FOLDS, int(number.max()) + 1)
    S = len(labelled.rows)
    plain, full, mass = (labelled.rows.new_zeros(S, labelled.num_classes) for _ in range(3))
    judged = torch.zeros_like(labelled.labels, dtype=torch.bool)
    length_of_plain = length_of_full = 0.0
    for fold in range(folds):
        left_out = number % folds == fold
        rest = labelled.without(left_out)
        weights = feature_weights(rest)
        root, A = weights.sqrt(), full_metric(rest, weights).matrix
        prototypes = model.prototypes(rest.means, rest.counts)
        rows = labelled.rows[left_out] * root
        plain[left_out] = squared(rows, prototypes.rows * root)
        full[left_out] = squared(rows, prototypes.rows * root, A)
        mass[left_out] = prototypes.mass
        judged[left_out] = rest.counts[labelled.labels[left_out]] > 0
        length_of_plain += float(rows.square().sum())
        length_of_full += float(((rows @ A) * rows).sum())

    rounding = S * NO_SCATTER
    length = (length_of_full + rounding) / (length_of_plain + rounding)
    return LeftOut(in_mixtures(model, plain, full / length, mass), judged, length)


def in_mixtures(model: Model, plain: Tensor, full: Tensor, mass: Tensor) -> Tensor:
    """Distances (5) of the rows left out, [T, S, K], from squared ones in both metrics."""
    return torch.stack([model.distances(torch.lerp(plain, full, t), mass, mass) for t in MIXTURES])


# --- calibration ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sharpness:
    f: float
    objective: float  # minus the logarithm of its posterior


def likeliest_sharpness(
    distances: Tensor, labels: Tensor, weights: Tensor | None = None
) -> Sharpness:
    """(7) f for distances [N, K] and labels [N], perhaps of rows that count by weights [N]."""
    own = distances.gather(1, labels.unsqueeze(1)).squeeze(1)
    weights = torch.ones_like(own) if weights is None else weights
    middle, precision = math.log(SHARPNESS), SPREAD**-2

    def slope(log_f: float) -> float:
        f = math.exp(log_f)
        mean = ((-f / 2 * distances).softmax(-1) * distances).sum(-1)
        return f / 2 * float(weights @ (own - mean)) + (log_f - middle) * precision

    low, high = math.log(LEAST_SHARPNESS), math.log(MOST_SHARPNESS)
    for _ in range(BISECTIONS):
        at = (low + high) / 2
        if slope(at) < 0:
            low = at
        else:
            high = at
    f = math.exp(at)
    entropy = float(weights @ ((-f / 2 * distances).logsumexp(-1) + f / 2 * own))
    return Sharpness(f, entropy + (at - middle) ** 2 * precision / 2)


@dataclass(frozen=True)
class Calibration:
    mixture: int  # the number of the mixture
    sharpness: float  # f

    @property
    def share(self) -> float:
        """t, of the full metric."""
        return MIXTURES[self.mixture]


def calibrate(
    left: LeftOut, labels: Tensor, metric: str, weights: Tensor | None = None
) -> Calibration:
    """(7) t grows while the objective stays within one standard error of its lowest so far."""
    best, lowest, f = 0, math.inf, SHARPNESS
    own, weights = labels[left.judged], None if weights is None else weights[left.judged]
    for i in range(len(MIXTURES) if metric == "auto" else 1):
        found = likeliest_sharpness(left.distances[i, left.judged], own, weights)
        if found.objective >= lowest + STANDARD_ERROR:
            break
        best, lowest, f = i, min(lowest, found.objective), found.f
    return Calibration(best, f)


def bias_of(distances: Tensor, judged: Tensor, labels: Tensor, f: float) -> Tensor:
    """(8) The bias of hubs, [K], from distances [S, K] of the rows left out."""
    S, K = distances.shape
    member = torch.nn.functional.one_hot(labels, K).bool()
    if K > 1:
        # A class that is left with no row does not compete for the row that is left out.
        distances = distances.masked_fill(member & ~judged.unsqueeze(1), math.inf)
    attracted = (-f / 2 * distances).softmax(-1).masked_fill(member, 0).sum(0)
    return -torch.log1p((attracted - attracted.mean()) / (S / K + 1))


# --- the labelled rows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What labelled rows determine, for any batch."""

    centre: Tensor  # [D]
    means: Tensor  # [K, D] w_k
    counts: Tensor  # [K] n_k; effective numbers, if rows weigh less than one
    rows: float  # S
    feature_weights: Tensor  # [D] g
    share: float  # t
    metric: Tensor  # [D, D] the mixture, for rows in the coordinates
    model: Model
    sharpness: float  # f
    bias: Tensor  # [K] of hubs
    left_out: Tensor  # [S, K] logits of the labelled rows as if they were new
    judged: Tensor  # [S] whether the class of a row has others left
    expected_accuracy: float  # the share of rows that are right when left out; nan without any

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    @property
    def prototypes(self) -> Prototypes:
        return self.model.prototypes(self.means, self.counts)

    def logits(self, x: Tensor, prototypes: Prototypes | None = None) -> Tensor:
        """l of rows [N, D] in the coordinates, [N, K], perhaps by prototypes after a batch."""
        labelled = self.prototypes
        prototypes = labelled if prototypes is None else prototypes
        squares = squared(x, prototypes.rows, self.metric)
        distances = self.model.distances(squares, prototypes.mass, labelled.mass)
        return self.bias - self.sharpness / 2 * distances


def mixed_metric(labelled: Labelled, weights: Tensor, share: float, length: float) -> Tensor:
    """The mixture with the share t of A, [D, D], for rows in the coordinates."""
    root, A = weights.sqrt(), full_metric(labelled, weights).matrix
    mixture = (1 - share) * torch.eye(len(root)).to(A) + share / length * A
    return root.unsqueeze(1) * mixture * root


def learn(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    metric: str = "auto",
    groups: Tensor | None = None,
) -> Known:
    """Learn from the labelled rows [S, D] of one task, perhaps from groups [S]."""
    rows = unit_rows(support.double())
    # Nothing is next to a single class: its directions stay those from the origin.
    centre = Labelled(rows, labels, num_classes).means.mean(0) * (num_classes > 1)
    labelled = Labelled(centred(rows, centre), labels, num_classes)
    weights = feature_weights(labelled)
    model = model_of(labelled, weights)
    if groups is not None and bool((groups != groups[0]).any()):
        left = leave_groups_out(labelled, groups, model)
    else:
        left = leave_rows_out(labelled, weights, model)

    found = calibrate(left, labels, metric)
    f, distances = found.sharpness, left.distances[found.mixture]
    bias = bias_of(distances, left.judged, labels, f)
    right = distances[left.judged].argmin(-1) == labels[left.judged]
    return Known(
        centre=centre,
        means=labelled.means,
        counts=labelled.counts,
        rows=float(len(rows)),
        feature_weights=weights,
        share=found.share,
        metric=mixed_metric(labelled, weights, found.share, left.length),
        model=model,
        sharpness=f,
        bias=bias,
        left_out=bias - f / 2 * distances,
        judged=left.judged,
        expected_accuracy=float(right.double().mean()),
    )


# --- the batch ------------------------------------------------------------------------------------


def absorbed_logits(known: Known, x: Tensor, weights: Tensor) -> Tensor:
    """(10) Each query [Q, D] by prototypes that absorbed the others by weights [Q, K]."""
    logits = []
    for q in range(len(x)):
        others = weights.clone()
        others[q] = 0
        logits.append(known.logits(x[q : q + 1], known.prototypes.absorb(x, others)))
    return torch.cat(logits)


def absorbed_weights(known: Known, u: Tensor) -> Tensor:
    """(10) W, [Q, K]: how much each query counts in the prototypes."""
    S, Q = known.rows, len(u)
    return 2 * S / (2 * S + Q) * u.square()


def log_of_possible(x: Tensor, measure: Tensor) -> Tensor:
    """ln x, and IMPOSSIBLE where the measure of the class is 0."""
    return torch.where(measure > 0, x.log(), IMPOSSIBLE)


def claimed(u: Tensor, counts: Tensor) -> Tensor:
    """(16) Rounds confirm their own labels, most where few labelled rows support them."""
    confidence = (u * (counts / (counts + 1))).sum(-1, keepdim=True)
    return (confidence * u.log()).softmax(-1)


def mean_log_proportions(counts: Tensor, prior: Tensor) -> Tensor:
    """e, [.., K], of proportions with the Dirichlet prior a m and the counts N, [.., K] each."""
    own = counts + prior
    total = own.sum(-1, keepdim=True)
    e = torch.digamma(torch.where(prior > 0, own, 1)) - torch.digamma(total)
    return torch.where(prior > 0, e, IMPOSSIBLE)


def class_shares(labels: Tensor, u: Tensor) -> Tensor:
    """The estimated shares of the classes, [K]: counts of labels, or of u if all have a label."""
    Q, K = u.shape
    counted = labels.bincount(minlength=K).double()
    labelled_share = float((counted > 0).sum()) / K
    return (1 - labelled_share) * counted / Q + labelled_share * u.mean(0)


@dataclass(frozen=True)
class Batch:
    """Queries after the rounds."""

    first: Solution  # of (9)
    logits: Tensor  # [Q, K] those of the last round
    u: Tensor  # [Q, K] probabilities before (16)
    counts: Tensor  # [K] N = rho sum u
    concentration: float  # a
    measure: Tensor  # [K] m

    @property
    def pseudocounts(self) -> Tensor:
        """a m, [K]."""
        return self.concentration * self.measure


def rounds(
    known: Known,
    x: Tensor,
    *,
    prior: Tensor | None = None,
    added: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Batch:
    """(9) to (11) Prototypes and proportions in turns, for queries [Q, D] in the coordinates.

    The prior of the caller, [K], replaces the labelled counts. Logits [Q, K] may be added to all.
    """
    S, Q = known.rows, len(x)
    rho = S / (S + Q)
    more = 0.0 if added is None else added

    # (9) All classes are equally likely a priori, or as likely as among the labels.
    second = known.counts if prior is None else prior
    logits = known.logits(x) + more
    first = adapt(logits, weight=rho, prior=second, max_iter=max_iter, tol=tol)
    assert first.concentration is not None
    even, own = measures(second, 1)
    measure = (own if first.prior_used else even).to(x)  # [1, K]
    u, a = first.probabilities, first.concentration.view(1, 1)
    for _ in range(ROUNDS):
        logits = absorbed_logits(known, x, absorbed_weights(known, u)) + more
        counts = rho * u.sum(0, keepdim=True)
        a = next_concentration(a, counts, rho * Q, measure, a.new_full((1, 1), LEAST))
        others = (counts - rho * u).clamp(min=0) + a * measure
        u = (logits + log_of_possible(others, measure)).softmax(-1)
    return Batch(first, logits, u, rho * u.sum(0), float(a), measure[0])


def solution_of(known: Known, batch: Batch, prior: Tensor | None) -> Solution:
    u = claimed(batch.u, known.counts)
    labels = u.argmax(-1)
    return batch.first._replace(
        labels=labels,
        probabilities=u,
        proportions=class_shares(labels, u),
        dual=mean_log_proportions(batch.counts, batch.pseudocounts),
        concentration=u.new_tensor(batch.concentration),
        prior_used=None if prior is None else batch.first.prior_used,
        shots=known.counts,
        variance=u.new_tensor(known.model.variance),
    )


def classify(
    known: Known,
    query: Tensor,
    *,
    prior: Tensor | None = None,
    added: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Solution:
    """Classify queries [Q, D] of one task; `added` [Q, K] are further logits."""
    x = centred(query.double(), known.centre)
    batch = rounds(known, x, prior=prior, added=added, max_iter=max_iter, tol=tol)
    return solution_of(known, batch, prior)


# --- further rows, one by one ---------------------------------------------------------------------


@dataclass(frozen=True)
class Absorbed:
    """What a batch leaves for rows that come later."""

    prototypes: Prototypes  # with all of its queries
    preference: Tensor  # [K] ln(N_k + a m_k), added to logits


def absorbed(known: Known, x: Tensor, batch: Batch) -> Absorbed:
    """From the queries [Q, D] in the coordinates, and their rounds."""
    prototypes = known.prototypes.absorb(x, absorbed_weights(known, batch.u))
    preference = log_of_possible(batch.counts + batch.pseudocounts, batch.measure)
    return Absorbed(prototypes, preference)


def logits_after(known: Known, rows: Tensor, left: Absorbed) -> Tensor:
    """Logits [N, K] of further rows [N, D] after a batch; none of them changes another."""
    return known.logits(centred(rows.double(), known.centre), left.prototypes) + left.preference


def classify_after(known: Known, rows: Tensor, left: Absorbed) -> Tensor:
    """Probabilities [N, K] of further rows [N, D] after a batch."""
    return claimed(logits_after(known, rows, left).softmax(-1), known.counts)
