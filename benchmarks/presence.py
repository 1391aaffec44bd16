"""Which classes are present, and which labels are doubtful: measured on real features.

Precision and recall of the present classes against the number of effective classes; how well doubt
separates wrong labels from correct ones, and how well it is calibrated; and, in a bank with rows
without a class, how well doubt and novelty detect those rows among the queries.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank, Solution, TaskBatch, TaskSampler, presence
from paddle_ext.methods import Adaptive
from paddle_ext.solution import DUAL_SHARE
from paddle_ext.task import IndexedTask

EXAMPLES = """\
  python benchmarks/presence.py clinc150_minilm.npz omniglot_smallnet.npz:test
  python benchmarks/presence.py clinc150_minilm.npz --method paddle
"""

THRESHOLDS = (0.1, 0.5, 1.5, 2.5, 3.5)
SHARES = (
    0.0,
    1 / 3,
    1 / 2,
    DUAL_SHARE,
    5 / 6,
    1.0,
)  # of the dual, subtracted; 0: probabilities
OURS = {"adaptive": 0, "paddle": SHARES.index(DUAL_SHARE)}  # doubt
CHUNK = 20  # tasks per call
BINS = 10


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features, or FILE:SPLIT")
    add("--method", choices=tuple(OURS), default="adaptive", help="default: adaptive")
    add("--n-tasks", type=int, default=100, help="per setting (default: 100)")
    add("--shots", type=int, default=5, help="default: 5")
    add("--n-query", type=int, default=75, help="limit; fewer if classes are small")
    add("--k-eff", default="1,2,5,10,20", help="default: 1,2,5,10,20")
    add(
        "--outsiders", default="15,60", help="rows without a class among 60 others (default: 15,60)"
    )
    return parser.parse_args()


def load(argument: str) -> tuple[str, FeatureBank]:
    path, _, split = argument.partition(":")
    bank = FeatureBank.load(path)
    if split:
        bank = bank.subset(split=split).take_classes()
    return Path(path).stem, bank.to(dtype=torch.float32)


def sampler(bank: FeatureBank, chosen: argparse.Namespace, k_eff: int, queries: int) -> TaskSampler:
    """With as many queries as the smallest classes allow."""
    room = (bank.counts() - chosen.shots).sort().values[:k_eff].sum()
    count = min(queries, int(room))
    return TaskSampler(
        bank.labels, shots=chosen.shots, n_query=count, k_eff=k_eff, seed=chosen.seed
    )


class Answers(NamedTuple):
    """Results for the tasks of one setting."""

    there: Tensor  # [B, K] bool
    held: Tensor  # [B, K]: queries that each class holds
    wrong: Tensor  # [B, Q] bool
    doubts: Tensor  # [B, Q, number of SHARES]


def answers(bank: FeatureBank, tasks: TaskSampler, count: int, method: str) -> Answers:
    found = []
    for start in range(0, count, CHUNK):
        batch = tasks.batch(start, min(CHUNK, count - start))
        solution = solve(bank, batch, method)
        there = torch.zeros_like(solution.proportions, dtype=torch.bool)
        found.append(
            Answers(
                there.scatter_(1, batch.query_labels, True),
                solution.probabilities.sum(1),
                solution.labels != batch.query_labels,
                doubts(solution),
            )
        )
    return Answers(*(torch.cat(pieces) for pieces in zip(*found, strict=True)))


def doubts(solution: Solution) -> Tensor:
    labels = solution.labels.unsqueeze(-1)
    every = [solution.logits_without(share).softmax(-1) for share in SHARES]
    return 1 - torch.cat([u.gather(-1, labels) for u in every], dim=-1)


def pooled(found: list[Answers]) -> tuple[Tensor, Tensor]:
    """Right labels and doubts of all queries, [n] and [n, number of SHARES]."""
    wrong = torch.cat([x.wrong.view(-1) for x in found])
    return ~wrong, torch.cat([x.doubts.flatten(0, 1) for x in found])


def solve(bank: FeatureBank, batch: TaskBatch, method: str) -> Solution:
    support = (batch.support_index, batch.support_labels)
    if method == "paddle":
        return paddle_ext.solve_indexed(bank.features, *support, batch.query_index)
    K = int(batch.support_labels.max()) + 1
    task = IndexedTask(bank.features, *support, batch.query_index, K)
    return Adaptive().solution(task.gathered())


def solve_one(support: Tensor, labels: Tensor, query: Tensor, method: str) -> Solution:
    if method == "paddle":
        return paddle_ext.solve(support, labels, query)
    return paddle_ext.adaptive(support, labels, query)


def auroc(score: Tensor, positive: Tensor) -> float:
    """The probability that a positive has a larger score than a negative; ties count half."""
    above, below = score[positive].double(), score[~positive].double().sort().values
    if len(above) == 0 or len(below) == 0:
        return float("nan")
    low, high = (torch.searchsorted(below, above, right=right) for right in (False, True))
    return float((low + high).double().mean() / (2 * len(below)))


def reliability(confidence: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean confidence, accuracy and share of the samples, for each non-empty bin."""
    place = (confidence * BINS).long().clamp(max=BINS - 1)
    size = torch.bincount(place, minlength=BINS)
    means = [torch.bincount(place, x.double(), minlength=BINS) / size for x in (confidence, right)]
    filled = size > 0
    return means[0][filled], means[1][filled], size[filled] / len(place)


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    said, true, share = reliability(confidence, right)
    return float(((said - true).abs() * share).sum())


# --- tables -------------------------------------------------------------------------------------


def presence_row(name: str, k_eff: int, found: Answers) -> dict[str, Any]:
    """Precision, recall and their harmonic mean at each threshold, over all tasks."""
    row: dict[str, Any] = {"bank": name, "k_eff": k_eff, "queries": found.wrong.shape[1]}
    row["accuracy"] = 100 * float((~found.wrong).double().mean())
    single = (found.held >= 0.5) & (found.held < 1.5)  # classes with about one query
    row |= {"single": int(single.sum()), "single, there": int((single & found.there).sum())}
    for threshold in THRESHOLDS:
        said = found.held >= threshold
        both, claimed, true = (int(x.sum()) for x in (said & found.there, said, found.there))
        row[f"precision {threshold}"] = 100 * both / max(claimed, 1)
        row[f"recall {threshold}"] = 100 * both / true
        row[f"F {threshold}"] = 200 * both / (claimed + true)
    return row


def doubt_row(name: str, k_eff: object, found: list[Answers]) -> dict[str, Any]:
    right, scores = pooled(found)
    row = {"bank": name, "k_eff": k_eff, "accuracy": 100 * float(right.double().mean())}
    for share, score in zip(SHARES, scores.unbind(-1), strict=True):
        row[f"AUROC {share:.2f}"] = 100 * auroc(score, ~right)
    for share, score in zip(SHARES, scores.unbind(-1), strict=True):
        row[f"error {share:.2f}"] = 100 * calibration_error(1 - score, right)
    return row


def outsider_row(
    name: str, bank: FeatureBank, chosen: argparse.Namespace, k_eff: int, count: int
) -> dict[str, Any]:
    """Each task with rows without a class among its queries; the mean over tasks."""
    tasks = sampler(bank, chosen, k_eff, 60)
    strangers = (bank.labels < 0).nonzero().view(-1)
    generator = torch.Generator().manual_seed(chosen.seed)
    found, flagged = [], []
    for number in range(chosen.n_tasks):
        batch = tasks.batch(number, 1)
        drawn = strangers[torch.randperm(len(strangers), generator=generator)[:count]]
        index = torch.cat([batch.query_index[0], drawn])
        support, query = bank.features[batch.support_index[0]], bank.features[index]
        solution = solve_one(support, batch.support_labels[0], query, chosen.method)
        novelty = presence.novelty(solution, support, batch.support_labels[0], query)
        unknown = torch.arange(len(index)) >= tasks.n_query
        scores = [novelty, *doubts(solution).unbind(-1)]
        found.append([auroc(score, unknown) for score in scores])
        flagged.append([float((novelty[x] > 0.95).double().mean()) for x in (~unknown, unknown)])
    row: dict[str, Any] = {"bank": name, "k_eff": k_eff, "queries": tasks.n_query}
    row["outsiders"] = count
    titles = ["novelty", *(f"{share:.2f}" for share in SHARES)]
    means = (100 * torch.tensor(found).mean(0)).tolist()
    row |= {f"AUROC {title}": mean for title, mean in zip(titles, means, strict=True)}
    known, unknown_ones = (100 * torch.tensor(flagged).mean(0)).tolist()
    return row | {"known over 0.95": known, "outsiders over 0.95": unknown_ones}


def shuffled(where: Tensor, generator: torch.Generator) -> Tensor:
    rows = where.nonzero().view(-1)
    return rows[torch.randperm(len(rows), generator=generator)]


def main() -> None:
    chosen = options()
    harness.start(chosen)
    effective = [int(x) for x in chosen.k_eff.split(",")]
    there, doubtful, outsiders = [], [], []
    for name, bank in map(load, chosen.banks):
        print(name, bank)
        for k_eff in effective:
            harness.progress(f"{name}: {k_eff} effective classes")
            found = answers(
                bank, sampler(bank, chosen, k_eff, chosen.n_query), chosen.n_tasks, chosen.method
            )
            there.append(presence_row(name, k_eff, found))
            doubtful.append(doubt_row(name, k_eff, [found]))
        if (bank.labels < 0).any():
            outsiders += [
                outsider_row(name, bank, chosen, k_eff, int(count))
                for k_eff in effective
                for count in chosen.outsiders.split(",")
            ]
    harness.progress("")
    tables = {
        "presence": ("present classes: percent, at each threshold", there),
        "doubt": ("doubt, by the share subtracted: wrong labels, calibration error", doubtful),
        "outsiders": ("rows without a class among the queries", outsiders),
    }
    for name, (title, table) in tables.items():
        if table:
            harness.print_table(title, [*table, mean_row(table)])
            harness.write_csv(chosen.output / f"{name}.csv", table)


def mean_row(table: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean over all settings of each measurement."""
    names = [name for name, value in table[0].items() if isinstance(value, float)]
    return {"bank": "mean"} | {name: sum(row[name] for row in table) / len(table) for name in names}


if __name__ == "__main__":
    main()
