"""Weigh labelled rows by the probability that their label is right.

The model: a share e of the labels is wrong, all other classes being equally likely. With
p = softmax(-f/2 d) the probabilities of a labelled row left out of its class, its label y has the
probability

    (1 - e) p_y + e / (K - 1) (1 - p_y)

and the first term's share of that is the probability that the label is right. f and e are chosen to
make the labels most likely; without e, wrong labels would make f far too small. The class means are
then computed with these probabilities as weights, and the distances to them give f, e and the
weights again. Letters as in `likelihood`; see docs/adaptive.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..ops.adaptive import CENTRE, SPREAD
from ..rows import class_sums, evenly_spread, products
from .likelihood import (
    Likelihood,
    calibrated,
    calibration_count,
    column,
    learned,
    likelihood_of,
    masses,
    reweighted,
    take,
)

AUTO = "auto"
MOST_JUDGED = 2**26  # limit on labelled rows times classes; more would take too long
ROUNDS = 2  # of weights and means; more gain nothing
# Sharpnesses to try, in octaves relative to the prior's: the step, the first and the last.
OCTAVES, LOWEST, HIGHEST = 0.5, -2.0, 4.0
HALVINGS = 12  # of the interval that contains the rate
LEAST = 1e-3  # smallest weight of a row: less is lost in single precision
TINY = 1e-30
COVARIANCE_ROWS = 2**17  # more count as many in the full metric, as in csrc/common/likelihood.h
KEPT = 1e-3  # smallest share of the covariance that remains without a row


class WeighedLabels(NamedTuple):
    """What is learned from labelled rows if some labels may be wrong."""

    likelihood: Likelihood
    rate: Tensor  # [B] share of wrong labels; if 0, the likelihood trusts all labels
    weights: Tensor  # [B, S] the probability that the label is right, at least `LEAST`
    logits: Tensor  # [B, S, K] of each row, left out of its class


def check_label_noise(name: str, value: object) -> float | str:
    """Check that a value is a rate in [0, 1) or "auto", and return it."""
    if value == AUTO and isinstance(value, str):
        return AUTO
    if isinstance(value, str):
        raise check.ArgumentValueError(name, f"must be 'auto' or a number, got {value!r}")
    rate = check.real(name, value)
    if rate >= 1:
        raise check.ArgumentValueError(name, f"must be 'auto' or in [0, 1), got {value}")
    return rate


def noisy_likelihood(
    support: Tensor, labels: Tensor, num_classes: int, metric: str, label_noise: float | str
) -> Likelihood:
    """Like `likelihood_of`, for labels of which a share `label_noise` may be wrong."""
    if not models_noise(label_noise, labels.shape[-1], num_classes):
        return likelihood_of(support, labels, num_classes, metric)
    return weigh_labels(support, labels, num_classes, label_noise, metric).likelihood


def models_noise(label_noise: float | str, S: int, K: int) -> bool:
    """Whether wrong labels are to be modelled, and there are rows to learn about them from.

    Examples
    --------
    >>> models_noise("auto", 100, 20), models_noise("auto", 20, 20), models_noise(0.0, 100, 20)
    (True, False, False)
    """
    if label_noise == 0.0 or S == K or K == 1:
        return False
    if S * K <= MOST_JUDGED:
        return True
    if label_noise == AUTO:
        return False
    raise check.ArgumentValueError(
        "label_noise",
        f"must be 'auto' or 0 with more than {MOST_JUDGED} labelled rows times classes, "
        f"got {label_noise} with {S} times {K}",
    )


def weigh_labels(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    label_noise: float | str,
    metric: str = "auto",
    given: Tensor | None = None,
) -> WeighedLabels:
    """Estimate which labels are wrong, and learn the likelihood with rows weighed accordingly.

    Parameters
    ----------
    support, labels : Tensor [B, S, D], Tensor [B, S]
        More rows than classes.
    label_noise : float or "auto"
        The share of wrong labels, > 0, or "auto" to estimate it.
    given : Tensor [B, S], optional
        Further weights of the rows.
    """
    native = learned(support, labels, num_classes, metric, every=True)
    assert native.left_out is not None
    likelihood = calibrated(native, labels.shape[-1])
    has_peers = likelihood.shots.gather(1, labels) > 1
    judges = Judges.of(
        labels, has_peers, num_classes, None if label_noise == AUTO else float(label_noise)
    )
    found = judges.estimate(native.left_out - likelihood.excess().unsqueeze(-2))
    noisy = found.rate > 0
    weights = torch.ones_like(found.own)
    if not bool(noisy.any()):
        logits = left_out_logits(likelihood, native.left_out)
        return WeighedLabels(likelihood, found.rate, weights, logits)
    rows = LeaveOneOut.of(likelihood, support, labels)
    for _ in range(ROUNDS):
        rate = torch.where(noisy, found.rate, 0)
        right = right_and_wrong(found.own, rate, num_classes)[0].clamp(min=LEAST)
        weights = torch.where(has_peers, right, 1)
        total = weights if given is None else weights * given.to(weights.dtype)
        moved = reweighted(likelihood, rows.x, labels, total)
        d = rows.distances(likelihood, total) - moved.excess().unsqueeze(-2)
        found = judges.estimate(d)
    return weighed_labels(likelihood, moved, judges, found, noisy, weights, d)


def trusted_likelihood(
    support: Tensor, labels: Tensor, num_classes: int
) -> tuple[Likelihood, Tensor]:
    """The likelihood if all labels are right, and the logits of each row left out of its class."""
    native = learned(support, labels, num_classes, every=True)
    assert native.left_out is not None
    likelihood = calibrated(native, labels.shape[-1])
    return likelihood, left_out_logits(likelihood, native.left_out)


def left_out_logits(likelihood: Likelihood, distances: Tensor) -> Tensor:
    """Logits [B, S, K] from the squared distances [B, S, K] of rows left out of their classes."""
    half = likelihood.sharpness / 2
    hubs = torch.addcmul(likelihood.bias, likelihood.squares, half.unsqueeze(-1))
    return torch.addcmul(hubs.unsqueeze(-2), distances, column(half), value=-1)


def weighed_labels(
    likelihood: Likelihood,
    moved: Likelihood,
    judges: Judges,
    found: Estimate,
    noisy: Tensor,
    weights: Tensor,
    d: Tensor,
) -> WeighedLabels:
    """The likelihood `moved` to weighted rows, with the sharpness and hubs of `found`.

    Tasks that are not `noisy` keep their likelihood.
    """
    half = (likelihood.sharpness / 2).unsqueeze(-1)
    plain = likelihood.bias + (likelihood.squares - likelihood.excess()) * half
    hubs = torch.where(noisy.unsqueeze(-1), judges.hubs(found), plain)
    f = torch.where(noisy, found.sharpness, likelihood.sharpness)
    bias = hubs - (moved.squares - moved.excess()) * (f / 2).unsqueeze(-1)
    logits = hubs.unsqueeze(-2) - d * column(f / 2)
    rate = torch.where(noisy, found.rate, 0)
    return WeighedLabels(replace(moved, sharpness=f, bias=bias), rate, weights, logits)


class Estimate(NamedTuple):
    """What `Judges` estimate from the distances of left-out rows."""

    sharpness: Tensor  # [B]
    rate: Tensor  # [B] share of wrong labels
    p: Tensor  # [B, S, K] class probabilities of each row
    own: Tensor  # [B, S] the probability of its label


class Judges(NamedTuple):
    """The calibration rows, which give the sharpness and the share of wrong labels."""

    chosen: Tensor  # [R] int64 indices of the calibration rows
    labels: Tensor  # [B, S] of all rows
    counts: Tensor  # [B, R] False for the only row of its class, which cannot be left out
    rate: float | None  # the share of wrong labels, if it is given

    @classmethod
    def of(cls, labels: Tensor, has_peers: Tensor, K: int, rate: float | None) -> Judges:
        S = labels.shape[-1]
        chosen = evenly_spread(calibration_count(S, K, True), S, labels.device)
        return cls(chosen, labels, has_peers[:, chosen], rate)

    def estimate(self, d: Tensor) -> Estimate:
        """Estimate from the squared distances [B, S, K] of left-out rows, up to a row constant."""
        labels, counts, K = self.labels, self.counts.to(d.dtype), d.shape[-1]
        chosen = d[:, self.chosen]
        f = most_likely_sharpness(chosen, labels[:, self.chosen], counts, self.rate)
        p = (d * column(-f / 2)).softmax(-1)
        own = p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        if self.rate is None:
            return Estimate(f, most_likely_rate(own[:, self.chosen], counts, K), p, own)
        return Estimate(f, torch.full_like(f, self.rate), p, own)

    def hubs(self, found: Estimate) -> Tensor:
        """A bias [B, K] that is lower for classes that attract rows of other classes."""
        p, own = found.p[:, self.chosen], found.own[:, self.chosen]
        K, counts = p.shape[-1], self.counts.to(p.dtype)
        right, wrong = right_and_wrong(own, found.rate, K)
        # If the label is wrong, the row belongs to the other classes by their probabilities.
        belongs = p * (wrong / (1 - own).clamp(min=TINY)).unsqueeze(-1)
        labels = self.labels[:, self.chosen]
        belongs = belongs.scatter(-1, labels.unsqueeze(-1), right.unsqueeze(-1))
        drawn = (p * (1 - belongs).clamp(min=0) * counts.unsqueeze(-1)).sum(-2)
        rows = counts.sum(-1, keepdim=True)
        return -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (rows / K + 1))


class LeaveOneOut(NamedTuple):
    """Labelled rows, and what leaving one out of the covariance changes in its distances."""

    x: Tensor  # [B, S, D] in the coordinates
    labels: Tensor  # [B, S]
    squares: Tensor  # [B, S] squares of the rows in the metric
    along: Tensor  # [B, S, D] A v, with A the full metric and v the offset from the class mean
    share: Tensor  # [B, S] factor on ((x - mean) . along)^2, which is added to the distance

    @classmethod
    def of(cls, likelihood: Likelihood, support: Tensor, labels: Tensor) -> LeaveOneOut:
        x = likelihood.coordinates(support)
        squares = likelihood.squared(x)
        if likelihood.shares is None:
            return cls(x, labels, squares, x[..., :0], torch.zeros_like(squares))
        S, K, D = x.shape[1], likelihood.bias.shape[-1], x.shape[2]
        v = x - take(likelihood.prototypes, labels)
        weight, plain, projected = (likelihood.shares[:, i : i + 1] for i in range(3))
        full = plain - (1 - weight) if S < D else projected  # the factor on A
        g = likelihood.scale.unsqueeze(1)
        along = likelihood.in_metric(v) - (1 - weight.unsqueeze(-1)) * g * v
        rows = min(S - K, COVARIANCE_ROWS)
        length = (v.square() * g).sum((-2, -1)) / rows  # mean squared length of v
        n = likelihood.shots.gather(1, labels)
        cut = n / ((n - 1).clamp(min=1) * length.clamp(min=TINY).unsqueeze(-1))
        inverse = torch.where(full > 0, 1 / full.clamp(min=TINY), 0)
        kept = (1 - cut * inverse * (along * v).sum(-1)).clamp(min=KEPT)
        return cls(x, labels, squares, along, inverse * cut / kept)

    def distances(self, likelihood: Likelihood, weights: Tensor) -> Tensor:
        """Squared distances to the weighted class means, each row left out of its own, [B, S, K].

        The distance to its own class is scaled to that of a new row on average.
        """
        x, labels, K = self.x, self.labels, likelihood.bias.shape[-1]
        mass, squared_mass = masses(labels, K, weights)
        means = class_sums(x, labels, K, weights)[0] / mass.unsqueeze(-1)
        d = self.squares.unsqueeze(-1) - 2 * products(x, likelihood.in_metric(means))
        d = (d + likelihood.squared(means).unsqueeze(-2)).clamp(min=0)
        # The distance to its own class is computed directly: above, cancellation may spoil it.
        own = likelihood.squared(x - take(means, labels)).clamp(min=0)
        d = d.scatter(-1, labels.unsqueeze(-1), own.unsqueeze(-1))
        if likelihood.shares is not None:
            along = (self.along * x).sum(-1, keepdim=True) - products(self.along, means)
            d = d + self.share.unsqueeze(-1) * along.square()
        n, n2 = mass.gather(1, labels), squared_mass.gather(1, labels)
        new = n.square() + n2
        seen = (n - weights).square() + (n2 - weights.square()).clamp(min=0)
        farther = torch.where(seen > 0, new / seen.clamp(min=TINY), 1)
        ones = torch.ones_like(d)
        return d * ones.scatter_(-1, labels.unsqueeze(-1), farther.unsqueeze(-1))


def most_likely_sharpness(d: Tensor, own: Tensor, counts: Tensor, rate: float | None) -> Tensor:
    """The sharpness that makes the labels most likely, at the given rate or the best one, [B].

    Tries some sharpnesses, and takes the top of a parabola through the best and its neighbours.
    """
    K = d.shape[-1]
    gaps = d - d.gather(-1, own.unsqueeze(-1))
    octaves = torch.arange(LOWEST, HIGHEST + OCTAVES, OCTAVES, dtype=d.dtype, device=d.device)
    tried = CENTRE * 2.0**octaves
    p = torch.stack([(gaps * (-f / 2)).logsumexp(-1) for f in tried]).neg_().exp_()
    e = (
        p.new_full(p.shape[:-1], rate or 0.0)
        if rate is not None
        else most_likely_rate(p, counts, K)
    )
    right, wrong = joint_probabilities(p, e, K)
    fit = ((right + wrong).clamp(min=TINY).log() * counts).sum(-1)
    fit = fit - (octaves * math.log(2)).square().div(2 * SPREAD**2).unsqueeze(-1)
    best = fit.argmax(0).clamp(1, len(octaves) - 2)
    low, middle, high = (fit.gather(0, (best + i).unsqueeze(0))[0] for i in (-1, 0, 1))
    bend = low - 2 * middle + high
    beyond = torch.where(bend < 0, (low - high) / (2 * bend), 0).clamp(-1, 1)
    return CENTRE * 2.0 ** (octaves[best] + OCTAVES * beyond)


def joint_probabilities(own: Tensor, rate: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The joint probabilities of a label and that it is right, and that it is wrong, [.., R] each.

    `own` [.., R] are the probabilities of the labelled classes.
    """
    e = rate.unsqueeze(-1)
    return (1 - e) * own, e * (1 - own) / (K - 1)


def right_and_wrong(own: Tensor, rate: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The probabilities that a label is right, and that it is wrong, [.., R] each."""
    right, wrong = joint_probabilities(own, rate, K)
    total = (right + wrong).clamp(min=TINY)
    return right / total, wrong / total


def most_likely_rate(own: Tensor, counts: Tensor, K: int) -> Tensor:
    """The most likely share of wrong labels [..], from the probabilities `own` [.., R] of labels.

    The log-likelihood is concave in the share, so the zero of its slope is found by bisection.
    """
    difference = (1 - own) / (K - 1) - own
    low = own.new_zeros(own.shape[:-1])
    high = torch.full_like(low, 1 - 1 / K)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        likely = own + middle.unsqueeze(-1) * difference
        rising = (difference / likely.clamp(min=TINY) * counts).sum(-1) > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return low
