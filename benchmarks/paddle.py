"""PADDLE: paddle_ext.solve against the torch Gram form, the public arithmetic and the reference.

Every competitor is first checked against the float64 reference, then all are timed in turns in one
run, from features to labels. Prints tables; writes CSV and PNG.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import harness
import suites
import torch
from peers import PEERS, Call, Settings, agreement, bytes_moved, flops, solve_in_double
from tasks import (
    SHAPES,
    DenseTasks,
    Shape,
    Tasks,
    bank_shape,
    bank_tasks,
    fitting_tasks,
    sample_tasks,
)

from paddle_ext import FeatureBank

EXAMPLES = """\
  python benchmarks/paddle.py                                   # 8 tasks, one CPU thread
  python benchmarks/paddle.py --shapes K160-20shot --only ours,gram,public
  python benchmarks/paddle.py --device cuda --n-tasks 1000        # 100 iterations each
  python benchmarks/paddle.py --device cuda --n-tasks 1000 --tol 1e-6
  python benchmarks/paddle.py --device cuda --bank mini_test_resnet18.npz --shots 20
  python benchmarks/paddle.py --suite single,overhead,threads
  python benchmarks/paddle.py --suite indexed --device cuda --n-tasks 10000
"""


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--suite", default="table", help=f"comma separated: table, {', '.join(suites.SUITES)}, all")
    add("--shapes", default=",".join(SHAPES), help="comma separated (default: all four)")
    add("--bank", type=Path, action="append", help="a file of real features instead; repeatable")
    add("--shots", type=int, default=20, help="per class, for a bank (default: 20)")
    add("--ways", type=int, help="candidate classes per task of a bank (default: all)")
    add(
        "--only", help=f"comma separated, of {', '.join(PEERS)} (default: all except gram-compiled)"
    )
    add("--compile", action="store_true", help="also torch.compile of the Gram form")
    add("--n-tasks", type=int, help="tasks per call (default: 8, on CUDA 1000)")
    add("--max-iter", type=int, default=100, help="limit on iterations (default: 100)")
    add("--tol", type=float, default=0.0, help="stop a task at this criterion (default: 0, never)")
    add("--scaling", default="minmax", choices=["minmax", "auto", "none"], help="default: minmax")
    add("--check-tasks", type=int, default=3, help="tasks compared with the float64 reference")
    result = parser.parse_args()
    result.suite = [*suites.SUITES, "table"] if result.suite == "all" else result.suite.split(",")
    for suite in result.suite:
        if suite != "table" and suite not in suites.SUITES:
            parser.error(f"unknown suite {suite!r}")
    result.shapes = result.shapes.split(",")
    if unknown := set(result.shapes) - set(SHAPES):
        parser.error(f"unknown shape {unknown.pop()!r}, expected some of {', '.join(SHAPES)}")
    if result.only:
        result.only = result.only.split(",")
        if unknown := set(result.only) - set(PEERS):
            parser.error(
                f"unknown competitor {unknown.pop()!r}, expected some of {', '.join(PEERS)}"
            )
    else:
        result.only = [name for name in PEERS if name != "gram-compiled" or result.compile]
    if result.scaling == "auto" and "public" in result.only:
        print("public: skipped, it has no automatic scaling")
        result.only.remove("public")
    return result


class Rates(NamedTuple):
    """The peak rates of the device, per second."""

    bytes: float  # of a plain copy, read and written
    flops: float  # of a large product in float32


def check(call: Call, truth: torch.Tensor, dense: DenseTasks, tolerance: float) -> dict[str, Any]:
    """Compare the first tasks with the float64 reference; accuracy is over all tasks."""
    result = call()
    found = agreement(result.probabilities[: len(truth)], truth)
    return {
        "check": "ok" if found.wrong == 0 and found.worst <= tolerance else "DIFFERS",
        "max|du|": found.worst,
        "ties": found.ties,
        "accuracy %": 100 * float((result.labels == dense.query_labels).double().mean()),
        "iterations": float(result.iterations.double().mean()),
    }


def nearest_prototype(dense: DenseTasks) -> float:
    """Accuracy of the nearest support mean on raw features: shows how hard the tasks are."""
    right = total = 0
    for i in range(min(len(dense), 32)):
        sums = torch.zeros(dense.shape.classes, dense.shape.dim, device=dense.query.device)
        means = sums.index_add_(0, dense.support_labels[i], dense.support[i]) / dense.shape.shots
        labels = torch.cdist(dense.query[i], means).argmin(-1)
        right += int((labels == dense.query_labels[i]).sum())
        total += dense.shape.queries
    return right / total


def workloads(options: argparse.Namespace, device: torch.device) -> Iterator[Tasks]:
    """The synthetic tasks of each shape, or those of the banks."""
    wanted = options.n_tasks or (1000 if device.type == "cuda" else 8)
    for path in options.bank or []:
        bank = FeatureBank.load(path).to(dtype=torch.float32)
        shape = bank_shape(bank, path, options.shots, options.ways)
        yield bank_tasks(bank, shape, fitting_tasks(shape, wanted, device), device, options.seed)
    for name in [] if options.bank else options.shapes:
        shape = SHAPES[name]
        yield sample_tasks(shape, fitting_tasks(shape, wanted, device), device, seed=options.seed)


def table(options: argparse.Namespace, device: torch.device) -> bool:
    """The main comparison; False if a competitor disagreed with the reference."""
    settings = Settings(options.max_iter, options.tol, options.scaling)
    rates = Rates(harness.copy_bandwidth(device), harness.product_rate(device))
    print(
        f"copy {rates.bytes / 1e9:.1f} GB/s, products {rates.flops / 1e9:.0f} GFLOP/s; {settings}"
    )
    rows: list[dict[str, Any]] = []
    for tasks in workloads(options, device):
        name, count = tasks.shape.name, len(tasks)
        dense = tasks.dense()
        print(f"{name}: {count} tasks, nearest support mean right {nearest_prototype(dense):.1%}")
        part = one_shape(options, device, settings, tasks, dense, rates)
        title = f"{name}, {count} tasks, {'minimum' if device.type == 'cpu' else 'median'} times"
        harness.print_table(title, [{k: v for k, v in row.items() if k != "shape"} for row in part])
        print(harness.load_line())
        rows += part
        del tasks, dense
    rule = "fixed" if options.tol == 0 else f"tol{options.tol:g}"
    where = "bank-" if options.bank else ""
    tag = f"paddle-{where}{device.type}-{rule}-{options.scaling}"
    harness.write_csv(options.output / f"{tag}.csv", [{**row, **asdict(settings)} for row in rows])
    return all(row["check"] == "ok" for row in rows)


def one_shape(
    options: argparse.Namespace,
    device: torch.device,
    settings: Settings,
    tasks: Tasks,
    dense: DenseTasks,
    rates: Rates,
) -> list[dict[str, Any]]:
    shape, count = tasks.shape, len(tasks)
    few = min(count, *(PEERS[n].most_tasks or count for n in options.only), options.check_tasks)
    truth = solve_in_double(dense.take(slice(few)), settings)
    calls, checks, sizes = {}, {}, {}
    for name in options.only:
        peer = PEERS[name]
        size = sizes[name] = min(count, peer.most_tasks or count)
        mine = dense if size == count else dense.take(slice(size))
        call = peer.prepare(tasks, mine, settings)
        harness.progress(f"check: {name}")
        # With a stopping rule two correct results may be an iteration apart.
        tolerance = peer.tolerance if settings.tol == 0.0 else max(peer.tolerance, 5e-3)
        checks[name] = check(call, truth, mine, tolerance)
        if checks[name]["check"] == "ok":
            calls[name] = call
    timings = harness.time_side_by_side(
        calls, device, rounds=options.rounds, budget=options.budget, flush=options.flush
    )
    rows = []
    best = {name: timing.best(device) / sizes[name] for name, timing in timings.items()}
    for name in options.only:
        row: dict[str, Any] = {"shape": shape.name, "competitor": name, "tasks": sizes[name]}
        row |= checks[name]
        if name in timings:
            work = flops(PEERS[name].form, shape, row["iterations"])
            row |= columns(timings[name], sizes[name], work, shape, rates, device)
            if "ours" in best:
                row["x ours"] = best[name] / best["ours"]
        rows.append(row)
    return rows


def columns(
    timing: harness.Timing,
    size: int,
    work: float,
    shape: Shape,
    rates: Rates,
    device: torch.device,
) -> dict[str, Any]:
    """The columns of one row; `work`, in operations, is that of one task."""
    ms = timing.best(device)
    floor, work = 1e3 * size * bytes_moved(shape) / rates.bytes, size * work
    row = {
        "ms": ms,
        "spread %": 100 * timing.spread,
        "us/task": 1e3 * ms / size,
        "floor ms": floor,
        "x floor": ms / floor,
        "GFLOP": work / 1e9,
        "GFLOP/s": work / ms / 1e6,
        "floor ms, FLOP": 1e3 * work / rates.flops,
    }
    if timing.peak_bytes is not None:
        row["peak MiB"] = timing.peak_bytes / 2**20
    return row


def main() -> int:
    chosen = options()
    device = harness.start(chosen)
    agreed = True
    for suite in chosen.suite:
        if suite == "table":
            agreed &= table(chosen, device)
        else:
            agreed &= suites.SUITES[suite](chosen, device)
    if not agreed:
        print("a competitor DIFFERS from the float64 reference and was not timed")
    return 0 if agreed else 1


if __name__ == "__main__":
    raise SystemExit(main())
