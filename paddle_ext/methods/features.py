"""What the methods share: the layout of a batch of tasks, and preprocessing of features.

Nothing here modifies its input. A support that all tasks share keeps a batch dimension of 1, and is
never repeated for every task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

# Bytes that the temporary tensors of a chunk of tasks may take together. A GPU needs many tasks to
# be busy.
BUDGET = {"cpu": 2**28, "cuda": 2**31}


@dataclass(frozen=True)
class Task:
    """A batch of checked tasks, in the dtype of the computation: float32 or float64."""

    support: Tensor  # [B or 1, S, D]; 1: shared by all tasks
    support_labels: Tensor  # [B or 1, S] int64
    query: Tensor  # [B, Q, D]
    num_classes: int
    base_mean: Tensor | None = None  # [D]

    @property
    def one_hot(self) -> Tensor:
        """The labels of the support, [B or 1, S, K]."""
        # Not that of torch, which waits for the device.
        classes = torch.arange(self.num_classes, device=self.query.device)
        return (self.support_labels.unsqueeze(-1) == classes).to(self.query.dtype)

    @property
    def bytes(self) -> int:
        """What a task takes: its rows, a number for each of them and each class, its prototypes."""
        (Q, D), K = self.query.shape[1:], self.num_classes
        own = 0 if len(self.support) == 1 else self.support.shape[1]
        return ((own + Q) * (D + K) + K * D) * self.query.itemsize

    def means(self, support: Tensor) -> Tensor:
        """Class means of a support, this one or what it was scaled to, [B or 1, K, D]."""
        sums, counts = class_sums(support, self.support_labels, self.num_classes)
        return sums / counts.unsqueeze(-1)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Support, its labels and query as `paddle_ext.solve` takes them."""
        if len(self.support) == 1 < len(self.query):
            return self.support[0], self.support_labels[0], self.query
        return self.support, self.support_labels, self.query

    def part(self, tasks: slice) -> Task:
        """Some of the tasks."""
        if len(self.support) == 1:
            return replace(self, query=self.query[tasks])
        support, labels = self.support[tasks], self.support_labels[tasks]
        return replace(self, support=support, support_labels=labels, query=self.query[tasks])


def in_chunks(solve: Callable[[Task], Tensor], task: Task, bytes_per_task: int) -> Tensor:
    """Solve so many tasks at a time that their temporary tensors fit the budget.

    `bytes_per_task` is an estimate of the temporary memory that `solve` takes for one task.
    """
    step = how_many(bytes_per_task, task.query.device)
    starts = range(0, len(task.query), step)
    if len(starts) == 1:
        return solve(task)
    return torch.cat([solve(task.part(slice(start, start + step))) for start in starts])


def how_many(size: int, device: torch.device) -> int:
    """How many of `size` bytes fit the budget; at least one."""
    return max(1, BUDGET[device.type] // size)


def scaled(task: Task, scaling: str) -> tuple[Tensor, Tensor]:
    """Support [B or 1, S, D] and query [B, Q, D] by "cl2n", "l2n" or "none"."""
    if scaling == "cl2n":
        return centred_unit_rows(task)
    if scaling == "l2n":
        return unit_rows(task.support), unit_rows(task.query)
    return task.support, task.query


def unit_rows(x: Tensor) -> Tensor:
    """Rows of norm 1, [.., D]; a zero row stays zero."""
    largest = x.abs().amax(-1, keepdim=True)  # first to at most 1, or the squares could overflow
    x = x / torch.where(largest > 0, largest, 1)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(norm > 0, norm, 1)


def centred_unit_rows(task: Task) -> tuple[Tensor, Tensor]:
    """Support [B or 1, S, D] and query [B, Q, D] by CL2N: less a mean, then unit norm.

    The mean is that of the base classes, or without one that of the task's support.
    """
    support, query = task.support, task.query
    if task.base_mean is not None:
        support, query = support - task.base_mean, query - task.base_mean
    else:
        # Twice: the mean of features with a large offset is rounded, and its rest is taken off by
        # the second round.
        for _ in range(2):
            mean = support.mean(-2, keepdim=True)
            support, query = support - mean, query - mean
    return unit_rows(support), unit_rows(query)


def class_sums(
    rows: Tensor, labels: Tensor, num_classes: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums and counts of the rows of each class, in a fixed order; a class may have none.

    [B, N, D] and [B, N], with optional weights [B, N] for the sums -> [B, K, D] and [B, K] int64.
    """
    B, _, D = rows.shape
    K = num_classes
    bags = torch.arange(B * K + 1, device=rows.device)  # one for each task and class
    ordered, order = (labels + bags[: B * K : K, None]).flatten().sort(stable=True)
    starts = torch.searchsorted(ordered, bags)
    if weights is not None:
        weights = weights.flatten()[order]
    sums = F.embedding_bag(
        order, rows.reshape(-1, D), starts[:-1], mode="sum", per_sample_weights=weights
    )
    return sums.view(B, K, D), starts.diff().view(B, K)


def squared_distances(x: Tensor, w: Tensor) -> Tensor:
    """[B or 1, N, D] and [B or 1, K, D] -> [B, N, K], at least 0.

    Both are centred at the mean of w first, so that little cancels.
    """
    centre = w.mean(-2, keepdim=True)
    x, w = x - centre, w - centre
    squares = x.square().sum(-1).unsqueeze(-1) + w.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * products(x, w)).clamp(min=0)


def products(x: Tensor, w: Tensor) -> Tensor:
    """Scalar products of rows, [B or 1, N, D] and [B or 1, K, D] -> [B, N, K]."""
    # A batch of 1 would be copied for every task.
    return x @ (w[0].mT if len(w) == 1 else w.mT)


def softmin(x: Tensor, sharpness: float) -> Tensor:
    """softmax(-sharpness x) over the last dimension, for any sharpness."""
    behind = x - x.amin(-1, keepdim=True)
    return torch.softmax(-bounded(sharpness) * behind, dim=-1)


def bounded(factor: float) -> float:
    """A factor that single precision can hold: beyond it, nothing of size one would change."""
    return min(factor, 1e30)
