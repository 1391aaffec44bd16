"""A limit on the memory of a file's contents, relative to its size.

A few bytes can stand for any number of them: a compressed row of zeros, nested references to the
same list, a tensor whose rows share one location. No program that saves features produces these.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from ...files import RefusedError

RATIO = 50  # ReLU features of a large network, mostly zeros, compress to a tenth
ALWAYS = 2**26  # bytes allowed for a file of any size


def check_room(path: Path, wanted: int, held: int, what: str) -> None:
    """Reject contents that would take much more memory than the bytes they come from."""
    if wanted > ALWAYS + RATIO * held:
        raise RefusedError(
            f"{path} must not expand to more than it holds, got {what} of {wanted} bytes in {held}"
        )


def check_expanded(path: Path, value: object) -> None:
    """`check_room` for containers of arrays, tensors, texts and numbers."""
    try:
        wanted = expanded_bytes(value, {})
    except RecursionError:
        raise RefusedError(f"{path} must not be nested so deeply") from None
    check_room(path, wanted, path.stat().st_size, "contents")


def expanded_bytes(value: object, seen: dict[int, int]) -> int:
    """Bytes of everything in a container, counted once per reference.

    `seen` has the bytes of known containers by id, so that the time stays linear in the file size.
    """
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, dict | list | tuple):
        return 8
    if id(value) not in seen:
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        seen[id(value)] = 8 + sum(expanded_bytes(part, seen) for part in parts)
    return seen[id(value)]
