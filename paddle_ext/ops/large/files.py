"""Open files of rows; one that is endless or damaged raises a one-sentence error.

Rows are read by plain reads into reused memory. A memory-mapped file would count as memory of the
process, and truncating the file during a read would kill the process.
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

Fill = Callable[[Tensor], None]  # reads the next rows into a contiguous CPU tensor [n, D]


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
    """Ends a read whose rows are no longer needed."""


class Version(NamedTuple):
    """What changes if a file is modified or replaced."""

    inode: int
    size: int
    changed: int  # in nanoseconds


class RefusedError(ValueError):
    """A rejected file; the message names it."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading unless it is a pipe or device, which could block or never end."""
    return open(path, "rb", opener=regular_descriptor)


def regular_descriptor(path: str, flags: int) -> int:
    """Like `os.open`, for regular files only; on an error the descriptor is closed here."""
    # Without O_NONBLOCK opening a pipe waits for a writer.
    file = os.open(path, flags | os.O_NONBLOCK)
    try:
        kind = os.fstat(file).st_mode
        if stat.S_ISDIR(kind):
            raise RefusedError(f"{path} must be a file, got a folder")
        if not stat.S_ISREG(kind):
            raise RefusedError(f"{path} must be a regular file, got a pipe, a socket or a device")
    except BaseException:
        os.close(file)
        raise
    return file


def check_regular(path: Path) -> None:
    """Reject anything but a regular file before a library opens it by name."""
    open_regular(path).close()


def version_of(file: BinaryIO) -> Version:
    found = os.fstat(file.fileno())
    return Version(found.st_ino, found.st_size, found.st_mtime_ns)


def current_version(path: Path) -> Version:
    with open_regular(path) as file:
        return version_of(file)


def unchanged(path: Path, found: Version, version: Version) -> None:
    if found != version:
        raise ValueError(f"{path} must not change while it is in use, got another version")


@contextmanager
def readable(path: Path, expected: str) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into a one-sentence error."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, MemoryError, RefusedError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be {expected}, got one that cannot be read: {first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """The message of another library's error, cut to one line."""
    return str(error).strip().split("\n")[0] or type(error).__name__
