"""The meaning of a label, in every file and every function: one rule.

A label is a name or an integer. A missing label is empty, -1, or what programs and people write for
missing values: see `NO_LABEL`. Case matters, so that a class may be called "none".
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import check
from .text import plural, without_controls

NO_LABEL = frozenset(
    ("", "-1", "NA", "NaN", "nan", "NaT", "<NA>", "None", "NULL", "null", "n/a", "N/A", "#N/A")
) | {"?", "-", "unknown", "Unknown", "UNKNOWN"}
MOST_CLASSES = 2**24  # limit on integer labels, because arrays have an entry for each class
SHORTEST_MISSPELT = 4  # letters of a name that may be a misspelling
# And the most: a name of n letters has n neighbours of n - 1 letters, so memory grows as n squared.
LONGEST_MISSPELT = 100
MOST_LABEL = 2.0**62  # beyond it floating-point numbers do not fit in int64


def label_text(value: object) -> str:
    """A label as text, such as "3" for 3.0; empty if it is missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    text = "" if value is None else str(value).strip()
    return "" if text in NO_LABEL else without_controls(text)


def has_label(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which labels of an array are not missing, [N] bool: the rule of `label_text`."""
    if labels.dtype.kind in "iuf":
        return np.asarray(~(np.isnan(labels) | (labels == -1)))
    if labels.dtype.kind in "mM":
        return np.asarray(~np.isnat(labels))
    return np.array([label_text(label) != "" for label in labels.tolist()], dtype=bool)


def missing_word(value: object) -> str:
    """The word of a missing label that could have been meant as a class; empty for others."""
    word = value.strip() if isinstance(value, str) and not label_text(value) else ""
    return "" if word == "-1" else word


def missing_word_notes(words: Mapping[str, int], where: str) -> list[str]:
    """What to tell the user about words that count as missing labels, with their rows."""
    return [
        f"{word!r} in {where} counts as a missing label: {plural(count, 'row')}"
        for word, count in words.items()
    ]


def sorted_names(labels: Sequence[str]) -> list[str]:
    """The unique names in order; integers in numeric order."""
    names = sorted(set(labels) - {""})
    if all(name.removeprefix("-").isdecimal() for name in names):
        names.sort(key=int)
    return names


def numbered(labels: Sequence[str], names: Sequence[str]) -> Tensor:
    """Indices of labels among the names, [N] int64; -1 if missing."""
    number = {name: label for label, name in enumerate(names)} | {"": -1}
    for label in labels:
        if label not in number:
            raise ValueError(f"labels must be among the {len(names)} class_names, got {label!r}")
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)


def whole_numbers(values: npt.NDArray[Any] | Tensor) -> Tensor:
    """Labels as int64: some programs save them as floating point, with NaN if missing."""
    if isinstance(values, Tensor) and values.is_floating_point():
        values = values.double()
    array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"labels must be integers or names, got {array.dtype}")
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), -1.0, array.astype(np.float64))
        fractions = array[~(np.isfinite(array) & (array == np.floor(array)))]
        if fractions.size:
            raise ValueError(f"labels must be integers or names, got {fractions.flat[0]:g}")
    if array.size and (array.min() < -MOST_LABEL or array.max() > MOST_LABEL):
        worst = array.min() if array.min() < -MOST_LABEL else array.max()
        raise ValueError(f"labels must be class numbers, got {worst:g}")
    return torch.from_numpy(array.astype(np.int64))


def check_one_each(name: str, one: str, each: str, shape: Sequence[int], count: int) -> None:
    """Reject anything but one value for each row, image or feature."""
    if tuple(shape) != (count,):
        what = f"must have one {one} for each {each}, shape [{count}], got {list(shape)}"
        raise check.ArgumentValueError(name, what)


def check_count(high: int) -> None:
    """Reject a label above the limit on classes."""
    if high >= MOST_CLASSES:
        raise ValueError(f"labels must be below {MOST_CLASSES}, the limit on classes, got {high}")


def normalised(name: str) -> str:
    """The name in the composed form of Unicode; some systems write accents apart."""
    return unicodedata.normalize("NFC", name)


def alike(names: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Pairs of names that may be one class, by reason; those that differ by a number are not.

    Of several that differ by one letter at the same place, each is paired with the first.
    """
    plain: dict[str, list[str]] = defaultdict(list)
    for name in names:
        key = re.sub(r"[\s_]+|-(?!\d)", "", unicodedata.normalize("NFKC", name))
        plain[key.casefold()].append(name)
    reasons: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for first, *others in plain.values():
        for other in others:
            equal = normalised(first) == normalised(other)
            reasons["the form of Unicode" if equal else "case or white space"].append(
                (first, other)
            )
    shorter: dict[tuple[str, str], set[str]] = defaultdict(set)  # keys without one letter or none
    for key in plain:
        word, digits = re.sub(r"\d", "", key), re.sub(r"\D", "", key)
        if not SHORTEST_MISSPELT <= len(word) <= LONGEST_MISSPELT:
            continue
        for place in range(len(word) + 1):
            shorter[word[:place] + word[place + 1 :], digits].add(key)
    near = set[tuple[str, str]]()
    for keys in shorter.values():
        first, *others = sorted(keys)
        near |= {(first, other) for other in others}
    if near:
        reasons["a letter"] = sorted((plain[one][0], plain[two][0]) for one, two in near)
    return reasons
