"""Clusters matched to classes: one to one, and at the least cost."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from paddle_ext.methods.em_dirichlet import matched


def least(cost: Tensor, wanted: list[int]) -> float:
    """By trying everything."""
    K = len(cost)
    ways = permutations(range(K), len(wanted))
    return min(sum(float(cost[k, j]) for k, j in zip(wanted, way, strict=True)) for way in ways)


@pytest.mark.parametrize("K", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("levels", [None, 3])
def test_least_cost(device: str, K: int, levels: int | None) -> None:
    """With ties, too, where costs have few levels."""
    random = torch.Generator().manual_seed(K)
    cost = torch.rand(12, K, K, generator=random, dtype=torch.float64)
    if levels is not None:
        cost = (cost * levels).round()
    wanted = torch.rand(12, K, generator=random) < 0.7
    wanted[0], wanted[1] = False, True
    match = matched(cost.to(device), wanted.to(device)).cpu()
    for b in range(12):
        assert sorted(match[b].tolist()) == list(range(K))
        chosen = wanted[b].nonzero().flatten().tolist()
        got = sum(float(cost[b, k, match[b, k]]) for k in chosen)
        assert got == pytest.approx(least(cost[b], chosen), abs=1e-12)


def test_others_get_what_is_left_in_order() -> None:
    cost = torch.ones(1, 4, 4)
    cost[0, 2, 0] = 0.0
    wanted = torch.tensor([[False, False, True, False]])
    assert matched(cost, wanted).tolist() == [[1, 2, 0, 3]]


def test_a_task_does_not_depend_on_its_batch() -> None:
    cost = torch.rand(5, 7, 7, generator=torch.Generator().manual_seed(0))
    wanted = torch.ones(5, 7, dtype=torch.bool)
    together = matched(cost, wanted)
    for b in range(5):
        assert torch.equal(matched(cost[b : b + 1], wanted[b : b + 1])[0], together[b])


def test_many_classes_against_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="needs SciPy")
    cost = torch.rand(2, 60, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    match = matched(cost, torch.ones(2, 60, dtype=torch.bool))
    for b in range(2):
        rows, columns = optimize.linear_sum_assignment(cost[b].numpy())
        want = float(cost[b][rows, columns].sum())
        assert float(cost[b].gather(1, match[b, :, None]).sum()) == pytest.approx(want)
