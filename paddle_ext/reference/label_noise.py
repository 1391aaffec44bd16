"""Weigh labelled rows by the probability that their label is right: the specification.

Letters as in `adaptive`, and numbers in parentheses are equations of docs/adaptive.md. Row i has
the weight r_i in the mean of its class, in the full metric and in the calibration; e is the share
of wrong labels. A class of weights r counts as n = (sum r)^2 / sum r^2 rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .rule import (
    BISECTIONS,
    PRIOR_DEGREES,
    TINY,
    VARIANCE_INSIDE,
    Known,
    Labelled,
    LeftOut,
    Model,
    bias_of,
    calibrate,
    in_mixtures,
    squared,
)

ROUNDS = 4
SHARPER = 2.0  # wrong labels make the sharpness too small before rows are weighed
LEAST_WEIGHT = 1e-3  # of a row


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
    for _ in range(BISECTIONS):
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


def model_of(labelled: Weighted) -> Model:
    """(4)"""
    square = max(float(labelled.rows.square().sum(-1).mean()), TINY)
    judged = labelled.has_others
    seen = labelled.offsets[judged].square().sum(-1) / labelled.apart[judged]
    r = labelled.weights[judged]
    inside = float((r * seen).sum() / r.sum()) if judged.any() else 0.0

    degrees = labelled.degrees
    variance = degrees * inside + PRIOR_DEGREES * VARIANCE_INSIDE * square
    variance = variance / (degrees + PRIOR_DEGREES)
    share = min(max(variance / square, 0.02), 0.98)
    return Model(variance, share / (1 - share))


def full_metric(labelled: Weighted) -> tuple[Tensor, float]:
    """(3) The matrix A [D, D], and the ridge L."""
    offsets = labelled.offsets * labelled.weights.sqrt().unsqueeze(1)
    ridge = float(offsets.square().sum()) / max(labelled.degrees, LEAST_WEIGHT) + 1e-12
    identity = torch.eye(offsets.shape[1], dtype=offsets.dtype)
    return torch.linalg.inv(offsets.mT @ offsets / ridge + identity), ridge


def leave_rows_out(labelled: Weighted, model: Model) -> LeftOut:
    """(6) Every row without itself in its prototype and in A, by the definition."""
    A, ridge = full_metric(labelled)
    S = len(labelled.rows)
    plain, full, mass = (labelled.rows.new_zeros(S, labelled.num_classes) for _ in range(3))
    length_of_plain = length_of_full = 0.0
    for i, y in enumerate(labelled.labels.tolist()):
        rest = labelled.without(i)
        prototypes = model.prototypes(rest.means, rest.shots)
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
        plain[i] = squared(labelled.rows[i : i + 1], prototypes.rows)
        full[i] = squared(labelled.rows[i : i + 1], prototypes.rows, A_without)
        mass[i] = prototypes.mass

    length = max(length_of_full / max(length_of_plain, TINY), 1e-9)
    return LeftOut(in_mixtures(model, plain, full / length, mass), labelled.has_others, length)


# --- rounds ---------------------------------------------------------------------------------------


def weigh_labels(
    known: Known,
    labelled: Labelled,
    label_noise: float | str = "auto",
    metric: str = "auto",
    trusted: Tensor | None = None,
) -> Known:
    """What labelled rows determine if some labels are wrong; `known` if all are right.

    `known` is learned from the `labelled` rows as if all were right; the labels of `trusted` rows
    [S] are. The coordinates (1) and the feature weights (2) stay.
    """
    return rounds(known, labelled, label_noise, metric, trusted)[0]


def rounds(
    known: Known,
    labelled: Labelled,
    label_noise: float | str,
    metric: str,
    trusted: Tensor | None = None,
) -> tuple[Known, Tensor, float]:
    """Also the weights r [S], and e."""
    labels, K = labelled.labels, labelled.num_classes
    root = known.feature_weights.sqrt()
    doubted = labelled.has_others if trusted is None else labelled.has_others & ~trusted

    def chances(distances: Tensor, f: float) -> tuple[Tensor, float]:
        """r of each row, and e."""
        own = probabilities_of_labels(distances, f, labels)
        e = likeliest_rate(own[doubted], K) if label_noise == "auto" else float(label_noise)
        right = chances_right(own, e, K).clamp(min=LEAST_WEIGHT)
        return torch.where(doubted, right, 1.0), e

    distances = (known.bias - known.left_out) * (2 / known.sharpness)
    weights, e = chances(distances, SHARPER * known.sharpness)
    if e == 0:
        return known, weights, e

    for _ in range(ROUNDS):
        used = weights
        rows = Weighted(labelled.rows * root, labels, used, K)
        model = model_of(rows)
        left = leave_rows_out(rows, model)
        found = calibrate(left, labels, metric, used)
        f, distances = found.sharpness, left.distances[found.mixture]
        weights, e = chances(distances, f)

    A, _ = full_metric(rows)
    mixture = (1 - found.share) * torch.eye(len(root)).to(A) + found.share / left.length * A
    bias = bias_of(distances, left.judged, labels, f)
    weighed = replace(
        known,
        means=rows.means / root,
        counts=rows.shots,
        share=found.share,
        metric=root.unsqueeze(1) * mixture * root,
        model=model,
        sharpness=f,
        bias=bias,
        left_out=bias - f / 2 * distances,
    )
    return weighed, used, e
