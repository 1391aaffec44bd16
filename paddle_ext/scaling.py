"""How rows are scaled before a task is solved, as set by `scaling`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .rows import class_means, class_sums, parts, squared_distances, unit_rows

AUTO_GAP = 13.0  # "auto" scales the mean lead of the nearest class to this, in squared distance
AUTO_MIN_GAP = 1e-12  # a smaller lead counts as zero,
AUTO_MIN_SHARE = 1e-5  # and so does one below this share of the distance to the median class


def leads(query: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """The lead of the nearest class over the median one, and the distance to that; [.., Q]."""
    distance = squared_distances(query, means)
    median = distance.kthvalue(means.shape[-2] // 2 + 1, dim=-1).values
    return median - distance.amin(-1), median


def auto_factor(lead: Tensor, median: Tensor) -> Tensor:
    """The factor by which "auto" scales unit-norm rows, [..], from the results of `leads`."""
    gap = lead.mean(-1)
    least = (AUTO_MIN_SHARE * median.mean(-1)).clamp(min=AUTO_MIN_GAP)
    return torch.where(gap > least, (AUTO_GAP / gap).sqrt(), 1)


def feature_ranges(query: Tensor) -> Tensor:
    """The range of each feature, [.., 1, D], which divides it in "minmax"; 1 if it is constant."""
    width = query.amax(-2, keepdim=True) - query.amin(-2, keepdim=True)
    return torch.where(width > 0, width, 1)


class RowScaling(NamedTuple):
    """The effect of `scaling` on the rows of one task; see `paddle_ext.solve`."""

    unit: bool  # whether rows are normalised to unit length first
    factor: Tensor  # [1] or [D] float64: what the features are then multiplied by

    def apply(self, rows: Tensor) -> Tensor:
        """The scaled rows [n, D], float64."""
        rows = rows.double()
        return (unit_rows(rows) if self.unit else rows) * self.factor

    def prototypes(
        self, support: Tensor, labels: Tensor, query: Tensor, probabilities: Tensor
    ) -> Tensor:
        """The prototypes [K, D] of scaled rows for the probabilities [Q, K]; Q may be 0."""
        K = probabilities.shape[-1]
        sums, counts = class_sums(self.apply(support), labels, K)
        for part in parts(len(query), K + query.shape[-1]):
            sums += probabilities[part].double().mT @ self.apply(query[part])
        mass = counts + probabilities.sum(0, dtype=torch.float64)
        return sums / mass.unsqueeze(-1)


def row_scaling(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int, scaling: str
) -> RowScaling:
    """The scaling of the task with this support [S, D] and these queries [Q, D]."""
    one = torch.ones(1, dtype=torch.float64, device=query.device)
    if scaling == "none":
        return RowScaling(False, one)
    if scaling == "minmax":
        return RowScaling(False, 1 / feature_ranges(query.double()).squeeze(-2))
    unit = RowScaling(True, one)
    means = class_means(unit.apply(support), support_labels, num_classes)
    found = [leads(unit.apply(query[part]), means) for part in parts(len(query), sum(means.shape))]
    lead, median = (torch.cat(pieces, dim=-1) for pieces in zip(*found, strict=True))
    return RowScaling(True, auto_factor(lead, median))


def scaled_tasks(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int, scaling: str
) -> tuple[Tensor, Tensor]:
    """Queries [B, Q, D] and class means [B, K, D], scaled and centred at the queries."""
    if scaling == "auto":
        support, query = unit_rows(support), unit_rows(query)
    means = class_means(support, support_labels, num_classes)
    if scaling == "minmax":
        width = feature_ranges(query)
        query, means = query / width, means / width
    centre = query.mean(-2, keepdim=True)
    query, means = query - centre, means - centre
    if scaling == "auto":
        factor = auto_factor(*leads(query, means)).view(-1, 1, 1)
        query, means = query * factor, means * factor
    return query, means
