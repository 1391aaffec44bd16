"""Files of users: opened if they are regular, read ahead, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")

PARTIAL = ".partial-"
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # errors of writing alone
MOST_EXPANSION = 50  # ReLU features of a large network, mostly zeros, compress to a tenth
ALWAYS_ALLOWED = 2**26  # bytes that the contents of any file may take


class RefusedError(ValueError):
    """A rejected file; the message names it."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading unless it is a pipe or device, which could block or never end."""
    return open(path, "rb", opener=regular_descriptor)


def regular_descriptor(path: str, flags: int) -> int:
    """Like `os.open`, for regular files only; on an error the descriptor is closed here."""
    # Without O_NONBLOCK, which Windows has not, opening a pipe waits for a writer.
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
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


@contextmanager
def readable(path: Path, expected: str) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into a one-sentence error."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, RefusedError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be {expected}, got one that cannot be read: {first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """The message of another library's error, cut to one line."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def check_room(path: Path, wanted: int, stored: int, what: str) -> None:
    """Reject contents that would take much more memory than the bytes they come from."""
    if wanted > ALWAYS_ALLOWED + MOST_EXPANSION * stored:
        raise RefusedError(
            f"{path} must not expand to more than it holds, got {what} of {wanted} bytes in "
            f"{stored}"
        )


def current_version(path: Path) -> tuple[int, int, int]:
    """What changes if a file is modified or replaced."""
    with open_regular(path) as file:
        now = os.fstat(file.fileno())
    return now.st_ino, now.st_size, now.st_mtime_ns


def require_unchanged(path: Path, version: tuple[int, int, int]) -> None:
    if current_version(path) != version:
        raise ValueError(f"{path} must not change while it is in use, got another version")


def ahead(fetch: Callable[[], Item | None]) -> Generator[Item, None, None]:
    """Yield the results of `fetch` until it returns None; a thread calls it one result ahead."""
    with ThreadPoolExecutor(1, "paddle_ext read-ahead") as thread:
        waiting = thread.submit(fetch)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(fetch)
            yield item


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Results of `work` in order; file reads and Pillow's decoders release the GIL."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        yield from pool.map(work, items)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file that replaces the old one once it is complete.

    It is written in a separate folder next to the old one, so no other thread, process or machine
    can write to it, and it gets the permissions of any new file. An error names the file.
    """
    with naming(path), tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
        new = Path(folder) / path.name
        yield new
        with new.open("r+b") as file:
            os.fsync(file.fileno())  # a power failure could leave an empty file
        new.replace(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of `replacing` name the file or folder that they are about."""
    try:
        yield
    except OSError as error:
        unnamed = error.filename is None and error.errno in NOT_WRITTEN
        if unnamed or PARTIAL in f"{error.filename} {error.filename2}":
            error.filename = str(path)
            del error.filename2
        raise


def check_writable(folder: Path) -> None:
    """Raise the error of a folder that cannot be made or written to; nothing is left in it."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with naming(folder), tempfile.TemporaryDirectory(prefix=PARTIAL, dir=there):
        pass


def write_tensors(
    path: Path, module: Any, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a file with `module`, which is safetensors.torch; it has errors of its own."""
    with replacing(path) as new:
        try:
            module.save_file(tensors, new, metadata)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{path} cannot be written: {first_line(error)}") from error


def user_cache(part: str) -> Path | None:
    """A cache folder of the user; None for one without a home, as in some containers."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "paddle_ext" / part


def cache_or_temporary(part: str) -> Path:
    """The cache folder of `user_cache`, or a temporary folder if it is not writable."""
    folder = user_cache(part)
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return Path(tempfile.mkdtemp(prefix="paddle_ext-"))
