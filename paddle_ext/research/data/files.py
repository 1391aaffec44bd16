"""Files that are whole or not there at all, and where those of a cache lie."""

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


def usual_cache(part: str) -> Path:
    """A folder for one part of the package among the user's caches."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "paddle_ext" / part
