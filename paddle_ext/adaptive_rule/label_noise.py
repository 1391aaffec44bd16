"""Weigh labelled rows by the probability that their label is right; docs/adaptive.md has the model.

A row of weight r counts r times in the mean of its class, in the full metric and in the
calibration. Its label is right with the probability r by Bayes' rule, from its class probabilities
when it is left out, and the share e of wrong labels. These follow from each other in rounds.

Letters as in `likelihood`; numbers in parentheses are equations of docs/adaptive.md.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import check
from ..native.graphs import replayed
from ..native.load import module as native
from ..rows import products
from .learn import learned, likelihood_of
from .likelihood import PRIOR_DEGREES, VARIANCE_INSIDE, Likelihood, as_split, column

AUTO = "auto"
# Limit on labelled rows times classes, if each row is left out in turn; more would take too long.
MOST_LEFT_OUT = 2**26
ROUNDS = 4
# Wrong labels make the sharpness too small in the first round, before rows are weighed.
SHARPER = 2.0
LEAST_WEIGHT = 1e-3  # of a row: less is lost in single precision
LEAST_OTHERS = 1e-4  # share of a class that remains without a row; less only with given weights
LEAST_REMAINDER = 1e-3  # smallest share of the covariance that remains without a row
TINY = 1e-30  # what is divided by, or a logarithm is taken of, is at least this

# A priori, as in `learn`.
SHARPNESS, SPREAD = 40.0, math.log(2.0)  # the median of f, and the deviation of ln f
DETERMINANT = 0.5  # part of the log-determinant
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the full metric
STANDARD_ERROR = 0.5  # of a log-likelihood

# How finely f and e are computed.
LOG_LEAST, LOG_MOST = math.log(0.1), math.log(1e4)  # of f
NEWTON_STEPS, LONGEST_STEP = 16, 1.5
LAST_STEP = 1e-4  # in ln f; the error is about its square
HALVINGS = 30


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
    given: Tensor | None = None,
    trusted: Tensor | None = None,
) -> WeighedLabels:
    """Estimate which labels are wrong, and learn the likelihood with rows weighed accordingly.

    There must be more rows [B, S, D] than classes. The share of wrong labels is > 0, or "auto";
    `given` [B, S] are further weights of the rows in the means of their classes. The labels of
    `trusted` rows [B, S] are right. The host does not wait for a GPU, so calls can be `replayed`.
    """
    trusting, distances = learned(support, labels, num_classes, metric, left_out=True)
    assert distances is not None
    rows = LabelledRows.of(trusting, support, labels, given)
    doubted = rows.has_others if trusted is None else rows.has_others & ~trusted

    weighing = Weighing(doubted, labels, num_classes, label_noise)
    found = weighing.chances(distances, SHARPER * trusting.sharpness)
    noisy = found.rate > 0
    waits = not support.is_cuda  # for what it finds, before further work that may be in vain
    if waits and not bool(noisy.any()):
        every = torch.ones_like(found.weights)
        return WeighedLabels(trusting, found.rate, every, left_out_logits(trusting, distances))

    for _ in range(ROUNDS):
        weights = found.weights
        weighted = WeightedRows.of(rows, weights)
        mixture = likeliest_mixture(weighted, labels)
        found = weighing.chances(mixture.distances, mixture.sharpness)
    rate = found.rate

    likelihood = weighted.likelihood(rows, mixture)
    logits = left_out_logits(likelihood, mixture.distances)
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


# --- learning from weighted rows ------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledRows:
    """Labelled rows in the coordinates (1), which stay as they are; so do feature weights (2)."""

    trusting: Likelihood  # of rows that all count alike
    x: Tensor  # [B, S, D] times the root of the feature weights
    labels: Tensor  # [B, S]
    given: Tensor | None  # [B, S]
    has_others: Tensor  # [B, S] whether the class has other rows

    @classmethod
    def of(
        cls, trusting: Likelihood, support: Tensor, labels: Tensor, given: Tensor | None
    ) -> "LabelledRows":
        x = trusting.centred(support) * trusting.scale.sqrt().unsqueeze(1)
        own_given = None if given is None else given.to(x.dtype)
        counts = torch.zeros_like(trusting.shots)
        counts.scatter_add_(1, labels, torch.ones_like(x[..., 0]))
        return cls(trusting, x, labels, own_given, counts.gather(1, labels) > 1)


@dataclass(frozen=True)
class Products:
    """Products of rows x, class means w and offsets o = x - w_y in one metric."""

    rows: Tensor  # [B, S] x.x
    to_means: Tensor  # [B, S, K] x.w
    means: Tensor  # [B, K] w.w
    offsets: Tensor  # [B, S] o.o
    along_rows: Tensor  # [B, S] o.x
    along_means: Tensor  # [B, S, K] o.w

    @classmethod
    def of(cls, x: Tensor, w: Tensor, o: Tensor) -> "Products":
        return cls(
            rows=x.square().sum(-1),
            to_means=products(x, w),
            means=w.square().sum(-1),
            offsets=o.square().sum(-1),
            along_rows=(o * x).sum(-1),
            along_means=products(o, w),
        )

    def plus(self, other: "Products", factor: Tensor) -> "Products":
        """The sum of these and of others times a factor [B]."""
        found: Any = {
            name: own + factor.view(-1, *[1] * (own.dim() - 1)) * getattr(other, name)
            for name, own in vars(self).items()
        }
        return Products(**found)


@dataclass(frozen=True)
class FullMetric:
    """(3) A = ( sum_i r_i o_i o_i' / L + 1 )^-1 by its Cholesky factor, as in `Likelihood`."""

    factor: Tensor  # [B, M, M]
    offsets: Tensor | None  # [B, S, D] times the root of their weights, with fewer rows than D
    solved: Tensor  # [B, K, M] the class means, seen through the factor
    products: Products


@dataclass(frozen=True)
class WeightedRows:
    """The model and the rows left out, for rows that count by weights; t_i is r_i times given."""

    weights: Tensor  # [B, S] r
    means: Tensor  # [B, K, D] w, scaled
    shots: Tensor  # [B, K] n = (sum t)^2 / sum t^2 rows that a mean is worth
    prior_rows: Tensor  # [B] n0
    variance: Tensor  # [B] V
    ridge: Tensor  # [B] L
    length: Tensor  # [B] how long distances are in the full metric
    full: FullMetric | None
    left_out: tuple[Tensor, ...]  # [B, S, K] squared distances in one metric or both
    mass: Tensor  # [B, S, K] of the prototypes that they lead to
    has_others: Tensor  # [B, S] whether the class has other rows

    @classmethod
    def of(cls, rows: LabelledRows, weights: Tensor) -> "WeightedRows":
        x, labels = rows.x, rows.labels
        total = weights if rows.given is None else weights * rows.given
        (B, S, D), K = x.shape, rows.trusting.shots.shape[-1]
        members = x.new_zeros(B, K, S).scatter_(1, labels.unsqueeze(1), total.unsqueeze(1))
        sums, squares = members.sum(-1), members.square().sum(-1)
        shots = sums.square() / squares
        means = (members @ x) / sums.unsqueeze(-1)
        offsets = x - means.gather(1, labels.unsqueeze(-1).expand(-1, -1, D))

        # (3) and (4) The part of a row in its own mean makes the square of its offset smaller.
        own_sums = sums.gather(1, labels)
        others = torch.maximum(own_sums - total, LEAST_OTHERS * own_sums)
        apart = torch.where(rows.has_others, others / own_sums, 1)
        judged = weights * rows.has_others
        degrees = (judged * apart).sum(-1)
        far = offsets.square().sum(-1)
        ridge = (judged * far).sum(-1) / degrees.clamp(min=LEAST_WEIGHT) + 1e-12
        inside = (judged * far / apart).sum(-1) / judged.sum(-1).clamp(min=LEAST_WEIGHT)
        usual = x.square().sum(-1).mean(-1).clamp(min=TINY)
        variance = degrees * inside + PRIOR_DEGREES * VARIANCE_INSIDE * usual
        variance = variance / (degrees + PRIOR_DEGREES)
        share = (variance / usual).clamp(0.02, 0.98)
        prior_rows = share / (1 - share)

        # (6) Without row i its class has the mean  w_y + s_i o_i,  s_i = -t_i / (sum t - t_i).
        shift = torch.where(rows.has_others, -total / others, 0)
        squares_left = (squares.gather(1, labels) - total.square()).clamp(min=TINY)
        shots_left = torch.where(rows.has_others, others.square() / squares_left, 0)
        at = labels.unsqueeze(-1)
        n = shots.unsqueeze(1).expand(-1, S, -1).scatter(-1, at, shots_left.unsqueeze(-1))
        mass = n + column(prior_rows)
        known = n / mass  # the rest of a prototype is at the centre

        def squared(p: Products, gain: Tensor | None) -> tuple[Tensor, Tensor]:
            """Squared distances of rows left out, and of rows to the means of the others."""
            own_mean, own_along = (y.gather(-1, at) for y in (p.to_means, p.along_means))
            s = shift.unsqueeze(-1)
            square = p.means.unsqueeze(1).expand_as(p.to_means)
            own_square = square.gather(-1, at) + 2 * s * own_along
            own_square = own_square + s.square() * p.offsets.unsqueeze(-1)
            to_means = p.to_means.scatter(-1, at, own_mean + s * p.along_rows.unsqueeze(-1))
            square = square.scatter(-1, at, own_square)
            found = p.rows.unsqueeze(-1) - 2 * known * to_means + known.square() * square
            offsets = p.offsets
            if gain is not None:
                # The metric without row i adds  gain (o.y)^2  to the square of y.
                along = p.along_means.scatter(-1, at, own_along + s * p.offsets.unsqueeze(-1))
                along = p.along_rows.unsqueeze(-1) - known * along
                found = torch.addcmul(found, gain.unsqueeze(-1), along.square())
                offsets = offsets + gain * offsets.square()
            return found, ((1 - shift).square() * offsets * judged).sum(-1)

        plain_products = Products.of(x, means, offsets)
        plain, plain_length = squared(plain_products, None)
        length, full = torch.ones_like(ridge), None
        left_out: tuple[Tensor, ...] = (plain,)
        if rows.trusting.factor is not None:
            full = full_metric(x, means, labels, offsets, weights, ridge, plain_products)
            cut = judged / (apart * ridge.unsqueeze(-1))
            gain = cut / (1 - cut * full.products.offsets).clamp(min=LEAST_REMAINDER)
            seen, full_length = squared(full.products, gain)
            length = (full_length / plain_length.clamp(min=TINY)).clamp(min=1e-9)
            left_out = plain, seen / column(length)
        return cls(
            weights=weights,
            means=means,
            shots=shots,
            prior_rows=prior_rows,
            variance=variance,
            ridge=ridge,
            length=length,
            full=full,
            left_out=left_out,
            mass=mass,
            has_others=rows.has_others,
        )

    def likelihood(self, rows: LabelledRows, mixture: "Mixture") -> Likelihood:
        """The likelihood for new rows."""
        trusting, share = rows.trusting, mixture.share
        known = (self.shots / (self.shots + self.prior_rows.unsqueeze(-1))).unsqueeze(-1)
        prototypes = self.means * known  # scaled
        scaled = prototypes
        changed: Any = {"squares": prototypes.square().sum(-1)}
        if self.full is not None:
            full = known.squeeze(-1).square() * self.full.products.means / self.length.unsqueeze(-1)
            changed["squares"] = torch.lerp(changed["squares"], full, share.unsqueeze(-1))
            projected = share / self.length
            shares = [share, 1 - share, projected]
            if self.full.offsets is not None:
                scaled = torch.cat([self.full.offsets, scaled], 1)
                shares = [share, 1 - share + projected, -projected / self.ridge]
            changed["shares"] = torch.stack(shares, -1)
            changed["factor"] = as_split(with_inverted_blocks(self.full.factor))
            padding = changed["factor"].shape[1] - self.full.solved.shape[-1]
            solved = torch.nn.functional.pad(self.full.solved * known, (0, padding))
            changed["solved"] = as_split(solved.contiguous())
        return replace(
            trusting,
            prototypes=prototypes / trusting.scale.sqrt().unsqueeze(1),
            scaled=as_split(scaled),
            bias=bias_of(self, mixture, rows.labels),
            shots=self.shots,
            prior_rows=self.prior_rows,
            variance=self.variance,
            sharpness=mixture.sharpness,
            **changed,
        )


def full_metric(
    x: Tensor,
    means: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor,
    ridge: Tensor,
    plain: Products,
) -> FullMetric:
    """(3) for scaled rows [B, S, D]; `plain` are their products in the feature weights."""
    S, D = x.shape[1:]
    weighted = offsets * weights.sqrt().unsqueeze(-1)
    every = torch.cat([x, means], 1)
    if S < D:  # the same by the matrix of S rows: A = 1 - V' (V V' + L)^-1 V
        gram, right = products(weighted, weighted), products(weighted, every)
    else:
        gram, right = weighted.mT @ weighted, every.mT
    gram = gram / column(ridge)
    gram.diagonal(dim1=-2, dim2=-1).add_(1)
    # With features that are not finite, and not checked, there is none; no error, no waiting.
    factor = torch.linalg.cholesky_ex(gram).L
    seen = torch.linalg.solve_triangular(factor, right, upper=False).mT
    seen_rows, seen_means = seen[:, :S], seen[:, S:]
    of_labels = labels.unsqueeze(-1).expand(-1, -1, seen.shape[-1])
    found = Products.of(seen_rows, seen_means, seen_rows - seen_means.gather(1, of_labels))
    if S < D:
        return FullMetric(factor, weighted, seen_means, plain.plus(found, -1 / ridge))
    return FullMetric(factor, None, seen_means, found)


def with_inverted_blocks(factor: Tensor) -> Tensor:
    """A Cholesky factor [B, M, M] in the form of `Likelihood`: padded, diagonal blocks inverted."""
    M, size = factor.shape[-1], native.FACTOR_BLOCK
    pad = -M % size
    found = torch.nn.functional.pad(factor, (0, pad, 0, pad)).contiguous()
    found.diagonal(dim1=-2, dim2=-1)[..., M:].fill_(1)
    one = torch.eye(size, dtype=factor.dtype, device=factor.device)
    for start in range(0, M, size):
        here = slice(start, start + size)
        block = found[:, here, here]
        found[:, here, here] = torch.linalg.solve_triangular(
            block, one.expand_as(block), upper=False
        )
    return found


# --- calibration ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """The mixture of the metrics in which labels are likely."""

    sharpness: Tensor  # [B] f
    share: Tensor  # [B] t of the full metric
    distances: Tensor  # [B, S, K] (5) of the rows left out


def likeliest_mixture(rows: WeightedRows, labels: Tensor) -> Mixture:
    """(7) t grows while the objective stays within one standard error of its lowest so far."""
    spread = 1 + 1 / rows.mass
    determinant = column(rows.variance) * DETERMINANT * spread.log()
    judged = rows.weights * rows.has_others

    def fit(t: float, start: Tensor | None) -> tuple[Mixture, Tensor]:
        squares = rows.left_out[0] if t == 0 else torch.lerp(rows.left_out[0], rows.left_out[1], t)
        distances = squares / spread + determinant
        f, objective = likeliest_sharpness(distances, labels, judged, start)
        return Mixture(f, torch.full_like(f, t), distances), objective

    best, lowest = fit(0.0, None)
    grows = torch.ones_like(lowest).bool()
    for t in MIXTURES[1:] if len(rows.left_out) > 1 else ():
        more, objective = fit(t, best.sharpness)
        grows = grows & (objective < lowest + STANDARD_ERROR)
        if not objective.is_cuda and not bool(grows.any()):
            break
        lowest = torch.where(grows, torch.minimum(lowest, objective), lowest)
        best = Mixture(
            torch.where(grows, more.sharpness, best.sharpness),
            torch.where(grows, more.share, best.share),
            torch.where(column(grows), more.distances, best.distances),
        )
    return best


def bias_of(rows: WeightedRows, mixture: Mixture, labels: Tensor) -> Tensor:
    """(8) The bias of hubs, [B, K]; all rows count alike."""
    # A class that is left with no row does not compete for the row that is left out.
    distances, at = mixture.distances, labels.unsqueeze(-1)
    own = distances.gather(-1, at).masked_fill(~rows.has_others.unsqueeze(-1), math.inf)
    p = (distances.scatter(-1, at, own) * column(mixture.sharpness / -2)).softmax(-1)
    attracted = p.scatter(-1, at, 0).sum(1)
    S, K = p.shape[1:]
    return -torch.log1p((attracted - attracted.mean(-1, keepdim=True)) / (S / K + 1))


def likeliest_sharpness(
    distances: Tensor, labels: Tensor, weights: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(7) f, and minus the logarithm of its posterior, [B]: Newton steps in ln f in a bracket."""
    d, precision = distances, SPREAD**-2
    own = d.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    middle = math.log(SHARPNESS)
    at = d.new_full(d.shape[:1], middle) if start is None else start.log()
    low, high = torch.full_like(at, LOG_LEAST), torch.full_like(at, LOG_MOST)
    for _ in range(NEWTON_STEPS):
        f = at.exp()
        p = (d * column(f / -2)).softmax(-1)
        mean, square = (p * d).sum(-1), (p * d.square()).sum(-1)
        first = f / 2 * ((own - mean) * weights).sum(-1)
        slope = first + (at - middle) * precision
        variance = (square - mean.square()).clamp(min=0)
        curvature = first + f.square() / 4 * (variance * weights).sum(-1) + precision

        low, high = torch.where(slope < 0, at, low), torch.where(slope < 0, high, at)
        step = at - (slope / curvature).clamp(-LONGEST_STEP, LONGEST_STEP)
        inside = (curvature > 0) & (step >= low) & (step <= high)
        moved = torch.where(inside, step, (low + high) / 2)
        far = (moved - at).abs() > LAST_STEP
        at = moved
        if not at.is_cuda and not bool(far.any()):
            break

    half = at.exp() / -2
    entropy = (d * column(half)).logsumexp(-1) - own * half.unsqueeze(-1)
    objective = (entropy * weights).sum(-1) + (at - middle).square() * (precision / 2)
    return at.exp(), objective
