"""Accuracy with wrong labels: trusted, weighed, filtered by cleanlab, or removed by an oracle.

    python benchmarks/wrong_labels.py pets.npz dtd.npz --shots 5,10 --wrong 0,0.2,0.4

Each row that gets a wrong label gets that of another class, uniformly; the same number in every
class. cleanlab (`pip install cleanlab`, optional) judges rows by logistic regression on unit-norm
features, in five folds or as many as the smallest class has rows, and `adaptive` trusts the rest.
The regularisation is the one under which left-out folds have their given labels most probably.
The share of the oracle's gain has a standard error over tasks.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import paddle_ext

FEW = 5
QUERIES = {"few": 75, "all": 300}
INVERSE_REGULARISATIONS = (1.0, 10.0, 100.0, 1000.0)  # to choose from, for cleanlab's model
METHODS = ("trusted", "weighed", "cleanlab", "oracle")


def draw(
    features: Tensor,
    labels: Tensor,
    most_classes: int,
    shots: int,
    wrong: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Labelled rows, their given labels, which are wrong, and queries by the classes present."""
    counts = labels.bincount()
    classes = (counts >= shots + 3).nonzero().flatten()
    classes = classes[torch.randperm(len(classes), generator=generator)][:most_classes]
    K, changed = len(classes), round(wrong * shots)
    rows, given, rest, truth = [], [], [], []
    for k, name in enumerate(classes):
        own = (labels == name).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        other = torch.randint(1, K, (changed,), generator=generator)
        rows.append(own[:shots])
        given.append(torch.cat([(k + other) % K, torch.full((shots - changed,), k)]))
        rest.append(own[shots:])
        truth.append(torch.full((len(own) - shots,), k))
    is_wrong = torch.arange(shots).repeat(K) < changed
    queries = {}
    for name, count in QUERIES.items():
        present = torch.randperm(K, generator=generator)[: min(FEW, K // 2) if name == "few" else K]
        pool, target = (torch.cat([x[k] for k in present.tolist()]) for x in (rest, truth))
        chosen = torch.randperm(len(pool), generator=generator)[:count]
        queries[name] = features[pool[chosen]], target[chosen]
    return features[torch.cat(rows)], torch.cat(given), is_wrong, queries


def cleaned(support: Tensor, labels: Tensor) -> Tensor:
    """Which rows cleanlab keeps; all of a class that would lose every row."""
    from cleanlab.filter import find_label_issues
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import cross_val_predict

    x = torch.nn.functional.normalize(support, dim=-1).numpy()
    folds = min(5, int(labels.bincount().min()))
    if folds < 2:
        return torch.ones(len(labels), dtype=torch.bool)
    given = labels.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judged = [
            cross_val_predict(
                LogisticRegression(C=C, max_iter=200), x, given, cv=folds, method="predict_proba"
            )
            for C in INVERSE_REGULARISATIONS
        ]
        best = min(judged, key=lambda p: log_loss(given, p))
        keep = torch.from_numpy(~find_label_issues(given, best, n_jobs=1))
    lost = labels.bincount(keep.double()) == 0
    return keep | lost[labels]


def accuracies(
    features: Tensor,
    labels: Tensor,
    most_classes: int,
    shots: int,
    wrong: float,
    seed: int,
    methods: list[str],
) -> dict[tuple[str, str], float] | None:
    """In per cent, by the classes present and the method; None if a class has no label left."""
    generator = torch.Generator().manual_seed(seed)
    support, given, is_wrong, queries = draw(
        features, labels, most_classes, shots, wrong, generator
    )
    K = len(support) // shots
    if int(given.bincount(minlength=K).min()) == 0:
        return None
    every = torch.ones_like(is_wrong)
    kept = {"trusted": every, "weighed": every, "oracle": ~is_wrong}
    if "cleanlab" in methods:
        kept["cleanlab"] = cleaned(support, given)
    found = {}
    for name, (query, target) in queries.items():
        for method in methods:
            noise: float | str = "auto" if method == "weighed" else 0.0
            rows = kept[method]
            solution = paddle_ext.adaptive(
                support[rows], given[rows], query, num_classes=K, label_noise=noise
            )
            found[name, method] = 100 * float((solution.labels == target).double().mean())
    return found


def share_of_gain(tasks: list[list[dict[str, float]]]) -> str:
    """How much of the oracle's gain weighing reaches, from the tasks of each bank."""
    gains = [
        np.array([[one["weighed"], one["oracle"]] for one in bank])
        - np.array([[one["trusted"]] for one in bank])
        for bank in tasks
    ]
    weighed, oracle = np.mean([gain.mean(0) for gain in gains], 0)
    if oracle <= 0:
        return f"; {weighed:+.2f}"
    share = weighed / oracle
    rest = [(gain @ [1, -share]).var(ddof=1) / len(gain) for gain in gains]
    return f"; {share:.2f} ± {np.sum(rest) ** 0.5 / len(gains) / oracle:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("banks", nargs="+", type=Path)
    parser.add_argument("--classes", type=int, default=60, help="at most; default: 60")
    parser.add_argument("--shots", default="5,10")
    parser.add_argument("--wrong", default="0,0.2,0.4")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--n-tasks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    methods = options.methods.split(",")
    if "cleanlab" in methods and importlib.util.find_spec("cleanlab") is None:
        parser.error("cleanlab is not installed: omit it from --methods")
    banks = []
    for path in options.banks:
        with np.load(path) as data:
            features = torch.from_numpy(data["features"].astype(np.float32))
            labels = torch.from_numpy(data["labels"].astype(np.int64))
        banks.append((features[labels >= 0], labels[labels >= 0]))
    print(
        "shots, wrong, present: "
        + " / ".join(methods)
        + "; share of the oracle's gain, or the gain"
    )
    for shots in map(int, options.shots.split(",")):
        for wrong in map(float, options.wrong.split(",")):
            drawn = [
                [
                    accuracies(*bank, options.classes, shots, wrong, options.seed + i, methods)
                    for i in range(options.n_tasks)
                ]
                for bank in banks
            ]
            for name in QUERIES:
                tasks = [
                    [{m: one[name, m] for m in methods} for one in bank if one is not None]
                    for bank in drawn
                ]
                mean = [np.mean([np.mean([one[m] for one in x]) for x in tasks]) for m in methods]
                shown = " / ".join(f"{value:.1f}" for value in mean)
                print(f"{shots}, {wrong:g}, {name}: {shown}{share_of_gain(tasks)}", flush=True)


if __name__ == "__main__":
    main()
