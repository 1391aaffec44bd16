"""Which rows to label next, by the estimator."""

import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="needs scikit-learn")

import sklearn
from estimator_batch import batch

from paddle_ext import PaddleClassifier, presence


@pytest.mark.parametrize("method", ["adaptive", "paddle"])
def test_rows_of_fit(method: str) -> None:
    """The function, with indices into X."""
    X, y, _ = batch()
    model = PaddleClassifier(method=method, device="cpu").fit(X, y)
    found = model.suggest(10)
    new = np.flatnonzero(y < 0)
    support, query = torch.from_numpy(X[y >= 0]), torch.from_numpy(X[new])
    want = presence.suggest(support, query, 10).queries
    np.testing.assert_array_equal(found, new[want.numpy()])
    assert sorted(model.suggest(10_000)) == new.tolist()


def test_a_table_is_standardised() -> None:
    """Without it the column of large numbers would decide alone."""
    random = np.random.default_rng(0)
    truth = np.arange(4).repeat(20)
    X = np.stack([truth % 2 + 0.1 * random.normal(size=80), truth // 2 + 0.0, np.zeros(80)], 1)
    X[:, 2] = 1000 * random.normal(size=80)
    y = np.where(np.arange(80) % 20 < 4, truth, -1)
    model = PaddleClassifier(device="cpu").fit(X, y)
    there = presence.suggest(torch.from_numpy(X[y >= 0]), torch.from_numpy(X[y < 0]), 5)
    assert model.suggest(5).tolist() != np.flatnonzero(y < 0)[there.queries.numpy()].tolist()


def test_names_alone_and_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    X, _, truth = batch()
    names = np.stack([X[truth == k].mean(0) for k in range(12)])
    frame = pandas.DataFrame(X, columns=[f"f{d}" for d in range(X.shape[1])])
    model = PaddleClassifier(device="cpu").fit(frame, None, prototypes=names)
    assert len(set(model.suggest(8).tolist())) == 8


def test_errors_and_nothing_to_suggest() -> None:
    X, y, truth = batch()
    model = PaddleClassifier(device="cpu")
    with pytest.raises(sklearn.exceptions.NotFittedError):
        model.suggest(3)
    with pytest.raises(ValueError, match="count must be an integer in"):
        model.fit(X, y).suggest(0)
    with pytest.raises(ValueError, match="before a model is pickled, got a loaded one"):
        pickle.loads(pickle.dumps(model)).suggest(3)
    assert model.fit(X, truth).suggest(3).tolist() == []
