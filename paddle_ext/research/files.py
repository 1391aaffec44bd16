"""Files: replaced only as a whole, read with one sentence if they are damaged, kept in a cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file that takes the place of the old one when it is whole."""
    new = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave the name without the bytes
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


class UnmappableError(ValueError):
    """A whole file, but not one to be mapped."""


@contextmanager
def readable(path: Path, expected: str) -> Iterator[None]:
    """One sentence for whatever a damaged file makes a library raise."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, UnmappableError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be {expected}, got one that cannot be read: {first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """What an error of another library says, cut to one line."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def user_cache(part: str) -> Path:
    """A folder for one part of the package among the user's caches."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "paddle_ext" / part
