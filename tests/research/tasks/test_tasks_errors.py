"""Tasks that cannot be drawn: rejected before any work, in one sentence."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paddle_ext.research.tasks import TaskSampler


def even_labels(classes: int, size: int) -> Tensor:
    return torch.arange(classes).repeat_interleave(size)


def refused(error: type[Exception], message: str, *labels: Any, **changes: Any) -> None:
    call: dict[str, Any] = {"shots": 2, "n_query": 12, "k_eff": 3} | changes
    with pytest.raises(error, match=re.escape(message)) as caught:
        TaskSampler(labels[0] if labels else even_labels(5, 20), **call)
    assert "\n" not in str(caught.value)
    assert ", got " in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shots": 2.0}, "shots must be an integer, got float"),
        ({"shots": True}, "shots must be an integer, got bool"),
        ({"n_query": "9"}, "n_query must be an integer, got str"),
        ({"k_eff": None}, "k_eff must be an integer, got None"),
        ({"num_classes": "full"}, "num_classes must be an integer, got str"),
        ({"sampling": ["uniform"]}, "sampling must be a string, got list"),
        ({"alpha": "1"}, "alpha must be a number, got str"),
        ({"seed": 1.5}, "seed must be an integer, got float"),
        ({"support": [1, 2]}, "support must be a torch.Tensor, got list"),
        ({"query": torch.zeros(3)}, "query must be a tensor of integers, got float32"),
    ],
)
def test_types(changes: dict[str, Any], message: str) -> None:
    refused(TypeError, message, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shots": -1}, "shots must be an integer in [0,"),
        ({"n_query": 0}, "n_query must be an integer in [1,"),
        ({"num_classes": 6}, "num_classes must be at most the number of classes, 5, got 6"),
        ({"k_eff": 6}, "k_eff must be at most the number of candidate classes, 5, got 6"),
        (
            {"k_eff": 5, "num_classes": 4},
            "k_eff must be at most the number of candidate classes, 4",
        ),
        ({"sampling": "even"}, "sampling must be one of 'uniform', 'balanced', 'dirichlet', got"),
        ({"alpha": 0.0}, "alpha must be finite and > 0, got 0.0"),
        ({"alpha": float("nan")}, "alpha must be finite and > 0, got nan"),
        ({"seed": -1}, "seed must be an integer in [0, 18446744073709551615], got -1"),
        ({"seed": 2**64}, "seed must be an integer in [0, 18446744073709551615], got"),
        ({"shots": None}, "support or query must be given with shots=None, got neither"),
        (
            {"shots": None, "support": torch.arange(0, 100, 2), "num_classes": 4},
            "num_classes must be None with shots=None, got 4",
        ),
        ({"shots": 0, "num_classes": 4}, "num_classes must be None with shots=0, got 4"),
        ({"support": torch.tensor([[1]])}, "support must have shape [n] with n at least 1, got"),
        ({"query": torch.tensor([100])}, "query must be in [0, 100), got 100"),
        ({"query": torch.tensor([-1])}, "query must be in [0, 100), got -1"),
        ({"query": torch.tensor([4, 4])}, "query must not have a row twice, got 4 more than once"),
        ({"query": torch.arange(100)}, "query must leave rows for the rest of a task, got all"),
        (
            {"support": torch.arange(51), "query": torch.arange(50, 100)},
            "support and query must have no row in common, got 50 in both",
        ),
    ],
)
def test_values(changes: dict[str, Any], message: str) -> None:
    refused(ValueError, message, **changes)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(2, 2).long(), "labels must have shape [N] with N in [1,"),
        (torch.zeros(0).long(), "labels must have shape [N] with N in [1,"),
        (torch.tensor([0, -2]), "labels must be at least 0, or -1 for no class, got -2"),
        (torch.tensor([-1, -1]), "labels must have a class in [0,"),
        (torch.tensor([0, 2, 2]), "every class in [0, 3) at least once, got none of class 1"),
        (torch.tensor([4, 4]), "every class in [0, 5) at least once, got none of class 0"),
        (torch.tensor([0, 2**40]), "labels must have a class in [0, 2147483647), got at most"),
    ],
)
def test_labels(labels: Tensor, message: str) -> None:
    refused(ValueError, message, labels)


def test_rows_without_a_class() -> None:
    labels = even_labels(5, 20)
    labels[7] = -1
    refused(
        ValueError,
        "query must have rows of a class, got 7, whose label is -1",
        labels,
        query=torch.tensor([7]),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"shots": 12},
            "shots must be at most the rows of every class for the support, 10 of class 1",
        ),
        ({"shots": 10}, "1 or more samples for the queries outside the support, got 0 of class 1"),
        (
            {"shots": 4, "n_query": 15, "k_eff": 2, "sampling": "balanced"},
            "8 or more samples for the queries outside the support, got 6 of class 1",
        ),
        (
            {"shots": 4, "n_query": 19, "k_eff": 2},
            "at most 18, the rows of the 2 smallest classes outside the support (6 of class 1),",
        ),
        (
            {"shots": 4, "n_query": 19, "k_eff": 2, "sampling": "dirichlet"},
            "n_query must be at most 18,",
        ),
        (
            {"support": torch.arange(30)},
            "the rows of every class for the support, 0 of class 2, got 2",
        ),
        (
            {"shots": None, "support": torch.arange(30)},
            "support must have a row of every class, got none of class 2",
        ),
    ],
)
def test_too_small_classes(changes: dict[str, Any], message: str) -> None:
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([20, 10, 16]))
    refused(ValueError, message, labels, **changes)


@pytest.mark.parametrize(
    ("start", "count", "error", "message"),
    [
        (-1, 1, ValueError, "start must be an integer in [0, 9223372036854775807], got -1"),
        (0, 0, ValueError, "count must be an integer in [1,"),
        (0.0, 1, TypeError, "start must be an integer, got float"),
        (0, None, TypeError, "count must be an integer, got None"),
        (2**63 - 1, 1, ValueError, "start + count must be an integer in [0,"),
    ],
)
def test_batch_numbers(start: Any, count: Any, error: type[Exception], message: str) -> None:
    sampler = TaskSampler(even_labels(5, 30), shots=2)
    with pytest.raises(error, match=re.escape(message)):
        sampler.batch(start, count)
    assert sampler.batch(np.int64(2**62), np.int32(2)).query_index.shape == (2, 75)
