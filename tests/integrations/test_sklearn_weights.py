"""Weights of labelled rows."""

from typing import Any

import numpy as np
import pytest
from estimator_batch import batch

pytest.importorskip("sklearn")

from paddle_ext import PaddleClassifier


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


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([1.0, 2.0], {}, r"^sample_weight must be numbers of shape \[\d+\], .* of shape \[2\]$"),
        (-1.0, {}, r"^sample_weight must be finite and at least 0, got -1\.0 in row 0$"),
        (np.nan, {}, r"^sample_weight must be finite and at least 0, got nan in row 0$"),
        (0.0, {}, r"^sample_weight must be more than zero for a labelled .* for all of class 0$"),
        ("heavy", {}, r"^sample_weight must be numbers of shape"),
        (1.0, {"method": "paddle"}, r"^sample_weight must be None unless method='adaptive'"),
    ],
)
def test_bad_weights(weights: Any, options: dict[str, Any], message: str) -> None:
    X, y, _ = batch()
    given = weights if isinstance(weights, list) else [weights] * len(y)
    with pytest.raises(ValueError, match=message):
        PaddleClassifier(**options).fit(X, y, sample_weight=given)
