"""New batches for a fitted estimator: what is known of them, through pipelines, after pickling."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from paddle_ext import BatchClassifier, PaddleClassifier
from paddle_ext.integrations.fitted import FittedAdaptive
from paddle_ext.presence import UnfamiliarBatchWarning

K, SHOTS, D = 6, 5, 32
RANDOM = np.random.default_rng(0)
CENTRES = 2 * RANDOM.normal(size=(K, D))
KNOWN = np.arange(K).repeat(SHOTS)
X = CENTRES[KNOWN] + RANDOM.normal(size=(len(KNOWN), D))
TRUTH = RANDOM.choice([1, 4], 60)
NEW = CENTRES[TRUTH] + RANDOM.normal(size=(60, D))


def model(**options: Any) -> PaddleClassifier:
    return PaddleClassifier(rows="embeddings", device="cpu", **options)


def fit_with(rows: np.ndarray) -> PaddleClassifier:
    """To unlabelled rows, too."""
    return model().fit(np.concatenate([X, rows]), np.concatenate([KNOWN, np.full(len(rows), -1)]))


def test_a_batch_is_classified_with_all_that_is_known_of_it() -> None:
    """As `fit` with these unlabelled rows does, and `BatchClassifier`."""
    found = model().fit(X, KNOWN).classify_batch(NEW)
    y = np.concatenate([KNOWN, np.full(60, -1)])
    together = model().fit(np.concatenate([X, NEW]), y)
    np.testing.assert_array_equal(found.labels, together.transduction_[len(X) :])
    np.testing.assert_allclose(found.probabilities, together.label_distributions_[len(X) :])
    np.testing.assert_allclose(found.doubt, together.doubt_[len(X) :])
    batches = BatchClassifier(X, KNOWN, rows="embeddings", device="cpu")(NEW)
    np.testing.assert_allclose(found.novelty, batches["novelty"], atol=1e-3)
    assert found.strangers == pytest.approx(batches["strangers"][0], abs=1e-6)
    assert found.alarm == ""
    assert (found.labels == TRUTH).all()


def test_an_unfamiliar_batch_raises_the_alarm() -> None:
    fitted = model().fit(X, KNOWN)
    rotated = NEW @ np.linalg.qr(RANDOM.normal(size=(D, D)))[0]
    for rows in (rotated, 0 * NEW, NEW[:1].repeat(60, 0)):
        with pytest.warns(UnfamiliarBatchWarning, match="unlike the labelled rows") as warned:
            found = fitted.classify_batch(rows)
        assert found.alarm
        assert warned[0].filename == __file__
        assert len(warned) == 1
        for classify in (fitted.predict_batch, lambda rows: fit_with(rows).transduction_):
            with pytest.warns(UnfamiliarBatchWarning):
                classify(rows)
    assert fit_with(NEW).alarm_ == ""
    with pytest.warns(UnfamiliarBatchWarning):
        assert "copies" in fit_with(0 * NEW).alarm_


def test_novelty_is_missing_where_it_is_not_known() -> None:
    found = model().fit(X[::SHOTS], np.arange(K)).classify_batch(NEW)
    assert np.isnan(found.novelty).all()
    assert np.isnan(found.strangers)
    assert np.isfinite(found.probabilities).all()


def test_a_pipeline_classifies_a_batch() -> None:
    """By arguments that it passes on to its last step."""
    halves = FunctionTransformer(lambda rows: rows / 2)
    random = np.random.default_rng(1)
    known, rows = (x + 3 * random.normal(size=x.shape) for x in (X, NEW))  # some are doubtful
    pipeline = make_pipeline(halves, model()).fit(known, KNOWN)
    usual = pipeline[-1].classify_batch(rows / 2)
    place = np.repeat(["here", "there"], 30)
    grouped = pipeline[-1].classify_batch(rows / 2, place)
    np.testing.assert_array_equal(pipeline.predict(rows, as_batch=True), usual.labels)
    given = pipeline.predict_proba(rows, as_batch=True)
    np.testing.assert_array_equal(given, usual.probabilities)
    given = pipeline.predict_proba(rows, as_batch=True, groups=place)
    np.testing.assert_array_equal(given, grouped.probabilities)
    assert np.abs(given - usual.probabilities).max() > 0.01
    assert np.abs(pipeline.predict_proba(rows) - usual.probabilities).max() > 0.01


def test_a_pipeline_with_metadata_routing_classifies_a_batch() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        last = model().set_predict_request(as_batch=True)
        pipeline = make_pipeline(FunctionTransformer(), last).fit(X, KNOWN)
        found = pipeline.predict(NEW, as_batch=True)
    np.testing.assert_array_equal(found, pipeline[-1].predict_batch(NEW))


def test_groups_of_single_rows_are_refused() -> None:
    fitted = model().fit(X, KNOWN)
    for predict in (fitted.predict, fitted.predict_proba):
        with pytest.raises(ValueError, match="must be True with groups or same, got False"):
            predict(NEW, groups=np.zeros(60, dtype=int))
        with pytest.raises(TypeError, match="as_batch must be True or False, got int"):
            predict(NEW, as_batch=1)


def test_a_pickle_has_nothing_of_the_rows_of_fit() -> None:
    """So its size depends on the classes alone, and it serves new rows as before."""
    sizes = []
    for copies in (1, 50):
        rows = np.concatenate([X, NEW.repeat(copies, 0)])
        y = np.concatenate([KNOWN, np.full(60 * copies, -1)])
        fitted = model().fit(rows, y, groups=np.arange(len(y)) % (10 * copies))
        data = pickle.dumps(fitted)
        sizes.append(len(data))
    assert sizes[1] < sizes[0] + 500
    loaded = pickle.loads(data)
    np.testing.assert_array_equal(loaded.predict_proba(NEW), fitted.predict_proba(NEW))
    np.testing.assert_array_equal(loaded.predict_batch(NEW), fitted.predict_batch(NEW))
    np.testing.assert_array_equal(loaded.novelty(NEW), fitted.novelty(NEW))
    assert loaded.prevalence_.estimate.shape == (K,)
    for name in ("transduction_", "label_distributions_", "doubt_", "groups_"):
        with pytest.raises(AttributeError, match=f"{name} is of the rows of fit, and a pickled"):
            getattr(loaded, name)
        for other in (copy.copy(fitted), copy.deepcopy(fitted)):
            np.testing.assert_array_equal(getattr(other, name), getattr(fitted, name))
    with pytest.raises(AttributeError, match="has no attribute 'transduction_'"):
        _ = model().transduction_


def test_a_model_of_another_rule_is_refused() -> None:
    """What version 0.2 pickled had a dual, and row logits a centre and weights."""
    rule = vars(PaddleClassifier().fit(np.eye(4), [0, 1, 0, 1])._fitted)
    with pytest.raises(ValueError, match="the model must be fitted again: it was saved by"):
        FittedAdaptive.__new__(FittedAdaptive).__setstate__({"likelihood": rule, "dual": None})
