"""CPU threads: created once and kept, as many as torch allows, without effect on results."""

import os
import threading
from pathlib import Path

import pytest
import torch
from problems import assert_same, make_problem
from scripts import run_code

import paddle_ext
from paddle_ext import _native

PRELUDE = """
import os, threading
import torch, paddle_ext
from paddle_ext import _native

torch.manual_seed(0)
torch.set_num_threads(1)

def tasks(count=32):
    return torch.randn(20, 64), torch.arange(20), torch.randn(count, 200, 64)

def solve(inputs):
    return paddle_ext.solve(*inputs, num_classes=20, tol=0.0, max_iter=30, validate=False)

def count():
    return len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else None

"""


def run(tmp_path: Path, code: str) -> None:
    """Run Python code in its own process, with no threads of other tests."""
    run_code(PRELUDE + code, cwd=tmp_path, timeout=300)


def test_a_call_makes_its_threads_once(tmp_path: Path) -> None:
    """And the process ends while they sleep."""
    run(
        tmp_path,
        """
some, many = tasks(), tasks(100)
solve(some)
assert _native.threads_made() == 0, "one thread needs no other"
torch.set_num_threads(16)
before = count()  # torch 2.4 has made threads of its own
for _ in range(3):
    solve(some)
    assert _native.threads_made() == 15
solve(many)
assert _native.threads_made() == 15
if before is not None:
    assert count() - before == 15, (before, count())
for threads in (1, 5, 20):
    torch.set_num_threads(threads)
    solve(some)
    assert _native.threads_made() == max(15, threads - 1)
""",
    )


def test_a_child_makes_its_own(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
inputs = tasks()
torch.set_num_threads(4)
want = solve(inputs)

def child():
    assert _native.threads_made() == 0
    got = solve(inputs)
    assert _native.threads_made() == 3
    assert torch.equal(got.probabilities, want.probabilities)

stop = threading.Event()
def busy():
    while not stop.is_set():
        solve(inputs)
worker = threading.Thread(target=busy)
worker.start()
for _ in range(5):
    pid = os.fork()
    if not pid:
        try:
            child()
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
stop.set()
worker.join()
assert _native.threads_made() == 3
""",
    )


def test_several_callers_at_once() -> None:
    problems = [make_problem(B=4, Q=300, K=70, D=40, seed=seed) for seed in range(6)]
    options = {"num_classes": 70, "tol": 0.0, "max_iter": 20, "validate": False}
    want = [paddle_ext.solve(*p.inputs(), **options) for p in problems]
    got: dict[int, paddle_ext.Solution] = {}

    def call(number: int) -> None:
        for _ in range(5):
            got[number] = paddle_ext.solve(*problems[number].inputs(), **options)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(len(problems))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for number, solution in enumerate(want):
        assert_same(got[number], solution)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this platform")
def test_more_threads_than_cores_do_not_hang() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4 * len(os.sched_getaffinity(0)) + 3)
        problem = make_problem(B=40, Q=300, K=70, D=40, seed=5)
        for _ in range(20):
            problem.solve(tol=0.0, max_iter=20, validate=False)
    finally:
        torch.set_num_threads(before)
    assert _native.threads_made() >= 1
