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
from ..native.load import module as native
from ..rows import evenly_spread
from .kernels import CENTRE, SPREAD
from .likelihood import (
    Likelihood,
    calibrated,
    calibration_count,
    column,
    learned,
    likelihood_of,
    reweighted,
)
from .weighted_rows import LEAST, TINY, WeightedRows

AUTO = "auto"
MOST_JUDGED = 2**26  # limit on labelled rows times classes; more would take too long
ROUNDS = 2  # of weights, means and metric; more gain nothing
# Sharpnesses to try, in octaves relative to the prior's: the step, the first and the last.
OCTAVES, LOWEST, HIGHEST = 0.5, -2.0, 4.0
HALVINGS = 12  # of the interval that contains the rate


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
    logits = left_out_logits(likelihood, native.left_out)
    if not bool(noisy.any()):
        return WeighedLabels(likelihood, found.rate, weights, logits)
    x = likelihood.coordinates(support)
    for _ in range(ROUNDS):
        rate = torch.where(noisy, found.rate, 0)
        right = right_and_wrong(found.own, rate, num_classes)[0].clamp(min=LEAST)
        weights = torch.where(has_peers, right, 1)
        total = weights if given is None else weights * given.to(weights.dtype)
        rows = WeightedRows.of(likelihood, x, labels, weights)
        moved, found = judges.judge(rows, total)
    hubs, half = judges.hubs(found), found.sharpness / 2
    bias = hubs - (moved.squares - moved.excess()) * half.unsqueeze(-1)
    moved = replace(moved, sharpness=found.sharpness, bias=bias)
    return WeighedLabels(
        where_noisy(noisy, moved, likelihood),
        torch.where(noisy, found.rate, 0),
        weights,
        torch.where(column(noisy), hubs.unsqueeze(-2) - found.distances * column(half), logits),
    )


def where_noisy(noisy: Tensor, moved: Likelihood, likelihood: Likelihood) -> Likelihood:
    """The likelihood `moved` for tasks that are `noisy` [B], and the other for the rest."""
    found: Any = {
        name: torch.where(noisy.view(-1, *[1] * (x.dim() - 1)), getattr(moved, name), x)
        for name, x in likelihood.tensors().items()
    }
    return replace(likelihood, **found)


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


class Estimate(NamedTuple):
    """What `Judges` estimate from the distances of left-out rows."""

    sharpness: Tensor  # [B]
    rate: Tensor  # [B] share of wrong labels
    share: Tensor  # [B] of the full metric
    distances: Tensor  # [B, S, K] squared
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

    def judge(self, rows: WeightedRows, weights: Tensor) -> tuple[Likelihood, Estimate]:
        """Estimate from rows with these weights [B, S] in the class means.

        Returns the likelihood with these means and the best metric, too.
        """
        moved = reweighted(rows.plain, rows.x, rows.labels, weights)
        excess = moved.excess().unsqueeze(-2)
        plain = rows.distances(rows.plain, weights)
        if rows.full is None:
            return moved, self.estimate(plain - excess)
        full = rows.distances(rows.full, weights)
        longer = self.length(plain, rows.weights) / self.length(full, rows.weights)
        found = self.estimate(plain - excess, full * column(longer) - excess)
        assert rows.full.shares is not None
        t, parts = found.share, rows.full.shares[:, 1:] * (found.share * longer).unsqueeze(-1)
        mixed = replace(rows.full, shares=torch.stack([t, 1 - t + parts[:, 0], parts[:, 1]], -1))
        return reweighted(mixed, rows.x, rows.labels, weights), found

    def length(self, d: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum [B] of the distances [B, S, K] of judges to their own classes."""
        own = d.gather(-1, self.labels.unsqueeze(-1)).squeeze(-1) * weights
        return (own[:, self.chosen] * self.counts).sum(-1) + TINY

    def estimate(self, plain: Tensor, full: Tensor | None = None) -> Estimate:
        """Estimate from the squared distances [B, S, K] of left-out rows, up to a row constant.

        With those in the full metric, its share grows while the labels are likely enough.
        """
        counts, own = self.counts.to(plain.dtype), self.labels[:, self.chosen]
        near = plain[:, self.chosen]
        f, best = most_likely_sharpness(near, own, counts, self.rate)
        share, growing, d = torch.zeros_like(f), torch.ones_like(f, dtype=torch.bool), plain
        if full is not None:
            for t in torch.linspace(0, 1, native.MIXTURE_STEPS + 1)[1:].tolist():
                mixed = torch.lerp(near, full[:, self.chosen], t)
                sharpness, fit = most_likely_sharpness(mixed, own, counts, self.rate)
                growing = growing & (fit > best - native.STANDARD_ERROR)
                best = torch.where(growing, torch.maximum(best, fit), best)
                f, share = torch.where(growing, sharpness, f), torch.where(growing, t, share)
            d = torch.lerp(plain, full, column(share))
        p = (d * column(-f / 2)).softmax(-1)
        right = p.gather(-1, self.labels.unsqueeze(-1)).squeeze(-1)
        if self.rate is None:
            e = most_likely_rate(right[:, self.chosen], counts, d.shape[-1])
        else:
            e = torch.full_like(f, self.rate)
        return Estimate(f, e, share, d, p, right)

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


def most_likely_sharpness(
    d: Tensor, own: Tensor, counts: Tensor, rate: float | None
) -> tuple[Tensor, Tensor]:
    """The sharpness that makes the labels most likely, and their log-likelihood, [B] each.

    At the given rate or the best one. Tries some sharpnesses, and takes the top of a parabola
    through the best and its neighbours.
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
    f = CENTRE * 2.0 ** (octaves[best] + OCTAVES * beyond)
    return f, middle - (low - high) * beyond / 4


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
