"""The rule behind scaling="auto": PADDLE on feature banks, over shots and effective classes.

Compares, on the same tasks: the nearest prototype of unit-norm rows; raw features, min-max, and
"auto"; "auto" with other leads of the nearest class; and one factor on unit-norm rows for all tasks
of a bank and a number of shots, the best of which is found with the query labels. The loss of
"auto" against that, and its gain over the best of the first three, measure the rule. Accuracies are
means over the numbers of effective classes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import harness
import torch
import torch.nn.functional as F

from paddle_ext import Evaluation, FeatureBank, evaluate
from paddle_ext.methods import Method, create
from paddle_ext.reference.paddle import AUTO_GAP

EXAMPLES = """\
  python benchmarks/scaling.py features.npz
  python benchmarks/scaling.py mini.npz clinc.npz --n-tasks 100 --device cuda
  python benchmarks/scaling.py flowers.npz --least 58 --shots 1,5
"""

QUERIES = 75
LEADS = (8.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 18.0, 22.0)
FACTORS = tuple(2.0 ** (step / 3) for step in range(34))  # on squared distances: 1 to 2048


def options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", type=Path, metavar="BANK", help="files of features")
    add("--n-tasks", type=int, default=40, help="per shots and effective classes (default: 40)")
    add("--shots", type=numbers, default=[1, 2, 5, 10, 20], help="default: 1,2,5,10,20")
    add("--k-eff", type=numbers, default=[2, 3, 5, 7, 10], help="default: 2,3,5,7,10")
    add("--least", type=int, default=0, help="leave out classes with fewer rows")
    add("--split", help="only this split of the banks that have it")
    return parser.parse_args()


def load(path: Path, chosen: argparse.Namespace) -> FeatureBank:
    bank = FeatureBank.load(path)
    if chosen.split in bank.splits:
        bank = bank.subset(split=chosen.split)
    large = (bank.counts() >= max(1, chosen.least)).nonzero().view(-1)
    return bank.take_classes(large).to(dtype=torch.float32)


def given_methods() -> dict[str, Method]:
    methods: dict[str, Method] = {"prototype": create("simpleshot", scaling="l2n")}
    for scaling in ("none", "minmax", "auto"):
        methods[scaling] = create("paddle", scaling=scaling)
    for lead in LEADS:  # the temperature multiplies the squared distances, and so the lead
        methods[f"lead {lead:g}"] = create("paddle", scaling="auto", temperature=lead / AUTO_GAP)
    return methods


def factor_methods() -> dict[str, Method]:
    return {f"{f:.4g}": create("paddle", scaling="none", temperature=f) for f in FACTORS}


def accuracies(
    bank: FeatureBank, shots: int, chosen: argparse.Namespace, device: torch.device
) -> list[dict[str, float]]:
    """Accuracies of all methods, for each number of effective classes that the bank supports."""
    unit = FeatureBank(F.normalize(bank.features), bank.labels)
    counts = bank.counts().sort().values
    found = []
    for k_eff in chosen.k_eff:
        room = int(counts[:k_eff].sum()) - k_eff * shots
        if k_eff > bank.num_classes or int(counts[0]) <= shots or room < 10:
            continue
        one: dict[str, float] = {}
        for features, methods in ((bank, given_methods()), (unit, factor_methods())):
            evaluation: Evaluation = evaluate(
                features,
                methods,
                shots=shots,
                k_eff=k_eff,
                n_tasks=chosen.n_tasks,
                n_query=min(QUERIES, room),
                seed=chosen.seed,
                device=device,
                progress=sys.stderr.isatty(),
            )
            one |= {result.method: result.accuracy for result in evaluation}
        found.append(one)
    return found


def row_of(bank: str, shots: int, cells: list[dict[str, float]]) -> dict[str, Any]:
    average = {name: mean(cell[name] for cell in cells) for name in cells[0]}
    factor = max(factor_methods(), key=average.__getitem__)
    simple = max(average[name] for name in ("prototype", "none", "minmax"))
    row: dict[str, Any] = {"bank": bank, "shots": shots}
    row |= {name: average[name] for name in ("prototype", "none", "minmax", "auto")}
    row |= {"best factor": average[factor], "factor": float(factor)}
    row |= {"auto - simple": average["auto"] - simple, "loss": average[factor] - average["auto"]}
    return row | {f"lead {lead:g}": average[factor] - average[f"lead {lead:g}"] for lead in LEADS}


def main() -> None:
    chosen = options()
    device = harness.start(chosen)
    rows = []
    for path in chosen.banks:
        bank = load(path, chosen)
        print(f"{path.name}: {bank}")
        for shots in chosen.shots:
            cells = accuracies(bank, shots, chosen, device)
            if cells:
                rows.append(row_of(path.stem, shots, cells))
                print({name: harness.show(value) for name, value in rows[-1].items()}, flush=True)
    leads = [f"lead {lead:g}" for lead in LEADS]
    names = [name for name in rows[0] if name not in leads]
    harness.print_table("accuracy in %, and points", rows, names)
    losses, gains = [row["loss"] for row in rows], [row["auto - simple"] for row in rows]
    print(f"auto loses {mean(losses):.2f} points to the best factor, at most {max(losses):.1f};")
    print(f"its lead over the best of prototype, none and minmax is at least {min(gains):+.1f}")
    lost = [
        {"bank": row["bank"], "shots": row["shots"]} | {n: row[n] for n in leads} for row in rows
    ]
    lost.append({"bank": "mean", "shots": None} | {n: mean(row[n] for row in rows) for n in leads})
    harness.print_table("points lost to the best factor, by the lead of the nearest class", lost)
    harness.write_csv(chosen.output / "scaling.csv", rows)


if __name__ == "__main__":
    main()
