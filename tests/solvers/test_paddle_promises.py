"""Promises of the solver besides correct numbers: descent, symmetry, forms of input."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from problems import (
    SCALINGS,
    SHAPES,
    TOLERANCE,
    Place,
    Problem,
    assert_same,
    each_tensor,
    largest,
    make_problem,
    naive_objective,
    naive_scaled,
)

import paddle_ext
from paddle_ext import Solution

# --- descent and stopping -----------------------------------------------------------------------


@hypothesis_settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    Q=st.integers(1, 9),
    K=st.integers(1, 6),
    D=st.integers(1, 5),
    lead=st.floats(0.1, 30),
    lam=st.sampled_from([None, 0.0, 0.5, 40.0]),
    temperature=st.floats(0.05, 5),
    epsilon=st.sampled_from([1e-6, 0.1]),
    scaling=st.sampled_from(SCALINGS),
)
def test_objective_never_increases(
    seed: int,
    Q: int,
    K: int,
    D: int,
    lead: float,
    lam: float | None,
    temperature: float,
    epsilon: float,
    scaling: str,
) -> None:
    problem = make_problem(Q=Q, K=K, D=D, lead=lead, seed=seed).to(torch.float64)
    problem = naive_scaled(problem, scaling)  # so that the prototypes are in these coordinates
    options = {"lam": lam, "temperature": temperature, "epsilon": epsilon, "scaling": "none"}
    weight = float(Q) if lam is None else lam
    previous = float("inf")
    for steps in range(1, 6):
        got = problem.solve(max_iter=steps, tol=0.0, return_prototypes=True, **options)
        state = (got.probabilities, got.dual, got.prototypes)
        value = naive_objective(problem, *state, weight, temperature, epsilon)
        assert value <= previous + 1e-9 * (1 + abs(value))
        previous = value


def test_every_task_stops_on_its_own(place: Place) -> None:
    problem = make_problem(B=12, Q=25, K=5, D=6, lead=2.5, seed=8)
    options = {"tol": 1e-4, "max_iter": 80}
    got = place.solve(problem, **options)
    want = problem.to(place.dtype).truth(**options)
    counts = got.iterations.cpu()
    assert len(counts.unique()) > 3
    # Where the criterion is all but equal to the tolerance, rounding decides.
    assert ((counts - want.iterations).abs() <= 1).all()
    assert (got.criterion.cpu()[counts < 80] <= 1e-4).all()
    for b, count in enumerate(counts.tolist()):
        alone = place.solve(problem.task(b), **options)
        assert alone.iterations == count
        if count > 1:
            before = place.solve(problem.task(b), tol=0.0, max_iter=count - 1)
            assert before.criterion > 1e-4


def test_zero_tolerance_runs_all_iterations(place: Place) -> None:
    problem = make_problem(B=3, Q=10, K=3, D=4)
    got = place.solve(problem, tol=0.0, max_iter=37)
    assert got.iterations.tolist() == [37] * 3
    assert place.solve(problem, tol=1e30).iterations.tolist() == [1] * 3


# --- symmetry and reproducibility ---------------------------------------------------------------


@pytest.mark.parametrize("scaling", SCALINGS)
def test_permutations(place: Place, scaling: str) -> None:
    problem = make_problem(B=4, Q=30, K=7, D=9, lead=8.0, seed=9)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 10}
    random = torch.Generator().manual_seed(1)
    got = place.solve(problem, **options)
    u, tolerance = got.probabilities.cpu(), TOLERANCE[place.dtype]

    queries = torch.randperm(30, generator=random)
    permuted = replace(problem, query=problem.query[:, queries])
    assert largest(place.solve(permuted, **options).probabilities.cpu() - u[:, queries]) < tolerance

    classes = torch.randperm(7, generator=random)
    renamed = replace(problem, support_labels=classes[problem.support_labels])
    assert (
        largest(place.solve(renamed, **options).probabilities.cpu()[:, :, classes] - u) < tolerance
    )

    rows = torch.randperm(problem.support.shape[1], generator=random)
    shuffled = replace(
        problem,
        support=problem.support[:, rows],
        support_labels=problem.support_labels[:, rows],
    )
    assert largest(place.solve(shuffled, **options).probabilities.cpu() - u) < tolerance

    tasks = torch.randperm(4, generator=random)
    reordered = Problem(*(x[tasks] for x in problem.inputs()), 7)
    assert torch.equal(place.solve(reordered, **options).probabilities.cpu(), u[tasks])


# All pairs of a shape and a scaling, half of them with a shared support.
BATCHES = [
    (shape, scaling, (i + j) % 2 == 1)
    for i, shape in enumerate(SHAPES)
    for j, scaling in enumerate(SCALINGS)
]


def at(batch: Solution, b: int) -> Solution:
    """One task's part of a result."""
    return each_tensor(batch, lambda x: x[b])


def test_seventy_thousand_tasks(place: Place) -> None:
    kinds, repeats = 7, 10_000
    problem = make_problem(B=kinds, Q=3, K=2, D=3, shots=(1, 1), seed=13)
    many = Problem(*(x.repeat(repeats, *(1,) * (x.dim() - 1)) for x in problem.inputs()), 2)
    got = place.solve(many)
    few = place.agrees(problem)
    for all_tasks, own in zip(got[:6], few[:6], strict=True):
        rows = all_tasks.view(repeats, kinds, *all_tasks.shape[1:])
        assert torch.equal(rows, own.expand_as(rows))


# --- forms of input -----------------------------------------------------------------------------


def test_shared_support_is_the_same_support(place: Place) -> None:
    for Q, K, D in SHAPES:
        problem = make_problem(B=3, Q=Q, K=K, D=D, shared=True, seed=15)
        repeated = replace(
            problem,
            support=problem.support.expand(3, -1, -1),
            support_labels=problem.support_labels.expand(3, -1),
        )
        for scaling in SCALINGS:
            options = {"scaling": scaling, "tol": 0.0, "max_iter": 8}
            one, other = place.solve(problem, **options), place.solve(repeated, **options)
            assert largest(one.probabilities - other.probabilities) < TOLERANCE[place.dtype]


def test_number_of_classes_by_default(device: str) -> None:
    problem = make_problem(B=2, Q=6, K=5, D=4).to(device)
    assert_same(paddle_ext.solve(*problem.inputs()), problem.solve())
    assert_same(problem.solve(validate=False), problem.solve())
