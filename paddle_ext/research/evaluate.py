"""Evaluate methods on many tasks of a feature bank: accuracy, its interval, and seconds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import check
from ..large.sources import with_index
from ..methods import Method, create
from ..methods.base import PRESETS, fields_of, known_methods
from ..methods.registry import as_method
from ..methods.sources import source_digest
from ..native import devices
from ..native.load import version
from ..progress import Progress
from ..text import several
from .data.bank import ROWS_AT_ONCE, FeatureBank
from .results import Evaluation, Result
from .sampler import TaskBatch, TaskSampler

Methods: TypeAlias = str | Method | Sequence[str | Method] | Mapping[str, Method]

Setting: TypeAlias = tuple[str, int | None, int]  # the label of a method, shots, k_eff
Runs: TypeAlias = dict[Setting, tuple[Method, TaskSampler]]

FILE = "evaluation.json"
# The note that tells two methods with the same label and options apart: the class of each, and the
# digest of its source if it is one's own; None if that is unknown, and its results are not kept.
CLASSES = "classes"
# Tasks drawn at once: the same on any device and with any memory. Fewer would not keep a GPU busy.
BLOCK_TASKS = 500
# GiB of a batch. More gains nothing on the CPU, and less lets slow methods report progress more
# often; methods have a separate budget for what they compute from the rows.
BATCH_MEMORY = {"cpu": 1 / 32, "cuda": 2.0}


def evaluate(
    bank: FeatureBank,
    methods: Methods = "all",
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
    prototypes: Tensor | None = None,
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
        A name of `methods.available()`, or ``"all"``, in the order of the paper's tables, followed
        by ours. A mapping gives the methods your own labels, so that one of them may appear with
        several options.
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
    prototypes : Tensor [K, D], optional
        The embedding of each class name, for methods that can use them; then `shots` may be 0.
    preset : {"paper", "mini", "tiered", "inat"}, optional
        For methods given by name: options as in the paper, see `methods.create`.
    seed : int
        Of the tasks, in [0, 2**64).
    name : str
        The name of the features in results and figures.
    device : device, optional
        Default: the bank's GPU, else a GPU if available.
    memory : float, optional
        Memory limit of a batch of tasks, in GiB.
    output : path, optional
        A folder for ``evaluation.json``, which gets each result as it is finished.
    resume : bool
        Keep the results of the same evaluation in `output`; False starts over. A method of your own
        is evaluated again if the source of its class changed, or what that imports, except for
        installed libraries. It is always evaluated again if its class is of a notebook or a
        function, or has attributes that are not fields of a dataclass.

    Returns
    -------
    Evaluation
        Results for each combination of shots and k_eff, and in it for each method. They do not
        depend on interruptions, except for the seconds.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> labels = torch.arange(20).repeat_interleave(60)
    >>> bank = paddle_ext.FeatureBank(4 * torch.eye(20)[labels] + torch.rand(1200, 20), labels)
    >>> methods = ["simpleshot", "paddle"]
    >>> evaluation = paddle_ext.evaluate(bank, methods, shots=5, n_tasks=20, progress=False)
    >>> [(result.method, result.accuracy) for result in evaluation]
    [('simpleshot', 100.0), ('paddle', 100.0)]
    """
    if not isinstance(name, str):
        raise check.ArgumentTypeError("name", f"must be a string, got {check.kind(name)}")
    check.device(device)
    if memory is not None:
        check.real("memory", memory, positive=True, most=1e9)
    check.flag("resume", resume)
    check.flag("progress", progress)
    folder = None if output is None else Path(output)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise check.ArgumentValueError("output", f"must be a folder, got the file {str(output)!r}")
    chosen = chosen_methods(methods, preset, named=prototypes is not None)
    if not isinstance(bank, FeatureBank):
        raise check.ArgumentTypeError("bank", f"must be a FeatureBank, got {check.kind(bank)}")
    n_tasks = check.integer("n_tasks", n_tasks)
    support, query = split_rows(bank, "support", support), split_rows(bank, "query", query)
    labels = class_numbers(bank, support, query)
    least_shots = 1 if prototypes is None else 0
    samplers = [
        TaskSampler(
            labels,
            shots=count,
            n_query=n_query,
            k_eff=present,
            num_classes=num_classes,
            sampling=sampling,
            alpha=alpha,
            seed=seed,
            support=support,
            query=query,
        )
        for count in ([None] if shots is None else distinct_integers("shots", shots, least_shots))
        for present in distinct_integers("k_eff", k_eff)
    ]
    if prototypes is not None:
        prototypes = prototypes_of_classes(bank, labels, prototypes)
    bank.check_finite()

    first = samplers[0]
    notes: dict[str, object] = {"version": version(), "base_mean": bank.base_mean is not None}
    if folder is not None:  # digests read the whole bank
        notes |= {
            "features": digest(bank.features, bank.base_mean),
            "rows": digest(labels, support, query),
            "prototypes": digest(prototypes),
            "n_query": first.n_query,
            "num_classes": first.num_classes,
            CLASSES: {label: class_and_source(method) for label, method in chosen.items()},
        }
    where = computing_device(device, bank)
    settings = name, first.sampling, first.alpha, first.seed, machine_line(where)
    evaluation = Evaluation((), *settings, notes)
    runs: Runs = {
        (label, sampler.shots, sampler.k_eff): (method, sampler)
        for sampler in samplers
        for label, method in chosen.items()
    }
    results: dict[Setting, Result] = {}
    lines: list[str] = []
    if folder is not None and resume and (folder / FILE).exists():
        earlier = finished_results(folder, evaluation, runs, n_tasks)
        results = {(one.method, one.shots, one.k_eff): one for one in earlier}
        lines = kept_lines(chosen, results.keys() & runs.keys(), classes_in(notes))
        classes = classes_in(earlier.notes) | classes_in(notes)
        evaluation = replace(evaluation, notes=notes | {CLASSES: classes})
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    todo = {setting: run for setting, run in runs.items() if setting not in results}
    on_device = DeviceBank(bank, where, memory, prototypes)
    on_gpu = torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext()
    with on_gpu, Progress("evaluating", n_tasks * len(todo), show=progress) as shown:
        for line in lines:
            shown.line(line)
        warm_up(todo, on_device)
        for setting, run in todo.items():
            results[setting] = result_of(setting[0], *run, n_tasks, on_device, shown)
            done = [x for x in dict.fromkeys([*runs, *results]) if x in results]
            evaluation = replace(evaluation, results=tuple(results[x] for x in done))
            if folder is not None:
                evaluation.save(folder / FILE)
    return replace(evaluation, results=tuple(results[setting] for setting in runs))


def finished_results(folder: Path, now: Evaluation, runs: Runs, n_tasks: int) -> Evaluation:
    """The results of an earlier call that hold; an error if its tasks were others."""
    earlier = Evaluation.load(folder / FILE)
    there, here = (
        dict[str, Any](x.notes) | {"sampling": x.sampling, "alpha": x.alpha, "seed": x.seed}
        for x in (earlier, now)
    )
    different = [
        f"{name} (there {there.get(name)!r}, here {here.get(name)!r})"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name) and name != CLASSES
    ]
    if different:
        raise check.ArgumentValueError(
            "output",
            f"must be a folder of the same evaluation to resume, got {str(folder)!r} with another "
            f"{', another '.join(different)}",
            or_pass="resume=False",
        )
    classes = classes_in(there)
    changed = {
        label
        for label, code in classes_in(here).items()
        if code is None or code != classes.get(label)
    }

    def holds(one: Result) -> bool:
        if one.method in changed:
            return False
        setting = one.method, one.shots, one.k_eff
        method = runs[setting][0] if setting in runs else None
        return method is None or (one.n_tasks, one.options) == (n_tasks, options_of(method))

    return replace(earlier, results=tuple(filter(holds, earlier)))


def class_and_source(method: Method) -> str | None:
    """What identifies the code of a method; None if nothing does."""
    source = source_digest(method)
    return None if source is None else f"{type(method).__qualname__} {source}".strip()


def kept_lines(
    chosen: Mapping[str, Method], kept: Collection[Setting], classes: Mapping[str, object]
) -> list[str]:
    """Sentences on methods of one's own: what an earlier run computed, and what no run can keep."""
    kept_labels = {label for label, *_ in kept}
    own = [label for label in chosen if label in kept_labels and source_digest(chosen[label])]
    unknown = [label for label in chosen if classes.get(label) is None]
    lines = []
    if own:
        lines.append(f"kept from an earlier run with the same source: {several(own, 5)}")
    if unknown:
        lines.append(f"computed again, because the source may have changed: {several(unknown, 5)}")
    return lines


def classes_in(notes: Mapping[str, object]) -> dict[str, object]:
    """The classes of the methods by their labels, in the notes of an evaluation."""
    classes = notes.get(CLASSES)
    return classes if isinstance(classes, dict) else {}


def digest(*parts: object) -> str:
    """A short digest of tensors, and of anything that is identified by its printed form."""
    result = hashlib.blake2b(digest_size=10)
    for part in parts:
        if isinstance(part, Tensor):
            result.update(f"{part.dtype} {list(part.shape)} ".encode())
            for rows in torch.split(part.detach().view(part.shape or (1,)), ROWS_AT_ONCE):
                result.update(rows.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        else:
            result.update(f"{part!r} ".encode())
    return result.hexdigest()


def options_of(method: Method) -> dict[str, object]:
    return {field.name: getattr(method, field.name) for field in fields_of(method)}


def warm_up(runs: Runs, bank: DeviceBank) -> None:
    """Run each method on one task before timing it; unsupported tasks are reported early."""
    first: dict[str, tuple[Method, TaskSampler]] = {}
    for (label, *_), run in runs.items():
        first.setdefault(label, run)
    for label, (method, sampler) in first.items():
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


def result_of(
    label: str,
    method: Method,
    sampler: TaskSampler,
    n_tasks: int,
    bank: DeviceBank,
    shown: Progress,
) -> Result:
    """A method on all tasks of one setting."""
    by_task: list[int] = []
    seconds = 0.0
    for start in range(0, n_tasks, BLOCK_TASKS):
        shots = "" if sampler.shots is None else f"{sampler.shots} shots, "
        accuracy = f": {100 * sum(by_task) / (start * sampler.n_query):.1f} %" if start else ""
        note = f"{label}, {shots}{sampler.k_eff} effective classes{accuracy}"
        shown.advance(0, note)  # a slow method is named before its first result
        tasks = sampler.batch(start, min(BLOCK_TASKS, n_tasks - start)).to(bank.device)
        for right, taken in bank.counts(method, sampler, tasks):
            by_task += right.tolist()
            seconds += taken
            shown.advance(len(right), note)
    drawn = sampler.shots, sampler.k_eff, sampler.num_classes, sampler.n_query, n_tasks
    squares = sum(count * count for count in by_task)
    return Result(label, options_of(method), *drawn, sum(by_task), squares, seconds, tuple(by_task))


class DeviceBank:
    """The features on the device that computes, and the memory limit of a batch, in GiB."""

    def __init__(
        self,
        bank: FeatureBank,
        device: torch.device,
        memory: float | None,
        prototypes: Tensor | None = None,
    ) -> None:
        self.device = device
        # Methods would convert half precision on the CPU in every call.
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

    def counts(
        self, method: Method, sampler: TaskSampler, tasks: TaskBatch
    ) -> Iterator[tuple[Tensor, float]]:
        """Correct predictions of each task, and seconds, in batches of tasks that fit in memory."""
        size = self.batch_size(sampler, method)
        for start in range(0, len(tasks.query_index), size):
            one = slice(start, start + size)
            of_support = ... if sampler.shots is None else one  # one support for all tasks
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
            yield (prediction.labels == tasks.query_labels[one]).sum(1), seconds


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine_line(device: torch.device) -> str:
    """The hardware that the seconds were measured on."""
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        where = f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} used"
    return f"{where}, torch {torch.__version__}"


def all_methods(named: bool = False) -> tuple[str, ...]:
    """Names of the methods in the order of tables: those of the paper, ours, and registered ones.

    If `named`, those that can use class names, else those that do not need them.
    """
    names = (
        name
        for name, cls in known_methods.items()
        if (cls.takes_prototypes if named else not cls.needs_prototypes)
    )
    return tuple(sorted(names, key=lambda name: (known_methods[name].display.order, name)))


def chosen_methods(
    methods: Methods, preset: str | None = None, *, named: bool = False
) -> dict[str, Method]:
    """The methods by label, in order; `preset` applies to those given by name."""
    if preset is not None:
        check.choice("preset", preset, PRESETS)
    available = all_methods(named)
    if isinstance(methods, str) and methods == "all":
        methods = available
    elif isinstance(methods, str) or not isinstance(methods, Mapping | Sequence):
        methods = [methods]
    if not methods:
        raise check.ArgumentValueError("methods", "must be at least one, got none")
    chosen: dict[str, Method] = {}
    pairs = methods.items() if isinstance(methods, Mapping) else ((None, one) for one in methods)
    for label, given in pairs:
        if isinstance(given, str) and given not in available:
            check.raise_not_a_choice("methods", given, ("all", *sorted(available)))
        method = create(given, preset) if isinstance(given, str) else as_method(given)
        if method is None:
            problem = f"must be names or methods, got {check.kind(given)}"
            raise check.ArgumentTypeError("methods", problem)
        label = method.name if label is None else label
        if not isinstance(label, str):
            raise check.ArgumentTypeError(
                "methods", f"must have strings as labels, got {check.kind(label)}"
            )
        if label in chosen:
            raise check.ArgumentValueError(
                "methods",
                "must have unique labels (give a mapping of labels to methods), "
                f"got {label!r} twice",
            )
        chosen[label] = method
    return chosen


def computing_device(device: str | torch.device | None, bank: FeatureBank) -> torch.device:
    if device is None and bank.features.is_cuda:
        return bank.features.device
    if device is None:
        device = "cuda" if devices.usable_gpu() else "cpu"
    return with_index(check.device(device))


def distinct_integers(name: str, value: object, least: int = 1) -> list[int]:
    """One number, or several different ones."""
    listed = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    numbers = [check.integer(name, number, least=least) for number in listed]
    if not numbers or len(set(numbers)) < len(numbers):
        problem = f"must be one number or several different ones, got {value}"
        raise check.ArgumentValueError(name, problem)
    return numbers


def split_rows(bank: FeatureBank, name: str, given: str | Tensor | None) -> Tensor | None:
    """The rows of a split that have a class, or explicit rows."""
    if not isinstance(given, str):
        return None if given is None else check.row_numbers(name, given, len(bank))
    if given not in bank.splits:
        there = ", ".join(map(repr, bank.splits)) or "none"
        raise check.ArgumentValueError(
            name, f"must be rows or a split of the bank ({there}), got {given!r}"
        )
    rows = bank.rows(given)
    rows = rows[bank.labels.cpu()[rows] >= 0]
    if len(rows) == 0:
        raise check.ArgumentValueError(
            name, f"must have rows of a class, got {given!r}, which has none"
        )
    return rows


def class_numbers(bank: FeatureBank, support: Tensor | None, query: Tensor | None) -> Tensor:
    """The labels [N], without classes that no task can draw, renumbered."""
    labels = seen = bank.labels.cpu()
    if support is not None and query is not None:
        seen = labels[torch.cat([rows.cpu().long() for rows in (support, query)])]
    there = torch.bincount(seen[seen >= 0], minlength=bank.num_classes) > 0
    number = torch.where(there, there.cumsum(0) - 1, -1)
    return torch.cat([number, number.new_tensor([-1])])[labels]  # the last one is that of -1


def prototypes_of_classes(bank: FeatureBank, labels: Tensor, prototypes: Tensor) -> Tensor:
    """The rows of `prototypes` for the classes that tasks draw, as `labels` number them."""
    (prototypes,) = check.tensors(prototypes)
    check.features("prototypes", prototypes)
    D = bank.features.shape[1]
    if prototypes.dim() != 2 or len(prototypes) < bank.num_classes or prototypes.shape[1] != D:
        problem = f"must have shape [{bank.num_classes}, {D}], a row of each class"
        raise check.ArgumentValueError("prototypes", f"{problem}, got {list(prototypes.shape)}")
    if not torch.isfinite(prototypes).all():
        raise check.ArgumentValueError("prototypes", "must be finite, got NaN or infinity")
    drawn = labels >= 0
    of_classes = prototypes.new_empty(int(labels.max()) + 1, D)
    of_classes[labels[drawn]] = prototypes[bank.labels.cpu()[drawn]]
    return of_classes
