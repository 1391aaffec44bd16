"""`PaddleClassifier` against scikit-learn's classifiers, including transductive ones.

Tasks of 20 candidate classes (digits: 10), from few present to all, with 1 to 20 labels per class
and batches of 10 to 5000 rows. "adaptive" is the plain method, without the estimator's additions
for many labels. `LogisticRegression(C=100)` and self-training with it use unit-norm rows, as do
label spreading and label propagation, except for digits, where these two use raw pixels as in
scikit-learn's own example. In every cell the better of the kernels "knn" and "rbf" counts, which
flatters them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelPropagation, LabelSpreading, SelfTrainingClassifier

from paddle_ext import FeatureBank, PaddleClassifier, methods
from paddle_ext.integrations.model_selection import BatchSplit

DIGITS = "digits"
OURS, LOGISTIC = "PaddleClassifier", "logistic regression"
ALL = ("PaddleClassifier", "adaptive", LOGISTIC, "self-training", "spreading", "propagation")
LARGE = 1000  # batch size from which self-training has two rounds, and one draw is enough


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)


def load(argument: str) -> tuple[str, np.ndarray, np.ndarray]:
    if argument == DIGITS:
        data = load_digits()
        return DIGITS, data.data.astype(np.float32), data.target
    bank = FeatureBank.load(argument)
    known = bank.labels >= 0
    return Path(argument).stem, bank.features[known].float().numpy(), bank.labels[known].numpy()


def tasks(
    X: np.ndarray,
    y: np.ndarray,
    shots: int,
    present: float,
    size: int,
    draws: int,
    candidates: int | None,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Labelled rows, their labels, a batch and its truth; of classes that are large enough."""
    able = np.flatnonzero(np.bincount(y) > shots)
    for seed in range(draws):
        random = np.random.default_rng(seed)
        classes = np.sort(random.permutation(able)[:candidates])
        there = present if present >= 1 else round(present * len(classes))
        rows = np.flatnonzero(np.isin(y, classes))
        split = BatchSplit(
            1, shots=shots, n_query=size, n_present=min(int(there), len(classes)), random_state=seed
        )
        known, batch = next(split.split(X[rows], y[rows]))
        yield X[rows[known]], y[rows[known]], X[rows[batch]], y[rows[batch]]


def answers(
    name: str, rows: tuple[np.ndarray, ...], size: int, only: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """The labels that each classifier predicts for the batch."""
    support, labels, batch, _ = rows
    X, y = np.concatenate([support, batch]), np.concatenate([labels, np.full(len(batch), -1)])
    n, graph_rows = len(support), X if name == DIGITS else unit(X)
    classes, places = np.unique(labels, return_inverse=True)
    logistic = LogisticRegression(C=100, max_iter=200)
    quick = LogisticRegression(C=100, max_iter=30 if size >= LARGE else 200)
    rounds = 2 if size >= LARGE else 5
    self_training = SelfTrainingClassifier(quick, threshold=0.9, max_iter=rounds)
    adaptive = methods.create("adaptive")
    found: dict[str, Callable[[], np.ndarray]] = {
        OURS: lambda: PaddleClassifier(device="cpu").fit(X, y).transduction_[n:],
        "adaptive": lambda: classes[adaptive.predict(support, places, batch).labels.numpy()],
        LOGISTIC: lambda: logistic.fit(unit(support), labels).predict(unit(batch)),
        "self-training": lambda: self_training.fit(unit(X), y).predict(unit(batch)),
    }
    rbf = {"kernel": "rbf", "gamma": 1e-3 if name == DIGITS else 20.0}
    graphs = (("spreading", LabelSpreading, 30), ("propagation", LabelPropagation, 100))
    for title, kind, rounds in graphs:
        for kernel in ({"kernel": "knn", "n_neighbors": 7}, rbf):
            model = kind(**kernel, max_iter=rounds)
            found[f"{title} {kernel['kernel']}"] = lambda model=model: model.fit(
                graph_rows, y
            ).transduction_[n:]
    return {title: predict() for title, predict in found.items() if title.startswith(only)}


def better_kernels(scores: dict[str, float]) -> dict[str, float]:
    """One number each for spreading and propagation: that of the better kernel."""
    merged: dict[str, float] = {}
    for title, score in scores.items():
        short = title.removesuffix(" knn").removesuffix(" rbf")
        merged[short] = max(score, merged.get(short, 0.0))
    return merged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("banks", nargs="+", help="feature banks, or digits")
    parser.add_argument("--shots", default="1,3,5,20")
    parser.add_argument(
        "--present", default="2,5,20", help="classes in a batch; below 1: a share of them"
    )
    parser.add_argument("--sizes", default="10,100,1000,5000")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--classes", default="20", help="candidates per task, or all")
    parser.add_argument("--only", default=",".join(ALL), help="names of classifiers")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", RuntimeWarning)  # rows that no kernel reaches
    shots, sizes = ([int(x) for x in text.split(",")] for text in (chosen.shots, chosen.sizes))
    grid = list(product(shots, [float(x) for x in chosen.present.split(",")], sizes))
    sums: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for name, X, y in map(load, chosen.banks):
        begin = time.process_time()
        for shots, present, size in grid:
            scores = cell(name, X, y, shots, present, size, chosen)
            if scores is None:
                continue
            best = better_kernels(scores)
            line = " | ".join(f"{title} {100 * best[title]:.1f}" for title in best)
            print(f"{name}, {shots} shots, {present:g} present, {size} rows: {line}", flush=True)
            keys = ((name, ""), ("shots", shots), ("present", f"{present:g}"), ("rows", size))
            for key in keys:
                sums[key[0], str(key[1])].append(best)
        print(f"{name}: {time.process_time() - begin:.0f} CPU seconds", flush=True)
    for key, cells in sums.items():
        means = {title: np.mean([one[title] for one in cells]) for title in cells[0]}
        wins = np.mean([one[OURS] >= max(one.values()) - 1e-9 for one in cells])
        row = " | ".join(f"{100 * mean:.1f}" for mean in means.values())
        print(f"| {key[0]} {key[1]} | {len(cells)} | {row} | {100 * wins:.0f} % |")


def cell(
    name: str,
    X: np.ndarray,
    y: np.ndarray,
    shots: int,
    present: float,
    size: int,
    chosen: argparse.Namespace,
) -> dict[str, float] | None:
    """Mean accuracies; None if the classes have fewer than half of the rows."""
    sums: dict[str, list[float]] = defaultdict(list)
    draws = 1 if size >= LARGE else chosen.draws
    candidates = None if chosen.classes == "all" else int(chosen.classes)
    for rows in tasks(X, y, shots, present, size, draws, candidates):
        if 2 * len(rows[2]) < size:
            return None
        for title, found in answers(name, rows, size, tuple(chosen.only.split(","))).items():
            sums[title].append(float(np.mean(found == rows[3])))
    return {title: float(np.mean(values)) for title, values in sums.items()}


if __name__ == "__main__":
    main()
