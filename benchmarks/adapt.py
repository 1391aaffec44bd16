"""`adapt` to convergence against the same loop in torch, and `adaptive` from features to labels
against `solve` and the same rule in torch. Results are checked against the float64 reference first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import adaptive_torch
import harness
import torch
from laboratory.tasks import Tasks
from peers import agreement, bytes_moved
from tasks import (
    DenseTasks,
    Shape,
    bank_shape,
    bank_tasks,
    fitting_tasks,
    sample_tasks,
)
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank, methods, reference
from paddle_ext.adaptive_rule.learn import FEW_ROWS

EXAMPLES = """\
  python benchmarks/adapt.py                      # one thread
  python benchmarks/adapt.py --device cuda        # batches of 1000 tasks
  python benchmarks/adapt.py --device cuda --bank mini_test_resnet18.npz --bank clinc150.npz
"""
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("K20-5shot", 20, 5),
        Shape("K20-20shot", 20, 20),
        Shape("K77-5shot", 77, 5),
        Shape("K160-1shot", 160, 1),
        Shape("K160-5shot", 160, 5),
        Shape("K160-20shot", 160, 20),
    )
}
BATCHES = {
    "K20-5shot": ("auto",),
    "K20-20shot": ("auto",),
    "K77-5shot": ("auto",),
    "K160-1shot": ("diagonal",),
    "K160-5shot": ("diagonal", "auto"),
}
SINGLE = ("K20-5shot", "K160-5shot", "K160-20shot")  # also one task, in the full metric
ON_CPU = ("K20-5shot", "K160-1shot", "K160-5shot")
QUERIES, TOL = 75, 1e-3
FIXED: dict[str, Any] = {"tol": 0.0, "max_iter": 20}  # near a tie tasks stop some iterations apart
TOLERANCE, TORCH_TOLERANCE = 1e-4, 1e-3
# Of many labelled rows only some are left out to calibrate; the reference leaves out all.
SOME_LEFT_OUT = 0.1
NEWTON_STEPS = 5  # of a calibration, about


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.set_defaults(budget=1.0)
    add = parser.add_argument
    add("--n-tasks", type=int, help="per call (default: 8, on CUDA 1000)")
    add(
        "--check-tasks",
        type=int,
        default=3,
        help="compared with the reference; fewer if K is large",
    )
    add(
        "--shapes",
        help=f"of adaptive, comma separated (default: all, on the CPU {','.join(ON_CPU)})",
    )
    add("--bank", type=Path, action="append", default=[], help="also real features; repeatable")
    add("--shots", default="5,20", help="of the banks, comma separated (default: 5,20)")
    chosen = parser.parse_args()
    on_gpu = chosen.device == "cuda"
    chosen.n_tasks = chosen.n_tasks or (1000 if on_gpu else 8)
    chosen.shapes = chosen.shapes.split(",") if chosen.shapes else [*(SHAPES if on_gpu else ON_CPU)]
    if unknown := set(chosen.shapes) - set(SHAPES):
        parser.error(f"unknown shape {unknown.pop()!r}, expected some of {', '.join(SHAPES)}")
    return chosen


# --- the loop of the proportions ------------------------------------------------------------------


def make_logits(B: int, K: int, present: int, device: torch.device, seed: int) -> Tensor:
    """Logits of queries from some of the classes, about as confident as those of real features."""
    generator = torch.Generator(device).manual_seed(seed)
    truth = torch.randint(0, present, (B, QUERIES, 1), generator=generator, device=device)
    logits = torch.randn(B, QUERIES, K, generator=generator, device=device)
    lead = torch.full(truth.shape, 3.0, device=device)
    return 1.5 * logits.scatter_add_(2, truth, lead)


def run_adapt(chosen: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    rows = []
    for K, present in ((20, 5), (160, 5), (160, 160)):
        logits = make_logits(chosen.n_tasks, K, present, device, chosen.seed)
        few = logits[: chosen.check_tasks]
        want = reference.adapt(few.double(), **FIXED).probabilities
        got = paddle_ext.adapt(few, **FIXED).probabilities, adaptive_torch.adapt(few, **FIXED)[0]
        worst, torch_worst = (float((u - want).abs().max()) for u in got)
        iterations = paddle_ext.adapt(logits).iterations.double()
        row: dict[str, Any] = {"K": K, "present": present, "max|du|": worst}
        row |= {"iterations": float(iterations.mean()), "most": int(iterations.max())}
        right = worst < TOLERANCE and torch_worst < TORCH_TOLERANCE
        row["check"] = "ok" if right else "DIFFERS"
        if right:
            calls = {
                "ours": partial(paddle_ext.adapt, logits, validate=False),
                "torch": partial(adaptive_torch.adapt, logits),
            }
            timings = harness.time_side_by_side(
                calls, device, rounds=chosen.rounds, budget=chosen.budget
            )
            ours, torch_loop = (timings[name].best(device) for name in ("ours", "torch"))
            row |= {"ms": ours, "spread %": 100 * timings["ours"].spread}
            row |= {"torch ms": torch_loop, "ratio": torch_loop / ours}
        rows.append(row)
    return rows


# --- the whole rule -------------------------------------------------------------------------------


class Rates(NamedTuple):
    """The peak rates of the device, per second."""

    bytes: float  # of a plain copy, read and written
    flops: float  # of products as exact as in float32


def rates_of(device: torch.device) -> Rates:
    flops = harness.product_rate(device)
    if device.type == "cuda":  # floats may be split into two halves, with three products of halves
        flops = max(flops, harness.product_rate(device, torch.float16) / 3)
    return Rates(harness.copy_bandwidth(device), flops)


def flops(shape: Shape, metric: str, iterations: float) -> float:
    """Additions and multiplications of one task; an exponential counts as one.

    In the full metric with fewer labelled rows than features every product is one of rows, so their
    Gram matrix is enough; else the covariance is needed. A symmetric matrix counts half.
    """
    S, Q, K, D = shape.support, shape.queries, shape.classes, shape.dim
    full = metric == "auto" and shape.shots > 1
    M = min(S, D)
    rounds = adaptive_torch.ROUNDS
    work = 8 * (S + Q) * D + rounds * 2 * Q * Q * K + 12 * Q * K * (1 + rounds + iterations)
    if shape.shots > 1:
        work += NEWTON_STEPS * 12 * S * K * (len(adaptive_torch.MIXTURES) if full else 1)
    if full and S < D:
        work += (S + Q) ** 2 * D
    else:
        work += 2 * (S + Q) * K * D + Q * Q * D + (S * D * D if full else 0)
    if full:
        rows = S + K + Q
        work += M**3 / 3 + rows * M * M + (2 * (S + Q) * K + K * K + Q * Q) * M
    return work


class Case(NamedTuple):
    tasks: DenseTasks
    metric: str


def cases(chosen: argparse.Namespace, device: torch.device) -> Iterator[Case]:
    """Synthetic tasks, in batches and one by one, then those of the banks."""
    for name in chosen.shapes:
        shape, metrics = SHAPES[name], BATCHES.get(name, ())
        count = fitting_tasks(shape, chosen.n_tasks, device) if metrics else 1
        tasks = sample_tasks(shape, count, device, seed=chosen.seed).dense()
        for metric in metrics:
            yield Case(tasks, metric)
        if name in SINGLE and not (metrics and count == 1):
            yield Case(tasks.take(slice(1)), "auto")
    for path in chosen.bank:
        bank = FeatureBank.load(path).to(dtype=torch.float32)
        for shots in map(int, chosen.shots.split(",")):
            shape = bank_shape(bank, path, shots, None)
            count = fitting_tasks(shape, chosen.n_tasks, device)
            tasks = bank_tasks(bank, shape, count, device, chosen.seed).dense()
            for metric in ("diagonal", "auto") if shots > 1 else ("diagonal",):
                yield Case(tasks, metric)


def busy(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time of each call, the minimum over all rounds.

    On a shared CPU these are more reliable than wall times.
    """
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            least[name] = min(least[name], 1e3 * (time.process_time() - start))
    return least


def in_torch(tasks: DenseTasks, metric: str, **options: Any) -> Tensor:
    """Probabilities in float32."""
    rows = tasks.support, tasks.support_labels, tasks.query, tasks.query_labels
    options |= {"full": metric == "auto", "dtype": torch.float32}
    return adaptive_torch.classify(Tasks(*rows, num_classes=tasks.shape.classes), **options)


def check(case: Case, count: int) -> dict[str, Any]:
    """Compare the first tasks with the reference, after the same number of iterations."""
    tasks, metric = case
    K = tasks.shape.classes
    inputs = tasks.support, tasks.support_labels, tasks.query
    few = tasks.take(slice(min(count, max(1, 200 // K))))  # the reference is slow with many classes
    truth = reference.adaptive(
        few.support.double(),
        few.support_labels,
        few.query.double(),
        num_classes=K,
        metric=metric,
        **FIXED,
    ).probabilities
    ours = methods.create("adaptive", metric=metric, **FIXED).predict(*inputs, num_classes=K)
    theirs = in_torch(tasks, metric, **FIXED)
    got, other = (agreement(u[: len(truth)], truth) for u in (ours.probabilities, theirs))
    right = got.wrong == other.wrong == 0
    every = tasks.shape.support <= FEW_ROWS
    right &= got.worst <= (TOLERANCE if every else SOME_LEFT_OUT)
    right &= other.worst <= TORCH_TOLERANCE
    return {
        "check": "ok" if right else "DIFFERS",
        "max|du|": got.worst,
        "wrong": got.wrong,
        "torch |du|": other.worst,
    }


def run_case(
    case: Case, chosen: argparse.Namespace, device: torch.device, rates: Rates
) -> dict[str, Any]:
    tasks, metric = case
    shape, K = tasks.shape, tasks.shape.classes
    inputs = tasks.support, tasks.support_labels, tasks.query
    name = metric if shape.shots > 1 else "-"
    row: dict[str, Any] = {"shape": shape.name, "metric": name, "tasks": len(tasks)}
    row |= check(case, chosen.check_tasks)
    found = paddle_ext.adaptive(*inputs, num_classes=K, metric=metric)
    row["accuracy %"] = 100 * float((found.labels == tasks.query_labels).double().mean())
    iterations = float(found.iterations.double().mean())
    del found
    if row["check"] != "ok":
        return row
    method = methods.create("adaptive", metric=metric)
    calls: dict[str, Callable[[], object]] = {
        "adaptive": partial(method.predict, *inputs, num_classes=K),
        "solve": partial(paddle_ext.solve, *inputs, num_classes=K),
        "torch": partial(in_torch, tasks, metric),
    }
    calls["solve"]()
    timings = harness.time_side_by_side(
        calls, device, rounds=chosen.rounds, budget=chosen.budget, flush=chosen.flush
    )
    ms, solve_ms, torch_ms = (timings[name].best(device) for name in calls)
    row |= {"ms": ms, "spread %": 100 * timings["adaptive"].spread}
    row |= {"solve ms": solve_ms, "ratio": ms / solve_ms}
    row |= {"torch ms": torch_ms, "torch spread %": 100 * timings["torch"].spread}
    row["x torch"] = torch_ms / ms
    seconds = bytes_moved(shape) / rates.bytes, flops(shape, metric, iterations) / rates.flops
    floor = 1e3 * len(tasks) * max(seconds)
    row |= {"floor ms": floor, "x floor": ms / floor}
    if device.type == "cpu":
        del calls["torch"]
        least = busy(calls, chosen.rounds)
        row |= {"busy ms": least["adaptive"], "solve busy ms": least["solve"]}
        row["busy ratio"] = least["adaptive"] / least["solve"]
    return row


def run_adaptive(chosen: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    rates = rates_of(device)
    print(f"copy {rates.bytes / 1e9:.1f} GB/s, products {rates.flops / 1e9:.0f} GFLOP/s")
    rows = []
    for case in cases(chosen, device):
        harness.progress(f"{case.tasks.shape.name}, {case.metric}")
        rows.append(run_case(case, chosen, device, rates))
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what torch keeps would count as used
    return rows


def main() -> int:
    chosen = options()
    device = harness.start(chosen)
    loop = run_adapt(chosen, device)
    harness.print_table(f"adapt, {chosen.n_tasks} tasks, {QUERIES} queries, to {TOL:g}", loop)
    whole = run_adaptive(chosen, device)
    harness.print_table("adaptive, features to labels", whole)
    print(harness.load_line())
    harness.write_csv(chosen.output / f"adapt-{device.type}.csv", loop)
    harness.write_csv(chosen.output / f"adaptive-time-{device.type}.csv", whole)
    return 0 if all(row["check"] == "ok" for row in loop + whole) else 1


if __name__ == "__main__":
    raise SystemExit(main())
