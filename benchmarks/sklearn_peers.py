"""`PaddleClassifier` against scikit-learn's classifiers, including transductive ones.

A cell is a data set, 1, 5 or 20 labels of each of up to 20 candidate classes, and a batch of at
most 300 rows of few (a fifth), half or all of them. Data sets are feature banks and scikit-learn's
digits, wine and breast cancer. `PaddleClassifier` gets all rows as they are. The others get what a
competent user would give them, fixed for each data set: unit-norm rows of banks, pixels of digits,
standardised columns of the other two.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from paddle_ext import FeatureBank, PaddleClassifier
from paddle_ext.integrations.model_selection import BatchSplit

OURS = "PaddleClassifier"
PRESENT = ("few", "half", "all")
TRANSDUCTIVE = "sklearn.semi_supervised"  # these are fitted with the batch


class Data(NamedTuple):
    """Rows with labels, how peers see the rows, and the width of their kernel."""

    name: str
    X: np.ndarray
    y: np.ndarray
    scaler: Any
    gamma: float


def load(argument: str) -> Data:
    tables = {"wine": load_wine, "breast cancer": load_breast_cancer}
    if argument == "digits":
        return Data(argument, *load_digits(return_X_y=True), None, 1e-3)
    if argument in tables:
        X, y = tables[argument](return_X_y=True)
        return Data(argument, X, y, StandardScaler(), 1 / X.shape[1])
    bank = FeatureBank.load(argument)
    known = bank.labels >= 0
    X, y = bank.features[known].float().numpy(), bank.labels[known].numpy()
    return Data(Path(argument).stem, X, y, Normalizer(), 20.0)


def peers(shots: int, gamma: float) -> dict[str, Any]:
    logistic = LogisticRegression(C=100, max_iter=200)
    shrunk = LinearDiscriminantAnalysis(shrinkage="auto", solver="lsqr")
    return {
        "logistic": logistic,
        "LDA": shrunk if shots > 1 else NearestCentroid(),  # no scatter to learn from
        "spreading knn": LabelSpreading(kernel="knn", n_neighbors=7),
        "spreading rbf": LabelSpreading(kernel="rbf", gamma=gamma),
        "self-training": SelfTrainingClassifier(logistic, threshold=0.9, max_iter=5),
        "neighbours": KNeighborsClassifier(n_neighbors=min(shots, 5)),
    }


def how_many(present: str, classes: int) -> int:
    return {"few": max(1, classes // 5), "half": (classes + 1) // 2, "all": classes}[present]


def tasks(
    data: Data, shots: int, present: str, draws: int, most: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows, labels with -1 for the batch, and the true labels."""
    able = np.flatnonzero(np.bincount(data.y) > shots)
    for seed in range(draws):
        classes = np.random.default_rng(seed).permutation(able)[:most]
        rows = np.flatnonzero(np.isin(data.y, classes))
        n_present = how_many(present, len(classes))
        split = BatchSplit(1, shots=shots, n_query=300, n_present=n_present, random_state=seed)
        known, batch = next(split.split(rows, data.y[rows]))
        chosen = rows[np.concatenate([known, batch])]
        given = data.y[chosen].copy()
        given[len(known) :] = -1
        yield data.X[chosen], given, data.y[chosen]


def accuracies(
    data: Data, shots: int, X: np.ndarray, given: np.ndarray, y: np.ndarray, *, alone: bool = False
) -> dict[str, float]:
    """The share of correct labels in the batch in per cent, of each classifier."""
    batch = given == -1
    found = {OURS: PaddleClassifier(device="cpu").fit(X, given).transduction_[batch]}
    rows = X if data.scaler is None else data.scaler.fit_transform(X)
    for name, model in ({} if alone else peers(shots, data.gamma)).items():
        known = slice(None) if type(model).__module__.startswith(TRANSDUCTIVE) else ~batch
        model.fit(rows[known], given[known])
        spreads = isinstance(model, LabelSpreading)
        found[name] = model.transduction_[batch] if spreads else model.predict(rows[batch])
    return {name: 100 * float(np.mean(labels == y[batch])) for name, labels in found.items()}


def lead(cell: dict[str, float]) -> float:
    """Of ours over the best of the others."""
    return cell[OURS] - max(value for name, value in cell.items() if name != OURS)


def row(title: str, cells: list[dict[str, float]]) -> str:
    """A line of the table: means, the worst cell and the share of cells where ours is best."""
    means = [f"{np.mean([cell[name] for cell in cells]):.1f}" for name in cells[0]]
    leads = np.array([lead(cell) for cell in cells])
    last = f"{leads.mean():+.1f} | {leads.min():+.1f} | {np.mean(leads >= 0):.0%}"
    return f"| {title} | {len(cells)} | {' | '.join(means)} | {last} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+", help="feature banks, digits, wine, 'breast cancer'")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--classes", type=int, default=20, help="candidates of a task, at most")
    parser.add_argument("--alone", action="store_true", help="only PaddleClassifier, in seconds")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", RuntimeWarning)  # rows that no kernel reaches
    cells: dict[tuple[str, int, str], dict[str, float]] = {}
    for data in map(load, chosen.data):
        for shots, present in product((1, 5, 20), PRESENT):
            found = [
                accuracies(data, shots, *task, alone=chosen.alone)
                for task in tasks(data, shots, present, chosen.draws, chosen.classes)
            ]
            means = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
            cells[data.name, shots, present] = means
    if chosen.alone:
        for place in range(3):
            for group in dict.fromkeys(key[place] for key in cells):
                own = [cell[OURS] for key, cell in cells.items() if key[place] == group]
                print(f"| {group} | {np.mean(own):.1f} |")
        print(f"| all | {np.mean([cell[OURS] for cell in cells.values()]):.1f} |")
        return
    names = list(next(iter(cells.values())))
    print(f"| | cells | {' | '.join(names)} | over the best | worst cell | best |")
    print("|---" * (len(names) + 5) + "|")
    for place, groups in enumerate(
        ([*dict.fromkeys(key[0] for key in cells)], (1, 5, 20), PRESENT)
    ):
        for group in groups:
            title = f"{group} labels" if place == 1 else f"{group} present" if place else str(group)
            print(row(title, [cell for key, cell in cells.items() if key[place] == group]))
    print(row("all", list(cells.values())))
    for key in sorted(cells, key=lambda key: lead(cells[key]))[:10]:
        name = max((name for name in names if name != OURS), key=cells[key].__getitem__)
        what = f"{key[0]}, {key[1]} labels, {key[2]} present"
        print(f"| {what} | {cells[key][OURS]:.1f} | {cells[key][name]:.1f} {name} |")


if __name__ == "__main__":
    main()
