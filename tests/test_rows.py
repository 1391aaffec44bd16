"""Arithmetic of feature rows."""

import pytest
import torch
from problems import largest

from paddle_ext import rows


def test_unit_rows() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e30, 0.0], [-1e-38, 0.0]])
    want = torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert largest(rows.unit_rows(x) - want) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_sums(device: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 20, 5, generator=random).to(device, dtype)
    labels = torch.randint(6, (3, 20), generator=random).to(device)
    labels[labels == 4] = 1  # a class without rows
    weights = torch.rand(3, 20, generator=random).to(device, dtype)
    for w in (None, weights):
        sums, counts = rows.class_sums(x, labels, 6, w)
        assert sums.dtype == dtype
        assert largest(sums[:, 4]) == 0
        for b in range(3):
            for k in range(6):
                chosen = labels[b] == k
                own = x[b, chosen] * (1 if w is None else w[b, chosen, None])
                assert counts[b, k] == chosen.sum()
                assert largest(sums[b, k] - own.sum(0)) < 1e-5
            single, _ = rows.class_sums(x[b], labels[b], 6, None if w is None else w[b])
            assert torch.equal(single, sums[b])


@pytest.mark.parametrize("B", [1, 3])
def test_squared_distances(device: str, B: int) -> None:
    random = torch.Generator().manual_seed(0)
    x = (torch.randn(3, 9, 4, generator=random) + 1e4).to(device)
    w = (torch.randn(B, 6, 4, generator=random) + 1e4).to(device)
    w[:, 0] = x[0, 0]
    got = rows.squared_distances(x, w)
    want = (x.double().unsqueeze(-2) - w.double().unsqueeze(-3)).square().sum(-1)
    assert got.shape == (3, 9, 6)
    assert (got >= 0).all()
    assert largest(got.double() - want) < 1e-4
