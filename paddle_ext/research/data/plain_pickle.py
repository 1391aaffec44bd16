"""Reads pickles of plain data without running anything they name.

A pickle is a program that may call any function. The interpreter here is Python's own `Unpickler`,
with a list of allowed names: lists, tuples, dictionaries, strings and numbers, NumPy arrays and
torch tensors; any other name is rejected.

The allowed names map to stand-ins in this file, which use only sizes and bytes. NumPy's and torch's
own functions are not safe: `numpy.ndarray` and `_reconstruct` allocate an array as large as the
pickle claims, `_load_from_bytes` reads another pickle without any list, and a pickle may set the
attributes of anything it can name. `torch.load(weights_only=True)` has such stand-ins too, but
reads only the output of `torch.save`.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # of a file in the format of torch.save before 1.6
UNKNOWN_TENSOR = "it must have tensors as torch pickles them, got another form"
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def load(file: BinaryIO) -> object:
    """The data of a pickle: containers, strings, numbers, arrays and tensors (on the CPU).

    Raises
    ------
    ValueError
        One sentence on why it is rejected or cannot be read.
    """
    try:
        return finished(unpickled(file), {})
    except NotPlainError:
        raise
    except Exception as error:  # random bytes can raise anything in an unpickler
        raise ValueError(f"it must be an intact pickle, got {type(error).__name__}") from error


class NotPlainError(ValueError):
    """The pickle contains something other than plain data."""


class Made:
    """An array, a number or a tensor; wrapped, so that a pickle cannot call its methods."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __setstate__(self, state: object) -> None:
        raise NotPlainError("it must hold only plain data, got changes of an array")


class StandIn:
    """The stand-in for a name in a pickle: can be called, and nothing else."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        plain = [item.value if isinstance(item, Made) else item for item in arguments]
        result = self._make(*plain)
        return Made(result) if isinstance(result, Tensor | np.ndarray | np.generic) else result

    def __setstate__(self, state: object) -> None:
        raise NotPlainError("it must hold only plain data, got changes of a function")


class PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="latin1")  # Python 2's strings: bytes of arrays

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.cuda") and name in STORAGES:
            return STORAGES[name]
        older = module.replace("numpy._core.", "numpy.core.").replace("__builtin__", "builtins")
        found = PLAIN.get((older, name))
        if found is None:
            raise NotPlainError(
                "it must hold only containers, numbers, strings, NumPy arrays and torch tensors, "
                f"got {f'{module}.{name}'!a}"
            )
        return StandIn(found)

    def persistent_load(self, identity: object) -> Any:
        raise NotPlainError("it must hold only plain data, got objects outside of it")


class StorageUnpickler(PlainUnpickler):
    """The object of a separately saved storage: only its dtype is needed."""

    def persistent_load(self, identity: Any) -> torch.dtype:
        dtype = identity[1]
        if identity[0] != "storage" or not isinstance(dtype, torch.dtype) or any(identity[5:]):
            raise NotPlainError(UNKNOWN_TENSOR)
        return dtype


def unpickled(file: BinaryIO, kind: type[PlainUnpickler] = PlainUnpickler) -> Any:
    """The next pickle of a file, inspected first: a damaged one may request any memory."""
    start = file.tell()
    for opcode, argument, position in pickletools.genops(file):
        numbers = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
        if numbers and int(argument or 0) > int(position or 0):
            raise NotPlainError(f"it must number its parts one by one, got number {argument}")
    file.seek(start)
    return kind(file).load()


# --- torch --------------------------------------------------------------------------------------


def storage(data: bytes) -> Tensor:
    """A storage as pickled by torch: a flat file of torch.save in its first format."""
    file = io.BytesIO(data)
    magic, _version, system = (unpickled(file) for _ in range(3))
    if magic != TORCH_MAGIC or not system["little_endian"]:
        raise NotPlainError(UNKNOWN_TENSOR)
    dtype = unpickled(file, StorageUnpickler)
    if len(unpickled(file)) != 1:  # the keys of all storages in the file
        raise NotPlainError(UNKNOWN_TENSOR)
    (count,) = struct.unpack("<q", file.read(8))
    content = bytearray(file.read())
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=count)


def tensor(
    flat: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object
) -> Tensor:
    return torch.as_strided(flat, size, stride, offset)  # inside `flat`, or an error


# --- NumPy --------------------------------------------------------------------------------------


class DType:
    """A dtype of numbers or strings."""

    __slots__ = ("dtype",)

    def __init__(self, name: str, *_: object) -> None:
        if not re.fullmatch(r"[<>=|]?[biufUSO]\d+", str(name)):
            raise NotPlainError(f"it must have arrays of numbers or strings, got dtype {name!r}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, order, parts, *_ = state
        if order not in ("<", ">", "=", "|") or parts is not None:
            raise NotPlainError("it must have arrays of numbers or strings, got a dtype of parts")
        if not self.dtype.hasobject:
            self.dtype = self.dtype.newbyteorder(order)


class Array(Made):
    """An array that receives its content later."""

    __slots__ = ()

    def __init__(self, *_: object) -> None:
        super().__init__(np.empty(0))

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        self.value = array(data, dtype, shape, "F" if fortran else "C")


def array(data: Any, dtype: DType, shape: tuple[int, ...], order: str) -> Any:
    kind = dtype.dtype
    if kind.hasobject:
        return object_array(data, shape, order)
    content = data.encode("latin1") if isinstance(data, str) else data
    if math.prod(shape) * kind.itemsize != len(content):
        raise NotPlainError(
            f"it must have {math.prod(shape) * kind.itemsize} bytes for an array of shape "
            f"{list(shape)}, got {len(content)}"
        )
    native = np.frombuffer(content, kind).astype(kind.newbyteorder("="))  # a writable copy
    return native.reshape(shape, order="F" if order == "F" else "C")


def object_array(items: Any, shape: tuple[int, ...], order: str) -> Any:
    """An array of text and numbers, such as pandas columns of text."""
    if not isinstance(items, list) or len(items) != math.prod(shape):
        raise NotPlainError(f"it must have {math.prod(shape)} objects in an array, got others")
    flat = np.empty(len(items), object)
    for place, item in enumerate(items):
        plain = item.value if isinstance(item, Made) else item
        if isinstance(plain, np.generic):
            plain = plain.item()
        if plain is not None and not isinstance(plain, str | bytes | int | float):
            raise NotPlainError(
                f"it must have arrays of numbers or strings, got an object {type(plain).__name__}"
            )
        flat[place] = plain
    return flat.reshape(shape, order="F" if order == "F" else "C")


def encoded(text: str, codec: str = "latin1") -> bytes:
    """Bytes as Python 3 writes them in a pickle that Python 2 can read."""
    if codec not in ("latin1", "latin-1"):
        raise NotPlainError(f"it must have bytes in latin1, got {codec!r}")
    return text.encode("latin1")


# --- both ---------------------------------------------------------------------------------------

PLAIN: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): lambda *items: dict(*items),
    ("collections", "defaultdict"): lambda *_: {},
    ("builtins", "list"): list,
    ("builtins", "bytes"): lambda: b"",
    ("_codecs", "encode"): encoded,
    ("numpy", "dtype"): DType,
    ("numpy", "ndarray"): Array,
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy.core.multiarray", "scalar"): lambda dtype, data: array(data, dtype, (), "C")[()],
    ("numpy.core.numeric", "_frombuffer"): array,
    ("torch._utils", "_rebuild_tensor_v2"): tensor,
    ("torch.storage", "_load_from_bytes"): storage,
}


def finished(value: object, done: dict[int, object]) -> object:
    """The same containers with the final objects; `done` has the containers by id."""
    if isinstance(value, Made):
        return value.value
    if isinstance(value, dict | list | tuple):
        if id(value) not in done:
            done[id(value)] = (
                {finished(key, done): finished(item, done) for key, item in value.items()}
                if isinstance(value, dict)
                else [finished(item, done) for item in value]
            )
        return done[id(value)]
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    raise NotPlainError(f"it must hold only plain data, got {type(value).__name__}")
