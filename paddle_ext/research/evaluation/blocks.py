"""The work of an evaluation: blocks of numbered tasks, split into batches that fit in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...methods import Method
from ..data.bank import FeatureBank
from ..tasks import TaskSampler

# Tasks of a block, the unit of work of a rank: the same on any device and with any memory. Fewer
# would keep a GPU busy.
BLOCK = 500
# Time limit of a batch in seconds: an interruption loses at most this and the journal's delay.
BATCH_SECONDS = 15.0
# GiB per batch. More gains nothing on the CPU, and less lets slow methods report progress more
# often; methods have a separate budget for what they compute from the rows.
MEMORY = {"cpu": 1 / 32, "cuda": 2.0}


class Count(NamedTuple):
    """Correct predictions of some tasks, and the seconds they took."""

    correct: int
    squares: int  # of the correct predictions of each task, summed
    seconds: float


class Part(NamedTuple):
    """The first tasks of a block, and their predictions."""

    tasks: int
    answers: Count


def block_sizes(n_tasks: int) -> list[int]:
    """Tasks of each block; the last one may be shorter."""
    return [min(BLOCK, n_tasks - start) for start in range(0, n_tasks, BLOCK)]


class DeviceBank:
    """The features on the device that computes, and the memory limit of a batch, in GiB.

    A GPU keeps the dtype of the features. The CPU computes in single or double precision, and would
    otherwise convert half precision in every call.
    """

    def __init__(
        self,
        bank: FeatureBank,
        device: torch.device,
        memory: float | None,
        prototypes: Tensor | None = None,
    ) -> None:
        self.device = device
        half_on_cpu = device.type == "cpu" and bank.features.itemsize < 4
        features = bank.features.to(device, torch.float32 if half_on_cpu else None)
        self.features = features.contiguous()
        self.prototypes = None if prototypes is None else prototypes.to(device, features.dtype)
        self.base_mean = bank.base_mean
        if bank.base_mean is not None:
            # Methods require a mean as precise as the features, or one single and one half.
            double = torch.float64 in (features.dtype, bank.base_mean.dtype)
            self.base_mean = bank.base_mean.to(device, features.dtype if double else None)
        self.bytes = int(2**30 * (MEMORY[device.type] if memory is None else memory))

    def batch_size(self, sampler: TaskSampler, method: Method) -> int:
        """How many tasks fit in memory: indices, results, and rows if they are gathered."""
        K, Q = sampler.num_classes, sampler.n_query
        rows = Q if sampler.shots is None else Q + K * sampler.shots
        size = 16 * rows + 12 * Q * K
        if gathers(method):
            itemsize = self.features.itemsize
            single_copy = 4 if itemsize < 4 else 0
            size += rows * self.features.shape[1] * (itemsize + single_copy)
        return max(1, min(BLOCK, self.bytes // size))


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gathers(method: Method) -> bool:
    """Whether a method copies the rows of its tasks from the bank."""
    return type(method).solve_indexed is Method.solve_indexed


class Block:
    """Consecutive tasks of a setting, drawn once for all methods."""

    def __init__(self, bank: DeviceBank, sampler: TaskSampler, start: int, count: int) -> None:
        self.bank, self.sampler = bank, sampler
        self.tasks = sampler.batch(start, count).to(bank.device)

    def count(
        self,
        method: Method,
        advance: Callable[[int], None] | None = None,
        *,
        begun: Part | None = None,
        keep: Callable[[Part], None] | None = None,
        pace: float = 0.0,
    ) -> Count:
        """Correct predictions of a method, and its seconds from indices to labels.

        `begun` is the part of the block that was finished before an interruption. After each batch
        `advance` is called with the number of its tasks and, except for the last, `keep` with the
        part so far. `pace` is known seconds per task: a slow method gets smaller batches.
        """
        start, (correct, squares, seconds) = begun or Part(0, Count(0, 0, 0.0))
        B, most = len(self.tasks.query_index), self.bank.batch_size(self.sampler, method)
        while start < B:
            step = most if pace <= 0 else max(1, min(most, int(BATCH_SECONDS / pace)))
            part = slice(start, min(start + step, B))
            right, taken = self.right_answers(method, part)
            total = torch.stack([right.sum(), right.square().sum()]).tolist()
            correct, squares, seconds = correct + total[0], squares + total[1], seconds + taken
            start, pace = part.stop, taken / (part.stop - part.start)
            if advance is not None:
                advance(part.stop - part.start)
            if keep is not None and start < B:
                keep(Part(start, Count(correct, squares, seconds)))
        return Count(correct, squares, seconds)

    def right_answers(self, method: Method, part: slice) -> tuple[Tensor, float]:
        """The number of correct predictions of each task, [b] int64, and the seconds."""
        bank, tasks = self.bank, self.tasks
        shared = self.sampler.shots is None
        wait_for(bank.device)
        begin = time.perf_counter()
        found = method.predict_indexed(
            bank.features,
            tasks.support_index if shared else tasks.support_index[part],
            tasks.support_labels if shared else tasks.support_labels[part],
            tasks.query_index[part],
            num_classes=self.sampler.num_classes,
            base_mean=bank.base_mean,
            prototypes=bank.prototypes,
            validate=False,  # the bank was checked, and the sampler draws valid rows
        )
        wait_for(bank.device)
        seconds = time.perf_counter() - begin
        return (found.labels == tasks.query_labels[part]).sum(1), seconds
