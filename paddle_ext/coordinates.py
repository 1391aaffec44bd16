"""The coordinates a task was solved in, kept so that other rows can be brought there too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .reference.paddle import auto_factor, leads, unit_rows

PART = 2**24  # numbers of a part of the work; 128 MiB in float64


class Coordinates(NamedTuple):
    """What `scaling` did to the rows of one task; see `paddle_ext.solve`."""

    unit: bool  # rows are made unit-norm first
    factor: Tensor  # [1] or [D] float64: on the features, after that

    def of(self, rows: Tensor) -> Tensor:
        """Rows [n, D] in these coordinates, float64."""
        rows = rows.double()
        return (unit_rows(rows) if self.unit else rows) * self.factor


def coordinates(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int, scaling: str
) -> Coordinates:
    """The coordinates of the task with this support [S, D] and these queries [Q, D]."""
    one = torch.ones(1, dtype=torch.float64, device=query.device)
    if scaling == "none":
        return Coordinates(False, one)
    if scaling == "minmax":
        width = query.amax(0).double() - query.amin(0).double()
        return Coordinates(False, 1 / torch.where(width > 0, width, 1))
    unscaled = Coordinates(True, one)
    means = class_sums(unscaled.of(support), support_labels, num_classes)
    means /= counts(support_labels, num_classes).unsqueeze(-1)
    centre = means.mean(0)
    found = [
        leads((unscaled.of(query[rows]) - centre).unsqueeze(0), (means - centre).unsqueeze(0))
        for rows in parts(len(query), means.numel() // means.shape[1] + means.shape[1])
    ]
    lead, median = (torch.cat(pieces, dim=-1) for pieces in zip(*found, strict=True))
    return Coordinates(True, auto_factor(lead, median))


def prototypes(
    where: Coordinates, support: Tensor, labels: Tensor, query: Tensor, assignments: Tensor
) -> Tensor:
    """The prototypes [K, D] that belong to the assignments [Q, K], in `where`'s coordinates."""
    K = assignments.shape[-1]
    sums = class_sums(where.of(support), labels, K)
    for rows in parts(len(query), K + query.shape[-1]):
        sums += assignments[rows].double().mT @ where.of(query[rows])
    mass = counts(labels, K) + assignments.sum(0, dtype=torch.float64)
    return sums / mass.unsqueeze(-1)


def own_distances(where: Coordinates, rows: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """Squared distance of each row to the prototype of its label, [n]."""
    pieces = [
        (where.of(rows[some]) - prototypes[labels[some]]).square().sum(-1)
        for some in parts(len(rows), rows.shape[-1])
    ]
    return torch.cat(pieces)


def class_sums(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """[n, D] -> [K, D]."""
    return rows.new_zeros(num_classes, rows.shape[-1]).index_add_(0, labels, rows)


def counts(labels: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(labels, minlength=num_classes).double()


def parts(count: int, row: int) -> Iterator[slice]:
    """Slices of `count` rows, each with about as many numbers as a part may have."""
    size = max(1, PART // max(1, row))
    return (slice(start, start + size) for start in range(0, count, size))
