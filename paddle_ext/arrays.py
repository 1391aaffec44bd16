"""Arrays by name in the files of any program: `.npz`, `.npy`, `.safetensors`, `.pt`.

Nothing in a file is ever run, and no file may take much more memory than its size. The names are
those that programs use for features, labels and classes.
"""

import json
import numbers
import pickle
import re
import zipfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import check
from .files import RefusedError, check_regular, check_room, open_regular, readable
from .labels import check_count, label_text, whole_numbers
from .libraries import library

FEATURES = ("features", "concat_features")
LABELS = ("labels", "concat_labels")
CLASS_NAMES = ("class_names", "wnids")
BASE_MEAN = ("base_mean", "train_mean")
BANK_NAMES = {*FEATURES, *LABELS, *CLASS_NAMES, *BASE_MEAN, "split", "class_split"}
PLAIN = "a complete {} file of plain arrays"
PICKLES = (".plk", ".pkl", ".pickle")


def read_npz(path: Path, wanted: Container[str] | None = None) -> dict[str, Any]:
    """The arrays of an archive by name; None in place of arrays that are not `wanted`."""
    contents: dict[str, Any] = {}
    with (
        readable(path, PLAIN.format(".npz")),
        open_regular(path) as file,
        np.lib.npyio.NpzFile(file, allow_pickle=False) as archive,
    ):
        for entry in archive.zip.infolist():
            name = entry.filename.removesuffix(".npy")
            contents[name] = None
            if wanted is None or name in wanted:
                check_room(path, entry.file_size, entry.compress_size, f"an array {name!r}")
                with no_objects(path, name):
                    contents[name] = archive[name]
                if not isinstance(contents[name], np.ndarray):
                    raise TypeError(f"{entry.filename} is not an array")
    return contents


def map_npy(path: Path, mode: Literal["r", "c"] = "c") -> npt.NDArray[Any]:
    """The array of a file; by default mapped copy-on-write, so that the file never changes."""
    check_regular(path)
    with readable(path, PLAIN.format(".npy")), no_objects(path, path.stem):
        return np.lib.format.open_memmap(path, mode)


@contextmanager
def no_objects(path: Path, name: str) -> Iterator[None]:
    """NumPy stores arrays of objects as pickles, which can run any code."""
    try:
        yield
    except ValueError as error:
        if "object" not in str(error).lower():
            raise
        raise RefusedError(
            f"{path} must have numbers or texts as {name!r}, got Python objects: save texts as "
            "array.astype(str)"
        ) from error


def read_safetensors(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """Tensors by name, and the names of classes and splits, which are JSON in the metadata."""
    module = safetensors()
    check_regular(path)
    with (
        readable(path, "a complete .safetensors file"),
        module.safe_open(path, framework="pt") as file,
    ):
        # A tensor of the library is a view of the mapped file.
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
        known = [name for name in ("class_names", "splits") if name in metadata]
        texts = {name: json.loads(metadata[name]) for name in known}
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


def safetensors() -> Any:
    return library("safetensors.torch", "a .safetensors file", "safetensors")


def read_torch(path: Path) -> object:
    """The output of `torch.save`, mapped: no tensor can be larger than the file."""
    check_regular(path)
    with readable(path, "a complete file of torch.save"):
        mapped = zipfile.is_zipfile(path)
        if mapped:
            with zipfile.ZipFile(path) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise ValueError("compressed parts, which torch does not write")
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            refused = re.search(r"GLOBAL (\S+)", str(error))
            raise RefusedError(
                f"{path} must hold only tensors, strings, numbers and containers of them, "
                f"got {refused[1] if refused else 'something else'}"
            ) from error


def refuse_pickle(path: Path) -> None:
    if path.suffix in PICKLES:
        raise ValueError(
            f"{path} must not be a pickle, which runs code when it is read: convert it to .npz by "
            "the script of docs/data.md, on a machine you trust"
        )


def named_contents(value: object, path: Path) -> dict[str, Any]:
    """A torch file as arrays by name: names, or features and labels, or classes and rows."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"features": value[0], "labels": value[1]}
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f"{path} must hold names and arrays, or features and labels, or classes and their "
            f"rows, got {type(value).__name__}"
        )
    if not all(isinstance(key, numbers.Integral) for key in value):
        return {str(key): item for key, item in value.items()}
    features = [as_tensor(rows, f"rows of class {label}", path) for label, rows in value.items()]
    if len({x.shape[1:] for x in features}) > 1 or features[0].dim() != 2:
        raise ValueError(f"{path} must have rows [n, D] of each class, all with the same D")
    for label in value:
        check_count(abs(int(label)))
    labels = torch.tensor([*value]).repeat_interleave(torch.tensor([len(x) for x in features]))
    return {"features": torch.cat(features), "labels": labels}


def pick(contents: Mapping[str, Any], names: Sequence[str], path: Path) -> Any:
    for name in names:
        if name in contents:
            return contents[name]
    there = ", ".join(repr(name) for name in contents) or "nothing"
    raise ValueError(f"{path} must have {' or '.join(map(repr, names))}, got {there}")


def as_tensor(value: Any, name: str, path: Path) -> Tensor:
    """A dense tensor of numbers from what a file holds."""
    try:
        if isinstance(value, Tensor):
            check.dense_tensor(repr(name), value)
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise ValueError("a tensor that repeats its numbers")
            return value.detach()
        if isinstance(value, list | tuple) and not all(isinstance(x, int | float) for x in value):
            raise TypeError("a list of other things")
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
    if isinstance(value, np.ndarray) and value.dtype.kind in "US" and value.ndim <= 1:
        if value.dtype.kind == "U":
            return np.atleast_1d(value)
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


def names_by_row(
    names: npt.NDArray[np.str_], index: npt.NDArray[Any], path: Path
) -> npt.NDArray[np.str_]:
    """The name of each row, by index; every row takes as much memory as the longest name."""
    check_room(path, len(index) * names.itemsize, path.stat().st_size, "names of rows")
    return np.asarray(names[index])


def label_texts(value: Any) -> list[str] | None:
    """Labels as text if some of them are text; None if they are numbers."""
    if isinstance(value, list | tuple):
        named = any(isinstance(item, str | bytes | None) for item in value)
        plain = all(isinstance(item, str | bytes | int | float | None) for item in value)
        return [label_text(item) for item in value] if named and plain else None
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "US":
        return [label_text(item) for item in value]
    return None


def label_numbers(value: Any, path: Path) -> Tensor:
    """Labels that are numbers, [N] int64; the errors name the file."""
    numbers_given = as_tensor(value, "labels", path)
    try:
        return whole_numbers(numbers_given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
