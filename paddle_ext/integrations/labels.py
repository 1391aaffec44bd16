"""Check labels and class names in the forms in which users give them."""

from __future__ import annotations

import difflib
import numbers
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from .. import check
from ..prior import measures_of
from .embeddings import plain, vectors
from .fitted import Array

Places: TypeAlias = "npt.NDArray[np.int64]"


def labelled(y: Array) -> npt.NDArray[np.bool_]:
    """Which rows have a label: not -1, None or NaN."""
    if y.dtype.kind == "O":
        return np.array([not is_missing(label) for label in y], dtype=bool)
    if y.dtype.kind in "iuf":
        return np.asarray(~(np.isnan(y) | (y == -1)))
    return np.ones(len(y), dtype=bool)


def is_missing(label: object) -> bool:
    # Comparisons with pandas.NA have no truth value, so it is recognised by its type.
    if label is None or type(label).__name__ == "NAType":
        return True
    return bool(label != label) or (  # noqa: PLR0124 - detects NaN of any type
        isinstance(label, numbers.Real) and label == -1
    )


def prior_weights(prior: Any, classes: Array) -> Array | None:
    """A prior in the order of the classes, [K] float64: an array, or a mapping of class to weight.

    Classes that a mapping lacks get its smallest weight, with a warning.
    """
    if prior is None:
        return None
    if isinstance(prior, Mapping):
        names = classes.tolist()
        odd = [name for name in prior if name not in names]
        if odd:
            raise ValueError(f"prior must have classes of y as keys, got {odd[0]!r}")
        missing = [name for name in names if name not in prior]
        least = min(prior.values(), default=0)
        if missing:
            warnings.warn(
                f"prior lacks {len(missing)} classes, such as {missing[0]!r}: they get its "
                f"smallest weight, {least}",
                stacklevel=3,
            )
        prior = [prior.get(name, least) for name in names]
    try:
        weights: Array = np.asarray(prior, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"prior must be numbers, got {check.kind(prior)}") from error
    measures_of(weights, len(classes), None, torch.empty(0))  # raises if they are invalid
    return weights


def sorted_classes(y: Array) -> tuple[Array, Places]:
    """The sorted classes among labels, and the index of each label's class."""
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
    """An array of objects, unchanged if all are text, as a numeric array if all are numbers."""
    if all(isinstance(label, str) for label in y):
        return y
    if all(isinstance(label, numbers.Real | np.bool_) for label in y):
        return np.array(y.tolist())
    kinds = sorted({check.kind(label) for label in y})
    raise ValueError(
        f"Unknown label type: y must be all text or all numbers, got {' and '.join(kinds)}"
    )


def checked_weights(
    given: Any, known: npt.NDArray[np.bool_], places: Places, classes: Array
) -> Array:
    """The weights of the labelled rows, finite and >= 0; every class must have a positive one."""
    weights = np.asarray(given)
    if weights.dtype.kind not in "fiub" or weights.shape != known.shape:
        raise ValueError(
            f"sample_weight must be numbers of shape [{len(known)}], one for each row, got "
            f"{weights.dtype} of shape {list(weights.shape)}"
        )
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"sample_weight must be finite and at least 0, got {weights[row]} in row {row}"
        )
    found: Array = weights[known].astype(np.float64)
    mass = np.bincount(places, found, minlength=len(classes))
    if (mass == 0).any():
        raise ValueError(
            "sample_weight must be more than zero for a labelled row of every class, got zero "
            f"for all of class {classes[mass == 0][0]}"
        )
    return found


# --- names of classes ---------------------------------------------------------------------------


class Named(NamedTuple):
    """Classes known by an embedding of their name."""

    classes: Array  # [K], sorted
    places: Places  # index of each label among them
    prototypes: Array  # [K, D], in the order of the classes


def named_classes(y: Array, prototypes: Any, classes: Any, D: int) -> Named:
    """Check and sort the classes and prototypes given to `fit`; `y` are the labels it has.

    Without `classes` the classes are those of `y`, or 0 to K - 1 if it is empty.
    """
    rows = checked_prototypes(prototypes, D, keep_double=True)
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
    return Named(names, indices("y", y, names, "classes"), rows[order])


def checked_prototypes(
    prototypes: Any, width: int | None = None, *, keep_double: bool = False
) -> Array:
    """Prototypes as an array [K, D], K >= 2; the options are those of `vectors`."""
    rows = vectors("prototypes", prototypes, width=width, keep_double=keep_double)
    at_least_two("prototypes", len(rows))
    return rows


def checked_classes(classes: Any, K: int) -> Array:
    """The classes as an array of K different labels."""
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
    check_unique("classes", names)
    return names


def classes_and_places(
    labels: Any, count: int, names: Any, prototypes: int | None
) -> tuple[Array, Places]:
    """The classes [K] in the order of the names, and the index of each label [count] among them.

    `prototypes` is the number of prototypes; without them every class must have a label.
    """
    given = text_or_integers("labels", labels)
    if len(given) != count:
        raise check.ArgumentValueError(
            "labels", f"must have one label for each row of support, {count}, got {len(given)}"
        )
    argument = "labels" if names is None else "names"
    if names is not None:
        classes = text_or_integers("names", names)
    elif prototypes is not None and count == 0:
        classes = np.arange(prototypes)
    else:
        classes = np.unique(given)
    if prototypes is not None and len(classes) != prototypes:
        raise check.ArgumentValueError(
            argument,
            f"must have as many classes as there are prototypes, {prototypes}, got {len(classes)}",
        )
    at_least_two(argument, len(classes))
    check_unique(argument, classes)
    if given.dtype.kind != "U" and classes.dtype.kind == "U":
        K, places = len(classes), given
        if len(places) and not (places.min() >= 0 and places.max() < K):
            odd = places[(places < 0) | (places >= K)][0]
            raise check.ArgumentValueError(
                "labels", f"must be indices of the {K} names, in [0, {K}), got {odd}"
            )
    else:
        places = indices("labels", given, classes, "names")
    missing = np.setdiff1d(np.arange(len(classes)), places)
    if prototypes is None and len(missing):
        raise check.ArgumentValueError(
            "names",
            "must all have a labelled row unless there are prototypes, got "
            f"{classes[missing[0]].item()!r} without one",
        )
    return classes, places


def text_or_integers(name: str, value: Any) -> Array:
    """Labels as a vector of text or int64; None, NaN and -1, which mean unlabelled, are errors."""
    # NumPy would turn numbers into text in a list that contains both.
    found = np.array(value, dtype=object) if isinstance(value, list | tuple) else plain(value)
    if found.ndim != 1:
        raise check.ArgumentValueError(
            name, f"must have one dimension, got shape {list(found.shape)}"
        )
    if not labelled(found).all():
        odd = found[~labelled(found)][0]
        raise check.ArgumentValueError(name, f"must be text or integers >= 0, got {odd}")
    if found.dtype.kind in "iu" or all(isinstance(label, numbers.Integral) for label in found):
        return found.astype(np.int64)
    if all(isinstance(label, str) for label in found):
        return found.astype(str)
    kinds = sorted({check.kind(label) for label in found.tolist()})
    raise check.ArgumentTypeError(
        name, f"must be all text or all integers, got {' and '.join(kinds)}"
    )


def indices(name: str, labels: Array, classes: Array, called: str) -> Places:
    """The index of each label among the classes; errors call the labels `name`, these `called`."""
    place = {label: k for k, label in enumerate(classes.tolist())}
    for label in labels.tolist():
        if label not in place:
            near = difflib.get_close_matches(str(label), map(str, place), 1, cutoff=0)
            raise check.ArgumentValueError(
                name, f"must be among the {len(place)} {called}, got {label!r} (nearest: {near[0]})"
            )
    return np.array([place[label] for label in labels.tolist()], dtype=np.int64)


def at_least_two(name: str, count: int) -> None:
    if count < 2:
        raise check.ArgumentValueError(name, f"must have at least two classes, got {count}")


def check_unique(name: str, classes: Array) -> None:
    found, counts = np.unique(classes, return_counts=True)
    if len(found) < len(classes):
        twice = found[counts > 1].tolist()[0]
        raise check.ArgumentValueError(name, f"must be unique, got {twice!r} {counts.max()} times")
