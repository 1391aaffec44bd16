"""Sinkhorn's iteration: native code against the reference, the reference against plain loops."""

import re
from itertools import product

import pytest
import torch
from places import at_places
from problems import Place, assert_same, largest
from torch import Tensor
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
from paddle_ext import reference

# --- the maths ------------------------------------------------------------------------------------


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


def test_shared_masses(place: Place) -> None:
    tasks = make_tasks(4, 20, 9, masses="shared")
    options = {"reg": 0.1, "max_iter": 9, "tol": 0.0}
    got = agrees(tasks, place, **options)
    rows, columns = tasks.row_mass.repeat(4, 1), tasks.col_mass.repeat(4, 1)
    assert_same(call(Tasks(tasks.cost, rows, columns), place, **options), got)
    assert_same(call(Tasks(tasks.cost, tasks.row_mass, columns), place, **options), got)


# --- errors ---------------------------------------------------------------------------------------

GOOD = {
    "cost": torch.zeros(2, 4, 3),
    "row_mass": torch.ones(4),
    "col_mass": torch.full((3,), 4 / 3),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_mass": torch.ones(5)}, "row_mass must have shape [4] or [2, 4]"),
        ({"col_mass": torch.ones(3, 3)}, "col_mass must have shape [3] or [2, 3]"),
        (
            {"cost": torch.zeros(4, 3), "row_mass": torch.ones(1, 4)},
            "row_mass must have shape [4], as cost",
        ),
        ({"row_mass": torch.tensor([1.0, -1, 2, 2])}, "got -1 at [1]"),
        ({"col_mass": torch.tensor([1.0, 1e31, 2])}, "at most 1e+30"),
        (
            {"row_mass": torch.zeros(4), "col_mass": torch.zeros(3)},
            "row_mass must have a total > 0, got 0",
        ),
        (
            {"row_mass": torch.tensor([[1.0] * 4, [0.0] * 4])},
            "row_mass must have a total > 0, got 0 in task 1",
        ),
        ({"col_mass": torch.ones(3)}, "the total of row_mass, 4, "),
        ({"col_mass": torch.tensor([[4 / 3] * 3, [15.0] * 3])}, "got 45 in task 1"),
    ],
)
def test_bad_masses(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        paddle_ext.sinkhorn(**GOOD | changes, reg=1.0)


# --- only CUDA ------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_many_tasks() -> None:
    B = 70_000
    few = make_tasks(7, 5, 3).to("cuda")
    many = Tasks(*(x.repeat(B // 7, *[1] * (x.dim() - 1)) for x in few))
    got = paddle_ext.sinkhorn(*many, reg=0.1)
    want = paddle_ext.sinkhorn(*few, reg=0.1)
    for x, part in zip(got, want, strict=True):
        assert torch.equal(x, part.repeat(B // 7, *[1] * (part.dim() - 1)))


@pytest.mark.cuda
def test_very_large_task() -> None:
    tasks = make_tasks(2, 4000, 3000).to("cuda")
    got = paddle_ext.sinkhorn(*tasks, reg=0.1, max_iter=3, tol=0.0)
    want = reference.sinkhorn(*tasks.to(torch.float64), reg=0.1, max_iter=3, tol=0.0)
    assert largest(got.plan - want.plan) < 3e-6


def far_task(Q: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Far rows and columns, offsets, and rows and columns without mass."""
    random = torch.Generator().manual_seed(Q)
    cost = torch.rand(Q, K, generator=random)
    cost[3] += 1e4
    cost[:, 2] += 50.0
    rows, columns = torch.rand(Q, generator=random), torch.rand(K, generator=random)
    rows[5] = columns[4] = 0.0
    columns *= rows.sum() / columns.sum()
    return cost.cuda(), rows.cuda(), columns.cuda()


@pytest.mark.parametrize("shape", [(900, 70), (70, 900), (1100, 1000), (40, 20_000)], ids=str)
@pytest.mark.parametrize(
    ("reg", "max_iter", "tol"), [(1.0, 1, 0.0), (0.05, 40, 0.0), (0.05, 300, 1e-3), (1e-3, 30, 0.0)]
)
@pytest.mark.cuda
def test_one_task_of_several_blocks(
    shape: tuple[int, int], reg: float, max_iter: int, tol: float
) -> None:
    task = far_task(*shape)
    options = {"reg": reg, "max_iter": max_iter, "tol": tol}
    got = paddle_ext.sinkhorn(*task, **options)
    truth = reference.sinkhorn(*(x.double() for x in task), **options)
    assert abs(int(got.iterations) - int(truth.iterations)) <= (0 if tol == 0 else 1)
    scale = float(truth.plan.max())
    torch.testing.assert_close(got.plan.double(), truth.plan, rtol=1e-3, atol=2e-5 * scale)


@pytest.mark.cuda
def test_batches_and_graphs() -> None:
    """More tasks than teams at the same time, each with the result it has alone."""
    cost, rows, columns = far_task(600, 200)
    costs = cost.repeat(40, 1, 1) * torch.linspace(0.5, 1, 40, device="cuda").view(-1, 1, 1)
    options = {"reg": 0.05, "max_iter": 20, "tol": 0.0, "validate": False}
    together = paddle_ext.sinkhorn(costs, rows, columns, **options)
    for task in (0, 21, 39):
        alone = paddle_ext.sinkhorn(costs[task].clone(), rows, columns, **options)
        assert torch.equal(together.plan[task], alone.plan)
    graph, given = torch.cuda.CUDAGraph(), torch.zeros_like(cost)
    with torch.cuda.graph(graph):
        recorded = paddle_ext.sinkhorn(given, rows, columns, **options)
    for task in (5, 30):
        given.copy_(costs[task])
        graph.replay()
        assert torch.equal(recorded.plan, together.plan[task])
