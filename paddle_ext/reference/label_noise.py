"""Weigh labelled rows by the probability that their label is right: the specification.

Letters as in `adaptive`, and numbers in parentheses are equations of docs/adaptive.md. Row i has
the weight r_i in the mean of its class, in the full metric and in the calibration; e is the share
of wrong labels. A class of weights r counts as n = (sum r)^2 / sum r^2 rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SHARPNESS, SPREAD = 40.0, math.log(2.0)  # the median of f a priori, and the deviation of ln f
VARIANCE_INSIDE, PRIOR_DEGREES = 0.65, 10.0
DETERMINANT = 0.5  # part of the log-determinant of labelled rows
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the full metric
STANDARD_ERROR = 0.5  # of a log-likelihood, where it is one standard error below its maximum
ROUNDS = 4
SHARPER = 2.0  # wrong labels make the sharpness too small before rows are weighed
LEAST_WEIGHT = 1e-3  # of a row
TINY = 1e-30


# --- which labels are right -----------------------------------------------------------------------


def probabilities_of_labels(distances: Tensor, f: float, labels: Tensor) -> Tensor:
    """p_y of each row left out, before its label is known, [S]."""
    p = (-f / 2 * distances).softmax(-1)
    return p.gather(1, labels.unsqueeze(1)).squeeze(1)


def likeliest_rate(own: Tensor, K: int) -> float:
    """e that makes labels of these probabilities p_y [N] most likely, in 0 to 1 - 1/K."""
    change = (1 - own) / (K - 1) - own

    def slope(e: float) -> float:
        return float((change / (own + e * change).clamp(min=TINY)).sum())

    low, high = 0.0, 1 - 1 / K
    if slope(0.0) <= 0:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if slope(middle) > 0:
            low = middle
        else:
            high = middle
    return low


def chances_right(own: Tensor, e: float, K: int) -> Tensor:
    """r: by Bayes' rule, the chance that a label of probability p_y is right, [S]."""
    right, wrong = (1 - e) * own, e / (K - 1) * (1 - own)
    return right / (right + wrong).clamp(min=TINY)


# --- learning from weighted rows ------------------------------------------------------------------


@dataclass(frozen=True)
class Weighted:
    """Labelled rows times the root of the feature weights, which count by weights r."""

    rows: Tensor  # [S, D]
    labels: Tensor  # [S]
    weights: Tensor  # [S]
    num_classes: int

    @property
    def of_class(self) -> Tensor:
        """The weights in each class, [K, S]."""
        return self.weights * torch.nn.functional.one_hot(self.labels, self.num_classes).mT

    @property
    def shots(self) -> Tensor:
        """n_k: how many equal rows tell as much, [K]; 0 for a class without rows."""
        squares = self.of_class.square().sum(-1)
        return self.of_class.sum(-1).square() / squares.clamp(min=TINY)

    @property
    def means(self) -> Tensor:
        """w_k, [K, D]."""
        return self.of_class @ self.rows / self.of_class.sum(-1, keepdim=True).clamp(min=TINY)

    @property
    def offsets(self) -> Tensor:
        """o_i, [S, D]."""
        return self.rows - self.means[self.labels]

    @property
    def has_others(self) -> Tensor:
        """Which rows have others in their class, [S]."""
        return self.labels.bincount(minlength=self.num_classes)[self.labels] >= 2

    @property
    def apart(self) -> Tensor:
        """1 - r_i / sum r, the part of its class that a row with others leaves, [S]; else 0."""
        rest = 1 - self.weights / self.of_class.sum(-1)[self.labels]
        return rest * self.has_others

    @property
    def degrees(self) -> float:
        """nu: S - K if all weights are 1."""
        return float((self.weights * self.apart).sum())

    def without(self, i: int) -> Weighted:
        others = torch.arange(len(self.rows)) != i
        return Weighted(
            self.rows[others], self.labels[others], self.weights[others], self.num_classes
        )


@dataclass(frozen=True)
class Model:
    """(4)"""

    variance: float  # V
    prior_rows: float  # n0

    @classmethod
    def of(cls, labelled: Weighted) -> Model:
        square = max(float(labelled.rows.square().sum(-1).mean()), TINY)
        judged = labelled.has_others
        seen = labelled.offsets[judged].square().sum(-1) / labelled.apart[judged]
        r = labelled.weights[judged]
        inside = float((r * seen).sum() / r.sum()) if judged.any() else 0.0

        degrees = labelled.degrees
        variance = degrees * inside + PRIOR_DEGREES * VARIANCE_INSIDE * square
        variance = variance / (degrees + PRIOR_DEGREES)
        share = min(max(variance / square, 0.02), 0.98)
        return cls(variance, share / (1 - share))

    def prototypes(self, labelled: Weighted) -> tuple[Tensor, Tensor]:
        """Rows [K, D], and of how many rows each is the mean, [K]."""
        mass = labelled.shots + self.prior_rows
        return labelled.means * (labelled.shots / mass).unsqueeze(1), mass

    def distances(self, squares: Tensor, mass: Tensor) -> Tensor:
        """(5) before a batch is absorbed."""
        spread = 1 + 1 / mass
        return squares / spread + self.variance * DETERMINANT * spread.log()


def full_metric(labelled: Weighted) -> tuple[Tensor, float]:
    """(3) The matrix A [D, D], and the ridge L."""
    offsets = labelled.offsets * labelled.weights.sqrt().unsqueeze(1)
    ridge = float(offsets.square().sum()) / max(labelled.degrees, LEAST_WEIGHT) + 1e-12
    identity = torch.eye(offsets.shape[1], dtype=offsets.dtype)
    return torch.linalg.inv(offsets.mT @ offsets / ridge + identity), ridge


@dataclass(frozen=True)
class LeftOut:
    """(6) Rows as if they were new ones, in each of the mixtures."""

    distances: Tensor  # [T, S, K]
    length: float  # how long distances are in the full metric


def leave_rows_out(labelled: Weighted, model: Model) -> LeftOut:
    A, ridge = full_metric(labelled)
    identity = torch.eye(len(A), dtype=A.dtype)
    of_rows = []
    length_of_plain = length_of_full = 0.0
    for i, y in enumerate(labelled.labels.tolist()):
        rest = labelled.without(i)
        prototypes, mass = model.prototypes(rest)
        A_without = A
        if labelled.has_others[i]:
            # Without the row the scatter inside its class loses  r / (1 - r / sum r) o o'.
            r, offset = labelled.weights[i], labelled.offsets[i]
            cut = r / labelled.apart[i] / ridge
            along = A @ offset
            kept = (1 - cut * (offset @ along)).clamp(min=1e-3)
            A_without = A + cut / kept * torch.outer(along, along)

            of_others = labelled.rows[i] - rest.means[y]
            length_of_plain += float(r * (of_others @ of_others))
            length_of_full += float(r * (of_others @ A_without @ of_others))
        away = labelled.rows[i] - prototypes
        squares = [((away @ metric) * away).sum(-1) for metric in (identity, A_without)]
        of_rows.append((*squares, mass))

    plain, full, mass = (torch.stack(x) for x in zip(*of_rows, strict=True))
    length = max(length_of_full / max(length_of_plain, TINY), 1e-9)
    mixed = [torch.lerp(plain, full / length, t) for t in MIXTURES]
    return LeftOut(torch.stack([model.distances(squares, mass) for squares in mixed]), length)


# --- calibration ----------------------------------------------------------------------------------


def likeliest_sharpness(distances: Tensor, labels: Tensor, weights: Tensor) -> tuple[float, float]:
    """(7) f for rows that count by weights [N], and minus the logarithm of its posterior."""
    own = distances.gather(1, labels.unsqueeze(1)).squeeze(1)
    middle, precision = math.log(SHARPNESS), SPREAD**-2

    def slope(log_f: float) -> float:
        f = math.exp(log_f)
        mean = ((-f / 2 * distances).softmax(-1) * distances).sum(-1)
        return f / 2 * float(((own - mean) * weights).sum()) + (log_f - middle) * precision

    low, high = math.log(0.1), math.log(1e4)
    for _ in range(60):
        at = (low + high) / 2
        if slope(at) < 0:
            low = at
        else:
            high = at
    f = math.exp(at)
    entropy = (-f / 2 * distances).logsumexp(-1) + f / 2 * own
    return f, float((entropy * weights).sum()) + (at - middle) ** 2 * precision / 2


@dataclass(frozen=True)
class Calibration:
    sharpness: float
    mixture: int  # its number in MIXTURES
    bias: Tensor  # [K] of hubs
    distances: Tensor  # [S, K] of the rows left out


def calibrate(labelled: Weighted, left: LeftOut, mixtures: int) -> Calibration:
    """(7) and (8) with the first so many mixtures."""
    labels, judged = labelled.labels, labelled.has_others
    best, lowest, f = 0, math.inf, SHARPNESS
    for i in range(mixtures):
        at_rows = left.distances[i, judged], labels[judged], labelled.weights[judged]
        f_of_mixture, objective = likeliest_sharpness(*at_rows)
        if objective >= lowest + STANDARD_ERROR:
            break
        best, lowest, f = i, min(lowest, objective), f_of_mixture

    distances = left.distances[best].clone()
    member = torch.nn.functional.one_hot(labels, labelled.num_classes).bool()
    distances[member & ~judged.unsqueeze(1)] = math.inf
    attracted = (-f / 2 * distances).softmax(-1).masked_fill(member, 0).sum(0)
    usual = len(labels) / labelled.num_classes
    bias = -torch.log1p((attracted - attracted.mean()) / (usual + 1))
    return Calibration(f, best, bias, left.distances[best])


# --- rounds ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weighed:
    """What labelled rows determine if some labels are wrong."""

    rate: float  # e
    weights: Tensor  # [S] r
    prototypes: Tensor  # [K, D] in the coordinates
    shots: Tensor  # [K] n
    metric: Tensor  # [D, D] the mixture, for rows in the coordinates
    variance: float  # V
    prior_rows: float  # n0
    sharpness: float  # f
    bias: Tensor  # [K]
    logits: Tensor  # [S, K] of the rows left out


def weigh_labels(
    rows: Tensor,
    labels: Tensor,
    feature_weights: Tensor,
    distances: Tensor,
    sharpness: float,
    *,
    label_noise: float | str = "auto",
    metric: str = "auto",
    trusted: Tensor | None = None,
) -> Weighed | None:
    """Learn from rows [S, D] in the coordinates (1), with labels [S]; None if all labels are right.

    `feature_weights` [D] are those of (2), and stay; `distances` [S, K] and `sharpness` those of
    rows left out if all labels are trusted. Labels of `trusted` rows [S] are right.
    """
    K = distances.shape[1]
    root = feature_weights.sqrt()
    labelled = Weighted(rows * root, labels, rows.new_ones(len(rows)), K)
    doubted = labelled.has_others if trusted is None else labelled.has_others & ~trusted

    own = probabilities_of_labels(distances, SHARPER * sharpness, labels)
    for number in range(ROUNDS):
        e = likeliest_rate(own[doubted], K) if label_noise == "auto" else float(label_noise)
        if number == 0 and e == 0:
            return None
        right = chances_right(own, e, K).clamp(min=LEAST_WEIGHT)
        weights = torch.where(doubted, right, 1)
        labelled = Weighted(rows * root, labels, weights, K)
        model = Model.of(labelled)
        left = leave_rows_out(labelled, model)
        found = calibrate(labelled, left, 1 if metric == "diagonal" else len(MIXTURES))
        own = probabilities_of_labels(found.distances, found.sharpness, labels)

    A, _ = full_metric(labelled)
    t = MIXTURES[found.mixture]
    mixture = (1 - t) * torch.eye(len(root)).to(A) + t / left.length * A
    return Weighed(
        rate=e,
        weights=weights,
        prototypes=model.prototypes(labelled)[0] / root,
        shots=labelled.shots,
        metric=root.unsqueeze(1) * mixture * root,
        variance=model.variance,
        prior_rows=model.prior_rows,
        sharpness=found.sharpness,
        bias=found.bias,
        logits=found.bias - found.sharpness / 2 * found.distances,
    )
