"""The scikit-learn estimator: its results, and how it fits into scikit-learn."""

import pickle
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from estimator_batch import CLASSES, DIMENSION, SHOTS, adapted, batch
from method_tasks import nearest_mean
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import paddle_ext
from paddle_ext import PaddleClassifier, presence
from paddle_ext.adaptive_rule.learn import likelihood_of
from paddle_ext.reference.rule import (
    absorbed,
    centred,
    claimed,
    classify_after,
    learn,
    rounds,
)

# --- what it finds ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fit_is_adaptive(dtype: type) -> None:
    X, y, truth = batch(dtype)
    model = PaddleClassifier(device="cpu").fit(X, y)
    expected = adapted(X, y)
    tells(model, expected, y)
    asked = y < 0
    assert model.label_distributions_.dtype == dtype
    assert model.concentration_ == float(expected.concentration)
    for got, want in zip(model.prevalence_, expected.prevalence(), strict=True):
        np.testing.assert_array_equal(got, want)
    weights = np.where(asked[:, None], model.label_distributions_, np.eye(CLASSES)[y])
    means = weights.T @ X / weights.sum(0)[:, None]
    np.testing.assert_allclose(model.prototypes_, means, rtol=1e-4, atol=1e-5)
    assert (model.transduction_[asked] == truth[asked]).mean() > 0.95


def tells(model: PaddleClassifier, expected: paddle_ext.Solution, y: np.ndarray) -> None:
    """The estimator's attributes are those of the solution of the rows with -1."""
    asked = y < 0
    np.testing.assert_array_equal(model.classes_, np.arange(CLASSES))
    np.testing.assert_array_equal(model.transduction_[asked], expected.labels)
    np.testing.assert_array_equal(model.transduction_[~asked], y[~asked])
    np.testing.assert_array_equal(model.label_distributions_[asked], expected.probabilities)
    np.testing.assert_array_equal(model.label_distributions_[~asked], np.eye(CLASSES)[y[~asked]])
    np.testing.assert_array_equal(model.class_proportions_, expected.proportions)
    np.testing.assert_array_equal(model.doubt_[asked], expected.doubt())
    assert (model.doubt_[~asked] == 0).all()
    assert model.n_iter_ == int(expected.iterations)


def everything(dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Like `batch`, with all classes among the unlabelled rows."""
    random = np.random.default_rng(3)
    centres = random.normal(size=(CLASSES, DIMENSION))
    truth = np.concatenate([np.arange(CLASSES).repeat(SHOTS), np.arange(CLASSES).repeat(30)])
    y = truth.copy()
    y[CLASSES * SHOTS :] = -1
    noise = np.where(np.arange(DIMENSION) < 2, 3.0, 0.8)  # such classes swallow one another
    X = centres[truth] + noise * random.normal(size=(len(y), DIMENSION))
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(dtype), y, truth


def test_all_classes_present() -> None:
    """At least as good as the nearest class mean, with calibrated probabilities."""
    X, y, truth = everything()
    asked = y < 0
    model = PaddleClassifier().fit(X, y)
    right = (model.transduction_[asked] == truth[asked]).mean()
    rows = [torch.from_numpy(x) for x in (X[~asked], y[~asked], X[asked])]
    alone = (nearest_mean(*rows).numpy() == truth[asked]).mean()
    assert right >= alone
    assert (paddle_ext.solve(*rows).labels.numpy() == truth[asked]).mean() < alone - 0.05
    assert model.present_classes_.tolist() == list(range(CLASSES))
    assert model.concentration_ > 1
    assert abs(model.label_distributions_[asked].max(1).mean() - right) < 0.1
    np.testing.assert_allclose(model.doubt_[asked], 1 - model.label_distributions_[asked].max(1))
    assert 0.3 < model.novelty(X[asked]).mean() < 0.7


def test_options_of_adaptive() -> None:
    X, y, _ = batch()
    model = PaddleClassifier(max_iter=3, tol=0.0).fit(X, y)
    assert model.n_iter_ == 3
    tells(model, adapted(X, y, max_iter=3, tol=0.0), y)


def test_as_the_command_does() -> None:
    """One batch, the same method: the same labels."""
    from paddle_ext.app.answering import answer
    from paddle_ext.app.read.samples import Batch, Labelled

    for X, y, _ in (batch(np.float32), everything(np.float32)):
        rows, labels = torch.from_numpy(X), torch.from_numpy(y)
        names = tuple(f"{k:02d}" for k in range(CLASSES))
        known = Labelled(rows[labels >= 0], labels[labels >= 0], names, ("",) * int((y >= 0).sum()))
        query = rows[labels < 0]
        part = Batch([str(i) for i in range(len(query))], query, [""] * len(query), None)
        found = answer(known, [part], batch=len(query))
        model = PaddleClassifier(device="cpu").fit(X, y)
        np.testing.assert_array_equal(model.transduction_[y < 0], found.labels)
        # The command looks for wrong labels, in another order of sums, and finds none.
        np.testing.assert_allclose(model.doubt_[y < 0], found.doubt, rtol=0, atol=1e-5)


def test_present_classes() -> None:
    X, y, _ = batch()
    assert PaddleClassifier().fit(X, y).present_classes_.tolist() == [2, 5, 9]
    none = PaddleClassifier(present_threshold=1000.0).fit(X, y)
    assert none.present_classes_.tolist() == []


@pytest.mark.parametrize("shots", [1, 2, SHOTS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predict(dtype: type, shots: int) -> None:
    """By prototypes that absorbed the batch and by its proportions, row by row."""
    X, y, truth = few_shots(shots, dtype)
    asked = y < 0
    model = PaddleClassifier().fit(X, y)
    known = learn(torch.from_numpy(X[~asked]), torch.from_numpy(y[~asked]), CLASSES)
    rows = torch.from_numpy(X[asked])
    x = centred(rows.double(), known.centre)
    expected = classify_after(known, rows, absorbed(known, x, rounds(known, x))).numpy()
    found = model.predict_proba(X[asked])
    np.testing.assert_allclose(found, expected, atol=1e-4 if dtype == np.float32 else 1e-6)
    np.testing.assert_array_equal(model.predict(X[asked]), found.argmax(1))
    assert (model.predict(X[asked]) == truth[asked]).mean() > 0.7
    # In the batch a row does not confirm itself; all else is the same.
    assert (model.predict(X[asked]) == model.transduction_[asked]).mean() > 0.9
    alone = np.vstack([model.predict_proba(row[None]) for row in X[asked][:5]])
    np.testing.assert_allclose(alone, found[:5], atol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize(
    "context",
    [torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"), torch.inference_mode()],
    ids=["autocast", "default device", "inference mode"],
)
def test_contexts_of_torch_change_nothing(context: Any) -> None:
    X, y, _ = batch(np.float32)
    known = torch.from_numpy(X[y >= 0]), torch.from_numpy(y[y >= 0])

    def found() -> dict[str, np.ndarray]:
        model = PaddleClassifier(device="cpu", label_noise="auto").fit(X, y)
        return {
            "fit": model.label_distributions_,
            "predict_proba": model.predict_proba(X),
            "predict": model.predict(X),
            "predict_batch": model.predict_batch(X),
            "novelty": model.novelty(X),
            "suggest": model.suggest(20),
            "label_doubt": presence.label_doubt(*known).doubt.numpy(),
            "BatchClassifier": paddle_ext.BatchClassifier(*known)(X)["probability"],
        }

    want = found()
    with context:
        got = found()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("labels", [(20, 1), (15, 5, 1), (20, 20, 5, 1, 1)])
def test_a_batch_helps_further_rows(labels: tuple[int, ...]) -> None:
    """Unequal labels of classes that are equally common later: the batch says how common."""
    K, random = len(labels), np.random.default_rng(sum(labels))
    centres = random.normal(size=(K, 64))
    right: list[list[float]] = []
    for _ in range(6):
        known, waiting, later = np.arange(K).repeat(labels), *random.integers(K, size=(2, 300))
        rows = [centres[one] + 1.8 * random.normal(size=(len(one), 64)) for one in (known, waiting)]
        new = centres[later] + 1.8 * random.normal(size=(300, 64))
        y = np.concatenate([known, np.full(300, -1)])
        alone = PaddleClassifier(rows="embeddings").fit(rows[0], known).predict(new)
        model = PaddleClassifier(rows="embeddings").fit(np.concatenate(rows), y)
        found = model.transduction_[len(known) :] == waiting
        right.append([x.mean() for x in (found, model.predict(new) == later, alone == later)])
    batch, with_batch, without = np.mean(right, axis=0)
    assert with_batch > without
    assert with_batch > batch - 0.03


def few_shots(shots: int, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`batch` with this many of the labelled rows of each class."""
    X, y, truth = batch(dtype)
    number = np.array([(y[:i] == k).sum() for i, k in enumerate(y)])
    kept = (y < 0) | (number < shots)
    return X[kept], y[kept], truth[kept]


def test_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches are processed in parts, with the same result."""
    X, y, _ = batch()
    whole = PaddleClassifier().fit(X, y)
    monkeypatch.setattr("paddle_ext.rows.PART", 100)
    pieces = PaddleClassifier().fit(X, y)
    np.testing.assert_allclose(pieces.predict_proba(X), whole.predict_proba(X), atol=1e-12)
    np.testing.assert_allclose(pieces.novelty(X), whole.novelty(X), atol=1e-12)


def test_all_labelled() -> None:
    """The likelihood of the labelled rows, and the proportions of their labels."""
    X, _, truth = batch()
    model = PaddleClassifier().fit(X, truth)
    means = np.stack([X[truth == k].mean(0) for k in range(CLASSES)])
    np.testing.assert_allclose(model.prototypes_, means)
    np.testing.assert_allclose(model.class_proportions_, np.bincount(truth) / len(truth))
    np.testing.assert_array_equal(model.transduction_, truth)
    assert model.concentration_ is None
    rows, labels = torch.from_numpy(X), torch.from_numpy(truth)
    likelihood = likelihood_of(rows[None], labels[None], CLASSES)
    logits = likelihood.logits(rows) + torch.from_numpy(model.class_proportions_).log()
    expected = claimed(logits.softmax(-1), labels.bincount().double())
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-9)
    assert model.score(X, truth) > 0.95


def test_one_shot() -> None:
    """One label of each class, which scikit-learn's own check of labels warns of."""
    K = 200
    X = np.random.default_rng(0).normal(size=(K, 32))
    X = np.vstack([X, X[:3] + 0.01, X[:3] + 0.02])
    model = PaddleClassifier().fit(X, np.concatenate([np.arange(K), np.full(6, -1)]))
    assert model.transduction_[K:].tolist() == [0, 1, 2, 0, 1, 2]
    assert model.present_classes_.tolist() == [0, 1, 2]
    assert not model.calibrated_


def test_probabilities_are_calibrated() -> None:
    """Expected calibration error."""
    random = np.random.default_rng(0)
    truth = np.concatenate([np.arange(20).repeat(6), random.integers(20, size=600)])
    X = random.normal(size=(20, 24))[truth] + 2.0 * random.normal(size=(len(truth), 24))
    y = np.where(np.arange(len(truth)) < 120, truth, -1)
    model = PaddleClassifier().fit(X, y)
    assert model.calibrated_
    sure = model.label_distributions_[120:].max(1)
    right = model.transduction_[120:] == truth[120:]
    place = np.minimum((10 * sure).astype(int), 9)
    gaps = [abs((sure - right)[place == b].sum()) for b in range(10)]
    assert sum(gaps) / len(right) < 0.1


def test_few_labels() -> None:
    """Nine labels neither calibrate probabilities nor hold a rate of 5 %; twenty-one do."""
    random = np.random.default_rng(0)
    truth = np.arange(3).repeat(20)
    X = 4 * random.normal(size=(3, 8))[truth] + random.normal(size=(60, 8))
    few, more = (
        PaddleClassifier().fit(X, np.where(np.arange(60) % 20 < n, truth, -1)) for n in (3, 7)
    )
    assert (few.calibrated_, more.calibrated_) == (False, True)
    assert len(more.strangers(X)) == len(few.strangers(X, rate=0.1)) == len(few.novelty(X)) == 60
    with pytest.raises(ValueError, match=r"rate must be at least 0.1, the lowest that 9 labelled"):
        few.strangers(X)


def test_novelty() -> None:
    X, y, _ = batch()
    model = PaddleClassifier().fit(X, y)
    strange = np.random.default_rng(2).normal(size=(20, DIMENSION)) - 4
    assert model.novelty(strange).min() > 0.99
    ordinary = model.novelty(X[y < 0])
    assert model.strangers(strange).all()
    assert model.strangers(X[y < 0]).tolist() == (ordinary > 0.95).tolist()
    assert model.strangers(X[y < 0], rate=0.5).sum() > 10
    with pytest.raises(ValueError, match="rate must be > 0 and at most 1, got 2"):
        model.strangers(X, rate=2)
    assert 0.2 < ordinary.mean() < 0.6
    assert ordinary.min() >= 0
    first = [int(np.flatnonzero(y == k)[0]) for k in range(CLASSES)]
    rows = np.concatenate([first, np.flatnonzero(y < 0)])
    with pytest.raises(ValueError, match="two or more of one, for novelty"):
        PaddleClassifier().fit(X[rows], y[rows]).novelty(X)


def test_extreme_numbers() -> None:
    """Never NaN, however far away a new row is."""
    X, y, _ = batch()
    for model in (PaddleClassifier().fit(X.astype(dtype), y) for dtype in (np.float32, float)):
        far = np.vstack([np.zeros(DIMENSION), X[0] * 1e300, X[1] * 1e-300, -X[2] * 1e200])
        assert np.isfinite(model.predict_proba(far)).all()
        np.testing.assert_allclose(model.predict_proba(far).sum(1), 1)


# --- rows to label next --------------------------------------------------------------------------


def test_suggested_rows() -> None:
    """The function, with indices into X."""
    X, y, _ = batch()
    model = PaddleClassifier(device="cpu").fit(X, y)
    found = model.suggest(10)
    new = np.flatnonzero(y < 0)
    support, query = torch.from_numpy(X[y >= 0]), torch.from_numpy(X[new])
    want = presence.suggest(support, query, 10).queries
    np.testing.assert_array_equal(found, new[want.numpy()])
    assert sorted(model.suggest(10_000)) == new.tolist()


def test_suggestions_of_a_table() -> None:
    """Without it the column of large numbers would decide alone."""
    random = np.random.default_rng(0)
    truth = np.arange(4).repeat(20)
    X = np.stack([truth % 2 + 0.1 * random.normal(size=80), truth // 2 + 0.0, np.zeros(80)], 1)
    X[:, 2] = 1000 * random.normal(size=80)
    y = np.where(np.arange(80) % 20 < 4, truth, -1)
    model = PaddleClassifier(device="cpu").fit(X, y)
    there = presence.suggest(torch.from_numpy(X[y >= 0]), torch.from_numpy(X[y < 0]), 5)
    assert model.suggest(5).tolist() != np.flatnonzero(y < 0)[there.queries.numpy()].tolist()


def test_suggestions_by_names() -> None:
    pandas = pytest.importorskip("pandas")
    X, _, truth = batch()
    names = np.stack([X[truth == k].mean(0) for k in range(12)])
    frame = pandas.DataFrame(X, columns=[f"f{d}" for d in range(X.shape[1])])
    model = PaddleClassifier(device="cpu").fit(frame, None, prototypes=names)
    assert len(set(model.suggest(8).tolist())) == 8


def test_nothing_to_suggest() -> None:
    X, y, truth = batch()
    model = PaddleClassifier(device="cpu")
    with pytest.raises(sklearn.exceptions.NotFittedError):
        model.suggest(3)
    with pytest.raises(ValueError, match="count must be an integer in"):
        model.fit(X, y).suggest(0)
    with pytest.raises(ValueError, match="before a model is pickled, got a loaded one"):
        pickle.loads(pickle.dumps(model)).suggest(3)
    assert model.fit(X, truth).suggest(3).tolist() == []


# --- in scikit-learn ----------------------------------------------------------------------------


# scikit-learn exempts its own semi-supervised classifiers from the first by their names.
EXPECTED = {
    "check_classifiers_classes": "takes -1 for a class, where it means unlabelled",
    "check_sample_weight_equivalence_on_dense_data": "a row that is there twice vouches for itself",
}


def test_scikit_learn() -> None:
    results = estimator_checks.check_estimator(
        PaddleClassifier(), expected_failed_checks=EXPECTED, on_skip=None, on_fail=None
    )
    refused = [result for result in results if result["status"] not in ("passed", "skipped")]
    failed = {result["check_name"]: result["exception"] for result in refused}
    made = {result["check_name"] for result in results}  # scikit-learn 1.6 has fewer
    assert EXPECTED.keys() <= made
    assert failed.keys() == EXPECTED.keys() & made, failed
    assert sum(result["status"] == "passed" for result in results) > 40


def test_classes() -> None:
    """The exempted check, as scikit-learn runs it for classifiers with unlabelled rows."""
    estimator_checks.check_classifiers_classes("SelfTrainingClassifier", PaddleClassifier())


def test_pipeline_and_search() -> None:
    X, y, truth = batch()
    pipeline = make_pipeline(StandardScaler(), PaddleClassifier()).fit(X, y)
    asked = y < 0
    expected = adapted(StandardScaler().fit_transform(X), y).labels
    np.testing.assert_array_equal(pipeline[-1].transduction_[asked], expected)
    assert (pipeline.predict(X[asked]) == truth[asked]).mean() > 0.9
    scores = cross_val_score(PaddleClassifier(), X, truth, cv=3)
    assert scores.mean() > 0.85
    search = GridSearchCV(PaddleClassifier(), {"label_noise": [0.0, 0.2]}, cv=3).fit(X, truth)
    assert search.best_score_ >= scores.mean() - 1e-9


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    X, y, _ = batch()
    names = [f"f{i}" for i in range(DIMENSION)]
    frame = pandas.DataFrame(X, columns=names)
    model = PaddleClassifier().fit(frame, pandas.Series(y))
    assert model.feature_names_in_.tolist() == names
    assert model.n_features_in_ == DIMENSION
    np.testing.assert_array_equal(model.predict(frame), model.predict(frame.copy()))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"f0": "other"}))


@pytest.mark.cuda
def test_on_cuda() -> None:
    X, y, _ = batch(np.float32)
    here, there = (PaddleClassifier(device=d).fit(X, y) for d in ("cpu", "auto"))
    np.testing.assert_array_equal(here.transduction_, there.transduction_)
    np.testing.assert_allclose(here.predict_proba(X), there.predict_proba(X), atol=1e-3)
