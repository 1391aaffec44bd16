"""Somebody else's classifier: adapt its predictions to the classes that occur in the batch.

    python examples/adapt.py

Any classifier that gives probabilities will do, and neither it nor its training data are touched::

    log_p = np.log(model.predict_proba(batch))
    found = paddle_ext.adapt(log_p)
    print(found.labels, found.present())

Three kinds, each trained on all classes and used on a batch of three: a model of scikit-learn on
images; a network on a table, in the place of TabPFN, whose `predict_proba` is the same; and scores
of 200 birds between 0 and 1, each for itself, as BirdNET gives them, made up here.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

import paddle_ext
from paddle_ext.research import style

BATCH = 100
Case = tuple[np.ndarray, np.ndarray]  # log-probabilities [Q, K], the true classes [Q]


def split(
    X: np.ndarray, y: np.ndarray, shots: int, random: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Some rows of every class for training, and a batch of three classes."""
    rows = [random.permutation(np.flatnonzero(y == k)) for k in range(y.max() + 1)]
    known = np.concatenate([own[:shots] for own in rows])
    present = random.choice(len(rows), 3, replace=False)
    rest = np.concatenate([rows[k][shots:] for k in present])
    batch = random.choice(rest, BATCH, replace=False)
    return X[known], y[known], X[batch], y[batch]


def images(random: np.random.Generator) -> Case:
    X, y, batch, truth = split(*load_digits(return_X_y=True), 5, random)
    model = LogisticRegression(max_iter=1000).fit(X / 16, y)
    return model.predict_log_proba(batch / 16), truth


def table(random: np.random.Generator) -> Case:
    X, y = make_classification(
        3000, 20, n_informative=15, n_classes=15, n_clusters_per_class=1, class_sep=1.5,
        random_state=0,
    )  # fmt: skip
    X, y, batch, truth = split(X, y, 40, random)
    model = MLPClassifier((64,), alpha=1, max_iter=1000, tol=1e-3, random_state=0).fit(X, y)
    return np.log(model.predict_proba(batch)), truth


def birds(random: np.random.Generator) -> Case:
    truth = random.choice([17, 80, 122], BATCH)
    loud = random.normal(-5, 1.5, size=(BATCH, 200))
    loud[np.arange(BATCH), truth] += 4
    scores = 1 / (1 + np.exp(-loud))
    return np.log(scores) - np.log1p(-scores), truth  # log-odds, up to a constant per row


def main(arguments: list[str] | None = None) -> None:
    random = np.random.default_rng(0)
    cases = {
        "digits, logistic regression": images,
        "a table, network": table,
        "200 birds, scores": birds,
    }
    figure, axes = plt.subplots(figsize=(style.WIDTH, 2.8), layout="constrained")
    style.prepare(axes)
    style.name_rows(axes, [name.replace(", ", ",\n") for name in cases])
    for place, (name, case) in enumerate(cases.items()):
        log_p, truth = case(random)
        found = paddle_ext.adapt(log_p)
        before = 100 * np.mean(log_p.argmax(1) == truth)
        after = 100 * np.mean(found.labels.numpy() == truth)
        print(f"{name}: {before:.0f} % right, adapted {after:.0f} %")
        axes.plot([before, after], [place] * 2, color=style.GRID, lw=4, zorder=1)
        axes.plot(before, place, "o", color=style.PALE, ms=10)
        axes.plot(after, place, "*", color=style.colour("adaptive"), ms=16)
        if place == 0:
            ends = [style.Label(before, 0, "as it is", style.PALE)]
            ends.append(style.Label(after, 0, "adapted", style.colour("adaptive"), bold=True))
    axes.set_xlim(30, 105)
    style.label_tops(axes, ends)
    style.name_panel(axes, "", "accuracy (%)")
    style.head(figure, "The same classifier, adapted to its batch", "three classes in each batch")
    plt.show()


if __name__ == "__main__":
    main()
