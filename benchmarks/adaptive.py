"""Any batch: accuracy and calibration against the number of classes present, on real features.

A cell is a bank, a number of shots, of classes present (K_eff) and of queries. The methods are
compared, on the same tasks, with a base: the nearest class mean of unit-norm rows, or `--base`.
Classes with fewer than ten rows in addition to their shots are left out; if the classes present
have fewer rows than the requested queries, a cell has fewer queries.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank, TaskBatch, TaskSampler, methods
from paddle_ext.adaptive_rule.learn import calibrate
from paddle_ext.methods import Prediction
from paddle_ext.reference.paddle import auto_factor
from paddle_ext.rows import class_means, squared_distances, unit_rows

EXAMPLES = """\
  python benchmarks/adaptive.py mini.npz clinc150.npz --n-tasks 20
  python benchmarks/adaptive.py *.npz --device cuda --n-tasks 200 --methods adaptive,vb,alpha_tim
  python benchmarks/adaptive.py mini.npz --methods adaptive:metric=diagonal,adaptive,paddle
  python benchmarks/adaptive.py mini.npz --base adaptive:metric=diagonal \\
      --methods adaptive
"""

NEAREST = "nearest mean"
SPARE = 10  # rows that a class needs in addition to its shots
BINS = 15
LOSS = 1.0  # points below the base from which a task counts as lost
CHUNK = {"cpu": 10, "cuda": 100}  # tasks per call
Predict = Callable[[FeatureBank, TaskBatch], Prediction]


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features, or FILE:SPLIT")
    add("--shots", default="1,2,5,20", help="default: 1,2,5,20")
    add("--k-eff", default="1,2,5,10,20,half,all", help="default: 1,2,5,10,20,half,all")
    add("--n-query", default="75,300", help="limits; default: 75,300")
    add("--n-tasks", type=int, default=200, help="per cell (default: 200)")
    add("--methods", default="adaptive,vb,paddle", help="names, or NAME:OPTION=VALUE; vb: below")
    add("--base", default=NEAREST, help=f"what they are compared with (default: {NEAREST})")
    return parser.parse_args()


# --- methods ------------------------------------------------------------------------------------


def predictor(text: str) -> Predict:
    """The method of a name, "vb", or NAME:OPTION=VALUE."""
    if text == "vb":
        return plain_vb
    if text == NEAREST:
        text = "simpleshot:scaling=l2n"
    name, *given = text.split(":")
    chosen = dict(part.split("=", 1) for part in given)
    types = {option.name: type(option.default) for option in methods.describe(name)}
    method = methods.create(name, **{key: types[key](value) for key, value in chosen.items()})

    def predict(bank: FeatureBank, batch: TaskBatch) -> Prediction:
        return method.predict_indexed(
            bank.features,
            batch.support_index,
            batch.support_labels,
            batch.query_index,
            num_classes=len(bank.counts()),
            validate=False,
        )

    return predict


def plain_vb(bank: FeatureBank, batch: TaskBatch) -> Prediction:
    """Proportions with a learned Dirichlet prior on unit-norm rows, and nothing else.

    Distances to class means, with the sharpness that fits left-out labelled rows, but at least that
    of `scaling="auto"`; for one shot, twice that.
    """
    K = len(bank.counts())
    support, query = (unit_rows(bank.features[i]) for i in (batch.support_index, batch.query_index))
    labels = batch.support_labels
    means = class_means(support, labels, K)
    distances = squared_distances(query, means)
    sharpness = auto_factor(query, means).square()
    n = labels.shape[1] // K
    if n == 1:
        sharpness = 2 * sharpness
    else:
        own = labels.unsqueeze(-1)
        away = squared_distances(support, means)
        away.scatter_(-1, own, away.gather(-1, own) * (n + 1) / (n - 1))
        count = torch.full_like(labels[:, 0], labels.shape[1])
        sharpness = torch.maximum(sharpness, calibrate(away, labels, count)[0])
    logits = -sharpness.view(-1, 1, 1) / 2 * distances
    found = paddle_ext.adapt(logits, validate=False)
    return Prediction(found.labels, found.probabilities)


# --- cells --------------------------------------------------------------------------------------


class Cell(NamedTuple):
    bank: str
    K: int
    shots: int
    k_eff: int
    queries: int  # requested
    tasks: TaskSampler


def load(argument: str, device: torch.device) -> tuple[str, FeatureBank]:
    path, _, split = argument.partition(":")
    bank = FeatureBank.load(path)
    if split:
        bank = bank.subset(split=split).take_classes()
    return Path(path).stem, bank.to(device, dtype=torch.float32)


def numbers(text: str, K: int) -> list[int]:
    """Numbers of classes present, at most K, each once."""
    words = {"half": max(1, K // 2), "all": K}
    found = {words.get(word) or int(word) for word in text.split(",")}
    return sorted(number for number in found if number <= K)


def cells(name: str, bank: FeatureBank, shots: int, chosen: argparse.Namespace) -> Iterator[Cell]:
    counts = bank.counts().cpu()
    K, room = len(counts), (counts - shots).sort().values
    labels = bank.labels.cpu()
    for k_eff in numbers(chosen.k_eff, K):
        seen = set()
        for queries in map(int, chosen.n_query.split(",")):
            count = min(queries, int(room[:k_eff].sum()))
            if count not in seen:
                tasks = TaskSampler(
                    labels, shots=shots, n_query=count, k_eff=k_eff, seed=chosen.seed
                )
                yield Cell(name, K, shots, k_eff, queries, tasks)
            seen.add(count)


def measure(
    cell: Cell, bank: FeatureBank, predictors: dict[str, Predict], count: int, device: torch.device
) -> dict[str, Any]:
    """Accuracies, differences from the first with their standard errors, lost tasks, ECE."""
    right: dict[str, list[Tensor]] = {name: [] for name in predictors}
    sure: dict[str, list[Tensor]] = {name: [] for name in predictors}
    step = CHUNK[device.type]
    for start in range(0, count, step):
        batch = cell.tasks.batch(start, min(step, count - start)).to(device)
        for name, predict in predictors.items():
            labels, probabilities = predict(bank, batch)
            right[name].append((labels == batch.query_labels).cpu())
            sure[name].append(probabilities.amax(-1).cpu())
    row: dict[str, Any] = {
        "bank": cell.bank,
        "K": cell.K,
        "shots": cell.shots,
        "K_eff": cell.k_eff,
        "Q": cell.queries,
        "queries": cell.tasks.n_query,
    }
    base = torch.cat(right[next(iter(predictors))]).double().mean(1)
    for name in predictors:
        correct, confidence = torch.cat(right[name]), torch.cat(sure[name])
        gain = 100 * (correct.double().mean(1) - base)
        row[name] = 100 * float(correct.double().mean())
        row[f"{name} gain"] = float(gain.mean())
        row[f"{name} error"] = float(gain.std() / math.sqrt(count)) if count > 1 else 0.0
        row[f"{name} worst task"] = float(gain.min())
        row[f"{name} lost"] = int((gain < -LOSS).sum())
        row[f"{name} ECE"] = 100 * calibration_error(confidence.flatten(), correct.flatten())
    return row


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Mean distance between confidence and accuracy, over bins of equal width."""
    place = (confidence * BINS).long().clamp(0, BINS - 1)
    said, true = (torch.bincount(place, x.double(), minlength=BINS) for x in (confidence, right))
    return float((said - true).abs().sum() / len(place))


# --- tables -------------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]], names: list[str], *keys: str) -> list[dict[str, Any]]:
    """Mean accuracy, the worst cell and task against the base, tasks lost, and ECE."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    table = []
    for values, group in sorted(groups.items()):
        for name in names:
            line: dict[str, Any] = dict(zip(keys, values, strict=True))
            line |= {"cells": len(group), "method": name, "accuracy": mean(group, name)}
            line["worst gain"] = min(row[f"{name} gain"] for row in group)
            line["worst task"] = min(row[f"{name} worst task"] for row in group)
            line["lost"] = sum(row[f"{name} lost"] for row in group)
            line["ECE"] = mean(group, f"{name} ECE")
            table.append(line)
    return table


def mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def worst_cells(
    rows: list[dict[str, Any]], base: str, name: str, count: int = 8
) -> list[dict[str, Any]]:
    keys = ("bank", "shots", "K_eff", "Q", base, name, f"{name} gain", f"{name} error")
    ordered = sorted(rows, key=lambda row: float(row[f"{name} gain"]))
    return [{key: row[key] for key in keys} for row in ordered[:count]]


def main() -> None:
    chosen = options()
    device = harness.start(chosen)
    names = [chosen.base, *chosen.methods.split(",")]
    predictors = {name: predictor(name) for name in names}
    rows = []
    for argument in chosen.banks:
        name, whole = load(argument, device)
        for shots in map(int, chosen.shots.split(",")):
            kept = (whole.counts() >= shots + SPARE).nonzero().view(-1)
            if len(kept) < 2:
                continue
            bank = whole.take_classes(kept)
            for cell in cells(name, bank, shots, chosen):
                harness.progress(f"{name}: {shots} shots, {cell.k_eff} classes, {cell.queries}")
                rows.append(measure(cell, bank, predictors, chosen.n_tasks, device))
    harness.progress("")
    harness.print_table("by shots and queries", summary(rows, names, "shots", "Q"))
    harness.print_table("by bank and shots", summary(rows, names, "bank", "shots"))
    harness.print_table("by shots and classes present", summary(rows, names, "shots", "K_eff"))
    for name in names[1:]:
        harness.print_table(f"{name}: worst cells", worst_cells(rows, chosen.base, name))
    harness.write_csv(chosen.output / "adaptive.csv", rows)


if __name__ == "__main__":
    main()
