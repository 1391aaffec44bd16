"""Guarantees of every method, whatever it computes."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

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
def test_forms_of_input(device: str, name: str) -> None:
    """Layouts, integer types, gradients and autocast change nothing, and nothing is modified.

    tests/test_contract.py has more of these for what all methods share.
    """
    problem = hard(2).to(device)
    before = copy.deepcopy(problem.inputs())
    want = fast(name).predict(*problem.inputs())
    for x, y in zip(before, problem.inputs(), strict=True):
        assert torch.equal(x, y)
    leaves = problem.map(lambda x: x.clone().requires_grad_())
    with torch.autocast(device, dtype=torch.bfloat16):
        got = fast(name).predict(*leaves.inputs(), num_classes=problem.num_classes)
    assert_prediction(got, problem)
    assert torch.equal(got.probabilities, want.probabilities)
    turned = problem.map(lambda x: x.mT.contiguous().mT)
    labels = problem.support_labels.to(torch.uint8).mT.contiguous().mT
    assert_close(fast(name).predict(*replace(turned, support_labels=labels).inputs()), want)
    half = problem.to(torch.float16)
    got = fast(name).predict(*half.inputs())
    assert_prediction(got, half)
    single = fast(name).predict(*half.to(torch.float32).inputs())
    assert torch.equal(got.probabilities, single.probabilities)


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


# --- invalid input: the rest is in tests/test_contract.py -----------------------------------------

D = 4
BAD: list[tuple[object, type[Exception], list[str]]] = [
    ([0.0] * D, TypeError, ["base_mean", "torch.Tensor", "list"]),
    (torch.zeros(D).long(), TypeError, ["base_mean", "float32", "int64"]),
    (torch.zeros(5), ValueError, ["base_mean", "[4]", "got [5]"]),
    (torch.zeros(1, D), ValueError, ["base_mean", "[4]", "got [1, 4]"]),
    (torch.zeros(D).double(), ValueError, ["base_mean", "precise", "float64"]),
    (torch.zeros(D, device="meta"), ValueError, ["base_mean", "one device"]),
    (torch.tensor([0.0, 0.0, math.inf, 0.0]), ValueError, ["finite", "got inf at [2]"]),
]


@pytest.mark.parametrize(("base_mean", "error", "words"), BAD)
def test_bad_base_mean(base_mean: Any, error: type[Exception], words: list[str]) -> None:
    problem = make_problem(B=2, Q=5, K=3, D=D)
    with pytest.raises(error) as caught:
        fast("simpleshot").predict(*problem.inputs(), base_mean=base_mean)
    message = str(caught.value)
    assert caught.type in REFUSALS[error]
    assert "\n" not in message
    assert all(word in message for word in [*words, ", got "]), message


@every_method
def test_bad_values(name: str) -> None:
    """Of the rows, whichever method looks for them."""
    problem = make_problem(B=2, Q=5, K=3, D=D, shots=(2, 2))
    for changes in ({}, {"num_classes": 3}):
        for which in ("support", "query"):
            rows = getattr(problem, which).clone()
            rows[1, 2, 3] = math.nan
            bad = replace(problem, **{which: rows})
            with pytest.raises(ValueError, match=rf"{which} must be finite, got nan at .1, 2, 3."):
                fast(name).predict(*bad.inputs(), **changes)
    with pytest.raises(ValueError, match=r"every class in \[0, 4\) .* class 3 in task 0"):
        fast(name).predict(*problem.inputs(), num_classes=4)


def test_base_mean_of_another_precision() -> None:
    half, mean = hard().to(torch.float16), torch.full((5,), 0.5)
    method = methods.create("simpleshot")
    got = method.predict(*half.inputs(), base_mean=mean)
    same = method.predict(*half.inputs(), base_mean=mean.half())
    assert torch.equal(got.probabilities, same.probabilities)
