"""`PaddleClassifier` on tables against scikit-learn's logistic regression and random forest.

A cell is a table and 5 or 20 labels of every class, the other rows are one batch. The tables are in
one .npz: `NAME/x` [rows, columns] with NaN for gaps, `NAME/y`, and `NAME/categorical`, the columns
that are categories. `PaddleClassifier` gets a DataFrame as it is; the others get standardised
columns with gaps filled, and a column for each category.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from paddle_ext import PaddleClassifier

NAMES = ("ours", "regression", "forest", "ours, balanced", "regression", "forest")


def frame(x: np.ndarray, categorical: np.ndarray) -> pd.DataFrame:
    """The table, its categories as text."""
    columns = {f"c{place}": pd.Series(column) for place, column in enumerate(x.T)}
    for place in categorical:
        cells = [None if np.isnan(cell) else f"{cell:g}" for cell in x[:, place]]
        columns[f"c{place}"] = pd.Series(cells, dtype="category")
    return pd.DataFrame(columns)


def draws(y: np.ndarray, shots: int, count: int) -> Iterator[np.ndarray]:
    """Which rows have a label: so many of each class, or all but one if there are fewer."""
    for seed in range(count):
        random, known = np.random.default_rng(seed), np.zeros(len(y), bool)
        for label in np.unique(y):
            own = random.permutation(np.flatnonzero(y == label))
            known[own[: min(shots, len(own) - 1)]] = True
        yield known


def peer(model: Any, columns: int, categorical: np.ndarray) -> Any:
    """A model with the preparation of a competent user."""
    numbers = np.setdiff1d(np.arange(columns), categorical)
    filled = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    one_hot = OneHotEncoder(handle_unknown="ignore")
    return make_pipeline(make_column_transformer((filled, numbers), (one_hot, categorical)), model)


def scores(x: np.ndarray, y: np.ndarray, categorical: np.ndarray, known: np.ndarray) -> list[float]:
    """Accuracies and balanced accuracies in per cent, in the order of `NAMES`."""
    given, batch, rows = np.where(known, y, -1), ~known, frame(x, categorical)
    ours = [
        PaddleClassifier(balanced=balanced, device="cpu").fit(rows, given).transduction_[batch]
        for balanced in (False, True)
    ]
    peers = [
        peer(model, x.shape[1], categorical).fit(x[known], y[known]).predict(x[batch])
        for model in (LogisticRegression(max_iter=1000), RandomForestClassifier(random_state=0))
    ]
    right = [np.mean(labels == y[batch]) for labels in (ours[0], *peers)]
    balanced = [balanced_accuracy_score(y[batch], labels) for labels in (ours[1], *peers)]
    return [100 * float(score) for score in (*right, *balanced)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", help="the .npz file")
    parser.add_argument("--draws", type=int, default=10)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with np.load(chosen.tables) as file:
        tables = {name: file[name] for name in file.files}
    names = sorted({name.partition("/")[0] for name in tables})
    print(f"| labels | table | {' | '.join(NAMES)} |\n{'|---' * (len(NAMES) + 2)}|")
    for shots in (5, 20):
        means = []
        for name in names:
            x, y, categorical = (tables[f"{name}/{part}"] for part in ("x", "y", "categorical"))
            found = [scores(x, y, categorical, known) for known in draws(y, shots, chosen.draws)]
            means.append(np.mean(found, 0))
            print(row(shots, name, means[-1]), flush=True)
        print(row(shots, "mean", np.mean(means, 0)))


def row(shots: int, name: str, values: np.ndarray) -> str:
    return f"| {shots} | {name} | {' | '.join(f'{value:.1f}' for value in values)} |"


if __name__ == "__main__":
    main()
