"""Methods on many tasks of a feature bank: accuracy with its confidence interval, and seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..data.bank import FeatureBank
from ..data.progress import Progress
from ..methods import Method
from ..ops import check, native
from ..tasks import TaskSampler
from .arguments import (
    check_surroundings,
    chosen_device,
    chosen_methods,
    chosen_rows,
    class_numbers,
    machine_line,
    options_of,
    several,
)
from .blocks import BLOCK, Block, Count, Place, block_sizes
from .journal import Journal, Key, digest
from .ranks import Ranks, joined
from .results import Evaluation, Result

FILE = "evaluation.json"


def evaluate(
    bank: FeatureBank,
    methods: str | Method | Sequence[str | Method] | Mapping[str, Method] = "all",
    *,
    shots: int | Sequence[int] | None = (5, 10, 20),
    k_eff: int | Sequence[int] = 5,
    n_tasks: int = 10_000,
    n_query: int = 75,
    n_ways: int | str | None = None,
    sampling: str = "uniform",
    alpha: float = 1.0,
    seed: int = 0,
    support: str | Tensor | None = None,
    query: str | Tensor | None = None,
    preset: str | None = None,
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
        Rows of no class, label -1, are not drawn. Classes without rows do not count: the others
        are then numbered anew, in their order.
    methods : str, Method, or a sequence of them, or a mapping of labels to methods
        A name of `methods.available()`, or ``"all"``, in the order of the paper's tables. A mapping
        gives the methods labels of your own, so that one of them may come with several options.
    shots : int, sequence of int, or None
        Support rows of each class. None: all rows of `support`, shared by all tasks.
    k_eff : int or sequence of int
        Classes that the queries of a task come from. Each number of shots is combined with each
        of them.
    n_tasks, n_query : int
        Tasks of each combination, and queries of a task.
    n_ways : int, "full" or None
        Candidate classes of a task; None or ``"full"``: all.
    sampling, alpha, seed
        As in `TaskSampler`.
    support, query : str or Tensor [n], optional
        What to draw them from: a split of the bank, or rows. One of them given, the other is all
        remaining rows.
    preset : {"mini", "tiered", "inat"}, optional
        For methods given by name.
    name : str
        What the features are called in the result.
    device : device, optional
        Default: where the bank is if that is a GPU, else a GPU if there is one. Under torchrun each
        rank takes the GPU of its number on the machine.
    memory : float, optional
        GiB that the rows of a batch of tasks may take.
    output : path, optional
        A folder for the journal and, at the end, ``evaluation.json``.
    resume : bool
        Go on from the journal in `output`; False starts anew.
    progress : bool
        Say on stderr how far it is.

    Returns
    -------
    Evaluation
        Results for each combination of shots and k_eff, in it for each method. It does not depend
        on the number of ranks or on interruptions, except for the seconds.

    Raises
    ------
    TypeError, ValueError
        For a bad argument, before any work, in one sentence.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> labels = torch.arange(20).repeat_interleave(60)
    >>> bank = paddle_ext.FeatureBank(4 * torch.eye(20)[labels] + torch.rand(1200, 20), labels)
    >>> methods = ["simpleshot", paddle_ext.methods.create("paddle", scaling="auto")]
    >>> found = paddle_ext.evaluate(bank, methods, shots=5, n_tasks=20, progress=False)
    >>> [(result.method, result.accuracy) for result in found]
    [('simpleshot', 100.0), ('paddle', 100.0)]
    """
    if not isinstance(bank, FeatureBank):
        raise TypeError(f"bank must be a FeatureBank, got {check.kind(bank)}")
    chosen = chosen_methods(methods, preset)
    check.integer("n_tasks", n_tasks)
    check_surroundings(name, device, memory, output, resume, progress)
    rows = {"support": chosen_rows(bank, "support", support)}
    rows["query"] = chosen_rows(bank, "query", query)
    labels = class_numbers(bank, rows)
    settings = [
        TaskSampler(
            labels,
            shots=count,
            n_query=n_query,
            k_eff=effective,
            n_ways=None if n_ways == "full" else n_ways,  # type: ignore[arg-type]
            sampling=sampling,
            alpha=alpha,
            seed=seed,
            **rows,
        )
        for count in ([None] if shots is None else several("shots", shots))
        for effective in several("k_eff", k_eff)
    ]
    bank.check_finite()
    with joined() as ranks:
        place = Place(
            bank.features, bank.base_mean, chosen_device(device, bank, ranks.local), memory
        )
        work = Work(chosen, settings, n_tasks, place, ranks, progress and ranks.rank == 0)
        journal = None
        if output is not None:
            header = header_of(bank, settings[0], (labels, rows["support"], rows["query"]))
            journal = Journal(Path(output), header, ranks.rank)
        results = work.results(work.run(journal, resume))
        machine = ranks.gather(machine_line(place.device))[0]
        notes = {"version": native.version(), "base_mean": bank.base_mean is not None}
        used = settings[0]
        found = Evaluation(results, name, used.sampling, used.alpha, used.seed, machine, notes)
        if output is not None and ranks.rank == 0:
            found.save(Path(output) / FILE)
    return found


def header_of(
    bank: FeatureBank, sampler: TaskSampler, rows: tuple[Tensor | None, ...]
) -> dict[str, object]:
    """What the counts of a journal depend on: all but shots, k_eff and methods."""
    return {
        "journal": native.version(),
        "block": BLOCK,
        "features": digest(bank.features, bank.base_mean),
        "rows": digest(*rows),
        "sampling": sampler.sampling,
        "alpha": sampler.alpha,
        "seed": sampler.seed,
        "n_query": sampler.n_query,
        "n_ways": sampler.num_classes,
    }


# --- work ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What is to be done: settings, in each its blocks of tasks, for each block all methods.

    So a block is drawn once for all methods, and all of them have a first result early.
    """

    methods: Mapping[str, Method]
    settings: Sequence[TaskSampler]
    n_tasks: int
    place: Place
    ranks: Ranks
    show: bool

    def keys(self) -> Iterator[tuple[Key, TaskSampler, str]]:
        """All steps in their order, each with its setting and the label of its method."""
        names = {
            label: f"{method.name} {digest(type(method).__qualname__, options_of(method))}"
            for label, method in self.methods.items()
        }
        for sampler in self.settings:
            for number, size in enumerate(block_sizes(self.n_tasks)):
                for label, name in names.items():
                    yield Key(sampler.shots, sampler.k_eff, name, number, size), sampler, label

    def run(self, journal: Journal | None, resume: bool) -> dict[Key, Count]:
        """The counts of all steps; those of the journal are not computed again."""
        done: dict[Key, Count] = {}
        if journal is not None:
            if not resume:
                self.ranks.together(journal.clear)
            for read in self.ranks.together(journal.read):
                done |= read
            self.ranks.together(journal.open)
        mine: dict[Key, Count] = {}
        try:
            for key, count in self.steps(done):
                mine[key] = count
                if journal is not None:
                    journal.add(key, count)
        finally:
            if journal is not None:
                journal.close()
        for others in self.ranks.gather(mine):
            done |= others
        return done

    def steps(self, done: Mapping[Key, Count]) -> Iterator[tuple[Key, Count]]:
        """Compute what this rank has to."""
        todo = {
            key: (sampler, label)
            for key, sampler, label in self.keys()
            if key.block % self.ranks.world == self.ranks.rank and key not in done
        }
        total = sum(key.tasks for key in todo)
        device = self.place.device
        on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with on_device, Progress("evaluating", total, show=self.show) as shown:
            self.warm_up(dict.fromkeys(label for _, label in todo.values()))
            sums: dict[tuple[TaskSampler, str], tuple[int, int]] = {}
            block, drawn = None, None
            for key, (sampler, label) in todo.items():
                if block is None or drawn != (sampler, key.block):
                    block, drawn = None, (sampler, key.block)  # the old one's memory is free first
                    block = Block(self.place, sampler, key.block * BLOCK, key.tasks)
                right, answers = sums.get((sampler, label), (0, 0))
                note = note_of(sampler, label, right, answers)
                count = block.count(self.methods[label], partial(shown.advance, note=note))
                answers += key.tasks * sampler.n_query
                sums[sampler, label] = right + count.correct, answers
                yield key, count

    def warm_up(self, labels: Mapping[str, None]) -> None:
        """Let each method see a task before the clock runs; what it cannot take is told early."""
        if not labels:
            return
        block = Block(self.place, self.settings[0], 0, 1)
        for label in labels:
            try:
                block.count(self.methods[label])
            except ValueError as error:
                raise ValueError(f"methods: {label!r} refuses these tasks: {error}") from error

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
                n_ways=sampler.num_classes,
                n_query=sampler.n_query,
                tasks=self.n_tasks,
                correct=sum(count.correct for count in blocks),
                squares=sum(count.squares for count in blocks),
                seconds=sum(count.seconds for count in blocks),
            )
            for (sampler, label), blocks in found.items()
        )


def note_of(sampler: TaskSampler, label: str, right: int, answers: int) -> str:
    """What is being computed, and how accurate it has been so far."""
    shots = "" if sampler.shots is None else f"{sampler.shots} shots, "
    accuracy = f": {100 * right / answers:.1f} %" if answers else ""
    return f"{label}, {shots}{sampler.k_eff} effective classes{accuracy}"
