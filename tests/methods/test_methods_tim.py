"""The methods on top of TIM: TIM-GD, alpha-TIM, TIM-ADM and the baseline."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import Place, largest
from tim_tasks import ADM, ALPHA, overlapping, solve

from paddle_ext import methods

METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # options for speed; what they are in terms of `tim`
    "tim": ({"max_iter": 12}, {}),
    "alpha_tim": ({"max_iter": 12}, ALPHA),
    "tim_adm": ({"max_iter": 12}, ADM),
    "baseline": ({"max_iter": 12}, {"weights": (1.0, 0.0, 0.0), "learning_rate": 1e-3}),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("form", ["one", "own", "shared"])
def test_methods(place: Place, name: str, form: str) -> None:
    problem = overlapping(B=None if form == "one" else 3, shared=form == "shared", seed=18)
    options, meaning = METHODS[name]
    method = methods.create(name, **options)
    got = method.predict(*place.put(problem).inputs(), num_classes=problem.num_classes)
    want = solve(place, problem, **options | meaning)
    assert torch.equal(got.probabilities, want.probabilities)
    assert got.labels.shape == problem.query.shape[:-1]
    raw = methods.create(name, normalize=False, **options).predict(*place.put(problem).inputs())
    want = solve(place, problem, normalize=False, **options | meaning)
    assert torch.equal(raw.probabilities, want.probabilities)


DEFAULTS = {
    "tim": "Tim(temperature=15.0, learning_rate=0.0001, max_iter=2000, normalize=True, "
    "weights=(1.0, 0.3, 1.0))",
    "alpha_tim": "AlphaTim(temperature=15.0, learning_rate=0.0001, max_iter=1000, normalize=True, "
    "weights=(1.0, 1.0, 1.0), alphas=(1.0, 7.0, 5.0))",
    "tim_adm": "TimAdm(temperature=15.0, learning_rate=1.0, max_iter=150, normalize=True, "
    "weights=(0.1, 1.0, 0.1))",
    "baseline": "Baseline(temperature=15.0, learning_rate=0.001, max_iter=100, normalize=True)",
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_public_defaults(name: str) -> None:
    for preset in (None, "mini", "tiered", "inat"):
        assert repr(methods.create(name, preset)) == DEFAULTS[name]
    assert all(option.help for option in methods.describe(name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": (1.0, 2.0)}, "weights must"),
        ({"weights": (-1.0, 2.0, 1.0)}, r"weights\[0\] must be finite and >= 0, got -1"),
        ({"alphas": (1.0, 0.0, 1.0)}, r"alphas\[1\] must be finite and > 0"),
    ],
)
def test_bad_triples(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        methods.create("alpha_tim", **options)


def test_baseline_does_not_look_at_other_queries(place: Place) -> None:
    problem = overlapping(seed=20)
    method = methods.create("baseline", max_iter=10)
    together = method.predict(*place.put(problem).inputs()).probabilities
    for q in (0, 7):
        one = replace(problem, query=problem.query[q : q + 1])
        alone = method.predict(*place.put(one).inputs()).probabilities
        assert largest(alone - together[q : q + 1]) < 1e-5
