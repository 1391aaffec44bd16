"""Batched logistic regression, and the minimisers behind it and behind the path of ICI."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from problems import largest, make_problem
from torch import Tensor

from paddle_ext.adaptive_rule import logistic
from paddle_ext.adaptive_rule.conjugate import minimise, newton
from paddle_ext.task import unit_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(
    dtype: torch.dtype = torch.float64, *, N: int = 30, K: int = 4, D: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    """Unit-norm features of classes that overlap, their labels, and rows to include."""
    made = make_problem(B=5, Q=N, K=K, D=D, shots=(1, 5), lead=3.0)
    features = unit_rows(torch.cat([made.support, made.query], dim=1)).to(dtype)
    random = torch.Generator().manual_seed(1)
    guesses = torch.randint(K, made.query.shape[:2], generator=random)
    labels = torch.cat([made.support_labels, guesses], dim=1)
    included = torch.rand(labels.shape, generator=random) < 0.5
    included[:, : made.support.shape[1]] = True  # every class has a row
    return features, labels, included


def fitted(
    features: Tensor, labels: Tensor, included: Tensor, C: float = 10.0, tol: float = 0.01
) -> logistic.Fit:
    K = int(labels.max()) + 1
    return logistic.fit(features, labels, included, K, inverse_regularisation=C, tol=tol)


@pytest.mark.parametrize("C", [0.01, 10.0, 100.0])
def test_agrees_with_scikit_learn(C: float) -> None:
    model = pytest.importorskip("sklearn.linear_model").LogisticRegression
    features, labels, included = batch()
    exact = fitted(features, labels, included, C, tol=1e-9)
    single = fitted(features.float(), labels, included, C)
    for b in range(2):
        x, rows = features[b].numpy(), included[b].numpy()
        peer = model(C=C, tol=1e-8, max_iter=2000)
        with warnings.catch_warnings():  # "Line search failed": it is at the limit of rounding
            warnings.simplefilter("ignore")
            peer.fit(x[rows], labels[b].numpy()[rows])
        want = torch.tensor(peer.predict_proba(x))
        assert largest(torch.softmax(exact.logits[b], -1) - want) < 1e-5
        assert largest(torch.softmax(single.logits[b], -1) - want) < 1e-3


def test_the_gradient_vanishes(device: str) -> None:
    """By autograd, of the objective written out."""
    features, labels, included = (x.to(device) for x in batch())
    got = fitted(features, labels, included, tol=1e-9)
    weights = got.weights.clone().requires_grad_()
    logits = features @ weights[:, :-1] + weights[:, -1:]
    losses = F.cross_entropy(logits.mT, labels, reduction="none")
    (weights[:, :-1].square().sum() / 2 + 10 * losses[included].sum()).backward()
    assert largest(weights.grad) < 1e-8
    assert largest(got.logits - logits.detach()) < 1e-10
    assert largest(got.weights[:, -1].sum(-1)) < 1e-12
    assert (got.iterations > 3).all()
    assert (got.iterations < 150).all()


def test_rows_that_are_not_included_do_not_count() -> None:
    features, labels, included = batch()
    want = fitted(features, labels, included, tol=1e-9).weights
    other_features = torch.where(included.unsqueeze(-1), features, torch.ones_like(features))
    other_labels = torch.where(included, labels, 0)
    got = fitted(other_features, other_labels, included, tol=1e-9).weights
    assert largest(got - want) < 1e-8
    counted = fitted(features, other_labels, torch.ones_like(included), tol=1e-9).weights
    assert largest(counted - want) > 0.1


def test_features_may_be_shifted_and_rotated() -> None:
    features, labels, included = batch()
    random = torch.Generator().manual_seed(2)
    rotation, _ = torch.linalg.qr(torch.randn(8, 8, generator=random).double())
    want = fitted(features, labels, included, tol=1e-9).logits
    got = fitted((features - 0.7) @ rotation, labels, included, tol=1e-9).logits
    assert largest(torch.softmax(got, -1) - torch.softmax(want, -1)) < 1e-8


def test_the_start_changes_the_time_only() -> None:
    features, labels, included = batch()
    cold = fitted(features, labels, included, tol=1e-9)
    fewer = included & (torch.arange(included.shape[1]) < included.shape[1] - 2)
    near = fitted(features, labels, fewer, tol=1e-9)
    before = near.weights.clone(), near.logits.clone()
    warm = logistic.fit(
        features, labels, included, 4, inverse_regularisation=10.0, tol=1e-9, start=near
    )
    again = logistic.fit(
        features, labels, included, 4, inverse_regularisation=10.0, tol=1e-6, start=warm
    )
    assert largest(cold.weights - warm.weights) < 1e-7
    assert torch.equal(near.weights, before[0])
    assert torch.equal(near.logits, before[1])
    assert again.iterations.sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_task_does_not_depend_on_its_batch(device: str, dtype: torch.dtype) -> None:
    features, labels, included = (x.to(device) for x in batch(dtype))
    # Tasks of very different difficulty: all but one continue after the first has stopped.
    features = features * torch.tensor([0.0, 0.1, 1.0, 3.0, 10.0]).view(-1, 1, 1).to(features)
    together = fitted(features, labels, included)
    assert together.iterations.unique().numel() > 2
    for b in range(len(features)):
        alone = fitted(features[b : b + 1], labels[b : b + 1], included[b : b + 1])
        size = 1 + largest(together.logits[b])  # float32 logits of about 25 differ by 1e-4
        assert largest(alone.logits[0] - together.logits[b]) < 1e-5 * size
        assert int(alone.iterations) == int(together.iterations[b])


@pytest.mark.parametrize("tol", [0.01, 0.0])
def test_hardly_a_penalty(tol: float) -> None:
    """On features that separate the classes."""
    features, labels, included = batch(torch.float32, D=60)
    got = fitted(features, labels, included, 1e6, tol)
    assert torch.isfinite(got.weights).all()
    assert (got.iterations < logistic.MAX_ITER).all()
    assert (got.logits.argmax(-1) == labels)[included].all()


@pytest.mark.parametrize("tol", [0.01, 0.0])
def test_hardly_any_data(tol: float) -> None:
    """Only the intercepts remain, which reflect the class frequencies."""
    features, labels, included = batch(torch.float32)
    got = fitted(features, labels, included, 1e-6, tol)
    assert (got.iterations < logistic.MAX_ITER).all()
    shares = (F.one_hot(labels, 4) * included.unsqueeze(-1)).sum(1) / included.sum(1, True)
    assert largest(torch.softmax(got.logits, -1) - shares.unsqueeze(1)) < 0.01
    assert 1e-7 < largest(got.weights[:, :-1]) < 1e-4


def test_equal_rows_of_two_classes() -> None:
    features, labels = torch.ones(1, 4, 3), torch.tensor([[0, 0, 0, 1]])
    got = fitted(features, labels, torch.ones_like(labels, dtype=torch.bool), tol=1e-6)
    assert largest(torch.softmax(got.logits, -1) - torch.tensor([0.75, 0.25])) < 1e-5
    assert largest(got.weights[:, :-1]) < 1e-5


def test_one_class() -> None:
    features = make_problem(B=2, Q=6, K=1, D=3).query
    labels = torch.zeros(2, 6, dtype=torch.int64)
    got = fitted(features, labels, labels == 0)
    assert torch.equal(torch.softmax(got.logits, -1), torch.ones(2, 6, 1))


# --- the minimisers -------------------------------------------------------------------------------


class Quartic:
    """1/2 (x - target) . A (x - target) + 1/4 bend sum (x - target)^4, with a diagonal A."""

    def __init__(self, diagonal: Tensor, target: Tensor, bend: float) -> None:
        self.diagonal, self.target, self.bend = diagonal, target, bend
        self.point = torch.zeros_like(target)

    def gradient_at(self, x: Tensor) -> Tensor:
        return self.diagonal * (x - self.target) + self.bend * (x - self.target) ** 3

    def gradient(self) -> tuple[Tensor, Tensor]:
        gradient = self.gradient_at(self.point)
        return gradient, self.precondition(gradient)

    def precondition(self, x: Tensor) -> Tensor:
        return x / 7

    def hessian_product(self, x: Tensor) -> Tensor:
        return (self.diagonal + 3 * self.bend * (self.point - self.target) ** 2) * x

    def look_along(self, direction: Tensor) -> Tensor:
        self.direction = direction
        return (direction * self.hessian_product(direction)).sum((-2, -1))

    def slope(self, step: Tensor) -> Tensor:
        there = self.point + step[..., None, None] * self.direction
        return (self.direction * self.gradient_at(there)).sum((-2, -1))

    def move(self, step: Tensor) -> None:
        self.point = self.point + step[..., None, None] * self.direction


def quartics(bend: float, scale: float = 1.0) -> Quartic:
    """A batch of 2 x 3 functions of 4 x 5 matrices."""
    random = torch.Generator().manual_seed(0)
    diagonal = 10 ** (2 * torch.rand(2, 3, 4, 5, generator=random).double())
    target = scale * torch.randn(2, 3, 4, 5, generator=random).double()
    target[1, 2] = 0  # starts at its minimum
    return Quartic(diagonal, target, bend)


@pytest.mark.parametrize("solver", [minimise, newton])
@pytest.mark.parametrize(("bend", "scale"), [(0.0, 1.0), (10.0, 1.0), (1.0, 1e4), (1.0, 1e-4)])
def test_minimum_is_found(solver: Callable[..., Tensor], bend: float, scale: float) -> None:
    problem = quartics(bend, scale)
    iterations = solver(problem, 1e-10, 1000)
    assert largest(problem.point - problem.target) < 1e-9
    assert iterations[1, 2] == 0
    assert (iterations.flatten()[:-1] > 0).all()
    assert (iterations < 200).all()


def test_a_quadratic_takes_one_step_of_newton() -> None:
    problem = quartics(0.0)
    assert newton(problem, 0.1, 1000).max() <= 3
    assert minimise(quartics(0.0), 0.1, 1000).max() > 3


@pytest.mark.parametrize("solver", [minimise, newton])
def test_limit_on_iterations(solver: Callable[..., Tensor]) -> None:
    problem = quartics(10.0)
    iterations = solver(problem, 1e-10, 2)
    assert iterations.tolist() == [[2, 2, 2], [2, 2, 0]]


def test_the_limit_of_rounding_ends_it() -> None:
    problem = quartics(10.0)
    assert minimise(problem, 0.0, 10_000).max() < 500
    assert largest(problem.point - problem.target) < 1e-12


def test_two_problems_in_one_batch_are_solved_as_alone() -> None:
    together = quartics(10.0)
    iterations = minimise(together, 1e-6, 1000)
    whole = quartics(10.0)
    for i in range(2):
        for j in range(3):
            alone = Quartic(whole.diagonal[i, j], whole.target[i, j], 10.0)
            count = minimise(alone, 1e-6, 1000)
            assert count == iterations[i, j]
            assert largest(alone.point - together.point[i, j]) < 1e-12
