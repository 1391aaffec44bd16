"""Sinkhorn's iteration: native code against the reference, the reference against plain loops."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from places import at_places
from problems import Place, largest
from transport_tasks import (
    NASTY,
    SHAPES,
    TOLERANCE,
    Tasks,
    agrees,
    call,
    make_tasks,
    no_mass,
    scaled_cost,
)

import paddle_ext
from paddle_ext import Transport, reference

# --- the maths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("solve", [paddle_ext.sinkhorn, reference.sinkhorn])
def test_by_hand(solve: Callable[..., Transport]) -> None:
    # Equal costs: the plan is the product of the masses, after one iteration.
    rows, columns = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 2.0])
    got = solve(torch.full((3, 2), 7.0), rows, columns, reg=1.0)
    assert torch.allclose(got.plan, rows[:, None] * columns / 6)
    assert got.iterations == 1
    # Two by two: the row step gives softmax rows, and the column step finds nothing to do.
    got = solve(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.ones(2), torch.ones(2), reg=0.5)
    p = 1 / (1 + math.exp(-2.0))
    assert torch.allclose(got.plan, torch.tensor([[p, 1 - p], [1 - p, p]]))
    # One iteration by hand: exp(-cost / reg) is [[1, 1/2], [1, 1/4]].
    cost = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    got = solve(cost, torch.ones(2), torch.ones(2), reg=1 / math.log(2.0), max_iter=1, tol=0.0)
    after_rows = torch.tensor([[2 / 3, 1 / 3], [4 / 5, 1 / 5]])
    want = after_rows / after_rows.sum(0)
    assert torch.allclose(got.plan, want)
    assert torch.allclose(got.residual, (want.sum(1) - 1).abs().max())


@pytest.mark.parametrize("iterations", [1, 2, 30])
def test_reference_is_plain_scaling(iterations: int) -> None:
    tasks = make_tasks(3, 12, 7).to(torch.float64)
    rows, columns = tasks.row_mass, tasks.col_mass
    columns = columns * rows.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True)
    plan = torch.exp(-5.0 * tasks.cost)
    for _ in range(iterations):
        plan = plan * (rows / plan.sum(-1)).unsqueeze(-1)
        plan = plan * (columns / plan.sum(-2)).unsqueeze(-2)
    got = tasks.truth(reg=0.2, max_iter=iterations, tol=0.0)
    assert largest(got.plan - plan) < 1e-14
    assert (got.iterations == iterations).all()


@at_places("shape, iterations", everywhere=product(SHAPES, [9]), cpu_only=product(SHAPES, [1]))
def test_agrees_with_the_reference(place: Place, shape: tuple[int, int], iterations: int) -> None:
    tasks = make_tasks(2, *shape, seed=iterations)
    agrees(tasks, place, reg=0.1, max_iter=iterations, tol=0.0)


@pytest.mark.parametrize("shape", [(75, 20), (75, 160)])
def test_hundred_iterations(place: Place, shape: tuple[int, int]) -> None:
    agrees(make_tasks(2, *shape, masses="equal"), place, reg=0.1, max_iter=100, tol=0.0)


@pytest.mark.parametrize("shape", [(5, 3), (75, 20), (75, 160), (300, 60)])
def test_both_sums_are_met(place: Place, shape: tuple[int, int]) -> None:
    Q, _ = shape
    tasks = make_tasks(3, *shape, masses="equal")
    tol = 1e-6 if place.dtype is torch.float32 else 1e-9
    got = agrees(tasks, place, iterations=1, reg=0.1, tol=tol)
    assert (got.residual <= tol).all()
    plan = got.plan.cpu().double()
    assert largest(plan.sum(-1) - 1) < 2 * tol
    assert largest(plan.sum(-2) * shape[1] / Q - 1) < 2 * tol
    # Logarithms of the plan are -cost / reg, up to offsets of rows and columns: mixed differences.
    mixed = plan.log() + 10.0 * tasks.to(place.dtype).cost.double()
    mixed = mixed - mixed[:, :1]
    assert largest(mixed - mixed[:, :, :1]) < (2e-4 if place.dtype is torch.float32 else 1e-9)


def test_every_task_stops_on_its_own(place: Place) -> None:
    tasks = make_tasks(6, 40, 12)
    cost = tasks.cost * torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 4.0]).view(-1, 1, 1)
    tasks = tasks._replace(cost=cost)
    got = agrees(tasks, place, iterations=2, reg=0.125, tol=1e-5, max_iter=60)
    assert got.iterations[0] == 1
    assert (got.iterations.diff() > 0).sum() >= 3
    stopped = got.iterations < 60
    assert (got.residual[stopped] <= 1e-5).all()
    for b in range(6):
        fixed = call(tasks.task(b), place, reg=0.125, tol=0.0, max_iter=int(got.iterations[b]))
        assert torch.equal(fixed.plan, got.plan[b])


def test_tolerance_is_absolute(place: Place) -> None:
    tasks = make_tasks(1, 30, 12, masses="equal")
    few = call(tasks, place, reg=0.125, tol=1e-2)
    scaled = tasks._replace(row_mass=1e3 * tasks.row_mass, col_mass=1e3 * tasks.col_mass)
    same = call(scaled, place, reg=0.125, tol=10.0)
    assert few.iterations == same.iterations
    assert largest(same.plan / 1e3 - few.plan) < 1e-6
    more = call(scaled, place, reg=0.125, tol=1e-2)
    assert more.iterations > few.iterations


def test_no_tolerance_runs_all_iterations(place: Place) -> None:
    tasks = make_tasks(2, 6, 4)._replace(cost=torch.zeros(2, 6, 4))
    assert (call(tasks, place, reg=1.0, tol=0.0, max_iter=5).iterations == 5).all()
    assert (call(tasks, place, reg=1.0, tol=1e-5, max_iter=5).iterations == 1).all()


# --- nasty costs and masses -----------------------------------------------------------------------


@at_places("name, iterations", everywhere=product(NASTY, [2, 40]), cpu_only=product(NASTY, [1]))
def test_nasty_tasks_agree_with_the_reference(place: Place, name: str, iterations: int) -> None:
    agrees(NASTY[name](), place, reg=0.2, max_iter=iterations, tol=0.0)


# On CUDA 32 copies are in shared memory, and 512 in global memory.
IN_GLOBAL_MEMORY = ("far column", "largest", "no mass", "uneven mass")


@at_places(
    "name, copies",
    everywhere=[*product(NASTY, [32]), *product(IN_GLOBAL_MEMORY, [512])],
    cpu_only=product([name for name in NASTY if name not in IN_GLOBAL_MEMORY], [512]),
)
def test_nasty_tasks_in_large_kernels(place: Place, name: str, copies: int) -> None:
    """Copies of a row share its mass, and get the same result."""
    cost, rows, columns = NASTY[name]().to(place.dtype)
    few = Tasks(cost, rows, columns).truth(reg=0.2, max_iter=6, tol=0.0)
    many = Tasks(cost.repeat(1, copies, 1), rows.repeat(1, copies) / copies, columns)
    got = call(many, place, reg=0.2, max_iter=6, tol=0.0).plan.cpu().double() * copies
    unit = float(rows.mean())
    assert largest(got - few.plan.repeat(1, copies, 1)) < 2 * TOLERANCE[place.dtype] * unit


@pytest.mark.parametrize("reg", [1e-300, 1e-30, 1e-3, 1e30, 1e300])
def test_any_regularisation(place: Place, reg: float) -> None:
    for tasks in (make_tasks(2, 20, 9), scaled_cost(1e30)()):
        agrees(tasks, place, reg=reg, max_iter=10, tol=0.0)


def test_without_mass_there_is_nothing(place: Place) -> None:
    tasks = no_mass()
    plan = call(tasks, place, reg=0.2).plan.cpu()
    assert (plan[tasks.row_mass == 0] == 0).all()
    assert (plan.mT[tasks.col_mass == 0] == 0).all()
    assert torch.allclose(plan[1, :, 0], tasks.row_mass[1].to(plan.dtype))
    assert torch.allclose(plan[2, 0], tasks.col_mass[2].to(plan.dtype))


def test_slow_drift_of_the_factors(place: Place) -> None:
    """Rows that compete for their columns: factors drift for hundreds of iterations."""
    cost = torch.tensor([[0.0, 1.0, 4.0], [0.0, 3.0, 9.0], [0.0, 5.0, 5.0]]).repeat(4, 5)
    tasks = Tasks(cost, torch.ones(12), torch.full((15,), 12 / 15))
    got = agrees(tasks, place, reg=0.025, max_iter=400, tol=0.0)
    assert got.residual > 0
    logs = got.plan.double().log2()
    assert logs.max() - logs.min() > 150  # more than a float32 has room for


def test_totals_may_differ_by_rounding(place: Place) -> None:
    tasks = make_tasks(2, 20, 9)
    exact = call(tasks, place, reg=0.2, tol=0.0, max_iter=5)
    off = call(
        tasks._replace(col_mass=tasks.col_mass * 1.00009), place, reg=0.2, tol=0.0, max_iter=5
    )
    assert largest(off.plan - exact.plan) < 1e-5
    assert largest(off.plan.double().sum((-2, -1)).cpu() - tasks.row_mass.double().sum(-1)) < 1e-5
