"""Files: replaced only as a whole, read with one sentence if they are damaged, kept in a cache."""

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
    """A new file that takes the place of the old one when it is whole.

    It lies in a folder of its own beside the old one, so no other thread, process or machine can
    write into it, and it gets the permissions of any new file.
    """
    with tempfile.TemporaryDirectory(
        prefix=".partial-", dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        new = Path(folder) / path.name
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave the name without the bytes
        new.replace(path)


class RefusedError(ValueError):
    """A file that is refused, in a sentence that names it."""


class UnmappableError(RefusedError):
    """A whole file, but not one to be mapped."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file that has an end: a pipe or a device could block, or give bytes for ever."""
    return open(path, "rb", opener=regular_descriptor)


def regular_descriptor(path: str, flags: int) -> int:
    """As `os.open`, of regular files; closed here or by who gets it, never by both."""
    # Without O_NONBLOCK the mere opening of a pipe waits for somebody to write.
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
    """Refuse what is no regular file, before a library opens it by its name."""
    open_regular(path).close()


@contextmanager
def readable(path: Path, expected: str) -> Iterator[None]:
    """One sentence for whatever a damaged file makes a library raise."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, RefusedError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be {expected}, got one that cannot be read: {first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """What an error of another library says, cut to one line."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def user_cache(part: str) -> Path | None:
    """A folder for one part of the package among the user's caches; None for a user without home.

    In a container the user may be a number that the system does not know.
    """
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "paddle_ext" / part


def cache_or_temporary(part: str) -> Path:
    """The same, or a temporary folder where nothing can be written there."""
    folder = user_cache(part)
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return Path(tempfile.mkdtemp(prefix="paddle_ext-"))
