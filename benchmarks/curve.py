"""Time of one task against its number of queries, each twice the one before: no holes.

A larger task should never take less time than a smaller one: where one does, the smaller was solved
by the wrong code. The last column is the time divided by that of the next size, at most 1.1 if the
switches are where the curves cross.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import harness
import torch

import paddle_ext

EXAMPLES = """\
  python benchmarks/curve.py --device cuda
  python benchmarks/curve.py --threads 2 --classes 200 --most 64000
"""


def options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--classes", type=numbers, default=[20, 200, 1000], help="default: 20,200,1000")
    add("--features", type=numbers, default=[128, 512], help="default: 128,512")
    add("--most", type=int, default=2**20, help="queries of the largest task (default: 2^20)")
    add("--solvers", default="adaptive,solve", help="default: adaptive,solve")
    return parser.parse_args()


def rows_of(centres: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return centres[labels] + 1.5 * torch.randn(len(labels), centres.shape[1], device=centres.device)


def curve(
    solver: str, K: int, D: int, chosen: argparse.Namespace, device: torch.device
) -> list[dict[str, Any]]:
    """One row for each size; five labelled rows a class, queries of up to ten classes."""
    torch.manual_seed(chosen.seed)
    centres, labels = torch.randn(K, D, device=device), torch.arange(K, device=device).repeat(5)
    support, call = rows_of(centres, labels), getattr(paddle_ext, solver)
    table, most, Q = [], chosen.most, 75
    while most >= Q:
        query = rows_of(centres, torch.randint(min(K, 10), (Q,), device=device))
        calls = {"": lambda query=query: call(support, labels, query, num_classes=K)}
        calls[""]()
        timing = harness.time_side_by_side(
            calls, device, rounds=chosen.rounds, budget=chosen.budget
        )[""]
        row = {"solver": solver, "K": K, "D": D, "queries": Q, "ms": timing.best(device)}
        table.append({**row, "spread": timing.spread})
        Q *= 2
    for row, larger in pairwise(table):
        row["against the next"] = row["ms"] / larger["ms"]
    return table


def main() -> None:
    chosen = options()
    device = harness.start(chosen)
    table = []
    for solver in chosen.solvers.split(","):
        for K in chosen.classes:
            for D in chosen.features:
                rows = curve(solver, K, D, chosen, device)
                harness.print_table(f"{solver}, K = {K}, D = {D}", rows)
                table += rows
    harness.write_csv(chosen.output / f"curve_{device.type}.csv", table)
    worst = max(table, key=lambda row: row.get("against the next", 0.0))
    print(f"worst: {worst}")


if __name__ == "__main__":
    main()
