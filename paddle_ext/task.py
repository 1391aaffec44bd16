"""A batch of tasks: its tensors, their preprocessing, and solving it in chunks.

Nothing here modifies its input. A support shared by all tasks keeps a batch dimension of 1, and is
not copied for each task.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .rows import class_means, computing_dtype, unit_rows
from .solution import Solution

# Limit on the temporary memory of a chunk of tasks, in bytes; larger on a GPU, to keep it busy.
BUDGET = {"cpu": 2**28, "cuda": 2**32}


@dataclass(frozen=True)
class Task:
    """A batch of checked tasks, in the dtype of the computation: float32 or float64."""

    support: Tensor  # [B or 1, S, D]; 1: shared by all tasks
    support_labels: Tensor  # [B or 1, S] int64
    query: Tensor  # [B, Q, D]
    num_classes: int
    base_mean: Tensor | None = None  # [D]
    # What is known of the classes from their names, as one of the two; if given, a class may have
    # no support rows.
    prototypes: Tensor | None = None  # [B or 1, K, D]
    logits: Tensor | None = None  # [B, Q, K] zero-shot
    # [B or 1, n, K] priors on the proportions to choose from; the first is even
    measures: Tensor | None = None
    # For values that are not checked yet: if they look invalid, the method calls this to raise.
    check_values: Callable[[], object] | None = None

    @property
    def bytes(self) -> int:
        """The memory of one task: its rows, one number per row and class, and its prototypes."""
        (Q, D), K = self.query.shape[1:], self.num_classes
        own = 0 if len(self.support) == 1 else self.support.shape[1]
        return ((own + Q) * (D + K) + K * D) * self.query.itemsize

    def means(self, support: Tensor) -> Tensor:
        """Class means [B or 1, K, D] of the support or a scaled version of it."""
        return class_means(support, self.support_labels, self.num_classes)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Support, its labels and query as arguments of `paddle_ext.solve`."""
        if len(self.support) == 1 < len(self.query):
            return self.support[0], self.support_labels[0], self.query
        return self.support, self.support_labels, self.query

    def part(self, tasks: slice | Tensor) -> "Task":
        """A batch of only these tasks."""
        shareable = ("support", "support_labels", "prototypes", "measures")
        own: dict[str, Any] = {"query": self.query[tasks]}
        if self.logits is not None:
            own["logits"] = self.logits[tasks]
        for name in shareable:
            x = getattr(self, name)
            if x is not None and len(x) > 1:
                own[name] = x[tasks]
        return replace(self, **own)


@dataclass(frozen=True)
class IndexedTask:
    """A batch of checked tasks, given by indices of rows in a feature bank."""

    features: Tensor  # [N, D], of any float dtype
    support_index: Tensor  # [B or 1, S] int64; 1: shared by all tasks
    support_labels: Tensor  # [B or 1, S] int64
    query_index: Tensor  # [B, Q] int64
    num_classes: int
    # In the dtype of the computation:
    base_mean: Tensor | None = None  # [D]
    prototypes: Tensor | None = None  # [B or 1, K, D]
    logits: Tensor | None = None  # [B, Q, K]

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bank, support and query as arguments of `paddle_ext.solve_indexed`."""
        if len(self.support_index) == 1 < len(self.query_index):
            support = self.support_index[0], self.support_labels[0]
        else:
            support = self.support_index, self.support_labels
        return self.features, *support, self.query_index

    def gathered(self) -> "Task":
        """The batch with its rows copied out of the bank; unchecked indices are kept in range."""
        dtype, last = computing_dtype(self.features), len(self.features) - 1
        support, query = (
            self.features[x.clamp(0, last)].to(dtype)
            for x in (self.support_index, self.query_index)
        )
        rest = self.num_classes, self.base_mean, self.prototypes, self.logits
        labels = self.support_labels.clamp(0, self.num_classes - 1)
        return Task(support, labels, query, *rest)


def in_chunks(solve: Callable[[Task], Tensor], task: Task, bytes_per_task: int) -> Tensor:
    """Solve as many tasks at a time as the budget allows, given the temporary memory of one."""
    step = how_many(bytes_per_task, task.query)
    starts = range(0, len(task.query), step)
    if len(starts) == 1:
        return solve(task)
    return torch.cat([solve(task.part(slice(start, start + step))) for start in starts])


def how_many(size: int, like: Tensor) -> int:
    """How many items of `size` bytes fit in the budget of the device of `like`; at least one."""
    return max(1, BUDGET["cuda" if like.is_cuda else "cpu"] // size)


def scaled(task: Task, scaling: str) -> tuple[Tensor, Tensor]:
    """Support [B or 1, S, D] and query [B, Q, D], scaled by "cl2n", "l2n" or "none"."""
    if scaling == "cl2n":
        return centred_unit_rows(task)
    if scaling == "l2n":
        return unit_rows(task.support), unit_rows(task.query)
    return task.support, task.query


def centred_unit_rows(task: Task) -> tuple[Tensor, Tensor]:
    """Rows minus the mean of the base classes, or of the support, then unit-norm ("CL2N")."""
    support, query = task.support, task.query
    if task.base_mean is not None:
        support, query = support - task.base_mean, query - task.base_mean
    else:
        # Twice: the mean of features with a large offset is inexact, and the second round removes
        # the remainder.
        for _ in range(2):
            mean = support.mean(-2, keepdim=True)
            support, query = support - mean, query - mean
    return unit_rows(support), unit_rows(query)


def softmin(x: Tensor, sharpness: float) -> Tensor:
    """softmax(-sharpness x) over the last dimension, however large the sharpness is."""
    behind = x - x.amin(-1, keepdim=True)
    return torch.softmax(-bounded(sharpness) * behind, dim=-1)


def bounded(factor: float) -> float:
    """Clamp a factor to the range of single precision; larger ones have the same effect."""
    return min(factor, 1e30)


def merged(parts: list[Solution], order: Tensor | None = None) -> Solution:
    """The solutions of several batches as one; what only some of them have is left out."""
    if len(parts) == 1 and order is None:
        return parts[0]
    together: dict[str, Any] = {}
    for name in parts[0]._fields:
        values = [getattr(part, name) for part in parts]
        if all(isinstance(x, Tensor) for x in values):
            whole = torch.cat(values)
            together[name] = whole if order is None else whole[order]
        elif any(isinstance(x, Tensor) for x in values):
            together[name] = None
    return parts[0]._replace(**together)


def without_batch(solution: Solution) -> Solution:
    """The solution of the only task of a batch."""
    alone: dict[str, Any] = {
        name: x[0] for name, x in solution._asdict().items() if isinstance(x, Tensor)
    }
    return solution._replace(**alone)


def batched(x: Tensor, rank: int) -> Tensor:
    """x with a batch dimension, of 1 if it has none; `rank` counts the dimensions with it."""
    return x if x.dim() == rank else x.unsqueeze(0)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Context, or decorator: compute in the dtypes of tensors, even if the caller uses autocast."""
    with ExitStack() as disabled:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                disabled.enter_context(torch.autocast(kind, enabled=False))
        yield
