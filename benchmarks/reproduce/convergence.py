"""Convergence of PADDLE and projected gradient descent on one task.

The criterion is the mean distance that a prototype moves in an iteration, in scaled coordinates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from paddle_ext import FeatureBank, Solution, TaskSampler, check, methods, reference, solve
from paddle_ext.methods import PaddlePgd
from paddle_ext.research.evaluate import computing_device, machine_line, wait_for
from paddle_ext.research.style import PALE, finish, head, label_point, make_panels, name_panel
from paddle_ext.research.tables import MISSING, display_of, title_of
from paddle_ext.rows import computing_dtype
from paddle_ext.task import Task

from . import paper
from .report import Report, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NATIVE = partial(solve, validate=False)


class OneTask(NamedTuple):
    """One task on its device."""

    inputs: tuple[Tensor, Tensor, Tensor]  # support [S, D], its labels [S], query [Q, D]
    truth: Tensor  # [Q]
    num_classes: int

    def accuracy(self, labels: Tensor) -> float:
        """Accuracy in percent."""
        return 100.0 * float((labels == self.truth).double().mean())


class Curve(NamedTuple):
    """The criterion of one solver on one task over time."""

    method: str  # its name in the registry, which sets the colour
    title: str  # its name in the figure and the table
    iterations: list[int]
    seconds: list[float]  # since the start, at each of them
    criterion: list[float]
    accuracy: float  # of the final labels, in percent
    reached: float | None  # seconds until the criterion was at most the tolerance


def measure_convergence(
    bank: FeatureBank,
    *,
    output: Path,  # nothing to resume
    dataset: str | None = None,
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
    seed: int = 0,
    name: str = "",
    device: str | None = None,
) -> Report:
    """Measure the criterion against seconds, for PADDLE and for projected gradient descent.

    PADDLE runs native and in torch, PGD in torch. PADDLE's times are the best of `repeats` runs.
    """
    check.real("tol", tol, positive=True)
    shared: dict[str, Any] = {"tol": tol, "scaling": scaling}
    pgd = PaddlePgd(max_iter=pgd_max_iter, learning_rate=learning_rate, **shared)
    bank = bank.take_classes()
    sampler = TaskSampler(bank.labels, shots=shots, k_eff=k_eff, n_query=n_query, seed=seed)
    bank.check_finite()
    where = computing_device(device, bank)
    support, labels, query, truth = (x[0] for x in sampler.batch(task, 1))
    rows = [bank.features[x.to(bank.features.device)].to(where) for x in (support, query)]
    one = OneTask((rows[0], labels.to(where), rows[1]), truth.to(where), sampler.num_classes)
    paddle = {"max_iter": max_iter, "repeats": repeats, **shared}
    curves = [
        paddle_curve(one, "PADDLE, native", NATIVE, **paddle),
        paddle_curve(one, "PADDLE, torch", reference.solve, **paddle),
        pgd_curve(one, "PGD, torch", pgd),
    ]
    alpha_tim = methods.create("alpha_tim", dataset)
    predicted = alpha_tim.predict(*one.inputs, num_classes=one.num_classes).labels
    about = f"{name}: " if name else ""
    about += f"task {task}, {one.num_classes} candidate classes, {shots} shots, {k_eff} present, "
    about += f"{n_query} queries, scaling {scaling}"
    return Report(
        "convergence",
        "Convergence on one task",
        f"{about}. Time until the prototypes move by at most {tolerance_text(tol)}, on "
        f"{machine_line(where)}. The paper's task is one of tiered-ImageNet, on other hardware.",
        [table(curves, one.accuracy(predicted), tol)],
        {"convergence": criterion_against_time(curves, tol)},
        {"curves": [curve._asdict() for curve in curves]},
    )


def table(curves: Sequence[Curve], alpha_tim: float, tol: float) -> Table:
    published = paper.NUMBERS["convergence"]
    theirs = f"{published['alpha_tim']['accuracy']:.1f}"
    rows = [[title_of("alpha_tim"), MISSING, MISSING, MISSING, f"{alpha_tim:.1f}", theirs]]
    for curve in curves:
        theirs = published[curve.method]
        rows.append([
            curve.title,
            "not reached" if curve.reached is None else duration_text(curve.reached),
            duration_text(theirs["seconds"]),
            str(curve.iterations[-1]),
            f"{curve.accuracy:.1f}",
            f"{theirs['accuracy']:.1f}",
        ])  # fmt: skip
    until = f"time to {tolerance_text(tol)}"
    return Table("", ["method", until, "paper", "iterations", "accuracy", "paper"], rows)


def tolerance_text(tol: float) -> str:
    """A tolerance in common notation: 1e-6, not 1e-06."""
    return f"{tol:g}".replace("e-0", "e-")


def duration_text(seconds: float) -> str:
    """A time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


# --- measuring ----------------------------------------------------------------------------------


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
    solve_for = partial(solver, *one.inputs, num_classes=one.num_classes, scaling=scaling)
    final = solve_for(max_iter=max_iter, tol=tol)  # also warms up
    counts = [1]
    while counts[-1] < int(final.iterations):
        counts.append(min(max(counts[-1] + 1, 5 * counts[-1] // 4), int(final.iterations)))
    calls = [partial(solve_for, max_iter=count, tol=0.0) for count in counts]
    seconds = best_times(calls, one.inputs[0].device, repeats)
    return Curve(
        "paddle",
        title,
        counts,
        seconds,
        [float(call().criterion) for call in calls],
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
        list(range(1, len(criterion) + 1)),
        seconds,
        criterion,
        one.accuracy(probabilities[0].argmax(-1)),
        next(reached, None),
    )


def criterion_against_time(
    curves: Sequence[Curve], tol: float = 1e-6, path: Path | None = None
) -> Figure:
    """Draw the remaining movement of the prototypes against elapsed seconds, on log scales."""
    figure, (axes,) = make_panels(1, height=4.2)
    seen: set[str] = set()
    for curve in curves:
        points = [p for p in zip(curve.seconds, curve.criterion, strict=True) if min(p) > 0]
        if not points:
            raise ValueError(f"curves must have a criterion above 0, got none for {curve.title!r}")
        shown = display_of(curve.method)
        done = "not reached" if curve.reached is None else duration_text(curve.reached)
        axes.plot(
            *zip(*points, strict=True),
            color=shown.colour,
            marker=shown.marker,
            ms=6.5,
            mec="white",
            mew=0.6,
            lw=1.2 if len(points) > 200 else 2.0,
            ls=(0, (4, 1.5)) if curve.method in seen else "-",  # another implementation
            markevery=100 if len(points) > 200 else 1 + len(points) // 30,
        )
        place = "above left" if curve.reached is None else "above right"
        label_point(axes, *points[-1], f"{curve.title}:\n{done}", shown.colour, place=place)
        seen.add(curve.method)
    axes.axhline(tol, color=PALE, lw=1.2, ls="--", zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], tol / 1e3))
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.15)  # room for the names
    name_panel(axes, "", "elapsed time (s)", "mean shift of a prototype")
    below = f"time until they move by at most {tolerance_text(tol)}; "
    below += "long runs have a marker every 100 iterations"
    head(figure, "Convergence of the prototypes on one task", below)
    return finish(figure, path)
