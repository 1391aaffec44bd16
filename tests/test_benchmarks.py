"""The competitor of `adaptive` in the benchmarks computes the same rule."""

from types import ModuleType

import pytest
import torch
from problems import Problem, largest, make_problem
from scripts import script
from torch import Tensor

from paddle_ext import reference


@pytest.fixture(scope="module")
def in_torch() -> ModuleType:
    return script("benchmarks/adaptive_torch.py")


def correlated(K: int, D: int, shots: tuple[int, int]) -> Problem:
    """Overlapping classes whose features are correlated, so that the full metric is chosen."""
    problem = make_problem(B=2, Q=20, K=K, D=D, shots=shots, lead=0.3, seed=4)
    mixing = torch.randn(D, D, generator=torch.Generator().manual_seed(5))
    return problem.map(lambda x: x @ mixing).to(torch.float64)


def expected(problem: Problem, metric: str) -> Tensor:
    K = problem.num_classes
    return reference.adaptive(*problem.inputs(), num_classes=K, metric=metric).probabilities


@pytest.mark.parametrize(
    ("K", "D", "shots"),
    [
        pytest.param(6, 40, (4, 4), id="fewer rows than features"),
        pytest.param(6, 10, (4, 8), id="more rows than features"),
        pytest.param(8, 12, (1, 9), id="classes of one row"),
        pytest.param(40, 12, (8, 8), id="more rows than judges"),
    ],
)
@pytest.mark.parametrize("metric", ["diagonal", "auto"])
def test_adaptive_in_torch(
    in_torch: ModuleType, K: int, D: int, shots: tuple[int, int], metric: str
) -> None:
    problem = correlated(K, D, shots)
    labels, u = in_torch.adaptive(*problem.inputs(), K, full=metric == "auto")
    want = expected(problem, metric)
    assert largest(u - want) < 1e-8
    assert torch.equal(labels, want.argmax(-1))
    other = "diagonal" if metric == "auto" else "auto"
    assert largest(want - expected(problem, other)) > 1e-3


def test_one_shot_in_torch(in_torch: ModuleType) -> None:
    problem = correlated(9, 12, (1, 1))
    _, u = in_torch.adaptive(*problem.inputs(), 9, full=False)
    assert largest(u - expected(problem, "diagonal")) < 1e-8
