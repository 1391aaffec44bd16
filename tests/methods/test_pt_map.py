"""PT-MAP: against easyfsl, and what it promises."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from method_tasks import nonnegative
from problems import Place, Problem, largest, make_problem
from torch import Tensor

from paddle_ext.methods import Prediction
from paddle_ext.methods.pt_map import PtMap

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9}


def overlapping(**options: Any) -> Problem:
    """Classes that overlap, so that probabilities are none of 0 and 1."""
    shape = {"B": 3, "Q": 20, "K": 9, "D": 8, "shots": (1, 4), "lead": 3.0} | options
    return nonnegative(make_problem(**shape))


def predict(problem: Problem, place: Place, **options: Any) -> Prediction:
    there = place.put(problem)
    return PtMap(**options).predict(*there.inputs(), num_classes=problem.num_classes)


CPU = Place("cpu", torch.float64)


# --- against others -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("power", "reg", "step", "epochs"), [(0.5, 0.1, 0.02, 20), (0.3, 0.25, 0.4, 3), (1, 0.2, 1, 1)]
)
@pytest.mark.parametrize("K", [4, 5])
def test_the_loop_is_that_of_easyfsl(
    easyfsl: ModuleType, power: float, reg: float, step: float, epochs: int, K: int
) -> None:
    """It has the same transport and the same step, on features that are prepared here."""

    def prepared(x: Tensor) -> Tensor:
        rows = x.double() if power == 1 else (x.double() + 1e-6) ** power
        rows = F.normalize(rows, dim=-1)
        return F.normalize(rows - rows.mean(0), dim=-1)

    class AsTheyAre(easyfsl.PTMAP):
        def compute_features(self, images: Tensor) -> Tensor:
            return images

    problem = overlapping(B=None, K=K)
    model = AsTheyAre(fine_tuning_steps=epochs, fine_tuning_lr=step, lambda_regularization=1 / reg)
    model.process_support_set(prepared(problem.support), problem.support_labels)
    want = model(prepared(problem.query))
    got = predict(problem, CPU, power=float(power), reg=reg, step=float(step), epochs=epochs)
    assert largest(got.probabilities - want) < 2e-4  # its transport stops earlier


@pytest.mark.parametrize("shared", [False, True])
def test_single_precision(place: Place, shared: bool) -> None:
    """The results are those of double precision on the CPU."""
    for options in ({}, {"step": 0.4, "epochs": 7}):
        problem = overlapping(shared=shared)
        got = predict(problem, place, **options).probabilities.cpu().double()
        want = predict(problem.to(place.dtype), CPU, **options).probabilities
        assert largest(got - want) < TOLERANCE[torch.float32]


def test_balanced_classes_get_equal_shares(place: Place) -> None:
    u = predict(overlapping(), place).probabilities
    assert largest(u.sum(-2) * 9 / 20 - 1) < 1e-4


# --- extreme and invalid input --------------------------------------------------------------------


def test_constant_features(place: Place) -> None:
    """Nothing separates the classes, so all are equally probable."""
    problem = overlapping(Q=12, K=3).map(lambda x: torch.full_like(x, 0.3))
    assert largest(predict(problem, place).probabilities - 1 / 3) < 1e-6


def test_negative_features(place: Place) -> None:
    problem = overlapping()
    negative = replace(problem, query=problem.query - 0.5)
    with pytest.raises(ValueError, match=r"query must be at least 0 for power=0\.5") as caught:
        predict(negative, place, power=0.5)
    assert "power=1.0" in str(caught.value)
    assert f", got {float(negative.query.min()):g}" in str(caught.value)
    with pytest.raises(ValueError, match="support must be at least 0 for power=2 "):
        predict(replace(problem, support=-problem.support), place, power=2.0)


@pytest.mark.parametrize("shared", [False, True])
def test_the_default_power_is_that_of_each_task(place: Place, shared: bool) -> None:
    problem = overlapping(shared=shared)
    problem.query[1] -= 0.5
    together = predict(problem, place).probabilities
    for b, power in enumerate([0.5, 1.0, 0.5]):
        alone = predict(problem.task(b), place, power=power).probabilities
        assert largest(together[b] - alone) < TOLERANCE[place.dtype]
