"""The work of an evaluation: blocks of numbered tasks, cut into batches that fit the memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..methods import Method
from ..tasks import TaskSampler

# Tasks of a block, wherever and with whatever memory it is computed: what one rank takes at a time,
# and what an interrupted run loses at most. A GPU is busy with fewer.
BLOCK = 500
# GiB that the rows of a batch take. The CPU gains nothing from more, and a slow method says more
# often how far it is; methods have a budget of their own for what they compute from the rows.
MEMORY = {"cpu": 1 / 32, "cuda": 2.0}


class Count(NamedTuple):
    """Right answers of some tasks, and the seconds they took."""

    correct: int
    squares: int  # of the right answers of each task, summed
    seconds: float


def block_sizes(n_tasks: int) -> list[int]:
    """Tasks of each block; the last one may be shorter."""
    return [min(BLOCK, n_tasks - start) for start in range(0, n_tasks, BLOCK)]


class Place:
    """The features where they are computed with, and how much memory a batch may take.

    Parameters
    ----------
    features : Tensor [N, D]
        Kept in their dtype.
    base_mean : Tensor [D] or None
    device : torch.device
    memory : float or None
        GiB; None: `MEMORY` of the device.
    """

    def __init__(
        self,
        features: Tensor,
        base_mean: Tensor | None,
        device: torch.device,
        memory: float | None,
    ) -> None:
        self.device = device
        self.features = features.to(device)
        if base_mean is not None:
            # Methods want a mean that is as precise as the features, or both single and half.
            double = torch.float64 in (features.dtype, base_mean.dtype)
            base_mean = base_mean.to(device, features.dtype if double else None)
        self.base_mean = base_mean
        self.bytes = int(2**30 * (MEMORY[device.type] if memory is None else memory))

    def batch_size(self, sampler: TaskSampler) -> int:
        """How many tasks fit the memory: rows, the single-precision copy of half ones, results."""
        K, Q = sampler.num_classes, sampler.n_query
        own = 0 if sampler.shots is None else K * sampler.shots
        numbers = self.features.itemsize + (4 if self.features.itemsize < 4 else 0)
        size = (own + Q) * (self.features.shape[1] * numbers + 16) + 12 * Q * K
        return max(1, min(BLOCK, self.bytes // size))

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Block:
    """Some tasks of a setting, drawn once for all methods."""

    def __init__(self, place: Place, sampler: TaskSampler, start: int, count: int) -> None:
        self.place, self.num_classes = place, sampler.num_classes
        self.tasks = sampler.batch(start, count).to(place.device)
        self.step = place.batch_size(sampler)
        self.shared: Tensor | None = None  # [S, D], the support of all tasks
        if sampler.shots is None:
            self.shared = place.features[self.tasks.support_index]

    def count(self, method: Method, advance: Callable[[int], None] | None = None) -> Count:
        """Right answers of a method, and its seconds from gathered rows to labels.

        `advance` is told how many tasks are done after each batch.
        """
        correct = squares = 0
        seconds = 0.0
        B = len(self.tasks.query_index)
        for start in range(0, B, self.step):
            part = slice(start, min(start + self.step, B))
            right, taken = self.right(method, part)
            total = torch.stack([right.sum(), right.square().sum()]).tolist()
            correct, squares, seconds = correct + total[0], squares + total[1], seconds + taken
            if advance is not None:
                advance(part.stop - part.start)
        return Count(correct, squares, seconds)

    def right(self, method: Method, part: slice) -> tuple[Tensor, float]:
        """The number of right answers of each task, [b] int64, and the seconds."""
        place, tasks = self.place, self.tasks
        support, labels = self.shared, tasks.support_labels
        if support is None:
            support, labels = place.features[tasks.support_index[part]], labels[part]
        query = place.features[tasks.query_index[part]]  # [b, Q, D]
        place.wait()
        begin = time.perf_counter()
        found = method.predict(support, labels, query, self.num_classes, place.base_mean).labels
        place.wait()
        seconds = time.perf_counter() - begin
        return (found == tasks.query_labels[part]).sum(1), seconds
