"""Read chunks of rows in a thread while the caller works on the previous one.

Two blocks are in memory: one whose chunks the caller uses, and one that is being read. A block is
one chunk, or several small ones. On CUDA each block has two buffers, one in pinned host memory and
one on the device, and the copy between them runs on its own stream. Events keep the order: a device
buffer is overwritten only after the caller's work on it, a pinned one only after its copy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import TypeVar

import torch
from torch import Tensor

from ..files import Contents, Fill

T = TypeVar("T")
BLOCK = 2**22  # bytes; smaller blocks cost more to hand over than to read


def chunks_of(
    contents: Contents, start: int, stop: int, size: int, device: torch.device
) -> Iterator[Tensor]:
    """Rows [start, stop) in chunks of `size`, each valid until the next one is requested."""
    if start == stop:
        return
    size = min(size, stop - start)
    chunk_bytes = size * contents.shape[1] * contents.dtype.itemsize
    block = min(max(1, BLOCK // chunk_bytes) * size, stop - start)
    abandoned = Event()
    with contents.reading(start, stop, abandoned) as fill:
        buffers = (
            HostBuffers(contents, block)
            if device.type == "cpu"
            else DeviceBuffers(contents, block, device)
        )
        turns = iter(enumerate(range(start, stop, block)))

        def fetch() -> tuple[int, int] | None:
            turn, row = next(turns, (0, stop))
            count = min(block, stop - row)
            if count == 0:
                return None
            buffers.fetch(turn % 2, count, fill)
            return turn % 2, count

        with closing(buffers), closing(ahead(fetch, abandoned, buffers.give_back)) as fetched:
            for place, count in fetched:
                rows = buffers.take(place, count)
                yield from (rows[first : first + size] for first in range(0, count, size))


def ahead(
    fetch: Callable[[], T | None],
    abandoned: Event,
    give_back: Callable[[T], None] = lambda found: None,
) -> Generator[T, None, None]:
    """Yield the results of `fetch` until it returns None; a thread calls it one result ahead.

    Parameters
    ----------
    fetch : callable
        Its calls never overlap.
    abandoned : Event
        Set when no more is needed, to end long calls.
    give_back : callable
        Called with a result that is no longer in use, before its memory is reused.
    """
    with ThreadPoolExecutor(1, "paddle_ext read-ahead") as thread:
        try:
            waiting = thread.submit(fetch)
            while (found := waiting.result()) is not None:
                waiting = thread.submit(fetch)
                yield found
                give_back(found)
        finally:
            abandoned.set()


# --- memory -------------------------------------------------------------------------------------


class HostBuffers:
    """Two blocks in CPU memory, numbered 0 and 1.

    `fetch` runs in the reading thread, all other methods in the thread of the caller.
    """

    def __init__(self, contents: Contents, size: int) -> None:
        self.rows = pair(contents, size)

    def fetch(self, place: int, count: int, fill: Fill) -> None:
        fill(self.rows[place][:count])

    def take(self, place: int, count: int) -> Tensor:
        return self.rows[place][:count]

    def give_back(self, used: tuple[int, int]) -> None:
        pass

    def close(self) -> None:
        pass


class DeviceBuffers:
    """The same on CUDA: two blocks in pinned memory, and two on the device with a copy stream."""

    def __init__(self, contents: Contents, size: int, device: torch.device) -> None:
        self.device = device
        self.pinned = pair(contents, size, pin_memory=True)
        self.rows = pair(contents, size, device=device)
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.copied = [event(blocking=True) for _ in range(2)]
        self.used = [event() for _ in range(2)]
        # The caller's stream may still use the previous contents of this memory.
        for used in self.used:
            used.record(torch.cuda.current_stream(device))

    def fetch(self, place: int, count: int, fill: Fill) -> None:
        self.copied[place].synchronize()
        fill(self.pinned[place][:count])
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used[place])
            self.rows[place][:count].copy_(self.pinned[place][:count], non_blocking=True)
            self.copied[place].record(self.stream)

    def take(self, place: int, count: int) -> Tensor:
        torch.cuda.current_stream(self.device).wait_event(self.copied[place])
        return self.rows[place][:count]

    def give_back(self, used: tuple[int, int]) -> None:
        self.used[used[0]].record(torch.cuda.current_stream(self.device))

    def close(self) -> None:
        # The caller's stream may reuse this memory as soon as it is free.
        self.stream.synchronize()


def event(*, blocking: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(blocking=blocking)  # type: ignore[no-untyped-call]


def pair(
    contents: Contents, size: int, *, device: torch.device | None = None, pin_memory: bool = False
) -> list[Tensor]:
    # The thread must not write to tensors of the caller's inference mode.
    with torch.inference_mode(False):
        shape = (size, contents.shape[1])
        return [
            torch.empty(shape, dtype=contents.dtype, device=device, pin_memory=pin_memory)
            for _ in range(2)
        ]
