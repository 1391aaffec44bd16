"""The smaller measurements of paddle.py: one function per claim, each with its own table and CSV.

A suite takes the command-line options and the device, and returns whether all results were correct.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import torch
from peers import (
    PEERS,
    Agreement,
    Call,
    Result,
    Settings,
    agreement,
    class_sums,
    query_range,
    solve_in_double,
)
from tasks import SHAPES, DenseTasks, Shape, Tasks, fitting_tasks, sample_tasks

import paddle_ext

TOL = 1e-6


def _times(
    options: argparse.Namespace, device: torch.device, calls: dict[Any, Call]
) -> dict[Any, harness.Timing]:
    return harness.time_side_by_side(
        calls, device, rounds=options.rounds, budget=options.budget, flush=options.flush
    )


def _agrees(call: Call, tasks: Tasks, settings: Settings, rows: list[int]) -> Agreement:
    return agreement(call().probabilities[rows], solve_in_double(tasks.dense(rows), settings))


def single(options: argparse.Namespace, device: torch.device) -> bool:
    """One task to criterion 1e-6: latency, by the device's clock and by the host's."""
    shape = SHAPES["K160-20shot"]
    settings = Settings(options.max_iter, TOL, options.scaling)
    tasks = sample_tasks(shape, 1, device, seed=options.seed)
    dense = tasks.dense()
    names = ["ours", "ours-validated", "ours-indexed", "gram"]
    calls = {name: PEERS[name].prepare(tasks, dense, settings) for name in names}
    agreed = {name: _agrees(call, tasks, settings, [0]) for name, call in calls.items()}
    timings = _times(options, device, calls)
    rows = []
    for name, call in calls.items():
        rows.append(
            {
                "competitor": name,
                "check": "DIFFERS" if agreed[name].wrong else "ok",
                "max|du|": agreed[name].worst,
                "iterations": float(call().iterations.double().mean()),
                "ms": timings[name].best(device),
                "spread %": 100 * timings[name].spread,
                "host ms": _host_milliseconds(call, device, options.rounds),
            }
        )
    harness.print_table(f"one task, {shape.name}, to criterion {TOL:g}", rows)
    harness.write_csv(options.output / f"single-{device.type}.csv", rows)
    return not any(each.wrong for each in agreed.values())


def _host_milliseconds(call: Call, device: torch.device, rounds: int) -> float:
    """Median time from the call to the result, as seen by a caller."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def indexed(options: argparse.Namespace, device: torch.device) -> bool:
    """Many tasks over one bank by solve_indexed: time and extra memory."""
    shape = SHAPES["K160-20shot"]
    count = options.n_tasks or (10_000 if device.type == "cuda" else 64)
    settings = Settings(options.max_iter, TOL, options.scaling)
    tasks = sample_tasks(shape, count, device, seed=options.seed)
    call = PEERS["ours-indexed"].prepare(tasks, tasks.dense([0]), settings)
    rows_checked = sorted({0, count // 2, count - 1})
    found = _agrees(call, tasks, settings, rows_checked)
    timing = _times(options, device, {"ours-indexed": call})["ours-indexed"]
    iterations = call().iterations.double()
    peak = timing.peak_bytes
    row = {
        "tasks": count,
        "check": "DIFFERS" if found.wrong else "ok",
        "max|du|": found.worst,
        "mean iterations": float(iterations.mean()),
        "most iterations": int(iterations.max()),
        "ms": timing.best(device),
        "spread %": 100 * timing.spread,
        "us/task": 1e3 * timing.best(device) / count,
        "extra GiB": None if peak is None else peak / harness.GIB,
        "bank MiB": tasks.bank.numel() * 4 / 2**20,
        "gathered GiB": count * (shape.support + shape.queries) * shape.dim * 4 / harness.GIB,
    }
    harness.print_table(f"solve_indexed, {shape.name}, to criterion {TOL:g}", [row])
    harness.write_csv(options.output / f"indexed-{device.type}.csv", [row])
    return found.wrong == 0


def overhead(options: argparse.Namespace, device: torch.device) -> bool:
    """The overhead of a call: Q = 5, K = 2, D = 8, on the CPU."""
    generator = torch.Generator().manual_seed(options.seed)
    support = torch.randn(4, 8, generator=generator)
    labels = torch.tensor([0, 1, 0, 1])
    query = torch.randn(5, 8, generator=generator)
    calls: dict[str, Callable[[], object]] = {
        "solve, validate=False": lambda: paddle_ext.solve(
            support, labels, query, num_classes=2, validate=False
        ),
        "the same, max_iter=1": lambda: paddle_ext.solve(
            support, labels, query, num_classes=2, max_iter=1, validate=False
        ),
        "solve, all defaults": lambda: paddle_ext.solve(support, labels, query),
        "torch: (query @ query.T).softmax(-1)": lambda: (query @ query.T).softmax(-1),
    }
    repeats, samples = 100, 50
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(samples):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append(1e6 * (time.perf_counter() - begin) / repeats)
    rows = [
        {"call": name, "least us": min(part), "median us": statistics.median(part)}
        for name, part in times.items()
    ]
    harness.print_table("a tiny call on the CPU: Q = 5, K = 2, D = 8", rows)
    harness.write_csv(options.output / "overhead-cpu.csv", rows)
    return True


def threads(options: argparse.Namespace, device: torch.device) -> bool:
    """Two threads against one on a batch of 64 tasks, in turns.

    Not meaningful if other processes run: two threads on one core cannot be faster.
    """
    shape = SHAPES["K160-20shot"]
    cpu = torch.device("cpu")
    count = fitting_tasks(shape, options.n_tasks or 64, cpu)
    settings = Settings(options.max_iter, options.tol, options.scaling)
    tasks = sample_tasks(shape, count, cpu, seed=options.seed)
    call = PEERS["ours"].prepare(tasks, tasks.dense(), settings)
    counts = [1, 2] if options.threads <= 2 else [1, 2, options.threads]

    cores: dict[int, list[float]] = {number: [] for number in counts}

    def with_threads(number: int) -> Call:
        def run() -> Result:
            torch.set_num_threads(number)
            wall, cpu = time.perf_counter(), time.process_time()
            result = call()
            cores[number].append((time.process_time() - cpu) / (time.perf_counter() - wall))
            return result

        return run

    calls = {number: with_threads(number) for number in counts}
    first, *others = (each() for each in calls.values())
    same = all(torch.equal(first.probabilities, other.probabilities) for other in others)
    timings = _times(options, cpu, calls)
    torch.set_num_threads(options.threads)
    alone = next(iter(timings.values()))
    rows = []
    for number, timing in timings.items():
        pairs = zip(alone.milliseconds, timing.milliseconds, strict=False)
        rows.append(
            {
                "threads": number,
                "tasks": count,
                "ms": timing.minimum,
                "spread %": 100 * timing.spread,
                "cores it got": statistics.median(cores[number]),
                "speed-up (minima)": alone.minimum / timing.minimum,
                "speed-up (median of rounds)": statistics.median(a / b for a, b in pairs),
            }
        )
    harness.print_table(f"threads, {shape.name}, {harness.load_line()}", rows)
    print("results bitwise identical" if same else "results DIFFER with the number of threads")
    harness.write_csv(options.output / "threads-cpu.csv", rows)
    return same


def large(options: argparse.Namespace, device: torch.device) -> bool:
    """One task that fits no block or cache: Q = 5000, K = 2000, D = 768, a few iterations."""
    shape = Shape("Q5000-K2000-D768", classes=2000, shots=2, queries=5000, dim=768, present=100)
    settings = Settings(min(options.max_iter, 3), 0.0, options.scaling)
    tasks = sample_tasks(shape, 1, device, per_class=60, seed=options.seed)
    dense = tasks.dense()
    calls = {
        "ours": PEERS["ours"].prepare(tasks, dense, settings),
        "ours-indexed": PEERS["ours-indexed"].prepare(tasks, dense, settings),
        "torch direct": lambda: direct_form(dense, settings),
    }
    truth = direct_form(
        DenseTasks(
            shape,
            dense.support.double(),
            dense.support_labels,
            dense.query.double(),
            dense.query_labels,
        ),
        settings,
    ).probabilities
    checks = {name: agreement(call().probabilities, truth) for name, call in calls.items()}
    del truth
    timings = _times(options, device, calls)
    work = 4 * shape.queries * shape.classes * shape.dim * settings.max_iter
    rows = [
        {
            "competitor": name,
            "check": "DIFFERS" if checks[name].wrong else "ok",
            "max|du|": checks[name].worst,
            "ms": timing.best(device),
            "ms/iteration": timing.best(device) / settings.max_iter,
            "GFLOP/s": work / timing.best(device) / 1e6,
            "extra MiB": None if timing.peak_bytes is None else timing.peak_bytes / 2**20,
        }
        for name, timing in timings.items()
    ]
    harness.print_table(f"{shape.name}, {settings.max_iter} iterations", rows)
    harness.write_csv(options.output / f"large-{device.type}.csv", rows)
    return not any(each.wrong for each in checks.values())


def direct_form(dense: DenseTasks, settings: Settings) -> Result:
    """The iteration by two products with the features in plain torch."""
    query, s = dense.query, class_sums(dense.support, dense.support_labels, dense.shape.classes)
    if settings.scaling == "minmax":
        ranges = query_range(query)
        query, s = query / ranges, s / ranges
    elif settings.scaling == "auto":
        raise SystemExit("--suite large supports the scalings minmax and none")
    centre = query.mean(1, keepdim=True)
    query, s = query - centre, s - dense.shape.shots * centre
    w = s / dense.shape.shots
    v = torch.zeros_like(s[..., 0])
    for _ in range(settings.max_iter):
        bias = v - 0.5 * w.square().sum(-1)
        u = torch.baddbmm(bias[:, None], query, w.mT).softmax(-1)
        mass = u.sum(1)
        v = 1.0 + torch.log(mass / u.shape[1] + settings.epsilon)
        w = torch.baddbmm(s, u.mT, query) / (dense.shape.shots + mass)[..., None]
    return Result(u.argmax(-1), u, torch.full((len(dense),), settings.max_iter))


SUITES: dict[str, Callable[[argparse.Namespace, torch.device], bool]] = {
    "single": single,
    "indexed": indexed,
    "overhead": overhead,
    "threads": threads,
    "large": large,
}
