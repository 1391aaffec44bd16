"""Classes with different numbers of labelled rows: accuracy of all queries, and of those of the
classes with the fewest rows.

Twenty classes, five of them or all present, 75 queries. "1, 5" means that half of the classes have
one labelled row and half five; "16/i" that class i has 16/i, at least one; "20, 1 .." that one has
twenty and all others one.
"""

from __future__ import annotations

import argparse
from typing import Any

import harness
import torch
from presence import load, shuffled
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from paddle_ext import FeatureBank, methods

EXAMPLES = """\
  python benchmarks/unequal.py pets_vitb32.npz flowers102_efflite0.npz --n-tasks 20
  python benchmarks/unequal.py pets_vitb32.npz agnews_minilm.npz --classes 2
"""
QUERIES, FEW = 75, 5


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument(
        "banks", nargs="+", metavar="BANK", help="a file of features, or FILE:SPLIT"
    )
    parser.add_argument("--classes", type=int, default=20, help="an even number (default: 20)")
    parser.add_argument("--n-tasks", type=int, default=20, help="per setting (default: 20)")
    return parser.parse_args()


def patterns(K: int) -> dict[str, list[int]]:
    """Labelled rows of each class."""
    return {
        "5": [5] * K,
        "2, 8": [2, 8] * (K // 2),
        "1, 5": [1, 5] * (K // 2),
        "1, 15": [1, 15] * (K // 2),
        "16/i": [max(1, 16 // i) for i in range(1, K + 1)],
        "20, 1 ..": [20] + [1] * (K - 1),
    }


def draw(
    bank: FeatureBank, shots: list[int], present: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labelled rows, their labels, queries and their classes."""
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(bank.num_classes, generator=random)
    rows = bank.labels[bank.labels >= 0].bincount(minlength=bank.num_classes)
    classes = order[rows[order] > max(shots)][: len(shots)]
    there = set(torch.randperm(len(classes), generator=random)[:present].tolist())
    known, rest, truth = [], [], []
    for k, c in enumerate(classes):
        own = shuffled(bank.labels == c, random)
        known.append(own[: shots[k]])
        if k in there:
            rest.append(own[shots[k] :])
            truth.append(torch.full_like(rest[-1], k))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor(shots[: len(classes)]))
    classes_present = torch.randint(len(rest), (QUERIES,), generator=random)
    picked = [torch.randint(len(rest[i]), (), generator=random) for i in classes_present]
    pairs = list(zip(classes_present.tolist(), picked, strict=True))
    query = torch.stack([rest[i][j] for i, j in pairs])
    own = torch.stack([truth[i][j] for i, j in pairs])
    return bank.features[torch.cat(known)], labels, bank.features[query], own


def predicted(name: str, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    if name == "logistic regression":
        model = LogisticRegression(C=100, max_iter=2000)
        unit = torch.nn.functional.normalize
        model.fit(unit(support).numpy(), labels.numpy())
        return torch.from_numpy(model.predict(unit(query).numpy()))
    return methods.create(name).predict(support, labels, query).labels


def main() -> None:
    given = options()
    harness.start(given)
    K = given.classes
    counts = sorted({min(FEW, K), K})
    names = ("adaptive", "logistic regression", "simpleshot", "alpha_tim", "paddle")
    table: list[dict[str, Any]] = []
    for label, bank in map(load, given.banks):
        for pattern, shots in patterns(K).items():
            for present in counts:
                harness.progress(f"{label}: {pattern}, {present}")
                right: dict[str, list[Tensor]] = {name: [] for name in names}
                scarce = []
                for seed in range(given.n_tasks):
                    support, labels, query, own = draw(bank, shots, present, seed)
                    scarce.append(torch.tensor(shots)[own] == min(shots))
                    for name in names:
                        right[name].append(predicted(name, support, labels, query) == own)
                row: dict[str, Any] = {"bank": label, "rows": pattern, "present": present}
                for name in names:
                    found = torch.cat(right[name]).double()
                    row[name] = 100 * float(found.mean())
                    row[f"{name}, few"] = 100 * float(found[torch.cat(scarce)].mean())
                table.append(row)
    harness.progress("")
    for pattern in patterns(K):
        for present in counts:
            rows = [row for row in table if (row["rows"], row["present"]) == (pattern, present)]
            mean = {k: sum(row[k] for row in rows) / len(rows) for k in list(rows[0])[3:]}
            table.append({"bank": "mean", "rows": pattern, "present": present, **mean})
    harness.print_table("classes with different numbers of labelled rows, per cent right", table)
    harness.write_csv(given.output / "unequal.csv", table)


if __name__ == "__main__":
    main()
