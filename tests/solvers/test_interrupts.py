"""Signals, such as Ctrl-C, end native work within two seconds, and the process continues.

A CUDA kernel ends on its own.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import TaskSampler

SOON = 2.0  # seconds
FOREVER = 2**31 - 1  # iterations


@contextlib.contextmanager
def alarm(after: float, handler: Any = signal.default_int_handler) -> Iterator[None]:
    """A signal after some seconds, handled as Ctrl-C is."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def task(Q: int, K: int, D: int, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random support, labels and queries: nothing converges soon."""
    generator = torch.Generator().manual_seed(Q)
    support = torch.randn(K, D, generator=generator)
    return support, torch.arange(K), torch.randn(*batch, Q, D, generator=generator)


def solve(device: str, Q: int, K: int, D: int, *batch: int, **options: Any) -> object:
    """Converging tasks would end on their own, so there are many of them, or large ones."""
    support, labels, query = task(Q, K, D)
    bank = torch.cat([support, query]).to(device)
    rows = torch.arange(K, K + Q, device=device).expand(*batch, Q)
    forever = {"num_classes": K, "max_iter": FOREVER, "tol": 0.0, "lam": 0.0, "scaling": "none"}
    labels = labels.to(device)
    options = forever | options
    return paddle_ext.solve_indexed(bank, labels, labels, rows, **options).labels.cpu()


def tim(
    device: str, solver: str, Q: int, K: int, D: int, *batch: int, max_iter: int = FOREVER
) -> Tensor:
    inputs = (x.to(device) for x in task(Q, K, D, *batch))
    return paddle_ext.tim(*inputs, num_classes=K, solver=solver, max_iter=max_iter).labels.cpu()


def sinkhorn(device: str, Q: int, K: int) -> object:
    cost = torch.rand(Q, K, generator=torch.Generator().manual_seed(0)).to(device)
    masses = torch.full((Q,), 1 / Q, device=device), torch.full((K,), 1 / K, device=device)
    return paddle_ext.sinkhorn(cost, *masses, reg=1e-4, max_iter=FOREVER, tol=0.0).plan.cpu()


def adapt(device: str, Q: int, K: int) -> object:
    logits = torch.randn(Q, K, generator=torch.Generator().manual_seed(0)).to(device)
    return paddle_ext.adapt(logits, max_iter=FOREVER, tol=0.0).labels.cpu()


CALLS: dict[str, Callable[[str], object]] = {
    "solve": lambda device: solve(device, 200, 30, 150, 20_000),
    "solve, a large task": lambda device: solve(device, 9000, 900, 400),
    "tim": lambda device: tim(device, "gd", 60, 7, 40),
    "tim, many tasks": lambda device: tim(device, "gd", 60, 7, 40, 50),
    "tim, alternating": lambda device: tim(device, "adm", 60, 7, 40),
    "sinkhorn": lambda device: sinkhorn(device, 60, 7),
    "sinkhorn, a large task": lambda device: sinkhorn(device, 900, 300),
    "adapt": lambda device: adapt(device, 60, 7),
    "adapt, many classes": lambda device: adapt(device, 500, 600),
}


@pytest.mark.parametrize("name", CALLS)
def test_native_work_ends_soon_after_a_signal(name: str, device: str) -> None:
    if device == "cuda" and not name.startswith(("tim", "solve, a large")):
        pytest.skip("one kernel for all iterations")
    before = paddle_ext.solve(*task(9, 3, 4)).probabilities
    solve(device, 3, 3, 4, max_iter=1)  # what happens only once takes its own time
    start = time.perf_counter()
    with alarm(0.3), pytest.raises(KeyboardInterrupt):
        CALLS[name](device)
    assert time.perf_counter() - start < 0.3 + SOON
    assert torch.equal(paddle_ext.solve(*task(9, 3, 4)).probabilities, before)


def test_the_sampler_ends_soon_after_a_signal() -> None:
    labels = torch.arange(20).repeat_interleave(5000)
    sampler = TaskSampler(labels, num_classes=20, shots=20, n_query=4000)

    def handler(number: int, frame: FrameType | None) -> None:
        raise ZeroDivisionError  # any exception of a handler passes through native code

    start = time.perf_counter()
    with alarm(0.3, handler), pytest.raises(ZeroDivisionError):
        sampler.batch(0, 20_000)
    assert time.perf_counter() - start < 0.3 + SOON


def test_a_handler_may_call_the_solver_itself() -> None:
    """The small workspace of a thread belongs to the interrupted call."""
    calls = []

    def handler(number: int, frame: FrameType | None) -> None:
        calls.append(paddle_ext.solve(*task(50, 7, 4)).probabilities)

    alone = tim("cpu", "gd", 20, 3, 5, max_iter=100_000)
    with alarm(0.05, handler):
        disturbed = tim("cpu", "gd", 20, 3, 5, max_iter=100_000)
    assert len(calls) == 1
    assert torch.equal(calls[0], paddle_ext.solve(*task(50, 7, 4)).probabilities)
    assert torch.equal(disturbed, alone)


def test_handlers_run_on_the_main_thread_alone() -> None:
    """Another thread's work continues, whatever signal the main thread gets."""
    found: list[object] = []

    def work() -> None:
        found.append(tim("cpu", "gd", 60, 7, 40, max_iter=20_000))

    thread = threading.Thread(target=work)
    thread.start()
    with alarm(0.1), pytest.raises(KeyboardInterrupt):
        time.sleep(5)
    thread.join()
    assert len(found) == 1
