"""Time to draw tasks: 10,000 of them in batches, one CPU thread unless set otherwise.

Every case is checked before timing it: no sample twice in a task, the right number of each class,
the same tasks in batches of another size.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import harness
import torch

from paddle_ext.research.sampler import TaskBatch, TaskSampler

EXAMPLES = """\
  python benchmarks/tasks_sampling.py
  python benchmarks/tasks_sampling.py --threads 2 --batch 1000
"""


class Case(NamedTuple):
    name: str
    classes: int
    size: int  # samples per class
    options: dict[str, Any]


CASES = (
    Case("tiered, 20-shot", 160, 1300, {"shots": 20}),
    Case("tiered, 20-shot, dirichlet", 160, 1300, {"shots": 20, "sampling": "dirichlet"}),
    Case("tiered, 5-shot", 160, 1300, {"shots": 5}),
    Case("mini, 5-shot", 20, 600, {"shots": 5}),
    Case("mini, 5-shot, balanced", 20, 600, {"shots": 5, "sampling": "balanced"}),
    Case("5 classes of 1000, 1-shot", 1000, 100, {"shots": 1, "num_classes": 5}),
)


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument("--n-tasks", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--batch", type=int, default=250, help="tasks per call (default: 250)")
    return parser.parse_args()


def proper(sampler: TaskSampler, batch: TaskBatch, shots: int) -> bool:
    rows = torch.cat([batch.support_index, batch.query_index], 1).sort(1).values
    classes = torch.arange(sampler.num_classes).repeat_interleave(shots)
    again = [sampler.batch(start, 1) for start in range(len(rows))]
    return (
        bool((rows.diff(dim=1) > 0).all())
        and torch.equal(batch.support_labels, classes.expand(len(rows), -1))
        and all(len(task.unique()) <= sampler.k_eff for task in batch.query_labels)
        and torch.equal(batch.query_index, torch.cat([task.query_index for task in again]))
    )


def main() -> None:
    chosen = options()
    device = harness.start(chosen)
    calls, rows = {}, {}
    for case in CASES:
        labels = torch.arange(case.classes).repeat_interleave(case.size)
        sampler = TaskSampler(labels, seed=chosen.seed, **case.options)
        if not proper(sampler, sampler.batch(0, 50), case.options["shots"]):
            raise SystemExit(f"{case.name}: the tasks are wrong")

        def call(sampler: TaskSampler = sampler) -> None:
            for start in range(0, chosen.n_tasks, chosen.batch):
                sampler.batch(start, min(chosen.batch, chosen.n_tasks - start))

        calls[case.name] = call
        draws = case.options["shots"] * sampler.num_classes + sampler.n_query
        rows[case.name] = {"tasks": case.name, "K": sampler.num_classes, "rows per task": draws}
    timings = harness.time_side_by_side(
        calls, device, rounds=chosen.rounds, budget=chosen.budget, flush=False
    )
    for name, timing in timings.items():
        best = timing.best(device)
        rows[name]["s"] = best / 1e3
        rows[name]["spread %"] = 100 * timing.spread
        rows[name]["us/task"] = 1e3 * best / chosen.n_tasks
        rows[name]["ns/row"] = 1e6 * best / chosen.n_tasks / rows[name]["rows per task"]
    table = list(rows.values())
    harness.print_table(f"{chosen.n_tasks} tasks in batches of {chosen.batch}", table)
    print(harness.load_line())
    harness.write_csv(chosen.output / "tasks_sampling.csv", table)


if __name__ == "__main__":
    main()
