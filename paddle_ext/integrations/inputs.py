"""Check what users pass: embeddings, labels, names of classes, weights and priors."""

import difflib
import math
import numbers
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.label_noise import check_label_noise
from ..groups import Groups, check_length, groups_and_things, groups_of
from ..labels import (
    check_one_each,
    has_label,
    label_text,
    missing_word,
    missing_word_notes,
)
from ..limits import LARGEST_FEATURE_FLOAT32
from ..methods.base import factor
from ..prior import measures_of
from ..text import plural
from .columns import Array

Places: TypeAlias = npt.NDArray[np.int64]

LARGEST_WEIGHT = 1e30  # of a row, and one over the smallest: their ratios are numbers in float64

# --- embeddings ---------------------------------------------------------------------------------


def vectors(name: str, value: Any, *, width: int | None = None, keep_double: bool = False) -> Array:
    """Rows [N, D], all finite, of a matrix or column of vectors; float32 unless `keep_double`."""
    if hasattr(value, "toarray"):
        kind = check.kind(value)
        raise check.ArgumentTypeError(name, f"must be dense, got {kind}: convert it by .toarray()")
    rows = plain(value)
    if rows.dtype.kind == "O" and rows.ndim == 1:
        column = rows
        with suppress(TypeError, ValueError):
            rows = np.array(column.tolist())
        if rows.ndim != 2 or rows.dtype.kind == "O":
            raise odd_vector(name, column)
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
    if rows.size and not max(-rows.min(), rows.max()) <= LARGEST_FEATURE_FLOAT32:  # false for NaN
        row, column = np.argwhere(~(np.abs(rows) <= LARGEST_FEATURE_FLOAT32))[0]
        odd = rows[row, column]
        expected = (
            f"at most {LARGEST_FEATURE_FLOAT32:g} in magnitude" if np.isfinite(odd) else "finite"
        )
        raise check.ArgumentValueError(
            name, f"must be {expected}, got {odd} in row {row}, feature {column}"
        )
    return np.ascontiguousarray(rows, dtype=None if keep_double else np.float32)


def plain(value: Any) -> Array:
    """A tensor, column or list as an array; a list may hold vectors of different lengths.

    What a masked array lacks is None.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        kept: Array = np.array(value.data, dtype=object)
        kept[np.ma.getmaskarray(value)] = None
        return kept
    if isinstance(value, Tensor):
        value = value.detach().cpu().resolve_neg()
        keeps = value.dtype in check.LARGEST_FEATURE and value.dtype is not torch.bfloat16
        return np.asarray(value if keeps or not value.is_floating_point() else value.float())
    if not isinstance(value, list | tuple):
        return np.asarray(value)
    try:
        return np.asarray(value)
    except ValueError:
        ragged = np.empty(len(value), dtype=object)
        ragged[:] = [*value]
        return ragged


def odd_vector(name: str, column: Array) -> ValueError:
    """The error that names the row that is not a vector or has another length."""
    for number, row in enumerate(column):
        if not isinstance(row, list | tuple) and np.ndim(row) != 1:
            got = f"{check.kind(row)} in row {number}"
            break
        if len(row) != len(column[0]):
            got = f"{len(row)} numbers in row {number} and {len(column[0])} in row 0"
            break
    else:
        got = "non-numeric values"
    return check.ArgumentValueError(name, f"must have vectors of one length, got {got}")


def length(column: Any) -> int | None:
    """The length of a column; None if the value has no length."""
    try:
        return len(column)
    except TypeError:
        return None


# --- labels, weights and priors -----------------------------------------------------------------


def checked_options(
    max_iter: int, tol: float, logit_scale: float, label_noise: float | str, share: bool
) -> dict[str, Any]:
    """The options of the rule, except for the prior."""
    return {
        "max_iter": check.integer("max_iter", max_iter),
        "tol": check.real("tol", tol),
        "logit_scale": factor("logit_scale", logit_scale),
        "label_noise": check_label_noise("label_noise", label_noise),
        "share": check.flag("share", share),
    }


def labelled(y: Array) -> npt.NDArray[np.bool_]:
    """Which rows of y have a label; warns of words that count as none, such as "unknown"."""
    there = has_label(y)
    words = Counter(word for label in y[~there].tolist() if (word := missing_word(label)))
    for note in missing_word_notes(words, "y"):
        warnings.warn(note, stacklevel=4)
    return there


def label_array(y: Any) -> Any:
    """The labels of rows; NumPy would turn what is missing in a list of text into text."""
    if isinstance(y, np.ma.MaskedArray):
        return plain(y)
    lacks = isinstance(y, list | tuple) and any(isinstance(x, float) and math.isnan(x) for x in y)
    return np.array(y, dtype=object) if lacks and any(isinstance(x, str) for x in y) else y


def row_groups(given: Any, of_rows: npt.NDArray[np.bool_], name: str) -> Array | None:
    """The groups of `of_rows` [n] bool, maybe of none; those of other rows are ignored."""
    if given is None:
        return None
    # NumPy would turn numbers into text in a list that contains both.
    column = np.array(given, dtype=object) if isinstance(given, list | tuple) else plain(given)
    check_length(column.shape, len(of_rows), name)
    there = of_rows & has_label(column) if name == "same" else of_rows
    if there.any():
        # The others get a value of these, so that an error names the row as the caller counts.
        first = column[there][:1]
        groups_of(np.where(there, column, first), len(column), torch.device("cpu"), name)
    if not of_rows.any():
        return None
    if (there < of_rows).any():
        column = np.array(things_of_their_own(column.tolist()), dtype=object)
    return np.asarray(column[of_rows])


def labelled_things(same: Any, classes: Array, has_label: Array, device: Any) -> Groups | None:
    """Which labelled rows, of these classes [S], are one thing; None if no two are."""
    column = row_groups(same, has_label, "same")
    names = [] if column is None else things_of_their_own(column.tolist())
    if len(set(names)) == len(names):
        return None
    return groups_and_things(classes.astype(str), names, len(names), device, kind="class")[1]


def labelled_groups(groups: Any, of_labelled: npt.NDArray[np.bool_]) -> Array | None:
    """The number of the group of each labelled row [S]; None if none of them has a group.

    A row with -1, None or NaN is in a group of its own.
    """
    if groups is None:
        return None
    # NumPy would turn numbers into text in a list that contains both.
    column = np.array(groups, dtype=object) if isinstance(groups, list | tuple) else plain(groups)
    check_length(column.shape, len(of_labelled), "groups")
    own = column[of_labelled]
    there = has_label(own)
    if not there.any():
        return None
    # An error names the row as the caller counts.
    row_groups(groups, of_labelled & has_label(column), "groups")
    return np.unique(things_of_their_own(own.tolist()), return_inverse=True)[1].astype(np.int64)


def things_of_their_own(same: Iterable[Any]) -> list[str]:
    """The names of things as text; each of the missing ones gets one of its own."""
    whole = (int(x) if isinstance(x, float) and x.is_integer() else x for x in same)
    return [str(name) if label_text(name) else f"\0{i}" for i, name in enumerate(whole)]


def prior_weights(prior: Any, classes: Array, groups: Groups | None = None) -> Array | None:
    """A prior in the order of the classes, [K] float64: an array, a mapping or a Series by class.

    Classes that a mapping lacks get its smallest weight above 0, with a warning. With groups an
    array may be [G, K].
    """
    if prior is None:
        return None
    names = classes.tolist()
    if getattr(prior, "ndim", 0) == 1 and hasattr(prior, "to_dict"):  # a Series
        if not prior.index.is_unique:
            twice = prior.index[prior.index.duplicated()][0]
            raise ValueError(f"prior must have one weight for each class, got {twice!r} twice")
        prior = prior.to_dict()
    if isinstance(prior, Mapping) and (odd := [name for name in prior if name not in names]):
        raise ValueError(f"prior must have classes of y as keys, got {odd[0]!r}")
    try:
        if isinstance(prior, Mapping):
            prior, notes = in_order({k: float(w) for k, w in prior.items()}, names, "prior")
            for note in notes:
                warnings.warn(note, stacklevel=3)
        weights: Array = np.array(plain(prior), dtype=np.float64)  # the caller's may change
    except (TypeError, ValueError) as error:
        raise TypeError(f"prior must be numbers, got {check.kind(prior)}") from error
    tasks = None if groups is None else len(groups.names)
    like = torch.empty(0, device="cpu")
    measures_of(weights, len(classes), tasks, like)  # raises if they are invalid
    return weights


def in_order(
    weights: Mapping[Any, float], classes: Sequence[Any], where: object
) -> tuple[list[float], list[str]]:
    """Weights in the order of the classes, and a note on what is missing `where` it says."""
    missing = [name for name in classes if name not in weights]
    least = min((weights[name] for name in classes if weights.get(name, 0) > 0), default=0.0)
    note = f"{plural(len(missing), 'class')} not in {where} got its smallest weight above 0, "
    note += f"{least:g}, such as {next(iter(missing), None)}"
    return [weights.get(name, least) for name in classes], [note] * bool(missing)


def sorted_classes(y: Array) -> tuple[Array, Places]:
    """The sorted classes among labels, and the index of each label's class."""
    if len(y) == 0:
        raise ValueError("y must have labelled rows of at least two classes, got none")
    y = unwrapped("y", y)
    # scikit-learn's check_classification_targets warns about one label per class.
    if y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.round(y))).all():
        odd = y[~np.isfinite(y) | (y != np.round(y))][0]
        raise ValueError(f"Unknown label type: y must be names or integers, got {odd}")
    classes, places = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y must have labels of at least two classes, got one class: {classes[0]}")
    return classes, places.astype(np.int64)


def unwrapped(name: str, labels: Array) -> Array:
    """An array of objects, unchanged if all are text, as a numeric array if all are numbers."""
    if labels.dtype.kind != "O" or all(isinstance(label, str) for label in labels):
        return labels
    if all(isinstance(label, numbers.Real | np.bool_) for label in labels):
        return np.array(labels.tolist())
    kinds = sorted({check.kind(label) for label in labels})
    raise check.ArgumentValueError(
        name, f"must be all text or all numbers (Unknown label type), got {' and '.join(kinds)}"
    )


def checked_weights(
    given: Any, has_label: npt.NDArray[np.bool_], places: Places, classes: Array
) -> Array:
    """The weights of the labelled rows in float64; every class must have a positive one."""
    if isinstance(given, np.ma.MaskedArray) and given.dtype.kind in "fiu":
        given = np.ma.filled(given.astype(np.float64), np.nan)
    weights = plain(given)
    if weights.dtype.kind not in "fiub" or weights.shape != has_label.shape:
        raise ValueError(
            f"sample_weight must be numbers of shape [{len(has_label)}], one for each row, got "
            f"{weights.dtype} of shape {list(weights.shape)}"
        )
    usable = (weights >= 1 / LARGEST_WEIGHT) & (weights <= LARGEST_WEIGHT) | (weights == 0)
    usable |= ~has_label
    if not usable.all():
        row = int(np.argmin(usable))
        raise ValueError(
            f"sample_weight must be 0 or between {1 / LARGEST_WEIGHT:g} and {LARGEST_WEIGHT:g}, "
            f"got {weights[row]} in row {row}"
        )
    of_labelled: Array = weights[has_label].astype(np.float64)
    mass = np.bincount(places, of_labelled, minlength=len(classes))
    if (mass == 0).any():
        raise ValueError(
            "sample_weight must be more than zero for a labelled row of every class, got zero "
            f"for all of class {classes[mass == 0][0]}"
        )
    return of_labelled


# --- names of classes ---------------------------------------------------------------------------


def named_classes(y: Array, prototypes: Any, classes: Any, D: int) -> tuple[Array, Places, Array]:
    """The classes, sorted, the index of each label among them, and their prototypes [K, D]."""
    rows = checked_prototypes(prototypes, width=D, keep_double=True)
    if classes is not None:
        names = class_names("classes", classes, len(rows))
    elif len(y):
        names = np.unique(unwrapped("y", y))
        if len(names) != len(rows):
            raise ValueError(
                f"prototypes must have one row for each class of y, {len(names)}, unless classes "
                f"are given, got {len(rows)}"
            )
    else:
        names = np.arange(len(rows))
    order = np.argsort(names, kind="stable")
    names = names[order]
    return names, indices("y", y, names, "classes"), rows[order]


def checked_prototypes(prototypes: Any, **options: Any) -> Array:
    """Prototypes as an array [K, D], K >= 2; the options are those of `vectors`."""
    rows = vectors("prototypes", prototypes, **options)
    at_least_two("prototypes", len(rows))
    return rows


def class_names(name: str, value: Any, prototypes: int | None) -> Array:
    """Different labels as an array; as many as there are prototypes, if there are any."""
    names = label_vector(name, value)
    if prototypes is not None and len(names) != prototypes:
        raise check.ArgumentValueError(
            name,
            f"must have as many classes as there are prototypes, {prototypes}, got {len(names)}",
        )
    at_least_two(name, len(names))
    unique, counts = np.unique(names, return_counts=True)
    if len(unique) < len(names):
        twice = unique[counts > 1].tolist()[0]
        raise check.ArgumentValueError(name, f"must be unique, got {twice!r} {counts.max()} times")
    return names


def classes_and_places(
    labels: Any, count: int, names: Any, prototypes: int | None
) -> tuple[Array, Places]:
    """The classes [K], and the index of each label; without prototypes each needs a label."""
    given = label_vector("labels", labels)
    check_one_each("labels", "label", "row of support", given.shape, count)
    if names is not None:
        classes = class_names("names", names, prototypes)
    elif prototypes is not None and count == 0:
        classes = np.arange(prototypes)
    else:
        classes = class_names("labels", np.unique(given), prototypes)
    if given.dtype.kind != "U" and classes.dtype.kind == "U":
        K, places = len(classes), given
        odd = given[(given < 0) | (given >= K)]
        if len(odd):
            raise check.ArgumentValueError(
                "labels", f"must be indices of the {K} names, in [0, {K}), got {odd[0]}"
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


def label_vector(name: str, value: Any) -> Array:
    """Labels as a vector of text or int64; missing ones, such as None and "", are errors."""
    # NumPy would turn numbers into text in a list that contains both.
    labels = np.array(value, dtype=object) if isinstance(value, list | tuple) else plain(value)
    if labels.ndim != 1:
        raise check.ArgumentValueError(
            name, f"must have one dimension, got shape {list(labels.shape)}"
        )
    there = has_label(labels)
    if not there.all():
        odd = labels[~there].tolist()[0]
        means = ", which means a missing label" if missing_word(odd) else ""
        raise check.ArgumentValueError(name, f"must be text or integers >= 0, got {odd}{means}")
    labels = unwrapped(name, labels)
    if len(labels) and (labels.dtype.kind not in "OUbiu" or above_int64(labels)):
        odd = labels.max() if above_int64(labels) else labels[0]
        raise check.ArgumentValueError(name, f"must be text or integers of 64 bits, got {odd}")
    return labels.astype(str if labels.dtype.kind in "OU" else np.int64)


def above_int64(labels: Array) -> bool:
    return labels.dtype.kind == "u" and bool(labels.max() >= 2**63)


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
