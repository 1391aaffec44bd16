"""The work of an evaluation: correct predictions, counted block by block, and kept in a journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import check
from ..files import naming
from ..methods import Method
from ..methods.registry import fields_of
from ..progress import Progress
from .data.bank import FeatureBank
from .results import Result
from .sampler import TaskBatch, TaskSampler

# Tasks drawn at once, computed by every method, then kept in the journal: the same on any device
# and with any memory. Fewer would keep a GPU busy.
BLOCK_TASKS = 500
# GiB of a batch. More gains nothing on the CPU, and less lets slow methods report progress more
# often; methods have a separate budget for what they compute from the rows.
BATCH_MEMORY = {"cpu": 1 / 32, "cuda": 2.0}
ROWS_AT_ONCE = 2**16  # checked or digested: a mapped bank may exceed the memory


class Key(NamedTuple):
    """One block of tasks of one method in one setting."""

    shots: int | None
    k_eff: int
    method: str  # its name, and a digest of its options
    start: int  # number of its first task
    n_tasks: int  # the last block may be shorter


class Count(NamedTuple):
    """Correct predictions of some tasks, and the seconds they took."""

    correct: int
    squares: int  # of the correct predictions of each task, summed
    seconds: float


def options_of(method: Method) -> dict[str, object]:
    return {field.name: getattr(method, field.name) for field in fields_of(method)}


def keys(sampler: TaskSampler, method: Method, n_tasks: int) -> list[Key]:
    """The blocks of a method in one setting."""
    name = f"{method.name} {digest(type(method).__qualname__, options_of(method))}"
    return [
        Key(sampler.shots, sampler.k_eff, name, start, min(BLOCK_TASKS, n_tasks - start))
        for start in range(0, n_tasks, BLOCK_TASKS)
    ]


def count_correct(
    methods: Mapping[str, Method],
    samplers: Sequence[TaskSampler],
    n_tasks: int,
    bank: DeviceBank,
    journal: Journal,
    show: bool,
) -> None:
    """Add to the journal what it does not have: block by block, and in a block all methods.

    In this order a block is drawn once for all methods, and every method has a result early.
    """
    todo = [
        (sampler, label, key)
        for sampler in samplers
        for block in zip(*(keys(sampler, one, n_tasks) for one in methods.values()), strict=True)
        for label, key in zip(methods, block, strict=True)
        if key not in journal.counts
    ]
    on_gpu = bank.device.type == "cuda"
    on_device = torch.cuda.device(bank.device) if on_gpu else contextlib.nullcontext()
    total = sum(key.n_tasks for _, _, key in todo)
    with on_device, Progress("evaluating", total, show=show) as shown:
        warm_up({label: methods[label] for _, label, _ in todo}, samplers[0], bank)
        sums: dict[tuple[TaskSampler, str], tuple[int, int]] = {}  # correct predictions, of all
        tasks, drawn = None, None
        for sampler, label, key in todo:
            if tasks is None or drawn != (sampler, key.start):
                tasks, drawn = None, (sampler, key.start)  # frees the old ones first
                tasks = sampler.batch(key.start, key.n_tasks).to(bank.device)
            correct, answers = sums.get((sampler, label), (0, 0))
            note = progress_note(sampler, label, correct, answers)
            shown.advance(0, note)  # a slow method is named before its first result
            count = bank.count(methods[label], sampler, tasks, partial(shown.advance, note=note))
            journal.add(key, count)
            sums[sampler, label] = correct + count.correct, answers + key.n_tasks * sampler.n_query


def warm_up(methods: Mapping[str, Method], sampler: TaskSampler, bank: DeviceBank) -> None:
    """Run each method on one task before timing it; unsupported tasks are reported early."""
    if not methods:
        return
    task = sampler.batch(0, 1).to(bank.device)
    for label, method in methods.items():
        try:
            bank.count(method, sampler, task)
        except ValueError as error:
            context = f"methods: {label!r} cannot run these tasks: "
            if isinstance(error, check.ArgumentError):  # an option may help
                name = "prototypes" if error.argument == "prototypes" else "features"
                raise check.ArgumentValueError(
                    name, error.problem, error.or_pass, context + error.context
                ) from error
            raise ValueError(f"{context}{error}") from error


def progress_note(sampler: TaskSampler, label: str, correct: int, answers: int) -> str:
    """The current computation, and its accuracy so far."""
    shots = "" if sampler.shots is None else f"{sampler.shots} shots, "
    accuracy = f": {100 * correct / answers:.1f} %" if answers else ""
    return f"{label}, {shots}{sampler.k_eff} effective classes{accuracy}"


def summed_result(
    label: str, method: Method, sampler: TaskSampler, n_tasks: int, journal: Journal
) -> Result:
    counts = [journal.counts[key] for key in keys(sampler, method, n_tasks)]
    return Result(
        method=label,
        options=options_of(method),
        shots=sampler.shots,
        k_eff=sampler.k_eff,
        num_classes=sampler.num_classes,
        n_query=sampler.n_query,
        n_tasks=n_tasks,
        correct=sum(count.correct for count in counts),
        squares=sum(count.squares for count in counts),
        seconds=sum(count.seconds for count in counts),
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

    def count(
        self,
        method: Method,
        sampler: TaskSampler,
        tasks: TaskBatch,
        advance: Callable[[int], None] = lambda count: None,
    ) -> Count:
        """Correct predictions of a method, and its seconds from indices to labels.

        The tasks are computed in batches that fit in memory; `advance` is called after each with
        the number of its tasks.
        """
        correct, squares, seconds = 0, 0, 0.0
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
            seconds += time.perf_counter() - begin
            right = (prediction.labels == truth).sum(1)  # of each task
            totals = torch.stack([right.sum(), right.square().sum()]).tolist()
            correct, squares = correct + totals[0], squares + totals[1]
            advance(len(truth))
        return Count(correct, squares, seconds)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- the journal --------------------------------------------------------------------------------


class Journal:
    """The finished blocks of an evaluation, in memory and in a file of JSON lines, if any.

    The first line has everything that the counts depend on, in addition to a `Key`.
    """

    def __init__(self, path: Path | None, header: Mapping[str, object], resume: bool) -> None:
        self.path, self.counts = path, dict[Key, Count]()
        if path is None:
            return
        # A process may be killed while it writes: what follows the last complete line is dropped.
        text = path.read_bytes() if resume and path.exists() else b""
        text = text[: text.rfind(b"\n") + 1]
        if text:
            self.read(text, header)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(len(text))
        if not text:
            self.write(header)

    def read(self, text: bytes, header: Mapping[str, object]) -> None:
        try:
            there, *entries = [json.loads(line) for line in text.decode().splitlines()]
            different = [
                f"{name} (there {there.get(name)!r}, here {header.get(name)!r})"
                for name in dict.fromkeys([*header, *there])
                if there.get(name) != header.get(name)
            ]
            if not different:
                self.counts = dict(checked_entry(entry, header["n_query"]) for entry in entries)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{self.path} is not a journal of an evaluation: {error}") from error
        if different:
            assert self.path is not None
            raise check.ArgumentValueError(
                "output",
                "must be a folder of the same evaluation to resume, got "
                f"{str(self.path.parent)!r} with another {', another '.join(different)}",
                or_pass="resume=False",
            )

    def add(self, key: Key, count: Count) -> None:
        self.counts[key] = count
        if self.path is not None:
            self.write({"task": key, "count": count})

    def write(self, line: Mapping[str, object]) -> None:
        assert self.path is not None
        with naming(self.path), self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def checked_entry(entry: Mapping[str, list[Any]], n_query: Any) -> tuple[Key, Count]:
    """A line of the journal; a damaged one may say anything."""
    key, count = Key(*entry["task"]), Count(*entry["count"])
    n, correct, squares = key.n_tasks, count.correct, count.squares
    integers = all(type(number) is int for number in (n, correct, squares))
    # For a given sum, equal counts minimise the sum of squares, and all-or-nothing ones maximise
    # it.
    if not (
        integers
        and 0 <= correct <= n * n_query
        and correct**2 <= n * squares <= n * n_query * correct
        and math.isfinite(count.seconds)
        and count.seconds >= 0
    ):
        raise ValueError(f"no {key} can have {count}")
    return key, count


def digest(*parts: object) -> str:
    """A short digest of tensors, and of anything that is identified by its printed form."""
    result = hashlib.blake2b(digest_size=10)
    for part in parts:
        if isinstance(part, Tensor):
            result.update(f"{part.dtype} {list(part.shape)} ".encode())
            for rows in torch.split(part.detach(), ROWS_AT_ONCE):
                result.update(rows.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        else:
            result.update(f"{part!r} ".encode())
    return result.hexdigest()
