"""Shared by the methods: layout of tasks, preprocessing, chunks."""

import pytest
import torch
from problems import largest, make_problem

from paddle_ext import task as layout
from paddle_ext.task import Task


def task_of(
    B: int = 3, *, shared: bool = False, base_mean: torch.Tensor | None = None, device: str = "cpu"
) -> Task:
    problem = make_problem(B=B, Q=7, K=4, D=5, shared=shared).to(device)
    support, labels, query = problem.inputs()
    if shared:
        support, labels = support.unsqueeze(0), labels.unsqueeze(0)
    return Task(support, labels, query, 4, base_mean)


# --- layout ---------------------------------------------------------------------------------------


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


# --- preprocessing --------------------------------------------------------------------------------


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
