"""PADDLE against projected gradient descent: the criterion over time on one task.

The figure of the paper: mean_k ||w_k - w_k_previous|| against elapsed time on one task with K = 160
classes, 20 shots and 5 classes present; the time until it is at most 1e-6; and the accuracy.
PADDLE runs native and as the reference, PGD (Adam on assignments and prototypes, projection onto
the simplex) as the reference. The native solver keeps no trace: its curve is measured by running it
for 1, 2, 3, 5, 8, ... iterations and timing each run from features to labels.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
from peers import Settings, agreement, solve_in_double
from tasks import SHAPES, DenseTasks, sample_tasks

import paddle_ext
from paddle_ext import reference

EXAMPLES = """\
  python benchmarks/pgd.py
  python benchmarks/pgd.py --device cuda --pgd-iterations 10000
  python benchmarks/pgd.py --lr 1e-3,1e-4 --seed 7
"""


class Curve(NamedTuple):
    name: str
    iterations: list[int]
    milliseconds: list[float]
    criterion: list[float]
    accuracy: float
    reached: float | None  # milliseconds until the criterion was at most the tolerance


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--shape", default="K160-20shot", choices=list(SHAPES), help="default: K160-20shot")
    add("--tol", type=float, default=1e-6, help="criterion to be reached (default: 1e-6)")
    add("--iterations", type=int, default=100, help="PADDLE: at most (default: 100)")
    add("--pgd-iterations", type=int, default=1000, help="PGD: at most (default: 1000)")
    add("--lr", default="1e-3", help="PGD: learning rates, comma separated (default: the paper's)")
    add("--scaling", default="minmax", choices=["minmax", "auto", "none"], help="default: minmax")
    return parser.parse_args()


def accuracy(labels: torch.Tensor, dense: DenseTasks) -> float:
    return 100 * float((labels == dense.query_labels).double().mean())


def native_curve(options: argparse.Namespace, device: torch.device, dense: DenseTasks) -> Curve:
    keywords: dict[str, Any] = {
        "num_classes": dense.shape.classes,
        "scaling": options.scaling,
        "validate": False,
    }
    arguments = dense.support, dense.support_labels, dense.query

    def run(max_iter: int, tol: float) -> reference.Solution:
        return paddle_ext.solve(*arguments, **keywords, max_iter=max_iter, tol=tol)

    counts, a, b = [], 1, 2
    while a < options.iterations:
        counts.append(a)
        a, b = b, a + b
    counts.append(options.iterations)
    calls = {str(count): lambda count=count: run(count, 0.0) for count in counts}
    calls["tol"] = lambda: run(options.iterations, options.tol)
    timings = harness.time_side_by_side(
        calls, device, rounds=options.rounds, budget=options.budget, flush=options.flush
    )
    solution = run(options.iterations, options.tol)
    reached = float(solution.criterion) <= options.tol
    return Curve(
        "PADDLE, native",
        counts,
        [timings[str(count)].best(device) for count in counts],
        [float(run(count, 0.0).criterion) for count in counts],
        accuracy(solution.labels, dense),
        timings["tol"].best(device) if reached else None,
    )


def traced_curve(name: str, solution: reference.Solution, dense: DenseTasks, tol: float) -> Curve:
    criterion = solution.trace.criterion.flatten().tolist()
    milliseconds = (1e3 * solution.trace.seconds).tolist()
    reached = next((t for t, c in zip(milliseconds, criterion, strict=True) if c <= tol), None)
    iterations = list(range(1, len(criterion) + 1))
    return Curve(
        name, iterations, milliseconds, criterion, accuracy(solution.labels, dense), reached
    )


def measure(options: argparse.Namespace, device: torch.device, dense: DenseTasks) -> list[Curve]:
    shared: dict[str, Any] = {
        "num_classes": dense.shape.classes,
        "scaling": options.scaling,
        "trace": True,
    }
    arguments = dense.support, dense.support_labels, dense.query
    curves = [native_curve(options, device, dense)]
    reference.solve(*arguments, **shared, max_iter=3)  # warm-up
    solution = reference.solve(*arguments, **shared, max_iter=options.iterations, tol=0.0)
    curves.append(traced_curve("PADDLE, reference", solution, dense, options.tol))
    reference.pgd(*arguments, **shared, max_iter=3)
    for lr in options.lr.split(","):
        harness.progress(f"PGD, {options.pgd_iterations} iterations, learning rate {lr}")
        solution = reference.pgd(
            *arguments, **shared, max_iter=options.pgd_iterations, lr=float(lr), tol=options.tol
        )
        curves.append(traced_curve(f"PGD, reference, lr {lr}", solution, dense, options.tol))
    harness.progress("")
    return curves


def draw(path: Path, curves: list[Curve], tol: float, title: str, machine: str) -> None:
    plt = harness.pyplot()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(8, 4.8))
    for curve, colour in zip(curves, plt.get_cmap("tab10").colors, strict=False):
        points = [(t, c) for t, c in zip(curve.milliseconds, curve.criterion, strict=True) if c > 0]
        # As in the paper PGD has a marker every 100 iterations.
        every = 100 if len(points) > 200 else 1
        axes.plot(*zip(*points, strict=True), "o-", ms=4, markevery=every, color=colour, lw=1.4)
        done = "not reached" if curve.reached is None else f"{harness.show(curve.reached)} ms"
        axes.plot([], [], "o-", ms=4, color=colour, label=f"{curve.name} (to {tol:g}: {done})")
    axes.axhline(tol, color="0.5", lw=0.8, ls="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], 1e-9))
    axes.set_xlabel("elapsed time from features to labels, milliseconds (log scale)")
    axes.set_ylabel("criterion  mean$_k$ $\\|w_k - w_k^{previous}\\|$")
    axes.set_title(title)
    axes.grid(which="major", color="0.92")
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=1)
    figure.text(0.01, 1.0, machine.split(";")[0], fontsize=7, color="0.4")
    harness.save_figure(figure, path)
    plt.close(figure)


def main() -> int:
    chosen = options()
    device = harness.start(chosen)
    shape = SHAPES[chosen.shape]
    dense = sample_tasks(shape, 1, device, seed=chosen.seed).dense()
    settings = Settings(chosen.iterations, chosen.tol, chosen.scaling)
    native = paddle_ext.solve(
        dense.support, dense.support_labels, dense.query, **settings.keywords(shape)
    )
    found = agreement(native.assignments, solve_in_double(dense, settings))
    print(f"native against the float64 reference: max|du| {found.worst:.1e}, {found.ties} ties")
    if found.wrong:
        print(f"{found.wrong} labels DIFFER: nothing timed")
        return 1

    dense = dense.take(0)  # the batch dimension goes
    curves = measure(chosen, device, dense)
    rows: list[dict[str, Any]] = [
        {
            "method": curve.name,
            f"ms to {chosen.tol:g}": curve.reached,
            "iterations": curve.iterations[-1],
            "total ms": curve.milliseconds[-1],
            "last criterion": curve.criterion[-1],
            "accuracy %": curve.accuracy,
        }
        for curve in curves
    ]
    harness.print_table(f"one task, {shape.name}, scaling {chosen.scaling}", rows)
    print(harness.load_line())
    points = [
        {"method": curve.name, "iteration": i, "milliseconds": t, "criterion": c}
        for curve in curves
        for i, t, c in zip(curve.iterations, curve.milliseconds, curve.criterion, strict=True)
    ]
    harness.write_csv(chosen.output / f"pgd-{device.type}.csv", points)
    harness.write_csv(chosen.output / f"pgd-{device.type}-summary.csv", rows)
    title = f"One task: {shape.classes} classes, {shape.shots} shots, {shape.queries} queries"
    machine = harness.machine_line(device)
    draw(chosen.output / f"pgd-{device.type}.png", curves, chosen.tol, title, machine)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
