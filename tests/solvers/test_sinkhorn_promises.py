"""Guarantees of Sinkhorn's iteration besides the plan: forms of input, errors, operators."""

import doctest
import math
import sys
from typing import Any

import pytest
import torch
from problems import Place, largest, nothing_waits
from transport_tasks import LARGE, Tasks, agrees, assert_same, call, make_tasks

import paddle_ext.solvers  # where the operators are registered
from paddle_ext import Transport, reference

# --- promises -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20, 9), (75, 160), *LARGE])
def test_a_task_does_not_depend_on_its_batch(place: Place, shape: tuple[int, int]) -> None:
    tasks = make_tasks(5, *shape)
    options = {"reg": 0.1, "max_iter": 12, "tol": 1e-2}
    together = call(tasks, place, **options)
    assert_same(call(tasks, place, **options), together)
    for b in range(5):
        alone = call(tasks.task(b), place, **options)
        assert_same(Transport(*(x[b] for x in together)), alone)


def test_threads_change_nothing() -> None:
    tasks = make_tasks(30, 40, 30)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(paddle_ext.sinkhorn(*tasks, reg=0.1))
    finally:
        torch.set_num_threads(before)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_shared_masses(place: Place) -> None:
    tasks = make_tasks(4, 20, 9, masses="shared")
    options = {"reg": 0.1, "max_iter": 9, "tol": 0.0}
    got = agrees(tasks, place, **options)
    rows, columns = tasks.row_mass.repeat(4, 1), tasks.col_mass.repeat(4, 1)
    assert_same(call(Tasks(tasks.cost, rows, columns), place, **options), got)
    assert_same(call(Tasks(tasks.cost, tasks.row_mass, columns), place, **options), got)


def test_no_batch_dimension(place: Place) -> None:
    tasks = make_tasks(2, 20, 9)
    got = call(tasks.task(1), place, reg=0.1)
    assert got.plan.shape == (20, 9)
    assert got.iterations.shape == got.residual.shape == ()


def test_no_tasks(device: str) -> None:
    for masses in ("own", "equal"):
        tasks = make_tasks(1, 20, 9, masses=masses)
        rows, columns = (x[:0] if x.dim() == 2 else x for x in tasks[1:])
        empty = Tasks(tasks.cost[:0], rows, columns).to(device)
        for sinkhorn in (paddle_ext.sinkhorn, paddle_ext.reference.sinkhorn):
            got = sinkhorn(*empty, reg=1.0)
            assert [x.shape for x in got] == [(0, 20, 9), (0,), (0,)]


def test_inputs_are_not_touched(place: Place) -> None:
    tasks = make_tasks(2, 20, 9).at(place)
    before = [x.clone() for x in tasks]
    call(tasks, place, reg=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, tasks, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(device: str, dtype: torch.dtype) -> None:
    tasks = make_tasks(2, 20, 9, masses="equal").to(device)
    half = tasks._replace(cost=tasks.cost.to(dtype))
    got = paddle_ext.sinkhorn(*half, reg=0.1)
    assert got.plan.dtype == torch.float32
    assert_same(got, paddle_ext.sinkhorn(half.cost.float(), *tasks[1:], reg=0.1))


def test_any_layout_of_tensors(place: Place) -> None:
    tasks = make_tasks(2, 20, 9).at(place)
    want = call(tasks, place, reg=0.1)
    turned = Tasks(*(x.mT.contiguous().mT for x in tasks))
    assert not turned.cost.is_contiguous()
    assert_same(call(turned, place, reg=0.1), want)


def test_results_are_detached() -> None:
    tasks = make_tasks(2, 20, 9)
    tasks.cost.requires_grad_()
    for sinkhorn in (paddle_ext.sinkhorn, paddle_ext.reference.sinkhorn):
        assert not sinkhorn(*tasks, reg=0.1).plan.requires_grad


# --- errors ---------------------------------------------------------------------------------------

Q, K = 4, 3
GOOD = {
    "cost": torch.zeros(2, Q, K),
    "row_mass": torch.ones(Q),
    "col_mass": torch.full((K,), 4 / 3),
}
BAD: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"cost": [[0.0]]}, TypeError, ["cost", "torch.Tensor", "list"]),
    ({"cost": torch.zeros(2, Q, K).long()}, TypeError, ["cost", "float32", "int64"]),
    ({"row_mass": 1.0}, TypeError, ["row_mass", "torch.Tensor", "float"]),
    ({"col_mass": torch.ones(K).int()}, TypeError, ["col_mass", "int32"]),
    ({"cost": torch.zeros(Q)}, ValueError, ["cost", "[Q, K] or [B, Q, K]", "got [4]"]),
    ({"cost": torch.zeros(2, 0, K)}, ValueError, ["cost", "at least 1", "got [2, 0, 3]"]),
    ({"row_mass": torch.ones(5)}, ValueError, ["row_mass", "[4] or [2, 4]", "got [5]"]),
    ({"col_mass": torch.ones(3, K)}, ValueError, ["col_mass", "[3] or [2, 3]", "got [3, 3]"]),
    (
        {"cost": torch.zeros(Q, K), "row_mass": torch.ones(1, Q)},
        ValueError,
        ["row_mass must have shape [4], as cost", "got [1, 4]"],
    ),
    ({"col_mass": torch.ones(K, device="meta")}, ValueError, ["one device", "meta"]),
    ({"cost": torch.full((2, Q, K), math.nan)}, ValueError, ["cost must be finite", "nan at [0,"]),
    ({"cost": torch.full((2, Q, K), -math.inf)}, ValueError, ["cost must be finite", "got -inf"]),
    ({"row_mass": torch.tensor([1.0, -1, 2, 2])}, ValueError, ["row_mass", "-1 at [1]"]),
    ({"row_mass": torch.tensor([1.0, math.nan, 2, 1])}, ValueError, ["row_mass", "nan at [1]"]),
    ({"col_mass": torch.tensor([1.0, math.inf, 2])}, ValueError, ["col_mass", "inf at [1]"]),
    ({"col_mass": torch.tensor([1.0, 1e31, 2])}, ValueError, ["col_mass", "at most 1e+30"]),
    (
        {"row_mass": torch.zeros(Q), "col_mass": torch.zeros(K)},
        ValueError,
        ["row_mass must have a total > 0, got 0"],
    ),
    (
        {"row_mass": torch.tensor([[1.0] * Q, [0.0] * Q])},
        ValueError,
        ["row_mass must have a total > 0, got 0 in task 1"],
    ),
    ({"col_mass": torch.ones(K)}, ValueError, ["the total of row_mass, 4, ", "got 3"]),
    (
        {"col_mass": torch.tensor([[4 / 3] * K, [15.0] * K])},
        ValueError,
        ["the total of row_mass, 4, ", "got 45 in task 1"],
    ),
    ({"reg": 0.0}, ValueError, ["reg", "> 0", "got 0.0"]),
    ({"reg": math.inf}, ValueError, ["reg", "finite", "got inf"]),
    ({"reg": "1"}, TypeError, ["reg", "a number", "str"]),
    ({"max_iter": 0}, ValueError, ["max_iter", "got 0"]),
    ({"max_iter": 1.0}, TypeError, ["max_iter", "an integer", "float"]),
    ({"tol": -1.0}, ValueError, ["tol", ">= 0", "got -1.0"]),
    ({"validate": 1}, TypeError, ["validate", "True or False", "int"]),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_errors(case: int) -> None:
    changes, error, parts = BAD[case]
    with pytest.raises(error) as caught:
        paddle_ext.sinkhorn(**GOOD | {"reg": 1.0} | changes)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_bad_values_end_without_validation(place: Place) -> None:
    """Nothing is guaranteed for them, but the call returns."""
    tasks = make_tasks(2, 20, 9)
    for bad in (
        tasks._replace(cost=torch.full_like(tasks.cost, math.nan)),
        tasks._replace(row_mass=torch.zeros(20)),
        tasks._replace(col_mass=-tasks.col_mass),
    ):
        got = call(bad, place, reg=1.0, max_iter=30, validate=False)
        assert got.plan.shape == (2, 20, 9)


def test_examples() -> None:
    for name in ("paddle_ext.solvers.sinkhorn", "paddle_ext.reference.sinkhorn"):
        result = doctest.testmod(sys.modules[name])
        assert result.attempted
        assert not result.failed


# --- only CUDA ------------------------------------------------------------------------------------

CUDA_SHAPES = [(75, 20), (75, 160), (700, 60), (400, 300)]


@pytest.mark.cuda
@pytest.mark.parametrize("shape", CUDA_SHAPES)
def test_graph_and_side_stream(shape: tuple[int, int]) -> None:
    options = {"reg": 0.1, "max_iter": 20, "validate": False}
    first, second = (make_tasks(3, *shape, seed=seed).to("cuda") for seed in (1, 2))
    want = [paddle_ext.sinkhorn(*tasks, **options) for tasks in (first, second)]
    held = Tasks(*(x.clone() for x in first))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert_same(paddle_ext.sinkhorn(*held, **options), want[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = paddle_ext.sinkhorn(*held, **options)
    for tasks, expected in ((second, want[1]), (first, want[0])):
        for x, new in zip(held, tasks, strict=True):
            x.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        assert_same(result, expected)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", CUDA_SHAPES)
def test_does_not_synchronise_without_validation(shape: tuple[int, int]) -> None:
    tasks = make_tasks(2, *shape).to("cuda")
    paddle_ext.sinkhorn(*tasks, reg=0.1)  # memory may be asked of the driver here
    torch.cuda.synchronize()
    with nothing_waits():
        torch.cuda._sleep(200_000_000)
        paddle_ext.sinkhorn(*tasks, reg=0.1, validate=False)
        pending = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert pending, "the call waited for the device"


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


@pytest.mark.cuda
def test_double_precision() -> None:
    tasks = make_tasks(2, 20, 9).to(torch.float64)
    got = paddle_ext.sinkhorn(*tasks.to("cuda"), reg=0.1)
    assert got.plan.is_cuda
    assert largest(got.plan.cpu() - tasks.truth(reg=0.1).plan) < 1e-12
