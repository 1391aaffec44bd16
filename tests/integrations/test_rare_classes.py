"""Classes with very different numbers of labelled rows get the same care as equal ones."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from paddle_ext import BatchClassifier, PaddleClassifier

APART = 5.7  # distance of two centres, in standard deviations


def gaussians(
    labelled: list[int], batch: list[int], D: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Labelled rows of classes, so many of each, and a batch with its true labels."""
    random = np.random.default_rng(seed)
    K = len(labelled)
    centres = random.normal(size=(K, D)) * APART / np.sqrt(2 * D)
    if K == 2:
        centres[1] = centres[0] + APART * (away := centres[1] - centres[0]) / np.linalg.norm(away)
    y, truth = (random.permutation(np.repeat(np.arange(K), n)) for n in (labelled, batch))
    return (
        centres[y] + random.normal(size=(len(y), D)),
        y,
        centres[truth] + random.normal(size=(len(truth), D)),
        truth,
    )


def recalls(found: np.ndarray, truth: np.ndarray, rare: int) -> float:
    """The mean over the first classes, the rare ones."""
    return float(np.mean([np.mean(found[truth == k] == k) for k in range(rare)]))


@pytest.mark.parametrize(
    ("labelled", "batch", "rare", "D"),
    [
        pytest.param([5, 1000], [100, 900], 1, 2, id="two classes, two features"),
        pytest.param([5, 1000], [100, 900], 1, 32, id="two classes"),
        pytest.param(
            [3, 5, 9, 17, 29, 51, 90, 159, 282, 500],
            [20, 20, 20, 20, 20, 50, 50, 100, 100, 200],
            3,
            32,
            id="ten classes",
        ),
    ],
)
def test_rare_classes_are_found(labelled: list[int], batch: list[int], rare: int, D: int) -> None:
    """As many of their rows as by logistic regression, one by one and in a batch."""
    totals = np.zeros(4)
    for seed in range(4):
        X, y, rows, truth = gaussians(labelled, batch, D, seed)
        unlabelled = np.full(len(rows), -1)
        together = PaddleClassifier(device="cpu").fit(
            np.concatenate([X, rows]), np.concatenate([y, unlabelled])
        )
        answers = (
            LogisticRegression(C=100, max_iter=1000).fit(X, y).predict(rows),
            PaddleClassifier(device="cpu").fit(X, y).predict(rows),
            together.transduction_[len(X) :],
            BatchClassifier(X, y, device="cpu")(rows)["label"],
        )
        totals += [recalls(found, truth, rare) for found in answers]
    logistic, *ours = totals / 4
    assert min(ours) >= logistic
