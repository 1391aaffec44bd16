"""How rows are scaled before a task is solved, as set by `scaling`."""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import class_means, squared_distances, unit_rows

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
