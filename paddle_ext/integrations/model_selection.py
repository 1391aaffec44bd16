"""Evaluate batch classifiers with scikit-learn's `cross_val_score` and `GridSearchCV`.

`BatchSplit` fits on a few rows per class and scores a batch with some of the classes, which
`batch_accuracy` lets an estimator classify at once.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import check
from ..libraries import library
from .columns import Array
from .inputs import labelled

splits = library("sklearn.model_selection", "model_selection", "'paddle_ext[sklearn]'")
utils = library("sklearn.utils", "model_selection", "'paddle_ext[sklearn]'")

__all__ = ["BatchSplit", "batch_accuracy"]

RowIndices = npt.NDArray[np.int64]


class BatchSplit(splits.BaseShuffleSplit):  # type: ignore[misc, name-defined]
    """A splitter: a few labelled rows of every class, and a batch with some of the classes.

    Rows without a label (-1, None, NaN, "") are in neither part.

    Parameters
    ----------
    n_splits : int
        Number of splits.
    shots : int
        Labelled rows per class.
    n_query : int
        Rows of the batch, at most: fewer if its classes have fewer rows left.
    n_present : int or None
        Classes in the batch, drawn again for each split; None: all.
    random_state : int, RandomState or None
        As in scikit-learn; an int gives the same splits in every call.

    Examples
    --------
    >>> import numpy as np
    >>> from paddle_ext.integrations.model_selection import BatchSplit
    >>> y = np.arange(10).repeat(30)
    >>> split = BatchSplit(n_splits=2, shots=5, n_query=40, n_present=3)
    >>> for labelled, batch in split.split(np.zeros((300, 2)), y):
    ...     print(len(labelled), len(batch), len(set(y[batch])))
    50 40 3
    50 40 3
    """

    def __init__(
        self,
        n_splits: int = 10,
        *,
        shots: int = 5,
        n_query: int = 75,
        n_present: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.n_splits = check.integer("n_splits", n_splits)
        self.shots = check.integer("shots", shots)
        self.n_query = check.integer("n_query", n_query)
        self.n_present = None if n_present is None else check.integer("n_present", n_present)
        self.random_state = random_state

    def _iter_indices(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[RowIndices, RowIndices]]:
        if y is None:
            raise ValueError("y must be the labels, got None")
        own = rows_of_classes(np.asarray(y), self.shots)
        eligible = [k for k, rows in enumerate(own) if len(rows) > self.shots]
        present = len(own) if self.n_present is None else self.n_present
        if present > len(eligible):
            raise ValueError(
                f"n_present must be at most {len(eligible)}, the classes with more than "
                f"{self.shots} rows, got {present}"
            )
        random = utils.check_random_state(self.random_state)
        for _ in range(self.n_splits):
            shuffled = [random.permutation(rows) for rows in own]
            known = np.concatenate([rows[: self.shots] for rows in shuffled])
            chosen = random.permutation(eligible)[:present]
            rest = np.concatenate([shuffled[k][self.shots :] for k in chosen])
            yield known, random.permutation(rest)[: self.n_query]


def rows_of_classes(y: Array, shots: int) -> list[RowIndices]:
    """The indices of the rows of each class; every class must have at least `shots`."""
    has_label = labelled(y)
    y = y.astype(str) if y.dtype.kind == "O" else y
    classes = np.unique(y[has_label])
    if len(classes) < 2:
        raise ValueError(f"y must have labels of at least two classes, got {len(classes)}")
    rows = [np.flatnonzero(has_label & (y == label)) for label in classes]
    few, name = min((len(own), str(label)) for own, label in zip(rows, classes, strict=True))
    if few < shots:
        raise ValueError(
            f"shots must be at most the rows of every class, got {shots} for {name}, "
            f"which has {few}"
        )
    return rows


def batch_accuracy(estimator: Any, X: Any, y: Any) -> float:
    """A scorer: the share of correct labels when the rows are classified as one batch.

    For an estimator without `predict_batch`, such as `LogisticRegression`, it calls `predict`, for
    comparison; the earlier steps of a pipeline transform the rows.

    Parameters
    ----------
    estimator : estimator
        Fitted on labelled rows.
    X, y : array [n, D], array [n]

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import cross_val_score
    >>> from paddle_ext import PaddleClassifier
    >>> from paddle_ext.integrations.model_selection import BatchSplit, batch_accuracy
    >>> X, y = load_digits(return_X_y=True)
    >>> split = BatchSplit(n_splits=3, shots=5, n_query=100, n_present=3)
    >>> scores = cross_val_score(PaddleClassifier(), X, y, cv=split, scoring=batch_accuracy)
    >>> bool(scores.mean() > 0.8)
    True
    """
    while (steps := getattr(estimator, "steps", None)) is not None:
        X = estimator[:-1].transform(X) if len(steps) > 1 else X
        estimator = steps[-1][1]
    predict = getattr(estimator, "predict_batch", None) or estimator.predict
    y, found = utils.column_or_1d(y), np.asarray(predict(X))
    utils.check_consistent_length(y, found)
    return float(np.mean(found == y))
