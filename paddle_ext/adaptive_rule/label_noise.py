"""Weigh labelled rows by the probability that their label is right; docs/adaptive.md has the model.

f and e are chosen together to make the labels most likely: without e, the share of wrong labels,
these would make the sharpness f far too small. Letters as in `likelihood`.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import check
from ..native.graphs import replayed
from ..native.load import module as native
from ..rows import evenly_spread, parts, products
from .learn import PRIOR_SHARPNESS, SHARPNESS_SPREAD, calibration_count, learned, likelihood_of
from .likelihood import Likelihood, as_split, column

AUTO = "auto"
# Limit on labelled rows times classes, if each row is left out in turn; more would take too long.
MOST_LEFT_OUT = 2**26
# Sharpnesses to try, in octaves relative to the prior's: the step, the first and the last.
OCTAVES, LOWEST, HIGHEST = 0.5, -2.0, 4.0
RATES = 16  # shares of wrong labels to try, in addition to 0
MANY = 0.25  # a larger share of wrong labels is estimated again, with rows weighed again
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
    return replayed(weigh_labels, support, labels, num_classes, label_noise, metric).likelihood


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


@torch.inference_mode()  # a sixth less time for the host
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
    The host does not wait for a GPU, so calls can be `replayed`.
    """
    likelihood, distances = learned(support, labels, num_classes, metric, left_out=True)
    assert distances is not None
    has_peers = likelihood.shots.gather(1, labels) > 1
    doubted = has_peers if trusted is None else has_peers & ~trusted
    rows = CalibrationRows.of(likelihood, labels, has_peers, doubted, label_noise)
    estimate = rows.estimate((distances - likelihood.excess().unsqueeze(-2)).unsqueeze(0))
    noisy = doubtful = estimate.rate > 0
    weights = torch.ones_like(estimate.own)
    waits = not support.is_cuda  # for what it finds, before further work that may be in vain
    if waits and not bool(noisy.any()):
        logits = left_out_logits(likelihood, distances)
        return WeighedLabels(likelihood, estimate.rate, weights, logits)
    x = likelihood.centred(support)
    for _ in range(2):
        right, _ = right_and_others(estimate.own, estimate.rate.unsqueeze(-1), num_classes)
        changes = doubted & doubtful.unsqueeze(-1)
        weights = torch.where(changes, right.clamp(min=LEAST_WEIGHT), weights)
        total = weights if given is None else weights * given.to(weights.dtype)
        weighted = WeightedRows.of(likelihood, x, labels, weights, total)
        longer, excess = rows.longer(weighted.own * weights), weighted.likelihood.excess()
        estimate = rows.estimate(weighted.distances(labels, longer) - excess.unsqueeze(-2))
        doubtful = noisy & (estimate.rate > MANY)
        if waits and not bool(doubtful.any()):
            break
    hubs, half = rows.hubs(estimate), estimate.half.unsqueeze(-1)
    squares, shares = weighted.mixture(estimate.share, longer)
    moved = replace(
        weighted.likelihood,
        squares=squares,
        shares=shares,
        bias=hubs - (squares - excess) * half,
        sharpness=2 * estimate.half,
    )
    logits = torch.addcmul(hubs.unsqueeze(-2), estimate.distances, column(half), value=-1)
    if waits and len(noisy) == 1:
        return WeighedLabels(moved, estimate.rate, weights, logits)
    # Tasks without wrong labels stay as they are.
    unweighted = left_out_logits(likelihood, distances)
    tensors: Any = {
        name: torch.where(noisy.view(-1, *[1] * (x.dim() - 1)), getattr(moved, name), x)
        for name, x in likelihood.tensors().items()
    }
    return WeighedLabels(
        replace(likelihood, **tensors),
        torch.where(noisy, estimate.rate, 0),
        weights,
        torch.where(column(noisy), logits, unweighted),
    )


def left_out_logits(likelihood: Likelihood, distances: Tensor) -> Tensor:
    """Logits [B, S, K] from the distances (5) [B, S, K] of rows left out of their classes."""
    half = column(likelihood.sharpness / 2)
    return torch.addcmul(likelihood.bias.unsqueeze(-2), distances, half, value=-1)


class WeightedRows(NamedTuple):
    """Labelled rows with weights, each left out of its class and of the full metric.

    v is the scaled offset of a row from the weighted mean of its class, r its weight, V all v times
    the roots of r; A = (V^T V / L + 1)^-1 is the full metric, L the mean of r ||v||^2. Its form is
    that of csrc/common/adaptive.h: with more features than rows the factor is that of
    G = V V^T / L + 1, and V A w^T = G^-1 V w^T, V A V^T = L (1 - G^-1).
    """

    likelihood: Likelihood  # with the weighted class means, and the factor of the full metric
    length: Tensor | None  # [B] L
    # Products in n metrics, that of the feature scale and, if there is one, the full metric:
    rows: Tensor  # [n, B, S] v.v
    cross: Tensor  # [n, B, S, K] v.w
    means: Tensor  # [n, B, K, K] w.w
    # The metric without a row adds this times the square of v.(x - w) to its distances.
    share: Tensor  # [n, B, S]
    own: Tensor  # [n, B, S] the distance of a row to its class, scaled to that of a new row

    @classmethod
    def of(
        cls, likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor, total: Tensor
    ) -> "WeightedRows":
        """For centred rows [B, S, D]; `total` [B, S] are the weights in class means."""
        (B, S, D), K = x.shape, likelihood.shots.shape[-1]
        w = x.new_zeros(B, K, S).scatter_(1, labels.unsqueeze(1), total.unsqueeze(1))
        mass, squared = w.sum(-1), w.square().sum(-1)
        means, root = (w @ x) / mass.unsqueeze(-1), likelihood.scale.sqrt().unsqueeze(1)
        scaled, at = means * root, labels + torch.arange(0, B * K, K, device=x.device).unsqueeze(-1)
        v = x * root - scaled.view(-1, D).index_select(0, at.flatten()).view_as(x)
        n, both = mass.gather(1, labels), torch.addcmul(squared, mass, mass).gather(1, labels)
        nearer = torch.rsub(n * total / both, 1, alpha=2).clamp_(min=LEAST_WEIGHT**2)
        rows, nothing = v.square().sum(-1), torch.zeros_like(n)
        changed: Any = {"prototypes": means, "shots": mass.square() / squared}
        if likelihood.factor is None:
            moved = replace(likelihood, scaled=as_split(scaled), **changed)
            plain = rows, products(v, scaled), products(scaled, scaled), nothing, rows / nearer
            return cls(moved, None, *(y.unsqueeze(0) for y in plain))
        rest, half, M = 1 - total / n, weights.sqrt().unsqueeze(-1), min(S, D)
        count = (weights * rest).sum(-1).clamp_(min=LEAST_WEIGHT, max=native.COVARIANCE_ROWS)
        length = torch.add((rows * weights).sum(-1) / count, count, alpha=native.NO_SCATTER)
        V, L, pad = v * half, length.unsqueeze(-1), -M % native.FACTOR_BLOCK
        every = torch.cat([V, scaled], 1)
        if S < D:
            gram = products(every, every)
            gram, cross, between = gram[:, :S, :S], gram[:, :S, S:], gram[:, S:, S:]
        else:
            gram = V.mT @ V
            cross, between = torch.split(products(every, scaled), [S, K], 1)
        gram = gram / L.unsqueeze(-1)
        gram.diagonal(dim1=-2, dim2=-1).add_(1)
        # With features that are not finite, and not checked, there is none; no error, no waiting.
        factor = torch.nn.functional.pad(torch.linalg.cholesky_ex(gram).L, (0, pad, 0, pad))
        factor.diagonal(dim1=-2, dim2=-1)[..., M:].fill_(1)
        one = torch.eye(M + pad, dtype=x.dtype, device=x.device)
        inverse = torch.linalg.solve_triangular(factor, one.expand_as(factor), upper=False)
        Z = inverse[..., :M]
        if S < D:
            solved = cross.mT @ Z.mT
            square, across = (1 - Z.square().sum(-2)) * L, Z.mT @ solved.mT
            apart = between - products(solved, solved) / L.unsqueeze(-1)
        else:
            found, solved = torch.split(products(every, Z), [S, K], 1)
            square, across = found.square().sum(-1), products(found, solved)
            apart = products(solved, solved)
        block = torch.arange(M + pad, device=x.device) // native.FACTOR_BLOCK
        # The inverse of a block on the diagonal is that block of the inverse.
        changed["factor"] = as_split(torch.where(block == block.unsqueeze(-1), inverse, factor))
        changed["scaled"] = as_split(every if S < D else scaled)
        moved = replace(likelihood, solved=as_split(solved), **changed)
        # The inverse of the metric without a row is smaller by `cut` times v v^T.
        square, cut = square / weights, weights / (rest.clamp_(min=LEAST_WEIGHT) * L)
        kept = (1 - cut * square).clamp_(min=LEAST_REMAINDER)
        rows, share = torch.stack([rows, square]), torch.stack([nothing, cut / kept])
        cross, means = torch.stack([cross, across]) / half, torch.stack([between, apart])
        own = rows / nearer
        own[1] /= kept
        return cls(moved, length, rows, cross, means, share, own)

    def distances(self, labels: Tensor, longer: Tensor) -> Tensor:
        """Squared distances, each row left out, times `longer` [n, B]; [n, B, S, K]."""
        at, times = labels.unsqueeze(-1).expand(len(self.rows), -1, -1, -1), longer.unsqueeze(-1)
        own, v = (self.own * times).unsqueeze(-1), self.rows.unsqueeze(-1)
        along = v + self.cross.gather(-1, at) - self.cross  # v.(x - w)
        square = self.means.diagonal(dim1=-2, dim2=-1)
        apart = square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * self.means
        apart = (apart * times.unsqueeze(-1)).gather(-2, at.expand(-1, -1, -1, square.shape[-1]))
        times = times.unsqueeze(-1)
        more = torch.addcmul(2 * times, along, self.share.unsqueeze(-1) * times)
        return apart.sub_(v * times).addcmul_(along, more).scatter_(-1, at, own)

    def mixture(self, share: Tensor, longer: Tensor) -> tuple[Tensor, Tensor | None]:
        """Squares of the means in the mixture, and its shares [B, 3] as `Likelihood` has them."""
        square = self.means.diagonal(dim1=-2, dim2=-1)
        if self.length is None:
            return square[0].contiguous(), None
        t, rest = share * longer[1], 1 - share
        S, D = self.cross.shape[2], self.likelihood.scale.shape[-1]
        parts = [share, rest + t, -t / self.length] if S < D else [share, rest, t]
        squares = rest.unsqueeze(-1) * square[0] + t.unsqueeze(-1) * square[1]
        return squares, torch.stack(parts, -1)


class Estimate(NamedTuple):
    """What `CalibrationRows` estimate from the distances of left-out rows."""

    half: Tensor  # [B] of the sharpness
    rate: Tensor  # [B] share of wrong labels
    share: Tensor  # [B] of the full metric
    distances: Tensor  # [B, S, K] squared
    p: Tensor  # [B, S, K] class probabilities of each row
    own: Tensor  # [B, S] the probability of its label


class CalibrationRows(NamedTuple):
    """The labelled rows that give the sharpness and the share of wrong labels."""

    labels: Tensor  # [B, S] of all rows
    chosen: Tensor | slice  # [R] int64 their indices, or all
    counts: Tensor  # [B, R] 0 for the only row of its class, which cannot be left out, else 1
    doubted: Tensor  # [B, R] 1 if the label may be wrong, else 0
    rates: Tensor  # [E] shares of wrong labels to try
    # [E, 1, 1, B, R] the probability of a label if the row is not of its class, and how much larger
    # it is if the row is; 1 and 0 for a row that does not count
    wrong: Tensor
    gain: Tensor
    halves: Tensor  # [F, 1, 1, 1, 1] of sharpnesses to try, negative, for powers of two
    prior: Tensor  # [F, 1, 1] minus their log-density

    @classmethod
    def of(
        cls,
        likelihood: Likelihood,
        labels: Tensor,
        has_peers: Tensor,
        doubted: Tensor,
        label_noise: float | str,
    ) -> "CalibrationRows":
        S, K = labels.shape[-1], likelihood.shots.shape[-1]
        R, kind = calibration_count(S, K, True), likelihood.shots
        chosen = slice(None) if R == S else evenly_spread(R, S, labels.device)
        like_shots: Any = {"dtype": kind.dtype, "device": kind.device}
        octaves = torch.arange(LOWEST, HIGHEST + OCTAVES, OCTAVES, **like_shots)
        if label_noise == AUTO:
            rates = torch.arange(RATES + 1, **like_shots)
            rates = rates.square() * ((1 - 1 / K) / RATES**2)
        else:
            rates = octaves.new_full((1,), float(label_noise))
        counts, doubts = (x[:, chosen].to(kind.dtype) for x in (has_peers, doubted))
        wrong = rates.view(-1, 1, 1, 1, 1) * (doubts / (K - 1))
        gain, wrong = (1 - K * wrong) * counts, torch.where(counts > 0, wrong + SMALLEST, 1)
        halves = (octaves.exp2() * (PRIOR_SHARPNESS / -2 / math.log(2))).view(-1, 1, 1, 1, 1)
        prior = (octaves.square() * (math.log(2) / SHARPNESS_SPREAD) ** 2 / 2).view(-1, 1, 1)
        return cls(labels, chosen, counts, doubts, rates, wrong, gain, halves, prior)

    def longer(self, own: Tensor) -> Tensor:
        """Factors [n, B] that make own-class distances [n, B, S] sum up as in the first metric."""
        near = (own[..., self.chosen] * self.counts).sum(-1) + SMALLEST
        return near[0] / near

    def estimate(self, d: Tensor) -> Estimate:
        """Estimate from squared distances [n, B, S, K] of left-out rows, up to a row constant.

        With those in the full metric, its share grows while the labels are likely enough.
        """
        n, B, _, K = d.shape
        tried = torch.linspace(
            0, 1, 1 + (n - 1) * native.MIXTURE_STEPS, dtype=d.dtype, device=d.device
        )
        at = self.labels.unsqueeze(-1)
        gaps, sums = (d - d.gather(-1, at.expand(n, -1, -1, -1)))[:, :, self.chosen], []
        for some in parts(gaps.shape[2], len(self.halves) * len(tried) * B * K):
            mixed = gaps[:, :, some]
            if n > 1:
                mixed = torch.lerp(mixed[0], mixed[1], tried.view(-1, 1, 1, 1))
            sums.append((mixed * self.halves).exp2_().sum(-1))
        # The term of the own class is 1; where the sum overflows, the label's probability is 0.
        own = (torch.cat(sums, -1) if len(sums) > 1 else sums[0]).reciprocal_()
        fits, which = torch.addcmul(self.wrong, own, self.gain).log_().sum(-1).max(0)
        before, top, fits = parabola(fits - self.prior)
        which, mixed, share = which[1:].gather(0, before)[0], d[0], torch.zeros_like(fits[0])
        if n > 1:
            likely_enough = fits[1:] > fits.cummax(0).values[:-1] - native.STANDARD_ERROR
            chosen = likely_enough.cumprod(0).sum(0, keepdim=True)
            top, which, share = top.gather(0, chosen), which.gather(0, chosen), tried[chosen[0]]
            mixed = torch.lerp(d[0], d[1], column(share))
        half = (top[0] * OCTAVES + (LOWEST + OCTAVES + math.log2(PRIOR_SHARPNESS / 2))).exp2()
        p = (mixed * column(-half)).softmax(-1)
        return Estimate(half, self.rates[which[0]], share, mixed, p, p.gather(-1, at).squeeze(-1))

    def hubs(self, estimate: Estimate) -> Tensor:
        """A bias [B, K] that is lower for classes that attract rows of other classes."""
        p, own = estimate.p[:, self.chosen], estimate.own[:, self.chosen]
        K, e = p.shape[-1], estimate.rate.unsqueeze(-1) * self.doubted
        right, others = right_and_others(own, e, K)
        at = self.labels[:, self.chosen].unsqueeze(-1)
        belongs = (p * others.unsqueeze(-1)).scatter_(-1, at, right.unsqueeze(-1))
        drawn = (self.counts.unsqueeze(1) @ (p * (1 - belongs))).squeeze(1)
        rows = self.counts.sum(-1, keepdim=True)
        return -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (rows / K + 1))


def parabola(fits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The index [1, ..] before the best of fits [n, ..], which has neighbours on both sides.

    Also how far the top of a parabola through the three is behind index 1, and how high, [..].
    """
    first = (fits.argmax(0, keepdim=True) - 1).clamp_(0, len(fits) - 3)
    three = fits.unfold(0, 3, 1).gather(0, first.unsqueeze(-1).expand(*first.shape, 3))
    low, middle, high = three[0].unbind(-1)
    down, bend = low - high, torch.sub(low + high, middle, alpha=2).clamp_(max=-SMALLEST)
    beyond = (down / bend).clamp_(-2, 2)
    top = torch.add(first[0], beyond, alpha=0.5)
    return first, top, torch.addcmul(middle, down, beyond, value=-1 / 8)


def right_and_others(own: Tensor, e: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The probability that a label is right, and a factor on the probabilities of other classes.

    `own` is the probability of the label's class before the label is known, e the share of wrong
    labels.
    """
    right, wrong = (1 - e) * own, e / (K - 1)
    total = torch.addcmul(right, wrong, 1 - own).clamp_(min=SMALLEST)
    return right / total, wrong / total
