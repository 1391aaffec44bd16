"""The scikit-learn estimator with class names: its results, and invalid arguments."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from paddle_ext import PaddleClassifier, methods

CLASSES, DIMENSION = 8, 24
NAMES = np.array(["oak", "elm", "ash", "fir", "yew", "box", "bay", "fig"])


def batch(dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of three classes, their classes, and plausible prototypes of their names."""
    random = np.random.default_rng(3)
    text = random.normal(size=(CLASSES, DIMENSION))
    centres = 0.4 * text + 0.4 * random.normal(size=text.shape) + 1
    truth = np.array([1, 4, 6]).repeat(20)
    random.shuffle(truth)
    X = centres[truth] + 0.25 * random.normal(size=(len(truth), DIMENSION))
    return X.astype(dtype), truth, (text + 3).astype(dtype)


def labels_of_some(truth: np.ndarray, count: int) -> np.ndarray:
    """The first `count` rows with their names, the others without."""
    y = NAMES[truth].astype(object)
    y[count:] = None
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 5, 40])
def test_fit_is_the_method(dtype: type, count: int) -> None:
    """The same as `predict` of the method, with classes sorted by their names."""
    X, truth, text = batch(dtype)
    y = labels_of_some(truth, count)
    model = PaddleClassifier(logit_scale=20.0).fit(X, y, prototypes=text, classes=NAMES)
    order = np.argsort(NAMES)
    places = np.argsort(order)[truth]
    expected = methods.create("adaptive", logit_scale=20.0).predict(
        torch.from_numpy(X[:count]),
        torch.from_numpy(places[:count]),
        torch.from_numpy(X[count:]),
        prototypes=torch.from_numpy(text[order]),
    )
    assert model.classes_.tolist() == sorted(NAMES)
    assert model.label_distributions_.dtype == dtype
    np.testing.assert_allclose(
        model.label_distributions_[count:], expected.probabilities.numpy(), atol=1e-5
    )
    assert (model.transduction_ == NAMES[truth]).mean() > 0.95
    assert model.present_classes_.tolist() == sorted(NAMES[[1, 4, 6]])
    assert np.isfinite(model.prototypes_).all()
    assert model.doubt_.shape == (len(X),)
    assert (model.doubt_[:count] == 0).all()


@pytest.mark.parametrize("count", [0, 5, 40])
def test_predict(count: int) -> None:
    """A single row gets the same label as in its batch."""
    X, truth, text = batch()
    y = labels_of_some(truth, count)
    model = PaddleClassifier().fit(X[:50], y[:50], prototypes=text, classes=NAMES)
    found = model.predict_proba(X)
    assert found.shape == (len(X), CLASSES)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
    assert (model.predict(X) == NAMES[truth]).mean() > 0.95
    same = np.abs(found[count:50] - model.label_distributions_[count:])
    assert same.mean() < 0.02
    one = np.concatenate([model.predict_proba(row[None]) for row in X[50:]])
    np.testing.assert_allclose(one, found[50:], atol=1e-6)


@pytest.mark.parametrize("shots", [1, 3])
def test_all_labelled(shots: int) -> None:
    """Classes without a labelled row remain possible."""
    random = np.random.default_rng(0)
    X, truth, text = batch()
    rows = np.concatenate([np.flatnonzero(truth == k)[:shots] for k in (1, 4)])
    model = PaddleClassifier().fit(X[rows], NAMES[truth[rows]], prototypes=text, classes=NAMES)
    assert model.transduction_.tolist() == NAMES[truth[rows]].tolist()
    assert model.present_classes_.tolist() == sorted(NAMES[[1, 4]])
    assert model.class_proportions_.sum() == pytest.approx(1)
    assert (model.predict(X) == NAMES[truth]).mean() > 0.9
    every = text + 0.1 * random.normal(size=text.shape)
    both, names = np.concatenate([every, text]), np.concatenate([NAMES, NAMES])
    model = PaddleClassifier().fit(both, names, prototypes=text, classes=NAMES)
    assert model.predict(every).tolist() == NAMES.tolist()


def test_default_classes() -> None:
    """Numbers if there is no label; else the labels, sorted."""
    X, truth, text = batch()
    for y in (None, np.full(len(X), -1), [None] * len(X)):
        model = PaddleClassifier().fit(X, y, prototypes=text)
        assert model.classes_.tolist() == list(range(CLASSES))
        assert (model.transduction_ == truth).mean() > 0.95
    three = np.array([1, 4, 6])
    y = truth.copy()
    y[30:] = -1
    model = PaddleClassifier().fit(X, y, prototypes=text[three])
    assert model.classes_.tolist() == [1, 4, 6]
    assert (model.transduction_ == truth).mean() > 0.95
    found = PaddleClassifier().fit_predict(X, y, prototypes=text[three[::-1]], classes=[6, 4, 1])
    assert found.tolist() == model.transduction_.tolist()


def test_clone_pickle_and_pipeline() -> None:
    X, truth, text = batch()
    model = PaddleClassifier(logit_scale=50.0).fit(X, None, prototypes=text, classes=NAMES)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert clone(model).logit_scale == 50.0
    pipe = make_pipeline(FunctionTransformer(), PaddleClassifier())
    chosen = {"paddleclassifier__prototypes": text, "paddleclassifier__classes": NAMES}
    pipe.fit(X, labels_of_some(truth, 5), **chosen)
    assert (pipe.predict(X) == NAMES[truth]).mean() > 0.95


@pytest.mark.filterwarnings("ignore::paddle_ext.presence.UnfamiliarBatchWarning")
def test_extreme_numbers() -> None:
    """Zeros, equal rows, and rows of any length give probabilities."""
    X, _, text = batch()
    for rows, names in (
        (np.zeros_like(X), text),
        (np.ones_like(X), text),
        (X, np.zeros_like(text)),
        (X, np.ones_like(text)),
        (X * 1e30, text * 1e-30),
        (X[:1], text),
    ):
        model = PaddleClassifier().fit(rows, None, prototypes=names)
        for found in (model.label_distributions_, model.predict_proba(rows)):
            assert np.isfinite(found).all()
            np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
        assert np.isfinite(model.prototypes_).all()


X8, TRUTH, TEXT = batch()
BROKEN = TEXT.copy()
BROKEN[2, 3] = np.nan
Y = labels_of_some(TRUTH, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prototypes": TEXT[:, :9]}, r"^prototypes must have 24 features like .*, got 9"),
        ({"prototypes": TEXT[0]}, r"^prototypes must be numbers of shape \[N, D\] .*, got float64"),
        ({"prototypes": TEXT.astype(str)}, r"^prototypes must be numbers of .*, got <U"),
        ({"prototypes": BROKEN}, r"^prototypes must be finite, got nan in row 2, feature 3"),
        ({"prototypes": TEXT[:1]}, r"^prototypes must have at least two classes, got 1"),
        ({"prototypes": None}, r"^classes must be None without prototypes, got ndarray"),
        (
            {"classes": NAMES[:5]},
            r"^classes must have as many .* prototypes, 8, got 5",
        ),
        ({"classes": np.array([*NAMES[:7], "oak"])}, r"^classes must be unique, got 'oak' 2 tim"),
        ({"classes": [*NAMES[:7], None]}, r"^classes must be text or integers >= 0, got None"),
        ({"classes": None}, r"^prototypes must have one row for each class of y, 2, .* got 8"),
        ({"classes": [f"{name}s" for name in NAMES]}, r"^y must be among the 8 .* \(nearest: "),
    ],
)
def test_bad_names(arguments: dict[str, Any], message: str) -> None:
    given = {"prototypes": TEXT, "classes": NAMES} | arguments
    with pytest.raises(ValueError, match=message):
        PaddleClassifier().fit(X8, Y, **given)


def test_invalid_combinations_with_names() -> None:
    with pytest.raises(ValueError, match=r"^logit_scale must be > 0 and at most 1e\+06, got 0"):
        PaddleClassifier(logit_scale=0.0).fit(X8, Y, prototypes=TEXT, classes=NAMES)
    model = PaddleClassifier().fit(X8, Y, prototypes=TEXT, classes=NAMES)
    with pytest.raises(
        ValueError, match=r"^y must have had a labelled row of .* because of names$"
    ):
        model.novelty(X8)
