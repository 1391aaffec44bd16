"""Time of `adaptive` when a fifth of the labels is wrong: labels trusted, and weighed by "auto"."""

from __future__ import annotations

from typing import Any

import harness
import torch
from torch import Tensor

import paddle_ext

EXAMPLES = """\
  python benchmarks/label_noise.py
  python benchmarks/label_noise.py --device cuda
"""
# Classes, labels of each, queries, and tasks.
SIZES = [(20, 5, 75, 1), (20, 20, 300, 1), (100, 5, 300, 1), (100, 10, 300, 1), (20, 5, 75, 50)]
FEATURES, WRONG = 512, 0.2


def task(K: int, shots: int, Q: int, B: int, device: torch.device) -> tuple[Tensor, ...]:
    """Support, given labels of which every class has one that is right, and queries."""
    centres = torch.randn(B, K, FEATURES, device=device)

    def rows(labels: Tensor) -> Tensor:
        own = torch.take_along_dim(centres, labels.unsqueeze(-1), 1)
        return own + 1.5 * torch.randn_like(own)

    truth = torch.arange(K, device=device).repeat(shots).expand(B, -1)
    wrong = torch.rand(truth.shape, device=device) < WRONG
    given = torch.where(wrong, torch.randint_like(truth, K), truth)
    given[:, :K] = truth[:, :K]
    return rows(truth), given, rows(torch.randint(K, (B, Q), device=device))


def main() -> None:
    chosen = harness.parser(__doc__, EXAMPLES).parse_args()
    device = harness.start(chosen)
    table: list[dict[str, Any]] = []
    for K, shots, Q, B in SIZES:
        torch.manual_seed(chosen.seed)
        given = task(K, shots, Q, B, device)
        calls = {
            str(noise): lambda noise=noise, given=given, K=K: paddle_ext.adaptive(
                *given, num_classes=K, label_noise=noise
            )
            for noise in (0.0, "auto")
        }
        timing = harness.time_side_by_side(
            calls, device, rounds=chosen.rounds, budget=chosen.budget
        )
        trusted, weighed = (timing[name].best(device) for name in calls)
        size = {"K": K, "labels": shots, "queries": Q, "tasks": B}
        table.append({**size, "trusted": trusted, "weighed": weighed, "times": weighed / trusted})
    harness.print_table(f"milliseconds, D = {FEATURES}", table)
    harness.write_csv(chosen.output / f"label_noise_{device.type}.csv", table)


if __name__ == "__main__":
    main()
