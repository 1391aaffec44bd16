"""Embeddings in array files: `.npz`, `.npy`, `.safetensors`, `.pt`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import arrays, check
from ...labels import check_one_each, label_text
from ..settings import Columns
from .names import NAMED
from .samples import Batch

SUFFIXES = (".npz", ".npy", ".safetensors", ".pt", ".pth")
READ_AT_ONCE = 4096  # rows


class ArrayFile:
    """A file of embeddings; rows are read on demand if its format allows it."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self.path, self.columns = path, columns
        self.contents = read(path, columns.others() | NAMED)
        found = arrays.pick(self.contents, arrays.FEATURES, path)
        features = self.features = arrays.as_tensor(found, "features", path)  # [N, D]
        if features.dim() != 2 or not features.is_floating_point() or features.shape[1] < 1:
            raise ValueError(
                f"{path} must have floating-point features of shape [N, D], "
                f"got {check.plain(features.dtype)} of shape {list(features.shape)}"
            )
        self.class_names: Sequence[str] = ()  # of integer labels, if the file does not say it

    def array(self, *names: str) -> list[str]:
        """The labels under one of these names."""
        contents = {"class_names": self.class_names} if self.class_names else {}
        contents |= self.contents
        return label_names(arrays.pick(contents, names, self.path), contents, self.path)

    def labels(self, *, required: bool) -> list[str]:
        """A label for each row, empty if missing; the array of true labels does not count."""
        label = self.columns.label
        there = (name for name in arrays.LABELS if name in self.contents)
        if not required and label is None and all(name == self.columns.truth for name in there):
            return [""] * len(self.features)
        return self.one_each(self.array(*((label,) if label else arrays.LABELS)))

    def one_each(self, values: list[str]) -> list[str]:
        check_one_each(str(self.path), "label", "row", [len(values)], len(self.features))
        return values

    def labelled(self, values: list[str]) -> Batch:
        rows = [row for row, value in enumerate(values) if value]
        return batch_of(self.features, rows, [f"row {row}" for row in rows], values)


class ArraySamples:
    """Some rows of a file to classify, or all of them, and the true labels of all, if known."""

    def __init__(self, file: ArrayFile, rows: Sequence[int] | None = None) -> None:
        self.file, truth = file, file.columns.truth
        self.rows = range(len(file.features)) if rows is None else rows
        self.truth = None if truth is None else file.one_each(file.array(truth))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self), READ_AT_ONCE):
            rows = self.rows[start : start + READ_AT_ONCE]
            yield batch_of(self.file.features, rows, [""] * len(rows), self.truth)


def batch_of(
    features: Tensor, rows: Sequence[int], texts: list[str], truth: list[str] | None
) -> Batch:
    """These rows of all features [N, D] and of all true classes, if they are known."""
    own = features[torch.tensor(rows, dtype=torch.int64)].float()
    classes = None if truth is None else [truth[row] for row in rows]
    return Batch([str(row) for row in rows], own, texts, classes)


def read(path: Path, others: set[str]) -> dict[str, Any]:
    """Named arrays, memory-mapped if possible: those with known names, and others."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return {"features": arrays.map_npy(path)}
    if suffix == ".safetensors":
        return arrays.read_safetensors(path, mmap=True)
    if suffix in (".pt", ".pth"):
        return dict(arrays.named_contents(arrays.read_torch(path), path))
    return arrays.read_npz(path, arrays.BANK_NAMES | others)


def label_names(values: Any, contents: dict[str, Any], path: Path) -> list[str]:
    """Labels as text, empty if missing: names as they are, numbers by the names of the classes."""
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ValueError(f"{path} must have labels of shape [N], got {list(shape)}")
    texts = arrays.label_texts(values)
    if texts is not None:
        return texts
    numbers = arrays.label_numbers(values, path).tolist()
    low, high = min(numbers, default=0), max(numbers, default=0)
    if low < -1:
        raise ValueError(f"{path} must have labels of at least 0, or -1 for no label, got {low}")
    given = next((contents[name] for name in arrays.CLASS_NAMES if name in contents), None)
    if given is None:
        return [label_text(number) for number in numbers]
    names = arrays.as_names(given, "class_names", path).tolist()
    if high >= len(names):
        raise ValueError(f"{path} must have a name for every label, got {len(names)} and {high}")
    return [names[number] if number >= 0 else "" for number in numbers]
