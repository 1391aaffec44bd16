"""How much of a batch each class is, with intervals; docs/presence.md explains their variance.

Letters: Q queries, K classes. With u the probability of a class for each query, the class holds
``N = sum_q u`` queries with the variance ``V = sum_q u (1 - u)``, given the class proportions.
These are estimated from the same batch: with ``C = N (Q - N) / Q``, ``r = V / C`` and a flat prior
on the share, an error in the count of labels moves N by ``g = 1 + r / (1 - r + 12 C / Q^2)`` of it.

The interval lies between quantiles of a beta distribution. Its mean is N, moved towards ``Q / K``
by the weight of the prior, ``1 / (2 R + 2)`` for R labelled rows. If N > Q / 2, the interval for
Q - N is computed and mirrored, so that it stays within 0 and Q. The ends are rounded inwards to
whole counts, as in mid-P intervals: rounded outwards, it would cover more than it should. It
reaches 0, and mirrored Q, unless N is as many standard deviations above.
"""

from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from . import check

# The standard deviation s of the shift of a class's logits. docs/presence.md says on which data it
# was chosen, and how much of the others the intervals cover.
LOGIT_ERROR = 0.45
# Rows of a class with a smaller variance are nearly copies of one another: of unit-norm rows, those
# of real classes had variances between 0.3 and 1, and views of one object below 0.1.
NEAR_COPIES = 0.5
RATE = 0.05  # of the queries of known classes that look like strangers


class Prevalence(NamedTuple):
    """The share of each class, between 0 and 1; with novelty, the last is of no known class."""

    estimate: Tensor  # [.., K] or [.., K + 1] float64, with a sum of 1
    low: Tensor  # lower end of the interval
    high: Tensor  # upper end


def sums_of(
    labels: Tensor,
    probabilities: Tensor,
    classes: Tensor | None,
    held: Tensor | None,
    among: Tensor | None = None,
    classes_of_one: int | None = None,
) -> Tensor:
    """Sums over the queries of labels, probabilities u, and u (1 - u): [.., 3, K] in float64.

    If a solution keeps only the largest probabilities, the sum of u (1 - u) is an upper bound, and
    the rest of the queries `among` is shared out as that of all. With groups, classes are numbered
    group by group, `classes_of_one` each.
    """
    u = probabilities if among is None else probabilities * among.unsqueeze(-1)
    if classes is None or held is None:
        held = u.sum(-2, dtype=torch.float64)
        squares = torch.linalg.vector_norm(u, dim=-2, dtype=torch.float64).square()
    else:
        none, at = torch.zeros_like(held, dtype=torch.float64), classes.flatten(-2)
        squares = none.scatter_add(-1, at, u.double().square().flatten(-2))
        if among is not None:
            both = probabilities.double(), u.double()
            kept, part = (none.scatter_add(-1, at, x.flatten(-2)) for x in both)
            rest = (held - kept).clamp(min=0)
            rest = rest.view(*rest.shape[:-1], -1, classes_of_one or rest.shape[-1])
            lost = (among.double() - u.sum(-1, dtype=torch.float64)).clamp(min=0)
            lost = torch.zeros_like(rest[..., 0]).scatter_add(-1, labels // rest.shape[-1], lost)
            share = lost / rest.sum(-1).clamp(min=1e-12)
            held = part + (rest * share.unsqueeze(-1)).flatten(-2)
    counted = counts_of(labels, torch.zeros_like(held, dtype=torch.float64), among)
    return torch.stack([counted, held.double(), (held - squares).clamp(min=0)], -2)


def counts_of(labels: Tensor, counts: Tensor, among: Tensor | None = None) -> Tensor:
    """Count the labels [.., Q] of each class; adds to `counts` [.., K] in place and returns it."""
    ones = counts.new_ones(()).expand_as(labels) if among is None else among.to(counts.dtype)
    return counts.scatter_add_(-1, labels, ones)


def estimated_shares(counted: Tensor, held: Tensor, queries: float | Tensor) -> Tensor:
    """The estimated shares of the classes, [.., K]: a mean of label and probability counts."""
    # Label counts are better if few classes are present.
    labelled_share = counted.sign().mean(-1, keepdim=True)
    return torch.lerp(counted, held, labelled_share) / queries


def from_sums(sums: Tensor, coverage: float = 0.9, sampling: bool = False) -> Prevalence:
    """The prevalence of the classes in one batch, or in several together.

    `sums` are `Solution.class_sums`; those of batches with the same labelled rows may be added up.
    The options are those of `Solution.prevalence`.
    """
    coverage = check.real("coverage", coverage, positive=True, most=1.0)
    if (1 + coverage) / 2 == 1.0:
        raise check.ArgumentValueError("coverage", f"must be > 0 and below 1, got {coverage:g}")
    check.flag("sampling", sampling)
    (sums,) = check.tensors(sums)
    check.features("sums", sums)
    if sums.is_cpu and not sums.isfinite().all():
        raise check.ArgumentValueError("sums", "must be finite, got NaN or infinity")
    if sums.dim() < 2 or sums.shape[-2] not in (4, 10):
        raise check.ArgumentValueError(
            "sums", f"must be [.., 4, K] or [.., 10, K + 1], got {list(sums.shape)}"
        )
    z = NormalDist().inv_cdf((1 + coverage) / 2)
    sums = sums.double()
    Q = sums[..., 0, :].sum(-1, keepdim=True)
    if sums.is_cpu and not (sums >= -1e-6 * Q.clamp(min=1).unsqueeze(-1)).all():
        raise check.ArgumentValueError("sums", f"must be at least 0, got {sums.min():g}")
    none, Q = Q < 1e-6, Q.clamp(min=1)
    sums = sums.clamp(min=0)  # what is left of a difference by rounding
    strange = None
    if sums.shape[-2] > 4:
        sums, strange = without_strangers(sums, Q, z, sampling)
    counted, held, label_variance, inexact = sums.unbind(-2)
    estimate = estimated_shares(counted, held, Q)
    variance, prior = count_variance(held, label_variance, inexact / Q, Q)
    held = torch.lerp(held, held.mean(-1, keepdim=True), prior)
    # The inverse of Simpson's index counts a class by how much it holds.
    present = Q.square() / held.square().sum(-1, keepdim=True).clamp(min=1)
    known, variance = variance, torch.minimum(variance, held * (Q - held) / (present + 1))
    if sampling:  # with Jeffreys' prior of half a query, inside the class and outside
        held = (held + 0.5) * Q / (Q + 1)
        variance = variance + held * (Q - held) / (Q + 2)
    mirrored = held > Q / 2
    mean = torch.where(mirrored, Q - held, held).clamp(min=0)
    low, high = (count_quantile(mean, variance, Q, x) for x in (-z, z))
    # None at all cannot be ruled out, which a beta distribution does.
    low = low.masked_fill(mean <= z * torch.maximum(known, variance).sqrt(), 0)
    if not sampling:
        nearest = mean.round()
        low, high = low.ceil() * (low >= 0.5), high.floor()  # less than half a query may be none
        low, high = torch.minimum(low, nearest), torch.maximum(high, nearest)
        # A class whose expected count is not tiny may hold at least one query.
        high = torch.maximum(high, (mean > 1 - coverage).double())
    low, high = torch.where(mirrored, Q - high, low) / Q, torch.where(mirrored, Q - low, high) / Q
    low, high = torch.minimum(low.clamp(min=0), estimate), torch.maximum(high, estimate)
    found = Prevalence(estimate, low, high.clamp(max=1).masked_fill(none, 1))
    if strange is None:
        return found
    return Prevalence._make(torch.cat(pair, -1) for pair in zip(found, strange, strict=True))


def count_variance(N: Tensor, V: Tensor, inexact: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of each class's count [.., K], and the weight of the prior mean [.., 1]."""
    complete = (N * (Q - N) / Q).clamp(min=1e-9)
    missing = (V / complete).clamp(max=1)
    gain = 1 + missing / (1 - missing + 12 * complete / Q.square())
    one_row = 1 / (1 / inexact).sum(-1, keepdim=True)  # 1 / R
    wrong = (V.sum(-1, keepdim=True) / Q + one_row / 2) / (1 + one_row)  # Jeffreys' prior
    moved = N.square() * inexact / (1 + 2 * inexact) * wrong * (1 - wrong)
    others = moved.sum(-1, keepdim=True) - moved
    moved = moved * (N.shape[-1] > 1) + others / max(1, N.shape[-1] - 1)
    variance = gain * V + gain.square() * ((LOGIT_ERROR * V).square() + moved)
    return variance, one_row / (2 + 2 * one_row)


def without_strangers(
    sums: Tensor, Q: Tensor, z: float, sampling: bool
) -> tuple[Tensor, Prevalence]:
    """The sums [.., 4, K] without strangers, and their own share, [.., 1] each.

    They are what looks strange beyond chance, and at most what ordinary queries leave, which are
    twice as many as those with a novelty up to 1/2 that are not `hidden` strangers. Both counts are
    beta-binomial, because novelty is known as well as the labelled rows of the classes present tell
    it, R if class k has the share w_k: ``1 / R = sum_k w_k^2 / n_k``. Nothing is known of queries
    that neither novelty nor a person has judged: if those are all, the interval is from 0 to 1.
    """
    certain, by_person = sums[..., 0, -1:], sums[..., -1, -1:]
    counted, held, V, inexact, *flagged, ordinary, hidden, judged = sums[..., :-1].unbind(-2)
    seen, familiar, hidden, n = (
        x.sum(-1, keepdim=True) for x in (flagged[0], ordinary, hidden, judged)
    )
    share = held / held.sum(-1, keepdim=True).clamp(min=1e-9)
    rows = 1 / (share.square() * inexact / Q).sum(-1, keepdim=True)
    number = beyond_chance(seen, n)
    known = (n - number).clamp(min=0)
    spread = RATE * (1 - RATE) * known * (1 + known / (rows + 2))
    low = torch.minimum(seen - count_quantile(RATE * known, spread, Q, z), number).clamp(min=0)
    half = (n / 4 * (1 + n / (rows + 2))).sqrt()
    visible = 1 - 2 * hidden / n.clamp(min=1)
    high = (n - 2 * (familiar - z * half)) / visible.clamp(min=1e-9)
    high = torch.maximum(high, number).minimum(n).where(visible > 0, n)
    real = (number / seen.clamp(min=1)).clamp(max=1)  # the share of those seen
    if sampling:
        drawn = z * z * (number + 0.5) * (Q - number + 0.5) / (Q + 2)
        low = number - ((number - low).square() + drawn).sqrt()
        high = number + ((high - number).square() + drawn).sqrt()
    unjudged = Q - n - by_person
    number, low, high = number + certain, low + certain, high + certain + unjudged
    rest = [x - real * y for x, y in zip((counted, held, V), flagged, strict=True)]
    rest[2] = (rest[2] + real * (1 - real) * flagged[1]).clamp(min=0)  # below 0 by rounding
    ends = low.clamp(min=0), torch.minimum(high, Q)
    return torch.stack([*rest, inexact], -2), Prevalence._make(x / Q for x in (number, *ends))


def beyond_chance(strange: Tensor, queries: Tensor | int) -> Tensor:
    """How many of so many queries are of no known class, if so many look strange."""
    return ((strange - RATE * queries) / (1 - RATE)).clamp(min=0)


def with_certain(sums: Tensor, counts: Tensor) -> Prevalence:
    """`from_sums` with queries that a person has labelled, [.., K + 1], at last of no known class.

    No interval excludes them.
    """
    sums, counts = sums.clone(), counts[..., : sums.shape[-1]]
    sums[..., :2, :] += counts.unsqueeze(-2)
    if sums.shape[-2] > 4:
        sums[..., -1, -1] += counts.sum(-1)
    estimate, low, high = from_sums(sums)
    certain = counts / sums[..., 0, :].sum(-1, keepdim=True).clamp(min=1)
    others = certain.sum(-1, keepdim=True) - certain
    return Prevalence(estimate, torch.maximum(low, certain), torch.minimum(high, 1 - others))


def count_quantile(mean: Tensor, variance: Tensor, Q: Tensor, z: float) -> Tensor:
    """The quantile of a count whose share of Q has a beta distribution; `mean` is at most Q / 2.

    By Paulson's approximation: of a ratio of gamma variables, the cube root is that of two normal
    ones. `z` is the quantile of the normal distribution. Upper quantiles do not fall where the
    variance is so large that those of the beta distribution do: all but a few counts would then be
    near 0.
    """
    share = (mean / Q).clamp(min=1e-12)
    relative = (variance.sqrt() / mean.clamp(min=1e-12)).clamp(min=1e-9)  # standard deviation
    if z > 0:
        relative = relative.clamp(max=1.5 * z)
    a = ((1 - share) / relative.square() - share).clamp(min=1e-12)  # the parameters
    b = a * (1 / share - 1)
    A, B = (1 - 1 / (9 * b)).clamp(min=0), (1 - 1 / (9 * a)).clamp(min=0)
    s, t = z * z / (9 * b), z * z / (9 * a)
    root = (A * A * t + B * B * s - s * t).clamp(min=0).sqrt()
    if z > 0:
        cube_root = ((A * B + root) / (A * A - s)).where(s < A * A, torch.inf)
    else:
        cube_root = (B * B - t).clamp(min=0) / (A * B + root).clamp(min=1e-12)
    return Q / (1 + b / (a * cube_root**3))
