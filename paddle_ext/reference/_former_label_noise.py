"""TEMPORARY: weights of labelled rows in the former rule, until `adaptive` is the new one.

Letters as in `adaptive`; e is the share of wrong labels. The equations are in docs/adaptive.md.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

OCTAVES = [i / 2 for i in range(-4, 9)]  # of the sharpness, relative to the prior's
SHARPNESS, SPREAD = 16.0, math.log(2.0)
RATES = [(i / 16) ** 2 for i in range(17)]  # of wrong labels, relative to the largest
MANY = 0.25  # a larger share of wrong labels is estimated again
LEAST, TINY, KEPT = 1e-3, 1e-30, 1e-3
MIXTURES = (0.25, 0.5, 0.75, 1.0)  # weights of the full metric to try, in addition to 0
STANDARD_ERROR = 0.5  # a log-likelihood is this much lower one standard error from its maximum
MOST_ROWS = 2**17  # more labelled rows weigh like this many in the full metric
NO_SCATTER = 1e-10  # smaller squared distances are rounding


class Mixture(NamedTuple):
    """The weight t of the full metric, and kappa, by which its distances are divided."""

    t: float
    kappa: float

    def of(self, plain: Tensor, full: Tensor) -> Tensor:
        return (1 - self.t) * plain + self.t / self.kappa * full


class Noisy(NamedTuple):
    """Weighted class means and metric, and what replaces the sharpness and the hubs."""

    means: Tensor  # [K, D]
    shots: Tensor  # [K] effective
    metric: Tensor  # [D, D]
    sharpness: float
    hubs: Tensor  # [K]


def excess_of(variance: float, shots: Tensor, usual: Tensor | float) -> Tensor:
    """How much farther means of `shots` [K] rows seem than means of the `usual` number.

    A mean of n rows is V / n from the true mean, in squared distance. As its rows are in the centre
    of K means, they are nearer to it than queries, by 2 / K of this, so that their mean, whose
    square is 1 - V + V / n, is too long once all are unit-norm.
    """
    known, part = max(1 - variance, 0.0), 2 / len(shots)
    few, many = (
        variance / n * (1 + part * (known + variance / n)) for n in (shots, torch.as_tensor(usual))
    )
    return few - many


def full_metric(off: Tensor, rows: float, plain: Tensor) -> tuple[Tensor, Tensor]:
    """A = (sum of v v^T / l + 1)^-1 in the feature scale, and l, the mean squared length of v.

    `off` is v of all labelled rows, times the root of the row's weight; `rows` is how many there
    are, less one for every class; `plain` is the diagonal metric.
    """
    root = plain.diagonal().sqrt()
    scaled = off * root
    rows = min(rows, MOST_ROWS)
    length = scaled.square().sum() / rows + rows * NO_SCATTER
    inverse = torch.linalg.inv(scaled.mT @ scaled / length + torch.eye(len(root)).to(scaled))
    return root.unsqueeze(1) * inverse * root, length


def distances(
    x: Tensor, labels: Tensor, weights: Tensor, plain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances to weighted class means, left out of its own, in both metrics; and A."""
    K = int(labels.max()) + 1
    means, mass, squares = weighted_means(x, labels, weights, K)
    off = x - means[labels]
    rows = float((mass - squares / mass).sum())
    A, length = full_metric(off * weights.sqrt().unsqueeze(1), rows, plain)
    of_rows = []
    for i, y in enumerate(labels.tolist()):
        w, away = weights[i], x[i] - means
        cut = w / ((1 - w / mass[y]).clamp(min=LEAST) * length)
        along = A @ off[i]
        kept = (1 - cut * (off[i] @ along)).clamp(min=KEPT)
        by_scale = ((away @ plain) * away).sum(-1)
        by_full = ((away @ A) * away).sum(-1) + cut / kept * (away @ along).square()
        seen = 1 - 2 * w * mass[y] / (mass[y].square() + squares[y])
        by_full[y] = off[i] @ along / kept
        of_rows.append(torch.stack([by_scale, by_full]))
        of_rows[-1][:, y] /= seen.clamp(min=LEAST**2)
    return *torch.stack(of_rows, 1), A


def weighted_means(
    x: Tensor, labels: Tensor, weights: Tensor, K: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted class means [K, D], and sums of the weights and of their squares, [K] each."""
    w = weights * torch.nn.functional.one_hot(labels, K).mT  # [K, S]
    mass = w.sum(-1)
    return w @ x / mass.unsqueeze(-1), mass, w.square().sum(-1)


def joint_probabilities(own: Tensor, e: float, trusted: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The joint probabilities of a label and that it is right, and that it is wrong, [R] each."""
    rates = torch.where(trusted, 0.0, e).to(own)
    return (1 - rates) * own, rates / (K - 1) * (1 - own)


def top(fits: list[float]) -> tuple[int, float, float]:
    """The best of fits at 0, 1, .. but not the first or last; the top of a parabola there."""
    best = min(max(fits.index(max(fits)), 1), len(fits) - 2)
    low, middle, high = fits[best - 1 : best + 2]
    bend = min(low - 2 * middle + high, -TINY)
    beyond = min(max((low - high) / (2 * bend), -1.0), 1.0)
    return best, best + beyond, middle - (low - high) * beyond / 4


def rate_of(own: Tensor, trusted: Tensor, rate: float | None, K: int) -> tuple[float, float]:
    """The share of wrong labels that makes labels of these probabilities [R] most likely."""
    fits = []
    for e in [share * (1 - 1 / K) for share in RATES] if rate is None else [rate]:
        right, wrong = joint_probabilities(own, e, trusted, K)
        fits.append((float((right + wrong).clamp(min=TINY).log().sum()), -e))
    return -max(fits)[1], max(fits)[0]


def sharpness_of(
    d: Tensor, own: Tensor, trusted: Tensor, rate: float | None
) -> tuple[float, float, float]:
    """The most likely sharpness, the share of wrong labels near it, and the log-likelihood."""
    K, rates, fits = d.shape[1], [], []
    for octave in OCTAVES:
        f = SHARPNESS * 2**octave
        p = (-f / 2 * d).softmax(-1).gather(1, own.unsqueeze(1)).squeeze(1)
        e, fit = rate_of(p, trusted, rate, K)
        rates.append(e)
        fits.append(fit - (octave * math.log(2)) ** 2 / (2 * SPREAD**2))
    best, at, fit = top(fits)
    return SHARPNESS * 2 ** (OCTAVES[0] + at / 2), rates[best], fit


def mixture_of(
    plain: Tensor,
    full: Tensor,
    own: Tensor,
    weights: Tensor,
    excess: Tensor,
    trusted: Tensor,
    rate: float | None,
) -> Mixture:
    """The mixture of the distances [R, K] of the judges in the two metrics."""
    near = [(d.gather(1, own.unsqueeze(1)).squeeze(1) * weights).sum() for d in (plain, full)]
    kappa = float((near[1] + TINY) / (near[0] + TINY))
    best, t = sharpness_of(plain - excess, own, trusted, rate)[2], 0.0
    for more in MIXTURES:
        mixed = Mixture(more, kappa).of(plain, full) - excess
        fit = sharpness_of(mixed, own, trusted, rate)[2]
        if fit <= best - STANDARD_ERROR:
            break
        best, t = max(best, fit), more
    return Mixture(t, kappa)


def weigh_labels(
    x: Tensor,
    labels: Tensor,
    plain: Tensor,
    before: Mixture | None,
    judges: Tensor,
    label_noise: float | str,
    variance: float,
    trusted: Tensor | None = None,
) -> Noisy | None:
    """Learn from rows [S, D] in the coordinates, some with wrong labels; None if all are right.

    `plain` [D, D] is the diagonal metric, `before` the mixture if all labels are right, None
    without a full metric. `judges` [R] are the indices of the rows that determine the sharpness and
    the rate; `variance` is the mean squared distance of a row to the mean of its class. The labels
    of `trusted` rows [S] are right.
    """
    S, K = len(x), int(labels.max()) + 1
    has_peers = labels.bincount()[labels] > 1
    trusted = torch.zeros_like(has_peers) if trusted is None else trusted
    judges = judges[has_peers[judges]]
    own = labels[judges]
    rate = None if label_noise == "auto" else float(label_noise)
    weights, mixture = x.new_ones(S), before or Mixture(0.0, 1.0)
    for step in range(3):
        means, mass, squares = weighted_means(x, labels, weights, K)
        excess = excess_of(variance, mass.square() / squares, S / K)
        by_scale, by_full, A = distances(x, labels, weights, plain)
        if before and step:
            judged = by_scale[judges], by_full[judges], own, weights[judges]
            mixture = mixture_of(*judged, excess, trusted[judges], rate)
        d = mixture.of(by_scale, by_full) - excess
        f, e, _ = sharpness_of(d[judges], own, trusted[judges], rate)
        p = (-f / 2 * d).softmax(-1)
        given = p.gather(1, labels.unsqueeze(1)).squeeze(1)
        if step == 0 and e == 0:
            return None
        right, wrong = joint_probabilities(given, e, trusted, K)
        right, wrong = (part / (right + wrong).clamp(min=TINY) for part in (right, wrong))
        if step == 2 or (step == 1 and e <= MANY):
            break
        weights = torch.where(has_peers & ~trusted, right.clamp(min=LEAST), 1.0)
    belongs = p * (wrong / (1 - given).clamp(min=TINY)).unsqueeze(1)
    belongs = belongs.scatter(1, labels.unsqueeze(1), right.unsqueeze(1))
    drawn = (p * (1 - belongs).clamp(min=0))[judges].sum(0)
    hubs = -torch.log1p((drawn - drawn.mean()) / (len(judges) / K + 1))
    return Noisy(means, mass.square() / squares, mixture.of(plain, A), f, hubs)
