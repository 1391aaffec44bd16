"""Odd addresses and odd numbers: subnormal ones, and those without an order, in every engine."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from in_memory import between_addresses
from places import at_places, on_devices
from problems import TOLERANCE, Place, largest
from torch import Tensor

import paddle_ext
from paddle_ext import reference
from paddle_ext.native.call import ON_CPU, pointer

K, SHOTS = 5, 2
SMALL = 10  # queries


def numbers(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


TOP = {"return_assignments": False, "top": 3}


def test_native_code_gets_no_such_addresses() -> None:
    """`pointer` refuses them, and its callers copy."""
    x = between_addresses(torch.ones(2, dtype=torch.int64))
    with pytest.raises(AssertionError, match="expected a contiguous tensor"):
        pointer(x, torch.int64, (2,), ON_CPU)


# --- numbers ------------------------------------------------------------------------------------


def task(place: Place, Q: int) -> tuple[Tensor, Tensor, Tensor]:
    where: Any = {"device": place.device, "dtype": place.dtype}
    centres = 3 * numbers(K, 16, **where)
    labels = torch.arange(K, device=place.device).repeat(SHOTS)
    truth = torch.arange(Q, device=place.device).remainder(3)
    support = centres[labels] + numbers(K * SHOTS, 16, **where, seed=1)
    return support, labels, centres[truth] + numbers(Q, 16, **where, seed=2)


TINY = {torch.float32: 1e-41, torch.float64: 1e-311}
SUBNORMAL: dict[str, Callable[[Tensor, Tensor, float], object]] = {
    "all": lambda support, query, tiny: (support.mul_(tiny), query.mul_(tiny)),
    "a column": lambda support, query, tiny: (support[:, 3].mul_(tiny), query[:, 3].mul_(tiny)),
    "some rows": lambda support, query, tiny: query[:5].mul_(tiny),
}


@at_places(
    "what, scaling, Q, large",
    everywhere=product(SUBNORMAL, ("auto", "minmax", "none"), (SMALL, 513), (False, True)),
)
def test_subnormal_features(place: Place, what: str, scaling: str, Q: int, large: bool) -> None:
    """Also in the large engine, from 513 queries on: every label is written, and every row."""
    support, labels, query = task(place, Q)
    SUBNORMAL[what](support, query, TINY[place.dtype])
    options: Any = {"scaling": scaling, "max_iter": 8, "tol": 0.0}
    want = reference.solve(support.cpu(), labels.cpu(), query.cpu(), **options)
    if large:
        options |= {"return_assignments": False, "top": K}
    got = paddle_ext.solve(support, labels, query, **options)
    u = got.probabilities.cpu()
    if got.classes is not None:
        u = torch.zeros_like(u).scatter_(-1, got.classes.cpu(), u)
    assert largest(u.double() - want.probabilities.double()) < TOLERANCE[place.dtype]
    best = want.probabilities.topk(2).values.diff().abs()[:, 0]
    clear = best > 10 * TOLERANCE[place.dtype]
    assert torch.equal(got.labels.cpu()[clear], want.labels[clear])
    assert bool(((got.labels >= 0) & (got.labels < K)).all())


BAD = (torch.nan, torch.inf, -torch.inf)


@on_devices("bad, count, all_of_them", everywhere=product(BAD, (5, 40, 1030), (False, True)))
def test_labels_are_classes_whatever_the_numbers_are(
    bad: float, count: int, all_of_them: bool, device: str
) -> None:
    """Without validation: no label is left as it was in memory."""
    torch.manual_seed(0)
    query, logits = torch.randn(600, 4, device=device), torch.randn(600, count, device=device)
    for x in (query, logits):
        x[:: 1 if all_of_them else 7] = bad
    labels = torch.arange(count, device=device)
    support = torch.randn(count, 4, device=device)
    options: Any = {"validate": False, "max_iter": 3}
    for found in (
        paddle_ext.solve(support, labels, query, num_classes=count, **options),
        paddle_ext.solve(support, labels, query, num_classes=count, **options, **TOP),
        paddle_ext.adapt(logits, **options, **TOP),
    ):
        assert bool(((found.labels >= 0) & (found.labels < count)).all())
        assert bool((found.probabilities >= 0).all())  # not NaN
        if found.classes is None:
            sums = found.probabilities.sum(-1)
            assert largest(sums - 1) < 1e-5
        else:
            assert bool(((found.classes >= 0) & (found.classes < count)).all())


@pytest.mark.parametrize("count", [5, 40, 1030])
def test_impossible_classes_are_reported_last(count: int, device: str) -> None:
    """Fewer possible classes than are asked for."""
    logits = torch.full((9, count), -torch.inf, device=device)
    logits[:, 3], logits[:, 1] = 1.0, 0.5
    found = paddle_ext.adapt(logits, return_assignments=False, top=4)
    assert bool((found.labels == 3).all())
    assert bool((found.classes.sort().values.diff() > 0).all())
    assert bool(((found.classes >= 0) & (found.classes < count)).all())
    assert largest(found.probabilities[:, 2:]) < 1e-30
