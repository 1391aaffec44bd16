"""PADDLE against projected gradient descent: the criterion over time on one task.

The figure of the paper: mean_k ||w_k - w_k_previous|| against elapsed time on one task with K = 160
classes, 20 shots and 5 classes present; the time until it is at most 1e-6; and the accuracy.
PADDLE runs native and as the reference, PGD (Adam on probabilities and prototypes, projection onto
the simplex) as the method `paddle_pgd`. `python benchmarks/reproduce convergence` does the same
on a feature bank.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import harness
from peers import Settings, agreement, solve_in_double
from reproduce.convergence import (
    NATIVE,
    Curve,
    OneTask,
    criterion_against_time,
    paddle_curve,
    pgd_curve,
)
from tasks import SHAPES, sample_tasks

import paddle_ext
from paddle_ext import reference
from paddle_ext.methods import PaddlePgd

EXAMPLES = """\
  python benchmarks/pgd.py
  python benchmarks/pgd.py --device cuda --pgd-max-iter 10000
  python benchmarks/pgd.py --learning-rate 1e-3,1e-4 --seed 7
"""


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--shape", default="K160-20shot", choices=list(SHAPES), help="default: K160-20shot")
    add("--tol", type=float, default=1e-6, help="target of the criterion (default: 1e-6)")
    add("--max-iter", type=int, default=100, help="PADDLE: limit on iterations (default: 100)")
    add("--pgd-max-iter", type=int, default=1000, help="PGD: limit on iterations (default: 1000)")
    add("--learning-rate", default="1e-3", help="PGD: comma separated (default: the paper's)")
    add("--scaling", default="minmax", choices=["minmax", "auto", "none"], help="default: minmax")
    return parser.parse_args()


def measure(options: argparse.Namespace, one: OneTask) -> list[Curve]:
    shared: dict[str, Any] = {"scaling": options.scaling, "tol": options.tol}
    paddle = {"max_iter": options.max_iter, "repeats": options.rounds, **shared}
    curves = [
        paddle_curve(one, "PADDLE, native", NATIVE, **paddle),
        paddle_curve(one, "PADDLE, reference", reference.solve, **paddle),
    ]
    for rate in options.learning_rate.split(","):
        harness.progress(f"PGD, {options.pgd_max_iter} iterations, learning rate {rate}")
        method = PaddlePgd(max_iter=options.pgd_max_iter, learning_rate=float(rate), **shared)
        curves.append(pgd_curve(one, f"PGD, learning rate {rate}", method))
    harness.progress("")
    return curves


def main() -> int:
    chosen = options()
    device = harness.start(chosen)
    shape = SHAPES[chosen.shape]
    dense = sample_tasks(shape, 1, device, seed=chosen.seed).dense()
    settings = Settings(chosen.max_iter, chosen.tol, chosen.scaling)
    native = paddle_ext.solve(
        dense.support, dense.support_labels, dense.query, **settings.keywords(shape)
    )
    found = agreement(native.probabilities, solve_in_double(dense, settings))
    print(f"native against the float64 reference: max|du| {found.worst:.1e}, {found.ties} ties")
    if found.wrong:
        print(f"{found.wrong} labels DIFFER: nothing timed")
        return 1

    dense = dense.take(0)  # drops the batch dimension
    inputs = dense.support, dense.support_labels, dense.query
    curves = measure(chosen, OneTask(inputs, dense.query_labels, shape.classes))
    rows: list[dict[str, Any]] = [
        {
            "method": curve.title,
            f"ms to {chosen.tol:g}": None if curve.reached is None else 1e3 * curve.reached,
            "iterations": curve.iterations[-1],
            "total ms": 1e3 * curve.seconds[-1],
            "last criterion": curve.criterion[-1],
            "accuracy %": curve.accuracy,
        }
        for curve in curves
    ]
    harness.print_table(f"one task, {shape.name}, scaling {chosen.scaling}", rows)
    print(harness.load_line())
    points = [
        {"method": curve.title, "iteration": i, "milliseconds": 1e3 * s, "criterion": c}
        for curve in curves
        for i, s, c in zip(curve.iterations, curve.seconds, curve.criterion, strict=True)
    ]
    harness.write_csv(chosen.output / f"pgd-{device.type}.csv", points)
    harness.write_csv(chosen.output / f"pgd-{device.type}-summary.csv", rows)
    picture = chosen.output / f"pgd-{device.type}.png"
    criterion_against_time(curves, chosen.tol, picture)
    print(f"wrote {os.path.relpath(picture)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
