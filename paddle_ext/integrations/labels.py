"""Labels and class names in the forms that scikit-learn users write."""

from __future__ import annotations

import difflib
import numbers
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import check
from .fitted import Array


def labelled(y: Array) -> npt.NDArray[np.bool_]:
    """Which rows have a label: not -1, None or NaN."""
    if y.dtype.kind == "O":
        return np.array([not is_missing(label) for label in y], dtype=bool)
    if y.dtype.kind in "iuf":
        return np.asarray(~(np.isnan(y) | (y == -1)))
    return np.ones(len(y), dtype=bool)


def is_missing(label: object) -> bool:
    # pandas.NA equals nothing, not even itself, and its comparisons have no truth value.
    if label is None or type(label).__name__ == "NAType":
        return True
    return bool(label != label) or (  # noqa: PLR0124 - detects NaN of any type
        isinstance(label, numbers.Real) and label == -1
    )


def sorted_classes(y: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """The classes among labels, and the index of each label."""
    if len(y) == 0:
        raise ValueError("y must have labelled rows of at least two classes, got none")
    if y.dtype.kind == "O":
        y = unwrapped(y)
    if y.dtype.kind in "US" and (y == np.array("-1", dtype=y.dtype)).any():
        raise ValueError(
            "y must have None for an unlabelled row among text, got '-1', which would be a class"
        )
    # scikit-learn's check_classification_targets warns about one label per class.
    if y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.round(y))).all():
        odd = y[~np.isfinite(y) | (y != np.round(y))][0]
        raise ValueError(f"Unknown label type: y must be names or integers, got {odd}")
    classes, places = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y must have labels of at least two classes, got one class: {classes[0]}")
    return classes, places.astype(np.int64)


def unwrapped(y: Array) -> Array:
    """Objects that are all text, unchanged; all numbers, as a numeric array."""
    if all(isinstance(label, str) for label in y):
        return y
    if all(isinstance(label, numbers.Real | np.bool_) for label in y):
        return np.array(y.tolist())
    kinds = sorted({check.kind(label) for label in y})
    raise ValueError(
        f"Unknown label type: y must be all text or all numbers, got {' and '.join(kinds)}"
    )


def checked_weights(given: Any, n: int) -> Array:
    """One finite number >= 0 per row."""
    weights = np.asarray(given)
    if weights.dtype.kind not in "fiub" or weights.shape != (n,):
        raise ValueError(
            f"sample_weight must be numbers of shape [{n}], one for each row, got {weights.dtype} "
            f"of shape {list(weights.shape)}"
        )
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"sample_weight must be finite and at least 0, got {weights[row]} in row {row}"
        )
    found: Array = weights.astype(np.float64)
    return found


# --- names of classes ---------------------------------------------------------------------------


class Named(NamedTuple):
    """Classes known by an embedding of their name."""

    classes: Array  # [K], sorted
    places: npt.NDArray[np.int64]  # index of each label among them
    prototypes: Array  # [K, D], in the order of the classes


def named_classes(y: Array, prototypes: Any, classes: Any, D: int) -> Named:
    """The names given to `fit`, checked and sorted.

    Parameters
    ----------
    y : array [S]
        The available labels.
    prototypes : array [K, D]
    classes : array [K] or None
        Their labels; None: those of `y`, or 0 to K - 1 if there are none.
    D : int
        Number of features.
    """
    rows = checked_prototypes(prototypes, D)
    if classes is not None:
        names = checked_classes(classes, len(rows))
    elif len(y):
        names = np.unique(unwrapped(y) if y.dtype.kind == "O" else y)
        if len(names) != len(rows):
            raise ValueError(
                f"prototypes must have one row for each class of y, {len(names)}, unless classes "
                f"are given, got {len(rows)}"
            )
    else:
        names = np.arange(len(rows))
    order = np.argsort(names, kind="stable")
    names = names[order]
    place = {name: k for k, name in enumerate(names.tolist())}
    for label in y.tolist():
        if label not in place:
            near = difflib.get_close_matches(str(label), [str(name) for name in place], 1, cutoff=0)
            raise ValueError(
                f"y must have labels among the {len(place)} classes, got {label!r} "
                f"(nearest: {near[0]})"
            )
    places = np.array([place[label] for label in y.tolist()], dtype=np.int64)
    return Named(names, places, rows[order])


def checked_prototypes(prototypes: Any, D: int) -> Array:
    """[K, D] floating point, K >= 2, finite."""
    rows = np.asarray(prototypes)
    if rows.dtype.kind not in "fiu" or rows.ndim != 2:
        raise ValueError(
            f"prototypes must be numbers of shape [K, {D}], got {rows.dtype} of shape "
            f"{list(rows.shape)}"
        )
    if rows.shape[1] != D:
        raise ValueError(f"prototypes must have as many features as X, {D}, got {rows.shape[1]}")
    if len(rows) < 2:
        raise ValueError(f"prototypes must have at least two classes, got {len(rows)}")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(
            f"prototypes must be finite, got {rows[row, column]} in row {row}, feature {column}"
        )
    return rows


def checked_classes(classes: Any, K: int) -> Array:
    """K different labels."""
    names = np.asarray(classes)
    if names.ndim != 1 or len(names) != K:
        raise ValueError(
            f"classes must have one label for each row of prototypes, {K}, got shape "
            f"{list(names.shape)}"
        )
    if not labelled(names).all():
        raise ValueError("classes must be labels, got -1, None or NaN, which mean unlabelled")
    if names.dtype.kind == "O":
        names = unwrapped(names)
    found, counts = np.unique(names, return_counts=True)
    if len(found) < K:
        raise ValueError(
            f"classes must be unique, got {found[counts > 1].tolist()[0]!r} {counts.max()} times"
        )
    return names
