"""LR + ICI: its parts against scikit-learn, one round of it, and its guarantees."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import Problem, largest, make_problem
from sklearn import linear_model
from torch import Tensor

from paddle_ext import methods
from paddle_ext.methods.ici import PENALTIES, Ici, first_zeros, place_in_class, principal_components
from paddle_ext.rows import unit_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def solve(problem: Problem, **options: Any) -> Tensor:
    method = methods.create("ici", **options)
    return method.predict(*problem.inputs(), num_classes=problem.num_classes).probabilities


def unit(problem: Problem) -> Tensor:
    return unit_rows(torch.cat([problem.support, problem.query]).double())


# --- scikit-learn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [2, 5])
@pytest.mark.parametrize("C", [0.5, 300.0])
def test_the_model_is_that_of_scikit_learn(K: int, C: float) -> None:
    """Before queries are absorbed, and with all of them."""
    problem = make_problem(Q=15, K=K, D=30, lead=2.0, seed=4)
    rows, S = unit(problem), len(problem.support)
    labels = torch.cat([problem.support_labels, torch.arange(15) % K]).unsqueeze(0)
    x, _ = principal_components(rows.unsqueeze(0), 2)
    for inside in (torch.arange(S + 15) < S, torch.ones(S + 15, dtype=torch.bool)):
        model = linear_model.LogisticRegression(C=C, max_iter=2000, tol=1e-9)
        model.fit(rows[inside].numpy(), labels[0][inside].numpy())
        method, start = Ici(inverse_regularisation=C), x.new_zeros(1, x.shape[-1], K)
        logits = x @ method.fitted(x, labels, inside.unsqueeze(0), start)
        want = torch.tensor(model.predict_proba(rows.numpy()))
        assert largest(torch.softmax(logits[0], -1) - want) < 1e-4


def path_problem(
    seed: int, N: int, d: int, K: int, *, heavy: bool = False
) -> tuple[Tensor, Tensor]:
    """An orthonormal basis [1, N, d] of centred columns, and labels [1, N]."""
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(N, d, generator=random).double()
    if heavy:  # rows that the regression follows, so that they are zero down to the last penalty
        z = z / torch.rand(N, 1, generator=random).double().square()
    z[N - 3 :] = z[:3]  # and rows that are equal
    left, _, _ = torch.linalg.svd(z - z.mean(0), full_matrices=False)
    labels = torch.cat([torch.arange(K), torch.randint(K, (N - K,), generator=random)])
    return left.unsqueeze(0), labels.unsqueeze(0)


def zeros_by_scikit_learn(axes: Tensor, labels: Tensor, K: int) -> Tensor:
    """The same as `first_zeros` from the path of the multi-task lasso, [N]."""
    design = torch.eye(len(labels)).double() - axes @ axes.T
    target = design @ F.one_hot(labels, K).double()
    with warnings.catch_warnings():  # that it is at the limit of rounding
        warnings.simplefilter("ignore")
        _, path, _ = linear_model.enet_path(
            design.numpy(), target.numpy(), l1_ratio=1.0, tol=1e-9, max_iter=100_000
        )
    zero = (torch.tensor(path).abs() < 1e-12).all(0).flip(-1)  # [N, 100], smallest penalty first
    return zero.int().argmax(-1)


@pytest.mark.parametrize(
    ("seed", "N", "d", "K", "heavy"),
    [(0, 14, 2, 4, False), (1, 13, 3, 5, False), (3, 14, 4, 2, True), (4, 12, 3, 6, True)],
)
def test_zeros_are_those_of_scikit_learn(seed: int, N: int, d: int, K: int, heavy: bool) -> None:
    axes, labels = path_problem(seed, N, d, K, heavy=heavy)
    got = first_zeros(axes, labels, K)[0]
    assert torch.equal(got, zeros_by_scikit_learn(axes[0], labels[0], K))
    assert got.unique().numel() > 1
    assert heavy == (int(got.min()) == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_round(device: str, dtype: torch.dtype) -> None:
    """The most credible query of each class is absorbed."""
    problem = make_problem(Q=20, K=4, D=8, shots=(1, 2), lead=1.0, seed=5)
    rows, S = unit(problem), len(problem.support)
    model = linear_model.LogisticRegression(C=10.0, max_iter=2000, tol=1e-9)
    model.fit(rows[:S].numpy(), problem.support_labels.numpy())
    labels = torch.cat([problem.support_labels, torch.tensor(model.predict(rows[S:].numpy()))])
    _, axes = principal_components(rows.unsqueeze(0), 2)
    order = zeros_by_scikit_learn(axes[0], labels, 4)
    left = [[n for n in range(S, len(rows)) if labels[n] == k] for k in range(4)]
    inside = [*range(S), *(min(own, key=lambda n: (order[n], n)) for own in left if own)]
    model.fit(rows[inside].numpy(), labels[inside].numpy())
    got = solve(problem.to(dtype).to(device), step=1, max_iter=1)
    assert got.dtype == dtype
    want = torch.tensor(model.predict_proba(rows[S:].numpy()))
    assert largest(got.cpu().double() - want) < 1e-3


# --- parts ----------------------------------------------------------------------------------------


def test_paths_of_a_batch(device: str) -> None:
    """Each ends where it would alone, though they end at different penalties."""
    made = [path_problem(seed, 15, 2, 4) for seed in range(4)]
    axes, labels = (torch.cat(x).to(device) for x in zip(*made, strict=True))
    together = first_zeros(axes, labels, 4)
    for b in range(4):
        assert torch.equal(first_zeros(axes[b : b + 1], labels[b : b + 1], 4)[0], together[b])
    assert together.amin(-1).unique().numel() > 2


def test_rows_that_are_alike() -> None:
    labels = torch.tensor([[0, 1, 2, 0, 1, 1]])
    assert (first_zeros(torch.zeros(1, 6, 2).double(), labels, 3) == PENALTIES - 1).all()
    axes, labels = path_problem(0, 14, 2, 4)
    padded = torch.cat([axes, torch.zeros(1, 14, 1).double()], dim=-1)
    assert torch.equal(first_zeros(padded, labels, 4), first_zeros(axes, labels, 4))
    one_class = torch.zeros(1, 14, dtype=torch.int64)
    assert (first_zeros(axes, one_class, 1) == PENALTIES - 1).all()


def test_place_in_class() -> None:
    classes = torch.tensor([[1, 0, 1, 1, 0, 2], [3, 3, 3, 3, 3, 3]])
    order = torch.tensor([[9, 5, 3, 3, 4, 0], [0, 5, 0, 99, 1, 0]])
    want = torch.tensor([[2, 1, 0, 1, 0, 0], [0, 4, 1, 5, 3, 2]])
    assert torch.equal(place_in_class(classes, order), want)


@pytest.mark.parametrize(("N", "D"), [(12, 5), (5, 12)])
def test_principal_components(N: int, D: int) -> None:
    rows = unit_rows(torch.randn(2, N, D, generator=torch.Generator().manual_seed(3)).double())
    x, basis = principal_components(rows, 2)
    away = rows - rows.mean(1, keepdim=True)
    assert largest(x[..., :-1] @ x[..., :-1].mT - away @ away.mT) < 1e-9
    assert (x[..., -1] == 1).all()
    assert largest(basis.mT @ basis - torch.eye(2)) < 1e-9
    line = torch.tensor([1.0, -1.0, 1.0, 1.0]).unsqueeze(-1) * unit_rows(torch.linspace(-1, 2, 7))
    _, basis = principal_components(torch.stack([line, line[:1].expand(4, -1)]).double(), 3)
    assert basis.square().sum(1).round(decimals=9).tolist() == [[1, 0, 0], [0, 0, 0]]


# --- guarantees -----------------------------------------------------------------------------------


def test_tasks_that_need_different_numbers_of_rounds() -> None:
    """One has all its queries in one class, and the others not."""
    problem = make_problem(B=3, Q=12, K=4, D=6, lead=20.0)
    query = problem.query.clone()
    query[1] = query[1, :1] + 0.01 * query[1]
    problem = Problem(problem.support, problem.support_labels, query, 4)
    together = solve(problem, step=2)
    for b in range(3):
        assert largest(solve(problem.task(b), step=2) - together[b]) < 1e-5
    assert together[1].argmax(-1).unique().numel() == 1
