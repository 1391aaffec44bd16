"""Convergence of PADDLE and projected gradient descent on one task.

The criterion is the mean distance that a prototype moves in an iteration, in scaled coordinates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

import paddle_ext

from .... import check, methods
from ....methods import PaddlePgd
from ....methods.base import DATA_SETS
from ....progress import Progress
from ....rows import computing_dtype
from ....solution import Solution
from ....solvers.paddle import solve
from ....task import Task
from ...data.bank import FeatureBank
from ...tasks.sampler import LAST_TASK
from .. import figures as pictures
from .. import paper
from ..blocks import wait_for
from ..drawing import duration_text, tolerance_text
from ..evaluate import machine_line
from ..figures import Curve
from ..plan import check_features
from ..settings import RunSettings
from ..tables import MISSING, title_of
from .base import (
    ExperimentResult,
    Table,
    check_data_set,
    features_title,
    plan_experiment,
    save_on_first_rank,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class Convergence(ExperimentResult):
    """Curves of the solvers, and the accuracy of alpha-TIM on the same task."""

    experiment: str = "convergence"
    curves: tuple[Curve, ...]
    alpha_tim: float  # accuracy in percent
    tol: float
    task: str  # description
    machine: str

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        def tuples(curve: Mapping[str, Any]) -> dict[str, Any]:
            return {key: tuple(x) if isinstance(x, list) else x for key, x in curve.items()}

        curves = tuple(Curve(**tuples(curve)) for curve in data["curves"])
        return cls(**{**data, "curves": curves})

    @property
    def title(self) -> str:
        return "Convergence on one task"

    def summary(self) -> str:
        return (
            f"{self.task}. Time until the prototypes move by at most {tolerance_text(self.tol)}, "
            f"on {self.machine}. The paper's task is one of tiered-ImageNet, on other hardware."
        )

    def tables(self) -> list[Table]:
        published = paper.convergence()
        until = f"time to {tolerance_text(self.tol)}"
        header = ["method", until, "paper", "iterations", "accuracy", "paper"]
        theirs = published["alpha_tim"]
        row = [title_of("alpha_tim"), MISSING, MISSING, MISSING]
        rows = [[*row, f"{self.alpha_tim:.1f}", f"{theirs.accuracy:.1f}"]]
        for curve in self.curves:
            theirs = published[curve.method]
            rows.append(
                [
                    curve.title,
                    "not reached" if curve.reached is None else duration_text(curve.reached),
                    MISSING if theirs.seconds is None else duration_text(theirs.seconds),
                    str(curve.iterations[-1]),
                    f"{curve.accuracy:.1f}",
                    f"{theirs.accuracy:.1f}",
                ]
            )
        return [Table("", header, rows)]

    def figures(self) -> dict[str, Figure]:
        return {self.experiment: pictures.criterion_against_time(self.curves, self.tol)}


def measure_convergence(
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
    pgd_max_iter: int = 1000,
    learning_rate: float = 1e-3,
    tol: float = 1e-6,
    repeats: int = 7,
    **run: Any,
) -> Convergence:
    """Measure the criterion against seconds, for PADDLE and for projected gradient descent.

    PADDLE runs native and in torch, PGD in torch.

    Parameters
    ----------
    bank : FeatureBank
    dataset, backbone, **run
        As in `accuracy.reproduce_table`; `memory` and `resume` have no effect.
    shots, k_eff, n_query
        As in `TaskSampler`.
    task : int
        Number of the task.
    scaling : {"minmax", "auto", "none"}
    max_iter, pgd_max_iter : int
        Limits on the iterations of PADDLE and PGD.
    learning_rate : float
        Of PGD; default: the paper's.
    tol : float
        The target of the criterion, > 0.
    repeats : int
        PADDLE's times are the best of this many runs.
    """
    settings = RunSettings(**run)
    check_data_set(dataset, backbone, DATA_SETS)
    shared: dict[str, Any] = {
        "tol": check.real("tol", tol, positive=True),
        "scaling": check.choice("scaling", scaling, check.SCALING_NAMES),
    }
    check.integer("max_iter", max_iter)
    check.integer("pgd_max_iter", pgd_max_iter)
    check.integer("repeats", repeats)
    pgd = PaddlePgd(max_iter=pgd_max_iter, learning_rate=learning_rate, **shared)
    one = draw_task(bank, settings, shots=shots, k_eff=k_eff, n_query=n_query, task=task)
    paddle = {"max_iter": max_iter, "repeats": repeats, **shared}
    with Progress("convergence", 4, show=settings.progress) as shown:
        shown.line(f"{one.num_classes} candidate classes, {shots} shots, {k_eff} present")
        curves = [paddle_curve(one, "PADDLE, native", partial(solve, validate=False), **paddle)]
        shown.advance(note="PADDLE in torch")
        curves.append(paddle_curve(one, "PADDLE, torch", paddle_ext.reference.solve, **paddle))
        shown.advance(note=f"PGD, {pgd_max_iter} iterations")
        curves.append(pgd_curve(one, "PGD, torch", pgd))
        shown.advance(note="α-TIM")
        method = methods.create("alpha_tim", dataset or "paper")
        labels = method.predict(*one.inputs, num_classes=one.num_classes).labels
        shown.advance()
    features = features_title(settings.name, dataset, backbone)
    about = f"{features}: " if features else ""
    about += f"task {task}, {one.num_classes} candidate classes, {shots} shots, {k_eff} present, "
    about += f"{n_query} queries, scaling {scaling}"
    result = Convergence(
        curves=tuple(curves),
        alpha_tim=one.accuracy(labels),
        tol=tol,
        task=about,
        machine=machine_line(one.inputs[0].device),
    )
    return save_on_first_rank(result, settings)


# --- measuring ----------------------------------------------------------------------------------


class OneTask(NamedTuple):
    """One task on its device."""

    inputs: tuple[Tensor, Tensor, Tensor]  # support [S, D], its labels [S], query [Q, D]
    truth: Tensor  # [Q]
    num_classes: int

    def accuracy(self, labels: Tensor) -> float:
        """Accuracy in percent."""
        return 100.0 * float((labels == self.truth).double().mean())


def draw_task(bank: FeatureBank, settings: RunSettings, *, task: int, **tasks: Any) -> OneTask:
    """The task of this number."""
    (sampler,) = plan_experiment("convergence", bank, seed=settings.seed, **tasks).samplers
    check.integer("task", task, least=0, most=LAST_TASK - 1)
    batch = sampler.batch(task, 1)
    check_features(bank)
    device = settings.device_for(bank)
    rows = [x[0].to(bank.features.device) for x in (batch.support_index, batch.query_index)]
    support, query = (bank.features[own].to(device) for own in rows)
    labels = batch.support_labels[0].to(device)
    truth = batch.query_labels[0].to(device)
    return OneTask((support, labels, query), truth, sampler.num_classes)


def paddle_curve(
    one: OneTask,
    title: str,
    solver: Callable[..., Solution],
    *,
    repeats: int,
    max_iter: int,
    tol: float,
    scaling: str,
) -> Curve:
    """The curve of PADDLE, from timed runs with increasing numbers of iterations.

    The native solver records no trace, so that each point needs a run of its own.
    """

    def solve_for(iterations: int, tol: float) -> Solution:
        return solver(
            *one.inputs,
            num_classes=one.num_classes,
            scaling=scaling,
            max_iter=iterations,
            tol=tol,
        )

    final = solve_for(max_iter, tol)  # also warms up
    counts = [1]
    while counts[-1] < int(final.iterations):
        counts.append(min(max(counts[-1] + 1, 5 * counts[-1] // 4), int(final.iterations)))
    calls = [partial(solve_for, count, 0.0) for count in counts]
    seconds = best_times(calls, one.inputs[0].device, repeats)
    return Curve(
        "paddle",
        title,
        tuple(counts),
        tuple(seconds),
        tuple(float(call().criterion) for call in calls),
        one.accuracy(final.labels),
        seconds[-1] if float(final.criterion) <= tol else None,
    )


def best_times(
    calls: Sequence[Callable[[], object]], device: torch.device, repeats: int
) -> list[float]:
    """The shortest time of each call in seconds; each call does the work of the previous and more.

    Calls take turns, so that a busy moment of the machine does not affect only one of them. The
    time of a call is at most that of the next.
    """
    best = [math.inf] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            wait_for(device)
            start = time.perf_counter()
            call()
            wait_for(device)
            best[place] = min(best[place], time.perf_counter() - start)
    for place in reversed(range(len(best) - 1)):
        best[place] = min(best[place], best[place + 1])
    return best


def pgd_curve(one: OneTask, title: str, method: PaddlePgd) -> Curve:
    """Projected gradient descent, timed step by step; it stops at its tolerance."""
    support, labels, query = one.inputs
    dtype, device = computing_dtype(query), query.device
    task = Task(support[None].to(dtype), labels[None], query[None].to(dtype), one.num_classes)
    next(method.steps(task))  # warm-up
    seconds, criterion, elapsed = list[float](), list[float](), 0.0
    probabilities = query.new_empty(0)
    steps = method.steps(task)
    while True:
        wait_for(device)
        begin = time.perf_counter()
        step = next(steps, None)
        wait_for(device)
        elapsed += time.perf_counter() - begin
        if step is None:
            break
        probabilities, moved = step
        seconds.append(elapsed)
        criterion.append(float(moved))
    reached = (t for t, c in zip(seconds, criterion, strict=True) if c <= method.tol)
    return Curve(
        method.name,
        title,
        tuple(range(1, len(criterion) + 1)),
        tuple(seconds),
        tuple(criterion),
        one.accuracy(probabilities[0].argmax(-1)),
        next(reached, None),
    )
