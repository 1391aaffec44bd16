"""Batches for scikit-learn's model selection."""

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from paddle_ext import PaddleClassifier
from paddle_ext.integrations.model_selection import BatchSplit, batch_accuracy

K, D = 10, 16


def test_labels_in_a_column() -> None:
    X, y = data()
    model = PaddleClassifier().fit(X[::4], y[::4])
    assert batch_accuracy(model, X, y[:, None]) == batch_accuracy(model, X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        batch_accuracy(model, X, y[:1])


def data(noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = np.arange(K).repeat(40)
    return random.normal(size=(K, D))[y] + noise * random.normal(size=(len(y), D)), y


# --- the splitter ---------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [False, True])
def test_splits(names: bool) -> None:
    X, y = data()
    labels = np.array([f"kind {k}" for k in y], dtype=object) if names else y
    split = BatchSplit(n_splits=4, shots=3, n_query=50, n_present=2)
    splits = list(split.split(X, labels))
    assert len(splits) == split.get_n_splits() == 4
    for known, batch in splits:
        assert (np.bincount(y[known], minlength=K) == 3).all()
        assert len(batch) == 50
        assert len(np.unique(y[batch])) == 2
        assert not set(known) & set(batch)
    assert len({tuple(np.unique(y[batch])) for _, batch in splits}) > 1
    again = list(split.split(X, labels))
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(splits, again, strict=True))


def test_rows_without_a_label_are_left_out() -> None:
    X, y = data()
    y = y.copy()
    y[::2] = -1
    for known, batch in BatchSplit(2, shots=5, n_query=9999).split(X, y):
        assert (y[known] >= 0).all()
        assert len(batch) == K * 15
    assert "n_query=75" in repr(BatchSplit(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shots": 41}, "shots must be at most the rows of every class, got 41 for 0, which has 4"),
        ({"shots": 40}, "n_present must be at most 0, the classes with more than 40 rows, got 10"),
        ({"n_present": 11}, "n_present must be at most 10"),
    ],
)
def test_what_cannot_be_split(options: dict[str, Any], message: str) -> None:
    X, y = data()
    with pytest.raises(ValueError, match=message):
        next(BatchSplit(**options).split(X, y))
    with pytest.raises(ValueError, match="y must be the labels, got None"):
        next(BatchSplit().split(X))
    with pytest.raises(ValueError, match="shots must be"):
        BatchSplit(shots=0)


# --- a new batch ----------------------------------------------------------------------------------


def test_a_new_batch_is_what_a_new_fit_says() -> None:
    X, y = data()
    options: dict[str, Any] = {"rows": "embeddings"}
    known, batch = next(BatchSplit(shots=4, n_query=60, n_present=3).split(X, y))
    model = PaddleClassifier(**options).fit(X[known], y[known])
    labels = np.concatenate([y[known], np.full(len(batch), -1)])
    again = PaddleClassifier(**options).fit(X[np.concatenate([known, batch])], labels)
    found = model.predict_batch(X[batch])
    assert np.array_equal(found, again.transduction_[len(known) :])
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_batch(X[batch]), found)
    # What was found in another batch plays no part.
    other = PaddleClassifier(**options).fit(
        np.concatenate([X[known], X[:30]]), np.concatenate([y[known], np.full(30, -1)])
    )
    assert np.array_equal(other.predict_batch(X[batch]), found)


# --- the scorer -----------------------------------------------------------------------------------


def test_the_batch_counts() -> None:
    """With few classes present, a batch is classified better than its rows one by one."""
    X, y = data(1.5)
    split = BatchSplit(n_splits=6, shots=3, n_query=80, n_present=2)
    together = cross_val_score(PaddleClassifier(), X, y, cv=split, scoring=batch_accuracy)
    alone = cross_val_score(PaddleClassifier(), X, y, cv=split)
    assert together.mean() > alone.mean() + 0.05


def test_others_are_scored_as_they_are() -> None:
    X, y = data()
    split = BatchSplit(n_splits=2, shots=5)
    usual = cross_val_score(LogisticRegression(), X, y, cv=split)
    found = cross_val_score(LogisticRegression(), X, y, cv=split, scoring=batch_accuracy)
    np.testing.assert_allclose(found, usual)


def test_a_pipeline_and_a_grid() -> None:
    X, y = data(2.0)
    X[:, 0] *= 1000  # a column that decides alone among embeddings
    pipeline = make_pipeline(StandardScaler(), PaddleClassifier())
    grid = {"paddleclassifier__rows": ["embeddings", "table"], "standardscaler": ["passthrough"]}
    split = BatchSplit(n_splits=3, shots=4, n_query=60, n_present=10)
    search = GridSearchCV(pipeline, grid, cv=split, scoring=batch_accuracy).fit(X, y)
    assert search.best_params_["paddleclassifier__rows"] == "table"
    assert search.cv_results_["split2_test_score"].shape == (2,)
    nested = make_pipeline(StandardScaler(), make_pipeline(PaddleClassifier())).fit(X, y)
    assert batch_accuracy(nested, X[:60], y[:60]) == batch_accuracy(
        pipeline.fit(X, y), X[:60], y[:60]
    )
