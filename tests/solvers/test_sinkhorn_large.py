"""Sinkhorn's iteration for tasks that several blocks solve together, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paddle_ext import reference, sinkhorn

pytestmark = pytest.mark.cuda


def make_task(Q: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Far rows and columns, offsets, and rows and columns without mass."""
    random = torch.Generator().manual_seed(Q)
    cost = torch.rand(Q, K, generator=random)
    cost[3] += 1e4
    cost[:, 2] += 50.0
    rows, columns = torch.rand(Q, generator=random), torch.rand(K, generator=random)
    rows[5] = columns[4] = 0.0
    columns *= rows.sum() / columns.sum()
    return cost.cuda(), rows.cuda(), columns.cuda()


@pytest.mark.parametrize("shape", [(900, 70), (70, 900), (1100, 1000), (40, 20_000)], ids=str)
@pytest.mark.parametrize(
    ("reg", "max_iter", "tol"), [(1.0, 1, 0.0), (0.05, 40, 0.0), (0.05, 300, 1e-3), (1e-3, 30, 0.0)]
)
def test_agrees_with_the_reference(
    shape: tuple[int, int], reg: float, max_iter: int, tol: float
) -> None:
    task = make_task(*shape)
    options = {"reg": reg, "max_iter": max_iter, "tol": tol}
    got = sinkhorn(*task, **options)
    truth = reference.sinkhorn(*(x.double() for x in task), **options)
    assert abs(int(got.iterations) - int(truth.iterations)) <= (0 if tol == 0 else 1)
    scale = float(truth.plan.max())
    torch.testing.assert_close(got.plan.double(), truth.plan, rtol=1e-3, atol=2e-5 * scale)


def test_batches_and_graphs() -> None:
    """More tasks than teams at the same time, each with the result it has alone."""
    cost, rows, columns = make_task(600, 200)
    costs = cost.repeat(40, 1, 1) * torch.linspace(0.5, 1, 40, device="cuda").view(-1, 1, 1)
    options = {"reg": 0.05, "max_iter": 20, "tol": 0.0, "validate": False}
    together = sinkhorn(costs, rows, columns, **options)
    for task in (0, 21, 39):
        alone = sinkhorn(costs[task].clone(), rows, columns, **options)
        assert torch.equal(together.plan[task], alone.plan)
    graph, given = torch.cuda.CUDAGraph(), torch.zeros_like(cost)
    with torch.cuda.graph(graph):
        recorded = sinkhorn(given, rows, columns, **options)
    for task in (5, 30):
        given.copy_(costs[task])
        graph.replay()
        assert torch.equal(recorded.plan, together.plan[task])
