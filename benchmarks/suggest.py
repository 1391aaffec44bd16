"""Which samples to label next: accuracy after 20 to 100 more labels, by how they were chosen.

A pool of at most 300 unlabelled samples, from five, half or all of at most 40 classes that have 1,
2 or 5 labelled rows each. Samples of the pool are chosen at once, without labels in between: by
`presence.suggest`, at random, by breaking ties, and by the typicality of TypiClust and ProbCover.
Then `adaptive` classifies the others. "pool" is the share of the whole pool that is right, with
chosen samples counted as right for every rule; "new" is the accuracy on as many other samples of
the same classes, none of which could be chosen.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import harness
import torch
from presence import load, shuffled
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank, presence
from paddle_ext.rows import squared_distances, unit_rows

EXAMPLES = """\
  python benchmarks/suggest.py pets_vitb32.npz omniglot_smallnet.npz:test --n-tasks 10
"""
SHOTS, PRESENT, COUNTS = (1, 2, 5), ("few", "half", "all"), (20, 50, 100)
MOST_CLASSES, FEW, POOL = 40, 5, 300
NEIGHBOURS, MOST_CLUSTERS, ROUNDS = 20, 500, 20  # of TypiClust
PURITY, RADII = 0.95, 70  # of ProbCover
OURS, RANDOM = "suggest", "random"
KINDS = "pool", "new"


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features, or FILE:SPLIT")
    add("--n-tasks", type=int, default=10, help="per setting (default: 10)")
    add("--draws", type=int, default=3, help="random choices per task (default: 3)")
    add("--alone", action="store_true", help="compare `suggest` with a random choice only")
    return parser.parse_args()


class Task:
    """Labelled rows, a pool, and as many other samples of the same classes."""

    def __init__(self, bank: FeatureBank, shots: int, present: str, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        classes = torch.randperm(bank.num_classes, generator=self.generator)[:MOST_CLASSES]
        self.K = len(classes)
        count = number_present(present, self.K)
        there = set(torch.randperm(self.K, generator=self.generator)[:count].tolist())
        support, rest, truth = [], [], []
        for k, c in enumerate(classes):
            own = shuffled(bank.labels == c, self.generator)
            support.append(own[:shots])
            if k in there:
                rest.append(own[shots:])
                truth.append(torch.full_like(own[shots:], k))
        rows, labels = torch.cat(rest), torch.cat(truth)
        order = torch.randperm(len(rows), generator=self.generator)
        size = min(POOL, len(rows) // 2)
        pool, new = order[:size], order[size : 2 * size]
        self.support = bank.features[torch.cat(support)]
        self.labels = torch.arange(self.K).repeat_interleave(shots)
        self.pool, self.truth = bank.features[rows[pool]], labels[pool]
        self.new, self.new_truth = bank.features[rows[new]], labels[new]
        self.solution = paddle_ext.adaptive(self.support, self.labels, self.pool)

    def accuracy(self, chosen: Tensor) -> tuple[float, float]:
        """Of the pool and of new samples, in per cent, if the chosen ones are labelled."""
        support = torch.cat([self.support, self.pool[chosen]])
        labels = torch.cat([self.labels, self.truth[chosen]])
        rest = torch.ones(len(self.pool), dtype=torch.bool)
        rest[chosen] = False
        right = [
            int((paddle_ext.adaptive(support, labels, x).labels == y).sum())
            for x, y in ((self.pool[rest], self.truth[rest]), (self.new, self.new_truth))
        ]
        return (
            100 * (right[0] + len(chosen)) / len(self.pool),
            100 * right[1] / len(self.new),
        )


def number_present(present: str, K: int) -> int:
    return {"few": min(FEW, K), "half": (K + 1) // 2, "all": K}[present]


# --- rules --------------------------------------------------------------------------------------


def by_suggest(task: Task, count: int) -> Tensor:
    return presence.suggest(task.support, task.pool, count).queries


def at_random(task: Task, count: int) -> Tensor:
    return torch.randperm(len(task.pool), generator=task.generator)[:count]


def breaking_ties(task: Task, count: int) -> Tensor:
    """The smallest differences of the two largest probabilities."""
    first, second = task.solution.probabilities.topk(2).values.unbind(1)
    return (first - second).argsort(stable=True)[:count]


def typiclust(task: Task, count: int) -> Tensor:
    """The most typical sample of the largest clusters with the fewest labels.

    As in Hacohen et al. 2022: as many clusters as labels, then the inverse mean distance to at most
    20 neighbours in the cluster. Clusters of fewer than five are not dropped: hardly any is larger.
    """
    x, Q = unit_rows(torch.cat([task.pool, task.support])), len(task.pool)
    k = min(len(task.support) + count, len(x) - 1, MOST_CLUSTERS)
    cluster = k_means(x, k, task.generator)
    distance = squared_distances(x, x).sqrt()
    taken = torch.arange(len(x)) >= Q
    size = cluster.bincount(minlength=k)
    chosen: list[int] = []
    while len(chosen) < count:
        labelled = cluster[taken].bincount(minlength=k)
        order = (labelled * len(x) - size).masked_fill(labelled == size, len(x) ** 2)
        own = (cluster == order.argmin()).nonzero().view(-1)
        near = min(NEIGHBOURS, max(1, len(own) // 2)) + 1  # and the sample itself
        apart = distance[own][:, own].topk(min(near, len(own)), largest=False).values.mean(1)
        chosen.append(int(own[apart.masked_fill(taken[own], math.inf).argmin()]))
        taken[chosen[-1]] = True
    return torch.tensor(chosen)


def k_means(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """The cluster of each row, from centres drawn by k-means++."""
    centres = x[torch.randint(len(x), (1,), generator=generator)]
    apart = squared_distances(x, centres)[:, 0]
    for _ in range(k - 1):
        drawn = x[torch.multinomial(apart + 1e-12, 1, generator=generator)]
        centres = torch.cat([centres, drawn])
        apart = torch.minimum(apart, squared_distances(x, drawn)[:, 0])
    for _ in range(ROUNDS):
        cluster = squared_distances(x, centres).argmin(1)
        size = cluster.bincount(minlength=k).unsqueeze(1)
        sums = torch.zeros_like(centres).index_add_(0, cluster, x)
        centres = torch.where(size > 0, sums / size.clamp(min=1), centres)
    return squared_distances(x, centres).argmin(1)


def probcover(task: Task, count: int) -> Tensor:
    """The balls that cover most samples not yet covered, greedily.

    As in Yehuda et al. 2022; the radius is the largest for which 95 % of the balls are pure, by the
    labels of `adaptive` instead of clusters.
    """
    x, Q = unit_rows(torch.cat([task.pool, task.support])), len(task.pool)
    label = torch.cat([task.solution.labels, task.labels])
    distance, other = squared_distances(x, x).sqrt(), label.unsqueeze(1) != label
    to_other = distance.masked_fill(~other, math.inf).amin(1)  # a smaller ball is pure
    radii = torch.linspace(0.02, 1.4, RADII)
    pure = (to_other > radii.unsqueeze(1)).double().mean(1) >= PURITY
    radius = radii[pure][-1] if pure.any() else radii[0]
    ball = distance <= radius
    open_ = ~ball[Q:].any(0)
    free, chosen = torch.ones(Q, dtype=torch.bool), []
    for _ in range(count):
        covered = (ball[:Q] & open_).sum(1).masked_fill(~free, -1)
        chosen.append(int(covered.argmax()))
        free[chosen[-1]] = False
        open_ &= ~ball[chosen[-1]]
    return torch.tensor(chosen)


RULES: dict[str, Callable[[Task, int], Tensor]] = {
    OURS: by_suggest,
    "breaking ties": breaking_ties,
    "TypiClust": typiclust,
    "ProbCover": probcover,
    RANDOM: at_random,
}


# --- measurements -------------------------------------------------------------------------------


def measure(
    name: str, bank: FeatureBank, shots: int, present: str, chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    """Means over tasks, a row for each number of new labels that is at most half of the pool."""
    found: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for number in range(chosen.n_tasks):
        task = Task(bank, shots, present, 1000 * chosen.seed + number)
        for count in (n for n in COUNTS if 2 * n <= len(task.pool)):
            into = found.setdefault(count, defaultdict(list))
            for title in (OURS, RANDOM) if chosen.alone else RULES:
                rule = RULES[title]
                draws = chosen.draws if title == RANDOM else 1
                values = [task.accuracy(rule(task, count)) for _ in range(draws)]
                into[title].append((mean(x[0] for x in values), mean(x[1] for x in values)))
    table = []
    for count, by_rule in found.items():
        row: dict[str, Any] = {"bank": name, "shots": shots, "present": present, "count": count}
        for title, values in by_rule.items():
            for place, kind in enumerate(KINDS):
                row[f"{title}, {kind}"] = mean(x[place] for x in values)
        gains = torch.tensor(by_rule[OURS]) - torch.tensor(by_rule[RANDOM])
        errors = gains.std(0, correction=min(1, len(gains) - 1)) / math.sqrt(len(gains))
        row |= {f"error, {kind}": float(e) for kind, e in zip(KINDS, errors, strict=True)}
        table.append(row)
    return table


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def measured(table: list[dict[str, Any]]) -> list[str]:
    """The rules of the table."""
    return [rule for rule in RULES if f"{rule}, pool" in table[0]]


def summary(table: list[dict[str, Any]], title: str) -> dict[str, Any]:
    """The accuracy at random, and what the others gain on it: pool / new."""
    row: dict[str, Any] = {"": title, "cells": len(table)}
    for rule in reversed(measured(table)):
        values = []
        for kind in KINDS:
            base = 0.0 if rule == RANDOM else mean(x[f"{RANDOM}, {kind}"] for x in table)
            values.append(mean(x[f"{rule}, {kind}"] for x in table) - base)
        form = "{:.1f} / {:.1f}" if rule == RANDOM else "{:+.1f} / {:+.1f}"
        row[rule] = form.format(*values)
    return row


def gain(row: dict[str, Any], kind: str) -> float:
    found: float = row[f"{OURS}, {kind}"] - row[f"{RANDOM}, {kind}"]
    return found


def cells(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the banks of each setting."""
    groups = defaultdict(list)
    for row in table:
        groups[row["shots"], row["present"], row["count"]].append(row)
    return [
        {"shots": s, "present": p, "count": n}
        | {k: mean(row[k] for row in rows) for k, v in rows[0].items() if isinstance(v, float)}
        for (s, p, n), rows in groups.items()
    ]


def report(table: list[dict[str, Any]]) -> None:
    lines = [summary(table, "all")]
    for key in ("bank", "shots", "present", "count"):
        for value in dict.fromkeys(row[key] for row in table):
            lines.append(summary([x for x in table if x[key] == value], f"{value} {key}"))
    harness.print_table("gain on a random choice, points: pool / new", lines)
    settings = cells(table)
    for kind in KINDS:
        worst = min(settings, key=lambda row: gain(row, kind))
        behind = sorted((x for x in table if gain(x, kind) < -0.5), key=lambda row: gain(row, kind))
        sure = [row for row in behind if gain(row, kind) + 2 * row[f"error, {kind}"] < -0.5]
        print(
            f"{kind}: worst of {len(settings)} settings, all banks: {gain(worst, kind):+.1f}, with "
            f"{worst['shots']} shots, {worst['present']}, {worst['count']} labels; of {len(table)} "
            f"cells of one bank {len(behind)} are more than 0.5 points below random, {len(sure)} "
            "by more than two standard errors"
        )
        for row in behind[:10]:
            where = " ".join(str(row[key]) for key in ("bank", "shots", "present", "count"))
            print(f"  {where}: {gain(row, kind):+.1f} ± {row[f'error, {kind}']:.1f}")


def main() -> None:
    chosen = options()
    harness.start(chosen)
    table = []
    for name, bank in map(load, chosen.banks):
        bank = bank.subset((bank.labels >= 0).nonzero().view(-1))
        K = min(bank.num_classes, MOST_CLASSES)
        for shots in SHOTS:
            for present in PRESENT:
                if present == "few" and number_present("half", K) <= FEW:
                    continue  # half is as few
                harness.progress(f"{name}: {shots} shots, {present}")
                table += measure(name, bank, shots, present, chosen)
    harness.progress("")
    report(table)
    harness.write_csv(chosen.output / "suggest.csv", table)


if __name__ == "__main__":
    main()
