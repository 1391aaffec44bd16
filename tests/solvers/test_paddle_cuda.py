"""Specific to CUDA: streams, graphs, devices, and tasks too large to test on a CPU.

The comparisons with the reference are in test_paddle.py, for every device.
"""

import pytest
import torch
from problems import TOLERANCE, assert_agrees, assert_same, each_tensor, largest, make_problem

import paddle_ext
from paddle_ext import reference

pytestmark = pytest.mark.cuda

# Large tasks, which wait, are in test_large.py.
SHAPES = [(12, 4, 6), (75, 160, 64), (75, 227, 33), (300, 40, 64)]
LONG = 200_000_000  # clock ticks of a kernel that does nothing: about a tenth of a second


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_behind_the_work_of_a_side_stream(shape: tuple[int, int, int]) -> None:
    Q, K, D = shape
    problem = make_problem(B=2, Q=Q, K=K, D=D, seed=1).to("cuda")
    want = problem.solve()
    late = [torch.zeros_like(x) for x in problem.inputs()]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        problem.solve()  # memory may be asked of the driver here, which may wait
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        for empty, full in zip(late, problem.inputs(), strict=True):
            empty.copy_(full)  # so before this the inputs are wrong
        got = paddle_ext.solve(*late, num_classes=K, validate=False)
        pending = not stream.query()
    stream.synchronize()
    assert pending, "the call waited for the device"
    assert_same(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_very_large_task(dtype: torch.dtype) -> None:
    Q, K, D = 5000, 2000, 768
    problem = make_problem(Q=Q, K=K, D=D, shots=(1, 1), seed=4).to(dtype).to("cuda")
    options = {"tol": 0.0, "max_iter": 4, "return_prototypes": True}
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    got = problem.solve(**options)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    exact = problem.to(torch.float64)
    want = reference.solve(*exact.inputs(), num_classes=K, **options)
    assert_agrees(got, each_tensor(want, lambda x: x.cpu()))
    size = float(problem.query.abs().max())
    assert largest(got.prototypes - want.prototypes) < TOLERANCE[torch.float32] * size
    assert extra < 2**29
    assert_same(problem.solve(**options), got)


def test_rows_of_a_bank_are_not_gathered() -> None:
    B, Q, K, D, shots = 2000, 75, 160, 512, 5
    bank = torch.randn(K * 40, D, device="cuda")
    labels = torch.arange(K * shots, device="cuda").remainder(K).repeat(B, 1)
    support = labels * 40 + torch.randint(40, labels.shape, device="cuda")
    query = torch.randint(K * 40, (B, Q), device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    got = paddle_ext.solve_indexed(bank, support, labels, query, num_classes=K, max_iter=5)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    assert extra < 4 * B * K * shots * D / 2  # the gathered support would be twice this
    few = paddle_ext.solve_indexed(
        bank, support[-3:], labels[-3:], query[-3:], num_classes=K, max_iter=5
    )
    assert_same(each_tensor(got, lambda x: x[-3:]), few)


@pytest.mark.parametrize("K", [8, 9, 32, 33])
@pytest.mark.parametrize("Q", [80, 81, 144, 145])
def test_at_the_bounds_of_the_kernels(Q: int, K: int) -> None:
    """Classes and queries that stay in registers and in shared memory."""
    problem = make_problem(B=3, Q=Q, K=K, D=34, lead=6.0, seed=Q + K)
    options = {"tol": 0.0, "max_iter": 25, "scaling": "minmax"}
    got = problem.to("cuda").solve(**options)
    assert_agrees(got, problem.truth(**options))
    alone = problem.to("cuda").task(1).solve(**options)
    assert_same(each_tensor(got, lambda x: x[1]), alone)


def test_the_reference_runs_on_the_device() -> None:
    problem = make_problem(B=2, Q=10, K=4, D=6).to("cuda")
    got = reference.solve(*problem.inputs(), max_iter=5, return_prototypes=True)
    assert all(x.is_cuda for x in got[:7])


def test_other_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    problem = make_problem(B=2, Q=10, K=4, D=6)
    want = problem.to("cuda:0").solve()
    assert torch.cuda.current_device() == 0
    assert_same(problem.to("cuda:1").solve(), want)
    assert torch.cuda.current_device() == 0


def test_memory_is_given_back() -> None:
    problem = make_problem(B=50, Q=75, K=20, D=64).to("cuda")
    problem.solve()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        problem.solve(return_prototypes=True)
    assert torch.cuda.memory_allocated() == before
