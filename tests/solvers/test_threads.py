"""CPU threads: created once and kept, as many as torch allows, without effect on results."""

from pathlib import Path

from scripts import run_code

# In a process of its own, with no threads of other tests; it ends while its threads sleep.
CODE = """
import os, threading, traceback
import torch, paddle_ext
from paddle_ext import _native

torch.manual_seed(0)
torch.set_num_threads(1)

def tasks(count=32):
    return torch.randn(10, 32), torch.arange(10), torch.randn(count, 100, 32)

def solve(inputs):
    return paddle_ext.solve(*inputs, num_classes=10, tol=0.0, max_iter=30, validate=False)

def count():
    return len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else None

some, many = tasks(), tasks(100)
want = solve(some)
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
for threads, made in ((1, 15), (5, 15), (20, 19), (4, 19)):
    torch.set_num_threads(threads)
    solve(some)
    assert _native.threads_made() == made

def child():
    assert _native.threads_made() == 0
    got = solve(some)
    assert _native.threads_made() == 3
    assert torch.equal(got.probabilities, want.probabilities)

stop = threading.Event()
def busy():
    while not stop.is_set():
        solve(some)
worker = threading.Thread(target=busy)
worker.start()
for _ in range(5):
    pid = os.fork()
    if not pid:
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
stop.set()
worker.join()
assert _native.threads_made() == 19
"""


def test_threads_are_made_once_and_a_child_makes_its_own(tmp_path: Path) -> None:
    run_code(CODE, cwd=tmp_path, timeout=300)
