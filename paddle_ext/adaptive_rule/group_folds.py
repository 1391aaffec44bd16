"""Calibrate on labelled rows that belong to groups, such as patients or sites.

Rows of a group are alike for more reasons than their class, so leaving out a row alone would make
the likelihood too sure of rows of new groups. Whole groups are left out instead, in a few folds.
Letters: S labelled rows of one task, K classes, D features, T mixtures; numbers in parentheses are
equations of docs/adaptive.md.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import check
from ..native.load import module as native
from .label_noise import AUTO
from .learn import Given, calibrate, learned_as_given, likelihood_of, uses_full_metric
from .likelihood import Likelihood

FOLDS = 10  # at most
FAR_BEHIND = 1e30  # the distance to a class that does not compete


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

    full = uses_full_metric(metric, labels.shape[1], num_classes)
    left = leave_groups_out(likelihood.centred(support), labels, groups, likelihood, full)
    found = calibration(left, labels[0])
    changed = replace(likelihood, sharpness=found.sharpness, bias=found.bias)
    return with_mixture(changed, found.share, left.length) if full else changed


@dataclass(frozen=True)
class LeftOut:
    """Labelled rows without all rows of their group."""

    distances: Tensor  # [T, S, K] (5) in each of the mixtures
    judged: Tensor  # [S] bool: whether the class of the row has others left
    length: Tensor  # [1] how long distances are in the full metric


def leave_groups_out(
    x: Tensor, labels: Tensor, groups: Tensor, likelihood: Likelihood, full: bool
) -> LeftOut:
    """(6) In up to ten folds of whole groups; centre, V and n0 are those of all rows [1, S, D]."""
    number = torch.unique(groups, return_inverse=True)[1]
    folds = min(FOLDS, int(number.max()) + 1)
    rests = []
    judged = torch.zeros_like(labels[0], dtype=torch.bool)
    lengths = x.new_full((2,), x.shape[1] * native.NO_SCATTER)  # rounding
    for fold in range(folds):
        out = number % folds == fold
        rest = without(x[:, ~out], labels[:, ~out], likelihood, full)
        judged[out] = rest.shots[0, labels[0, out]] > 0
        rests.append((out, rest))
        if full:
            alone = with_mixture(rest, 1.0, x.new_ones(1))
            plain = (x[:, out].square() * rest.scale.unsqueeze(1)).sum()
            lengths += torch.stack([plain, alone.squared(x[:, out]).sum()])

    length = (lengths[1] / lengths[0]).reshape(1)
    steps = native.MIXTURE_STEPS if full else 0
    ends = x.new_zeros(2 if full else 1, x.shape[1], likelihood.bias.shape[-1])
    for out, rest in rests:
        for share, distances in enumerate(ends):
            mixed = with_mixture(rest, float(share), length) if full else rest
            distances[out] = -mixed.logits_of(x[:, out])[0]
    mixtures = [torch.lerp(ends[0], ends[-1], step / max(steps, 1)) for step in range(steps + 1)]
    return LeftOut(torch.stack(mixtures), judged, length)


def without(x: Tensor, labels: Tensor, likelihood: Likelihood, full: bool) -> Likelihood:
    """That of the rows [1, N, D] of other groups, whose logits are minus the distances (5)."""
    K, centre = likelihood.bias.shape[-1], torch.zeros_like(likelihood.centre)
    rest, _ = learned_as_given(x, labels, K, 1, full, False, Given(centre))
    prototypes = rest.prototypes * (
        (rest.shots + rest.prior_rows) / (rest.shots + likelihood.prior_rows)
    ).unsqueeze(-1)
    changed = replace(
        rest,
        prototypes=prototypes,
        prior_rows=likelihood.prior_rows,
        variance=likelihood.variance,
        sharpness=torch.full_like(rest.sharpness, 2),
        bias=torch.zeros_like(rest.bias),
    )
    return replace(changed, squares=changed.squared(prototypes))


def recognised_without_groups(
    support: Tensor, labels: Tensor, num_classes: int, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """The most probable class of each row [S] without its group, and whether that is a test [S].

    It is none of rows whose class is in no other group.
    """
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    likelihood = likelihood_of(rows, own, num_classes)
    full = uses_full_metric("auto", len(labels), num_classes)
    left = leave_groups_out(likelihood.centred(rows), own, groups, likelihood, full)
    return calibration(left, labels).distances[0].argmin(-1), left.judged


@dataclass(frozen=True)
class Calibration:
    """What labelled rows choose when they are left out."""

    share: float  # of the full metric
    sharpness: Tensor  # [1] f
    bias: Tensor  # [1, K]
    distances: Tensor  # [1, S, K] of the rows left out in the mixture


def calibration(left: LeftOut, labels: Tensor) -> Calibration:
    """(7) and (8)"""
    distances, own = left.distances, labels.view(1, -1, 1)
    T, S, K = distances.shape
    if K > 1:
        # A class that is left with no row does not compete for the row left out.
        alone = torch.zeros_like(distances[:1], dtype=torch.bool)
        alone.scatter_(2, own, ~left.judged.view(1, -1, 1))
        distances = distances.masked_fill(alone, FAR_BEHIND)
    found = calibrate(distances, labels.expand(T, -1), left.judged.expand(T, -1))
    sharpness, objective, drawn = found

    # t grows while the objective stays within one standard error of its lowest so far.
    best, lowest = 0, math.inf
    for mixture, value in enumerate(objective.tolist()):
        if value >= lowest + native.STANDARD_ERROR:
            break
        best, lowest = mixture, min(lowest, value)
    one = slice(best, best + 1)
    attracted = drawn[one]
    bias = -torch.log1p((attracted - attracted.mean()) / (S / K + 1))
    return Calibration(best / max(T - 1, 1), sharpness[one], bias, left.distances[one])


def with_mixture(likelihood: Likelihood, share: float, length: Tensor) -> Likelihood:
    """The likelihood with this share of its full metric, which is so long, [1]."""
    full = share / length
    assert likelihood.scatter is not None
    # By rows, the full metric is the plain one less a part; see csrc/common/adaptive.h.
    by_rows = likelihood.scaled.shape[1] > likelihood.bias.shape[-1]
    plain = 1 - share + full if by_rows else torch.full_like(full, 1 - share)
    projected = -full / likelihood.scatter if by_rows else full
    shares = torch.stack([torch.full_like(full, share), plain, projected], -1)
    mixed = replace(likelihood, shares=shares)
    return replace(mixed, squares=mixed.squared(mixed.prototypes))
