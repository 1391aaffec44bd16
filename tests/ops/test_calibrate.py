"""The sharpness of squared distances, against its reference and against a search."""

import math
from typing import Any

import pytest
import torch
from paddle_ext.ops.calibrate import calibrate
from problems import Place, largest
from torch import Tensor

from paddle_ext import _native, build_info, reference


def make(
    B: int, R: int, K: int, *, lead: float = 0.6, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, K, (B, R), generator=random)
    distances = 1 + 0.3 * torch.rand(B, R, K, generator=random, dtype=torch.float64)
    own = distances.gather(2, labels.unsqueeze(-1)) - lead * torch.rand(B, R, 1, generator=random)
    count = torch.randint(0, R + 1, (B,), generator=random)
    count[0] = R
    return distances.scatter(2, labels.unsqueeze(-1), own), labels, count


def objective(distances: Tensor, labels: Tensor, f: float) -> float:
    """Of one task with all its rows."""
    entropy = torch.nn.functional.cross_entropy(-0.5 * f * distances, labels, reduction="sum")
    return float(entropy) + 0.5 * (math.log(f / 16) / math.log(2)) ** 2


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 3), (3, 40, 33), (2, 256, 160), (2, 9, 1100)])
def test_agrees_with_the_reference(place: Place, shape: tuple[int, int, int]) -> None:
    for lead in (0.0, 0.3, 0.9):
        distances, labels, count = make(*shape, lead=lead)
        distances = distances.to(place.dtype)
        got = calibrate(*(x.to(place.device) for x in (distances, labels, count)))
        want = reference.calibrate(distances.double(), labels, count)
        tolerance = 1e-4 if place.dtype is torch.float32 else 1e-9
        assert largest((got[0].cpu().double() / want[0]).log()) < tolerance
        assert largest((got[1].cpu().double() - want[1]) / want[1].clamp(min=1)) < tolerance
        assert largest(got.drawn.cpu().double() - want[2]) < 10 * tolerance


def test_is_the_least_of_a_search() -> None:
    distances, labels, _ = make(1, 60, 12)
    f, found, _ = calibrate(distances, labels, torch.tensor([60]))
    assert float(found) == pytest.approx(objective(distances[0], labels[0], float(f)), rel=1e-9)
    others = [objective(distances[0], labels[0], x) for x in torch.logspace(-1, 4, 300).tolist()]
    assert float(found) <= min(others) + 1e-9


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-3, 1e3, 1e20])
def test_any_scale(place: Place, scale: float) -> None:
    """The end of the range where appropriate, and never NaN."""
    distances, labels, count = make(3, 20, 7)
    distances = (scale * distances).to(place.device, place.dtype)
    f, found, drawn = calibrate(distances, labels.to(place.device), count.to(place.device))
    assert torch.isfinite(drawn).all()
    assert torch.isfinite(f).all()
    assert torch.isfinite(found).all()
    assert ((f >= 0.099) & (f <= 1.001e4)).all()


def test_no_rows_and_rows_that_do_not_count(place: Place) -> None:
    distances, labels, _ = make(2, 10, 4)
    count = torch.tensor([0, 6])
    inputs = [x.to(place.device) for x in (distances.to(place.dtype), labels, count)]
    f, found, drawn = calibrate(*inputs)
    assert largest(drawn[0]) == 0
    assert float(f[0]) == pytest.approx(16.0, rel=1e-6)
    assert float(found[0]) == pytest.approx(0.0, abs=1e-9)
    inputs[0][1, 6:] = 1e6
    assert torch.equal(calibrate(*inputs)[0], f)


def test_levels() -> None:
    before = build_info()["simd"]
    try:
        for level in build_info()["simd_levels"]:
            _native.set_simd_level(level)
            for dtype in (torch.float32, torch.float64):
                for shape in ((2, 5, 3), (3, 40, 33)):
                    distances, labels, count = make(*shape)
                    got = calibrate(distances.to(dtype), labels, count)[0]
                    want = reference.calibrate(distances.to(dtype).double(), labels, count)[0]
                    assert largest((got.double() / want).log()) < 1e-4
    finally:
        _native.set_simd_level(before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"distances": torch.zeros(2, 3)}, r"distances must have shape .*, got \[2, 3\]"),
        ({"distances": torch.zeros(2, 3, 4).half()}, "distances must be float32 or float64"),
        ({"labels": torch.zeros(2, 4).long()}, r"labels must have shape \[2, 3\], got \[2, 4\]"),
        ({"count": torch.zeros(3).long()}, r"count must have shape \[2\], got \[3\]"),
        ({"centre": 0.0}, r"centre must be in \[0.1, 10000\], got 0.0"),
        ({"spread": -1.0}, "spread must be finite and >= 0, got -1.0"),
        ({"spread": 1e-9}, r"spread must be in \[1e-06, 1e\+06\], got 1e-09"),
    ],
)
def test_bad_input(changes: dict[str, Any], words: str) -> None:
    good = {
        "distances": torch.zeros(2, 3, 4),
        "labels": torch.zeros(2, 3).long(),
        "count": torch.zeros(2).long(),
    }
    with pytest.raises(ValueError, match=words):
        calibrate(**good | changes)


def test_operator(device: str) -> None:
    distances, labels, count = (x.to(device) for x in make(2, 6, 4))
    inputs = distances.float(), labels, count, 16.0, 0.7
    torch.library.opcheck(torch.ops.paddle_ext.calibrate.default, inputs)
