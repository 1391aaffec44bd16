"""Rows of large tasks, from products to probabilities, in single native steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paddle_ext.large.steps import Top, add_sums, assign

DTYPES = (torch.float32, torch.float64)
SIZES = (1, 2, 15, 16, 17, 100, 131)  # classes: around the number that is processed at once
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-13}


def rows(K: int, dtype: torch.dtype, N: int = 150) -> tuple[Tensor, Tensor, Tensor]:
    """Products [1, N, K], slope [1] and bias [1, K]; all logits are small integers, thus exact."""
    generator = torch.Generator().manual_seed(K)
    products = torch.randint(-30, 1, (1, N, K), generator=generator)
    bias = torch.randint(-3, 4, (1, K), generator=generator)
    return products.to(dtype), torch.ones(1, dtype=dtype), bias.to(dtype)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", SIZES)
def test_probabilities_and_their_sums(K: int, dtype: torch.dtype) -> None:
    products, slope, bias = rows(K, dtype)
    u, held, log_sums = torch.empty_like(products), zeros(1, K), zeros(1)
    assign(products, slope, bias, probabilities=u, held=held, log_sums=log_sums)
    logits = products.double() + bias.double()
    want = logits.softmax(-1)
    assert ((u - want).abs() <= ROUNDING[dtype] * want).all()
    assert ((held - want.sum(1)).abs() <= ROUNDING[dtype] * want.sum(1)).all()
    torch.testing.assert_close(log_sums, logits.logsumexp(-1).sum(1), rtol=1e-6, atol=0)
    without, own = zeros(1, K), products.clone()
    assign(own, slope, bias, probabilities=own, held=without)
    assert torch.equal(own, u)  # in place
    assert torch.equal(without, held)


def test_far_classes_have_probability_zero() -> None:
    products = torch.zeros(1, 3, 20)
    products[0, 0, 1:] = -torch.inf
    products[0, 1, ::2] = -90.0
    products[0, 2, 4] = -3e38
    slope, bias = torch.ones(1), torch.zeros(1, 20)
    u = torch.empty_like(products)
    assign(products, slope, bias, probabilities=u)
    assert torch.equal(u[0, 0], torch.eye(20)[0])
    assert (u[0, 1, ::2] == 0).all()
    torch.testing.assert_close(u[0, 1, 1::2], torch.full((10,), 0.1))
    assert u[0, 2, 4] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_logits_do_not_overflow(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    products = torch.tensor([[[0.9 * most, 0.9 * most, 0.0]]], dtype=dtype)
    u = torch.empty_like(products)
    assign(products, torch.ones(1, dtype=dtype), products.new_zeros(1, 3), probabilities=u)
    assert u.flatten().tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "top"), [(1, 1), (17, 3), (100, 5), (131, 64), (40, 40)])
def test_top_classes_in_order_and_the_smaller_of_equal_ones(
    K: int, top: int, dtype: torch.dtype
) -> None:
    products, slope, bias = rows(K, dtype)  # integers: many are equal
    found = Top.empty(slope, 1, products.shape[1], top)
    assign(products, slope, bias, top=found)
    u = torch.empty_like(products)
    assign(products, slope, bias, probabilities=u)
    want = u.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found.classes, want.indices[..., :top])
    assert torch.equal(found.probabilities, want.values[..., :top])


def leads_of(products: Tensor, slope: Tensor, bias: Tensor) -> Tensor:
    leads = zeros(1, 2)
    assign(products, slope, bias, leads=leads)
    return leads


def expected_leads(products: Tensor, slope: Tensor, bias: Tensor) -> Tensor:
    """In the arithmetic of the logits, so that the sums over rows are exact."""
    logits = products * slope + bias
    K = logits.shape[-1]
    most = logits.amax(-1)
    lead = (2 * (most - logits.sort(-1).values[..., K - 1 - K // 2])).double()
    return torch.stack([lead.sum(), (lead - 2 * most).sum()]).unsqueeze(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", SIZES)
def test_median_of_rows_with_equal_logits(K: int, dtype: torch.dtype) -> None:
    given = rows(K, dtype)
    want = expected_leads(*given)
    assert torch.equal(leads_of(*given), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_median_of_rows_that_differ_much(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    size = torch.logspace(-9, 9, 64, dtype=torch.float64).view(1, 64, 1)
    drawn = torch.randn(1, 64, 101, dtype=torch.float64, generator=generator)
    products = torch.cat([drawn * size, drawn**9, drawn.exp(), torch.zeros_like(drawn)], 1)
    products = products.to(dtype)
    given = products, torch.ones(1, dtype=dtype), torch.zeros(1, 101, dtype=dtype)
    want = expected_leads(*given)
    torch.testing.assert_close(leads_of(*given), want, rtol=1e-12, atol=0)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    products = torch.randn(1, 1000, 77, generator=generator)
    slope, bias = torch.full((1,), 9.0), torch.randn(1, 77, generator=generator)

    def results() -> list[Tensor]:
        u, held, log_sums = torch.empty_like(products), zeros(1, 77), zeros(1)
        top = Top.empty(slope, 1, 1000, 5)
        assign(products, slope, bias, probabilities=u, held=held, log_sums=log_sums, top=top)
        return [u, held, log_sums, top.classes, leads_of(products.clone(), slope, bias)]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = results()
        torch.set_num_threads(3)
        for one, many in zip(alone, results(), strict=True):
            assert torch.equal(one, many)
    finally:
        torch.set_num_threads(before)


def test_sums_of_few_weights_and_nothing_for_many() -> None:
    generator = torch.Generator().manual_seed(2)
    u = torch.rand(1, 50, 12, generator=generator)
    u[u < 0.8] = 1e-12
    x = torch.randn(1, 50, 7, generator=generator)
    count = int((u > 0.5).sum())
    sums = torch.ones(1, 12, 7)
    assert not add_sums(sums, u, x, 1e-9, count - 1)
    assert torch.equal(sums, torch.ones(1, 12, 7))
    assert add_sums(sums, u, x, 1e-9, count)
    torch.testing.assert_close(sums, 1 + u.mT @ x)
