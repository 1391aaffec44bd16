"""Groups of strangers that resemble one another: maybe a class without labels.

Two samples are alike by the product of their unit-norm features. Groups are merged by the mean
product of their samples (average linkage) while it is nearer to that of labelled samples of one
class than to that of different classes. A group that is more like a known class than its samples
are like one another is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..rows import unit_rows
from .read.samples import Labelled

MOST_GROUPED = 500  # strangers that are compared with each other


class Strange:
    """The features of strangers, while batches are classified."""

    def __init__(self) -> None:
        self.features: list[Tensor] = []
        self.novelty: list[Tensor] = []
        self.places: list[Tensor] = []
        self.count = 0  # of all samples so far

    def add(self, rows: Tensor, novelty: Tensor, chosen: Tensor) -> None:
        """Add the chosen [n] bool of some rows [n, D], with their novelty."""
        places = chosen.nonzero().view(-1)
        self.features.append(rows[places])
        self.novelty.append(novelty[places])
        self.places.append(places.cpu() + self.count)
        self.count += len(rows)

    def groups(self, labelled: Labelled, device: torch.device) -> list[list[int]]:
        """Numbers of the samples of each group, the largest group first."""
        if not self.features:
            return []
        chosen = torch.cat(self.novelty).argsort(descending=True, stable=True)[:MOST_GROUPED]
        chosen = chosen.sort().values
        if len(chosen) < 2:
            return []
        rows = unit_rows(torch.cat(self.features)[chosen])
        places = torch.cat(self.places)[chosen.cpu()].tolist()
        known, labels = unit_rows(labelled.rows(device)), labelled.labels.to(device)
        sums, counts = class_sums(known, labels, len(labelled.class_names))
        found = [
            members
            for members in merged(rows @ rows.mT, same_class_limit(sums, counts))
            if is_new(rows[members], sums[counts > 0] / counts[counts > 0].unsqueeze(1))
        ]
        return [[places[row] for row in members] for members in sorted(found, key=len)[::-1]]


def class_sums(rows: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sums [K, D] and numbers [K] of the rows of each class."""
    sums = rows.new_zeros(num_classes, rows.shape[1]).index_add_(0, labels, rows)
    return sums, torch.bincount(labels, minlength=num_classes)


def same_class_limit(sums: Tensor, counts: Tensor) -> float:
    """Half-way between the mean product of rows of one class and of different classes."""
    n, squares = counts.double(), sums.double().square().sum(1)
    whole, total = sums.double().sum(0).square().sum(), n.sum()
    within = (squares - n).sum() / (n * (n - 1)).sum()
    between = (whole - squares.sum()) / (total.square() - n.square().sum())
    return float((within + between) / 2)


def merged(products: Tensor, limit: float) -> list[list[int]]:
    """Groups of two or more by average linkage of products [n, n], down to this limit.

    Examples
    --------
    >>> merged(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]), 0.5)
    [[0, 1]]
    """
    mean = products.double().clone().fill_diagonal_(-torch.inf)
    groups = [[row] for row in range(len(mean))]
    while len(mean):
        one, two = divmod(int(mean.argmax()), len(mean))
        if not mean[one, two] >= limit:
            break
        a, b = len(groups[one]), len(groups[two])
        joint = (a * mean[one] + b * mean[two]) / (a + b)
        mean[one], mean[:, one] = joint, joint
        mean[one, one] = -torch.inf
        mean[two], mean[:, two] = -torch.inf, -torch.inf
        groups[one], groups[two] = sorted(groups[one] + groups[two]), []
    return [group for group in groups if len(group) > 1]


def is_new(rows: Tensor, means: Tensor) -> bool:
    """Whether rows [n, D] are more like one another than like any class, with these means."""
    n, total = len(rows), rows.double().sum(0)
    within = (total.square().sum() - n) / (n * (n - 1))
    return float(within) > float((means.double() @ total / n).max())
