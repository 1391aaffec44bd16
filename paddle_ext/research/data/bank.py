"""A feature bank: the features of a dataset, one row per sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import arrays, check
from ...files import replacing, write_tensors
from ...labels import check_count, check_one_each, numbered, sorted_names

TextArray: TypeAlias = "npt.NDArray[np.str_]"

ROWS_AT_ONCE = 2**16  # checked or digested: a mapped bank may exceed the memory
NO_CLASS = "no class"  # the split of rows labelled -1, if classes have splits


class FeatureBank:
    """Features, labels, and related data.

    Parameters
    ----------
    features : Tensor [N, D]
        Floating point.
    labels : Tensor [N]
        Integers in [0, K); -1 for a row without a class.
    class_names : sequence of K str, optional
        Default: as many classes as the largest label + 1, without names.
    split : str or sequence of N str, optional
        The part of the dataset that each row, or every row, belongs to.
    base_mean : Tensor [D], optional
        Mean feature of the base classes, which the network was trained on.

    Examples
    --------
    >>> import torch
    >>> labels = torch.tensor([0, 0, 1, 1, 2, -1])
    >>> names = ["cat", "dog", "owl"]
    >>> bank = FeatureBank(torch.randn(6, 4), labels, names, ["a", "b", "a", "b", "b", "b"])
    >>> bank
    FeatureBank(6 rows, 4 features float32, 3 classes, splits a b)
    >>> bank.take_classes(["owl", "cat"]).labels
    tensor([1, 1, 0])
    >>> bank.rows("a")
    tensor([0, 2])
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        class_names: Sequence[str] | None = None,
        split: str | Sequence[str] | TextArray | None = None,
        base_mean: Tensor | None = None,
    ) -> None:
        features, labels, base_mean = check.tensors(features, labels, base_mean)
        check.features("features", features)
        check.integers("labels", labels)
        for name, given in (("features", features), ("labels", labels)):
            check.dense_tensor(name, given)
        if features.dim() != 2 or min(features.shape) < 1:
            raise ValueError(
                f"features must have shape [N, D] with N and D at least 1, "
                f"got {list(features.shape)}"
            )
        N, D = features.shape
        check_one_each("labels", "label", "row of features", labels.shape, N)
        self.features = features
        self.labels = labels.to(features.device, torch.int64)
        self.class_names = None if class_names is None else checked_names(class_names)
        low, high = (int(x) for x in torch.aminmax(self.labels))
        check_count(high)
        self.num_classes = max(0, high + 1) if self.class_names is None else len(self.class_names)
        if low < -1 or high >= self.num_classes:
            raise ValueError(
                f"labels must be in [0, {self.num_classes}), or -1 for no class, "
                f"got {low if low < -1 else high}"
            )
        self.split = None
        if split is not None:
            self.split = np.full(N, split) if isinstance(split, str) else np.asarray(split)
            if self.split.dtype.kind != "U":
                raise TypeError(f"split must be strings, got {self.split.dtype}")
            check_one_each("split", "name", "row of features", self.split.shape, N)
        if base_mean is not None:
            check.features("base_mean", base_mean)
            check.dense_tensor("base_mean", base_mean)
            check_one_each("base_mean", "number", "feature", base_mean.shape, D)
            base_mean = base_mean.to(features.device)
        self.base_mean = base_mean

    def __len__(self) -> int:
        return self.features.shape[0]

    def __repr__(self) -> str:
        N, D = self.features.shape
        parts = [f"{N} rows", f"{D} features {check.plain(self.features.dtype)}"]
        parts.append(f"{self.num_classes} classes")
        if self.split is not None:
            parts.append(f"splits {' '.join(self.splits)}")
        if self.features.is_cuda:
            parts.append(str(self.features.device))
        return f"FeatureBank({', '.join(parts)})"

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in alphabetical order; none if the bank has no splits."""
        return () if self.split is None else tuple(str(name) for name in np.unique(self.split))

    def counts(self) -> Tensor:
        """Rows of each class, [K], without those that have no class."""
        return torch.bincount(self.labels[self.labels >= 0], minlength=self.num_classes)

    def check_finite(self) -> FeatureBank:
        """Raise if a number is NaN, infinite or too large to sum; returns the bank."""
        for name, x in (("features", self.features), ("base_mean", self.base_mean)):
            if x is None:
                continue
            most = check.LARGEST_FEATURE[x.dtype]
            for rows in torch.split(x, ROWS_AT_ONCE):
                low, high = torch.aminmax(rows)
                if not (low >= -most and high <= most):  # false for NaN
                    check.raise_too_large(name, x, most)
        return self

    def rows(self, split: str | Iterable[str]) -> Tensor:
        """Rows of a split, or of several: int64, increasing, on the CPU."""
        wanted = [split] if isinstance(split, str) else list(split)
        for name in wanted:
            if name not in self.splits:
                there = ", ".join(map(repr, self.splits)) or "none (the bank has no splits)"
                raise check.ArgumentValueError("split", f"must be one of {there}, got {name!r}")
        if not wanted:
            raise ValueError("split must have at least one name, got none")
        return torch.from_numpy(np.flatnonzero(np.isin(self.split, wanted)))  # type: ignore[arg-type]

    def subset(
        self, rows: Tensor | None = None, *, split: str | Iterable[str] | None = None
    ) -> FeatureBank:
        """Some rows: by index [n] or mask [N], or by split. The classes keep their numbers."""
        if rows is not None and split is None:
            rows = checked_rows(rows, len(self))
        elif split is not None and rows is None:
            rows = self.rows(split)
        else:
            got = "neither" if rows is None else "both"
            raise ValueError(f"rows or split must be given, got {got}")
        return self._selected(rows, self.labels, self.class_names)

    def take_classes(self, classes: Sequence[int | str] | Tensor | None = None) -> FeatureBank:
        """Some classes, by label or name, with their rows; numbered in the given order.

        None selects all classes that have rows, in order; rows without a class are dropped.
        """
        if classes is None:
            chosen = self.counts().nonzero().view(-1).tolist()
        else:
            if isinstance(classes, str | int):
                raise TypeError(f"classes must be a sequence, got {check.kind(classes)}")
            listed = classes.tolist() if isinstance(classes, Tensor) else list(classes)
            chosen = [self._label(item) for item in listed]
        if not chosen:
            raise ValueError("classes must have at least one class, got none")
        if len(set(chosen)) < len(chosen):
            twice = next(label for label in chosen if chosen.count(label) > 1)
            raise ValueError(f"classes must not have a class twice, got {twice} more than once")
        number = torch.full((self.num_classes + 1,), -1, device=self.labels.device)  # last: of -1
        number[chosen] = torch.arange(len(chosen), device=number.device)
        labels = number[self.labels]
        rows = (labels >= 0).nonzero().view(-1)
        if len(rows) == 0:
            raise ValueError(f"classes must have rows, got only empty classes, {chosen}")
        names = self.class_names
        return self._selected(rows, labels, None if names is None else [names[k] for k in chosen])

    def _label(self, item: object) -> int:
        if isinstance(item, str):
            if self.class_names is None or item not in self.class_names:
                raise ValueError(f"classes must be labels or names of this bank, got {item!r}")
            return self.class_names.index(item)
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise TypeError(f"classes must be labels or names, got {check.kind(item)}")
        check.require_in_range("classes", int(item), int(item), self.num_classes)
        return int(item)

    def _selected(self, rows: Tensor, labels: Tensor, names: Sequence[str] | None) -> FeatureBank:
        split = None if self.split is None else self.split[rows.cpu().numpy()]
        rows = rows.to(self.features.device, torch.int64)
        return FeatureBank(self.features[rows], labels[rows], names, split, self.base_mean)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> FeatureBank:
        """The same bank on another device, or with features (and base mean) in another dtype."""
        features = self.features.to(device=device, dtype=dtype)
        mean = None if self.base_mean is None else self.base_mean.to(device=device, dtype=dtype)
        return FeatureBank(features, self.labels, self.class_names, self.split, mean)

    def save(self, path: str | Path) -> None:
        """Write a ``.npz`` or a ``.safetensors`` file; an interrupted call leaves the old one.

        `load` can map the second into memory, and only that can hold bfloat16 features.
        """
        path = Path(path)
        if path.suffix not in (".npz", ".safetensors"):
            raise ValueError(f"path must end in .npz or .safetensors, got {str(path)!r}")
        if path.suffix == ".npz" and self.features.dtype == torch.bfloat16:
            raise ValueError(
                f"path must end in .safetensors for bfloat16 features, got {str(path)!r}"
            )
        parts = {"features": self.features, "labels": self.labels, "base_mean": self.base_mean}
        given = {name: x for name, x in parts.items() if x is not None}
        tensors = {name: x.detach().cpu().contiguous() for name, x in given.items()}
        if path.suffix == ".npz":
            stored: dict[str, Any] = {name: x.numpy() for name, x in tensors.items()}
            if self.class_names is not None:
                stored["class_names"] = np.array(self.class_names, dtype=np.str_)
            if self.split is not None:
                stored["split"] = self.split
            with replacing(path) as new, new.open("wb") as file:
                np.savez(file, **stored)
            return
        texts = {}  # strings are JSON metadata
        if self.class_names is not None:
            texts["class_names"] = json.dumps(self.class_names)
        if self.split is not None:
            names, index = np.unique(self.split, return_inverse=True)
            texts["splits"] = json.dumps(names.tolist())
            tensors["split_index"] = torch.from_numpy(index.astype(np.int32))
        write_tensors(path, arrays.safetensors(), tensors, texts)

    @classmethod
    def load(cls, path: str | Path, *, mmap: bool = False) -> FeatureBank:
        """Read a bank; code in the file is never run.

        Parameters
        ----------
        path : str or Path
            A ``.npz`` or ``.safetensors`` file with ``features`` and ``labels``, and optionally
            ``class_names`` (or ``wnids``), ``split`` (or ``class_split``, one per class) and
            ``base_mean``; a folder with the same as ``.npy`` files; or a ``.pt`` or ``.pth`` file
            of plain tensors.
        mmap : bool
            Leave the features on disk and read them on demand. Not for ``.npz``.
        """
        path = Path(path)
        contents = read_contents(path, mmap)
        try:
            return cls(**bank_arguments(contents, path))
        except (TypeError, ValueError) as error:  # an invalid file is an invalid value
            if str(error).startswith(str(path)):
                raise
            raise ValueError(f"{path} is not a feature bank: {error}") from error


def read_contents(path: Path, mmap: bool) -> dict[str, Any]:
    """The arrays of a bank by name."""
    arrays.refuse_pickle(path)
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.npy")) if file.stem in arrays.BANK_NAMES]
        mapped, kept = {x.stem: arrays.map_npy(x) for x in files}, arrays.FEATURES if mmap else ()
        return {name: x if name in kept else np.array(x) for name, x in mapped.items()}
    if path.suffix == ".npz":
        if mmap:
            raise ValueError(
                "mmap must be False for .npz (save the bank as .safetensors instead), "
                f"got True for {path}"
            )
        return arrays.read_npz(path, arrays.BANK_NAMES)
    if path.suffix == ".safetensors":
        return arrays.read_safetensors(path, mmap=mmap)
    if path.suffix in (".pt", ".pth"):
        contents = arrays.named_contents(arrays.read_torch(path), path)
        tensors = {
            k: arrays.as_tensor(contents[k], k, path)
            for k in arrays.BANK_NAMES & contents.keys()
            if isinstance(contents[k], Tensor)
        }
        return contents | (tensors if mmap else {k: x.clone() for k, x in tensors.items()})
    raise ValueError(
        "path must be a folder of .npy files or end in .npz, .safetensors, .pt, .pth, "
        f"got {str(path)!r}"
    )


def bank_arguments(contents: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of `FeatureBank` from named contents; unknown names are ignored."""
    names = next((contents[name] for name in arrays.CLASS_NAMES if name in contents), None)
    if names is not None:
        names = arrays.as_names(names, "class_names", path).tolist()
    features = arrays.as_tensor(arrays.pick(contents, arrays.FEATURES, path), "features", path)
    labels = arrays.pick(contents, arrays.LABELS, path)
    texts = arrays.label_texts(labels)
    if texts is None:
        labels = arrays.label_numbers(labels, path)
    else:
        names = sorted_names(texts) if names is None else names
        labels = numbered(texts, names)
    parts: dict[str, Any] = {"features": features, "labels": labels, "class_names": names}
    for name in arrays.BASE_MEAN:
        if name in contents:
            parts["base_mean"] = arrays.as_tensor(contents[name], name, path)
            break
    if "split" in contents:
        parts["split"] = arrays.as_names(contents["split"], "split", path)
    elif "class_split" in contents:
        by_class = arrays.as_names(contents["class_split"], "class_split", path)
        if labels.numel() and (labels.min() < -1 or labels.max() >= len(by_class)):
            raise ValueError(
                f"{path} must have a class_split for every label, got {len(by_class)} names and "
                f"labels from {labels.min()} to {labels.max()}"
            )
        # The last one is that of the label -1.
        parts["split"] = arrays.names_by_row(np.append(by_class, NO_CLASS), labels.numpy(), path)
    return parts


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str | AbstractSet | Mapping):
        raise TypeError(f"class_names must be a sequence of strings, got {check.kind(names)}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"class_names must be strings, got {check.kind(name)}")
        if "\0" in name:  # which no file can hold
            raise ValueError(f"class_names must not have a NUL, got {name!r}")
    return tuple(map(str, names))


def checked_rows(rows: Tensor, N: int) -> Tensor:
    """Row indices, from indices or a mask."""
    (rows,) = check.tensors(rows)
    if getattr(rows, "dtype", None) == torch.bool:
        if rows.shape != (N,):
            raise ValueError(f"rows must be a mask of shape [{N}], got {list(rows.shape)}")
        rows = rows.nonzero().view(-1)
    return check.row_numbers("rows", rows, N)
