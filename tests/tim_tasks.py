"""How the tests of TIM solve a problem and compare with the float64 reference."""

from typing import Any

import rounds
import torch
from problems import Place, Problem, assert_clear_labels, largest, make_problem, remembered

import paddle_ext
from paddle_ext import TimSolution, reference

# How far prototypes may be from the float64 reference, relative to the largest of them but at least
# to 1; losses, relative to them; probabilities.
PROTOTYPES = {torch.float32: 1e-4, torch.float64: 1e-9}
LOSSES = {torch.float32: 1e-4, torch.float64: 1e-9}
PROBABILITIES = {torch.float32: 1e-3, torch.float64: 1e-8}

ADM = {"solver": "adm", "weights": (0.1, 1.0, 0.1), "learning_rate": 1.0}
ALPHA = {"weights": (1.0, 1.0, 1.0), "alphas": (1.0, 7.0, 5.0)}
VARIANTS: dict[str, dict[str, Any]] = {"tim": {}, "alpha": ALPHA, "adm": ADM}


def overlapping(*, seed: int, **shape: Any) -> Problem:
    """Classes that overlap on the unit sphere: few probabilities are near 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    base = make_problem(**{"lead": 2.0, "D": 16, "Q": 20, "K": 5, "seed": seed} | shape)
    return base.map(lambda x: x + 0.4 * torch.randn(x.shape, generator=random))


def solve(place: Place, problem: Problem, **options: Any) -> TimSolution:
    """By the native code."""
    return run(place.put(problem), **options)


def run(problem: Problem, **options: Any) -> TimSolution:
    return paddle_ext.tim(*problem.inputs(), num_classes=problem.num_classes, **options)


def truth(problem: Problem, **options: Any) -> TimSolution:
    """The float64 reference, on the CPU."""
    exact = problem.to("cpu").to(torch.float64)
    return remembered(reference.tim, *exact.inputs(), num_classes=problem.num_classes, **options)


def agrees(place: Place, problem: Problem, **options: Any) -> TimSolution:
    """Solve, and compare with the reference on the same numbers."""
    got = solve(place, problem, return_losses=True, **options)
    want = truth(problem.to(place.dtype), return_losses=True, **options)
    assert_agrees(got, want)
    return got


def assert_agrees(got: TimSolution, want: TimSolution) -> None:
    dtype = got.probabilities.dtype
    assert_sound(got)
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one.shape == other.shape
    size = max(1.0, largest(want.prototypes))
    assert largest(got.prototypes.cpu().double() - want.prototypes) < PROTOTYPES[dtype] * size
    tolerance = PROBABILITIES[dtype]
    assert largest(got.probabilities.cpu().double() - want.probabilities) < tolerance
    assert_clear_labels(got, want, tolerance)
    if got.losses is not None and want.losses is not None:
        off = (got.losses.cpu().double() - want.losses) / (1 + want.losses.abs())
        assert largest(off) < LOSSES[dtype]


def assert_sound(got: TimSolution) -> None:
    """Finite, on the simplex, labels at the largest probability."""
    rounds.assert_sound(got, got.probabilities.shape[-1])
    assert torch.isfinite(got.prototypes).all()
    assert got.losses is None or torch.isfinite(got.losses).all()
