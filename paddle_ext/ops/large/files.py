"""Open files of rows; endless and damaged files raise a one-sentence error.

Rows are read by plain reads into reused memory. A memory-mapped file would count as memory of the
process, and truncating it while it is read would kill the process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event
from typing import BinaryIO, NamedTuple, Protocol

import torch
from torch import Tensor

Fill = Callable[[Tensor], None]  # reads the next rows into a contiguous tensor [n, D] of the CPU


class Contents(Protocol):
    """A matrix that is read sequentially."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def reading(
        self, start: int, stop: int, abandoned: Event
    ) -> AbstractContextManager[Fill]: ...  # rows [start, stop); `abandoned` ends a long read


class AbandonedError(Exception):
    """The rows are no longer needed."""


class Version(NamedTuple):
    """Identifies the version of a file."""

    inode: int
    size: int
    changed: int  # in nanoseconds


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file: a pipe could block, and a device could be endless."""
    try:
        file = open(path, "rb", opener=without_waiting)  # noqa: SIM115
    except IsADirectoryError:
        raise ValueError(f"{path} must be a file, got a folder") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} must be a file, got a pipe, a socket or a device")
    return file


def without_waiting(path: str, flags: int) -> int:
    """Like `os.open`; a pipe would otherwise wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def version_of(file: BinaryIO) -> Version:
    found = os.fstat(file.fileno())
    return Version(found.st_ino, found.st_size, found.st_mtime_ns)


def unchanged(path: Path, file: BinaryIO, version: Version) -> None:
    if version_of(file) != version:
        raise ValueError(f"{path} must not change while it is in use, got another version")


@contextmanager
def whole(path: Path, expected: str) -> Iterator[None]:
    """One-sentence error for whatever a library raises on a damaged file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:
        what = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path} must be {expected}, got one that cannot be read: {what}"
        ) from error
