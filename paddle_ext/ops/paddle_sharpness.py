"""scaling="calibrated": the sharpness of distances that fits the labelled rows of a task."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..rows import class_sums, computing_dtype, parts, squared_distances, unit_rows
from .adaptive import CENTRE, calibrate

MOST_ROWS = 256  # calibration rows, or K if larger, unless
MOST_ENTRIES = 2**24  # their matrix with the classes would exceed this
SPREAD = 1e3  # of ln f a priori: uninformative


def sharpness_of(support: Tensor, support_labels: Tensor, num_classes: int | None) -> Tensor:
    """The factor on squared distances of unit-norm rows, [B], or [1] for one support.

    It maximises the likelihood of the labels of labelled rows, each as far from its class mean as a
    new row would be. 0 if no class has two rows. [.., S, D] and [.., S].
    """
    rows = support.detach().reshape(-1, *support.shape[-2:])
    return in_parts(lambda tasks: rows[tasks], rows, support_labels, num_classes)


def sharpness_of_indexed(
    features: Tensor, support_index: Tensor, support_labels: Tensor, num_classes: int | None
) -> Tensor:
    """The same for rows of a bank [N, D], gathered for some tasks at a time."""
    index = support_index.long().reshape(-1, support_index.shape[-1])
    index = index.clamp(0, len(features) - 1)  # like the native code without validation
    bank = features.detach()
    return in_parts(lambda tasks: bank[index[tasks]], bank, support_labels, num_classes)


def in_parts(
    rows: Callable[[slice], Tensor],
    features: Tensor,
    support_labels: Tensor,
    num_classes: int | None,
) -> Tensor:
    """`features` gives dtype, device and the number of features; num_classes is checked."""
    S, D, K = support_labels.shape[-1], features.shape[-1], num_classes or 0
    labels = support_labels.long().reshape(-1, S).clamp(0, max(K - 1, 0))
    dtype = computing_dtype(features)
    found = [
        sharpness(unit_rows(rows(tasks).to(dtype)), labels[tasks], K)
        for tasks in parts(len(labels), S * D + how_many_calibrate(S, K) * K)
    ]
    return torch.cat(found) if found else torch.empty(0, dtype=dtype, device=features.device)


def how_many_calibrate(S: int, K: int) -> int:
    return min(S, max(MOST_ROWS, min(K, MOST_ENTRIES // max(K, 1))))


def sharpness(support: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """For unit-norm rows [B, S, D] with labels [B, S], [B]."""
    sums, shots = class_sums(support, labels, num_classes)
    means = sums / shots.clamp(min=1).unsqueeze(-1)
    index, count = calibrating_rows(labels, shots)
    own = labels.gather(1, index)
    n = shots.gather(1, own).clamp(min=2).to(support.dtype)
    rows = support.gather(1, index.unsqueeze(-1).expand(-1, -1, support.shape[-1]))
    distances = squared_distances(rows, means)
    corrected = distances.gather(-1, own.unsqueeze(-1)) * ((n + 1) / (n - 1)).unsqueeze(-1)
    distances = distances.scatter(-1, own.unsqueeze(-1), corrected)
    found = calibrate(distances, own, count, centre=CENTRE, spread=SPREAD)[0]
    return torch.where(count > 0, found, 0)


def calibrating_rows(labels: Tensor, shots: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows calibrate, [B, R], and how many of them count, [B], from the first.

    They belong to classes with two rows or more, evenly spread over the rows ordered by class.
    """
    B, S = labels.shape
    R = how_many_calibrate(S, shots.shape[-1])
    ordered, order = labels.sort(dim=1, stable=True)
    number = (shots.gather(1, ordered) >= 2).cumsum(1)  # of each row among those
    total = number[:, -1:]
    count = total.clamp(max=R)
    place = torch.arange(R, device=labels.device).expand(B, R)
    middle = (2 * place + 1) * total
    wanted = torch.div(middle, 2 * count.clamp(min=1), rounding_mode="floor") + 1
    chosen = torch.searchsorted(number, wanted).clamp(max=S - 1)
    return order.gather(1, chosen), count.squeeze(1)
