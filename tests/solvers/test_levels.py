"""Every solver on every SIMD level that this machine can use."""

from collections.abc import Iterator

import pytest
import torch
from problems import SCALINGS, Place, assert_agrees, largest, make_problem
from tim_tasks import VARIANTS, overlapping
from tim_tasks import agrees as tim_agrees
from transport_tasks import NASTY, make_tasks
from transport_tasks import agrees as transport_agrees

import paddle_ext
from paddle_ext import _native, reference

PRECISIONS = [torch.float32, torch.float64]


INFO = _native.build_info()


@pytest.fixture(params=[level for level in INFO["simd_levels"] if level != INFO["simd"]])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each level but the best, which all other tests use."""
    _native.set_simd_level(request.param)
    yield request.param
    _native.set_simd_level(INFO["simd"])


def test_levels_are_told() -> None:
    for level in (*INFO["simd_levels"], INFO["simd"]):
        _native.set_simd_level(level)
        assert paddle_ext.build_info()["simd"] == level
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


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.usefixtures("level")
def test_adapt_and_adaptive(dtype: torch.dtype) -> None:
    options = {"tol": 0.0, "max_iter": 15}
    for Q, K, D, shots in ((75, 33, 37, (1, 1)), (40, 18, 37, (2, 3)), (20, 5, 9, (8, 8))):
        problem = make_problem(B=2, Q=Q, K=K, D=D, shots=shots, lead=3.0).to(dtype)
        exact, known = problem.to(torch.float64), {"num_classes": K, **options}
        logits = torch.randn(2, Q, K, generator=torch.Generator().manual_seed(Q)).to(dtype)
        for got, want in (
            (paddle_ext.adapt(logits, **options), reference.adapt(logits.double(), **options)),
            (
                paddle_ext.adaptive(*problem.inputs(), **known),
                reference.adaptive(*exact.inputs(), **known),
            ),
        ):
            off = largest(got.probabilities.double() - want.probabilities)
            assert off < (1e-4 if dtype is torch.float32 else 1e-7)
