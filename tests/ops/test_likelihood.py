"""`likelihood` and `posterior`, each one native call, against the same in many calls."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from paddle_ext.methods.calibration import Likelihood
from paddle_ext.ops.likelihood import likelihood, likelihood_op
from paddle_ext.ops.posterior import posterior
from places import at_places
from problems import Place, Problem, largest, make_problem

from paddle_ext import _native, build_info, methods
from paddle_ext.methods import adaptive, calibration
from paddle_ext.methods.adaptive import Adaptive
from paddle_ext.solution import Solution

TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-11}
# Q, K, D, shots: products of all queries, sums of them; one shot; panels full and not
SHAPES = [
    (7, 3, 5, (2, 4)),
    (75, 20, 64, (2, 2)),
    (200, 16, 33, (1, 3)),
    (30, 40, 20, (1, 1)),
    (33, 70, 130, (2, 3)),
]


@pytest.fixture
def in_many_calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the method compose its parts in torch."""

    def compose() -> None:
        for module in (adaptive, calibration):
            monkeypatch.setattr(module, "takes_reference", lambda *_: True)

    return compose


def both(problem: Problem, method: Adaptive) -> tuple[Likelihood, Solution]:
    S, D = problem.support.shape[-2:]
    support, labels = problem.support.reshape(-1, S, D), problem.support_labels.reshape(-1, S)
    found = calibration.calibrated(support, labels, problem.num_classes, method.metric)
    return found, method.solve_batch(found, problem.query.reshape(-1, *problem.query.shape[-2:]))


@at_places("shape", everywhere=SHAPES)
@pytest.mark.parametrize("shared", [False, True])
def test_one_call_is_many(
    place: Place, shape: tuple[int, int, int, tuple[int, int]], shared: bool, in_many_calls: Any
) -> None:
    Q, K, D, shots = shape
    problem = make_problem(B=3, Q=Q, K=K, D=D, shots=shots, lead=4.0, seed=K, shared=shared)
    problem = place.put(problem.to(place.dtype))
    method = Adaptive(metric="diagonal", max_iter=12, tol=0.0)
    got = both(problem, method)
    in_many_calls()
    want = both(problem, method)
    for ours, theirs in zip(got, want, strict=True):
        for name, expected in vars(theirs).items() if ours is got[0] else theirs._asdict().items():
            x = getattr(ours, name)
            if not isinstance(expected, torch.Tensor) or not expected.is_floating_point():
                continue
            scale = expected.abs().clamp(min=1)
            gap = ((x - expected) / scale).nan_to_num(nan=0.0)
            assert torch.equal(x.isnan(), expected.isnan()), name
            factor = 30 if name in ("bound", "concentration", "dual", "sharpness") else 1
            assert largest(gap.cpu().double()) < factor * TOLERANCE[place.dtype], name
    assert torch.equal(got[1].iterations, want[1].iterations)


def bad_tasks() -> Iterator[Problem]:
    good = make_problem(B=2, Q=9, K=4, D=6, shots=(2, 3), seed=1)
    for value in (torch.nan, torch.inf, 1e31):
        support, query = good.support.clone(), good.query.clone()
        support[1, 2, 3] = query[0, 8, 5] = value
        yield replace(good, support=support)
        yield replace(good, query=query)
    labels = good.support_labels.clone()
    labels[1, 0] = 4
    yield replace(good, support_labels=labels)
    labels = good.support_labels.clone()
    labels[labels == 2] = 1
    yield replace(good, support_labels=labels)


@at_places("case", everywhere=[0, 1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("batched", [False, True])
def test_bad_values_are_found(place: Place, case: int, batched: bool) -> None:
    """Including those that only a pass over the rows finds, with the usual errors."""
    problem = list(bad_tasks())[case]
    if place.dtype is torch.float64 and case in (4, 5):
        return  # a number like any other
    problem = place.put(problem.to(place.dtype))
    if not batched:
        problem = problem.task(0 if case in (1, 3, 5) else 1)
    sentences = []
    for name in ("adaptive", "simpleshot"):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            methods.create(name).predict(*problem.inputs(), num_classes=4)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    assert "\n" not in sentences[0]


def test_odd_values_are_not_bad(place: Place) -> None:
    """Rows of zeros, tiny and huge ones look suspicious but are valid."""
    problem = make_problem(B=2, Q=9, K=4, D=6, shots=(3, 3), seed=1)
    support = problem.support.clone()
    support[0, 0], support[1, 1], support[1, 2] = 0, 1e-30 * support[1, 1], 1e25 * support[1, 2]
    there = place.put(replace(problem, support=support).to(place.dtype))
    found = methods.create("adaptive").predict(*there.inputs(), num_classes=4)
    assert torch.isfinite(found.probabilities).all()
    S = support.shape[1]
    assert not likelihood_op(there.support, there.support_labels, 4, S)[-2].any()


def test_threads_leave_no_trace() -> None:
    problem = make_problem(B=3, Q=300, K=70, D=200, shots=(3, 3), seed=2)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for tasks in (slice(0, 1), slice(0, 3)):
                some = Problem(*(x[tasks] for x in problem.inputs()), problem.num_classes)
                found.append(both(some, Adaptive(metric="diagonal"))[1].probabilities[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], x) for x in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_agree(dtype: torch.dtype) -> None:
    problem = make_problem(B=1, Q=40, K=18, D=37, shots=(2, 3), seed=3).to(dtype)
    current, found = build_info()["simd"], []
    try:
        for level in build_info()["simd_levels"]:
            _native.set_simd_level(level)
            found.append(both(problem, Adaptive(metric="diagonal"))[1].probabilities)
    finally:
        _native.set_simd_level(current)
    for other in found[1:]:
        assert largest(other - found[0]) < TOLERANCE[dtype]


def test_weights_that_single_precision_lacks_are_refused() -> None:
    support, labels = torch.eye(4, 5).unsqueeze(0), torch.tensor([[0, 0, 1, 1]])
    x = likelihood(support, labels, 2, 4)
    known = x.centre, x.weights, x.scale, x.squares, x.bias, x.shots, x.sharpness, None
    with pytest.raises(ValueError, match=r"weight must be from 1e-30 to 1, got 1e-320"):
        posterior(support, *known, weight=1e-320)
