"""Every layout of every tensor argument, and numbers that have no order or no inverse.

`CALLS` is the table: a function and its arguments. `return_assignments=False`, and
more than 512 queries of few features, reach the code for large tasks.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from in_memory import LAYOUTS, between_addresses
from places import at_places, on_devices
from problems import TOLERANCE, Place, largest
from torch import Tensor

import paddle_ext
from paddle_ext import reference
from paddle_ext.native import load as native
from paddle_ext.native.call import ON_CPU, pointer, target

Call = dict[str, Any]
B, K, D, SHOTS = 3, 5, 8, 2
SMALL, LARGE = 10, 513  # queries
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def numbers(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def class_numbers(*batch: int, device: str) -> Tensor:
    """Every class, in another order for every task."""
    tasks = [torch.arange(K).repeat(SHOTS).roll(task) for task in range(batch[0] if batch else 1)]
    return torch.stack(tasks).view(*batch, K * SHOTS).to(device)


def dense(Q: int, *, shared: bool = False, **options: Any) -> Callable[..., Call]:
    own = () if shared else (B,)

    def make(device: str, dtype: torch.dtype) -> Call:
        where: Any = {"device": device, "dtype": dtype}
        return {
            "support": numbers(*own, K * SHOTS, D, **where),
            "support_labels": class_numbers(*own, device=device),
            "query": numbers(B, Q, D, **where, seed=1),
            "num_classes": K,
            **options,
        }

    return make


def indexed(Q: int, **options: Any) -> Callable[..., Call]:
    def make(device: str, dtype: torch.dtype) -> Call:
        rows = torch.arange(40, device=device)
        return {
            "features": numbers(40, D, dtype=dtype, device=device),
            "support_index": torch.stack([rows[task : task + K * SHOTS] for task in range(B)]),
            "support_labels": class_numbers(B, device=device),
            "query_index": torch.stack([rows.repeat(13)[task : task + Q] for task in range(B)]),
            "num_classes": K,
            **options,
        }

    return make


def one_matrix(name: str, **options: Any) -> Callable[..., Call]:
    def make(device: str, dtype: torch.dtype) -> Call:
        return {name: numbers(B, SMALL, K, dtype=dtype, device=device), **options}

    return make


def transport(**options: Any) -> Callable[..., Call]:
    def make(device: str, dtype: torch.dtype) -> Call:
        where: Any = {"device": device, "dtype": dtype}
        masses = {
            "row_mass": torch.full((B, SMALL), 1.0, **where),
            "col_mass": torch.full((B, K), SMALL / K, **where),
        }
        return {"cost": numbers(B, SMALL, K, **where).abs(), **masses, **options}

    return make


TOP = {"return_assignments": False, "top": 3}
FEW = {"max_iter": 5, "tol": 0.0}

CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Call]]] = {
    "solve": (paddle_ext.solve, dense(SMALL, **FEW, return_prototypes=True)),
    "solve, large": (paddle_ext.solve, dense(SMALL, **FEW, **TOP, return_prototypes=True)),
    "solve, shared": (paddle_ext.solve, dense(SMALL, shared=True, **FEW)),
    "solve, shared, large": (paddle_ext.solve, dense(SMALL, shared=True, **FEW, **TOP)),
    "solve_indexed": (paddle_ext.solve_indexed, indexed(SMALL, **FEW)),
    "solve_indexed, large": (paddle_ext.solve_indexed, indexed(LARGE, **FEW)),
    "adapt": (paddle_ext.adapt, one_matrix("logits", **FEW)),
    "adapt, large": (paddle_ext.adapt, one_matrix("logits", **FEW, **TOP)),
    "adaptive": (paddle_ext.adaptive, dense(SMALL, **FEW)),
    "adaptive, shared, large": (paddle_ext.adaptive, dense(LARGE, shared=True, **FEW, **TOP)),
    "adaptive, full metric": (paddle_ext.adaptive, dense(SMALL, **FEW)),
    "tim": (paddle_ext.tim, dense(SMALL, max_iter=3)),
    "sinkhorn": (paddle_ext.sinkhorn, transport(reg=0.1, max_iter=5)),
    "solve, too large": (paddle_ext.solve, dense(LARGE, **FEW)),
}


def tensors_of(found: Any) -> Iterator[Tensor]:
    return (x for x in found if isinstance(x, Tensor))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_layouts_make_no_difference(
    name: str, layout: str, dtype: torch.dtype, device: str
) -> None:
    """21ee4f1 read other labels of `[S, B].T`, and other logits of a column-major matrix."""
    if device == "cuda" and dtype is torch.float64:
        pytest.skip("computed on the CPU")
    function, make = CALLS[name]
    call = make(device, dtype)
    for argument, x in call.items():
        if not isinstance(x, Tensor):
            continue
        laid = LAYOUTS[layout](x)
        plain = laid.clone(memory_format=torch.contiguous_format)
        got = [*tensors_of(function(**call | {argument: laid}))]
        want = [*tensors_of(function(**call | {argument: plain}))]
        assert len(got) == len(want) > 2
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other), argument


def test_native_code_refuses_such_addresses() -> None:
    """Whoever calls it: `pointer` checks before, and its callers copy."""
    x = between_addresses(torch.ones(2, dtype=torch.int64))
    with pytest.raises(AssertionError, match="expected a contiguous tensor"):
        pointer(x, torch.int64, (2,), ON_CPU)
    call = native.module.values_call(
        target=target(x), dtype=2, B=1, S=2, most=1.0, counts=[0, 0, 0]
    )
    with pytest.raises(ValueError, match="must be at a multiple of 8 bytes"):
        call.check(labels=x.data_ptr(), numbers=[0, 0, 0], found=x.data_ptr())


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
    everywhere=product(
        SUBNORMAL, ("auto", "minmax", "none"), (SMALL, 512, 513, 600), (False, True)
    ),
)
def test_subnormal_features(place: Place, what: str, scaling: str, Q: int, large: bool) -> None:
    """On 21ee4f1 the large engine, from 513 queries on, wrote no label and rows of zeros."""
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
    """Without validation: 21ee4f1 left labels of such rows as they were in memory."""
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
