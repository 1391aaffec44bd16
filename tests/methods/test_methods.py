"""Guarantees of every method, whatever it computes, and what the methods share."""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from method_tasks import NAMES, assert_close, assert_prediction, fast, hard, nonnegative
from places import on_devices
from problems import NASTY, Problem, all_equal, largest, make_problem, one_direction, tied

from paddle_ext import methods
from paddle_ext import task as layout
from paddle_ext.task import Task

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
    """Of rows of both signs, and of rows like those after a ReLU."""
    problem = make_problem(**{"B": 3} | shape).to(device)
    for there in (problem, nonnegative(problem).to(torch.float64)):
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
    cpu_only=[("ici", True)],  # thousands of tiny kernels: test_ici.py has tasks of their own
)
def test_a_task_does_not_depend_on_its_batch(
    device: str, name: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on the chunk, nor on whether the tasks share one copy of the support."""
    problem, method = hard(3, shared=shared).to(device), fast(name)
    together = method.predict(*problem.inputs())
    for b in range(3):
        alone = method.predict(*problem.task(b).inputs())
        assert_close(methods.Prediction(*(x[b] for x in together)), alone)
    if shared:
        support, labels = problem.support.expand(3, -1, -1), problem.support_labels.expand(3, -1)
        assert_close(method.predict(support, labels, problem.query), together)
    monkeypatch.setitem(layout.BUDGET, device, 1)
    assert_close(method.predict(*problem.inputs()), together)


@every_method
def test_forms_of_input(device: str, name: str) -> None:
    """Gradients, autocast, layouts and half precision change nothing, and nothing is modified."""
    problem, method = hard(2).to(device), fast(name)
    before = copy.deepcopy(problem.inputs())
    want = method.predict(*problem.inputs())
    assert all(torch.equal(x, y) for x, y in zip(before, problem.inputs(), strict=True))
    leaves = problem.map(lambda x: x.clone().requires_grad_())
    for context in (torch.autocast(device, dtype=torch.bfloat16), torch.inference_mode()):
        with context:
            got = method.predict(*leaves.inputs(), num_classes=problem.num_classes)
        assert_prediction(got, problem)
        assert torch.equal(got.probabilities, want.probabilities)
    half = problem.to(torch.float16)
    single = half.to(torch.float32).map(lambda x: x.mT.contiguous().mT)
    assert_close(method.predict(*half.inputs()), method.predict(*single.inputs()))


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


@on_devices("name", everywhere=NATIVE, cpu_only=PLAIN_TORCH)
def test_nasty_tasks_get_an_answer(device: str, name: str) -> None:
    for make in (NASTY | MORE).values():
        nasty = nonnegative(make()).to(device)
        assert_prediction(fast(name).predict(*nasty.inputs(), num_classes=nasty.num_classes), nasty)


def test_base_mean_of_another_precision() -> None:
    half, mean = hard().to(torch.float16), torch.full((5,), 0.5)
    method = methods.create("simpleshot")
    got = method.predict(*half.inputs(), base_mean=mean)
    same = method.predict(*half.inputs(), base_mean=mean.half())
    assert torch.equal(got.probabilities, same.probabilities)


# --- chunks and preprocessing ---------------------------------------------------------------------


def task_of(B: int = 3, *, shared: bool = False, device: str = "cpu") -> Task:
    problem = make_problem(B=B, Q=7, K=4, D=5, shared=shared).to(device)
    support, labels, query = problem.inputs()
    if shared:
        support, labels = support.unsqueeze(0), labels.unsqueeze(0)
    return Task(support, labels, query, 4)


@pytest.mark.parametrize("shared", [False, True])
def test_chunks(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    task = task_of(B=7, shared=shared)
    seen: list[int] = []

    def solve(part: Task) -> torch.Tensor:
        seen.append(len(part.query))
        return part.query.sum((-2, -1)) + part.support.sum((-2, -1))

    want = solve(task)
    for budget, sizes in ((300, [3, 3, 1]), (100, [1] * 7), (1, [1] * 7), (700, [7])):
        monkeypatch.setitem(layout.BUDGET, "cpu", budget)
        seen.clear()
        assert torch.allclose(layout.in_chunks(solve, task, 100), want)
        assert seen == sizes


def test_centred_unit_rows() -> None:
    task = Task(
        torch.tensor([[[1.0, 1.0], [3.0, 1.0]]]),
        torch.tensor([[0, 1]]),
        torch.tensor([[[5.0, 5.0], [2.0, 0.0]]]),
        2,
    )
    support, query = layout.centred_unit_rows(task)  # the mean is (2, 1)
    assert largest(support - torch.tensor([[[-1.0, 0.0], [1.0, 0.0]]])) < 1e-6
    assert largest(query - torch.tensor([[[0.6, 0.8], [0.0, -1.0]]])) < 1e-6
    task = Task(task.support, task.support_labels, task.query, 2, torch.tensor([1.0, 2.0]))
    support, query = layout.centred_unit_rows(task)
    assert largest(query - torch.tensor([[[0.8, 0.6], [0.2**0.5, -2 * 0.2**0.5]]])) < 1e-6
    raw, l2n = layout.scaled(task, "none"), layout.scaled(task, "l2n")
    assert raw == (task.support, task.query)
    assert largest(l2n[1][0, 0] - 0.5**0.5) < 1e-6


def test_centring_with_a_large_offset(device: str) -> None:
    task = task_of(device=device)
    task = Task(task.support + 2e4, task.support_labels, task.query + 2e4, 4)
    exact = Task(task.support.double(), task.support_labels, task.query.double(), 4)
    for got, want in zip(
        layout.centred_unit_rows(task), layout.centred_unit_rows(exact), strict=True
    ):
        assert largest(got.double() - want) < 1e-5


def test_softmin() -> None:
    x = torch.tensor([[1.0, 2.0, 4.0], [5.0, 5.0, 9.0]])
    assert torch.allclose(layout.softmin(x, 0.7), torch.softmax(-0.7 * x, -1))
    sharpest = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    for sharpness in (1e20, 1e300):
        assert torch.equal(layout.softmin(x, sharpness), sharpest)
