"""The specification: PADDLE in plain torch, against the equations written out again."""

import math
from random import Random

import pytest
import torch
from problems import (
    NASTY,
    SCALINGS,
    Problem,
    all_equal,
    assert_agrees,
    assert_on_simplex,
    largest,
    make_problem,
    naive_objective,
    naive_scaled,
    sensitivity,
    tied,
)

from paddle_ext import reference


def naive_solve(
    problem: Problem, *, lam: float, scaling: str, temperature: float, epsilon: float, max_iter: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """The iteration, number by number: u, v, w (scaled coordinates) and the criterion."""
    task = naive_scaled(problem, scaling)
    K, Q = problem.num_classes, len(task.query)
    members = [task.support[task.support_labels == k] for k in range(K)]
    w = torch.stack([rows.mean(0) for rows in members])
    u, v, criterion = torch.zeros(Q, K).double(), [0.0] * K, 0.0
    for _ in range(max_iter):
        for q, z in enumerate(task.query):
            logits = [
                -temperature / 2 * float((w[k] - z).square().sum()) + lam / Q * v[k]
                for k in range(K)
            ]
            weights = [math.exp(logit - max(logits)) for logit in logits]
            u[q] = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        v = [1 + math.log(float(u[:, k].mean()) + epsilon) for k in range(K)]
        moved = torch.stack(
            [
                (members[k].sum(0) + (u[:, k, None] * task.query).sum(0))
                / (len(members[k]) + float(u[:, k].sum()))
                for k in range(K)
            ]
        )
        criterion = float((moved - w).norm(dim=1).mean())
        w = moved
    return u, torch.tensor(v, dtype=torch.float64), w, criterion


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(("lam", "K"), [(None, 5), (0.0, 4), (3.0, 2)])
def test_is_the_iteration(scaling: str, lam: float | None, K: int) -> None:
    """With an even or odd number of classes: "auto" takes the upper median."""
    problem = make_problem(Q=7, K=K, D=3, lead=4.0, seed=3).to(torch.float64)
    options = {"scaling": scaling, "temperature": 0.7, "epsilon": 1e-4, "max_iter": 6}
    u, v, w, criterion = naive_solve(problem, lam=7.0 if lam is None else lam, **options)
    got = problem.truth(lam=lam, tol=0.0, return_prototypes=True, **options)
    assert largest(got.probabilities - u) < 1e-12
    assert largest(got.dual - v) < 1e-10
    assert largest(got.proportions - u.mean(0)) < 1e-12
    assert float(got.criterion) == pytest.approx(criterion, abs=1e-12)
    assert got.iterations == 6
    if scaling == "none":
        assert largest(got.prototypes - w) < 1e-12


def test_hand_computed() -> None:
    # Two classes at 0 and 2 on a line, one query at 0.5, lam = 1, epsilon = 0.5. In nats:
    # 1) logits -1/8 and -9/8          u = 1 / (1 + e^-1)
    # 2) v_k = 1 + ln(u_k + 1/2)
    # 3) w_0 = u_0/2 / (1 + u_0), w_1 = (2 + u_1/2) / (1 + u_1)
    support, labels = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([0, 1])
    query = torch.tensor([[0.5]]).double()
    got = reference.solve(
        support, labels, query, scaling="none", epsilon=0.5, max_iter=1, return_prototypes=True
    )
    assert got.probabilities.tolist() == [pytest.approx([0.7310585786300049, 0.2689414213699951])]
    assert got.dual.tolist() == pytest.approx([1.20787443228459, 0.737259512550511])
    assert got.prototypes.tolist() == [
        pytest.approx([0.211159399125759]),
        pytest.approx([1.68208766357437]),
    ]
    assert float(got.criterion) == pytest.approx(0.264535867775694)
    assert got.labels.tolist() == [0]
    assert got.iterations == 1


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("lam", [None, 0.0, 0.5, 40.0])
def test_objective_never_increases(scaling: str, lam: float | None) -> None:
    random = Random(f"{scaling} {lam}")
    for seed in range(5):
        shape = {"Q": random.randint(1, 9), "K": random.randint(1, 6), "D": random.randint(1, 5)}
        task = make_problem(**shape, lead=random.uniform(0.1, 30), seed=seed).to(torch.float64)
        task = naive_scaled(task, scaling)  # so that the prototypes are in these coordinates
        T, epsilon = random.uniform(0.05, 5), random.choice([1e-12, 1e-6, 0.1])
        options = {"lam": lam, "temperature": T, "epsilon": epsilon, "scaling": "none", "tol": 0.0}
        weight, previous = float(shape["Q"]) if lam is None else lam, math.inf
        for steps in range(1, 8):
            got = task.truth(max_iter=steps, return_prototypes=True, **options)
            state = got.probabilities, got.dual, got.prototypes
            value = naive_objective(task, *state, weight, T, epsilon)
            assert value <= previous + 1e-12 * (1 + abs(value))
            previous = value


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_batch_is_its_tasks(scaling: str, shared: bool) -> None:
    problem = make_problem(B=3, Q=8, K=4, D=5, lead=6.0, shared=shared).to(torch.float64)
    batch = problem.truth(scaling=scaling, return_prototypes=True)
    for b in range(3):
        alone = problem.task(b).truth(scaling=scaling, return_prototypes=True)
        assert largest(batch.probabilities[b] - alone.probabilities) < 1e-12
        assert largest(batch.dual[b] - alone.dual) < 1e-9
        assert largest(batch.prototypes[b] - alone.prototypes) < 1e-12
        assert batch.iterations[b] == alone.iterations


def test_tasks_stop_on_their_own() -> None:
    problem = make_problem(B=6, Q=20, K=5, D=4, lead=3.0, seed=2)
    got = problem.truth(tol=1e-4, max_iter=60)
    assert len(got.iterations.unique()) > 1
    stopped = got.iterations < 60
    assert (got.criterion[stopped] <= 1e-4).all()
    for b, count in enumerate(got.iterations.tolist()):
        assert problem.truth(tol=0.0, max_iter=count - 1).criterion[b] > 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_dtypes(dtype: torch.dtype, scaling: str) -> None:
    problem = make_problem(Q=15, K=5, D=8, seed=4).to(dtype)
    got = reference.solve(*problem.inputs(), scaling=scaling, return_prototypes=True)
    assert got.prototypes.dtype == got.criterion.dtype == torch.float32
    assert_agrees(got, problem.truth(scaling=scaling))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", NASTY)
def test_nasty(name: str, scaling: str) -> None:
    problem = NASTY[name]()
    got = reference.solve(
        *problem.inputs(),
        num_classes=problem.num_classes,
        scaling=scaling,
        return_prototypes=True,
    )
    assert_on_simplex(got)
    assert torch.isfinite(got.prototypes).all()
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 30}
    if sensitivity(problem, **options) < 1e-5:
        assert_agrees(reference.solve(*problem.inputs(), **options), problem.truth(**options))


def test_tied_classes_share() -> None:
    u = tied().truth(scaling="none").probabilities
    assert largest(u[:, 1] - u[:, 3]) < 1e-12
    assert largest(all_equal().truth().probabilities - 1 / 3) < 1e-12
