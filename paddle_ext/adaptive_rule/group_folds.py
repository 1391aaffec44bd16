"""Calibrate on labelled rows that belong to groups, such as patients or sites.

Rows of a group are alike for more reasons than their class, so leaving out a row alone would make
the likelihood too sure of rows of new groups. Whole groups are left out instead, in a few folds.
Letters: S labelled rows of one task, K classes, D features, T mixtures; numbers in parentheses are
equations of docs/adaptive.md.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import check
from ..native.load import module as native
from ..rows import class_sums
from .label_noise import AUTO
from .learn import calibrate, likelihood_of, uses_full_metric
from .likelihood import Likelihood

FOLDS = 10  # at most
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the full metric
PRIOR_DEGREES = 10.0  # degrees of freedom that a priori variances weigh
TINY = 1e-30


def check_trusted(label_noise: float | str) -> None:
    """Reject a share of wrong labels next to groups; "auto" trusts all labels there."""
    if label_noise not in (0.0, AUTO):
        raise check.ArgumentValueError(
            "label_noise",
            f"must be 0.0 or {AUTO!r} with groups of labelled rows, got {label_noise}",
        )


def likelihood_by_groups(
    support: Tensor, labels: Tensor, num_classes: int, groups: Tensor, metric: str = "auto"
) -> Likelihood:
    """The likelihood of rows [1, S, D], calibrated on rows left out with their whole group [S]."""
    likelihood = likelihood_of(support, labels, num_classes, metric)
    if not bool((groups != groups[0]).any()):  # a single group cannot be left out
        return likelihood

    x = likelihood.centred(support)[0].double()
    own = labels[0]
    full = uses_full_metric(metric, len(x), num_classes)
    left = leave_groups_out(x, own, groups, likelihood, MIXTURES if full else MIXTURES[:1])

    best, sharpness = calibration(left, own)
    bias = hubs(left.distances[best], left.judged, own, sharpness)
    real = likelihood.bias.dtype
    found = replace(
        likelihood,
        sharpness=torch.full_like(likelihood.sharpness, sharpness),
        bias=bias.to(real).unsqueeze(0),
    )
    return with_mixture(found, x, own, MIXTURES[best], left.length) if full else found


@dataclass(frozen=True)
class LeftOut:
    """Labelled rows without all rows of their group."""

    distances: Tensor  # [T, S, K] (5) in each of the mixtures
    judged: Tensor  # [S] bool: whether the class of the row has others left
    length: float  # how long distances are in the full metric


def leave_groups_out(
    x: Tensor, labels: Tensor, groups: Tensor, likelihood: Likelihood, mixtures: tuple[float, ...]
) -> LeftOut:
    """(6) In up to ten folds of whole groups; the centre, V and n0 are those of all rows [S, D]."""
    K = likelihood.bias.shape[-1]
    number = torch.unique(groups, return_inverse=True)[1]
    folds = min(FOLDS, int(number.max()) + 1)

    plain, full, mass = (x.new_zeros(len(x), K) for _ in range(3))
    judged = torch.zeros_like(labels, dtype=torch.bool)
    length_of_plain = length_of_full = 0.0
    for fold in range(folds):
        left_out = number % folds == fold
        rest = Rest.of(x[~left_out], labels[~left_out], K)
        prior_rows = likelihood.prior_rows[0].double()
        mass[left_out] = rest.counts + prior_rows
        prototypes = rest.means * (rest.counts / (rest.counts + prior_rows)).unsqueeze(1)

        rows, means = x[left_out] * rest.root, prototypes * rest.root
        judged[left_out] = rest.counts[labels[left_out]] > 0
        plain[left_out] = squared_distances(rows, means)
        if len(mixtures) > 1:
            full[left_out], squares = rest.in_full_metric(rows, means)
            length_of_plain += float(rows.square().sum())
            length_of_full += squares

    rounding = len(x) * native.NO_SCATTER
    length = (length_of_full + rounding) / (length_of_plain + rounding)
    variance, spread = likelihood.variance[0].double(), 1 + 1 / mass
    determinant = variance * spread.log() / 2
    squared = [torch.lerp(plain, full / length, share) for share in mixtures]
    distances = torch.stack([own / spread + determinant for own in squared])
    return LeftOut(distances, judged, length)


def recognised_without_groups(
    support: Tensor, labels: Tensor, num_classes: int, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """The most probable class of each row [S] without its group, and whether that is a test [S].

    It is none of rows whose class is in no other group.
    """
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    likelihood = likelihood_of(rows, own, num_classes)
    left = leave_groups_out(
        likelihood.centred(rows)[0].double(), labels, groups, likelihood, MIXTURES
    )
    best, _ = calibration(left, labels)
    return left.distances[best].argmin(-1), left.judged


@dataclass(frozen=True)
class Rest:
    """What the rows of the other groups tell: class means, and both metrics (2) and (3)."""

    counts: Tensor  # [K]
    means: Tensor  # [K, D]; zero for a class without rows
    root: Tensor  # [D] of the feature weights
    offsets: Tensor  # [S, D] of rows from their class means, times the root
    ridge: float

    @classmethod
    def of(cls, x: Tensor, labels: Tensor, num_classes: int) -> "Rest":
        sums, _ = class_sums(x.unsqueeze(0), labels.unsqueeze(0), num_classes)
        counts = labels.bincount(minlength=num_classes).to(x)
        means = sums[0] / counts.clamp(min=1).unsqueeze(1)
        offsets = x - means[labels]
        degrees = float(len(x) - (counts > 0).sum())

        inside = relative(offsets.square().sum(0), degrees * native.NO_SCATTER)
        squares = means.square().sum(0)
        resting = squares.square() / means.pow(4).sum(0).clamp(min=TINY)
        known = degrees * inside + resting * relative(squares) + PRIOR_DEGREES
        variance = known / (degrees + resting + PRIOR_DEGREES)
        root = relative(1 / (variance + 1)).sqrt()

        offsets = offsets * root
        rows = max(degrees, 1.0)
        ridge = float(offsets.square().sum()) / rows + rows * native.NO_SCATTER
        return cls(counts, means, root, offsets, ridge)

    def in_full_metric(self, rows: Tensor, means: Tensor) -> tuple[Tensor, float]:
        """Squared distances [N, K] of weighted rows to means, and the sum of squares of the rows.

        With more features than labelled rows by the Woodbury identity,
        ``(V'V / L + 1)^-1 = 1 - V' (V V' + L)^-1 V``.
        """
        V = self.offsets
        by_rows = len(V) < V.shape[1]
        products = V @ V.mT if by_rows else V.mT @ V
        products.diagonal().add_(self.ridge)
        factor = torch.linalg.cholesky(products)
        if not by_rows:
            factor = factor / math.sqrt(self.ridge)
            x, w = (solved(factor, z.mT) for z in (rows, means))
            return squared_distances(x, w), float(x.square().sum())

        x, w = (solved(factor, V @ z.mT) for z in (rows, means))
        distances = squared_distances(rows, means) - squared_distances(x, w)
        return distances, float(rows.square().sum() - x.square().sum())


def calibration(left: LeftOut, labels: Tensor) -> tuple[int, float]:
    """(7) The number of the mixture, and f."""
    judged = left.distances[:, left.judged]
    T, R, _ = judged.shape
    sharpness, objective = [native.SHARPNESS] * T, [0.0] * T
    if R:
        found = calibrate(judged, labels[left.judged].expand(T, -1))
        sharpness, objective = found[0].tolist(), found[1].tolist()

    # t grows while the objective stays within one standard error of its lowest so far.
    best, lowest = 0, math.inf
    for mixture, value in enumerate(objective):
        if value >= lowest + native.STANDARD_ERROR:
            break
        best, lowest = mixture, min(lowest, value)
    return best, sharpness[best]


def hubs(distances: Tensor, judged: Tensor, labels: Tensor, sharpness: float) -> Tensor:
    """(8) The bias [K]; a class that is left with no row does not compete for the row left out."""
    S, K = distances.shape
    member = F.one_hot(labels, K).bool()
    if K > 1:
        distances = distances.masked_fill(member & ~judged.unsqueeze(1), math.inf)
    attracted = (-sharpness / 2 * distances).softmax(-1).masked_fill(member, 0).sum(0)
    return -torch.log1p((attracted - attracted.mean()) / (S / K + 1))


def with_mixture(
    likelihood: Likelihood, x: Tensor, labels: Tensor, share: float, length: float
) -> Likelihood:
    """The likelihood with this share of its full metric, which is so long."""
    (S, D), real = x.shape, likelihood.bias.dtype
    if S < D:  # Z is that of the offsets, and the full metric the plain one less a part
        rest = Rest.of(x, labels, likelihood.bias.shape[-1])
        weights = share, 1 - share + share / length, -share / length / rest.ridge
    else:
        weights = share, 1 - share, share / length
    shares = x.new_tensor(weights).to(real).unsqueeze(0)
    mixed = replace(likelihood, shares=shares)
    return replace(mixed, squares=mixed.squared(mixed.prototypes))


def relative(variance: Tensor, rounding: float = 0.0) -> Tensor:
    """Divided by the mean over the features; a sum over these of less than `rounding` is none."""
    return variance / ((variance.sum() + rounding) / len(variance)).clamp(min=TINY)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Of rows [N, D] to rows [K, D]."""
    inner = x @ y.mT
    return (x.square().sum(1, keepdim=True) - 2 * inner + y.square().sum(1)).clamp(min=0)


def solved(factor: Tensor, right: Tensor) -> Tensor:
    """Rows [N, M] of the inverse of a Cholesky factor times a matrix [M, N]."""
    rows: Tensor = torch.linalg.solve_triangular(factor, right, upper=False).mT
    return rows
