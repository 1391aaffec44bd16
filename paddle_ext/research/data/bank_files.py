"""Read and write feature banks: `.npz`, `.safetensors`, a folder of `.npy`, `.pt`, and pickles.

`read` returns the arguments of `FeatureBank`. Files of other programs use other names and forms;
all known ones are here. Code in a file is never run.
"""

from __future__ import annotations

import json
import numbers
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import check
from ...files import RefusedError, check_regular, open_regular, readable, replacing, write_tensors
from ...libraries import library
from . import archives, plain_pickle
from .bounds import check_expanded, check_room
from .labels import check_count, label_text, numbered, sorted_names, whole_numbers

FEATURES = ("features", "concat_features")
LABELS = ("labels", "concat_labels")
CLASS_NAMES = ("class_names", "wnids")
BASE_MEAN = ("base_mean", "train_mean")
NO_CLASS = "no class"  # the split of rows labelled -1, if classes have splits
KNOWN = {*FEATURES, *LABELS, *CLASS_NAMES, *BASE_MEAN, "split", "class_split"}
PICKLES = (".plk", ".pkl", ".pickle")
ALIGNMENT = 64  # of arrays in a file; a mapped tensor must be aligned to its dtype
ALIGNMENT_FIELD = 0xD935  # of a zip entry; other readers skip it


def read(path: Path, mmap: bool) -> dict[str, Any]:
    """The arguments of `FeatureBank`."""
    if path.is_dir():
        return arguments(read_folder(path, mmap), path)
    if path.suffix == ".npz":
        return arguments(read_npz(path, mmap), path)
    if path.suffix == ".safetensors":
        return arguments(read_safetensors(path, mmap), path)
    if path.suffix in (".pt", ".pth"):
        parts = arguments(named_contents(read_torch(path), path), path)
        if not mmap:
            parts = {k: x.clone() if isinstance(x, Tensor) else x for k, x in parts.items()}
        return parts
    if path.suffix in PICKLES:
        if mmap:
            raise ValueError(f"mmap must be False for a pickle, got True for {path}")
        return arguments(named_contents(read_pickle(path), path), path)
    raise ValueError(
        "path must be a folder of .npy files or end in .npz, .safetensors, .pt, .pth, "
        f"{', '.join(PICKLES)}, got {str(path)!r}"
    )


def write(path: Path, **parts: Any) -> None:
    writers: dict[str, Callable[..., None]] = {".npz": write_npz, ".safetensors": write_safetensors}
    if path.suffix not in writers:
        raise ValueError(f"path must end in .npz or .safetensors, got {str(path)!r}")
    parts = {name: part for name, part in parts.items() if part is not None}
    tensors = {
        name: part.detach().cpu().contiguous()
        for name, part in parts.items()
        if isinstance(part, Tensor)
    }
    writers[path.suffix](path, tensors, parts.get("class_names"), parts.get("split"))


# --- contents of a file -------------------------------------------------------------------------


def arguments(contents: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of `FeatureBank` from named contents; unknown names are ignored."""
    names = None
    for name in CLASS_NAMES:
        if name in contents:
            names = as_names(contents[name], name, path).tolist()
            break
    features = as_tensor(pick(contents, FEATURES, path), "features", path)
    labels, names = labels_and_names(pick(contents, LABELS, path), names, path)
    parts: dict[str, Any] = {"features": features, "labels": labels}
    if names is not None:
        parts["class_names"] = names
    for name in BASE_MEAN:
        if name in contents:
            parts["base_mean"] = as_tensor(contents[name], name, path)
            break
    if "split" in contents:
        parts["split"] = as_names(contents["split"], "split", path)
    elif "class_split" in contents:
        by_class = as_names(contents["class_split"], "class_split", path)
        if labels.numel() and (labels.min() < -1 or labels.max() >= len(by_class)):
            raise ValueError(
                f"{path} must have a class_split for every label, got {len(by_class)} names and "
                f"labels from {labels.min()} to {labels.max()}"
            )
        # The last one is that of the label -1.
        parts["split"] = names_by_row(np.append(by_class, NO_CLASS), labels.numpy(), path)
    return parts


def labels_and_names(
    value: Any, names: list[str] | None, path: Path
) -> tuple[Tensor, list[str] | None]:
    """Labels as numbers [N], and the class names, derived from text labels."""
    with naming(path):
        texts = label_texts(value)
        if texts is not None:
            names = sorted_names(texts) if names is None else names
            return numbered(texts, names), names
        labels = whole_numbers(as_tensor(value, "labels", path))
        check_count(int(labels.max()) if labels.numel() else 0)
    return labels, names


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make the message of every ValueError begin with the path."""
    try:
        yield
    except ValueError as error:
        known = str(error).startswith(str(path))
        raise ValueError(str(error) if known else f"{path}: {error}") from error


def label_texts(value: Any) -> list[str] | None:
    """Labels as text if some of them are text; None if they are numbers."""
    if isinstance(value, list | tuple):
        if any(isinstance(item, str | bytes) or item is None for item in value):
            return [label_text(item) for item in value]
        return None
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "USO":
        return [label_text(item) for item in value]
    return None


def names_by_row(
    names: npt.NDArray[np.str_], index: npt.NDArray[Any], path: Path
) -> npt.NDArray[np.str_]:
    """The name of each row, by index; every row takes as much memory as the longest name."""
    check_room(path, len(index) * names.itemsize, path.stat().st_size, "names of rows")
    found: npt.NDArray[np.str_] = names[index]
    return found


def pick(contents: Mapping[str, Any], names: Sequence[str], path: Path) -> Any:
    for name in names:
        if name in contents:
            return contents[name]
    there = ", ".join(repr(name) for name in contents) or "nothing"
    expected = " or ".join(map(repr, names))
    raise ValueError(f"{path} must have {expected}, got {there}")


def as_tensor(value: Any, name: str, path: Path) -> Tensor:
    """A dense tensor of numbers from what a file holds."""
    if isinstance(value, Tensor):
        try:
            check.dense_tensor(repr(name), value)
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from error
        return value.detach()
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError("strings" if array.dtype.kind in "US" else str(array.dtype))
        if array.dtype in (np.uint16, np.uint32, np.uint64):
            if array.max(initial=0) > 2**63 - 1:
                raise ValueError(f"{array.max()}, which is too large")
            array = array.astype(np.int64)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} must have numbers as {name!r}, got {error}") from error


def as_names(value: Any, name: str, path: Path) -> npt.NDArray[np.str_]:
    """An array of strings [n] from what a file holds."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        return np.atleast_1d(value)
    if isinstance(value, np.ndarray) and value.ndim <= 1 and value.dtype.kind in "SO":
        value = np.atleast_1d(value).tolist()
    if not isinstance(value, list | tuple):
        got = value.dtype if isinstance(value, np.ndarray) else check.kind(value)
        raise RefusedError(f"{path} must have strings as {name!r}, got {got}")
    texts = []
    for item in value:
        text = item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else item
        if not isinstance(text, str):
            raise RefusedError(f"{path} must have strings as {name!r}, got {check.kind(item)}")
        texts.append(text)
    longest = max(map(len, texts), default=0)
    check_room(path, 4 * len(texts) * longest, path.stat().st_size, f"names {name!r}")
    return np.array(texts, dtype=np.str_)


def named_contents(value: object, path: Path) -> Mapping[str, Any]:
    """What another program saved, as arrays by name.

    Known forms: a mapping of names to arrays; a pair of features and labels; a mapping of classes
    to their rows; and TIM's, with one such mapping for "support" and one for "query".
    """
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"features": value[0], "labels": value[1]}
    if isinstance(value, dict) and value:
        if all(isinstance(key, numbers.Integral) for key in value):
            return stacked_classes(value, path)
        if all(isinstance(value.get(name), dict) for name in ("support", "query")):
            parts = {name: stacked_classes(value[name], path) for name in ("support", "query")}
            return {
                **{key: item for key, item in value.items() if isinstance(key, str)},
                "features": torch.cat([part["features"] for part in parts.values()]),
                "labels": torch.cat([part["labels"] for part in parts.values()]),
                "split": np.repeat(list(parts), [len(part["labels"]) for part in parts.values()]),
            }
        return {str(key): item for key, item in value.items()}
    raise ValueError(
        f"{path} must hold names and arrays, or features and labels, or classes and their rows, "
        f"got {type(value).__name__}"
    )


def stacked_classes(classes: Mapping[Any, Any], path: Path) -> dict[str, Tensor]:
    """Features and labels from the rows of each class, [n, D] or a list of [D] or [1, D]."""
    features, labels = [], []
    for label, rows in classes.items():
        check_count(abs(int(label)))
        for part in rows if isinstance(rows, list | tuple) else [rows]:
            x = as_tensor(part, f"rows of class {label}", path)
            x = x.reshape(1, -1) if x.dim() <= 1 else x
            features.append(x)
            labels.append(torch.full((len(x),), int(label)))
    if len({x.shape[1:] for x in features}) != 1:
        raise ValueError(
            f"{path} must have rows of one shape, got {len(features)} of several or none"
        )
    return {"features": torch.cat(features), "labels": torch.cat(labels)}


# --- npz, npy -----------------------------------------------------------------------------------


def read_npz(path: Path, mmap: bool) -> dict[str, Any]:
    """The known arrays of an archive; the names of the others, for messages."""
    return archives.read_npz(path, KNOWN, FEATURES if mmap else ())


def write_npz(
    path: Path,
    tensors: Mapping[str, Tensor],
    class_names: Sequence[str] | None,
    split: npt.NDArray[np.str_] | None,
) -> None:
    """Uncompressed, with every array aligned for mapping."""
    if tensors["features"].dtype == torch.bfloat16:
        raise ValueError(f"path must end in .safetensors for bfloat16 features, got {str(path)!r}")
    arrays = {name: x.numpy() for name, x in tensors.items()}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, dtype=np.str_)
    if split is not None:
        arrays["split"] = split
    with replacing(path) as new, new.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            large = array.nbytes > 2**30  # then the header has 20 more bytes
            here = file.tell() + 30 + len(entry.filename) + (20 if large else 0) + 4
            padding = -here % ALIGNMENT
            entry.extra = struct.pack("<HH", ALIGNMENT_FIELD, padding) + bytes(padding)
            with archive.open(entry, "w", force_zip64=large) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_folder(path: Path, mmap: bool) -> dict[str, Any]:
    contents: dict[str, Any] = {}
    for file in sorted(path.glob("*.npy")):
        if file.stem in KNOWN:
            contents[file.stem] = archives.read_npy(file, mmap=mmap and file.stem in FEATURES)
    return contents


# --- safetensors --------------------------------------------------------------------------------


def safetensors() -> Any:
    return library("safetensors.torch", "a .safetensors file", "safetensors")


def read_safetensors(path: Path, mmap: bool) -> dict[str, Any]:
    module = safetensors()
    check_regular(path)
    with (
        readable(path, "a complete .safetensors file"),
        module.safe_open(path, framework="pt") as file,
    ):
        # A tensor of the library is a view of the mapped file.
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
        texts = {
            name: json.loads(metadata[name])
            for name in ("class_names", "splits")
            if name in metadata
        }
    contents: dict[str, Any] = tensors if mmap else {k: x.clone() for k, x in tensors.items()}
    if "class_names" in texts:
        contents["class_names"] = texts["class_names"]
    if "split_index" in contents and "splits" in texts:
        names = as_names(texts["splits"], "splits", path)
        index = whole_numbers(contents["split_index"]).numpy()
        if index.size and (index.min() < 0 or index.max() >= len(names)):
            raise ValueError(
                f"{path} must have a name for every split, got {len(names)} names and split "
                f"{index.max()}"
            )
        contents["split"] = names_by_row(names, index, path)
    return contents


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    class_names: Sequence[str] | None,
    split: npt.NDArray[np.str_] | None,
) -> None:
    """Strings are JSON metadata: `class_names`, and `splits`, indexed by `split_index`."""
    module = safetensors()
    stored, texts = dict(tensors), {}
    if class_names is not None:
        texts["class_names"] = json.dumps(list(class_names))
    if split is not None:
        names, index = np.unique(split, return_inverse=True)
        texts["splits"] = json.dumps(names.tolist())
        stored["split_index"] = torch.from_numpy(index.astype(np.int32))
    write_tensors(path, module, stored, texts)


# --- torch, pickle ------------------------------------------------------------------------------


def read_torch(path: Path) -> object:
    """The output of `torch.save`; its tensors are views of the mapped file from torch 1.6 on.

    So a tensor cannot be larger than the file, whatever size it claims.
    """
    check_regular(path)
    try:
        with readable(path, "a complete file of torch.save"):
            mapped = zipfile.is_zipfile(path)
            if mapped:
                refuse_compressed(path)
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ValueError as error:
        if not isinstance(error.__cause__, pickle.UnpicklingError):
            raise
        found = re.search(r"GLOBAL (\S+)", str(error.__cause__))
        raise ValueError(
            f"{path} must hold only tensors, strings, numbers and containers of them, "
            f"got {found[1] if found else 'something else'}"
        ) from error
    check_expanded(path, value)
    return value


def refuse_compressed(path: Path) -> None:
    """torch compresses nothing, so a compressed part is not a tensor."""
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("compressed parts")


def read_pickle(path: Path) -> object:
    with open_regular(path) as file:
        try:
            value = plain_pickle.load(file)
        except ValueError as error:
            raise ValueError(f"{path} is not a pickle of plain data: {error}") from error
    check_expanded(path, value)
    return value
