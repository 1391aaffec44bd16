"""How fast PADDLE and projected gradient descent settle on one task.

The criterion is the mean distance that a prototype moves in an iteration, in scaled coordinates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ... import methods, reference
from ...data.bank import FeatureBank
from ...data.progress import Progress
from ...ops import check
from ...ops.paddle import solve
from ...reference import Solution
from ...tasks.sampler import LAST_TASK, natural
from .. import figures as pictures
from .. import paper
from ..arguments import chosen_device, machine_line
from ..drawing import duration, level, title_of
from ..figures import Curve
from ..tables import MISSING
from .base import ExperimentResult, Table, check_data_set, features_title, samplers, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Self


@dataclass(frozen=True)
class Convergence(ExperimentResult):
    """Curves of the solvers, and the accuracy of alpha-TIM on the same task."""

    experiment: ClassVar[str] = "convergence"
    title: ClassVar[str] = "Convergence on one task"

    curves: tuple[Curve, ...]
    alpha_tim: float  # accuracy in per cent
    tol: float
    task: str  # what it is
    machine: str

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        def tuples(curve: Mapping[str, Any]) -> dict[str, Any]:
            return {key: tuple(x) if isinstance(x, list) else x for key, x in curve.items()}

        curves = tuple(Curve(**tuples(curve)) for curve in data["curves"])
        return cls(**{**data, "curves": curves})

    def summary(self) -> str:
        return (
            f"{self.task}. Time until the prototypes move by at most {level(self.tol)}, on "
            f"{self.machine}. The paper's task is one of tiered-ImageNet, on other hardware."
        )

    def tables(self) -> list[Table]:
        published = paper.convergence()
        until = f"time to {level(self.tol)}"
        header = ["method", until, "paper", "iterations", "accuracy", "paper"]
        theirs = published["alpha_tim"]
        row = [title_of("alpha_tim"), MISSING, MISSING, MISSING]
        rows = [[*row, f"{self.alpha_tim:.1f}", f"{theirs.accuracy:.1f}"]]
        for curve in self.curves:
            theirs = published[curve.method]
            rows.append(
                [
                    curve.title,
                    "not reached" if curve.reached is None else duration(curve.reached),
                    MISSING if theirs.seconds is None else duration(theirs.seconds),
                    str(curve.iterations[-1]),
                    f"{curve.accuracy:.1f}",
                    f"{theirs.accuracy:.1f}",
                ]
            )
        return [Table("", header, rows)]

    def figures(self) -> dict[str, Figure]:
        return {self.experiment: pictures.criterion_against_time(self.curves, self.tol)}


def run(
    bank: FeatureBank,
    *,
    dataset: str | None = "mini",
    backbone: str = "resnet18",
    shots: int = 20,
    k_eff: int = 5,
    n_query: int = 75,
    task: int = 0,
    scaling: str = "minmax",
    max_iter: int = 1000,
    pgd_iterations: int = 1000,
    learning_rate: float = 1e-3,
    tol: float = 1e-6,
    repeats: int = 7,
    seed: int = 0,
    name: str = "",
    device: str | torch.device | None = None,
    output: str | Path | None = None,
    progress: bool = True,
) -> Convergence:
    """Measure the criterion against seconds, for PADDLE and for projected gradient descent.

    PADDLE runs native and as the reference in torch, PGD as the reference.

    Parameters
    ----------
    bank : FeatureBank
    dataset, backbone, name, output
        As in `table1.run`.
    shots, k_eff, n_query, seed
        As in `TaskSampler`.
    task : int
        Number of the task.
    scaling : {"minmax", "auto", "none"}
    max_iter, pgd_iterations : int
        Iterations of PADDLE and PGD, at most.
    learning_rate : float
        Of PGD; the paper's by default.
    tol : float
        The criterion to be reached, > 0.
    repeats : int
        The native solver's times are the best of this many.
    device : device, optional
    progress : bool

    Returns
    -------
    Convergence

    Examples
    --------
    >>> import paddle_ext
    >>> bank = paddle_ext.FeatureBank.load("tiered_test.npz")  # doctest: +SKIP
    >>> print(run(bank, dataset="tiered").markdown())  # doctest: +SKIP
    """
    check_data_set(dataset, backbone, paper.DATA_SETS)
    options: dict[str, Any] = {
        "max_iter": check.integer("max_iter", max_iter),
        "tol": check.real("tol", tol, positive=True),
        "scaling": check.choice("scaling", scaling, check.SCALING_NAMES),
    }
    check.integer("pgd_iterations", pgd_iterations)
    check.integer("repeats", repeats)
    check.real("learning_rate", learning_rate, positive=True)
    one = drawn(bank, device, shots=shots, k_eff=k_eff, n_query=n_query, task=task, seed=seed)
    with Progress("convergence", 4, show=progress) as shown:
        shown.line(f"{one.classes} candidate classes, {shots} shots, {k_eff} present")
        curves = [native_curve(one, repeats=repeats, **options)]
        shown.advance(note="the reference in torch")
        curves.append(traced("paddle", "PADDLE, torch", one, reference.solve, **options))
        shown.advance(note=f"PGD, {pgd_iterations} iterations")
        options |= {"max_iter": pgd_iterations, "lr": learning_rate}
        curves.append(traced("paddle_pgd", "PGD, torch", one, reference.pgd, **options))
        shown.advance(note="α-TIM")
        method = methods.create("alpha_tim", dataset)
        alpha_tim = one.accuracy(method.predict(*one.inputs, num_classes=one.classes).labels)
        shown.advance()
    features = features_title(name, dataset, backbone)
    about = f"{features}: " if features else ""
    about += f"task {task}, {one.classes} candidate classes, {shots} shots, {k_eff} present, "
    about += f"{n_query} queries, scaling {scaling}"
    machine = machine_line(one.inputs[0].device)
    return saved(Convergence(tuple(curves), alpha_tim, tol, about, machine), output)


# --- measuring ----------------------------------------------------------------------------------


class OneTask(NamedTuple):
    """One task on its device."""

    inputs: tuple[Tensor, Tensor, Tensor]  # support [S, D], its labels [S], query [Q, D]
    truth: Tensor  # [Q]
    classes: int

    def accuracy(self, labels: Tensor) -> float:
        """In per cent."""
        return 100.0 * float((labels == self.truth).double().mean())


def drawn(
    bank: FeatureBank, device: str | torch.device | None, *, task: int, **settings: Any
) -> OneTask:
    """The task of this number."""
    (sampler,) = samplers("convergence", bank, **settings)
    natural("task", task, LAST_TASK - 1)
    batch = sampler.batch(task, 1)
    bank.check_finite()
    where = chosen_device(device, bank, 0)
    rows = [x[0].to(bank.features.device) for x in (batch.support_index, batch.query_index)]
    support, query = (bank.features[own].to(where) for own in rows)
    labels = batch.support_labels[0].to(where)
    return OneTask((support, labels, query), batch.query_labels[0].to(where), sampler.num_classes)


def native_curve(one: OneTask, *, repeats: int, max_iter: int, tol: float, scaling: str) -> Curve:
    """The native solver keeps no trace: it runs for more and more iterations, each run timed."""

    def run(iterations: int, tol: float) -> Solution:
        return solve(
            *one.inputs,
            num_classes=one.classes,
            scaling=scaling,
            max_iter=iterations,
            tol=tol,
            validate=False,
        )

    final = run(max_iter, tol)  # also the warm-up
    counts = [1]
    while counts[-1] < int(final.iterations):
        counts.append(min(max(counts[-1] + 1, 5 * counts[-1] // 4), int(final.iterations)))
    calls = [partial(run, count, 0.0) for count in counts]
    seconds = best_times(calls, one.inputs[0].device, repeats)
    return Curve(
        "paddle",
        "PADDLE, native",
        tuple(counts),
        tuple(seconds),
        tuple(float(call().criterion) for call in calls),
        one.accuracy(final.labels),
        seconds[-1] if float(final.criterion) <= tol else None,
    )


def best_times(
    calls: Sequence[Callable[[], object]], device: torch.device, repeats: int
) -> list[float]:
    """The shortest time of each call in seconds; each call does what the one before does, and more.

    They take turns, so that a busy moment of the machine does not fall on one of them alone. A call
    that does more bounds the times of those that do less.
    """
    best = [math.inf] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            synchronise(device)
            start = time.perf_counter()
            call()
            synchronise(device)
            best[place] = min(best[place], time.perf_counter() - start)
    for place in reversed(range(len(best) - 1)):
        best[place] = min(best[place], best[place + 1])
    return best


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def traced(
    method: str,
    title: str,
    one: OneTask,
    solver: Callable[..., Solution],
    **options: Any,
) -> Curve:
    """A solver of the reference, with its own trace; it stops at the tolerance."""
    shared = {"num_classes": one.classes, "trace": True}
    solver(*one.inputs, **shared, **{**options, "max_iter": 2})  # warm-up
    solution = solver(*one.inputs, **shared, **options)
    assert solution.trace is not None  # asked for
    criterion = solution.trace.criterion.flatten().tolist()
    seconds = solution.trace.seconds.tolist()
    reached = (t for t, c in zip(seconds, criterion, strict=True) if c <= options["tol"])
    return Curve(
        method,
        title,
        tuple(range(1, len(criterion) + 1)),
        tuple(seconds),
        tuple(criterion),
        one.accuracy(solution.labels),
        next(reached, None),
    )
