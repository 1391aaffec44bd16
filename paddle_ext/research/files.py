"""Files replaced atomically, and cache folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..ops.large.files import RefusedError


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


class UnmappableError(RefusedError):
    """An intact file that cannot be mapped."""


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
