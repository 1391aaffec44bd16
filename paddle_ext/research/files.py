"""Files: replaced atomically, one-sentence errors for damaged ones, and cache folders."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file that replaces the old one once it is complete.

    It is written in a separate folder next to the old one, so no other thread, process or machine
    can write to it, and it gets the permissions of any new file.
    """
    with tempfile.TemporaryDirectory(
        prefix=".partial-", dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        new = Path(folder) / path.name
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())  # a power failure could leave an empty file
        new.replace(path)


class RefusedError(ValueError):
    """A rejected file; the message names it."""


class UnmappableError(RefusedError):
    """An intact file that cannot be mapped."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file: a pipe or a device could block or be endless."""
    return open(path, "rb", opener=regular_descriptor)


def regular_descriptor(path: str, flags: int) -> int:
    """Like `os.open`, for regular files; closed here or by the caller, never by both."""
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


@contextmanager
def readable(path: Path, expected: str) -> Iterator[None]:
    """One-sentence error for whatever a library raises on a damaged file."""
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


def user_cache(part: str) -> Path | None:
    """A cache folder of the user for one part of the package; None for a user without a home.

    In a container the user may be a number unknown to the system.
    """
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "paddle_ext" / part


def cache_or_temporary(part: str) -> Path:
    """The same, or a temporary folder if it is not writable."""
    folder = user_cache(part)
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return Path(tempfile.mkdtemp(prefix="paddle_ext-"))
