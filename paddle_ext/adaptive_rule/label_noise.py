"""Weigh labelled rows by the probability that their label is right.

The model: a share e of the labels is wrong, all other classes being equally likely. With
p = softmax(-f/2 d) the probabilities of a labelled row left out of its class, its label y has the
probability

    (1 - e) p_y + e / (K - 1) (1 - p_y)

and the first term's share of that is the probability that the label is right. f and e are chosen to
make the labels most likely; without e, wrong labels would make f far too small. The class means and
the full metric are then computed with these probabilities as weights, and the distances give f, e,
the share of the full metric and the weights again. Letters as in `likelihood`; see
docs/adaptive.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import check
from ..native.coordinates import as_split
from ..native.load import module as native
from ..rows import evenly_spread, products
from .learn import PRIOR_SHARPNESS, SHARPNESS_SPREAD, calibration_count, learned, likelihood_of
from .likelihood import Likelihood, column, reweighted, weighted_means

AUTO = "auto"
# Limit on labelled rows times classes, if each row is left out in turn; more would take too long.
MOST_LEFT_OUT = 2**26
ROUNDS = 2  # of weights, means and metric; more gain nothing
# Sharpnesses to try, in octaves relative to the prior's: the step, the first and the last.
OCTAVES, LOWEST, HIGHEST = 0.5, -2.0, 4.0
HALVINGS = 12  # of the interval that contains the rate
LEAST_WEIGHT = 1e-3  # of a row: less is lost in single precision
LEAST_REMAINDER = 1e-3  # smallest share of the covariance that remains without a row
SMALLEST = 1e-30  # what is divided by, or a logarithm is taken of, is at least this


class WeighedLabels(NamedTuple):
    """What is learned from labelled rows if some labels may be wrong."""

    likelihood: Likelihood
    rate: Tensor  # [B] share of wrong labels; if 0, the likelihood trusts all labels
    weights: Tensor  # [B, S] the probability that the label is right, at least `LEAST_WEIGHT`
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
    # Labels may be unchecked, and here they are indices: one out of range is the nearest class.
    labels = labels.clamp(0, num_classes - 1)
    return weigh_labels(support, labels, num_classes, label_noise, metric).likelihood


def models_noise(label_noise: float | str, S: int, K: int) -> bool:
    """Whether wrong labels are to be modelled, and there are rows to learn about them from."""
    if label_noise == 0.0 or S == K or K == 1:
        return False
    if S * K <= MOST_LEFT_OUT:
        return True
    if label_noise == AUTO:
        return False
    raise check.ArgumentValueError(
        "label_noise",
        f"must be 'auto' or 0 with more than {MOST_LEFT_OUT} labelled rows times classes, "
        f"got {label_noise} with {S} times {K}",
    )


def weigh_labels(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    label_noise: float | str,
    metric: str = "auto",
    given: Tensor | None = None,  # [B, S] further weights of the rows
    trusted: Tensor | None = None,  # [B, S] whether the label is right
) -> WeighedLabels:
    """Estimate which labels are wrong, and learn from rows [B, S, D] weighed accordingly."""
    likelihood, distances = learned(support, labels, num_classes, metric, left_out=True)
    assert distances is not None
    has_peers = likelihood.shots.gather(1, labels) > 1
    given_rate = None if label_noise == AUTO else float(label_noise)
    doubted = torch.ones_like(has_peers) if trusted is None else ~trusted
    rows = CalibrationRows.of(labels, has_peers, doubted, num_classes, given_rate)
    estimate = rows.estimate(distances - likelihood.excess().unsqueeze(-2))
    noisy = estimate.rate > 0
    weights = torch.ones_like(estimate.own)
    logits = left_out_logits(likelihood, distances)
    if not bool(noisy.any()):
        return WeighedLabels(likelihood, estimate.rate, weights, logits)
    x = likelihood.centred(support)
    for _ in range(ROUNDS):
        rate = torch.where(noisy, estimate.rate, 0)
        right = right_and_wrong(estimate.own, rate, doubted, num_classes)[0]
        right = right.clamp(min=LEAST_WEIGHT)
        weights = torch.where(has_peers & doubted, right, 1)
        total = weights if given is None else weights * given.to(weights.dtype)
        weighted = WeightedRows.of(likelihood, x, labels, weights)
        moved, estimate = rows.estimate_weighted(weighted, total)
    hubs, half = rows.hubs(estimate), estimate.sharpness / 2
    bias = hubs - (moved.squares - moved.excess()) * half.unsqueeze(-1)
    moved = replace(moved, sharpness=estimate.sharpness, bias=bias)
    noisy_logits = hubs.unsqueeze(-2) - estimate.distances * column(half)
    tensors: Any = {
        name: torch.where(noisy.view(-1, *[1] * (x.dim() - 1)), getattr(moved, name), x)
        for name, x in likelihood.tensors().items()
    }
    return WeighedLabels(
        replace(likelihood, **tensors),
        torch.where(noisy, estimate.rate, 0),
        weights,
        torch.where(column(noisy), noisy_logits, logits),
    )


def left_out_logits(likelihood: Likelihood, distances: Tensor) -> Tensor:
    """Logits [B, S, K] from the squared distances [B, S, K] of rows left out of their classes."""
    half = likelihood.sharpness / 2
    hubs = torch.addcmul(likelihood.bias, likelihood.squares, half.unsqueeze(-1))
    return torch.addcmul(hubs.unsqueeze(-2), distances, column(half), value=-1)


class WeightedRows(NamedTuple):
    """Labelled rows with weights, each left out of its class and of the full metric.

    v is the offset of a row from the weighted mean of its class, r its weight; A = (sum_i r_i v_i
    v_i^T / L + 1)^-1 is the full metric, L the mean of r ||v||^2.
    """

    x: Tensor  # [B, S, D] centred
    labels: Tensor  # [B, S]
    weights: Tensor  # [B, S] of the rows in the full metric, between `LEAST_WEIGHT` and 1
    plain: Likelihood  # with the metric of the feature scale alone
    full: Likelihood | None  # with the full metric alone, if there is one
    along: Tensor  # [B, S, D] A v
    share: Tensor  # [B, S] factor on ((x - mean) . along)^2, which is added to the distance

    @classmethod
    def of(cls, likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor) -> WeightedRows:
        plain = replace(likelihood, factor=None, solved=None, shares=None)
        if likelihood.factor is None:
            return cls(x, labels, weights, plain, None, x, weights)
        full, cut = full_metric(likelihood, x, labels, weights)
        v = x - torch.take_along_dim(full.prototypes, labels.unsqueeze(-1), 1)
        along = full.in_metric(v)
        remainder = (1 - cut * (along * v).sum(-1)).clamp(min=LEAST_REMAINDER)
        return cls(x, labels, weights, plain, full, along, cut / remainder)

    def distances(self, metric: Likelihood, weights: Tensor) -> Tensor:
        """Squared distances to weighted class means, each row left out of its own, [B, S, K]."""
        x, labels, K = self.x, self.labels, metric.shots.shape[-1]
        means, mass, squared_mass = weighted_means(x, labels, K, weights)
        d = metric.squared(x).unsqueeze(-1) - 2 * products(x, metric.in_metric(means))
        d = (d + metric.squared(means).unsqueeze(-2)).clamp(min=0)
        # The distance to its own class is computed directly: above, cancellation may spoil it.
        own = metric.squared(x - torch.take_along_dim(means, labels.unsqueeze(-1), 1)).clamp(min=0)
        d = d.scatter(-1, labels.unsqueeze(-1), own.unsqueeze(-1))
        if metric is self.full:
            along = (self.along * x).sum(-1, keepdim=True) - products(self.along, means)
            d = d + self.share.unsqueeze(-1) * along.square()
        # The distance to its own class, scaled to that of a new row on average.
        n, n2 = mass.gather(1, labels), squared_mass.gather(1, labels)
        new = n.square() + n2
        seen = (n - weights).square() + (n2 - weights.square()).clamp(min=0)
        farther = torch.where(seen > 0, new / seen.clamp(min=SMALLEST), 1)
        ones = torch.ones_like(d)
        return d * ones.scatter_(-1, labels.unsqueeze(-1), farther.unsqueeze(-1))


def full_metric(
    likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor
) -> tuple[Likelihood, Tensor]:
    """The likelihood with the full metric of weighted rows alone, and its prototypes.

    Also returns [B, S]: A^-1 without a row is smaller by this times v v^T. The form of the metric
    is that of csrc/common/likelihood.h, for offsets times the roots of the weights.
    """
    (_, S, D), K = x.shape, likelihood.shots.shape[-1]
    means, mass, squared_mass = weighted_means(x, labels, K, weights)
    v = x - torch.take_along_dim(means, labels.unsqueeze(-1), 1)
    v = v * likelihood.scale.sqrt().unsqueeze(1) * weights.sqrt().unsqueeze(-1)
    rows = (mass - squared_mass / mass).sum(-1).clamp(min=LEAST_WEIGHT, max=native.COVARIANCE_ROWS)
    length = v.square().sum((-2, -1)) / rows + rows * native.NO_SCATTER
    gram = (products(v, v) if S < D else v.mT @ v) / column(length)
    pad = -gram.shape[-1] % native.FACTOR_BLOCK
    gram = torch.nn.functional.pad(gram, (0, pad, 0, pad))
    # With features that are not finite, and not checked, there is neither; no error, no waiting.
    factor = torch.linalg.cholesky_ex(gram + torch.eye(gram.shape[-1]).to(gram)).L
    for start in range(0, gram.shape[-1], native.FACTOR_BLOCK):
        here = slice(start, start + native.FACTOR_BLOCK)
        factor[:, here, here] = torch.linalg.inv_ex(factor[:, here, here]).inverse.tril()
    one = torch.ones_like(length)
    shares = torch.stack([one, one, -1 / length] if S < D else [one, 0 * one, one], -1)
    scaled = likelihood.scaled
    if S < D:
        scaled = torch.cat([as_split(v), scaled[:, -K:]], 1)
    full = replace(
        likelihood, prototypes=means, scaled=scaled, factor=as_split(factor), shares=shares
    )
    own = mass.gather(1, labels)
    return full, weights * own / ((own - weights).clamp(min=LEAST_WEIGHT) * length.unsqueeze(-1))


class Estimate(NamedTuple):
    """What `CalibrationRows` estimate from the distances of left-out rows."""

    sharpness: Tensor  # [B]
    rate: Tensor  # [B] share of wrong labels
    share: Tensor  # [B] of the full metric
    distances: Tensor  # [B, S, K] squared
    p: Tensor  # [B, S, K] class probabilities of each row
    own: Tensor  # [B, S] the probability of its label


class CalibrationRows(NamedTuple):
    """The labelled rows that give the sharpness and the share of wrong labels."""

    chosen: Tensor  # [R] int64 their indices
    labels: Tensor  # [B, S] of all rows
    counts: Tensor  # [B, R] False for the only row of its class, which cannot be left out
    doubted: Tensor  # [B, R] whether the label may be wrong
    rate: float | None  # the share of wrong labels, if it is given

    @classmethod
    def of(
        cls, labels: Tensor, has_peers: Tensor, doubted: Tensor, K: int, rate: float | None
    ) -> CalibrationRows:
        S = labels.shape[-1]
        chosen = evenly_spread(calibration_count(S, K, True), S, labels.device)
        return cls(chosen, labels, has_peers[:, chosen], doubted[:, chosen], rate)

    def estimate_weighted(self, rows: WeightedRows, weights: Tensor) -> tuple[Likelihood, Estimate]:
        """Estimate with weights [B, S] in class means, and the likelihood with these means."""
        moved = reweighted(rows.plain, rows.x, rows.labels, weights)
        excess = moved.excess().unsqueeze(-2)
        plain = rows.distances(rows.plain, weights)
        if rows.full is None:
            return moved, self.estimate(plain - excess)
        full = rows.distances(rows.full, weights)
        longer = self.length(plain, rows.weights) / self.length(full, rows.weights)
        estimate = self.estimate(plain - excess, full * column(longer) - excess)
        assert rows.full.shares is not None
        t = estimate.share
        parts = rows.full.shares[:, 1:] * (t * longer).unsqueeze(-1)
        mixed = replace(rows.full, shares=torch.stack([t, 1 - t + parts[:, 0], parts[:, 1]], -1))
        return reweighted(mixed, rows.x, rows.labels, weights), estimate

    def length(self, d: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum [B] of the distances [B, S, K] of these rows to their own classes."""
        own = d.gather(-1, self.labels.unsqueeze(-1)).squeeze(-1) * weights
        return (own[:, self.chosen] * self.counts).sum(-1) + SMALLEST

    def estimate(self, plain: Tensor, full: Tensor | None = None) -> Estimate:
        """Estimate from squared distances [B, S, K] of left-out rows, in one metric or both."""
        counts, own = self.counts.to(plain.dtype), self.labels[:, self.chosen]
        near, others = plain[:, self.chosen], (own, counts, self.doubted, self.rate)
        f, best = most_likely_sharpness(near, *others)
        share, growing, d = torch.zeros_like(f), torch.ones_like(f, dtype=torch.bool), plain
        if full is not None:
            for t in torch.linspace(0, 1, native.MIXTURE_STEPS + 1)[1:].tolist():
                mixed = torch.lerp(near, full[:, self.chosen], t)
                sharpness, fit = most_likely_sharpness(mixed, *others)
                growing = growing & (fit > best - native.STANDARD_ERROR)
                best = torch.where(growing, torch.maximum(best, fit), best)
                f, share = torch.where(growing, sharpness, f), torch.where(growing, t, share)
            d = torch.lerp(plain, full, column(share))
        p = (d * column(-f / 2)).softmax(-1)
        right = p.gather(-1, self.labels.unsqueeze(-1)).squeeze(-1)
        if self.rate is None:
            e = most_likely_rate(right[:, self.chosen], counts * self.doubted, d.shape[-1])
        else:
            e = torch.full_like(f, self.rate)
        return Estimate(f, e, share, d, p, right)

    def hubs(self, estimate: Estimate) -> Tensor:
        """A bias [B, K] that is lower for classes that attract rows of other classes."""
        p, own = estimate.p[:, self.chosen], estimate.own[:, self.chosen]
        K, counts = p.shape[-1], self.counts.to(p.dtype)
        right, wrong = right_and_wrong(own, estimate.rate, self.doubted, K)
        # If the label is wrong, the row belongs to the other classes by their probabilities.
        belongs = p * (wrong / (1 - own).clamp(min=SMALLEST)).unsqueeze(-1)
        labels = self.labels[:, self.chosen]
        belongs = belongs.scatter(-1, labels.unsqueeze(-1), right.unsqueeze(-1))
        drawn = (p * (1 - belongs).clamp(min=0) * counts.unsqueeze(-1)).sum(-2)
        rows = counts.sum(-1, keepdim=True)
        return -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (rows / K + 1))


def most_likely_sharpness(
    d: Tensor, own: Tensor, counts: Tensor, doubted: Tensor, rate: float | None
) -> tuple[Tensor, Tensor]:
    """The sharpness that makes the labels most likely, and their log-likelihood, [B] each."""
    K = d.shape[-1]
    gaps = d - d.gather(-1, own.unsqueeze(-1))
    octaves = torch.arange(LOWEST, HIGHEST + OCTAVES, OCTAVES, dtype=d.dtype, device=d.device)
    tried = PRIOR_SHARPNESS * 2.0**octaves
    p = torch.stack([(gaps * (-f / 2)).logsumexp(-1) for f in tried]).neg_().exp_()
    given = p.new_full(p.shape[:-1], rate or 0)
    e = most_likely_rate(p, counts * doubted, K) if rate is None else given
    right, wrong = joint_probabilities(p, e, doubted, K)
    fit = ((right + wrong).clamp(min=SMALLEST).log() * counts).sum(-1)
    fit = fit - (octaves * math.log(2)).square().div(2 * SHARPNESS_SPREAD**2).unsqueeze(-1)
    # The top of a parabola through the best and its neighbours.
    best = fit.argmax(0).clamp(1, len(octaves) - 2)
    low, middle, high = (fit.gather(0, (best + i).unsqueeze(0))[0] for i in (-1, 0, 1))
    bend = low - 2 * middle + high
    beyond = torch.where(bend < 0, (low - high) / (2 * bend), 0).clamp(-1, 1)
    f = PRIOR_SHARPNESS * 2.0 ** (octaves[best] + OCTAVES * beyond)
    return f, middle - (low - high) * beyond / 4


def joint_probabilities(
    own: Tensor, rate: Tensor, doubted: Tensor, K: int
) -> tuple[Tensor, Tensor]:
    """The probabilities that a label is given and right, and given and wrong, [.., R] each."""
    e = rate.unsqueeze(-1) * doubted
    return (1 - e) * own, e * (1 - own) / (K - 1)


def right_and_wrong(own: Tensor, rate: Tensor, doubted: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The probabilities that a label is right, and that it is wrong, [.., R] each."""
    right, wrong = joint_probabilities(own, rate, doubted, K)
    total = (right + wrong).clamp(min=SMALLEST)
    return right / total, wrong / total


def most_likely_rate(own: Tensor, counts: Tensor, K: int) -> Tensor:
    """The most likely share of wrong labels [..]; its likelihood is concave, so by bisection."""
    difference = (1 - own) / (K - 1) - own
    low = own.new_zeros(own.shape[:-1])
    high = torch.full_like(low, 1 - 1 / K)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        likely = own + middle.unsqueeze(-1) * difference
        rising = (difference / likely.clamp(min=SMALLEST) * counts).sum(-1) > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return low
