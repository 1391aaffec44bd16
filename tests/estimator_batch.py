"""A batch for the tests of the estimator, and what its methods find in it."""

from typing import Any

import numpy as np

import paddle_ext

CLASSES, SHOTS, DIMENSION = 12, 4, 16


def batch(dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels with -1, and the truth: 12 classes with 4 labels, 3 of them unlabelled too."""
    random = np.random.default_rng(7)
    centres = 2 + random.normal(size=(CLASSES, DIMENSION))
    truth = np.concatenate([np.arange(CLASSES).repeat(SHOTS), np.array([2, 5, 9]).repeat(15)])
    y = truth.copy()
    y[CLASSES * SHOTS :] = -1
    order = random.permutation(len(y))
    X = centres[truth] + 0.7 * random.normal(size=(len(y), DIMENSION))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(dtype)  # embeddings, not a table
    return X[order], y[order], truth[order]


def adapted(X: np.ndarray, y: np.ndarray, **options: Any) -> paddle_ext.Solution:
    """By `paddle_ext.adaptive`, of the rows with -1."""
    return paddle_ext.adaptive(X[y >= 0], y[y >= 0], X[y < 0], **options)
