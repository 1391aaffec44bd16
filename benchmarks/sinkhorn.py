"""Sinkhorn's iteration: paddle_ext.sinkhorn against a torch loop and POT; and PT-MAP on top of it.

Every competitor is first checked against the float64 reference, then all are timed in turns in one
run. Costs are squared distances of unit vectors, masses 1 per row and Q/K per column, as in PT-MAP.
Prints tables; writes CSV.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import harness
import torch
from tasks import Shape, fitting_tasks, sample_tasks

import paddle_ext
from paddle_ext import methods, reference

EXAMPLES = """\
  python benchmarks/sinkhorn.py                                # one CPU thread
  python benchmarks/sinkhorn.py --device cuda
  python benchmarks/sinkhorn.py --tol 1e-6 --max-iter 1000   # to convergence
  python benchmarks/sinkhorn.py --suite pt_map --device cuda
"""

# Tasks, rows and columns of a call.
SHAPES = {"cpu": [(32, 75, 160), (128, 75, 20)], "cuda": [(1000, 75, 160), (10_000, 75, 20)]}
PT_MAP_SHAPES = [Shape("K20-5shot", 20, 5), Shape("K160-5shot", 160, 5)]
TOLERANCE = {"ours": 1e-5, "ours-validated": 1e-5, "loop": 1e-3, "pot": 1e-3}  # of plan elements
PT_MAP_TOLERANCE = 1e-3  # of probabilities, after 20 epochs


class Problem(NamedTuple):
    cost: torch.Tensor  # [B, Q, K]
    row_mass: torch.Tensor  # [Q]
    col_mass: torch.Tensor  # [K]


class Settings(NamedTuple):
    max_iter: int
    tol: float
    reg: float


Solve = Callable[[Problem, Settings], torch.Tensor]


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--suite", default="sinkhorn,pt_map", help="comma separated (default: sinkhorn,pt_map)")
    add("--shapes", help="BxQxK, comma separated (default: 32x75x160,128x75x20; more on CUDA)")
    add("--only", help=f"comma separated, of {', '.join(TOLERANCE)} (default: all available)")
    add("--max-iter", type=int, default=100, help="limit on iterations (default: 100)")
    add("--tol", type=float, default=0.0, help="stop at this residual (default: 0, never)")
    add("--reg", type=float, default=0.1, help="weight of the entropy (default: 0.1)")
    add("--n-tasks", type=int, help="PT-MAP: tasks per call (default: 8, on CUDA 1000)")
    add("--check-tasks", type=int, default=3, help="tasks compared with the float64 reference")
    result = parser.parse_args()
    result.suite = result.suite.split(",")
    if unknown := set(result.suite) - set(SUITES):
        parser.error(f"unknown suite {unknown.pop()!r}, expected some of {', '.join(SUITES)}")
    try:
        given = result.shapes.split(",") if result.shapes else []
        result.shapes = [tuple(map(int, shape.split("x"))) for shape in given]
        if any(len(shape) != 3 or min(shape) < 1 for shape in result.shapes):
            raise ValueError
    except ValueError:
        parser.error(f"--shapes must be like 32x75x160,128x75x20, got {result.shapes!r}")
    result.only = result.only.split(",") if result.only else list(TOLERANCE)
    if unknown := set(result.only) - set(TOLERANCE):
        parser.error(f"unknown competitor {unknown.pop()!r}")
    return result


# --- competitors ----------------------------------------------------------------------------------


def ours(problem: Problem, settings: Settings, validate: bool = False) -> torch.Tensor:
    keywords: dict[str, Any] = {"reg": settings.reg, "max_iter": settings.max_iter}
    return paddle_ext.sinkhorn(*problem, **keywords, tol=settings.tol, validate=validate).plan


def ours_validated(problem: Problem, settings: Settings) -> torch.Tensor:
    return ours(problem, settings, validate=True)


def loop(problem: Problem, settings: Settings) -> torch.Tensor:
    """The obvious loop: scale the rows, scale the columns; the batch stops as a whole."""
    cost, row_mass, col_mass = problem
    plan = torch.exp(-cost / settings.reg)
    for i in range(settings.max_iter):
        row_sum = plan.sum(-1)
        if settings.tol and i % 10 == 9 and (row_sum - row_mass).abs().max() <= settings.tol:
            break
        plan *= (row_mass / row_sum).unsqueeze(-1)
        plan *= (col_mass / plan.sum(-2)).unsqueeze(-2)
    return plan


def pot(problem: Problem, settings: Settings) -> torch.Tensor:
    """The log-domain solver of POT's ot.batch; the batch stops as a whole."""
    import ot.batch

    cost, row_mass, col_mass = problem
    B = len(cost)
    rows, columns = row_mass.expand(B, -1), col_mass.expand(B, -1)
    tol = settings.tol or -1.0
    solved = ot.batch.bregman_log_projection_batch(
        -cost / settings.reg, rows, columns, max_iter=settings.max_iter, tol=tol
    )
    return solved["T"]


COMPETITORS: dict[str, Solve] = {
    "ours": ours,
    "ours-validated": ours_validated,
    "loop": loop,
    "pot": pot,
}


def available(names: list[str]) -> list[str]:
    if "pot" not in names:
        return names
    try:
        from ot.batch import bregman_log_projection_batch  # noqa: F401
    except ImportError as error:
        print(f"pot: skipped, {error} (pip install 'POT>=0.9.7')")
        return [name for name in names if name != "pot"]
    return names


# --- Sinkhorn -------------------------------------------------------------------------------------


def make_problem(shape: tuple[int, int, int], device: torch.device, seed: int) -> Problem:
    B, Q, K = shape
    generator = torch.Generator(device).manual_seed(seed)

    def directions(rows: int) -> torch.Tensor:
        x = torch.randn(B, rows, 40, generator=generator, device=device)
        return x / x.norm(dim=-1, keepdim=True)

    cost = 2 - 2 * directions(Q) @ directions(K).mT
    masses = torch.ones(Q, device=device), torch.full((K,), Q / K, device=device)
    return Problem(cost, *masses)


def sinkhorn(chosen: argparse.Namespace, device: torch.device) -> bool:
    """Compare the competitors; False if one disagreed with the reference."""
    settings = Settings(chosen.max_iter, chosen.tol, chosen.reg)
    bandwidth = harness.copy_bandwidth(device)
    print(f"copy bandwidth {bandwidth / 1e9:.1f} GB/s; {settings}")
    rows: list[dict[str, Any]] = []
    names = available(chosen.only)
    for shape in chosen.shapes or SHAPES[device.type]:
        part = one_shape(chosen, device, settings, shape, names, bandwidth)
        title = " x ".join(map(str, shape))
        title += f", {'minimum' if device.type == 'cpu' else 'median'} times"
        harness.print_table(title, [{k: v for k, v in row.items() if k != "shape"} for row in part])
        print(harness.load_line())
        rows += part
    harness.write_csv(chosen.output / f"sinkhorn-{device.type}.csv", rows)
    return all(row["check"] == "ok" for row in rows)


def one_shape(
    chosen: argparse.Namespace,
    device: torch.device,
    settings: Settings,
    shape: tuple[int, int, int],
    names: list[str],
    bandwidth: float,
) -> list[dict[str, Any]]:
    B, Q, K = shape
    problem = make_problem(shape, device, chosen.seed)
    few = min(B, chosen.check_tasks)
    keywords: dict[str, Any] = {"max_iter": settings.max_iter, "tol": settings.tol}
    exact = reference.sinkhorn(
        problem.cost[:few].double(), *problem[1:], reg=settings.reg, **keywords
    )
    mean = paddle_ext.sinkhorn(*problem, reg=settings.reg, **keywords).iterations.double().mean()
    calls, rows = {}, []
    for name in names:
        solve = COMPETITORS[name]
        worst = float((solve(problem, settings)[:few].double() - exact.plan).abs().max())
        agreed = worst <= TOLERANCE[name]
        rows.append({"competitor": name, "check": "ok" if agreed else "DIFFERS", "max|dP|": worst})
        if agreed:
            calls[name] = lambda solve=solve: solve(problem, settings)
    timings = harness.time_side_by_side(
        calls, device, rounds=chosen.rounds, budget=chosen.budget, flush=chosen.flush
    )
    floor = 1e3 * 4 * (2 * B * Q * K + Q + K) / bandwidth  # cost in, plan out
    work = 4.0 * B * Q * K * float(mean)  # a product of M with b and one with a
    best = {name: timing.best(device) for name, timing in timings.items()}
    for row in rows:
        row["shape"] = "x".join(map(str, shape))
        timing = timings.get(row["competitor"])
        if timing is None:
            continue
        ms = best[row["competitor"]]
        row |= {
            "iterations": float(mean) if row["competitor"].startswith("ours") else None,
            "ms": ms,
            "spread %": 100 * timing.spread,
            "us/task": 1e3 * ms / B,
            "floor ms": floor,
            "x floor": ms / floor,
            "GFLOP": work / 1e9,
            "GFLOP/s": work / ms / 1e6,
        }
        if timing.peak_bytes is not None:
            row["peak MiB"] = timing.peak_bytes / 2**20
        if "ours" in best:
            row["x ours"] = ms / best["ours"]
    return rows


# --- PT-MAP ---------------------------------------------------------------------------------------


def run_pt_map(chosen: argparse.Namespace, device: torch.device) -> bool:
    """Time PT-MAP from features to labels, 20 epochs; False if it is far from float64."""
    method = methods.create("pt_map")
    rows: list[dict[str, Any]] = []
    for shape in PT_MAP_SHAPES:
        count = fitting_tasks(
            shape, chosen.n_tasks or (1000 if device.type == "cuda" else 8), device
        )
        dense = sample_tasks(shape, count, device, seed=chosen.seed).dense()
        inputs = dense.support, dense.support_labels, dense.query

        def call(inputs: tuple[torch.Tensor, ...] = inputs, K: int = shape.classes) -> Any:
            return method.predict(*inputs, num_classes=K)

        got = call()
        few = [x[: min(count, 2)].cpu() for x in inputs]
        exact = method.predict(few[0].double(), few[1], few[2].double(), num_classes=shape.classes)
        found = got.probabilities[: len(exact.labels)].cpu()
        worst = float((found - exact.probabilities).abs().max())
        row: dict[str, Any] = {
            "shape": shape.name,
            "tasks": count,
            "check": "ok" if worst <= PT_MAP_TOLERANCE else "DIFFERS",
            "max|dp|": worst,
            "accuracy %": 100 * float((got.labels == dense.query_labels).double().mean()),
        }
        if row["check"] == "ok":
            timing = harness.time_side_by_side(
                {shape.name: call}, device, rounds=chosen.rounds, budget=chosen.budget
            )[shape.name]
            ms = timing.best(device)
            row |= {"ms": ms, "spread %": 100 * timing.spread, "ms/task": ms / count}
            if timing.peak_bytes is not None:
                row["peak MiB"] = timing.peak_bytes / 2**20
        rows.append(row)
        del dense, inputs, few, got
    harness.print_table("PT-MAP, 20 epochs, features to labels", rows)
    print(harness.load_line())
    harness.write_csv(chosen.output / f"pt_map-{device.type}.csv", rows)
    return all(row["check"] == "ok" for row in rows)


SUITES: dict[str, Callable[[argparse.Namespace, torch.device], bool]] = {
    "sinkhorn": sinkhorn,
    "pt_map": run_pt_map,
}


def main() -> int:
    chosen = options()
    device = harness.start(chosen)
    agreed = True
    for suite in chosen.suite:
        agreed &= SUITES[suite](chosen, device)
    if not agreed:
        print("a competitor DIFFERS from the float64 reference and was not timed")
    return 0 if agreed else 1


if __name__ == "__main__":
    raise SystemExit(main())
