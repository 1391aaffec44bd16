"""Tasks for the tests of Sinkhorn's iteration: random and difficult ones; and comparisons."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from problems import Place, largest, remembered
from torch import Tensor

import paddle_ext
from paddle_ext import Transport, reference

# How far plans may be from the float64 reference, relative to the mean mass of a row.
TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-12}
# M in shared memory, or in global memory, with few columns and with many, on CUDA.
LARGE = [(300, 60), (150, 300), (70, 600), (700, 90), (30, 2500)]
# Every kernel on CUDA: each size of a tile, with rows and with columns across the lanes, of one
# warp and of several, filled and not; and the large ones.
SHAPES = [
    *[(1, 1), (5, 3), (20, 40), (60, 30), (75, 20), (75, 64), (90, 70), (120, 24), (150, 20)],
    *[(227, 33), (256, 9), (120, 30), (128, 64), (20, 90), (190, 96), (24, 120), (75, 160)],
    *[(33, 227), *LARGE],
]


class Tasks(NamedTuple):
    cost: Tensor  # [B, Q, K] or [Q, K]
    row_mass: Tensor  # [B, Q] or [Q]
    col_mass: Tensor  # [B, K] or [K]

    def to(self, where: Any) -> "Tasks":
        return Tasks(*(x.to(where) for x in self))

    def at(self, place: Place) -> "Tasks":
        return self.to(place.dtype).to(place.device)

    def task(self, b: int) -> "Tasks":
        return Tasks(*(x[b] if x.dim() == n else x for x, n in zip(self, (3, 2, 2), strict=True)))

    def truth(self, **options: Any) -> Transport:
        return remembered(reference.sinkhorn, *self.to("cpu").to(torch.float64), **options)


def make_tasks(B: int, Q: int, K: int, *, masses: str = "own", seed: int = 0) -> "Tasks":
    """Squared distances of unit vectors; random masses, "own" or "shared", or "equal" ones."""
    random = torch.Generator().manual_seed(seed)
    x, w = torch.randn(B, Q, 8, generator=random), torch.randn(B, K, 8, generator=random)
    x, w = x / x.norm(dim=-1, keepdim=True), w / w.norm(dim=-1, keepdim=True)
    rows = 0.1 + torch.rand(B, Q, generator=random)
    columns = 0.1 + torch.rand(B, K, generator=random)
    columns *= rows.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True)
    if masses == "shared":
        rows, columns = rows[0], columns[0]
    if masses == "equal":
        rows, columns = torch.ones(Q), torch.full((K,), Q / K)
    return Tasks((x.unsqueeze(-2) - w.unsqueeze(-3)).square().sum(-1), rows, columns)


def call(tasks: Tasks, place: Place, **options: Any) -> Transport:
    return paddle_ext.sinkhorn(*tasks.at(place), **options)


def agrees(tasks: Tasks, place: Place, iterations: int = 0, **options: Any) -> Transport:
    """Solve, and compare with the reference on the same numbers."""
    got = call(tasks, place, **options)
    truth = tasks.to(place.dtype).truth(**options)
    unit = float(tasks.row_mass.mean())
    tolerance = TOLERANCE[place.dtype] * unit
    assert got.plan.dtype == got.residual.dtype == place.dtype
    assert got.iterations.dtype == torch.int32
    assert {x.device.type for x in got} == {place.device}
    assert [x.shape for x in got] == [x.shape for x in truth]
    assert torch.isfinite(got.plan).all()
    assert (got.plan >= 0).all()
    assert largest(got.plan.cpu().double() - truth.plan) < tolerance
    assert largest(got.iterations.cpu() - truth.iterations) <= iterations
    # The residual is that of the plan.
    off = got.plan.cpu().double().sum(-1) - tasks.row_mass.to(place.dtype).double()
    assert largest(off.abs().amax(-1) - got.residual.cpu().double()) < 3 * tolerance
    return got


# --- nasty costs and masses -----------------------------------------------------------------------


def offsets() -> "Tasks":
    """Costs that differ by little, under offsets that dwarf them."""
    tasks = make_tasks(2, 20, 9)
    cost = tasks.cost.mul(64).round().div(64)  # so that the offsets round nothing
    rows, columns = 4096.0 * torch.arange(20).view(-1, 1), 8192.0 * torch.arange(9)
    return tasks._replace(cost=cost + rows - columns)


def far_column() -> "Tasks":
    """A column far from every row; its mass must go there anyway."""
    tasks = make_tasks(2, 20, 9)
    tasks.cost[0, :, 3] += 1e4
    tasks.cost[1, :, 5] += 100.0
    return tasks


def far_row() -> "Tasks":
    tasks = make_tasks(2, 20, 9)
    tasks.cost[:, 4] -= 1e5
    tasks.cost[:, 6] += 1e5
    return tasks


def forbidden() -> "Tasks":
    """Some pairs have a prohibitive cost."""
    tasks = make_tasks(2, 20, 9)
    random = torch.Generator().manual_seed(1)
    cost = torch.where(torch.rand(2, 20, 9, generator=random) < 0.3, 1e30, tasks.cost)
    cost[:, :, 0] = tasks.cost[:, :, 0]
    cost[:, 0] = tasks.cost[:, 0]
    return tasks._replace(cost=cost)


def scaled_cost(factor: float) -> Callable[[], Tasks]:
    def make() -> "Tasks":
        random = torch.Generator().manual_seed(2)
        tasks = make_tasks(2, 20, 9)
        return tasks._replace(cost=factor * torch.randn(2, 20, 9, generator=random))

    return make


def no_mass() -> "Tasks":
    cost, rows, columns = make_tasks(3, 20, 9)
    rows[0, 3:7] = 0.0
    columns[0, 2] = 0.0
    columns[1, 1:] = 0.0
    rows[2, 1:] = 0.0
    columns *= rows.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True)
    return Tasks(cost, rows, columns)


def uneven_mass() -> "Tasks":
    cost, rows, columns = make_tasks(2, 20, 9)
    rows[:, 1], rows[:, 2], rows[:, 3] = 1e-20, 1e-9, 1e6
    columns[:, 1] = 1e-12
    columns *= rows.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True)
    return Tasks(cost, rows, columns)


def scaled_mass(factor: float) -> Callable[[], Tasks]:
    def make() -> "Tasks":
        cost, rows, columns = make_tasks(2, 20, 9)
        return Tasks(cost, factor * rows, factor * columns)

    return make


NASTY: dict[str, Callable[[], Tasks]] = {
    "offsets": offsets,
    "far column": far_column,
    "far row": far_row,
    "forbidden": forbidden,
    "steep": scaled_cost(100.0),
    "1e4": scaled_cost(1e4),
    "1e30": scaled_cost(1e30),
    "largest": scaled_cost(8e37),
    "smallest": scaled_cost(1e-38),
    "no mass": no_mass,
    "uneven mass": uneven_mass,
    "small mass": scaled_mass(1e-30),
    "large mass": scaled_mass(1e28),
}
