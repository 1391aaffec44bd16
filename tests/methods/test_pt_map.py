"""PT-MAP: the method against its reference, the reference against plain loops."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from method_tasks import nonnegative
from places import at_places
from problems import NASTY, Place, Problem, all_equal, largest, make_problem, remembered, tied
from torch import Tensor

from paddle_ext import reference
from paddle_ext import task as tasks
from paddle_ext.methods import Prediction, pt_map
from paddle_ext.methods.pt_map import PtMap

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9}


def overlapping(**options: Any) -> Problem:
    """Classes that overlap, so that probabilities are none of 0 and 1."""
    shape = {"B": 3, "Q": 20, "K": 9, "D": 8, "shots": (1, 4), "lead": 3.0} | options
    return nonnegative(make_problem(**shape))


def predict(problem: Problem, place: Place, **options: Any) -> Prediction:
    there = place.put(problem)
    return PtMap(**options).predict(*there.inputs(), num_classes=problem.num_classes)


def truth(problem: Problem, **options: Any) -> Tensor:
    exact = problem.to("cpu").to(torch.float64)
    return remembered(reference.pt_map, *exact.inputs(), num_classes=problem.num_classes, **options)


def agrees(problem: Problem, place: Place, **options: Any) -> None:
    options = {"max_iter": 8} | options  # the reference is slow
    got = predict(problem, place, **options).probabilities
    want = truth(problem.to(place.dtype), **options)
    assert got.dtype == place.dtype
    assert got.shape == want.shape
    assert largest(got.cpu().double() - want) < TOLERANCE[place.dtype]


def assert_on_simplex(u: Tensor) -> None:
    assert torch.isfinite(u).all()
    assert (u >= 0).all()
    assert largest(u.double().sum(-1) - 1) < 1e-5


OPTIONS: list[dict[str, Any]] = [
    {},
    {"power": 1.0},
    {"power": 0.3, "reg": 0.25},
    {"step": 0.4, "epochs": 7},
    {"epochs": 1, "step": 1.0},
    {"class_mass": "oracle"},
    {"class_mass": "oracle", "k_eff": 3, "step": 0.2},
    {"max_iter": 3, "tol": 0.0},
]


@at_places(
    "options, shared",
    everywhere=[*((options, False) for options in OPTIONS), ({}, True)],
    cpu_only=[(options, True) for options in OPTIONS if options],
)
def test_agrees_with_the_reference(place: Place, options: dict[str, Any], shared: bool) -> None:
    agrees(overlapping(shared=shared), place, **options)


@pytest.mark.parametrize(
    "shape",
    [
        {"B": None},
        {"Q": 50, "K": 20, "D": 33},
        {"Q": 5, "K": 40, "D": 16},
        {"K": 1},
        {"Q": 1},
        {"D": 1},
        {"shots": (1, 1)},
    ],
    ids=str,
)
def test_shapes(place: Place, shape: dict[str, Any]) -> None:
    agrees(overlapping(**shape), place)


# --- the maths ------------------------------------------------------------------------------------


def naive(problem: Problem, power: float, sharpness: float, step: float, epochs: int) -> Tensor:
    """One task, as simple as possible."""

    def prepare(rows: Tensor) -> list[Tensor]:
        found = [(row + 1e-6) ** power for row in rows]
        found = [row / row.norm() for row in found]
        mean = sum(found) / len(found)
        return [(row - mean) / (row - mean).norm() for row in found]

    exact = problem.to(torch.float64)
    support, query = prepare(exact.support), prepare(exact.query)
    labels, Q, K = problem.support_labels.tolist(), len(query), problem.num_classes
    own = [[s for s, label in zip(support, labels, strict=True) if label == k] for k in range(K)]
    centroids = [sum(rows) / len(rows) for rows in own]
    for epoch in range(epochs + 1):
        plan = torch.tensor(
            [
                [math.exp(-sharpness * float((z - mu) @ (z - mu))) for mu in centroids]
                for z in query
            ],
            dtype=torch.float64,
        )
        for _ in range(30):
            plan = plan / plan.sum(1, keepdim=True)
            plan = plan * (Q / K) / plan.sum(0, keepdim=True)
        if epoch == epochs:
            return plan / plan.sum(1, keepdim=True)
        for k in range(K):
            drawn = sum(p * z for p, z in zip(plan[:, k], query, strict=True))
            estimate = (sum(own[k]) + drawn) / (len(own[k]) + plan[:, k].sum())
            centroids[k] = centroids[k] + step * (estimate - centroids[k])
    raise AssertionError


def test_reference_is_the_method() -> None:
    problem = overlapping(B=None, Q=12, K=4)
    want = naive(problem, power=0.5, sharpness=5.0, step=0.3, epochs=4)
    options = {"reg": 0.2, "step": 0.3, "epochs": 4, "max_iter": 30, "tol": 0.0}
    assert largest(truth(problem, **options) - want) < 1e-12


def test_balanced_classes_get_equal_shares(place: Place) -> None:
    u = predict(overlapping(), place).probabilities
    assert largest(u.sum(-2) * 9 / 20 - 1) < 1e-4


def test_oracle_is_where_inconsistent_masses_lead() -> None:
    """The public code scales rows to 1 and columns to c, K c being more than Q, and never stops."""
    cost = torch.rand(20, 9, generator=torch.Generator().manual_seed(0)).double()
    c = 4.0
    plan = torch.exp(-5.0 * cost)
    for _ in range(500):
        plan = plan / plan.sum(1, keepdim=True)
        plan = plan * c / plan.sum(0, keepdim=True)
    balanced = reference.sinkhorn(
        cost, torch.ones(20), torch.full((9,), 20 / 9), reg=0.2, tol=1e-13
    ).plan
    assert largest(plan - 9 * c / 20 * balanced) < 1e-10
    # So with an oracle queries weigh more, and centroids go further.
    problem, place = overlapping(), Place("cpu", torch.float64)
    moved = [
        predict(problem, place, step=0.5, epochs=3, **options).probabilities
        for options in ({}, {"class_mass": "oracle"}, {"class_mass": "oracle", "k_eff": 2})
    ]
    assert largest(moved[1] - moved[0]) > 1e-3
    assert largest(moved[2] - moved[1]) > 1e-3
    # Nine classes, twenty queries and nine effective classes: a mass of 2 each, 18 in all.
    none = {"class_mass": "oracle", "k_eff": 9}
    agrees(problem, place, **none)


def test_rotation_changes_nothing(place: Place) -> None:
    """Hence no QR: it maps the features of a task to fewer coordinates by an isometry."""
    problem = make_problem(B=None, Q=10, K=4, D=60, lead=3.0, shots=(2, 2)).to(torch.float64)
    rows = torch.cat([problem.support, problem.query])
    reduced = torch.linalg.qr(rows.mT).R.mT  # [S + Q, S + Q]
    assert reduced.shape[1] < rows.shape[1]
    split = len(problem.support)
    other = replace(problem, support=reduced[:split], query=reduced[split:])
    got, want = (predict(p, place, power=1.0).probabilities for p in (other, problem))
    assert largest(got - want) < TOLERANCE[place.dtype]


def test_features_are_prepared(place: Place) -> None:
    x = torch.tensor([[4.0, 0.0], [0.0, 9.0]]).to(place.dtype).to(place.device)
    want = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) / math.sqrt(2)
    half = x.new_tensor(0.5)
    got = pt_map.prepared(x, half).cpu()
    assert largest(got - want) < 1e-3  # for the 1e-6
    assert torch.equal(pt_map.prepared(x[:1], half).cpu(), torch.zeros(1, 2).to(place.dtype))


# --- extreme and invalid input --------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NASTY, "tied", "all equal"])
def test_nasty_tasks_get_an_answer(place: Place, name: str) -> None:
    problem = nonnegative((NASTY | {"tied": tied, "all equal": all_equal})[name]())
    for options in ({}, {"power": 1.0}, {"class_mass": "oracle", "k_eff": 1}):
        assert_on_simplex(predict(problem, place, **options).probabilities)


def test_constant_features(place: Place) -> None:
    """Nothing separates the classes, so all are equally probable."""
    problem = overlapping(Q=12, K=3).map(lambda x: torch.full_like(x, 0.3))
    u = predict(problem, place).probabilities
    assert largest(u - 1 / 3) < 1e-6
    assert largest(truth(problem, max_iter=2) - 1 / 3) < 1e-12


def test_duplicates(place: Place) -> None:
    problem = overlapping(B=None)
    doubled = replace(problem, query=problem.query.repeat(2, 1))
    u = predict(doubled, place).probabilities
    assert largest(u[:20] - u[20:]) < TOLERANCE[place.dtype]
    agrees(doubled, place)


def test_a_task_does_not_depend_on_its_batch(place: Place) -> None:
    for shared in (False, True):
        problem = overlapping(shared=shared)
        together = predict(problem, place).probabilities
        for b in range(3):
            alone = predict(problem.task(b), place).probabilities
            assert largest(together[b] - alone) < TOLERANCE[place.dtype]


@pytest.mark.parametrize("shared", [False, True])
def test_chunks_of_tasks(device: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, place = overlapping(B=5, shared=shared), Place(device, torch.float32)
    want = predict(problem, place).probabilities
    sizes = []
    solve = PtMap.solve_chunk

    def counted(self: PtMap, task: tasks.Task) -> Tensor:
        sizes.append(len(task.query))
        return solve(self, task)

    monkeypatch.setattr(PtMap, "solve_chunk", counted)
    monkeypatch.setitem(tasks.BUDGET, device, 1)
    got = predict(problem, place).probabilities
    assert sizes == [1] * 5
    assert largest(got - want) < TOLERANCE[torch.float32]


def test_negative_features(place: Place) -> None:
    problem = overlapping()
    negative = replace(problem, query=problem.query - 0.5)
    with pytest.raises(ValueError, match=r"query must be at least 0 for power=0\.5") as caught:
        predict(negative, place, power=0.5)
    assert "power=1.0" in str(caught.value)
    assert f", got {float(negative.query.min()):g}" in str(caught.value)
    with pytest.raises(ValueError, match="support must be at least 0 for power=2 "):
        predict(replace(problem, support=-problem.support), place, power=2.0)
    agrees(negative, place, power=1.0)


@pytest.mark.parametrize("shared", [False, True])
def test_the_default_power_is_that_of_each_task(place: Place, shared: bool) -> None:
    problem = overlapping(shared=shared)
    problem.query[1] -= 0.5
    together = predict(problem, place).probabilities
    for b, power in enumerate([0.5, 1.0, 0.5]):
        alone = predict(problem.task(b), place, power=power).probabilities
        assert largest(together[b] - alone) < TOLERANCE[place.dtype]


def test_more_k_eff_than_queries() -> None:
    place = Place("cpu", torch.float32)
    with pytest.raises(ValueError, match=r"k_eff must be at most .* queries, 20, got 21"):
        predict(overlapping(), place, class_mass="oracle", k_eff=21)
