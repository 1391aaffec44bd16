"""Promises of TIM besides correct numbers: forms of input, independence, errors, the operator."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import Place, Problem, assert_same, largest, make_problem
from tim_tasks import (
    ADM,
    PROTOTYPES,
    VARIANTS,
    agrees,
    overlapping,
    run,
    solve,
)

import paddle_ext.solvers  # where the operators are registered
from paddle_ext import TimSolution

# --- forms of input -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_shared_support(place: Place, variant: str) -> None:
    problem = overlapping(B=3, shared=True, seed=1)
    options = {"max_iter": 15} | VARIANTS[variant]
    shared = agrees(place, problem, **options)
    support, labels = problem.support.expand(3, -1, -1), problem.support_labels.expand(3, -1)
    repeated = solve(place, replace(problem, support=support, support_labels=labels), **options)
    assert largest(repeated.prototypes - shared.prototypes) < PROTOTYPES[place.dtype]


def test_shared_support_far_from_the_queries_of_a_task(place: Place) -> None:
    problem = overlapping(B=3, shared=True, seed=2)
    moved = problem.query * torch.tensor([1.0, 1e-3, 8.0]).view(3, 1, 1)
    moved = moved + torch.tensor([0.0, 50.0, -3.0]).view(3, 1, 1)
    agrees(place, replace(problem, query=moved), max_iter=10, normalize=False, temperature=0.1)


def test_losses_only_on_demand(place: Place) -> None:
    problem = overlapping(B=2, seed=8)
    plain = solve(place, problem, max_iter=9)
    assert plain.losses is None
    traced = solve(place, problem, max_iter=9, return_losses=True)
    assert traced.losses is not None
    assert traced.losses.shape == (9, 2)
    assert_same(traced._replace(losses=None), plain)
    one = solve(place, problem.task(0), max_iter=9, return_losses=True)
    assert one.losses is not None
    assert torch.equal(one.losses, traced.losses[:, 0])


# --- independence -------------------------------------------------------------------------------


def at(batch: TimSolution, b: int) -> TimSolution:
    """One task's part of a result."""
    losses = None if batch.losses is None else batch.losses[:, b]
    return TimSolution(batch.labels[b], batch.probabilities[b], batch.prototypes[b], losses)


def test_order_of_rows_and_classes(place: Place) -> None:
    problem, options = overlapping(Q=15, K=6, seed=12), {"max_iter": 20}
    random = torch.Generator().manual_seed(1)
    w, tolerance = solve(place, problem, **options).prototypes, PROTOTYPES[place.dtype]
    rows = torch.randperm(len(problem.support), generator=random)
    shuffled = Problem(
        problem.support[rows], problem.support_labels[rows], problem.query.flip(0), 6
    )
    assert largest(solve(place, shuffled, **options).prototypes - w) < tolerance
    classes = torch.randperm(6, generator=random)
    renamed = replace(problem, support_labels=classes[problem.support_labels])
    assert largest(solve(place, renamed, **options).prototypes[classes] - w) < tolerance


def test_equal_classes_go_to_the_smaller(place: Place) -> None:
    support = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    problem = Problem(support, torch.tensor([2, 1, 0]), torch.tensor([[2.0, 1.0]]), 3)
    weights = (0.0, 0.0, 0.0)
    for options in ({"weights": weights}, ADM | {"weights": weights}):
        assert solve(place, problem, max_iter=1, **options).labels.tolist() == [1]


# --- errors -------------------------------------------------------------------------------------


def call(**changes: Any) -> dict[str, Any]:
    """A valid call, with changes."""
    problem = make_problem(B=2, Q=5, K=3, D=4)
    good = dict(zip(("support", "support_labels", "query"), problem.inputs(), strict=True))
    return good | {"max_iter": 2} | changes


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"solver": "sgd"}, ValueError, "solver must be one of 'gd', 'adm', got 'sgd'"),
    ({"solver": 1}, TypeError, "solver must be a string, got int"),
    ({"weights": 1.0}, TypeError, "weights must be three numbers, got float"),
    ({"weights": "abc"}, TypeError, "weights must be three numbers, got str"),
    ({"weights": (1.0, 1.0)}, ValueError, "weights must be three numbers, got 2"),
    ({"weights": (1.0, -1.0, 1.0)}, ValueError, "weights[1] must be finite and >= 0, got -1.0"),
    ({"weights": (1.0, 1.0, "x")}, TypeError, "weights[2] must be a number, got str"),
    ({"alphas": None}, TypeError, "alphas must be three numbers, got None"),
    ({"alphas": (1.0, 1.0, 0.0)}, ValueError, "alphas[2] must be finite and > 0, got 0.0"),
    (
        {"alphas": (float("nan"), 1.0, 1.0)},
        ValueError,
        "alphas[0] must be finite and > 0, got nan",
    ),
    ({"alphas": (1, 7, 5), "solver": "adm"}, ValueError, "alphas must be (1.0, 1.0, 1.0)"),
    ({"temperature": 0.0}, ValueError, "temperature must be finite and > 0, got 0.0"),
    ({"temperature": "hot"}, TypeError, "temperature must be a number, got str"),
    ({"learning_rate": 0}, ValueError, "learning_rate must be finite and > 0, got 0"),
    (
        {"learning_rate": float("inf")},
        ValueError,
        "learning_rate must be finite and > 0, got inf",
    ),
    ({"max_iter": 0}, ValueError, "max_iter must be an integer in [1, 2147483647], got 0"),
    ({"max_iter": 2.0}, TypeError, "max_iter must be an integer, got float"),
    ({"normalize": 1}, TypeError, "normalize must be True or False, got int"),
    ({"return_losses": None}, TypeError, "return_losses must be True or False, got None"),
    ({"validate": "no"}, TypeError, "validate must be True or False, got str"),
    ({"validate": False}, ValueError, "num_classes must be given with validate=False"),
    ({"num_classes": 4}, ValueError, "support_labels must have every class in [0, 4)"),
    ({"num_classes": 2}, ValueError, "support_labels must be in [0, 2), got 2"),
    ({"support": [1.0]}, TypeError, "support must be a torch.Tensor, got list"),
    ({"query": torch.zeros(2, 5, 4).double()}, ValueError, "query must have the dtype of support"),
    ({"query": torch.zeros(2, 5, 3)}, ValueError, "query must have as many features as support"),
    ({"query": torch.full((2, 5, 4), torch.nan)}, ValueError, "query must be finite, got nan"),
    ({"support_labels": torch.zeros(2, 5)}, TypeError, "support_labels must be a tensor of int"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_bad_input(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        paddle_ext.tim(**call(**changes))
    assert message in str(caught.value)
    assert "got " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_out_of_range_without_validation(place: Place) -> None:
    # Undefined, but inside its memory.
    problem = place.put(overlapping(seed=14))
    for label in (-1, 5, 2**40):
        labels = problem.support_labels.clone()
        labels[0] = label
        bad = replace(problem, support_labels=labels)
        run(bad, max_iter=2, validate=False)
