"""Every solver on every SIMD level that this machine can use."""

from collections.abc import Iterator

import pytest
import torch
from problems import SCALINGS, Place, assert_agrees, assert_same, make_problem
from tim_tasks import VARIANTS, overlapping
from tim_tasks import agrees as tim_agrees
from transport_tasks import NASTY, make_tasks
from transport_tasks import agrees as transport_agrees

import paddle_ext
from paddle_ext import _native

PRECISIONS = [torch.float32, torch.float64]


@pytest.fixture(params=_native.build_info()["simd_levels"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on each level."""
    before = _native.build_info()["simd"]
    _native.set_simd_level(request.param)
    yield request.param
    _native.set_simd_level(before)


def test_level_is_told(level: str) -> None:
    assert paddle_ext.build_info()["simd"] == level


def test_unknown_level() -> None:
    with pytest.raises(ValueError, match="mmx"):
        _native.set_simd_level("mmx")


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.usefixtures("level")
def test_paddle(scaling: str, dtype: torch.dtype) -> None:
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 8}
    for Q, K, D in ((75, 20, 33), (130, 9, 512), (300, 50, 16)):
        problem = make_problem(B=2, Q=Q, K=K, D=D, seed=14).to(dtype)
        assert_agrees(problem.solve(**options), problem.truth(**options))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("level")
def test_tim(variant: str, dtype: torch.dtype) -> None:
    place = Place("cpu", dtype)
    for sizes in ({}, {"Q": 75, "K": 20}, {"Q": 5, "K": 3}):  # panels that are full, and not
        tim_agrees(place, overlapping(seed=11, **sizes), max_iter=15, **VARIANTS[variant])


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.usefixtures("level")
def test_sinkhorn(dtype: torch.dtype) -> None:
    place = Place("cpu", dtype)
    for shape in ((75, 20), (9, 33), (17, 1), (300, 70)):
        transport_agrees(make_tasks(2, *shape), place, reg=0.1, max_iter=7, tol=0.0)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", NASTY)
@pytest.mark.usefixtures("level")
def test_sinkhorn_on_nasty_tasks(name: str, dtype: torch.dtype) -> None:
    transport_agrees(NASTY[name](), Place("cpu", dtype), reg=0.2, max_iter=20, tol=0.0)


@pytest.mark.usefixtures("level")
def test_threads_make_no_difference() -> None:
    problem = make_problem(B=3, Q=500, K=70, D=40, seed=3)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(problem.solve(tol=0.0, max_iter=4))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert_same(other, found[0])
