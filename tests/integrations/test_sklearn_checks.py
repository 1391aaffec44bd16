"""scikit-learn's own suite of checks for estimators."""

import pytest

pytest.importorskip("sklearn")

from sklearn.utils import estimator_checks

from paddle_ext import PaddleClassifier

# scikit-learn exempts its own semi-supervised classifiers from this check by their names.
EXPECTED = {"check_classifiers_classes": "takes -1 for a class, where it means unlabelled"}


@pytest.mark.parametrize("scaling", [None, "auto", "minmax", "none"])
def test_scikit_learn(scaling: str | None) -> None:
    """Each scaling of PADDLE brings new rows into the coordinates of the fit in its own way."""
    paddle = {} if scaling is None else {"method": "paddle", "scaling": scaling}
    results = estimator_checks.check_estimator(
        PaddleClassifier(**paddle),
        expected_failed_checks=EXPECTED,
        on_skip=None,
        on_fail=None,
    )
    refused = (result for result in results if result["status"] not in ("passed", "skipped"))
    failed = {result["check_name"]: result["exception"] for result in refused}
    assert failed.keys() == EXPECTED.keys(), failed
    assert sum(result["status"] == "passed" for result in results) > 40


def test_classes() -> None:
    """The exempted check, as scikit-learn makes it for classifiers that know unlabelled rows."""
    estimator_checks.check_classifiers_classes("SelfTrainingClassifier", PaddleClassifier())
