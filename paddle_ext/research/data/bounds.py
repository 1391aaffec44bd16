"""What a file may become in memory: no more than some times what it really holds.

A few bytes can stand for any number of them: a compressed row of zeros, a list of the same list
twice and so on, a tensor whose rows are all at one place. Nothing of that comes from a program that
saves features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from ..files import RefusedError

RATIO = 50  # ReLU features of a large network, mostly zeros, are compressed to a tenth
ALWAYS = 2**26  # bytes that may come of a file of any size


def check_room(path: Path, wanted: int, held: int, what: str) -> None:
    """Refuse what would take much more memory than the bytes that it comes from."""
    if wanted > ALWAYS + RATIO * held:
        raise RefusedError(
            f"{path} must hold what it stands for, got {what} of {wanted} bytes in {held}"
        )


def check_expanded(path: Path, value: object) -> None:
    """The same for containers of arrays, tensors, texts and numbers."""
    try:
        wanted = expanded_bytes(value, {})
    except RecursionError:
        raise RefusedError(f"{path} must hold what is not nested so deeply") from None
    check_room(path, wanted, path.stat().st_size, "contents")


def expanded_bytes(value: object, seen: dict[int, int]) -> int:
    """Bytes of all that is in a container, counted each time that it is there.

    Parameters
    ----------
    value : object
    seen : dict of int to int
        Bytes of the containers known already, by their id, so that it takes no longer than the
        file is large.
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
