"""Every method with its default options: seconds per 1000 tasks, and accuracy.

K = 20 and K = 160 classes, 5 shots, 75 queries of 5 classes. Every method runs through
`paddle_ext.methods`, from features to labels, including checks. Its labels are compared with those
in float64 before timing it. On the CPU a few tasks are timed, on a GPU a thousand, in batches.
"""

from __future__ import annotations

import argparse
from typing import Any

import harness
import torch
from tasks import SHAPES, DenseTasks, Shape, sample_tasks

from paddle_ext import methods

EXAMPLES = """\
  python benchmarks/methods.py
  python benchmarks/methods.py --device cuda
  python benchmarks/methods.py --methods tim,alpha_tim --shapes K20-5shot --n-tasks 16
"""

BOTH = {shape.name: shape for shape in (Shape("K20-5shot", 20, 5), SHAPES["K160-5shot"])}
# Queries whose second class has at least this share of the probability of the first may differ.
TIE = 0.999


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--methods", default="all", help="names, comma separated (default: all)")
    add("--shapes", default=",".join(BOTH), help="default: both")
    add("--n-tasks", type=int, help="tasks per call (default: 4, on CUDA 1000)")
    add("--checked", type=int, default=1, help="tasks compared with float64 (default: 1)")
    add("--max-iter", type=int, help="limit on iterations")
    return parser.parse_args()


def create(name: str, max_iter: int | None) -> methods.Method:
    known = {option.name for option in methods.describe(name)}
    fewer = {"max_iter": max_iter} if max_iter and "max_iter" in known else {}
    return methods.create(name, **fewer)


def compare(method: methods.Method, dense: DenseTasks, checked: int) -> tuple[int, int]:
    """Labels that differ from those in float64, and those that are nearly ties."""
    few = dense.take(slice(0, checked))
    labels, K = few.support_labels, few.shape.classes
    single = method.predict(few.support, labels, few.query, num_classes=K)
    double = method.predict(few.support.double(), labels, few.query.double(), num_classes=K)
    best = double.probabilities.topk(2, dim=-1).values
    sure = best[..., 1] < TIE * best[..., 0]
    wrong = (single.labels != double.labels) & sure
    return int(wrong.sum()), int((~sure).sum())


def measure(
    name: str, chosen: argparse.Namespace, device: torch.device, dense: DenseTasks
) -> dict[str, Any]:
    method = create(name, chosen.max_iter)
    harness.progress(f"{dense.shape.name}: {name}, against float64")
    wrong, ties = compare(method, dense, chosen.checked)
    row: dict[str, Any] = {
        "shape": dense.shape.name,
        "method": name,
        "check": "DIFFERS" if wrong else "ok",
        "wrong": wrong,
        "ties": ties,
    }
    if wrong:
        return row

    def call() -> methods.Prediction:
        return method.predict(
            dense.support, dense.support_labels, dense.query, num_classes=dense.shape.classes
        )

    accuracy = (call().labels == dense.query_labels).double().mean()
    timing = harness.time_side_by_side(
        {name: call}, device, rounds=chosen.rounds, budget=chosen.budget, flush=chosen.flush
    )[name]
    milliseconds = timing.best(device)
    row |= {
        "accuracy %": 100 * float(accuracy),
        "ms": milliseconds,
        "spread %": 100 * timing.spread,
        "s per 1000 tasks": milliseconds / len(dense),
    }
    if timing.peak_bytes is not None:
        row["extra GiB"] = timing.peak_bytes / harness.GIB
    return row


def main() -> int:
    chosen = options()
    names = methods.available(named=False) if chosen.methods == "all" else chosen.methods.split(",")
    device = harness.start(chosen)
    tasks = chosen.n_tasks or (1000 if device.type == "cuda" else 4)
    rows = []
    for shape in (BOTH[name] for name in chosen.shapes.split(",")):
        dense = sample_tasks(shape, tasks, device, seed=chosen.seed).dense()
        mine = [measure(name, chosen, device, dense) for name in names]
        title = f"{shape.name}: {shape.queries} queries of {shape.present} classes, {tasks} tasks"
        harness.print_table(title, mine)
        rows += mine
        del dense
    print(harness.load_line())
    harness.write_csv(chosen.output / f"methods-{device.type}.csv", rows)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
