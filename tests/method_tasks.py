"""Shared by the tests of all methods: fast settings, and tasks that each method accepts."""

from typing import Any

import torch
from problems import TOLERANCE, Problem, largest, make_problem
from rounds import assert_sound
from torch import Tensor

from paddle_ext import methods
from paddle_ext.methods import Method, Prediction

# Fewer iterations than the defaults of the methods that are slow.
FAST: dict[str, dict[str, Any]] = {
    "alpha_tim": {"max_iter": 20},
    "baseline": {"max_iter": 20},
    "em_dirichlet": {"fit_iter": 12, "max_iter": 3},
    "ici": {"max_iter": 1},  # test_ici.py has more rounds
    "paddle_pgd": {"max_iter": 20, "learning_rate": 0.02},
    "pt_map": {"epochs": 5},
    "tim": {"max_iter": 20},
    "tim_adm": {"max_iter": 10},
}
NAMES = methods.available(named=False)


def fast(name: str, **options: Any) -> Method:
    return methods.create(name, **FAST.get(name, {}) | options)


def nearest_mean(support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """The class with the nearest mean of unit-norm rows, for each query of one task, [Q]."""
    rows, query = (torch.nn.functional.normalize(x, dim=1) for x in (support, query))
    means = torch.stack([rows[labels == k].mean(0) for k in range(int(labels.max()) + 1)])
    return torch.cdist(query, means).argmin(1)


def nonnegative(problem: Problem) -> Problem:
    """Shifted to numbers >= 0, like features after a ReLU: some methods accept no others."""
    least = min(float(problem.support.min()), float(problem.query.min()))
    return problem.map(lambda x: x - least)


def hard(B: int | None = None, *, D: int = 5, shared: bool = False) -> Problem:
    """Overlapping classes, so that no probability is 0 or 1."""
    problem = make_problem(B=B, Q=20, K=9, D=D, shots=(2, 4), lead=2.0, shared=shared, seed=3)
    return nonnegative(problem)


def assert_prediction(got: Prediction, problem: Problem) -> None:
    """Shapes, dtypes and device are correct, rows on the simplex, labels the largest entries."""
    labels, u = got
    assert isinstance(got, Prediction)
    assert u.shape == (*problem.query.shape[:-1], problem.num_classes)
    assert labels.shape == problem.query.shape[:-1]
    assert labels.dtype == torch.int64
    wide = problem.query.dtype is torch.float64
    assert u.dtype == (torch.float64 if wide else torch.float32)
    assert u.device == labels.device == problem.query.device
    assert not u.requires_grad
    assert_sound(got, problem.num_classes, TOLERANCE[u.dtype] / 10)
    assert torch.equal(labels, u.argmax(-1))


def assert_close(got: Prediction, want: Prediction, tolerance: float = 1e-5) -> None:
    assert largest(got.probabilities.double() - want.probabilities.double()) < tolerance
    assert torch.equal(got.labels, want.labels)
