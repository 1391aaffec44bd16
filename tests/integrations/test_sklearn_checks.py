"""scikit-learn's own suite of checks for estimators."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("sklearn")

from sklearn.utils import estimator_checks

from paddle_ext import PaddleClassifier

SCALINGS = ("auto", "minmax", "none")
# scikit-learn exempts its own semi-supervised classifiers from this check by their names.
EXPECTED = {"check_classifiers_classes": "takes -1 for a class, where it means unlabelled"}


def checks() -> Iterator[Any]:
    """For each scaling: each brings new rows into the coordinates of the fit in its own way."""
    for scaling in SCALINGS:
        yield from estimator_checks.estimator_checks_generator(
            PaddleClassifier(scaling=scaling), expected_failed_checks=EXPECTED, mark="xfail"
        )


def name(value: Any) -> str:
    return value.scaling if isinstance(value, PaddleClassifier) else value.func.__name__


# A list, for scikit-learn's parametrize_with_checks may hand pytest a generator, which it refuses.
@pytest.mark.parametrize(("estimator", "check"), list(checks()), ids=name)
def test_scikit_learn(estimator: PaddleClassifier, check: Any) -> None:
    check(estimator)


def test_classes() -> None:
    """The exempted check, as scikit-learn makes it for classifiers that know unlabelled rows."""
    estimator_checks.check_classifiers_classes("SelfTrainingClassifier", PaddleClassifier())
