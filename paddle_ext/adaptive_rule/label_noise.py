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
from ..rows import evenly_spread, parts, products
from .learn import PRIOR_SHARPNESS, SHARPNESS_SPREAD, calibration_count, learned, likelihood_of
from .likelihood import Likelihood, column, reweighted, weighted_means

AUTO = "auto"
# Limit on labelled rows times classes, if each row is left out in turn; more would take too long.
MOST_LEFT_OUT = 2**26
ROUNDS = 2  # of weights, means and metric; more gain nothing
# Sharpnesses to try, in octaves relative to the prior's: the step, the first and the last.
OCTAVES, LOWEST, HIGHEST = 0.5, -2.0, 4.0
SECTIONS, CUTS = 8, 4  # of the interval that contains the rate, and how often it is cut into them
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
    given: Tensor | None = None,
    trusted: Tensor | None = None,
) -> WeighedLabels:
    """Estimate which labels are wrong, and learn the likelihood with rows weighed accordingly.

    There must be more rows [B, S, D] than classes. The share of wrong labels is > 0, or "auto";
    `given` [B, S] are further weights of the rows. The labels of `trusted` rows [B, S] are right.
    """
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
        shares, estimate = rows.estimate_weighted(weighted, total)
    moved = reweighted(weighted.metric(shares), x, labels, total)
    hubs, half = rows.hubs(estimate), estimate.sharpness / 2
    bias = hubs - (moved.squares - moved.excess()) * half.unsqueeze(-1)
    moved = replace(moved, sharpness=estimate.sharpness, bias=bias)
    noisy_logits = hubs.unsqueeze(-2) - estimate.distances * column(half)
    tensors: Any = {
        name: torch.where(like(noisy, x), getattr(moved, name), x)
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


class Inner(NamedTuple):
    """Inner products of rows x and class means w, in one metric or a part of it.

    w0 are the means of the full metric, equal to w unless rows have further weights.
    """

    rows: Tensor  # [B, S] x.x
    means: Tensor  # [B, K] w.w
    cross: Tensor  # [B, S, K] x.w
    own: Tensor  # [B, S] the square of x minus its own w, from the difference: nothing cancels
    start: Tensor  # [B, S] x with its own w0
    between: Tensor  # [B, S, K] its own w0 with w
    offset: Tensor  # [B, S] the square of x minus its own w0

    @classmethod
    def of(cls, labels: Tensor, x: Tensor, w: Tensor, w0: Tensor | None = None) -> Inner:
        cross, own = products(x, w), of_class(w, labels)
        start, v = own if w0 is None else of_class(w0, labels), (x - own).square().sum(-1)
        v0 = v if w0 is None else (x - start).square().sum(-1)
        between = of_class(products(w if w0 is None else w0, w), labels)
        rows, means = x.square().sum(-1), w.square().sum(-1)
        return cls(rows, means, cross, v, (x * start).sum(-1), between, v0)

    def distances(self, labels: Tensor) -> Tensor:
        """Squared distances of rows and means, [B, S, K]."""
        d = self.rows.unsqueeze(-1) - 2 * self.cross + self.means.unsqueeze(-2)
        return d.clamp(min=0).scatter(-1, labels.unsqueeze(-1), self.own.unsqueeze(-1))


def like(x: Tensor, y: Tensor) -> Tensor:
    """One number per task [B], shaped to multiply y [B, ..]."""
    return x.view(-1, *[1] * (y.dim() - 1))


def of_class(x: Tensor, labels: Tensor) -> Tensor:
    """The row of x [B, K, E] of each label [B, S], [B, S, E]."""
    B, K, E = x.shape
    first = torch.arange(0, B * K, K, device=labels.device).unsqueeze(-1)
    return x.reshape(-1, E).index_select(0, (labels + first).flatten()).view(B, -1, E)


class WeightedRows(NamedTuple):
    """Labelled rows with weights, each left out of its class and of the full metric.

    v is the scaled offset of a row from the weighted mean of its class, r its weight; A = (sum_i
    r_i v_i v_i^T / L + 1)^-1 is the full metric, L the mean of r ||v||^2. Its form is that of
    csrc/common/adaptive.h, for offsets times the roots of the weights.
    """

    x: Tensor  # [B, S, D] centred
    labels: Tensor  # [B, S]
    weights: Tensor  # [B, S] of the rows in the full metric, between `LEAST_WEIGHT` and 1
    plain: Likelihood  # with the metric of the feature scale alone
    sums: tuple[Tensor, Tensor, Tensor]  # `weighted_means` of these weights
    offsets: Tensor  # [B, S, D] v times the root of r
    length: Tensor  # [B] L
    factor: Tensor | None  # [B, M, M] of the full metric, if there is one

    @classmethod
    def of(cls, likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor) -> WeightedRows:
        (_, S, D), K = x.shape, likelihood.shots.shape[-1]
        plain = replace(likelihood, factor=None, solved=None, shares=None)
        means, mass, squared = sums = weighted_means(x, labels, K, weights)
        if likelihood.factor is None:
            return cls(x, labels, weights, plain, sums, x, mass[:, 0], None)
        v = (x - of_class(means, labels)) * likelihood.scale.sqrt().unsqueeze(1)
        v = v * weights.sqrt().unsqueeze(-1)
        rows = (mass - squared / mass).sum(-1).clamp(min=LEAST_WEIGHT, max=native.COVARIANCE_ROWS)
        length = v.square().sum((-2, -1)) / rows + rows * native.NO_SCATTER
        gram = (products(v, v) if S < D else v.mT @ v) / column(length)
        gram.diagonal(dim1=-2, dim2=-1).add_(1)
        # With features that are not finite, and not checked, there is none; no error, no waiting.
        factor = torch.linalg.cholesky_ex(gram).L
        return cls(x, labels, weights, plain, sums, v, length, factor)

    @property
    def shares(self) -> Tensor:
        """Those of a likelihood with the full metric alone, [B, 3]."""
        one, (_, S, D) = torch.ones_like(self.length), self.x.shape
        return torch.stack([one, one, -1 / self.length] if S < D else [one, 0 * one, one], -1)

    def solved(self, y: Tensor) -> Tensor:
        """Z of scaled rows [B, N, D], [B, N, M]."""
        assert self.factor is not None
        _, S, D = self.x.shape
        right = products(self.offsets, y) if S < D else y.mT
        found: Tensor = torch.linalg.solve_triangular(self.factor, right, upper=False)
        return found.mT

    def metric(self, shares: Tensor) -> Likelihood:
        """A likelihood with the metric of these shares, [B, 3]."""
        if self.factor is None:
            return self.plain
        (_, S, D), K, block = self.x.shape, self.plain.shots.shape[-1], native.FACTOR_BLOCK
        M = self.factor.shape[-1]
        factor = torch.nn.functional.pad(self.factor, (0, -M % block, 0, -M % block))
        factor.diagonal(dim1=-2, dim2=-1)[:, M:] = 1
        for start in range(0, M, block):
            here = slice(start, start + block)
            factor[:, here, here] = torch.linalg.inv_ex(factor[:, here, here]).inverse.tril()
        scaled = self.plain.scaled[:, -K:]
        if S < D:
            scaled = torch.cat([as_split(self.offsets), scaled], 1)
        return replace(self.plain, scaled=scaled, factor=as_split(factor), shares=shares)

    def distances(self, weights: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Squared distances to the weighted class means, each row left out of its own, [B, S, K].

        In the feature scale, and in the full metric if there is one; `weights` [B, S] are those in
        the means. The distance to its own class is scaled to that of a new row on average. Also
        returns the excess of the distances, [B, 1, K].
        """
        x, labels, K = self.x, self.labels, self.plain.shots.shape[-1]
        same = weights is self.weights
        means, mass, squared = self.sums if same else weighted_means(x, labels, K, weights)
        moved = replace(self.plain, shots=(mass.square() / squared).to(means.dtype))
        n, n2 = mass.gather(1, labels), squared.gather(1, labels)
        seen = (n - weights).square() + (n2 - weights.square()).clamp(min=0)
        farther = torch.where(seen > 0, (n.square() + n2) / seen.clamp(min=SMALLEST), 1)
        ones = torch.ones(*labels.shape, K, dtype=means.dtype, device=means.device)
        farther = ones.scatter_(-1, labels.unsqueeze(-1), farther.unsqueeze(-1))
        rows = [x, means] if same else [x, means, self.sums[0]]
        scaled = torch.cat(rows, 1) * self.plain.scale.sqrt().unsqueeze(1)
        sizes = [y.shape[1] for y in rows]
        inner = Inner.of(labels, *torch.split(scaled, sizes, 1))
        plain, excess = inner.distances(labels) * farther, moved.excess().unsqueeze(-2)
        if self.factor is None:
            return plain, None, excess
        whole = Inner.of(labels, *torch.split(self.solved(scaled), sizes, 1))
        if x.shape[1] < x.shape[2]:
            both = zip(inner, whole, strict=True)
            whole = Inner(*(y - z / like(self.length, z) for y, z in both))
        own, r = self.sums[1].gather(1, labels), self.weights
        # A^-1 without a row is smaller by this times v v^T.
        cut = r * own / ((own - r).clamp(min=LEAST_WEIGHT) * self.length.unsqueeze(-1))
        share = cut / (1 - cut * whole.offset).clamp(min=LEAST_REMAINDER)
        along = (whole.rows - whole.start).unsqueeze(-1) - whole.cross + whole.between
        d = whole.distances(labels) + share.unsqueeze(-1) * along.square()
        return plain, d * farther, excess


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

    def estimate_weighted(self, rows: WeightedRows, weights: Tensor) -> tuple[Tensor, Estimate]:
        """Estimate with weights [B, S] in class means; also the shares of the metric found."""
        plain, full, excess = rows.distances(weights)
        if full is None:
            return weights, self.estimate(plain - excess)
        longer = self.length(plain, rows.weights) / self.length(full, rows.weights)
        estimate = self.estimate(plain - excess, full * column(longer) - excess)
        t = estimate.share
        kept, projected = (rows.shares[:, 1:] * (t * longer).unsqueeze(-1)).unbind(-1)
        return torch.stack([t, 1 - t + kept, projected], -1), estimate

    def length(self, d: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum [B] of the distances [B, S, K] of these rows to their own classes."""
        own = d.gather(-1, self.labels.unsqueeze(-1)).squeeze(-1) * weights
        return (own[:, self.chosen] * self.counts).sum(-1) + SMALLEST

    def estimate(self, plain: Tensor, full: Tensor | None = None) -> Estimate:
        """Estimate from the squared distances [B, S, K] of left-out rows, up to a row constant.

        With those in the full metric, its share grows while the labels are likely enough.
        """
        counts, own = self.counts.to(plain.dtype), self.labels[:, self.chosen]
        near, others = plain[:, self.chosen], (own, counts, self.doubted, self.rate)
        far, steps = (near, 0) if full is None else (full[:, self.chosen], native.MIXTURE_STEPS)
        tried = torch.linspace(0, 1, steps + 1).to(near)
        # All mixtures at once, if they are not too large.
        found = [
            most_likely_sharpness(torch.lerp(near, far, tried[some].view(-1, 1, 1, 1)), *others)
            for some in parts(len(tried), near.numel())
        ]
        sharpness, fits = (torch.cat(each) for each in zip(*found, strict=True))
        f, best = sharpness[0], fits[0]
        share, growing = torch.zeros_like(f), torch.ones_like(f, dtype=torch.bool)
        for t, other, fit in zip(tried[1:], sharpness[1:], fits[1:], strict=True):
            growing = growing & (fit > best - native.STANDARD_ERROR)
            best = torch.where(growing, torch.maximum(best, fit), best)
            f, share = torch.where(growing, other, f), torch.where(growing, t, share)
        d = plain if full is None else torch.lerp(plain, full, column(share))
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
    """The sharpness that makes the labels most likely, and their log-likelihood, [n, B] each.

    For distances [n, B, R, K] in n metrics, at the given rate or the best one. Tries some
    sharpnesses, and takes the top of a parabola through the best and its neighbours.
    """
    K = d.shape[-1]
    gaps = d - d.gather(-1, own.unsqueeze(-1).expand(len(d), -1, -1, -1))
    octaves = torch.arange(LOWEST, HIGHEST + OCTAVES, OCTAVES, dtype=d.dtype, device=d.device)
    halves = (PRIOR_SHARPNESS * 2.0**octaves / -2).view(-1, 1, 1, 1, 1)
    # The term of the own class is 1; where the sum overflows, the label's probability is 0.
    sums = [(gaps * halves[some]).exp_().sum(-1) for some in parts(len(octaves), gaps.numel())]
    p = torch.cat(sums).reciprocal_()
    given = p.new_full(p.shape[:-1], rate or 0)
    e = most_likely_rate(p, counts * doubted, K) if rate is None else given
    right, wrong = joint_probabilities(p, e, doubted, K)
    fit = ((right + wrong).clamp(min=SMALLEST).log() * counts).sum(-1)
    fit = fit - (octaves * math.log(2)).square().div(2 * SHARPNESS_SPREAD**2).view(-1, 1, 1)
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
    """The most likely share of wrong labels [..]; its likelihood is concave, so by sections."""
    difference = ((1 - own) / (K - 1) - own).unsqueeze(-2)
    own, counts = own.unsqueeze(-2), counts.unsqueeze(-2)
    low, width = own.new_zeros(own.shape[:-2]), 1 - 1 / K
    for _ in range(CUTS):
        width /= SECTIONS
        tried = low.unsqueeze(-1) + width * torch.arange(1, SECTIONS, device=own.device)
        likely = torch.addcmul(own, tried.unsqueeze(-1), difference).clamp_(min=SMALLEST)
        rising = (difference / likely).mul_(counts).sum(-1) > 0
        low = low + width * rising.sum(-1)
    return low
