"""What few labels allow: calibrated probabilities, and strangers at a rate.

A draw is 2 to 20 labels of each of 2 to 20 classes, and a batch of at most 300 rows of them. With
four classes or more, another fourth of them has no label: their rows are strangers. For draws with
so many labelled rows: the calibration error of `PaddleClassifier` (10 bins), its mean and what 90 %
of the draws are below; rows of known classes with a novelty over 0.95, which should be 5 %, and in
how many draws they are over 15 %; and strangers over 0.95.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
import torch
from sklearn_peers import Data, load

from paddle_ext import PaddleClassifier

SHOTS, CLASSES, BATCH = (2, 3, 5, 10, 20), (2, 3, 5, 10, 20), 300
LABELLED = (4, 10, 20, 40, 80, 401)


def loaded(argument: str) -> Iterator[Data]:
    """A data set of `sklearn_peers`, or all tables of a file, NAME/x and NAME/y, gaps filled."""
    file = np.load(argument) if argument.endswith(".npz") else {}
    names = [key.removesuffix("/x") for key in file if key.endswith("/x")]
    for name in names:
        X = file[f"{name}/x"].astype(np.float32)
        X = np.where(np.isnan(X), np.nanmean(X, 0), X)
        yield Data(name, X, file[f"{name}/y"].astype(np.int64), None, 1.0)
    if not names:
        yield load(argument)


def draws(data: Data, number: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Numbers of labelled rows, of rows of the same classes, and of strangers."""
    for seed in range(number):
        random = np.random.default_rng(seed)
        shots, most = random.choice(SHOTS), random.choice(CLASSES)
        able = random.permutation(np.flatnonzero(np.bincount(data.y) > shots + 5))
        known = able[: min(most, len(able) - len(able) // 4 if len(able) > 3 else most)]
        if len(known) < 2:
            continue
        rows = [random.permutation(np.flatnonzero(data.y == k)) for k in known]
        others = np.setdiff1d(able, known)[: max(1, len(known) // 3)]
        strange = np.flatnonzero(np.isin(data.y, others)) if len(able) > 3 else np.array([], int)
        batch = random.permutation(np.concatenate([own[shots:] for own in rows]))[:BATCH]
        yield np.concatenate([own[:shots] for own in rows]), batch, strange[:BATCH]


def calibration_error(sure: np.ndarray, right: np.ndarray) -> float:
    bins = np.minimum((10 * sure).astype(int), 9)
    off = [abs((sure - right)[bins == k].sum()) for k in range(10)]
    return float(np.sum(off) / len(sure))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "data", nargs="+", help="banks, digits, wine, 'breast cancer', files of tables"
    )
    parser.add_argument("--draws", type=int, default=40)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for data in chain.from_iterable(map(loaded, chosen.data)):
        for labelled, batch, strange in draws(data, chosen.draws):
            rows = np.concatenate([labelled, batch])
            given = np.where(np.arange(len(rows)) < len(labelled), data.y[rows], -1)
            model = PaddleClassifier(device="cpu").fit(data.X[rows], given)
            new = given == -1
            sure = model.label_distributions_[new].max(1)
            error = calibration_error(sure, model.transduction_[new] == data.y[batch])
            shares = [
                float(np.mean(model.novelty(data.X[part]) > 0.95)) if len(part) else np.nan
                for part in (batch, strange)
            ]
            found[len(labelled)].append((error, shares[0], shares[1]))
    print("| labelled rows | draws | error | 90 % | known over 0.95 | over 15 % | strangers |")
    print("|---|---|---|---|---|---|---|")
    for low, high in pairwise(LABELLED):
        every = [one for rows, own in found.items() if low <= rows < high for one in own]
        error, known, strangers = 100 * np.array(every).T
        cells = [error.mean(), np.quantile(error, 0.9), known.mean(), 100 * np.mean(known > 15)]
        shown = " | ".join(f"{x:.1f}" for x in (*cells, np.nanmean(strangers)))
        print(f"| {low} to {high - 1} | {len(every)} | {shown} |")


if __name__ == "__main__":
    main()
