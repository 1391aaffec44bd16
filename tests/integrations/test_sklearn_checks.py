"""scikit-learn's own suite of checks for estimators."""

import pytest

pytest.importorskip("sklearn")

from sklearn.utils import estimator_checks

from paddle_ext import PaddleClassifier

# scikit-learn exempts its own semi-supervised classifiers from the first by their names.
EXPECTED = {
    "check_classifiers_classes": "takes -1 for a class, where it means unlabelled",
    "check_sample_weight_equivalence_on_dense_data": "a row that is there twice vouches for itself",
}
NO_WEIGHTS = dict.fromkeys(
    (
        "check_all_zero_sample_weights_error",
        "check_classifiers_one_label_sample_weights",
        "check_sample_weights_list",
        "check_sample_weights_not_an_array",
        "check_sample_weights_not_overwritten",
        "check_sample_weights_pandas_series",
        "check_sample_weights_shape",
    ),
    "PADDLE knows no weights of rows, and says so",
)


@pytest.mark.parametrize("scaling", [None, "auto", "minmax", "none"])
def test_scikit_learn(scaling: str | None) -> None:
    """Each scaling of PADDLE brings new rows into the coordinates of the fit in its own way."""
    paddle = {} if scaling is None else {"method": "paddle", "scaling": scaling}
    expected = EXPECTED | (NO_WEIGHTS if paddle else {})
    results = estimator_checks.check_estimator(
        PaddleClassifier(**paddle), expected_failed_checks=expected, on_skip=None, on_fail=None
    )
    refused = [result for result in results if result["status"] not in ("passed", "skipped")]
    failed = {result["check_name"]: result["exception"] for result in refused}
    made = {result["check_name"] for result in results}  # scikit-learn 1.6 has fewer
    assert EXPECTED.keys() <= made
    assert failed.keys() == expected.keys() & made, failed
    for name in NO_WEIGHTS.keys() & failed.keys():
        assert any(word in str(failed[name]) for word in ("sample_weight", "one label")), name
    assert sum(result["status"] == "passed" for result in results) > 40


def test_classes() -> None:
    """The exempted check, as scikit-learn runs it for classifiers with unlabelled rows."""
    estimator_checks.check_classifiers_classes("SelfTrainingClassifier", PaddleClassifier())
