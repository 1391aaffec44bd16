"""Sinkhorn's iteration for large tasks, against the float64 reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paddle_ext import reference, sinkhorn
from paddle_ext.ops import sinkhorn_large, sinkhorn_operators


@pytest.fixture(params=["kept", "computed again"])
def in_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinkhorn_large, "CHUNK", 300)
    if request.param != "kept":
        monkeypatch.setattr(sinkhorn_large, "KEPT", 0)


def make_task(Q: int, K: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Far rows and columns, offsets, and rows and columns without mass."""
    random = torch.Generator().manual_seed(Q)
    cost = torch.rand(Q, K, generator=random)
    cost[3] += 1e4
    cost[:, 2] += 50.0
    rows, columns = torch.rand(Q, generator=random), torch.rand(K, generator=random)
    rows[5] = columns[4] = 0.0
    return cost.to(device), rows.to(device), (columns * (rows.sum() / columns.sum())).to(device)


@pytest.mark.usefixtures("in_chunks")
@pytest.mark.parametrize("reg", [1.0, 0.05, 1e-3])
@pytest.mark.parametrize(("max_iter", "tol"), [(1, 0.0), (40, 0.0), (400, 1e-4)])
def test_agrees_with_the_reference(reg: float, max_iter: int, tol: float) -> None:
    task = make_task(70, 23)
    options = {"reg": reg, "max_iter": max_iter, "tol": tol}
    plan, iterations, residual = sinkhorn_large.solve_large(*task, reg, max_iter, tol)
    truth = reference.sinkhorn(*(x.double() for x in task), **options)
    assert plan.dtype == torch.float32
    assert int(iterations) == int(truth.iterations)
    torch.testing.assert_close(plan.double(), truth.plan, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(residual.double(), truth.residual, rtol=1e-4, atol=1e-6)


@pytest.mark.cuda
def test_large_tasks_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    cost, rows, columns = make_task(300, 200, "cuda")
    options = {"reg": 0.05, "max_iter": 30, "tol": 0.0}
    truth = reference.sinkhorn(cost.double(), rows, columns, **options)
    monkeypatch.setattr(sinkhorn_operators, "LARGE", 1)
    for batch in ((), (3,)):
        got = sinkhorn(cost.expand(*batch, -1, -1), rows, columns, **options)
        want = truth.plan.expand(*batch, -1, -1)
        torch.testing.assert_close(got.plan.double(), want, rtol=1e-5, atol=1e-9)
        assert torch.equal(got.iterations.cpu(), torch.full(batch, 30, dtype=torch.int32))
    graph, given = torch.cuda.CUDAGraph(), cost.clone()
    with torch.cuda.graph(graph):
        recorded = sinkhorn(given, rows, columns, validate=False, **options)
    graph.replay()
    torch.testing.assert_close(recorded.plan.double(), truth.plan, rtol=1e-5, atol=1e-9)
