"""Weigh labelled rows by the probability that their label is right: the specification.

Letters as in `adaptive`; e is the share of wrong labels. The equations are in docs/adaptive.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDS = 2
OCTAVES = [i / 2 for i in range(-4, 9)]  # of the sharpness, relative to the prior's
SHARPNESS, SPREAD = 16.0, math.log(2.0)
HALVINGS, LEAST, TINY, KEPT = 12, 1e-3, 1e-30, 1e-3


class Metric(NamedTuple):
    """The metric of the distances, and the part of it that is the full metric."""

    whole: Tensor  # [D, D]
    full: Tensor  # [D, D] t A / kappa; zeros without a full metric
    cut: float  # kappa / (t nu e): factor on n / (n - 1) in what a row adds to the covariance


class Noisy(NamedTuple):
    """Weighted class means, and what replaces the sharpness and the hubs."""

    rate: float
    means: Tensor  # [K, D]
    shots: Tensor  # [K] effective
    sharpness: float
    hubs: Tensor  # [K]


def distances(
    x: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor, metric: Metric
) -> Tensor:
    """Squared distances of each row to the weighted class means, left out of its own, [S, K].

    `offsets` [S, D] are those of the rows from the class means without weights.
    """
    K = int(labels.max()) + 1
    means, mass, squares = weighted_means(x, labels, weights, K)
    found = []
    for i, y in enumerate(labels.tolist()):
        n = float((labels == y).sum())
        along = metric.full @ offsets[i]
        cut = metric.cut * n / max(n - 1, 1.0)
        kept = max(1 - cut * float(offsets[i] @ along), KEPT)
        away = x[i] - means
        d = ((away @ metric.whole) * away).sum(-1) + cut / kept * (away @ along).square()
        w = weights[i]
        seen = (mass[y] - w).square() + (squares[y] - w.square()).clamp(min=0)
        if seen > 0:
            d[y] *= (mass[y].square() + squares[y]) / seen
        found.append(d)
    return torch.stack(found)


def weighted_means(
    x: Tensor, labels: Tensor, weights: Tensor, K: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted class means [K, D], and sums of the weights and of their squares, [K] each."""
    w = weights * torch.nn.functional.one_hot(labels, K).mT  # [K, S]
    mass = w.sum(-1)
    return w @ x / mass.unsqueeze(-1), mass, w.square().sum(-1)


def joint_probabilities(own: Tensor, e: float, K: int) -> tuple[Tensor, Tensor]:
    """The joint probabilities of a label and that it is right, and that it is wrong, [R] each."""
    return (1 - e) * own, e / (K - 1) * (1 - own)


def rate_of(own: Tensor, K: int) -> float:
    """The share of wrong labels that makes the labels most likely, by bisection."""
    low, high = 0.0, 1 - 1 / K
    difference = (1 - own) / (K - 1) - own
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        slope = (difference / (own + middle * difference).clamp(min=TINY)).sum()
        low, high = (middle, high) if slope > 0 else (low, middle)
    return low


def sharpness_of(d: Tensor, own: Tensor, rate: float | None) -> float:
    """The most likely sharpness: the top of a parabola through the best of several and its two
    neighbours.
    """
    K, fits = d.shape[1], []
    for octave in OCTAVES:
        f = SHARPNESS * 2**octave
        p = (-f / 2 * d).softmax(-1).gather(1, own.unsqueeze(1)).squeeze(1)
        right, wrong = joint_probabilities(p, rate_of(p, K) if rate is None else rate, K)
        fit = (right + wrong).clamp(min=TINY).log().sum()
        fits.append(float(fit) - (octave * math.log(2)) ** 2 / (2 * SPREAD**2))
    best = min(max(fits.index(max(fits)), 1), len(fits) - 2)
    low, middle, high = fits[best - 1 : best + 2]
    bend = low - 2 * middle + high
    beyond = min(max((low - high) / (2 * bend), -1.0), 1.0) if bend < 0 else 0.0
    return float(SHARPNESS * 2 ** (OCTAVES[best] + beyond / 2))


def weigh_labels(
    x: Tensor,
    labels: Tensor,
    offsets: Tensor,
    metric: Metric,
    judges: Tensor,
    label_noise: float | str,
    variance: float,
) -> Noisy | None:
    """Learn from rows [S, D] in the coordinates, some with wrong labels; None if all are right.

    `judges` [R] are the indices of the rows that determine the sharpness and the rate; `variance`
    is the mean squared distance of a row to the mean of its class.
    """
    S, K = len(x), int(labels.max()) + 1
    has_peers = labels.bincount()[labels] > 1
    judges = judges[has_peers[judges]]
    rate = None if label_noise == "auto" else float(label_noise)
    weights = x.new_ones(S)
    for step in range(ROUNDS + 1):
        _, mass, squares = weighted_means(x, labels, weights, K)
        d = distances(x, labels, offsets, weights, metric)
        d = d - variance * (squares / mass.square() - K / S)
        f = sharpness_of(d[judges], labels[judges], rate)
        p = (-f / 2 * d).softmax(-1)
        own = p.gather(1, labels.unsqueeze(1)).squeeze(1)
        e = rate_of(own[judges], K) if rate is None else rate
        if step == 0 and e == 0:
            return None
        right, wrong = joint_probabilities(own, e, K)
        right, wrong = (part / (right + wrong).clamp(min=TINY) for part in (right, wrong))
        if step < ROUNDS:
            weights = torch.where(has_peers, right.clamp(min=LEAST), 1.0)
    belongs = p * (wrong / (1 - own).clamp(min=TINY)).unsqueeze(1)
    belongs = belongs.scatter(1, labels.unsqueeze(1), right.unsqueeze(1))
    drawn = (p * (1 - belongs).clamp(min=0))[judges].sum(0)
    hubs = -torch.log1p((drawn - drawn.mean()) / (len(judges) / K + 1))
    means, mass, squares = weighted_means(x, labels, weights, K)
    return Noisy(e, means, mass.square() / squares, f, hubs)
