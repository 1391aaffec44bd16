"""Labels in every form that the estimator accepts, weights of rows, and invalid ones."""

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from estimator_batch import CLASSES, adapted, batch
from sklearn import config_context

from paddle_ext import PaddleClassifier
from paddle_ext.app.classify import Settings
from paddle_ext.app.read.opening import open_data
from paddle_ext.research.data.bank import FeatureBank


def forms(y: np.ndarray) -> dict[str, Any]:
    """The same labels in many forms, and the classes they make."""
    pandas = pytest.importorskip("pandas")
    names = [f"class {k:02d}" for k in range(CLASSES)]
    text = np.array([None if k < 0 else names[k] for k in y], dtype=object)
    with_nan = np.where(y < 0, np.nan, y)
    return {
        "numbers": (y, list(range(CLASSES))),
        "floats": (with_nan, list(range(CLASSES))),
        "objects": (np.array([None if k < 0 else int(k) for k in y], object), list(range(CLASSES))),
        "text": (text, names),
        "list": (text.tolist(), names),
        "series": (pandas.Series(text), names),
        "strings": (pandas.Series(text, dtype="string"), names),
        "integers": (pandas.Series(with_nan).astype("Int64"), list(range(CLASSES))),
        "categories": (pandas.Series(text, dtype="category"), names),
    }


FORMS = ("numbers", "floats", "objects", "text", "list", "series", "strings", "integers")


@pytest.mark.parametrize("form", [*FORMS, "categories"])
def test_forms_of_labels(form: str) -> None:
    X, y, _ = batch()
    given, classes = forms(y)[form]
    model = PaddleClassifier().fit(X, given)
    assert model.classes_.tolist() == classes
    expected = adapted(X, y).labels.numpy()
    assert model.transduction_[y < 0].tolist() == [classes[k] for k in expected]
    assert set(model.predict(X)) <= set(classes)
    assert model.fit_predict(X, given).tolist() == model.transduction_.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1] * 6, "at least two classes, got none"),
        ([None] * 6, "at least two classes, got none"),
        ([3, 3, 3, -1, -1, -1], "got one class: 3"),
        ([0, 1, 0, 1, 0], r"for each row of X, 6, got 5"),
        ([0.5, 1.25, 0.1, 2.2, np.nan, np.nan], "Unknown label type"),
        ([0.0, 1.0, np.inf, 1.0, np.nan, np.nan], "integers, got inf"),
        (np.array(["a", 1, "b", None, None, None], dtype=object), "got int and str"),
        (None, "target y is None"),
    ],
)
def test_bad_labels(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PaddleClassifier().fit(np.random.default_rng(0).normal(size=(6, 3)), labels)


@pytest.mark.parametrize("kind", ["list", "text", "objects", "column", "column of text"])
def test_text_that_means_unlabelled(kind: str) -> None:
    """NumPy and pandas turn -1 among text into "-1"; it is no class in any of these."""
    pandas = pytest.importorskip("pandas")
    y = ["up", "right", "-1"]
    given = {
        "list": ["up", "right", -1],
        "text": np.array(y),
        "objects": np.array(y, dtype=object),
        "column": pandas.Series(y, dtype=object),
        "column of text": pandas.Series(y, dtype="string"),
    }
    model = PaddleClassifier().fit(np.eye(3), given[kind])
    assert model.classes_.tolist() == ["right", "up"]


WORDS = ("", "-1", "nan", "NaT", "NA", "<NA>", "None", "null", "n/a", "?", "-", "unknown", "none")


@pytest.mark.parametrize("word", WORDS)
def test_a_word_means_the_same_to_the_estimator_the_command_and_a_bank(
    word: str, tmp_path: Path
) -> None:
    """Only "none" is a class; a word that could have been one causes a warning."""
    X, y = np.eye(6, 4, dtype=np.float32), np.array(["ash", "ash", "elm", "elm", word, word])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        classes = PaddleClassifier(device="cpu").fit(X, y).classes_.tolist()
    assert classes == (["ash", "elm", "none"] if word == "none" else ["ash", "elm"])
    said = [str(one.message) for one in warned]
    quiet = word in ("", "-1", "none")
    assert said == ([] if quiet else [f"{word!r} in y counts as a missing label: 2 rows"])

    np.savez(tmp_path / "rows.npz", features=X, labels=y)
    assert FeatureBank.load(tmp_path / "rows.npz").class_names == tuple(classes)
    table = [f"{label},{a},{b}" for label, (a, b) in zip(y, X[:, :2].tolist(), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["label,a,b", *table]) + "\n")
    opened = open_data(tmp_path / "rows.csv", None, Settings(device="cpu"))
    assert sorted(set(opened.examples.truth or [])) == classes


def test_nan_among_text_in_an_array_is_no_class() -> None:
    """NumPy writes it as text."""
    y = np.array(["ash", "elm", float("nan")])
    with pytest.warns(UserWarning, match="'nan' in y counts as a missing label: 1 row$"):
        model = PaddleClassifier().fit(np.eye(3), y)
    assert model.classes_.tolist() == ["ash", "elm"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("tol", -1.0), ("max_iter", 0), ("present_threshold", 0.0), ("device", "abacus")],
)
def test_bad_options(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be .*, got '?{value}"):
        PaddleClassifier(**{option: value}).fit(*batch()[:2])


# --- weights of labelled rows -------------------------------------------------------------------


def test_wrong_labels_of_little_weight_do_little_harm() -> None:
    random = np.random.default_rng(0)
    K, shots, D = 8, 6, 16
    truth = np.concatenate([np.arange(K).repeat(shots), random.integers(K, size=400)])
    X = random.normal(size=(K, D))[truth] + 1.2 * random.normal(size=(len(truth), D))
    y = truth.copy()
    y[K * shots :] = -1
    weights = np.ones(len(y))
    wrong = np.arange(0, K * shots, 2)
    y[wrong] = (y[wrong] + 1) % K
    right = {}
    for weight in (1.0, 0.01):
        weights[wrong] = weight
        found = PaddleClassifier().fit(X, y, sample_weight=weights).transduction_
        right[weight] = (found == truth)[K * shots :].mean()
    assert right[0.01] > right[1.0] + 0.1


@pytest.mark.parametrize("all_labelled", [False, True])
def test_weight_zero_leaves_a_row_out(all_labelled: bool) -> None:
    X, y, truth = batch()
    if all_labelled:
        y = truth.copy()
    known = np.flatnonzero(y >= 0)
    weights = np.ones(len(y))
    weights[known[:2]] = 0
    model = PaddleClassifier().fit(X, y, sample_weight=weights)
    kept = np.delete(np.arange(len(y)), known[:2])
    other = PaddleClassifier().fit(X[kept], y[kept])
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(model.class_proportions_, other.class_proportions_, atol=1e-6)
    np.testing.assert_allclose(model.prototypes_, other.prototypes_, atol=1e-6)
    assert np.array_equal(model.transduction_[known[:2]], y[known[:2]])


@pytest.mark.parametrize("shots", [3, 20])  # 20 take the correction
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_any_size(shots: int, dtype: type) -> None:
    """Only their ratios count, and no square of them overflows or vanishes."""
    random = np.random.default_rng(shots)
    truth = np.concatenate([np.arange(4).repeat(shots), random.integers(4, size=30)])
    X = (random.normal(size=(4, 8))[truth] + random.normal(size=(len(truth), 8))).astype(dtype)
    y = np.where(np.arange(len(truth)) < 4 * shots, truth, -1)
    weights = random.uniform(0.5, 2, len(y))
    for noise in (0.0, 0.1):
        model = PaddleClassifier(label_noise=noise, device="cpu")
        usual = model.fit(X, y, weights).predict_proba(X)
        for factor in (1e19, 1e29, 1e-24, 1e-29):
            found = model.fit(X, y, factor * weights).predict_proba(X)
            np.testing.assert_allclose(found, usual, atol=1e-5)
            assert np.isfinite(model.prototypes_).all()
        uneven = np.where(y == 0, 1e-30, 1e30)
        assert np.isfinite(model.fit(X, y, uneven).predict_proba(X)).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], r"^sample_weight must be numbers of shape \[\d+\], .* of shape \[2\]$"),
        (-1.0, r"^sample_weight must be 0 or between 1e-30 and 1e\+30, got -1\.0 in row 1$"),
        (np.nan, r"^sample_weight must be 0 or between .*, got nan in row 1$"),
        (1e31, r"^sample_weight must be 0 or between .*, got 1e\+31 in row 1$"),
        (1e-31, r"^sample_weight must be 0 or between .*, got 1e-31 in row 1$"),
        (0.0, r"^sample_weight must be more than zero for a labelled .* for all of class 0$"),
        ("heavy", r"^sample_weight must be numbers of shape"),
        (np.ma.masked, r"^sample_weight must be 0 or between .*, got nan in row 1$"),
    ],
)
def test_bad_weights(weights: Any, message: str) -> None:
    X, y, _ = batch()
    given = weights if isinstance(weights, list) else [weights] * len(y)
    if weights is np.ma.masked:
        given = np.ma.masked_array(np.ones(len(y)), np.arange(len(y)) == 1)
        PaddleClassifier().fit(X, y, sample_weight=np.ma.masked_array(np.ones(len(y)), y < 0))
    with pytest.raises(ValueError, match=message):
        PaddleClassifier().fit(X, y, sample_weight=given)
    if isinstance(weights, float) and weights != 0:  # of rows without a label
        weighed = PaddleClassifier().fit(X, y, sample_weight=np.where(y < 0, weights, 1.0))
        assert weighed.n_iter_ > 0


def test_missing_labels_in_a_list_of_text() -> None:
    X = np.eye(3).repeat(6, 0) + 0.01 * np.random.default_rng(0).normal(size=(18, 3))
    y = ["ash", "ash", np.nan] * 2 + ["elm", None, "elm"] * 2 + ["fir", "fir", np.nan] * 2
    model = PaddleClassifier(device="cpu").fit(X, y)
    assert model.classes_.tolist() == ["ash", "elm", "fir"]
    assert model.transduction_.tolist() == ["ash"] * 6 + ["elm"] * 6 + ["fir"] * 6
    masked = np.ma.array(np.arange(3).repeat(6), mask=[False, True] * 9)
    assert PaddleClassifier(device="cpu").fit(X, masked).prevalence_ is not None
    groups = np.ma.array(np.zeros(18), mask=[False] * 17 + [True])
    with pytest.raises(ValueError, match="all integers of 64 bits, got None in row 17"):
        PaddleClassifier(device="cpu").fit(X, y, groups=groups)


def test_unlabelled_rows_that_are_things_of_their_own() -> None:
    X, y, _ = batch(np.float32)
    want = PaddleClassifier(device="cpu").fit(X, y)
    for missing in (-1, None, np.nan):
        model = PaddleClassifier(device="cpu").fit(X, y, same=[missing] * len(X))
        np.testing.assert_array_equal(model.transduction_, want.transduction_)


def test_dates_without_a_label() -> None:
    X, y, _ = batch()
    dates = np.where(y < 0, np.datetime64("NaT"), y.astype("M8[D]"))
    found = PaddleClassifier(device="cpu").fit(X, dates).transduction_
    want = PaddleClassifier(device="cpu").fit(X, y).transduction_
    np.testing.assert_array_equal(found, want.astype("M8[D]"))


def test_things_among_labelled_rows_are_of_one_kind() -> None:
    X, y, _ = batch()
    first, second = np.flatnonzero(y == 3)[:2]
    for pair, message in (
        ((1, "1"), f"'1' in row {second}"),
        ((1, 3.5), f"3.5 in row {second}"),
        (([1, 2], 3.5), r"\[1, 2\] in row"),
    ):
        same: list[Any] = [None] * len(y)
        same[first], same[second] = pair
        with pytest.raises(ValueError, match=f"same must be all strings or all .*{message}"):
            PaddleClassifier(device="cpu").fit(X, y, same=same)
    found = []
    for pair in ((1, 1), (1, 1.0)):
        same = [None] * len(y)
        same[first], same[second] = pair
        found.append(PaddleClassifier(device="cpu").fit(X, y, same=same).label_distributions_)
    np.testing.assert_array_equal(*found)


def test_rows_too_large_for_the_precision_of_the_fit() -> None:
    X, y, truth = batch()
    model = PaddleClassifier(device="cpu").fit(X[y >= 0].astype(np.float32), y[y >= 0])
    rows, want = X[y < 0], truth[y < 0]
    usual = (model.predict_batch(rows) == want).mean()
    for factor in (1e40, 1e280):
        large = rows.copy()
        large[0] *= factor
        for options in ({}, {"groups": np.arange(len(rows)) // 20}):
            assert (model.predict_batch(large, **options) == want).mean() > usual - 0.1


def test_rows_straight_from_a_network() -> None:
    X, y, _ = batch()
    rows = torch.from_numpy(X).float()
    want = PaddleClassifier(device="cpu").fit(rows.numpy(), y).transduction_
    for given in (rows.requires_grad_(), torch._neg_view(-rows.detach())):
        found = PaddleClassifier(device="cpu").fit(given, y).transduction_
        np.testing.assert_array_equal(found, want)
    for dtype in (torch.bfloat16, torch.float8_e5m2):
        given = rows.detach().to(dtype)
        found, want = (
            PaddleClassifier(device="cpu").fit(x, y).label_distributions_
            for x in (given, given.float().numpy())
        )
        np.testing.assert_array_equal(found, want)


def test_gaps_are_found_though_scikit_learn_does_not_look() -> None:
    X, y, _ = batch()
    model = PaddleClassifier(rows="embeddings").fit(X, y)
    X[0, 0] = np.nan
    with config_context(assume_finite=True), pytest.raises(ValueError, match="NaN"):
        model.predict(X)


def test_copies_leave_the_model_as_it_is() -> None:
    X, y, _ = batch()
    model = PaddleClassifier(device="cpu").fit(X, y)
    before = model.suggest(3)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        duplicate(model)
        np.testing.assert_array_equal(model.suggest(3), before)


@pytest.mark.parametrize(
    "given",
    [
        {"sample_weight": np.zeros(200)},
        {"same": ["one"] * 200},
        {"groups": [1] * 3},
        {"y": ["a"] * 200},
        {"X": np.eye(200, 3), "groups": "one"},
    ],
    ids=str,
)
def test_a_refused_fit_changes_nothing(given: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(200, 8)), np.array(["ash", "elm"] * 100)
    model = PaddleClassifier(device="cpu").fit(X, y)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="must"):
        model.fit(**{"X": X, "y": np.array(["a", "b"] * 100), **given})
    assert vars(model) == before
    assert set(model.predict(X)) <= {"ash", "elm"}
