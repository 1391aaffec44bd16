"""Guarantees of every method, whatever it computes."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from method_tasks import NAMES, assert_close, assert_prediction, fast, hard, nonnegative
from places import on_devices
from problems import NASTY, REFUSALS, Problem, all_equal, make_problem, one_direction, tied

from paddle_ext import methods

pytestmark = pytest.mark.usefixtures("one_thread")

every_method = pytest.mark.parametrize("name", NAMES)
# On CUDA these run the same lines of torch as on the CPU, whatever the numbers are.
PLAIN_TORCH = ["bd_cspn", "ici", "laplacian_shot", "paddle_pgd", "simpleshot"]
NATIVE = [name for name in NAMES if name not in PLAIN_TORCH]


# --- good input -----------------------------------------------------------------------------------


@on_devices(
    "name, shape",
    everywhere=product(NAMES, [{}, {"B": None}, {"shared": True}]),
    cpu_only=product(NAMES, [{"B": 1}, {"B": 1, "shared": True}]),
)
def test_shapes_and_simplex(device: str, name: str, shape: dict[str, Any]) -> None:
    problem = nonnegative(make_problem(**{"B": 3} | shape)).to(device)
    for dtype in (torch.float32, torch.float64):
        there = problem.to(dtype)
        assert_prediction(fast(name).predict(*there.inputs()), there)


@every_method
def test_easy_tasks_are_solved(device: str, name: str) -> None:
    """Distant classes with five shots, all of them present: no method may fail here."""
    labels = torch.arange(4).repeat(6)
    random = torch.Generator().manual_seed(0)
    centres = 10 * torch.eye(4).repeat(1, 8)
    rows = (centres[labels] + 0.3 * torch.randn(24, 32, generator=random)).abs()
    problem = Problem(rows[:20], labels[:20], rows[4:], 4).to(device)
    got = fast(name).predict(*problem.inputs())
    assert torch.equal(got.labels.cpu(), labels[4:])


@on_devices(
    "name, shared",
    everywhere=product([name for name in NAMES if name != "ici"], [False, True]),
    cpu_only=product(["ici"], [False, True]),  # thousands of tiny kernels: see test_ici.py
)
def test_a_task_does_not_depend_on_its_batch(device: str, name: str, shared: bool) -> None:
    problem = hard(4, shared=shared).to(device)
    method = fast(name)
    together = method.predict(*problem.inputs())
    for b in range(4):
        alone = method.predict(*problem.task(b).inputs())
        assert_close(methods.Prediction(*(x[b] for x in together)), alone)
    if shared:
        repeated = replace(
            problem,
            support=problem.support.expand(4, -1, -1),
            support_labels=problem.support_labels.expand(4, -1),
        )
        assert_close(method.predict(*repeated.inputs()), together)


@every_method
def test_two_runs_are_equal(device: str, name: str) -> None:
    problem = hard(3).to(device)
    first, second = (fast(name).predict(*problem.inputs()) for _ in range(2))
    assert torch.equal(first.probabilities, second.probabilities)


@every_method
def test_input_is_not_modified(name: str) -> None:
    for problem in (hard(), hard(2), hard(2, shared=True), hard(2).to(torch.float64)):
        base_mean = problem.support.reshape(-1, 5).mean(0)
        before = copy.deepcopy((*problem.inputs(), base_mean))
        fast(name).predict(*problem.inputs(), base_mean=base_mean)
        after = (*problem.inputs(), base_mean)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@on_devices(
    "name, dtype",
    everywhere=product(NAMES, [torch.float16]),
    cpu_only=product(NAMES, [torch.bfloat16]),
)
def test_half_precision(device: str, name: str, dtype: torch.dtype) -> None:
    problem = hard(2).to(dtype).to(device)
    got = fast(name).predict(*problem.inputs())
    assert_prediction(got, problem)
    single = problem.to(torch.float32)
    assert torch.equal(got.probabilities, fast(name).predict(*single.inputs()).probabilities)


@every_method
def test_any_layout_of_tensors(name: str) -> None:
    problem = hard(2)
    want = fast(name).predict(*problem.inputs())
    turned = problem.map(lambda x: x.mT.contiguous().mT)
    labels = problem.support_labels.to(torch.uint8).mT.contiguous().mT
    turned = replace(turned, support_labels=labels)
    assert_close(fast(name).predict(*turned.inputs()), want)


@every_method
def test_leaves_with_gradients_and_autocast(device: str, name: str) -> None:
    problem = hard(2).to(device)
    want = fast(name).predict(*problem.inputs())
    leaves = problem.map(lambda x: x.clone().requires_grad_())
    with torch.autocast(device, dtype=torch.bfloat16):
        got = fast(name).predict(*leaves.inputs())
    assert_prediction(got, problem)
    assert torch.equal(got.probabilities, want.probabilities)


@every_method
def test_number_of_classes(name: str) -> None:
    problem = hard(2)
    want = fast(name).predict(*problem.inputs())
    given = fast(name).predict(*problem.inputs(), num_classes=problem.num_classes)
    assert torch.equal(given.probabilities, want.probabilities)


@every_method
def test_no_tasks(name: str) -> None:
    for shared in (False, True):
        problem = make_problem(B=0, Q=5, K=4, D=3, shared=shared)
        got = fast(name).predict(*problem.inputs(), num_classes=4)
        assert_prediction(got, problem)
    nobody = make_problem(B=0, Q=5, K=4, D=3)
    assert fast(name).predict(*nobody.inputs()).probabilities.shape == (0, 5, 0)


@on_devices("name", NATIVE, cpu_only=PLAIN_TORCH)
def test_negative_features(device: str, name: str) -> None:
    problem = make_problem(B=2).to(device)
    assert float(problem.query.min()) < 0
    assert_prediction(fast(name).predict(*problem.inputs()), problem)


# --- nasty input ----------------------------------------------------------------------------------


def zero_queries() -> Problem:
    problem = make_problem(B=2, Q=6, K=3, D=4)
    return replace(problem, query=torch.zeros_like(problem.query))


MORE: dict[str, Callable[[], Problem]] = {
    "one shot": lambda: make_problem(B=2, Q=10, K=5, D=6, shots=(1, 1)),
    "K > Q": lambda: make_problem(B=2, Q=4, K=11, D=6),
    "one feature": lambda: make_problem(B=2, Q=7, K=3, D=1),
    "one query each": lambda: make_problem(B=3, Q=1, K=3, D=4),
    "zeros": lambda: make_problem(B=2, Q=6, K=3, D=4).map(torch.zeros_like),
    "zero queries": zero_queries,
    "one of all": lambda: make_problem(Q=1, K=1, D=1, shots=(1, 1)),
    "tied": tied,
    "all equal": all_equal,
    "one direction": one_direction,
    "largest": lambda: make_problem(Q=6, K=3, D=4).map(lambda x: x * 1e28),
    "smallest": lambda: make_problem(Q=6, K=3, D=4).map(lambda x: x * 1e-36),
}


@on_devices(
    "name, problem",
    everywhere=product(NATIVE, [*NASTY, *MORE]),
    cpu_only=product(PLAIN_TORCH, [*NASTY, *MORE]),
)
def test_nasty_tasks_get_an_answer(device: str, name: str, problem: str) -> None:
    nasty = nonnegative((NASTY | MORE)[problem]()).to(device)
    assert_prediction(fast(name).predict(*nasty.inputs(), num_classes=nasty.num_classes), nasty)


@every_method
def test_duplicated_samples(name: str) -> None:
    """Copies of a query get the same result."""
    base = nonnegative(make_problem(Q=8, K=4, D=6))
    doubled = replace(base, query=base.query.repeat(2, 1))
    got = fast(name).predict(*doubled.inputs())
    assert torch.equal(got.labels[:8], got.labels[8:])


# --- invalid input --------------------------------------------------------------------------------

B, Q, S, K, D = 2, 5, 6, 3, 4
LABELS = torch.arange(S).remainder(K).repeat(B, 1)


def call(**changes: Any) -> dict[str, Any]:
    """A valid call, with changes."""
    random = torch.Generator().manual_seed(0)
    good = {
        "support": torch.rand(B, S, D, generator=random),
        "support_labels": LABELS,
        "query": torch.rand(B, Q, D, generator=random),
    }
    return good | changes


def with_value(x: torch.Tensor, value: float, *place: int) -> torch.Tensor:
    x = x.clone()
    x[place] = value
    return x


BAD: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"support": [[0.0]]}, TypeError, ["support", "list"]),
    ({"query": np.zeros((B, Q, D), complex)}, TypeError, ["query", "array of complex128"]),
    ({"query": torch.zeros(B, Q, D).long()}, TypeError, ["query", "int64"]),
    ({"support_labels": LABELS.float()}, TypeError, ["support_labels", "float32"]),
    ({"num_classes": 3.0}, TypeError, ["num_classes", "an integer", "float"]),
    ({"num_classes": 0}, ValueError, ["num_classes", "got 0"]),
    ({"num_classes": 4}, ValueError, ["every class in [0, 4)", "class 3 in task 0"]),
    ({"num_classes": 2}, ValueError, ["support_labels", "[0, 2)", "got 2"]),
    ({"query": torch.zeros(Q)}, ValueError, ["query", "[Q, D] or [B, Q, D]"]),
    ({"query": torch.zeros(Q, D)}, ValueError, ["query", "batch dimension"]),
    ({"query": torch.zeros(3, Q, D)}, ValueError, ["query", "as many tasks", "got 3"]),
    ({"query": torch.zeros(B, Q, 9)}, ValueError, ["query", "as many features", "got 9"]),
    ({"query": torch.zeros(B, 0, D)}, ValueError, ["query", "at least one row"]),
    ({"query": torch.zeros(B, Q, D).double()}, ValueError, ["query", "dtype", "got float64"]),
    ({"query": torch.zeros(B, Q, D, device="meta")}, ValueError, ["one device", "meta"]),
    ({"query": torch.full((B, Q, D), math.nan)}, ValueError, ["query must be finite", "nan"]),
    ({"query": torch.full((B, Q, D), math.inf)}, ValueError, ["query must be finite", "inf"]),
    ({"query": torch.full((B, Q, D), 1e31)}, ValueError, ["query must be at most 1e+30"]),
    (
        {"support": with_value(torch.zeros(B, S, D), math.nan, 1, 2, 3)},
        ValueError,
        ["support must be finite", "[1, 2, 3]"],
    ),
    (
        {"support_labels": with_value(LABELS, 7, 1, 0)},
        ValueError,
        ["every class", "class 3 in task 0"],
    ),
    ({"support_labels": with_value(LABELS, -1, 0, 0)}, ValueError, ["at least 0", "got -1"]),
    ({"support_labels": LABELS * 0 + 1}, ValueError, ["got none of class 0 in task 0"]),
    ({"support_labels": LABELS[0]}, ValueError, ["one label for each row", "got [6]"]),
    ({"base_mean": [0.0] * D}, TypeError, ["base_mean", "torch.Tensor", "list"]),
    ({"base_mean": torch.zeros(D).long()}, TypeError, ["base_mean", "float32", "int64"]),
    ({"base_mean": torch.zeros(5)}, ValueError, ["base_mean", "[4]", "got [5]"]),
    ({"base_mean": torch.zeros(1, D)}, ValueError, ["base_mean", "[4]", "got [1, 4]"]),
    ({"base_mean": torch.zeros(D).double()}, ValueError, ["base_mean", "precise", "float64"]),
    ({"base_mean": torch.zeros(D, device="meta")}, ValueError, ["base_mean", "one device"]),
    (
        {"base_mean": with_value(torch.zeros(D), math.inf, 2)},
        ValueError,
        ["base_mean must be finite", "got inf at [2]"],
    ),
]


@every_method
def test_bad_input(name: str) -> None:
    method = fast(name)
    assert method.predict(**call()).labels.shape == (B, Q)
    for changes, error, words in BAD:
        with pytest.raises(error) as caught:
            method.predict(**call(**changes))
        message = str(caught.value)
        assert caught.type in REFUSALS[error]
        assert "\n" not in message
        assert ", got " in message, message
        for word in words:
            assert word in message, message


def test_base_mean_of_another_precision() -> None:
    half = {key: call()[key].half() for key in ("support", "query")}
    mean = torch.full((D,), 0.5)
    method = methods.create("simpleshot")
    got = method.predict(**call(**half), base_mean=mean)
    same = method.predict(**call(**half), base_mean=mean.half())
    assert torch.equal(got.probabilities, same.probabilities)
