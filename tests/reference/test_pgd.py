"""PGD: gradients, projection, the sign of the entropy, and that u keeps moving."""

import doctest
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import SCALINGS, assert_on_simplex, largest, make_problem

from paddle_ext import reference
from paddle_ext.reference.paddle import Task, batched, prepare
from paddle_ext.reference.pgd import objective, simplex_project


@given(
    rows=st.lists(
        st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=4), min_size=1, max_size=4
    )
)
def test_projection_is_the_nearest_point(rows: list[list[float]]) -> None:
    x = torch.tensor(rows, dtype=torch.float64)
    p = simplex_project(x)
    assert (p >= 0).all()
    assert largest(p.sum(-1) - 1) < 1e-12
    # Optimality: x - p has one value where p > 0, and nothing above it elsewhere.
    rest = x - p
    level = torch.where(p > 0, rest, -torch.inf).amax(-1, keepdim=True)
    assert largest(torch.where(p > 0, rest - level, 0)) < 1e-10
    assert (torch.where(p > 0, 0, rest - level) <= 1e-10).all()
    assert largest(simplex_project(p) - p) < 1e-12


def test_one_step_follows_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(B=2, Q=6, K=4, D=3, lead=2.0).to(torch.float64)
    options = {"temperature": 0.8, "epsilon": 1e-3}
    seen = []

    class Recorder(torch.optim.SGD):
        def step(self) -> None:
            u, w = self.param_groups[0]["params"]
            seen.append((u.clone(), w.clone(), u.grad.clone(), w.grad.clone()))
            super().step()

    monkeypatch.setattr(torch.optim, "Adam", Recorder)
    reference.pgd(
        *problem.inputs(), lam=5.0, scaling="minmax", max_iter=3, learning_rate=1e-2, **options
    )
    support, one_hot, query = batched(*problem.inputs(), 4)
    task = prepare(support, one_hot, query, "minmax", True)
    assert len(seen) == 3
    for u, w, u_grad, w_grad in seen:
        u, w = u.requires_grad_(), w.requires_grad_()
        value = objective(task, options["temperature"], 5.0, options["epsilon"], u, w).sum()
        for own, true in zip((u_grad, w_grad), torch.autograd.grad(value, (u, w)), strict=True):
            assert torch.allclose(own, true, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_descends(scaling: str) -> None:
    problem = make_problem(B=3, Q=20, K=6, D=5, lead=3.0)
    got = reference.pgd(
        *problem.inputs(), scaling=scaling, max_iter=50, learning_rate=1e-3, tol=0.0, trace=True
    )
    assert_on_simplex(got)
    assert got.trace.objective.shape == got.trace.criterion.shape == (50, 3)
    assert got.trace.seconds.shape == (50,)
    assert (got.trace.objective[-1] < got.trace.objective[0]).all()
    assert (got.iterations == 50).all()


def test_few_classes_cost_less() -> None:
    # The same distances, so only the proportions differ.
    zeros = torch.zeros(1, 4, 2).double(), torch.zeros(1, 3, 2).double()
    task = Task(*zeros, torch.ones(1, 3, 1), torch.zeros(1))
    w, few, many = torch.zeros(1, 3, 2), torch.zeros(1, 4, 3), torch.full((1, 4, 3), 1 / 3)
    few[..., 0] = 1
    assert objective(task, 1.0, 5.0, 1e-6, few, w) < objective(task, 1.0, 5.0, 1e-6, many, w) - 1


def test_keeps_moving_u() -> None:
    problem = make_problem(Q=40, K=8, D=4, lead=1.5, seed=3)

    def solve(lam: float, steps: int) -> torch.Tensor:
        options = {
            "lam": lam,
            "max_iter": steps,
            "learning_rate": 1e-2,
            "tol": 0.0,
            "scaling": "none",
        }
        return reference.pgd(*problem.inputs(), **options).probabilities

    early, late = solve(40.0, 5), solve(40.0, 30)
    assert largest(early - late) > 1e-3
    assert largest(solve(0.0, 30) - late) > 1e-3


def test_agrees_with_paddle_where_classes_are_clear() -> None:
    problem = make_problem(Q=30, K=6, D=8, seed=1)
    got = reference.pgd(*problem.inputs(), scaling="none", max_iter=100)
    assert torch.equal(got.labels, problem.truth(scaling="none").labels)


def test_tasks_stop_on_their_own_and_keep_their_state() -> None:
    problem = make_problem(B=4, Q=12, K=4, D=4, lead=12.0, seed=5).to(torch.float64)
    options = {"scaling": "none", "learning_rate": 1e-2, "tol": 1e-3, "max_iter": 400}
    got = reference.pgd(*problem.inputs(), trace=True, return_prototypes=True, **options)
    assert len(got.iterations.unique()) > 1
    for b, count in enumerate(got.iterations.tolist()):
        alone = reference.pgd(*problem.task(b).inputs(), return_prototypes=True, **options)
        assert alone.iterations == count
        assert largest(alone.probabilities - got.probabilities[b]) < 1e-9
        assert largest(alone.prototypes - got.prototypes[b]) < 1e-9
        if count < 400:
            assert got.criterion[b] <= 1e-3
        assert (got.trace.criterion[: count - 1, b] > 1e-3).all()


def test_defaults_are_those_of_the_public_code() -> None:
    assert reference.pgd.__kwdefaults__["learning_rate"] == 1e-4
    assert reference.pgd.__kwdefaults__["max_iter"] == 1000


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_dtype_and_shared_support(dtype: torch.dtype) -> None:
    problem = make_problem(B=2, Q=5, K=3, D=4, shared=True).to(dtype)
    got = reference.pgd(*problem.inputs(), max_iter=3)
    assert got.probabilities.shape == (2, 5, 3)
    assert got.probabilities.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_examples() -> None:
    # The package gives its name to the function.
    assert doctest.testmod(sys.modules["paddle_ext.reference.pgd"]).failed == 0
