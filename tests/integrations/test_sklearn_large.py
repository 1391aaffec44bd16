"""The classifier on batches beyond the limits: as `paddle_ext.adaptive`, with sparse results."""

import numpy as np
import pytest
import torch
from scipy import sparse

import paddle_ext
from paddle_ext import solution
from paddle_ext.adaptive_rule import batch
from paddle_ext.large import passes

pytest.importorskip("sklearn", reason="needs scikit-learn")

K, D, Q = 12, 16, 300


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solution, "MOST_PROBABILITIES", Q * K - 1)
    for module in (batch, passes):
        monkeypatch.setattr(module, "MOST_IN_ONE_BLOCK", Q)


def task(shots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labelled rows, their classes, and queries of half of the classes, which overlap."""
    random = np.random.default_rng(shots)
    centres = random.normal(size=(K, D))
    labels = np.arange(K).repeat(shots)
    support, query = (
        (centres[y] + random.normal(size=(len(y), D))).astype(np.float32)
        for y in (labels, random.integers(0, K // 2, Q))
    )
    return support, labels, query


def within_the_limits(X: np.ndarray, y: np.ndarray) -> paddle_ext.PaddleClassifier:
    with pytest.MonkeyPatch.context() as patched:
        for module in (batch, passes):
            patched.setattr(module, "MOST_IN_ONE_BLOCK", 2**22)
        patched.setattr(solution, "MOST_PROBABILITIES", 2**28)
        return paddle_ext.PaddleClassifier(rows="embeddings", device="cpu").fit(X, y)


@pytest.mark.parametrize("shots", [1, 2, 5])
def test_a_batch_beyond_the_limits(shots: int) -> None:
    support, labels, query = task(shots)
    X, y = np.concatenate([support, query]), np.concatenate([labels, np.full(Q, -1)])
    model = paddle_ext.PaddleClassifier(rows="embeddings", device="cpu").fit(X, y)
    want = paddle_ext.adaptive(*(torch.from_numpy(x) for x in (support, labels, query)))
    assert want.classes.shape == (Q, 5)
    assert np.array_equal(model.transduction_[len(labels) :], want.labels.numpy())

    found = model.label_distributions_
    assert isinstance(found, sparse.csr_array)
    assert found.shape == (len(X), K)
    rows = found.toarray()
    assert np.array_equal(rows[: len(labels)], np.eye(K)[labels])
    whole = np.zeros((Q, K))
    np.put_along_axis(whole, want.classes.numpy(), want.probabilities.numpy(), 1)
    assert np.abs(rows[len(labels) :] - whole).max() < 1e-5
    assert found[len(labels) :].nnz == np.count_nonzero(whole)

    assert model.prototypes_.shape == (K, D)
    assert np.isfinite(model.prototypes_).all()
    assert (model.predict(query) == within_the_limits(X, y).predict(query)).mean() > 0.99
    assert np.array_equal(model.predict_batch(query), model.transduction_[len(labels) :])


@pytest.mark.parametrize("unlabelled", [0, 20])
def test_many_labelled_rows(unlabelled: int) -> None:
    """They count towards the limit too, as with thousands of classes of one row each."""
    support, labels, query = task(30)
    X = np.concatenate([support, query[:unlabelled]])
    y = np.concatenate([labels, np.full(unlabelled, -1)])
    found = (
        paddle_ext.PaddleClassifier(rows="embeddings", device="cpu").fit(X, y).label_distributions_
    )
    assert isinstance(found, sparse.csr_array)
    assert found.nnz == len(labels) + 5 * unlabelled
    whole = within_the_limits(X, y).label_distributions_
    assert isinstance(whole, np.ndarray)
    whole[whole < np.sort(whole, 1)[:, -5:-4]] = 0
    assert np.abs(found.toarray() - whole).max() < 1e-5
