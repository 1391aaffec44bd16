"""Rows are read ahead: one chunk, in bounded memory, by a thread that never outlives its use."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from row_files import FORMATS, N, features, run_bounded, write, write_parquet
from torch import Tensor

from paddle_ext.files import ahead
from paddle_ext.large.sources import FileRows, Fill, StreamedRows, as_rows


class Slow:
    """Rows that contain their own numbers; each read is recorded, and waits for permission."""

    shape, dtype = (10, 1), torch.float32

    def __init__(self) -> None:
        self.began = [Event() for _ in range(5)]
        self.may_end = [Event() for _ in range(5)]
        self.ended = [Event() for _ in range(5)]

    @contextmanager
    def reading(self, start: int, stop: int) -> Iterator[Fill]:
        number = 0

        def fill(rows: Tensor) -> None:
            nonlocal number
            self.began[number].set()
            assert self.may_end[number].wait(10)
            rows.copy_(torch.arange(2 * number, 2 * number + len(rows)).unsqueeze(1))
            self.ended[number].set()
            number += 1

        yield fill


def test_one_chunk_is_read_while_another_is_in_use() -> None:
    source = Slow()
    chunks = StreamedRows(source, torch.device("cpu"), 0, 10).chunks(2)
    source.may_end[0].set()
    for number in range(5):
        chunk = next(chunks)
        assert chunk.flatten().tolist() == [2 * number, 2 * number + 1]
        if number < 4:
            assert source.began[number + 1].wait(10)  # although it was not requested
            source.may_end[number + 1].set()
            assert source.ended[number + 1].wait(10)
        assert chunk.flatten().tolist() == [2 * number, 2 * number + 1]  # still valid
        if number < 3:
            assert not source.began[number + 2].wait(0.02)  # one ahead, not two
    assert next(chunks, None) is None


def readers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "read-ahead" in one.name]


def test_no_thread_is_left(tmp_path: Path) -> None:
    rows = FileRows(write(tmp_path, "npy", features()))
    for _ in rows.chunks(100):
        break
    assert readers() == []
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
import sys, threading, time
from paddle_ext.large.sources import FileRows

print("reading", flush=True)
try:
    while True:
        for chunk in FileRows(sys.argv[1]).chunks(10):
            pass
except KeyboardInterrupt:
    pass
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
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
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


def test_a_file_larger_than_the_memory_allowed(tmp_path: Path) -> None:
    """The file does not fit in the memory of the process, but two chunks of it do."""
    rows, width, chunk = 32 * 1024, 1024, 2048
    # Whole numbers, whose sums are exact.
    block = np.random.default_rng(0).integers(-3, 4, (chunk, width)).astype(np.float32)
    path, small = tmp_path / "large.npy", tmp_path / "small.npy"
    np.save(small, block[:100])
    mapped = np.lib.format.open_memmap(path, "w+", np.float32, (rows, width))
    expected = np.zeros(width)
    for number, start in enumerate(range(0, rows, chunk)):
        mapped[start : start + chunk] = block * (1 + number)
        expected += mapped[start : start + chunk].sum(0, dtype=np.float64)
    del mapped
    two_chunks = 2 * block.nbytes
    try:
        refused, used, found = run_bounded(SUMS, path, small, 4 * two_chunks, chunk)
    finally:
        path.unlink()  # pytest keeps the folders of some runs
    assert refused == "refused"
    assert 0.9 * two_chunks < int(used.split()[1]) < 1.5 * two_chunks
    assert [float(x) for x in found.split()] == expected.tolist()


def test_parquet_in_bounded_memory(tmp_path: Path) -> None:
    """One row group, of which only a few pages are in memory."""
    x = np.random.default_rng(0).integers(-999, 999, (60_000, 512)).astype(np.float32)
    path, small = tmp_path / "large.parquet", tmp_path / "small.parquet"
    write_parquet(path, "fixed", x, group=len(x))
    write_parquet(small, "fixed", x[:100])
    used, found = run_bounded(SUMS, path, small, x.nbytes, 1024)
    assert int(used.split()[1]) < x.nbytes // 2
    assert [float(number) for number in found.split()] == x.sum(0, dtype=np.float64).tolist()


# --- CUDA ---------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize(("kind", "dtype"), FORMATS)
def test_files_on_cuda(tmp_path: Path, kind: str, dtype: str) -> None:
    x = features(dtype)
    rows = as_rows(write(tmp_path, kind, x), "cuda")
    assert rows.device == torch.device("cuda", torch.cuda.current_device())
    for size in (1, 64, 10 * N):
        chunks = [chunk.clone() for chunk in rows.chunks(size)]
        assert all(chunk.device == rows.device for chunk in chunks)
        assert torch.equal(torch.cat(chunks).cpu(), x)
    assert readers() == []


@pytest.mark.cuda
@pytest.mark.parametrize("source", ["file", "tensor"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_a_slow_device_keeps_its_chunks(tmp_path: Path, source: str, own_stream: bool) -> None:
    """The work on a chunk is queued behind much else, and reading ahead must not overwrite it."""
    x = torch.randn(64_000, 64, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "rows.npy", x.numpy())
    rows = as_rows(x if source == "tensor" else tmp_path / "rows.npy", "cuda")
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
    """Two chunks, whatever the size of the file; and all of it is released."""
    np.save(tmp_path / "rows.npy", np.zeros((200_000, 64), np.float32))
    rows = as_rows(tmp_path / "rows.npy", "cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for chunk in rows.chunks(16_384):
        del chunk  # or the last one would stay
    two_chunks = 2 * 16_384 * 64 * 4
    assert torch.cuda.max_memory_allocated() - before == two_chunks
    assert torch.cuda.memory_allocated() == before


@pytest.mark.cuda
def test_abandoned_chunks_on_cuda(tmp_path: Path) -> None:
    rows = as_rows(write(tmp_path, "npy", features()), "cuda")
    for _ in rows.chunks(10):
        break
    assert readers() == []
    assert torch.equal(torch.cat([chunk.clone() for chunk in rows.chunks(10)]).cpu(), features())
