"""What a label in a file means: one rule for every format.

A label is a name or a whole number. No label is an empty one, -1, or what programs write for a gap:
see `NO_LABEL`. The spelling counts, so that a class may be called "none".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NO_LABEL = ("", "-1", "NA", "NaN", "nan", "<NA>", "None", "NULL", "null")
MOST_CLASSES = 2**24  # that numbers may count, for there are arrays with an entry for each


def label_text(value: object) -> str:
    """A label as text; empty if it is none.

    Examples
    --------
    >>> [label_text(value) for value in ("cat", " ", "NA", "none", -1, 3.0, None)]
    ['cat', '', '', 'none', '', '3', '']
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    text = "" if value is None else str(value).strip()
    return "" if text in NO_LABEL else text


def are_texts(values: Any) -> bool:
    """Whether labels are text, or objects that may be text, and not numbers."""
    return np.asarray(values).dtype.kind in "USO"


def sorted_names(labels: Sequence[str]) -> list[str]:
    """The different names in order; whole numbers in the order of numbers.

    Examples
    --------
    >>> sorted_names(["10", "9", "", "10"])
    ['9', '10']
    """
    names = sorted(set(labels) - {""})
    if all(name.removeprefix("-").isdecimal() for name in names):
        names.sort(key=int)
    return names


def numbered(labels: Sequence[str], names: Sequence[str]) -> Tensor:
    """Places of labels among the names, [N] int64; -1 where there is none.

    Raises
    ------
    ValueError
        A label that is none of the names.
    """
    number = {name: label for label, name in enumerate(names)} | {"": -1}
    for label in labels:
        if label not in number:
            raise ValueError(f"labels must be among the {len(names)} class_names, got {label!r}")
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)


def whole_numbers(values: npt.NDArray[Any] | Tensor) -> Tensor:
    """Labels as int64: some programs save them as floating point, with NaN for a gap.

    Raises
    ------
    ValueError
        Numbers that are not whole, or too large to count anything.
    """
    if isinstance(values, Tensor) and values.is_floating_point():
        values = values.double()
    array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind == "b":
        raise ValueError("labels must be whole numbers or names, got bool")
    if array.dtype.kind not in "iuf":
        raise ValueError(f"labels must be whole numbers or names, got {array.dtype}")
    if array.dtype.kind == "f":
        gaps = np.isnan(array)
        whole = np.where(gaps, -1.0, array.astype(np.float64))
        odd = whole[~(np.isfinite(whole) & (whole == np.floor(whole)))]
        if odd.size:
            raise ValueError(f"labels must be whole numbers or names, got {odd.flat[0]:g}")
        array = whole
    if array.size:
        low, high = array.min(), array.max()
        if low < -(2.0**62) or high > 2.0**62:
            worst = low if low < -(2.0**62) else high
            raise ValueError(f"labels must be numbers that count classes, got {worst:g}")
    return torch.from_numpy(array.astype(np.int64))


def check_count(high: int) -> None:
    """Refuse a label that counts more classes than there can be."""
    if high >= MOST_CLASSES:
        raise ValueError(f"labels must be below {MOST_CLASSES}, for they count classes, got {high}")


def is_gap(value: object) -> bool:
    """Whether a label is a gap that is not simply empty, which the user may like to know."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    return not label_text(value) and str(value).strip() not in ("", "-1")
