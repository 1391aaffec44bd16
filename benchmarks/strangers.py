"""Samples of unknown classes at a rate, and groups of classes: measured on real features.

A quarter of the classes has no label. Of at most 75 others, five, half or all are present in 100
queries, with 60 rows of the unlabelled classes. How many known queries are flagged at a rate of
5 %; the same if every fourth class has one labelled row; and the AUROC of novelty next to the
largest probability of logistic regression, on unit-norm rows and with C = 1 or 30. With --roll-up,
instead: how often the node of 90 % is right.
"""

from __future__ import annotations

import argparse
from typing import Any

import harness
import torch
from parents import parents_of
from presence import auroc, load, shuffled
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank
from paddle_ext import presence as found_in

EXAMPLES = """\
  python benchmarks/strangers.py flowers102_efflite0.npz caltech101_vitb32.npz --n-tasks 12
  python benchmarks/strangers.py clinc150_minilm.npz omniglot_smallnet.npz:test --roll-up
"""
SHOTS, PRESENT = (2, 5, 20), ("few", "half", "all")
RATE, CONFIDENCE = 0.05, 0.9
MOST_CLASSES, QUERIES, STRANGERS, SINGLE = 100, 100, 60, 4
INVERSE_REGULARISATIONS = (1.0, 30.0)


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features, or FILE:SPLIT")
    add("--n-tasks", type=int, default=6, help="per setting (default: 6)")
    add("--roll-up", action="store_true", help="the nodes of two-level banks")
    return parser.parse_args()


class Task:
    """Labelled rows and queries; the class of a stranger is -1."""

    def __init__(
        self,
        bank: FeatureBank,
        shots: int,
        present: str,
        seed: int,
        *,
        single: bool = False,
        held_out: float = 0.25,
        most: int = MOST_CLASSES,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        classes = torch.randperm(bank.num_classes, generator=generator)[:most]
        others = classes[: int(held_out * len(classes))]
        self.classes = classes[len(others) :]
        K = len(self.classes)
        count = {"few": min(5, K), "half": (K + 1) // 2, "all": K}[present]
        there = set(torch.randperm(K, generator=generator)[:count].tolist())
        support, labels, query = [], [], []
        for k, c in enumerate(self.classes):
            own = shuffled(bank.labels == c, generator)
            n = 1 if single and k % SINGLE == 0 else min(shots, len(own) - 5)
            support.append(own[:n])
            labels += [k] * n
            if k in there:
                query.append(torch.stack([own[n:], torch.full_like(own[n:], k)], 1))
        asked = torch.cat(query)
        asked = asked[torch.randperm(len(asked), generator=generator)[:QUERIES]]
        strange = shuffled(torch.isin(bank.labels, others), generator)[:STRANGERS]
        self.support, self.labels = bank.features[torch.cat(support)], torch.tensor(labels)
        self.query = bank.features[torch.cat([asked[:, 0], strange])]
        self.truth = torch.cat([asked[:, 1], torch.full_like(strange, -1)])
        self.given = (self.support, self.labels, self.query)
        self.solution = paddle_ext.adaptive(*self.given)


def regression(task: Task) -> list[float]:
    """AUROC of the largest probability, for each regularisation."""
    from sklearn.linear_model import LogisticRegression

    rows, new = (torch.nn.functional.normalize(x).numpy() for x in (task.support, task.query))
    found = []
    for inverse in INVERSE_REGULARISATIONS:
        model = LogisticRegression(C=inverse, max_iter=300).fit(rows, task.labels.numpy())
        largest = torch.from_numpy(model.predict_proba(new)).amax(1)
        found.append(100 * auroc(-largest, task.truth < 0))
    return found


def share(flagged: Tensor, where: Tensor) -> float:
    return 100 * float(flagged[where].double().mean())


def strangers_row(
    name: str, bank: FeatureBank, shots: int, present: str, chosen: argparse.Namespace
) -> dict[str, Any]:
    """Means over tasks."""
    found: dict[str, list[float]] = {}
    for number in range(chosen.n_tasks):
        seed = 1000 * chosen.seed + number
        task = Task(bank, shots, present, seed)
        known = task.truth >= 0
        novelty = found_in.novelty(task.solution, *task.given)
        flagged = found_in.strangers(task.solution, *task.given, rate=RATE)
        values = {
            "known flagged": share(flagged, known),
            "strangers flagged": share(flagged, ~known),
            "novelty": 100 * auroc(novelty, ~known),
        }
        if shots == 5:
            titles = (f"regression, C={c:g}" for c in INVERSE_REGULARISATIONS)
            values |= dict(zip(titles, regression(task), strict=True))
        task = Task(bank, shots, present, seed, single=True)
        # `strangers` refuses so small a rate where few classes have two rows.
        flagged = found_in.novelty(task.solution, *task.given) > 1 - RATE
        alone = (task.labels.bincount() == 1)[task.truth.clamp(min=0)] & (task.truth >= 0)
        if alone.any():
            values["one row"] = share(flagged, alone)
        for title, value in values.items():
            found.setdefault(title, []).append(value)
    row: dict[str, Any] = {"bank": name, "shots": shots, "present": present}
    return row | {title: sum(x) / len(x) for title, x in found.items()}


def roll_up_row(
    name: str, bank: FeatureBank, shots: int, present: str, chosen: argparse.Namespace
) -> dict[str, Any]:
    """How often the nodes are right, how often they are classes, and the accuracy of classes."""
    assert bank.class_names is not None
    right, specific, named, claimed, correct = [], [], [], [], []
    for number in range(chosen.n_tasks):
        seed = 1000 * chosen.seed + number
        task = Task(bank, shots, present, seed, held_out=0.0, most=bank.num_classes)
        names = [bank.class_names[k] for k in task.classes.tolist()]
        parents = parents_of(names)
        rolled = found_in.roll_up(task.solution, parents, CONFIDENCE, classes=names)
        nodes = rolled.names()
        claimed.append(float(rolled.probability[rolled.node >= 0].mean()))
        truth = [names[k] for k in task.truth.tolist()]
        pairs = [(a, b) for a, b in zip(nodes, truth, strict=True) if a is not None]
        named.append(len(pairs) / len(truth))
        right.append(sum(a in (b, parents[b]) for a, b in pairs) / len(pairs))
        specific.append(sum(a in parents for a, _ in pairs) / len(pairs))
        correct.append(float((task.solution.labels == task.truth).double().mean()))
    row: dict[str, Any] = {"bank": name, "shots": shots, "present": present}
    titles = ("node right", "its probability", "named", "of them classes", "class right")
    values = (right, claimed, named, specific, correct)
    return row | {t: 100 * sum(x) / len(x) for t, x in zip(titles, values, strict=True)}


def main() -> None:
    chosen = options()
    harness.start(chosen)
    table = []
    for name, bank in map(load, chosen.banks):
        bank = bank.subset((bank.labels >= 0).nonzero().view(-1))
        for shots in SHOTS:
            if int(bank.counts().min()) < shots + 5 and chosen.roll_up:
                continue
            for present in PRESENT:
                harness.progress(f"{name}: {shots} shots, {present}")
                measure = roll_up_row if chosen.roll_up else strangers_row
                table.append(measure(name, bank, shots, present, chosen))
    harness.progress("")
    title = "nodes of 90 %" if chosen.roll_up else "strangers at a rate of 5 %"
    harness.print_table(f"{title}, per cent", table)
    for key in ("shots", "present", "bank"):
        for value in dict.fromkeys(row[key] for row in table):
            rows = [row for row in table if row[key] == value]
            print(value, {k: round(v, 1) for k, v in means(rows).items()})
    print("all", {k: round(v, 1) for k, v in means(table).items()})
    name = "roll_up" if chosen.roll_up else "strangers"
    harness.write_csv(chosen.output / f"{name}.csv", table)


def means(table: list[dict[str, Any]]) -> dict[str, float]:
    """Of each measurement, over the settings that have it."""
    titles = dict.fromkeys(k for row in table for k, v in row.items() if isinstance(v, float))
    found = {k: [row[k] for row in table if k in row] for k in titles}
    return {k: sum(x) / len(x) for k, x in found.items()}


if __name__ == "__main__":
    main()
