"""Rows are read ahead: one chunk, in bounded memory, by a thread that never outlives its use."""

import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from row_files import FORMATS, N, features, run_bounded, write, write_parquet
from torch import Tensor

import paddle_ext
from paddle_ext.files import ahead
from paddle_ext.large.sources import FileRows, Fill


class Counted:
    """Rows that contain their own numbers; reads are counted."""

    shape, dtype, reads = (10, 1), torch.float32, 0

    @contextmanager
    def reading(self, start: int, stop: int) -> Iterator[Fill]:
        def fill(rows: Tensor) -> None:
            first = self.reads * len(rows)
            rows.copy_(torch.arange(first, first + len(rows)).unsqueeze(1))
            self.reads += 1

        yield fill


def test_one_chunk_is_read_while_another_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counted()
    monkeypatch.setattr("paddle_ext.large.sources.open_contents", lambda *_: source)
    for number, chunk in enumerate(FileRows("rows.npy").chunks(2)):
        ahead_too, deadline = min(number + 2, 5), time.monotonic() + 10
        while source.reads < ahead_too and time.monotonic() < deadline:
            time.sleep(0.001)  # the next is read although it was not requested
        time.sleep(0.02)
        assert source.reads == ahead_too  # one ahead, not two
        assert chunk.flatten().tolist() == [2 * number, 2 * number + 1]  # still valid


def readers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "read-ahead" in one.name]


def test_no_thread_is_left(tmp_path: Path) -> None:
    rows = FileRows(write(tmp_path, "npy", features()))
    chunks = rows.chunks(100)
    next(chunks)
    del chunks
    assert readers() == []

    def failing() -> None:
        for _ in rows.chunks(100):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert readers() == []


def test_errors_come_to_the_caller() -> None:
    """Even StopIteration, which would otherwise end the loop silently."""
    given = iter([1, 2])
    numbers = ahead(lambda: next(given))
    assert [next(numbers), next(numbers)] == [1, 2]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(numbers)


# --- processes of their own ---------------------------------------------------------------------

INTERRUPTED = """
import signal, sys, threading, time
from paddle_ext.large.sources import FileRows

print("reading", flush=True)
try:
    while True:
        for chunk in FileRows(sys.argv[1]).chunks(10):
            pass
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
deadline = time.monotonic() + 2  # a thread may just be ending
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print([thread.name for thread in threading.enumerate()], flush=True)
held = FileRows(sys.argv[1]).chunks(10)  # as by a traceback: nothing ends its thread, but the exit
next(held)
"""


@pytest.mark.usefixtures("ctrl_c")
def test_interruption(tmp_path: Path) -> None:
    path = write(tmp_path, "npy", features())
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.2)
        began = time.monotonic()
        while not select.select([process.stdout], [], [], 0.0)[0]:
            # Again: Python drops an interrupt that arrives in the callback of a weak reference.
            process.send_signal(signal.SIGINT)
            select.select([process.stdout], [], [], 1.0)
        assert process.stdout.readline() == "['MainThread']\n"
        assert time.monotonic() - began < 5
        assert process.wait(20) == 0


SUMS = """
from paddle_ext.large.sources import FileRows

def work(path):
    rows = FileRows(path)
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for chunk in rows.chunks(int(sys.argv[4])):
        total += chunk.sum(0)
    return total

print(*bounded(work).tolist())
"""


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_files_larger_than_the_memory_allowed(tmp_path: Path, kind: str) -> None:
    """Two chunks are in memory; of Parquet, although it is one row group, also a few pages."""
    # Whole numbers, whose sums are exact.
    count = 30_000 if kind == "npy" else 60_000
    x = np.random.default_rng(0).integers(-999, 999, (count, 512)).astype(np.float32)
    path, small = tmp_path / f"large.{kind}", tmp_path / f"small.{kind}"
    for where, rows in ((path, x), (small, x[:100])):
        if kind == "npy":
            np.save(where, rows)
        else:
            write_parquet(where, "fixed", rows, group=len(rows))
    two_chunks = 2 * 2048 * 512 * 4
    allowed = 4 * two_chunks if kind == "npy" else x.nbytes
    try:
        *refused, used, sums = run_bounded(SUMS, path, small, allowed, 2048)
    finally:
        path.unlink()  # pytest keeps the folders of some runs
    taken = int(used.split()[1])
    if kind == "npy":
        assert refused == ["refused"]
        assert 0.9 * two_chunks < taken < 1.5 * two_chunks
    assert taken < x.nbytes // 2
    assert [float(number) for number in sums.split()] == x.sum(0, dtype=np.float64).tolist()


# --- solving ------------------------------------------------------------------------------------


SOME_FORMATS = [("npy", "float32"), ("safetensors", "bfloat16"), ("fixed.parquet", "float16")]


def task(queries: int, classes: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Support, labels, and queries of a few classes."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=random)
    labels = torch.arange(classes).repeat(3)
    present = torch.randint(0, 4, (queries,), generator=random)
    noise = torch.randn(len(labels) + queries, width, generator=random)
    rows = centres[torch.cat([labels, present])] + 0.5 * noise
    return rows[: len(labels)], labels, rows[len(labels) :]


@pytest.mark.parametrize(("kind", "dtype"), SOME_FORMATS)
@pytest.mark.parametrize("scaling", ["none", "auto"])
def test_the_same_from_a_file_as_from_a_tensor(
    tmp_path: Path, device: str, kind: str, dtype: str, scaling: str
) -> None:
    support, labels, query = task(3000, 12, 7)
    query = query.to(getattr(torch, dtype))
    path = write(tmp_path, kind, query)
    known = support.to(device, query.dtype), labels.to(device)
    options = {"scaling": scaling, "temperature": 30.0, "max_iter": 20, "tol": 0.0, "lam": 1.0}
    usual = paddle_ext.solve(*known, query.to(device), **options)
    for source in (path, FileRows(path, device=device)):
        got = paddle_ext.solve(*known, source, **options)
        torch.testing.assert_close(got.probabilities, usual.probabilities, atol=1e-4, rtol=0)
        clear = usual.probabilities.topk(2).values.diff().abs().squeeze(-1) > 1e-3
        assert torch.equal(got.labels[clear], usual.labels[clear])
        assert clear.float().mean() > 0.5


SOLVE = """
import paddle_ext

def work(path):
    with np.load(sys.argv[4]) as known:
        given = [torch.from_numpy(known[name]) for name in ("support", "labels")]
    return paddle_ext.solve(*given, path, max_iter=2, tol=0.0, return_assignments=False)

print(*bounded(work).proportions.tolist())
"""


@pytest.mark.slow
def test_solving_in_less_memory_than_the_file_has(tmp_path: Path) -> None:
    """Two iterations, each of which reads the file again."""
    support, labels, query = task(80_000, 16, 128)
    query = (query * torch.linspace(0.7, 1.3, 8).view(-1, 1, 1)).flatten(0, 1)
    large, small, known = (tmp_path / name for name in ("large.npy", "small.npy", "known.npz"))
    np.save(large, query.numpy())
    np.save(small, query[:3000].numpy())
    np.savez(known, support=support.numpy(), labels=labels.numpy())
    allowed = 208 * 2**20
    assert query.nbytes > 1.5 * allowed
    try:
        refused, used, proportions = run_bounded(SOLVE, large, small, allowed, known)
    finally:
        large.unlink()  # pytest keeps the folders of some runs
    assert refused == "refused"
    assert int(used.split()[1]) < 160 * 2**20
    usual = paddle_ext.solve(support, labels, query, max_iter=2, tol=0.0).proportions
    np.testing.assert_allclose([float(x) for x in proportions.split()], usual, atol=1e-5)


# --- CUDA ---------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize(("kind", "dtype"), FORMATS)
def test_files_on_cuda(tmp_path: Path, kind: str, dtype: str) -> None:
    x = features(dtype)
    rows = FileRows(write(tmp_path, kind, x), device="cuda")
    assert rows.device == torch.device("cuda", torch.cuda.current_device())
    for size in (1, 64, 10 * N):
        chunks = [chunk.clone() for chunk in rows.chunks(size)]
        assert all(chunk.device == rows.device for chunk in chunks)
        assert torch.equal(torch.cat(chunks).cpu(), x)
    for _ in rows.chunks(10):
        break
    assert readers() == []


@pytest.mark.cuda
@pytest.mark.parametrize("own_stream", [False, True])
def test_a_slow_device_keeps_its_chunks(tmp_path: Path, own_stream: bool) -> None:
    """The work on a chunk is queued behind much else, and reading ahead must not overwrite it."""
    x = torch.randn(64_000, 64, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "rows.npy", x.numpy())
    rows = FileRows(tmp_path / "rows.npy", device="cuda")
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        expected = torch.stack([part.cuda().sum(0) for part in x.split(4000)])
        for _ in range(3):
            sums = []
            for chunk in rows.chunks(4000):
                torch.cuda._sleep(2_000_000)  # cycles: the host is far ahead
                sums.append(chunk.sum(0))
            assert torch.equal(torch.stack(sums), expected)


@pytest.mark.cuda
def test_memory_on_cuda(tmp_path: Path) -> None:
    """Two chunks at most, whatever the size of the file; and all of it is released."""
    np.save(tmp_path / "rows.npy", np.zeros((200_000, 64), np.float32))
    rows = FileRows(tmp_path / "rows.npy", device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for chunk in rows.chunks(16_384):
        del chunk  # or the last one would stay
    two_chunks = 2 * 16_384 * 64 * 4
    assert 0 < torch.cuda.max_memory_allocated() - before <= two_chunks
    assert torch.cuda.memory_allocated() == before
