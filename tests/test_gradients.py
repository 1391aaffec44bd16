"""Results have no gradient: who gives a tensor that requires one is warned, once."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import methods
from paddle_ext.native import devices

SUPPORT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.2], [0.1, 0.8]])
LABELS = torch.tensor([0, 1, 0, 1])
QUERY = torch.tensor([[0.2, 0.9], [0.8, 0.3], [0.7, 0.1]])
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "solve": lambda query: paddle_ext.solve(SUPPORT, LABELS, query).probabilities,
    "adaptive": lambda query: paddle_ext.adaptive(SUPPORT, LABELS, query).probabilities,
    "adapt": lambda query: paddle_ext.adapt(query).probabilities,
    "tim": lambda query: paddle_ext.tim(SUPPORT, LABELS, query, max_iter=3).probabilities,
    "simpleshot": lambda query: (
        methods.create("simpleshot").predict(SUPPORT, LABELS, query).probabilities
    ),
}


@pytest.fixture
def caught() -> list[warnings.WarningMessage]:
    """Warnings, as in a new process."""
    devices.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield record
    devices.warn_once.cache_clear()


@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_that_requires_a_gradient_causes_a_warning(
    name: str, caught: list[warnings.WarningMessage]
) -> None:
    """Once: the result has no gradient, so that a loss of it would train nothing."""
    weight = torch.ones(2, requires_grad=True)
    for _ in range(2):
        assert not CALLS[name](weight * QUERY).requires_grad
    (warning,) = caught
    assert str(warning.message).startswith("results of paddle_ext have no gradient, but were asked")


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_said_if_none_is_intended(
    name: str, caught: list[warnings.WarningMessage]
) -> None:
    weight = torch.ones(2, requires_grad=True)
    CALLS[name]((weight * QUERY).detach())
    with torch.no_grad():
        CALLS[name](weight * QUERY)
    with torch.inference_mode():
        CALLS[name](weight.detach() * QUERY)
    assert caught == []
