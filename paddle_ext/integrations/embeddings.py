"""Read embeddings that users pass, as a matrix of numbers or a column of vectors."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from .. import check
from ..limits import LARGEST_FEATURE_FLOAT32
from .fitted import Array

LARGEST = LARGEST_FEATURE_FLOAT32


def vectors(name: str, value: Any, *, width: int | None = None, keep_double: bool = False) -> Array:
    """Rows [N, D], all finite, from a matrix or from a column of vectors.

    They are float32, or float64 if `keep_double` is set and the input is. `width` is the required
    D; `name` is what error messages call the rows.
    """
    rows = plain(value)
    if rows.dtype.kind == "O" and rows.ndim == 1:
        rows = stacked(name, rows)
    if rows.dtype.kind not in "fiu" or rows.ndim != 2 or rows.shape[1] == 0:
        raise check.ArgumentValueError(
            name,
            "must be numbers of shape [N, D] or a column of vectors, got "
            f"{rows.dtype} of shape {list(rows.shape)}",
        )
    if width is not None and rows.shape[1] != width:
        raise check.ArgumentValueError(
            name, f"must have {width} features like the data of the classes, got {rows.shape[1]}"
        )
    if rows.dtype.kind != "f" or rows.dtype.itemsize < 4:
        rows = rows.astype(np.float32)
    if rows.size and not max(-rows.min(), rows.max()) <= LARGEST:  # false for NaN
        row, column = np.argwhere(~(np.abs(rows) <= LARGEST))[0]
        odd = rows[row, column]
        expected = f"at most {LARGEST:g} in magnitude" if np.isfinite(odd) else "finite"
        raise check.ArgumentValueError(
            name, f"must be {expected}, got {odd} in row {row}, feature {column}"
        )
    return np.ascontiguousarray(rows, dtype=None if keep_double else np.float32)


def plain(value: Any) -> Array:
    """A tensor, column or list as an array; a list may hold vectors of different lengths."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return np.asarray(value.float() if value.is_floating_point() else value)
    if not isinstance(value, list | tuple):
        return np.asarray(value)
    try:
        return np.asarray(value)
    except ValueError:
        found = np.empty(len(value), dtype=object)
        found[:] = [*value]
        return found


def stacked(name: str, column: Array) -> Array:
    """A column of vectors as a matrix."""
    try:
        rows = np.array(column.tolist())
    except (TypeError, ValueError):
        odd_vector(name, column)
    if rows.ndim != 2 or rows.dtype.kind == "O":
        odd_vector(name, column)
    return rows


def odd_vector(name: str, column: Array) -> NoReturn:
    """Raise an error naming the row that is not a vector or has another length."""
    for number, row in enumerate(column):
        if not isinstance(row, list | tuple) and np.ndim(row) != 1:
            got = f"{check.kind(row)} in row {number}"
            break
        if len(row) != len(column[0]):
            got = f"{len(row)} numbers in row {number} and {len(column[0])} in row 0"
            break
    else:
        got = "non-numeric values"
    raise check.ArgumentValueError(name, f"must have vectors of one length, got {got}")


def length(column: Any) -> int | None:
    """The length of a column; None if the value has no length."""
    try:
        return len(column)
    except TypeError:
        return None
