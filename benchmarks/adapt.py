"""`adapt` to convergence against the same loop in torch, and `adaptive` from features to labels
against `solve` on the same tasks. Results are checked against the float64 reference first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import harness
import torch
from tasks import Shape, fitting_tasks, sample_tasks
from torch import Tensor

import paddle_ext
from paddle_ext import methods, reference
from paddle_ext.reference.adapt import next_concentration

EXAMPLES = """\
  python benchmarks/adapt.py                      # one thread
  python benchmarks/adapt.py --device cuda        # batches of 1000 tasks
"""
SHAPES = (Shape("K20-5shot", 20, 5), Shape("K160-1shot", 160, 1), Shape("K160-5shot", 160, 5))
QUERIES, MAX_ITER, TOL = 75, 100, 1e-3
TOLERANCE = 1e-4


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument("--n-tasks", type=int, help="per call (default: 8, on CUDA 1000)")
    parser.add_argument("--check-tasks", type=int, default=3, help="compared with the reference")
    chosen = parser.parse_args()
    chosen.n_tasks = chosen.n_tasks or (1000 if chosen.device == "cuda" else 8)
    return chosen


def make_logits(B: int, K: int, present: int, device: torch.device, seed: int) -> Tensor:
    """Logits of queries from some of the classes, about as confident as those of real features."""
    generator = torch.Generator(device).manual_seed(seed)
    truth = torch.randint(0, present, (B, QUERIES, 1), generator=generator, device=device)
    logits = torch.randn(B, QUERIES, K, generator=generator, device=device)
    lead = torch.full(truth.shape, 3.0, device=device)
    return 1.5 * logits.scatter_add_(2, truth, lead)


def in_torch(logits: Tensor) -> Tensor:
    """The same iteration, batched, until all tasks have converged."""
    Q, K = logits.shape[-2:]
    e, a = logits.new_zeros(len(logits), K), torch.ones_like(logits[:, 0, :1]).double()
    before = e
    for i in range(MAX_ITER):
        counts = torch.softmax(logits + e.unsqueeze(-2), -1).sum(-2).double()
        a = next_concentration(a, counts, float(Q))
        e = torch.special.digamma(counts + a) - torch.special.digamma(Q + K * a)
        e = e.to(logits.dtype)
        if i % 4 == 3 and float((counts - before).abs().max()) <= TOL:
            break
        before = counts
    return torch.softmax(logits + e.unsqueeze(-2), -1)


def run_adapt(chosen: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    rows = []
    for K, present in ((20, 5), (160, 5), (160, 160)):
        logits = make_logits(chosen.n_tasks, K, present, device, chosen.seed)
        few = logits[: chosen.check_tasks]
        fixed: dict[str, Any] = {"tol": 0.0, "max_iter": 20}
        got, want = paddle_ext.adapt(few, **fixed), reference.adapt(few.double(), **fixed)
        worst = float((got.probabilities - want.probabilities).abs().max())
        iterations = paddle_ext.adapt(logits).iterations.double()
        row: dict[str, Any] = {"K": K, "present": present, "max|du|": worst}
        row |= {"iterations": float(iterations.mean()), "most": int(iterations.max())}
        row["check"] = "ok" if worst < TOLERANCE else "DIFFERS"
        if row["check"] == "ok":
            calls = {
                "ours": lambda logits=logits: paddle_ext.adapt(logits, validate=False),
                "torch": lambda logits=logits: in_torch(logits),
            }
            timings = harness.time_side_by_side(
                calls, device, rounds=chosen.rounds, budget=chosen.budget
            )
            ours, torch_loop = (timings[name].best(device) for name in ("ours", "torch"))
            row |= {"ms": ours, "spread %": 100 * timings["ours"].spread}
            row |= {"torch ms": torch_loop, "ratio": torch_loop / ours}
        rows.append(row)
    return rows


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


def run_adaptive(chosen: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    method = methods.create("adaptive")
    rows = []
    for shape in SHAPES:
        count = fitting_tasks(shape, chosen.n_tasks, device)
        dense = sample_tasks(shape, count, device, seed=chosen.seed).dense()
        inputs = dense.support, dense.support_labels, dense.query
        K = shape.classes

        def adaptive(inputs: tuple[Tensor, ...] = inputs, K: int = K) -> methods.Prediction:
            return method.predict(*inputs, num_classes=K)

        def solve(inputs: tuple[Tensor, ...] = inputs, K: int = K) -> paddle_ext.Solution:
            return paddle_ext.solve(*inputs, num_classes=K)

        few = [x[: chosen.check_tasks] for x in inputs]
        exact = method.predict(few[0].double(), few[1], few[2].double(), num_classes=K)
        got = adaptive()
        worst = float((got.probabilities[: len(few[0])] - exact.probabilities).abs().max())
        solve()
        calls: dict[str, Callable[[], object]] = {"adaptive": adaptive, "solve": solve}
        timings = harness.time_side_by_side(
            calls, device, rounds=chosen.rounds, budget=chosen.budget
        )
        ms, solve_ms = (timings[name].best(device) for name in ("adaptive", "solve"))
        row: dict[str, Any] = {"shape": shape.name, "tasks": count, "max|du|": worst}
        row["accuracy %"] = 100 * float((got.labels == dense.query_labels).double().mean())
        row |= {"ms": ms, "spread %": 100 * timings["adaptive"].spread}
        row |= {"solve ms": solve_ms, "ratio": ms / solve_ms}
        if device.type == "cpu":
            least = busy(calls, chosen.rounds)
            row |= {"busy ms": least["adaptive"], "solve busy ms": least["solve"]}
            row["busy ratio"] = least["adaptive"] / least["solve"]
        rows.append(row)
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
    return 0 if all(row["check"] == "ok" for row in loop) else 1


if __name__ == "__main__":
    raise SystemExit(main())
