"""Recipes: the paper's numbers, the learning rate of each step, and invalid settings."""

import math
from dataclasses import replace

import pytest

from paddle_ext.research.backbones import Recipe, recipe


def test_the_paper() -> None:
    paper, steps = recipe("paper"), 150 * 90
    rates = [paper.rate(epoch * 150 + 149, steps) for epoch in range(90)]
    assert rates == pytest.approx([0.1] * 45 + [0.01] * 21 + [0.001] * 24)
    assert (paper.label_smoothing, paper.momentum, paper.weight_decay) == (0.1, 0.9, 1e-4)
    assert (paper.batch_size, recipe("paper", "wideres").batch_size) == (256, 128)
    short = replace(paper, epochs=10)
    assert [short.rate(epoch, 10) for epoch in (4, 5, 7, 8)] == pytest.approx(
        [0.1, 0.01, 0.01, 0.001]
    )


def test_warmup_and_cosine() -> None:
    settings = Recipe(schedule="cosine", warmup=0.1, learning_rate=0.2)
    rates = [settings.rate(step, 1000) for step in range(1000)]
    assert rates[0] < 0.003
    assert max(rates) == rates[100] == pytest.approx(0.2)
    assert rates[550] == pytest.approx(0.1)
    assert rates[-1] < 1e-5
    assert rates[:101] == sorted(rates[:101])
    assert rates[100:] == sorted(rates[100:], reverse=True)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs": 0}, ValueError, r"epochs must be an integer in \[1, \d+\], got 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an integer, got float"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be finite and > 0, got 0"),
        ({"momentum": 1.0}, ValueError, r"momentum must be in \[0, 1\)"),
        ({"schedule": "linear"}, ValueError, "schedule must be one of 'steps', 'cosine'"),
        ({"weight_decay": math.inf}, ValueError, "weight_decay must be finite and >= 0"),
        ({"momentum": 0.0, "nesterov": True}, ValueError, "momentum must be > 0 with nesterov"),
    ],
)
def test_bad_recipes(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Recipe(**arguments)


def test_unknown_recipe() -> None:
    with pytest.raises(ValueError, match="name must be one of 'paper', 'strong', 'small', got 'x'"):
        recipe("x")
