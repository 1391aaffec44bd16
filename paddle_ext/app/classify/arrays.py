"""Embeddings in array files: `.npz`, `.npy`, `.safetensors`, `.pt`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import check
from ...ops.large.files import open_regular, readable
from ...research.data import archives, bank_files
from ...research.data.labels import label_text, whole_numbers
from ...research.files import UnmappableError
from .samples import Batch, Examples
from .text_encodings import decoded

SUFFIXES = (".npz", ".npy", ".safetensors", ".pt", ".pth")
READ_AT_ONCE = 4096  # rows


def labelled_arrays(
    path: Path, labels: Path | None, label: str | None, class_names: tuple[str, ...] = ()
) -> Examples:
    """Labelled embeddings; rows labelled -1 have no class and are left out.

    Parameters
    ----------
    path : Path
    labels : Path or None
        A file of labels, for a file without any: `.npy`, or one label per line.
    label : str or None
        The array of labels; None: ``labels``.
    class_names : tuple of str
        Meaning of integer labels, if the file does not give it.
    """
    contents = read(path, label)
    if labels is None and path.suffix == ".npy":
        raise check.ArgumentValueError("labels", f"must be a file of labels for {path}, got none")
    features = features_of(contents, path)
    values = labels_of(contents, path, labels, label, class_names)
    rows = [row for row, value in enumerate(values) if value]
    return examples(features, values, rows, path)


def labelled_rows(path: Path, values: list[str], rows: list[int]) -> Examples:
    """Selected rows of a file, with their labels."""
    return examples(features_of(read(path, None), path), values, rows, path)


def examples(features: Tensor, values: list[str], rows: list[int], path: Path) -> Examples:
    """Selected rows of a file, with their labels."""
    return Examples(
        features[torch.tensor(rows, dtype=torch.int64)].float(),
        [values[row] for row in rows],
        tuple(f"row {row}" for row in rows),
        str(path),
    )


def labels_of(
    contents: dict[str, Any],
    path: Path,
    labels: Path | None,
    label: str | None,
    class_names: tuple[str, ...],
) -> list[str]:
    """A label for each row, empty if missing; the arguments are those of `labelled_arrays`."""
    if labels is not None:
        values = read_labels(labels)
    else:
        names = (label,) if label else bank_files.LABELS
        known = {"class_names": class_names} if class_names else {}
        values = label_names(bank_files.pick(contents, names, path), known | contents, path)
    count = len(features_of(contents, path))
    if len(values) != count:
        raise ValueError(
            f"{labels or path} must have one label for each row of {path}, {count}, "
            f"got {len(values)}"
        )
    return values


def labels_if_any(
    path: Path,
    labels: Path | None,
    label: str | None,
    truth: str | None,
    class_names: tuple[str, ...],
) -> list[str]:
    """Like `labels_of`, for a file that may have no labels; `truth` does not count as labels."""
    contents = read(path, label)
    known = any(name in contents and name != truth for name in bank_files.LABELS)
    if labels is None and label is None and not known:
        return [""] * len(features_of(contents, path))
    return labels_of(contents, path, labels, label, class_names)


class UnlabelledArrays:
    """Embeddings to classify; rows are read on demand if the file format allows it.

    Parameters
    ----------
    path : Path
    truth : str or None
        The array of true labels.
    class_names : tuple of str
        Meaning of integer labels, if the file does not give it.
    rows : sequence of int or None
        Which rows; None: all.
    """

    def __init__(
        self,
        path: Path,
        truth: str | None,
        class_names: tuple[str, ...],
        rows: Sequence[int] | None = None,
    ) -> None:
        contents = read(path, truth)
        self.features = features_of(contents, path)
        self.rows = range(len(self.features)) if rows is None else rows
        self.truth: list[str] | None = None
        if truth is not None:
            values = bank_files.pick(contents, (truth,), path)
            self.truth = label_names(values, {"class_names": class_names} | contents, path)
            if len(self.truth) != len(self.features):
                raise ValueError(
                    f"{path} must have one {truth!r} for each row, {len(self.features)}, "
                    f"got {len(self.truth)}"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self), READ_AT_ONCE):
            rows = self.rows[start : start + READ_AT_ONCE]
            yield Batch(
                [str(row) for row in rows],
                self.features[torch.tensor(rows, dtype=torch.int64)].float(),
                [""] * len(rows),
                None if self.truth is None else [self.truth[row] for row in rows],
            )


def read(path: Path, other: str | None) -> dict[str, Any]:
    """Named arrays, memory-mapped if possible; `other` is read in addition to the known names."""
    if path.suffix == ".npy":
        return {"features": archives.read_npy(path, mmap=True)}
    if path.suffix == ".safetensors":
        return bank_files.read_safetensors(path, mmap=True)
    if path.suffix in (".pt", ".pth"):
        return dict(bank_files.named_contents(bank_files.read_torch(path), path))
    wanted = bank_files.KNOWN | ({other} if other else set())
    try:
        return archives.read_npz(path, wanted, bank_files.FEATURES)
    except UnmappableError:  # compressed
        return archives.read_npz(path, wanted)


def features_of(contents: dict[str, Any], path: Path) -> Tensor:
    """[N, D] floating point."""
    features = bank_files.as_tensor(
        bank_files.pick(contents, bank_files.FEATURES, path), "features", path
    )
    if features.dim() != 2 or not features.is_floating_point() or features.shape[1] < 1:
        raise ValueError(
            f"{path} must have floating-point features of shape [N, D], "
            f"got {check.plain(features.dtype)} of shape {list(features.shape)}"
        )
    return features


def label_names(values: Any, contents: dict[str, Any], path: Path) -> list[str]:
    """Labels as text, empty if missing: names as they are, numbers by the names of the classes.

    The rule is that of `research.data.labels`.
    """
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ValueError(f"{path} must have labels of shape [N], got {list(shape)}")
    texts = bank_files.label_texts(values)
    if texts is not None:
        return texts
    try:
        numbers = whole_numbers(bank_files.as_tensor(values, "labels", path)).tolist()
    except ValueError as error:
        known = str(error).startswith(str(path))
        raise ValueError(str(error) if known else f"{path}: {error}") from error
    low, high = min(numbers, default=0), max(numbers, default=0)
    if low < -1:
        raise ValueError(f"{path} must have labels of at least 0, or -1 for no label, got {low}")
    given = next((contents[name] for name in bank_files.CLASS_NAMES if name in contents), None)
    if given is None:
        return [label_text(number) for number in numbers]
    names = bank_files.as_names(given, "class_names", path).tolist()
    if high >= len(names):
        raise ValueError(f"{path} must have a name for every label, got {len(names)} and {high}")
    return [names[number] if number >= 0 else "" for number in numbers]


def read_labels(path: Path) -> list[str]:
    """Labels from `.npy`, or one per line of a text file; an empty line is a missing label."""
    if path.suffix == ".npy":
        return label_names(archives.read_npy(path), {}, path)
    with readable(path, "a text file with one label per line"), open_regular(path) as file:
        lines = decoded(file.read()).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [label_text(line) for line in lines]
