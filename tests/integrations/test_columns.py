"""Tables: standardised columns where these serve better than unit-norm rows."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from paddle_ext import BatchClassifier
from paddle_ext.integrations.columns import Columns, columns_for

sklearn = pytest.importorskip("sklearn")

from sklearn.datasets import load_digits, load_wine  # noqa: E402

from paddle_ext import PaddleClassifier  # noqa: E402
from paddle_ext.app.classify import Settings, classify  # noqa: E402
from paddle_ext.integrations.model_selection import BatchSplit  # noqa: E402


def table(K: int, D: int, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each class around well-separated centres, in columns of very different scale."""
    random = np.random.default_rng(seed)
    truth = np.arange(K).repeat(rows)
    centres = 8.0 * np.arange(K)[:, None] if D == 1 else 5 * random.normal(size=(K, D))
    X = 20 + centres[truth] + random.normal(size=(len(truth), D))
    return X * np.logspace(-3, 3, D), truth


def hidden(truth: np.ndarray, rows: int, shots: int) -> np.ndarray:
    """The labels of the first rows of each class, -1 for the others."""
    return np.where(np.arange(len(truth)) % rows < shots, truth, -1)


def standardised(X: np.ndarray, y: np.ndarray) -> bool:
    known = y >= 0
    support, query = torch.from_numpy(X[known]), torch.from_numpy(X[~known])
    K = int(y.max()) + 1
    return columns_for(support, torch.from_numpy(y[known]), K, query).centre is not None


@pytest.mark.parametrize("shots", [1, 2, 5])
@pytest.mark.parametrize(("K", "D"), [(2, 1), (3, 1), (4, 6)])
def test_columns_of_any_scale(K: int, D: int, shots: int) -> None:
    X, truth = table(K, D, 40)
    y = hidden(truth, 40, shots)
    model = PaddleClassifier(device="cpu").fit(X, y)
    least = 0.85 if shots == 1 else 0.95
    assert (model.transduction_ == truth).mean() > least
    assert (model.predict(X) == truth).mean() > least
    assert (model.predict_batch(X[y < 0]) == truth[y < 0]).mean() > least
    means = np.stack([X[truth == k].mean(0) for k in range(K)])
    np.testing.assert_allclose(model.prototypes_, means, rtol=0.3)


def test_the_unit_of_a_column_does_not_matter() -> None:
    X, truth = table(4, 6, 30)
    y = hidden(truth, 30, 3)
    found = PaddleClassifier(device="cpu").fit(X, y)
    other = X * np.logspace(4, -4, 6) - 7.0
    again = PaddleClassifier(device="cpu").fit(other, y)
    np.testing.assert_allclose(
        again.label_distributions_, found.label_distributions_, atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(again.novelty(other), found.novelty(X), atol=1e-6, rtol=0)


def test_a_saved_table_classifies_alike() -> None:
    X, truth = table(3, 4, 30)
    y = hidden(truth, 30, 4)
    model = PaddleClassifier(device="cpu").fit(X, y)
    same = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(same.predict_proba(X), model.predict_proba(X))
    batches = BatchClassifier(X[y >= 0], y[y >= 0], device="cpu")
    loaded = pickle.loads(pickle.dumps(batches))
    assert (loaded(X)["label"] == truth).mean() > 0.95


def test_wine() -> None:
    """Unit-norm rows have 73 %: one of 13 columns hides the others."""
    X, truth = load_wine(return_X_y=True)
    right = []
    for known, batch in BatchSplit(5, shots=5, n_query=100).split(X, truth):
        y = np.full(len(truth), -1)
        y[known] = truth[known]
        rows = np.concatenate([known, batch])
        model = PaddleClassifier(device="cpu").fit(X[rows], y[rows])
        right.append(np.mean(model.transduction_[len(known) :] == truth[batch]))
    assert np.mean(right) > 0.93


def test_the_labels_decide() -> None:
    """The same spread of columns: either the direction of a row tells the classes, or not."""
    random = np.random.default_rng(0)
    y = np.concatenate([np.arange(4).repeat(20), np.full(40, -1)])
    angle = np.concatenate([np.arange(4).repeat(20), random.integers(0, 4, 40)]) * np.pi / 2
    length = np.exp(2 * random.normal(size=(120, 1)))
    rays = length * (np.stack([np.cos(angle), np.sin(angle)], 1) + 0.1)
    assert not standardised(rays * [1.0, 0.8], y)
    X, truth = table(4, 2, 30)
    assert standardised(X, hidden(truth, 30, 20))


@pytest.mark.parametrize("shots", [1, 2, 5, 20])
def test_pixels_and_embeddings_stay_as_they_are(shots: int) -> None:
    X, truth = load_digits(return_X_y=True)
    known, batch = next(BatchSplit(1, shots=shots, n_query=300).split(X, truth))
    y = np.full(len(truth), -1)
    y[known] = truth[known]
    rows = np.concatenate([known, batch])
    assert not standardised(X[rows], y[rows])
    few = table(3, 3, 30)[0]
    unit = few / np.linalg.norm(few, axis=1, keepdims=True)
    assert not standardised(unit, hidden(np.arange(3).repeat(30), 30, shots))


def test_paddle_warns_of_a_single_column() -> None:
    X, truth = table(2, 1, 20)
    for y in (truth, hidden(truth, 20, 3)):
        model = PaddleClassifier(method="paddle", device="cpu")
        with pytest.warns(UserWarning, match="differ in length alone"):
            model.fit(X, y)
        model.set_params(scaling="none").fit(X, y)  # a warning is an error here
        model.set_params(scaling="auto").fit(X - X.mean(), y)


def test_constant_columns_and_extreme_numbers() -> None:
    X, truth = table(3, 3, 20)
    y = hidden(truth, 20, 3)
    for factor in (1e-300, 1.0, 1e300):
        wide = np.concatenate([X * factor / 1e5, np.full((60, 2), 0.1)], axis=1)
        model = PaddleClassifier(device="cpu").fit(wide, y)
        assert (model.transduction_ == truth).mean() > 0.95
    same = columns_for(torch.full((4, 3), 2.0), torch.tensor([0, 0, 1, 1]), 2)
    assert same.centre is None
    rows = torch.tensor([[1.0, 2.0]])
    assert Columns().applied_to(rows) is rows


def test_classify_reads_tables(tmp_path: Path) -> None:
    X, truth = table(3, 5, 30)
    y = hidden(truth, 30, 4)
    lines = ["a,b,c,d,e,label,truth"]
    for row, label, own in zip(X, y, truth, strict=True):
        numbers = ",".join(f"{x:.9g}" for x in row)
        lines.append(f"{numbers},{'' if label < 0 else f'kind {label}'},kind {own}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    report = classify(path, None, tmp_path / "answers", Settings(device="cpu"))
    expected = [f"kind {k}" for k in truth[y < 0]]
    found = [report.answers.class_names[k] for k in report.answers.labels]
    assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) > 0.95
