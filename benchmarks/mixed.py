"""How often a PADDLE solution says that its batch looks mixed, by the number of classes present.

Share of tasks in percent, for each bank and number of shots: it should be near 0 with five classes
or fewer, and near 100 with half of them or all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import harness
import torch

import paddle_ext
from paddle_ext import FeatureBank, TaskSampler

EXAMPLES = """\
  python benchmarks/mixed.py mini_test_resnet18.npz clinc150_minilm.npz pets_vitb32.npz
"""
CHUNK = 20  # tasks per call


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features")
    add("--shots", default="1,5,20", help="default: 1,5,20")
    add("--n-query", type=int, default=75, help="limit; fewer if classes are small")
    add("--n-tasks", type=int, default=100, help="per cell (default: 100)")
    return parser.parse_args()


def share_mixed(
    bank: FeatureBank, shots: int, k_eff: int, queries: int, chosen: argparse.Namespace
) -> float:
    tasks = TaskSampler(bank.labels, shots=shots, n_query=queries, k_eff=k_eff, seed=chosen.seed)
    found = []
    for start in range(0, chosen.n_tasks, CHUNK):
        batch = tasks.batch(start, min(CHUNK, chosen.n_tasks - start))
        solution = paddle_ext.solve_indexed(
            bank.features,
            batch.support_index,
            batch.support_labels,
            batch.query_index,
            num_classes=len(bank.counts()),
            validate=False,
        )
        found.append(solution.looks_mixed().float())
    return 100 * float(torch.cat(found).mean())


def main() -> None:
    chosen = options()
    for path in chosen.banks:
        bank = FeatureBank.load(path).to(dtype=torch.float32)
        K = len(bank.counts())
        for shots in map(int, chosen.shots.split(",")):
            room = (bank.counts() - shots).sort().values
            shares = {}
            for k_eff in sorted({1, 2, 5, 10, K // 2, K}):
                queries = min(chosen.n_query, int(room[:k_eff].sum()))
                if room[0] >= 1 and k_eff <= K:
                    shares[k_eff] = share_mixed(bank, shots, k_eff, queries, chosen)
            cells = ", ".join(f"{k_eff} present {share:.0f}" for k_eff, share in shares.items())
            print(f"{Path(path).stem}, K={K}, {shots} shots: {cells}", flush=True)


if __name__ == "__main__":
    main()
