"""Weigh labelled rows by the probability that their label is right; docs/adaptive.md has the model.

A row of weight r counts r times in the mean of its class, in the full metric and in the
calibration. Its label is right with the probability r by Bayes' rule, from its class probabilities
when it is left out, and the share e of wrong labels. These follow from each other in rounds.

Letters as in `likelihood`; numbers in parentheses are equations of docs/adaptive.md.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import check
from ..native.graphs import replayed
from .learn import Given, learned, likelihood_of
from .likelihood import Likelihood, column

AUTO = "auto"
# Limit on labelled rows times classes, if each row is left out in turn; more would take too long.
MOST_LEFT_OUT = 2**26
ROUNDS = 4
# Wrong labels make the sharpness too small in the first round, before rows are weighed.
SHARPER = 2.0
LEAST_WEIGHT = 1e-3  # of a row: less is lost in single precision
TINY = 1e-30  # what is divided by, or a logarithm is taken of, is at least this
HALVINGS = 30  # of an interval that holds e


@dataclass(frozen=True)
class WeighedLabels:
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
    weighed: WeighedLabels = replayed(
        weigh_labels, support, labels, num_classes, label_noise, metric
    )
    return weighed.likelihood


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
    trusted: Tensor | None = None,
) -> WeighedLabels:
    """Estimate which labels are wrong, and learn the likelihood with rows weighed accordingly.

    There must be more rows [B, S, D] than classes. The share of wrong labels is > 0, or "auto". The
    labels of `trusted` rows [B, S] are right. The host does not wait for a GPU, so calls can be
    `replayed`.
    """
    trusting, distances = learned(support, labels, num_classes, metric, left_out=True)
    assert distances is not None
    doubted = (trusting.shots > 1).gather(1, labels)
    if trusted is not None:
        doubted = doubted & ~trusted

    weighing = Weighing(doubted, labels, num_classes, label_noise)
    found = weighing.chances(distances, SHARPER * trusting.sharpness)
    noisy = found.rate > 0
    waits = not support.is_cuda  # for what it finds, before further work that may be in vain
    if waits and not bool(noisy.any()):
        every = torch.ones_like(found.weights)
        return WeighedLabels(trusting, found.rate, every, left_out_logits(trusting, distances))

    for _ in range(ROUNDS):
        weights = found.weights
        given = Given(trusting.centre, trusting.scale, weights)
        likelihood, left_out = learned(
            support, labels, num_classes, metric, left_out=True, given=given
        )
        assert left_out is not None
        found = weighing.chances(left_out, likelihood.sharpness)
        logits = left_out_logits(likelihood, left_out)
    rate = found.rate
    if waits and len(noisy) == 1:
        return WeighedLabels(likelihood, rate, weights, logits)

    # Tasks without wrong labels stay as they are.
    def where_noisy(here: Tensor, elsewhere: Tensor) -> Tensor:
        return torch.where(noisy.view(-1, *[1] * (elsewhere.dim() - 1)), here, elsewhere)

    tensors: Any = {
        name: where_noisy(getattr(likelihood, name), x) for name, x in trusting.tensors().items()
    }
    return WeighedLabels(
        replace(trusting, **tensors),
        where_noisy(rate, torch.zeros_like(rate)),
        where_noisy(weights, torch.ones_like(weights)),
        where_noisy(logits, left_out_logits(trusting, distances)),
    )


def left_out_logits(likelihood: Likelihood, distances: Tensor) -> Tensor:
    """Logits [B, S, K] from the distances (5) [B, S, K] of rows left out of their classes."""
    half = column(likelihood.sharpness / 2)
    return torch.addcmul(likelihood.bias.unsqueeze(-2), distances, half, value=-1)


# --- which labels are right -----------------------------------------------------------------------


@dataclass(frozen=True)
class Chances:
    """How likely labels are to be right."""

    rate: Tensor  # [B] e
    weights: Tensor  # [B, S] r, 1 for rows that are not doubted


@dataclass(frozen=True)
class Weighing:
    """Which labels may be wrong."""

    doubted: Tensor  # [B, S]
    labels: Tensor  # [B, S]
    num_classes: int
    label_noise: float | str

    def chances(self, distances: Tensor, sharpness: Tensor) -> Chances:
        """From distances [B, S, K] of rows left out."""
        own = probability_of_label(distances, sharpness, self.labels)
        rate = rate_of(own, self.doubted, self.num_classes, self.label_noise)
        right = probability_right(own, column_of(rate), self.num_classes)
        return Chances(rate, torch.where(self.doubted, right.clamp(min=LEAST_WEIGHT), 1))


def probability_of_label(distances: Tensor, sharpness: Tensor, labels: Tensor) -> Tensor:
    """p_y of each row before its label is known, [B, S], from distances [B, S, K]."""
    p = (distances * column(sharpness / -2)).softmax(-1)
    return p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def probability_right(own: Tensor, rate: Tensor, K: int) -> Tensor:
    """r = (1 - e) p_y / ( (1 - e) p_y + e (1 - p_y) / (K - 1) ), [B, S]; `own` is p_y, [B, S]."""
    right, wrong = (1 - rate) * own, rate / (K - 1) * (1 - own)
    return right / (right + wrong).clamp(min=TINY)


def rate_of(own: Tensor, doubted: Tensor, K: int, label_noise: float | str) -> Tensor:
    """e [B]: as given, or the one that makes the labels of `doubted` rows [B, S] most likely.

    The logarithm of ``(1 - e) p_y + e (1 - p_y) / (K - 1)``, summed, is concave in e.
    """
    if label_noise != AUTO:
        return own.new_full((len(own),), float(label_noise))
    change = (1 - own) / (K - 1) - own
    low, high = own.new_zeros(len(own)), own.new_full((len(own),), 1 - 1 / K)

    def rises(rate: Tensor) -> Tensor:
        likely = torch.addcmul(own, column_of(rate), change).clamp(min=TINY)
        return (change / likely * doubted).sum(-1) > 0

    certain = ~rises(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rising = rises(middle)
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return low.masked_fill(certain, 0)


def column_of(x: Tensor) -> Tensor:
    """One number per task, shaped to multiply rows [B, S]."""
    return x.unsqueeze(-1)
