"""Embeddings and labels from batches and files: columns of numbers, vectors or text."""

from __future__ import annotations

import numbers
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check
from .fitted import Array
from .labels import labelled

LARGEST = check.SUMMABLE[torch.float32]
Places = npt.NDArray[np.int64]

# --- embeddings ---------------------------------------------------------------------------------


def vectors(name: str, value: Any, *, width: int | None = None) -> Array:
    """Rows [N, D] in float32, all finite, N >= 1.

    Parameters
    ----------
    name : str
        For errors.
    value : array [N, D] or column of N vectors
    width : int, optional
        Required D.
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
            name,
            f"must have {width} features like the data of the classes, got {rows.shape[1]}",
        )
    if rows.dtype.kind != "f" or rows.dtype.itemsize < 4:
        rows = rows.astype(np.float32)  # exact for all of them
    if rows.size and not max(-rows.min(), rows.max()) <= LARGEST:  # false for NaN
        row, column = np.argwhere(~(np.abs(rows) <= LARGEST))[0]
        odd = rows[row, column]
        expected = f"at most {LARGEST:g} in magnitude" if np.isfinite(odd) else "finite"
        raise check.ArgumentValueError(
            name, f"must be {expected}, got {odd} in row {row}, feature {column}"
        )
    return np.ascontiguousarray(rows, dtype=np.float32)


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
        if not is_vector(row):
            got = f"{check.kind(row)} in row {number}"
            break
        if len(row) != len(column[0]):
            got = f"{len(row)} numbers in row {number} and {len(column[0])} in row 0"
            break
    else:
        got = "non-numeric values"
    raise check.ArgumentValueError(name, f"must have vectors of one length, got {got}")


def is_vector(row: object) -> bool:
    return isinstance(row, list | tuple) or (isinstance(row, np.ndarray) and row.ndim == 1)


def length(column: Any) -> int | None:
    """The length of a column; None if it is not one."""
    try:
        return len(column)
    except TypeError:
        return None


# --- labels -------------------------------------------------------------------------------------


def classes_and_places(
    labels: Any, count: int, names: Any, prototypes: int | None
) -> tuple[Array, Places]:
    """The classes [K], and the index of each label [count] among them.

    Parameters
    ----------
    labels : array [count]
    count : int
        Labelled rows.
    names : sequence [K] or None
    prototypes : int or None
        Number of prototypes.
    """
    given = text_or_integers("labels", labels)
    if len(given) != count:
        raise check.ArgumentValueError(
            "labels", f"must have one label for each row of support, {count}, got {len(given)}"
        )
    if names is None:
        classes, places = np.unique(given, return_inverse=True)
        if prototypes is not None and count == 0:
            return np.arange(prototypes), np.empty(0, dtype=np.int64)
        enough_classes("labels", classes, prototypes)
        return classes, places.astype(np.int64)
    classes = text_or_integers("names", names)
    enough_classes("names", classes, prototypes)
    if len(np.unique(classes)) < len(classes):
        listed = classes.tolist()
        twice = next(name for name in listed if listed.count(name) > 1)
        raise check.ArgumentValueError("names", f"must be unique, got {twice!r} twice")
    if given.dtype.kind != "U" and classes.dtype.kind == "U":
        return classes, checked_places(given, len(classes))
    place = {name: k for k, name in enumerate(classes.tolist())}
    for label in given.tolist():
        if label not in place:
            raise check.ArgumentValueError(
                "labels", f"must be among the {len(place)} names, got {label!r}"
            )
    return classes, np.array([place[label] for label in given.tolist()], dtype=np.int64)


def text_or_integers(name: str, value: Any) -> Array:
    """A vector of text or int64, without None, NaN or -1, which mean unlabelled elsewhere."""
    # NumPy would turn numbers into text in a list that contains both.
    found = np.array(value, dtype=object) if isinstance(value, list | tuple) else plain(value)
    if found.ndim != 1:
        raise check.ArgumentValueError(
            name, f"must have one dimension, got shape {list(found.shape)}"
        )
    if len(found) == 0:
        return np.empty(0, dtype=np.int64)
    if not labelled(found).all():
        odd = found[~labelled(found)][0]
        raise check.ArgumentValueError(name, f"must be text or integers >= 0, got {odd}")
    if found.dtype.kind == "O":
        if all(isinstance(label, str) for label in found):
            return found.astype(str)
        if all(isinstance(label, numbers.Integral) for label in found):
            return found.astype(np.int64)
    if found.dtype.kind == "U":
        return found
    if found.dtype.kind not in "iu":
        kinds = sorted({check.kind(label) for label in found.tolist()})
        raise check.ArgumentTypeError(
            name, f"must be all text or all integers, got {' and '.join(kinds)}"
        )
    return found.astype(np.int64)


def enough_classes(name: str, classes: Array, prototypes: int | None) -> None:
    if prototypes is not None and len(classes) != prototypes:
        raise check.ArgumentValueError(
            name,
            f"must have as many classes as there are prototypes, {prototypes}, got {len(classes)}",
        )
    if len(classes) < 2:
        raise check.ArgumentValueError(name, f"must have at least two classes, got {len(classes)}")


def checked_places(labels: Array, K: int) -> Places:
    if len(labels) and not (labels.min() >= 0 and labels.max() < K):
        odd = labels[(labels < 0) | (labels >= K)][0]
        raise check.ArgumentValueError(
            "labels", f"must be indices of the {K} names, in [0, {K}), got {odd}"
        )
    return labels.astype(np.int64)


def every_class_has_a_row(classes: Array, places: Places) -> None:
    missing = np.setdiff1d(np.arange(len(classes)), places)
    if len(missing):
        raise check.ArgumentValueError(
            "names",
            "must all have a labelled row unless there are prototypes, got "
            f"{classes[missing[0]].item()!r} without one",
        )
