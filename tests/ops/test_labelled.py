"""Labelled rows in their coordinates, and the late step of `adaptive`, against the references."""

from typing import Any

import pytest
import torch
from paddle_ext.ops.labelled import Labelled, coordinates, labelled
from paddle_ext.ops.step import step
from problems import Place, largest
from torch import Tensor

from paddle_ext import _native, build_info, reference

# S, K, D, rows: one class; a row a class; rows that end between two loads; fewer rows than could
# calibrate; rows held in registers of each number, and not at all.
SHAPES = [
    (4, 1, 3, 8),
    (7, 7, 16, 0),
    (30, 7, 33, 64),
    (90, 40, 64, 20),
    (50, 5, 500, 64),
    (40, 6, 900, 64),
    (30, 4, 1100, 9),
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def make(S: int, K: int, D: int, *, B: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ragged classes, each of which has one; float64."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(K), torch.randint(0, K, (S - K,), generator=random)])
    labels = torch.stack([labels[torch.randperm(S, generator=random)] for _ in range(B)])
    centres = torch.randn(B, K, D, generator=random, dtype=torch.float64)
    rows = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, D))
    return rows + torch.randn(B, S, D, generator=random, dtype=torch.float64), labels


def agrees(support: Tensor, labels: Tensor, K: int, rows: int, place: Place) -> Labelled:
    support = support.to(place.dtype)
    got = labelled(support.to(place.device), labels.to(place.device), K, rows)
    want = Labelled(*reference.labelled(support.double(), labels, K, rows))
    for name, x in got._asdict().items():
        expected = getattr(want, name)
        if not x.is_floating_point():
            assert torch.equal(x.cpu(), expected), name
            continue
        scale = expected.abs().clamp(min=1)
        assert largest((x.cpu().double() - expected) / scale) < TOLERANCE[place.dtype], name
    return got


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_reference(place: Place, shape: tuple[int, int, int, int]) -> None:
    S, K, D, rows = shape
    agrees(*make(S, K, D), K, rows, place)


@pytest.mark.parametrize("D", [33, 1100])
def test_a_row_without_a_class_has_no_place(place: Place, D: int) -> None:
    """Its numbers are written too: memory for results is not cleared."""
    support, labels = make(20, 4, D)
    labels[:, 3] = 9
    support = support.to(place.dtype).to(place.device)
    stale = [torch.full((2, 20), torch.nan, dtype=place.dtype, device=place.device) for _ in "123"]
    del stale
    found = labelled(support, labels.to(place.device), 4, 16)
    assert all(bool(x.isfinite().all()) for x in found)
    assert bool((found.second[:, 3] == 0).all())


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_lengths_do_not_count(place: Place, scale: float) -> None:
    support, labels = make(20, 4, 33)
    support[:, ::3] *= scale
    found = agrees(support, labels, 4, 16, place)
    assert all(torch.isfinite(x.double()).all() for x in found)


def test_rows_of_zeros_and_equal_rows(place: Place) -> None:
    support, labels = make(20, 4, 8)
    support[0] = 1.0
    support[1, 3:] = 0.0
    found = agrees(support, labels, 4, 16, place)
    assert all(torch.isfinite(x.double()).all() for x in found)
    assert largest(found.means[0].cpu()) < 1e-5  # all rows are the centre


def test_labels_that_are_no_class(place: Place) -> None:
    """Without validation they are ignored, and nothing is read out of bounds."""
    support, labels = make(20, 4, 8)
    labels[:, 5], labels[:, 9] = -(2**40), 4
    rows = support.to(place.device, place.dtype)
    found = labelled(rows, labels.to(place.device), 4, 16)
    assert torch.isfinite(found.means).all()
    assert ((found.own >= 0) & (found.own < 4)).all()
    assert int(found.shots.sum()) == 36


@pytest.mark.parametrize("D", [1, 33, 500, 1100])
def test_coordinates(place: Place, D: int) -> None:
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 70, D, generator=random, dtype=torch.float64).to(place.dtype)
    rows[0, 0], rows[1, 1] = 0, 1e20 * rows[1, 1]
    for tasks in (1, 3):
        centre = (torch.randn(tasks, D, generator=random) / (2 * D**0.5)).to(place.dtype)
        got = coordinates(rows.to(place.device), centre.to(place.device))
        want = reference.coordinates(rows.double(), centre.double())
        for x, expected in zip(got, want, strict=True):
            assert largest(x.cpu().double() - expected) < TOLERANCE[place.dtype]


def step_inputs(B: int, Q: int, K: int, L: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random, dtype=torch.float64)

    given = (8 * numbers(B, Q, K)).softmax(-1)
    prior = 0.01 + numbers(B)
    return {
        "given": given,
        "cross": numbers(B, Q, K) - 0.5,
        "inner": numbers(B, Q, K) - 0.5,
        "own": 0.5 + numbers(B, Q),
        "extra": numbers(B, Q, K),
        "shots": 1 + (4 * numbers(L, K)).floor(),
        "squares": 0.5 + numbers(L, K),
        "sharpness": 10 * numbers(B),
        "constant": numbers(B, K),
        "total": given.sum(1) + prior.unsqueeze(-1),
        "prior": prior,
    }


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 20, 5, 1), (3, 75, 40, 3), (2, 30, 700, 2)])
def test_step(place: Place, shape: tuple[int, int, int, int]) -> None:
    exact = step_inputs(*shape)
    for temper, extra in ((1.0, True), (0.7, False)):
        inputs = {name: x.to(place.dtype) for name, x in exact.items()}
        there: dict[str, Any] = {name: x.to(place.device) for name, x in inputs.items()}
        here: dict[str, Any] = {name: x.double() for name, x in inputs.items()}
        if not extra:
            there["extra"] = here["extra"] = None
        u, found = step(**there, weight=0.8, temper=temper)
        want, labels = reference.step(**here, weight=0.8, temper=temper)
        tolerance = 1e-4 if place.dtype is torch.float32 else 1e-11
        assert largest(u.cpu().double() - want) < tolerance
        best = want.topk(min(2, want.shape[-1]), dim=-1).values
        clear = best[..., 0] - best[..., -1] > 2 * tolerance
        assert torch.equal(found.cpu()[clear], labels[clear])


def test_levels() -> None:
    before = build_info()["simd"]
    try:
        for level in build_info()["simd_levels"]:
            _native.set_simd_level(level)
            for dtype in (torch.float32, torch.float64):
                agrees(*make(30, 7, 33), 7, 64, Place("cpu", dtype))
    finally:
        _native.set_simd_level(before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"support": torch.zeros(2, 3)}, r"support must have shape \[B, S, D\]"),
        ({"support": torch.zeros(1, 3, 2).half()}, "support must be float32 or float64"),
        ({"labels": torch.zeros(1, 4, dtype=torch.int64)}, r"labels must have shape \[1, 3\]"),
        ({"num_classes": 0}, "num_classes must be an integer"),
        ({"rows": -1}, "rows must be"),
    ],
)
def test_bad_labelled_rows(changes: dict[str, Any], message: str) -> None:
    good = {
        "support": torch.ones(1, 3, 2),
        "labels": torch.tensor([[0, 1, 1]]),
        "num_classes": 2,
        "rows": 4,
    }
    with pytest.raises(ValueError, match=message):
        labelled(**good | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"given": torch.ones(2, 2)}, r"given must have shape \[B, Q, K\]"),
        ({"own": torch.ones(2, 4).double()}, r"own must have shape \[2, 3\]"),
        ({"total": torch.ones(2, 2)}, "total must be torch.float64 like given"),
        ({"extra": torch.ones(2, 3, 1).double()}, r"extra must have shape \[2, 3, 2\]"),
        ({"weight": 1.5}, "weight must be"),
    ],
)
def test_bad_step(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step(**step_inputs(2, 3, 2, 2) | changes)


def test_operators() -> None:
    support, labels = make(12, 3, 5)
    ops = torch.ops.paddle_ext
    torch.library.opcheck(ops.labelled.default, (support, labels, 3, 8))
    torch.library.opcheck(ops.coordinates.default, (support, support[:, 0]))
    inputs = step_inputs(2, 3, 2, 1)
    torch.library.opcheck(ops.step.default, (*inputs.values(), 0.8, 1.0))
