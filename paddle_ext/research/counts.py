"""The work of an evaluation: correct predictions, counted block by block."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..methods import Method
from ..methods.registry import fields_of
from ..progress import Progress
from .data.bank import FeatureBank
from .results import Result
from .sampler import TaskBatch, TaskSampler

# Tasks drawn at once: the same on any device and with any memory. Fewer would not keep a GPU busy.
BLOCK_TASKS = 500
# GiB of a batch. More gains nothing on the CPU, and less lets slow methods report progress more
# often; methods have a separate budget for what they compute from the rows.
BATCH_MEMORY = {"cpu": 1 / 32, "cuda": 2.0}


class Run(NamedTuple):
    """A method, by its label, in one setting."""

    label: str
    method: Method
    sampler: TaskSampler


class Count(NamedTuple):
    """Correct predictions of some tasks, and the seconds they took from indices to labels."""

    tasks: int
    correct: int
    squares: int  # of the correct predictions of each task, summed
    seconds: float


def options_of(method: Method) -> dict[str, object]:
    return {field.name: getattr(method, field.name) for field in fields_of(method)}


def results_of(
    runs: Sequence[Run], n_tasks: int, bank: DeviceBank, *, show: bool
) -> Iterator[Result]:
    """The result of each run, on the same tasks."""
    on_gpu = bank.device.type == "cuda"
    on_device = torch.cuda.device(bank.device) if on_gpu else contextlib.nullcontext()
    with on_device, Progress("evaluating", n_tasks * len(runs), show=show) as shown:
        warm_up(runs, bank)
        for run in runs:
            yield result_of(run, n_tasks, bank, shown)


def warm_up(runs: Sequence[Run], bank: DeviceBank) -> None:
    """Run each method on one task before timing it; unsupported tasks are reported early."""
    for label in dict.fromkeys(run.label for run in runs):
        _, method, sampler = next(run for run in runs if run.label == label)
        try:
            list(bank.counts(method, sampler, sampler.batch(0, 1).to(bank.device)))
        except ValueError as error:
            context = f"methods: {label!r} cannot run these tasks: "
            if isinstance(error, check.ArgumentError):  # an option may help
                name = "prototypes" if error.argument == "prototypes" else "features"
                raise check.ArgumentValueError(
                    name, error.problem, error.or_pass, context + error.context
                ) from error
            raise ValueError(f"{context}{error}") from error


def result_of(run: Run, n_tasks: int, bank: DeviceBank, shown: Progress) -> Result:
    """A method on all tasks of one setting."""
    label, method, sampler = run
    correct, squares, seconds = 0, 0, 0.0
    for start in range(0, n_tasks, BLOCK_TASKS):
        shots = "" if sampler.shots is None else f"{sampler.shots} shots, "
        accuracy = f": {100 * correct / (start * sampler.n_query):.1f} %" if start else ""
        note = f"{label}, {shots}{sampler.k_eff} effective classes{accuracy}"
        shown.advance(0, note)  # a slow method is named before its first result
        tasks = sampler.batch(start, min(BLOCK_TASKS, n_tasks - start)).to(bank.device)
        for counted in bank.counts(method, sampler, tasks):
            correct, squares = correct + counted.correct, squares + counted.squares
            seconds += counted.seconds
            shown.advance(counted.tasks, note)
    return Result(
        method=label,
        options=options_of(method),
        shots=sampler.shots,
        k_eff=sampler.k_eff,
        num_classes=sampler.num_classes,
        n_query=sampler.n_query,
        n_tasks=n_tasks,
        correct=correct,
        squares=squares,
        seconds=seconds,
    )


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
        self.bytes = int(2**30 * (BATCH_MEMORY[device.type] if memory is None else memory))

    def batch_size(self, sampler: TaskSampler, method: Method) -> int:
        """How many tasks fit in memory: indices, results, and rows if they are gathered."""
        K, Q = sampler.num_classes, sampler.n_query
        rows = Q if sampler.shots is None else Q + K * sampler.shots
        size = 16 * rows + 12 * Q * K
        if type(method).solve_indexed is Method.solve_indexed:  # copies rows from the bank
            itemsize = self.features.itemsize
            single_copy = 4 if itemsize < 4 else 0
            size += rows * self.features.shape[1] * (itemsize + single_copy)
        return max(1, min(BLOCK_TASKS, self.bytes // size))

    def counts(self, method: Method, sampler: TaskSampler, tasks: TaskBatch) -> Iterator[Count]:
        """Count correct predictions, in batches of tasks that fit in memory."""
        size = self.batch_size(sampler, method)
        for start in range(0, len(tasks.query_index), size):
            one = slice(start, start + size)
            of_support = ... if sampler.shots is None else one  # one support for all tasks
            truth = tasks.query_labels[one]
            wait_for(self.device)
            begin = time.perf_counter()
            prediction = method.predict_indexed(
                self.features,
                tasks.support_index[of_support],
                tasks.support_labels[of_support],
                tasks.query_index[one],
                num_classes=sampler.num_classes,
                base_mean=self.base_mean,
                prototypes=self.prototypes,
                validate=False,  # the bank was checked, and the sampler draws valid rows
            )
            wait_for(self.device)
            seconds = time.perf_counter() - begin
            right = (prediction.labels == truth).sum(1)  # of each task
            yield Count(len(truth), int(right.sum()), int(right.square().sum()), seconds)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
