"""Feature rows in files that hold them as memory does: `.npy`, `.npz`, `.safetensors`."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import check
from ..files import (
    AbandonedError,
    Fill,
    Version,
    open_regular,
    readable,
    unchanged,
    version_of,
)

SUFFIXES = (".npy", ".npz", ".safetensors")
SAFETENSORS = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
NUMPY = {2: torch.float16, 4: torch.float32, 8: torch.float64}  # by bytes
PIECE = 2**24  # bytes per read; after each we check whether the rows are still needed
MOST_HEADER = 10**8  # bytes, the limit of the safetensors library


class Header(NamedTuple):
    """The header of a NumPy array in a file."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Matrix(NamedTuple):
    """An array in a file, as its header describes it."""

    offset: int | None  # start of its numbers; None if compressed
    shape: tuple[int, ...]
    dtype: torch.dtype | None  # None: not a feature dtype
    kind: str  # the dtype, for messages
    swapped: bool = False  # whether its byte order is foreign

    def is_features(self) -> bool:
        return self.dtype is not None and len(self.shape) == 2 and min(self.shape) > 0


def open_stored(path: Path, name: str | None) -> StoredMatrix:
    """Open the features in a file; `name` selects an array."""
    if name is not None and path.suffix == ".npy":
        raise check.ArgumentValueError(
            "name", f"must be None for a file of one array, got {name!r} for {path}"
        )
    with open_regular(path) as file:
        version = version_of(file)
        if path.suffix == ".npy":
            with readable(path, "a complete .npy file of a plain array"):
                matrix = npy_matrix(file)
        else:
            read = npz_headers if path.suffix == ".npz" else safetensors_headers
            matrix = selected(read(path, file), name, path)
    if not matrix.is_features():
        raise ValueError(
            f"{path} must have floating-point rows of shape [N, D] with N and D at least 1, "
            f"got {matrix.kind} of shape {list(matrix.shape)}"
        )
    return StoredMatrix(path, matrix, version)


class StoredMatrix:
    """A matrix of features in a file; `version` is that of the file when its header was read."""

    def __init__(self, path: Path, matrix: Matrix, version: Version) -> None:
        if matrix.offset is None:
            raise ValueError(
                f"{path} must not be compressed to be read in parts, got a compressed one: save it "
                "by numpy.savez"
            )
        assert matrix.dtype is not None
        N, D = matrix.shape
        self.path, self.version, self.swapped = path, version, matrix.swapped
        self.offset, self.shape, self.dtype = matrix.offset, (N, D), matrix.dtype
        self.row_bytes = D * matrix.dtype.itemsize
        if self.offset + N * self.row_bytes > version.size:
            self.cut_short(version.size)

    def cut_short(self, size: int) -> None:
        N, D = self.shape
        raise ValueError(
            f"{self.path} must have {self.offset + N * self.row_bytes} bytes for its {N} rows of "
            f"{D} features, got {size}"
        )

    @contextmanager
    def reading(self, start: int, stop: int, abandoned: Event) -> Iterator[Fill]:
        """Read rows from `start` on."""
        with open_regular(self.path) as file:
            unchanged(self.path, version_of(file), self.version)
            number = file.fileno()
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            place = self.offset + start * self.row_bytes

            def fill(rows: Tensor) -> None:
                nonlocal place
                numbers: Any = rows.view(torch.uint8).numpy()
                memory = memoryview(numbers).cast("B")
                done = 0
                while done < len(memory):
                    if abandoned.is_set():
                        raise AbandonedError
                    count = os.preadv(number, [memory[done : done + PIECE]], place)
                    if count == 0:
                        self.cut_short(place)
                    done, place = done + count, place + count
                if self.swapped:
                    rows.numpy().byteswap(inplace=True)

            yield fill


# --- headers ------------------------------------------------------------------------------------


def read_npy_header(file: BinaryIO | Any) -> Header:
    """The header of the array at the start of a file or archive entry."""
    formats = np.lib.format
    old = formats.read_magic(file) == (1, 0)
    read = formats.read_array_header_1_0 if old else formats.read_array_header_2_0
    return Header(*read(file))


def npy_matrix(file: BinaryIO | Any) -> Matrix:
    shape, fortran, dtype = read_npy_header(file)
    kind = "objects" if dtype.hasobject else str(dtype)
    # A vector counts as both C and Fortran order.
    if fortran and len(shape) > 1:
        kind = f"{kind} in Fortran order"
    found = NUMPY.get(dtype.itemsize) if kind == str(dtype) and dtype.kind == "f" else None
    return Matrix(file.tell(), shape, found, kind, not dtype.isnative)


def npz_headers(path: Path, file: BinaryIO) -> dict[str, Matrix]:
    found = {}
    with readable(path, "a complete .npz file of plain arrays"), zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(".npy"):
                continue
            with archive.open(entry) as member:
                matrix = npy_matrix(member)
            if entry.compress_type != zipfile.ZIP_STORED:
                matrix = matrix._replace(offset=None)
            else:
                assert matrix.offset is not None
                begin = entry_begin(file, entry)
                if matrix.is_features() and matrix.offset + nbytes(matrix) != entry.file_size:
                    raise ValueError(f"{entry.filename} has the wrong size for its shape")
                matrix = matrix._replace(offset=begin + matrix.offset)
            found[entry.filename.removesuffix(".npy")] = matrix
    return found


def entry_begin(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """The offset in the file of the contents of an archive entry."""
    file.seek(entry.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return entry.header_offset + 30 + int(name) + int(extra)


def safetensors_headers(path: Path, file: BinaryIO) -> dict[str, Matrix]:
    found = {}
    with readable(path, "a complete .safetensors file"):
        size = os.fstat(file.fileno()).st_size
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(MOST_HEADER, size - 8):
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            shape = tuple(int(length) for length in entry["shape"])
            kind = str(entry["dtype"])
            matrix = Matrix(8 + length + int(begin), shape, SAFETENSORS.get(kind), kind)
            if begin < 0 or (matrix.is_features() and nbytes(matrix) != end - begin):
                raise ValueError(f"{name} has the wrong size for its shape")
            found[name] = matrix
    return found


def nbytes(matrix: Matrix) -> int:
    assert matrix.dtype is not None
    return math.prod(matrix.shape) * matrix.dtype.itemsize


def selected(there: dict[str, Matrix], name: str | None, path: Path) -> Matrix:
    """The array of that name; by default the only matrix of features, or ``features``."""
    listed = ", ".join(map(repr, there)) or "nothing"
    if name is not None:
        if name not in there:
            raise check.ArgumentValueError(
                "name", f"must be an array of {path} ({listed}), got {name!r}"
            )
        return there[name]
    matrices = [key for key, matrix in there.items() if matrix.is_features()]
    if len(there) == 1 or len(matrices) == 1:
        return there[(matrices or [*there])[0]]
    if "features" in there:
        return there["features"]
    if not matrices:
        raise ValueError(
            f"{path} must have a floating-point array of shape [N, D] with N and D at least 1, "
            f"got {listed}"
        )
    raise check.ArgumentValueError(
        "name", f"must say which array of {path} has the features ({listed}), got None"
    )
