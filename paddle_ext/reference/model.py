"""The two-covariance rule in plain torch, task by task: the specification of the next `adaptive`.

Letters: S labelled rows, Q queries, K classes, D features, G groups; class k has n_k labelled rows.
Numbers in parentheses are the equations of docs/proposed.md.

The mean of class k is drawn from N(0, C / n0) and its rows from N(mean, C): as if n0 rows at the
centre were labelled. Every prototype is the mean of these, of its labelled rows, and of what a
batch adds, and `mass` is how many rows that are.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .adapt import LEAST, adapt, measures
from .adapt import next_concentration as newton_step
from .adaptive import centred, squared
from .groups import Members
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
SET_CLASSES = 8  # the likeliest classes of a group, whose sets are compared
CHANCES = [math.sin(i * math.pi / 32) ** 2 for i in range(17)]  # that two rows are one draw

LEAST_SHARPNESS, MOST_SHARPNESS = 0.1, 1e4
MIXTURE_STEPS = 20
TINY = 1e-30


# --- rows and metric ------------------------------------------------------------------------------


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


def relative(variance: Tensor) -> Tensor:
    """Divided by the mean over the features."""
    return variance / variance.mean().clamp(min=TINY)


def feature_weights(labelled: Labelled) -> Tensor:
    """(2) The weight g of each feature, [D], lower if it varies inside classes."""
    means, degrees = labelled.means, labelled.degrees
    inside = labelled.offsets[labelled.has_others].square().sum(0)
    between = means.square().sum(0)
    resting = between.square() / means.pow(4).sum(0).clamp(min=TINY)

    variance = degrees * relative(inside) + resting * relative(between) + PRIOR_DEGREES
    variance = variance / (degrees + resting + PRIOR_DEGREES)
    return relative(1 / (variance + 1))


def full_metric(labelled: Labelled, weights: Tensor) -> tuple[Tensor, float]:
    """(3) The matrix A [D, D] for rows times the root of g, and the ridge L."""
    offsets = labelled.offsets * weights.sqrt()
    ridge = float(offsets.square().sum()) / max(labelled.degrees, 1.0) + 1e-12
    identity = torch.eye(len(weights), dtype=offsets.dtype)
    return torch.linalg.inv(offsets.mT @ offsets / ridge + identity), ridge


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    variance: float  # V inside classes, in squared length
    prior_rows: float  # n0

    def prototypes(self, labelled: Labelled) -> tuple[Tensor, Tensor]:
        """Rows [K, D], and of how many rows each is the mean, [K]."""
        mass = labelled.counts + self.prior_rows
        return labelled.means * (labelled.counts / mass).unsqueeze(1), mass

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
    A, ridge = full_metric(labelled, weights)
    K = labelled.num_classes
    S = len(labelled.rows)
    plain, full, mass = (labelled.rows.new_zeros(S, K) for _ in range(3))
    length_of_plain = length_of_full = 0.0
    for i in range(S):
        left_out = torch.arange(S) == i
        means, mass[i] = model.prototypes(labelled.without(left_out))
        row = (labelled.rows[i] * root).unsqueeze(0)
        n = float(labelled.counts[labelled.labels[i]])
        A_without = A
        if n >= 2:
            # Without the row the scatter inside its class loses  n / (n - 1) o o'.
            offset = labelled.offsets[i] * root
            cut = n / (n - 1) / ridge
            along = A @ offset
            kept = max(1 - cut * float(offset @ along), 1e-3)
            A_without = A + cut / kept * torch.outer(along, along)

            of_others = offset * n / (n - 1)  # from the mean of the other rows
            length_of_plain += float(of_others @ of_others)
            length_of_full += float(of_others @ A_without @ of_others)
        plain[i] = squared(row, means * root, torch.eye(len(root)).to(A))
        full[i] = squared(row, means * root, A_without)

    judged = labelled.has_others
    length = max(length_of_full / max(length_of_plain, TINY), 1e-9) if judged.any() else 1.0
    return LeftOut(in_mixtures(model, plain, full / length, mass), judged, length)


def leave_groups_out(labelled: Labelled, groups: Tensor, weights: Tensor, model: Model) -> LeftOut:
    """(6) Rows without all rows of their group, in up to ten folds of whole groups."""
    number = torch.unique(groups, return_inverse=True)[1]
    folds = min(FOLDS, int(number.max()) + 1)
    plain, full, mass = (
        labelled.rows.new_zeros(len(labelled.rows), labelled.num_classes) for _ in range(3)
    )
    judged = torch.zeros(len(labelled.rows), dtype=torch.bool)
    length_of_plain = length_of_full = 0.0
    for fold in range(folds):
        left_out = number % folds == fold
        rest = labelled.without(left_out)
        root = feature_weights(rest).sqrt()
        A, _ = full_metric(rest, root.square())
        means, mass[left_out] = model.prototypes(rest)
        rows = labelled.rows[left_out] * root
        plain[left_out] = squared(rows, means * root, torch.eye(len(root)).to(A))
        full[left_out] = squared(rows, means * root, A)
        judged[left_out] = rest.counts[labelled.labels[left_out]] > 0
        length_of_plain += float(rows.square().sum())
        length_of_full += float(((rows @ A) * rows).sum())

    length = max(length_of_full, 1e-9) / length_of_plain if length_of_plain > TINY else 1.0
    return LeftOut(in_mixtures(model, plain, full / length, mass), judged, length)


def in_mixtures(model: Model, plain: Tensor, full: Tensor, mass: Tensor) -> Tensor:
    """Distances (5) of the rows left out, [T, S, K], from squared ones in both metrics."""
    return torch.stack([model.distances(torch.lerp(plain, full, t), mass, mass) for t in MIXTURES])


# --- calibration ----------------------------------------------------------------------------------


def likeliest_sharpness(distances: Tensor, labels: Tensor) -> tuple[float, float]:
    """(7) f for distances [N, K] and labels [N], and minus the logarithm of its posterior."""
    own = distances.gather(1, labels.unsqueeze(1)).squeeze(1)
    middle, precision = math.log(SHARPNESS), SPREAD**-2

    def slope(log_f: float) -> float:
        f = math.exp(log_f)
        mean = ((-f / 2 * distances).softmax(-1) * distances).sum(-1)
        return f / 2 * float((own - mean).sum()) + (log_f - middle) * precision

    low, high = math.log(LEAST_SHARPNESS), math.log(MOST_SHARPNESS)
    for _ in range(60):
        at = (low + high) / 2
        if slope(at) < 0:
            low = at
        else:
            high = at
    f = math.exp(at)
    entropy = float(((-f / 2 * distances).logsumexp(-1) + f / 2 * own).sum())
    return f, entropy + (at - middle) ** 2 * precision / 2


@dataclass(frozen=True)
class Known:
    """What labelled rows determine, for any batch."""

    labelled: Labelled
    centre: Tensor  # [D]
    metric: Tensor  # [D, D] the mixture, for rows in the coordinates
    model: Model
    sharpness: float  # f
    bias: Tensor  # [K] of hubs
    expected_accuracy: float  # the share of rows that are right when left out; nan without any

    def logits(self, squares: Tensor, mass: Tensor, labelled_mass: Tensor) -> Tensor:
        distances = self.model.distances(squares, mass, labelled_mass)
        return self.bias - self.sharpness / 2 * distances


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
    uncentred = Labelled(rows, labels, num_classes)
    centre = uncentred.means.mean(0)
    labelled = Labelled(centred(rows, centre), labels, num_classes)
    weights = feature_weights(labelled)
    model = model_of(labelled, weights)
    if groups is not None and bool((groups != groups[0]).any()):
        left = leave_groups_out(labelled, groups, weights, model)
    else:
        left = leave_rows_out(labelled, weights, model)

    # (7) t grows while the objective stays within one standard error of its lowest so far.
    judged, own = left.judged, labels[left.judged]
    best, lowest, f = 0, math.inf, SHARPNESS
    for i in range(len(MIXTURES) if metric == "auto" else 1):
        f_of_mixture, objective = likeliest_sharpness(left.distances[i, judged], own)
        if objective >= lowest + STANDARD_ERROR:
            break
        best, lowest, f = i, min(lowest, objective), f_of_mixture

    # (8) A class that is left with no row does not compete for the row that is left out.
    distances = left.distances[best].clone()
    member = torch.nn.functional.one_hot(labels, num_classes).bool()
    if num_classes > 1:
        distances[member & ~judged.unsqueeze(1)] = math.inf
    attracted = (-f / 2 * distances).softmax(-1).masked_fill(member, 0).sum(0)
    usual = len(rows) / num_classes
    bias = -torch.log1p((attracted - attracted.mean()) / (usual + 1))

    A, _ = full_metric(labelled, weights)
    t, root = MIXTURES[best], weights.sqrt()
    mixture = (1 - t) * torch.eye(len(root)).to(A) + t / left.length * A
    right = left.distances[best, judged].argmin(-1) == own
    return Known(
        labelled=labelled,
        centre=centre,
        metric=root.unsqueeze(1) * mixture * root,
        model=model,
        sharpness=f,
        bias=bias,
        expected_accuracy=float(right.double().mean()),
    )


# --- the batch ------------------------------------------------------------------------------------


def absorbed_logits(known: Known, x: Tensor, weights: Tensor) -> Tensor:
    """(10) Each query [Q, D] by prototypes that absorbed the others by weights [Q, K]."""
    prototypes, labelled_mass = known.model.prototypes(known.labelled)
    logits = []
    for q in range(len(x)):
        others = weights.clone()
        others[q] = 0
        mass = labelled_mass + others.sum(0)
        sums = labelled_mass.unsqueeze(1) * prototypes + others.mT @ x
        squares = squared(x[q : q + 1], sums / mass.unsqueeze(1), known.metric)[0]
        logits.append(known.logits(squares, mass, labelled_mass))
    return torch.stack(logits)


def classify(known: Known, query: Tensor, groups: Tensor | None = None) -> Tensor:
    """Probabilities [Q, K] of queries [Q, D], perhaps in groups [Q]."""
    if known.labelled.num_classes == 1:
        return query.new_ones(len(query), 1, dtype=torch.float64)

    x = centred(query.double(), known.centre)
    nothing = x.new_zeros(len(x), known.labelled.num_classes)
    first = absorbed_logits(known, x, nothing)
    u = in_one_batch(known, x, first) if groups is None else in_groups(known, x, first, groups)

    # (16) Rounds confirm their own labels, most where few labelled rows support them.
    n = known.labelled.counts
    confidence = (u * (n / (n + 1))).sum(-1, keepdim=True)
    return (confidence * u.clamp(min=TINY).log()).softmax(-1)


def in_one_batch(known: Known, x: Tensor, logits: Tensor) -> Tensor:
    """(9) to (11) Prototypes and proportions in turns, from the first logits [Q, K]."""
    S, Q = len(known.labelled.rows), len(x)
    counts = known.labelled.counts
    rho = S / (S + Q)
    # (9) All classes are equally likely a priori, or as likely as among the labels.
    adapted = adapt(logits, weight=rho, prior=counts)
    assert adapted.concentration is not None
    even, of_labels = measures(counts, 1)
    measure = of_labels if adapted.prior_used else even
    u, a = adapted.probabilities, adapted.concentration.view(1, 1)
    for _ in range(ROUNDS):
        weights = 2 * S / (2 * S + Q) * u.square()
        logits = absorbed_logits(known, x, weights)
        of_batch = rho * u.sum(0, keepdim=True)
        a = newton_step(a, of_batch, rho * Q, measure, a.new_full((1, 1), LEAST))
        others = (of_batch - rho * u).clamp(min=0) + a * measure
        u = (logits + others.log()).softmax(-1)
    return u


# --- groups ---------------------------------------------------------------------------------------


def in_groups(known: Known, x: Tensor, first: Tensor, groups: Tensor) -> Tensor:
    """(12) to (15) The same where each group has class proportions of its own."""
    S, Q = len(known.labelled.rows), len(x)
    members = Members.of(groups)
    logits, u = first, first.softmax(-1)
    concentrations = concentrations_by_pairs([u[rows] for rows in members.rows])
    for turn in range(ROUNDS):
        r = likeness_in_groups(known, x, members.rows, u)
        worth = [1 / (1 + (len(rows) - 1) * r) for rows in members.rows]  # of a row of each group
        if turn > 0:
            of_rows = torch.tensor(worth, dtype=x.dtype)[members.of_row].unsqueeze(1)
            weights = 2 * S / (2 * S + Q) * of_rows * u.square()
            logits = absorbed_logits(known, x, weights)

        u = u.clone()
        for rows, a in zip(members.rows, concentrations, strict=True):
            u[rows] = proportions_of_group(logits[rows], u[rows], a, r, S / (S + len(rows)))
        rhos = [S / (S + len(rows)) for rows in members.rows]
        rows_weigh = [rho * h for rho, h in zip(rhos, worth, strict=True)]
        u = few_classes(logits, u, members.rows, concentrations, rows_weigh)
        u = (r * logits.log_softmax(-1) + (1 - r) * u.clamp(min=TINY).log()).softmax(-1)
    return u


def proportions_of_group(logits: Tensor, u: Tensor, a: float, r: float, rho: float) -> Tensor:
    """(12) Three times, for the rows [n, K] of one group."""
    for _ in range(ROUNDS):
        counts = rho * u.sum(0)
        others = (counts - rho * u + a).clamp(min=TINY)
        others = others * (counts + a + 0.5) / (counts + a + 1)
        u = (logits + (1 - r) * others.log()).softmax(-1)
    return u


def mixture_posterior(evidence: Tensor) -> Tensor:
    """Chances [G, C] of the cases of each group, by their log evidence [G, C].

    The cases have the shares, the same for all groups, that make the groups most likely.
    """
    likely = (evidence - evidence.amax(-1, keepdim=True)).exp()
    shares = torch.full_like(likely[0], 1 / likely.shape[1])
    for _ in range(MIXTURE_STEPS):
        own = likely * shares
        shares = (own / own.sum(-1, keepdim=True)).mean(0).clamp(min=1e-100)
    own = likely * shares
    return own / own.sum(-1, keepdim=True)


def concentrations_by_pairs(probabilities: list[Tensor]) -> list[float]:
    """(13) a_g of each group from the probabilities [n, K] of its rows alone."""
    evidence = []
    for u in probabilities:
        n, K = u.shape
        together = K * u @ u.mT
        different = ~torch.eye(n, dtype=torch.bool)
        of_group = []
        for c in CHANCES:
            pairs = (1 - c + c * together).clamp(min=TINY).log()[different]
            of_group.append(float(pairs.sum()) / (2 * max(n - 1, 1)))
        evidence.append(of_group)
    posterior = mixture_posterior(torch.tensor(evidence, dtype=torch.float64))
    chances = posterior @ torch.tensor(CHANCES, dtype=torch.float64)
    K = probabilities[0].shape[1]
    return [(1 - c) / (c * K) for c in chances.clamp(LEAST, 1 - LEAST).tolist()]


def likeness_in_groups(known: Known, x: Tensor, members: list[Tensor], u: Tensor) -> float:
    """(14) r: how alike rows of a class are if they share their group, 0 as any, 1 copies."""
    prototypes, _ = known.model.prototypes(known.labelled)
    Q, K = u.shape
    same = torch.zeros(Q, Q, dtype=torch.bool)
    for rows in members:
        same[rows.unsqueeze(1), rows] = True
    different = ~torch.eye(Q, dtype=torch.bool)
    usual = 0.0
    products, weights = u.new_zeros(2), u.new_zeros(2)  # within groups, and across
    for k in range(K):
        away = x - prototypes[k]
        product = away @ known.metric @ away.mT
        weight = torch.outer(u[:, k], u[:, k])
        usual += float((u[:, k] * product.diagonal()).sum()) / Q
        for i, pairs in enumerate((same & different, ~same)):
            products[i] += (weight * product)[pairs].sum()
            weights[i] += weight[pairs].sum()
    if float(weights.min()) <= 1e-6:
        return 0.0
    within, across = (float(product) for product in products / weights)
    if usual - across <= 1e-9:
        return 0.0
    return min(max((within - across) / (usual - across), 0.0), 1.0)


def few_classes(
    logits: Tensor,
    u: Tensor,
    members: list[Tensor],
    concentrations: list[float],
    weights: list[float],
) -> Tensor:
    """(15) Averaged over what a group may hold: any proportions, or 1, 2, .. classes, equally many.

    u [Q, K] are the probabilities under any proportions; a row of a group weighs `weights`.
    """
    K = logits.shape[1]
    most = min(SET_CLASSES, K)
    likelihood = K * logits.softmax(-1)  # relative to all classes alike
    evidence = []
    sets_of_groups: list[list[tuple[list[int], float]]] = []
    for rows, a, weight in zip(members, concentrations, weights, strict=True):
        mass = u[rows].sum(0)
        likeliest = mass.argsort(descending=True, stable=True)[:most].tolist()
        sets: list[tuple[list[int], float]] = []
        of_sizes: list[list[float]] = [[] for _ in range(most + 1)]
        for size in range(1, most + 1):
            for chosen in itertools.combinations(likeliest, size):
                mean = likelihood[rows][:, list(chosen)].mean(-1).clamp(min=TINY)
                of_set = weight * float(mean.log().sum())
                sets.append((list(chosen), of_set))
                of_sizes[size].append(of_set)
        of_group = [
            float(torch.tensor(of_size).double().logsumexp(0)) - math.log(math.comb(K, size))
            for size, of_size in enumerate(of_sizes)
            if size > 0
        ]
        of_group.append(max(bound_of_group(likelihood[rows], mass, a, weight), 0.0))
        evidence.append(of_group)
        sets_of_groups.append(sets)

    chances = mixture_posterior(torch.tensor(evidence, dtype=torch.float64))
    mixed = torch.zeros_like(u)
    for rows, sets, chance in zip(members, sets_of_groups, chances, strict=True):
        mixed[rows] = chance[-1] * u[rows]
        for size in range(1, most + 1):
            sets_of_size = [one for one in sets if len(one[0]) == size]
            within = torch.tensor([of_set for _, of_set in sets_of_size]).double().softmax(0)
            for (classes, _), share in zip(sets_of_size, within, strict=True):
                restricted = torch.zeros_like(u[rows])
                restricted[:, classes] = likelihood[rows][:, classes]
                total = restricted.sum(-1, keepdim=True).clamp(min=TINY)
                mixed[rows] += chance[size - 1] * share * restricted / total
    return mixed / mixed.sum(-1, keepdim=True).clamp(min=TINY)


def bound_of_group(likelihood: Tensor, mass: Tensor, a: float, weight: float) -> float:
    """The bound of the evidence of any proportions; likelihoods [n, K], and sums [K] of u."""
    K = len(mass)
    counts = weight * mass
    total = float(counts.sum())
    dual = torch.digamma(counts + a) - torch.digamma(torch.tensor(total + K * a).double())
    bound = weight * float((likelihood.log() + dual).logsumexp(-1).sum())
    bound = bound - float((counts * dual).sum())
    bound = bound + math.lgamma(K * a) - math.lgamma(total + K * a)
    own = float(torch.lgamma(counts + a).sum())
    return bound + own - K * math.lgamma(a)
