"""Guarantees of Sinkhorn's iteration besides the plan: forms of input, errors, operators."""

import math
from typing import Any

import pytest
import torch
from problems import Place, assert_same, largest
from transport_tasks import Tasks, agrees, call, make_tasks

import paddle_ext.solvers  # where the operators are registered
from paddle_ext import reference

# --- promises -------------------------------------------------------------------------------------


def test_shared_masses(place: Place) -> None:
    tasks = make_tasks(4, 20, 9, masses="shared")
    options = {"reg": 0.1, "max_iter": 9, "tol": 0.0}
    got = agrees(tasks, place, **options)
    rows, columns = tasks.row_mass.repeat(4, 1), tasks.col_mass.repeat(4, 1)
    assert_same(call(Tasks(tasks.cost, rows, columns), place, **options), got)
    assert_same(call(Tasks(tasks.cost, tasks.row_mass, columns), place, **options), got)


# --- errors ---------------------------------------------------------------------------------------

Q, K = 4, 3
GOOD = {
    "cost": torch.zeros(2, Q, K),
    "row_mass": torch.ones(Q),
    "col_mass": torch.full((K,), 4 / 3),
}
BAD: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"cost": [[0.0]]}, TypeError, ["cost", "torch.Tensor", "list"]),
    ({"cost": torch.zeros(2, Q, K).long()}, TypeError, ["cost", "float32", "int64"]),
    ({"row_mass": 1.0}, TypeError, ["row_mass", "torch.Tensor", "float"]),
    ({"col_mass": torch.ones(K).int()}, TypeError, ["col_mass", "int32"]),
    ({"cost": torch.zeros(Q)}, ValueError, ["cost", "[Q, K] or [B, Q, K]", "got [4]"]),
    ({"cost": torch.zeros(2, 0, K)}, ValueError, ["cost", "at least 1", "got [2, 0, 3]"]),
    ({"row_mass": torch.ones(5)}, ValueError, ["row_mass", "[4] or [2, 4]", "got [5]"]),
    ({"col_mass": torch.ones(3, K)}, ValueError, ["col_mass", "[3] or [2, 3]", "got [3, 3]"]),
    (
        {"cost": torch.zeros(Q, K), "row_mass": torch.ones(1, Q)},
        ValueError,
        ["row_mass must have shape [4], as cost", "got [1, 4]"],
    ),
    ({"col_mass": torch.ones(K, device="meta")}, ValueError, ["one device", "meta"]),
    ({"cost": torch.full((2, Q, K), math.nan)}, ValueError, ["cost must be finite", "nan at [0,"]),
    ({"cost": torch.full((2, Q, K), -math.inf)}, ValueError, ["cost must be finite", "got -inf"]),
    ({"row_mass": torch.tensor([1.0, -1, 2, 2])}, ValueError, ["row_mass", "-1 at [1]"]),
    ({"row_mass": torch.tensor([1.0, math.nan, 2, 1])}, ValueError, ["row_mass", "nan at [1]"]),
    ({"col_mass": torch.tensor([1.0, math.inf, 2])}, ValueError, ["col_mass", "inf at [1]"]),
    ({"col_mass": torch.tensor([1.0, 1e31, 2])}, ValueError, ["col_mass", "at most 1e+30"]),
    (
        {"row_mass": torch.zeros(Q), "col_mass": torch.zeros(K)},
        ValueError,
        ["row_mass must have a total > 0, got 0"],
    ),
    (
        {"row_mass": torch.tensor([[1.0] * Q, [0.0] * Q])},
        ValueError,
        ["row_mass must have a total > 0, got 0 in task 1"],
    ),
    ({"col_mass": torch.ones(K)}, ValueError, ["the total of row_mass, 4, ", "got 3"]),
    (
        {"col_mass": torch.tensor([[4 / 3] * K, [15.0] * K])},
        ValueError,
        ["the total of row_mass, 4, ", "got 45 in task 1"],
    ),
    ({"reg": 0.0}, ValueError, ["reg", "> 0", "got 0.0"]),
    ({"reg": math.inf}, ValueError, ["reg", "finite", "got inf"]),
    ({"reg": "1"}, TypeError, ["reg", "a number", "str"]),
    ({"max_iter": 0}, ValueError, ["max_iter", "got 0"]),
    ({"max_iter": 1.0}, TypeError, ["max_iter", "an integer", "float"]),
    ({"tol": -1.0}, ValueError, ["tol", ">= 0", "got -1.0"]),
    ({"validate": 1}, TypeError, ["validate", "True or False", "int"]),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_errors(case: int) -> None:
    changes, error, parts = BAD[case]
    with pytest.raises(error) as caught:
        paddle_ext.sinkhorn(**GOOD | {"reg": 1.0} | changes)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_bad_values_end_without_validation(place: Place) -> None:
    """Nothing is guaranteed for them, but the call returns."""
    tasks = make_tasks(2, 20, 9)
    for bad in (
        tasks._replace(cost=torch.full_like(tasks.cost, math.nan)),
        tasks._replace(row_mass=torch.zeros(20)),
        tasks._replace(col_mass=-tasks.col_mass),
    ):
        got = call(bad, place, reg=1.0, max_iter=30, validate=False)
        assert got.plan.shape == (2, 20, 9)


# --- only CUDA ------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_many_tasks() -> None:
    B = 70_000
    few = make_tasks(7, 5, 3).to("cuda")
    many = Tasks(*(x.repeat(B // 7, *[1] * (x.dim() - 1)) for x in few))
    got = paddle_ext.sinkhorn(*many, reg=0.1)
    want = paddle_ext.sinkhorn(*few, reg=0.1)
    for x, part in zip(got, want, strict=True):
        assert torch.equal(x, part.repeat(B // 7, *[1] * (part.dim() - 1)))


@pytest.mark.cuda
def test_very_large_task() -> None:
    tasks = make_tasks(2, 4000, 3000).to("cuda")
    got = paddle_ext.sinkhorn(*tasks, reg=0.1, max_iter=3, tol=0.0)
    want = reference.sinkhorn(*tasks.to(torch.float64), reg=0.1, max_iter=3, tol=0.0)
    assert largest(got.plan - want.plan) < 3e-6
