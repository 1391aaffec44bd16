"""A prior on the class proportions, in the estimators."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paddle_ext import BatchClassifier, PaddleClassifier

CLASSES = np.array(["ash", "beech", "elm", "fir", "oak", "yew"])
WEIGHTS = {"ash": 60.0, "beech": 30.0, "elm": 10.0, "fir": 1.0, "oak": 0.0, "yew": 1.0}


def data(seed: int = 0) -> tuple[npt.NDArray[Any], ...]:
    """Labelled rows, their classes, and unlabelled rows in proportions near the weights."""
    g = np.random.default_rng(seed)
    centres = g.normal(size=(6, 16))
    own = np.repeat(np.arange(6), 4)
    p = np.array(list(WEIGHTS.values()))
    truth = g.choice(6, size=80, p=p / p.sum())
    rows = [centres[i] + 1.3 * g.normal(size=(len(i), 16)) for i in (own, truth)]
    return rows[0], CLASSES[own], rows[1], CLASSES[truth]


def joined(X: npt.NDArray[Any], y: npt.NDArray[Any], new: npt.NDArray[Any]) -> tuple[Any, Any]:
    return np.concatenate([X, new]), np.concatenate([y.astype(object), [None] * len(new)])


def test_mapping_and_array_agree_and_help() -> None:
    X, y, new, truth = data(seed=2)
    rows, labels = joined(X, y, new)
    plain = PaddleClassifier().fit(rows, labels)
    model = PaddleClassifier(prior=WEIGHTS).fit(rows, labels)
    same = PaddleClassifier(prior=np.array(list(WEIGHTS.values()))).fit(rows, labels)
    assert np.array_equal(model.transduction_, same.transduction_)
    assert model.prior_used_ is True
    assert plain.prior_used_ is None
    found, before = (m.transduction_[len(X) :] for m in (model, plain))
    assert (found == truth).mean() > (before == truth).mean()
    assert "oak" not in found
    assert "oak" not in model.predict(new)
    assert "oak" not in model.predict_batch(new)


def test_wrong_prior_is_ignored() -> None:
    X, y, new, _ = data()
    backwards = dict(zip(WEIGHTS, [1.0, 1, 1, 30, 10, 60], strict=True))
    assert PaddleClassifier(prior=backwards).fit(*joined(X, y, new)).prior_used_ is False


def test_names_and_labelled_rows_alone() -> None:
    X, y, new, _ = data()
    names = np.stack([X[y == name].mean(0) for name in CLASSES])
    model = PaddleClassifier(prior=WEIGHTS)
    model.fit(*joined(X, y, new), prototypes=names, classes=CLASSES)
    assert "oak" not in model.transduction_[len(X) :]
    for prototypes in (None, names):
        alone = PaddleClassifier(prior=WEIGHTS).fit(X, y, prototypes=prototypes)
        assert alone.prior_used_ is None
        assert "oak" not in alone.predict(new)
        balanced = PaddleClassifier(prior=[60.0, 20, 10, 10, 10, 10], balanced=True)
        found, want = (
            model.fit(X, y, prototypes=prototypes).predict(new)
            for model in (balanced, PaddleClassifier(prior=[1.0] * 6))
        )
        np.testing.assert_array_equal(found, want)


def test_weights_whose_sum_overflows() -> None:
    X, y, new, _ = data()
    even, huge = (PaddleClassifier(prior=[weight] * 6).fit(X, y) for weight in (1.0, 1e308))
    np.testing.assert_array_equal(huge.predict_proba(new), even.predict_proba(new))


def test_a_series_is_a_prior_by_class() -> None:
    pandas = pytest.importorskip("pandas")
    X, y, new, _ = data()
    by_weight = pandas.Series(WEIGHTS).sort_values()
    models = [
        PaddleClassifier(prior=prior).fit(*joined(X, y, new)) for prior in (WEIGHTS, by_weight)
    ]
    np.testing.assert_array_equal(*(model.label_distributions_ for model in models))


def test_batches() -> None:
    X, y, new, _ = data()
    names = np.stack([X[y == name].mean(0) for name in CLASSES])
    for more in ({}, {"names": CLASSES, "prototypes": names}):
        found = BatchClassifier(X, y, prior=WEIGHTS, **more)(new)["label"]
        assert "oak" not in found
        assert (found == "ash").sum() > 30


def test_missing_classes_get_the_smallest_weight() -> None:
    X, y, new, _ = data()
    lacking = "3 classes not in prior got its smallest weight above 0, 1, such as fir"
    with pytest.warns(UserWarning, match=lacking):
        model = PaddleClassifier(prior={"ash": 3, "beech": 1, "elm": 0}).fit(*joined(X, y, new))
    full = {"ash": 3, "beech": 1, "elm": 0, "fir": 1, "oak": 1, "yew": 1}
    expected = PaddleClassifier(prior=full).fit(*joined(X, y, new))
    assert (model.label_distributions_ == expected.label_distributions_).all()


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({"birch": 1.0}, "prior must have classes of y as keys, got 'birch'"),
        ({"ash": None}, "prior must be numbers, got dict"),
        ([1, 2], r"prior must have shape \[6\], got \[2\]"),
        ("ash", "prior must be numbers, got "),
        (np.ma.masked_less([1, 1, 1, 1, 0, 1], 1), "prior must be finite and at least 0, got nan"),
    ],
)
def test_bad_priors(prior: Any, message: str) -> None:
    X, y, new, _ = data()
    with pytest.raises((TypeError, ValueError), match=message):
        PaddleClassifier(prior=prior).fit(*joined(X, y, new))
    with pytest.raises((TypeError, ValueError), match=message):
        BatchClassifier(X, y, prior=prior)
