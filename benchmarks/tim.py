"""TIM: paddle_ext.tim against autograd and torch.optim.Adam, and against the closed form in torch.

Both are first checked against the float64 reference, by their prototypes after 100 iterations, then
timed in turns in one run, from features to labels. Prints tables; writes CSV.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import harness
import torch
import torch.nn.functional as F
from tasks import DenseTasks, Shape, fitting_tasks, sample_tasks

import paddle_ext
from paddle_ext import reference

EXAMPLES = """\
  python benchmarks/tim.py                                      # one CPU thread
  python benchmarks/tim.py --shapes K20-5shot --methods tim,alpha-tim
  python benchmarks/tim.py --device cuda                        # ours in batches of 1000 tasks
  python benchmarks/tim.py --device cuda --n-tasks 200 --peer-tasks 200
"""

SHAPES = {
    shape.name: shape
    for shape in (
        Shape("K20-5shot", 20, 5),
        Shape("K160-5shot", 160, 5),
        Shape("K160-20shot", 160, 20),
    )
}
# Tasks per call of the peer: as many as it benefits from.
PEER_TASKS = {
    "cpu": {"K20-5shot": 32, "K160-5shot": 4, "K160-20shot": 2},
    "cuda": {"K20-5shot": 200, "K160-5shot": 100, "K160-20shot": 50},
}
CHECKED_ITERATIONS = 100
# Of the prototypes after them. An alternation moves far in one step, and the peer's powers of small
# probabilities lose precision on the way.
TOLERANCE = {"ours": 1e-4, "autograd": 1e-4, "closed_form": 5e-3}
EPSILON = 1e-12


@dataclass(frozen=True)
class Settings:
    """A method; the names are those of `paddle_ext.tim`."""

    solver: str = "gd"
    weights: tuple[float, float, float] = (1.0, 0.3, 1.0)
    alphas: tuple[float, float, float] = (1.0, 1.0, 1.0)
    learning_rate: float = 1e-4
    temperature: float = 15.0


METHODS = {
    "tim": Settings(),
    "alpha-tim": Settings(weights=(1.0, 1.0, 1.0), alphas=(1.0, 7.0, 5.0)),
    "adm": Settings(solver="adm", weights=(0.1, 1.0, 0.1), learning_rate=1.0),
}


class Result(NamedTuple):
    labels: torch.Tensor  # [B, Q]
    prototypes: torch.Tensor  # [B, K, D]


Solver = Callable[[DenseTasks, Settings, int], Result]


# --- the competitors ----------------------------------------------------------------------------


def ours(tasks: DenseTasks, settings: Settings, iterations: int) -> Result:
    found = paddle_ext.tim(
        tasks.support,
        tasks.support_labels,
        tasks.query,
        num_classes=tasks.shape.classes,
        solver=settings.solver,
        weights=settings.weights,
        alphas=settings.alphas,
        temperature=settings.temperature,
        learning_rate=settings.learning_rate,
        max_iter=iterations,
        validate=False,
    )
    return Result(found.labels, found.prototypes)


def in_double(tasks: DenseTasks, settings: Settings, iterations: int) -> torch.Tensor:
    """Prototypes of the specification."""
    return reference.tim(
        tasks.support.double(),
        tasks.support_labels,
        tasks.query.double(),
        num_classes=tasks.shape.classes,
        solver=settings.solver,
        weights=settings.weights,
        alphas=settings.alphas,
        temperature=settings.temperature,
        learning_rate=settings.learning_rate,
        max_iter=iterations,
    ).prototypes


class Start(NamedTuple):
    """The inputs of the torch versions."""

    support: torch.Tensor  # [B, S, D], unit norm
    query: torch.Tensor  # [B, Q, D], unit norm
    one_hot: torch.Tensor  # [B, S, K]
    prototypes: torch.Tensor  # [B, K, D]


def start(tasks: DenseTasks) -> Start:
    support, query = F.normalize(tasks.support, dim=-1), F.normalize(tasks.query, dim=-1)
    one_hot = F.one_hot(tasks.support_labels, tasks.shape.classes).to(support.dtype)
    return Start(support, query, one_hot, one_hot.mT @ support / one_hot.sum(1).unsqueeze(-1))


def logits(x: torch.Tensor, w: torch.Tensor, temperature: float) -> torch.Tensor:
    norms = 0.5 * w.square().sum(-1).unsqueeze(1), 0.5 * x.square().sum(-1, keepdim=True)
    return temperature * (x @ w.mT - norms[0] - norms[1])


def entropy(p: torch.Tensor, alpha: float) -> torch.Tensor:
    if alpha == 1:
        return -(p * torch.log(p + EPSILON)).sum(-1)
    return (1 - (p + EPSILON).pow(alpha).sum(-1)) / (alpha - 1)


def autograd(tasks: DenseTasks, settings: Settings, iterations: int) -> Result:
    """What the published implementation computes, restated: a graph, its gradients, Adam."""
    support, query, one_hot, w = start(tasks)
    w.requires_grad_()
    optimizer = torch.optim.Adam([w], lr=settings.learning_rate)
    for _ in range(iterations):
        p_support = logits(support, w, settings.temperature).softmax(-1)
        p_query = logits(query, w, settings.temperature).softmax(-1)
        fit = -(one_hot * torch.log(p_support + EPSILON)).sum(-1).mean(1).sum()
        marginal = entropy(p_query.mean(1), settings.alphas[1]).sum()
        conditional = entropy(p_query, settings.alphas[2]).mean(1).sum()
        l0, l1, l2 = settings.weights
        loss = l0 * fit - l1 * marginal + l2 * conditional
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        labels = logits(query, w, settings.temperature).argmax(-1)
    return Result(labels, w.detach())


def closed_form(tasks: DenseTasks, settings: Settings, iterations: int) -> Result:
    """TIM-ADM as published, restated in batched torch."""
    support, query, one_hot, w = start(tasks)
    l0, l1, l2 = settings.weights
    c_support, c_query = l0 / (1 + l2), support.shape[1] / query.shape[1]
    fixed, shots = one_hot.mT @ support, one_hot.sum(1)
    for _ in range(iterations):
        p_support = logits(support, w, settings.temperature).softmax(-1)
        p_query = logits(query, w, settings.temperature).softmax(-1)
        sharp = p_query.pow(1 + l2)
        q = sharp / sharp.sum(1, keepdim=True).pow(l1 / (1 + l1))
        q = q / q.sum(-1, keepdim=True)
        from_support = fixed + w * p_support.sum(1).unsqueeze(-1) - p_support.mT @ support
        from_query = q.mT @ query + w * p_query.sum(1).unsqueeze(-1) - p_query.mT @ query
        mass = c_support * shots + c_query * q.sum(1)
        new = (c_support * from_support + c_query * from_query) / mass.unsqueeze(-1)
        w = w + settings.learning_rate * (new - w)
    return Result(logits(query, w, settings.temperature).argmax(-1), w)


# --- the table ----------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--shapes", default=",".join(SHAPES), help="comma separated (default: all three)")
    add("--methods", default=",".join(METHODS), help="comma separated (default: all three)")
    add("--n-tasks", type=int, help="tasks per call of ours (default: the peer's, on CUDA 1000)")
    add("--peer-tasks", type=int, help="tasks per call of the peer (default: by shape)")
    add("--max-iter", type=int, help="timed iterations (default: 50, on CUDA 100)")
    add("--check-tasks", type=int, default=2, help="tasks compared with the float64 reference")
    result = parser.parse_args()
    for name, known in (("shapes", SHAPES), ("methods", METHODS)):
        chosen = getattr(result, name).split(",")
        if unknown := set(chosen) - set(known):
            parser.error(f"unknown {name} {unknown.pop()!r}, expected some of {', '.join(known)}")
        setattr(result, name, chosen)
    result.max_iter = result.max_iter or (100 if result.device == "cuda" else 50)
    return result


def fp32_rate(device: torch.device) -> float:
    """Operations per second of a large product in float32, at full precision."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    clock = harness.Clock(device)
    return 2 * size**3 / (1e-3 * min(clock(lambda: a @ b) for _ in range(8)))


def check(solver: Solver, tasks: DenseTasks, settings: Settings, truth: torch.Tensor) -> float:
    found = solver(tasks.take(slice(len(truth))), settings, CHECKED_ITERATIONS).prototypes
    return float((found.double() - truth).abs().max())


def one_row(
    options: argparse.Namespace,
    device: torch.device,
    settings: Settings,
    tasks: dict[str, DenseTasks],
    rate: float,
) -> list[dict[str, Any]]:
    """Both competitors on one method and one shape."""
    peer = autograd if settings.solver == "gd" else closed_form
    solvers: dict[str, Solver] = {"ours": ours, peer.__name__: peer}
    sizes = {"ours": tasks["ours"], peer.__name__: tasks["peer"]}
    few = slice(min(options.check_tasks, len(tasks["peer"]), len(tasks["ours"])))
    truth = in_double(tasks["ours"].take(few), settings, CHECKED_ITERATIONS)
    off, calls = {}, {}
    for name, solver in solvers.items():
        harness.progress(f"check: {name}")
        off[name] = check(solver, sizes[name], settings, truth)
        if off[name] <= TOLERANCE[name]:
            calls[name] = call_of(solver, sizes[name], settings, options.max_iter)
            calls[name]()
    timings = harness.time_side_by_side(
        calls, device, rounds=options.rounds, budget=options.budget, flush=options.flush
    )
    shape = tasks["ours"].shape
    work = 4.0 * (shape.support + shape.queries) * shape.classes * shape.dim
    floor = 1e6 * work / rate
    units = {name: len(sizes[name]) * options.max_iter for name in timings}
    us = {name: 1e3 * timings[name].best(device) / units[name] for name in timings}
    rows = []
    for name in solvers:
        row: dict[str, Any] = {"competitor": name, "tasks": len(sizes[name])}
        row |= {"check": "ok" if name in timings else "DIFFERS", "max|dw|": off[name]}
        if name in timings:
            labels = calls[name]().labels
            row["accuracy %"] = 100 * float((labels == sizes[name].query_labels).double().mean())
            row |= {"us/task/iteration": us[name], "spread %": 100 * timings[name].spread}
            row |= {"floor us": floor, "x floor": us[name] / floor}
            row["GFLOP/s"] = work / us[name] / 1e3
            peak = timings[name].peak_bytes
            if peak is not None:
                row["peak MiB"] = peak / 2**20
            if "ours" in us:
                row["x ours"] = us[name] / us["ours"]
        rows.append(row)
    return rows


def call_of(
    solver: Solver, tasks: DenseTasks, settings: Settings, iterations: int
) -> Callable[[], Result]:
    return lambda: solver(tasks, settings, iterations)


def main() -> int:
    chosen = options()
    device = harness.start(chosen)
    rate = fp32_rate(device)
    print(f"float32 product {rate / 1e9:.1f} GFLOP/s; {chosen.max_iter} iterations timed")
    rows: list[dict[str, Any]] = []
    for name in chosen.shapes:
        shape = SHAPES[name]
        peer_tasks = chosen.peer_tasks or PEER_TASKS[device.type][name]
        wanted = chosen.n_tasks or (1000 if device.type == "cuda" else peer_tasks)
        count = fitting_tasks(shape, max(wanted, peer_tasks), device)
        dense = sample_tasks(shape, count, device, seed=chosen.seed).dense()
        tasks = {"ours": dense.take(slice(wanted)), "peer": dense.take(slice(peer_tasks))}
        for method in chosen.methods:
            settings = METHODS[method]
            part = one_row(chosen, device, settings, tasks, rate)
            harness.print_table(f"{method}, {name}", part)
            rows += [{"method": method, "shape": name, **row} for row in part]
        print(harness.load_line())
    harness.write_csv(chosen.output / f"tim-{device.type}.csv", rows)
    if any(row["check"] != "ok" for row in rows):
        print("a competitor DIFFERS from the float64 reference and was not timed")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
