"""Evaluate methods on many tasks of a feature bank: accuracy, its interval, and seconds."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ... import check
from ...methods import Method
from ...progress import Progress
from ...version import version
from ..data.bank import FeatureBank
from ..ranks import Ranks, join_ranks
from ..tasks import TaskSampler
from .arguments import chosen_methods, options_of
from .blocks import BLOCK, Block, Count, DeviceBank, block_sizes
from .journal import Journal, Key, digest
from .plan import TaskPlan, check_features, plan_tasks
from .results import Evaluation, Result
from .settings import RunSettings

FILE = "evaluation.json"


def evaluate(
    bank: FeatureBank,
    methods: str | Method | Sequence[str | Method] | Mapping[str, Method] = "all",
    *,
    shots: int | Sequence[int] | None = (5, 10, 20),
    k_eff: int | Sequence[int] = 5,
    n_tasks: int = 10_000,
    n_query: int = 75,
    num_classes: int | None = None,
    sampling: str = "uniform",
    alpha: float = 1.0,
    support: str | Tensor | None = None,
    query: str | Tensor | None = None,
    preset: str | None = None,
    seed: int = 0,
    name: str = "",
    device: str | torch.device | None = None,
    memory: float | None = None,
    output: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
) -> Evaluation:
    """Evaluate methods on the same few-shot tasks.

    Parameters
    ----------
    bank : FeatureBank
        Rows without a class, label -1, are not drawn. Classes without rows are dropped, and the
        others renumbered in order.
    methods : str, Method, or a sequence of them, or a mapping of labels to methods
        A name of `methods.available(named=False)`, or ``"all"``, in the order of the paper's
        tables, followed by ours. A mapping gives the methods your own labels, so that one of them
        may appear with several options.
    shots : int, sequence of int, or None
        Support rows per class. None: all rows of `support`, shared by all tasks.
    k_eff : int or sequence of int
        Classes that the queries of a task come from. Every number of shots is combined with each of
        them.
    n_tasks, n_query : int
        Tasks per combination, and queries per task.
    num_classes : int, optional
        Candidate classes per task; default: all.
    sampling, alpha
        As in `TaskSampler`.
    support, query : str or Tensor [n], optional
        The rows to draw support and queries from: a split of the bank, or indices. If one is given,
        the other is all remaining rows.
    preset : {"paper", "mini", "tiered", "inat"}, optional
        For methods given by name: options as in the paper, see `methods.create`.
    seed, name, device, memory, output, resume, progress
        As in `RunSettings`. `output` gets the journal and, at the end, ``evaluation.json``.

    Returns
    -------
    Evaluation
        Results for each combination of shots and k_eff, and in it for each method. They do not
        depend on the number of ranks or on interruptions, except for the seconds.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, before any work, in one sentence.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> labels = torch.arange(20).repeat_interleave(60)
    >>> bank = paddle_ext.FeatureBank(4 * torch.eye(20)[labels] + torch.rand(1200, 20), labels)
    >>> methods = ["simpleshot", "paddle"]
    >>> found = paddle_ext.evaluate(bank, methods, shots=5, n_tasks=20, progress=False)
    >>> [(result.method, result.accuracy) for result in found]
    [('simpleshot', 100.0), ('paddle', 100.0)]
    """
    settings = RunSettings(
        seed=seed,
        name=name,
        device=device,
        memory=memory,
        output=output,
        resume=resume,
        progress=progress,
    )
    chosen = chosen_methods(methods, preset)
    plan = plan_tasks(
        bank,
        shots=shots,
        k_eff=k_eff,
        n_query=n_query,
        n_tasks=n_tasks,
        num_classes=num_classes,
        sampling=sampling,
        alpha=alpha,
        seed=seed,
        support=support,
        query=query,
    )
    return evaluate_plan(bank, chosen, plan, settings)


def evaluate_plan(
    bank: FeatureBank, methods: Mapping[str, Method], plan: TaskPlan, settings: RunSettings
) -> Evaluation:
    """Evaluate methods, by label, on planned tasks."""
    check_features(bank)
    with join_ranks() as ranks:
        device = settings.device_for(bank, ranks.local)
        on_device = DeviceBank(bank, device, settings.memory, plan.prototypes)
        work = Work(methods, plan, on_device, ranks, settings.progress and ranks.rank == 0)
        journal = None
        if settings.folder is not None:
            journal = Journal(settings.folder, journal_header(bank, plan), ranks.rank)
        results = work.results(work.all_counts(journal, settings.resume))
        machine = ranks.gather(machine_line(device))[0]
        notes = {"version": version(), "base_mean": bank.base_mean is not None}
        sampler = plan.samplers[0]
        found = Evaluation(
            results, settings.name, sampler.sampling, sampler.alpha, sampler.seed, machine, notes
        )
        if settings.folder is not None and ranks.rank == 0:
            found.save(settings.folder / FILE)
    return found


def journal_header(bank: FeatureBank, plan: TaskPlan) -> dict[str, object]:
    """Everything the counts of a journal depend on except shots, k_eff and methods."""
    sampler = plan.samplers[0]
    names = {} if plan.prototypes is None else {"prototypes": digest(plan.prototypes)}
    return {
        "version": version(),
        "block": BLOCK,
        "features": digest(bank.features, bank.base_mean),
        "rows": digest(plan.labels, plan.support, plan.query),
        "sampling": sampler.sampling,
        "alpha": sampler.alpha,
        "seed": sampler.seed,
        "n_query": sampler.n_query,
        "num_classes": sampler.num_classes,
        **names,
    }


def machine_line(device: torch.device) -> str:
    """The hardware that the seconds were measured on."""
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        where = f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} used"
    return f"{where}, torch {torch.__version__}"


# --- work ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """The work of an evaluation: for each setting its blocks of tasks, for each block all methods.

    In this order a block is drawn once for all methods, and every method has a first result early.
    """

    methods: Mapping[str, Method]
    plan: TaskPlan
    bank: DeviceBank
    ranks: Ranks
    show: bool

    def keys(self) -> Iterator[tuple[Key, TaskSampler, str]]:
        """The keys of all steps in order, each with its sampler and the label of its method."""
        names = {
            label: f"{method.name} {digest(type(method).__qualname__, options_of(method))}"
            for label, method in self.methods.items()
        }
        for sampler in self.plan.samplers:
            for number, size in enumerate(block_sizes(self.plan.n_tasks)):
                for label, name in names.items():
                    yield Key(sampler.shots, sampler.k_eff, name, number, size), sampler, label

    def all_counts(self, journal: Journal | None, resume: bool) -> dict[Key, Count]:
        """Compute the counts of all steps, except for those that the journal has already."""
        done: dict[Key, Count] = {}
        if journal is not None:
            if not resume:
                self.ranks.call_on_all(journal.clear)
            for read in self.ranks.call_on_all(journal.read):
                done |= read
            self.ranks.call_on_all(journal.open)
        mine: dict[Key, Count] = {}
        try:
            for key, count in self.steps(done, journal):
                mine[key] = count
                if journal is not None:
                    journal.add(key, count)
        finally:
            if journal is not None:
                journal.close()
        for others in self.ranks.gather(mine):
            done |= others
        return done

    def steps(
        self, done: Mapping[Key, Count], journal: Journal | None
    ) -> Iterator[tuple[Key, Count]]:
        """Compute the steps of this rank; finished parts of a block go to the journal."""
        parts = {} if journal is None else journal.parts
        todo = {
            key: (sampler, label)
            for key, sampler, label in self.keys()
            if key.block % self.ranks.world == self.ranks.rank and key not in done
        }
        total = sum(key.n_tasks - (parts[key].tasks if key in parts else 0) for key in todo)
        device = self.bank.device
        on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with on_device, Progress("evaluating", total, show=self.show) as shown:
            pace = self.warm_up(dict.fromkeys(label for _, label in todo.values()))
            sums: dict[tuple[TaskSampler, str], tuple[int, int]] = {}
            block, drawn = None, None
            for key, (sampler, label) in todo.items():
                if block is None or drawn != (sampler, key.block):
                    block, drawn = None, (sampler, key.block)  # frees the old one first
                    block = Block(self.bank, sampler, key.block * BLOCK, key.n_tasks)
                right, answers = sums.get((sampler, label), (0, 0))
                note = progress_note(sampler, label, right, answers)
                shown.advance(0, note)  # a slow method is named before its first result
                count = block.count(
                    self.methods[label],
                    partial(shown.advance, note=note),
                    begun=parts.get(key),
                    keep=None if journal is None else partial(journal.add_part, key),
                    pace=pace[label],
                )
                answers += key.n_tasks * sampler.n_query
                sums[sampler, label] = right + count.correct, answers
                yield key, count

    def warm_up(self, labels: Mapping[str, None]) -> dict[str, float]:
        """Run each method on one task before timing it; unsupported tasks are reported early.

        Returns the seconds of each method.
        """
        pace: dict[str, float] = {}
        if not labels:
            return pace
        block = Block(self.bank, self.plan.samplers[0], 0, 1)
        for label in labels:
            try:
                pace[label] = block.count(self.methods[label]).seconds
            except ValueError as error:
                context = f"methods: {label!r} cannot run these tasks: "
                if isinstance(error, check.ArgumentError):  # an option may help
                    raise check.ArgumentValueError(
                        "features", error.problem, error.or_pass, context + error.context
                    ) from error
                raise ValueError(f"{context}{error}") from error
        return pace

    def results(self, counts: Mapping[Key, Count]) -> tuple[Result, ...]:
        found: dict[tuple[TaskSampler, str], list[Count]] = {}
        for key, sampler, label in self.keys():
            found.setdefault((sampler, label), []).append(counts[key])
        return tuple(
            Result(
                method=label,
                options=options_of(self.methods[label]),
                shots=sampler.shots,
                k_eff=sampler.k_eff,
                num_classes=sampler.num_classes,
                n_query=sampler.n_query,
                n_tasks=self.plan.n_tasks,
                correct=sum(count.correct for count in blocks),
                squares=sum(count.squares for count in blocks),
                seconds=sum(count.seconds for count in blocks),
            )
            for (sampler, label), blocks in found.items()
        )


def progress_note(sampler: TaskSampler, label: str, right: int, answers: int) -> str:
    """The current computation, and its accuracy so far."""
    shots = "" if sampler.shots is None else f"{sampler.shots} shots, "
    accuracy = f": {100 * right / answers:.1f} %" if answers else ""
    return f"{label}, {shots}{sampler.k_eff} effective classes{accuracy}"
