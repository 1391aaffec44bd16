"""Read or map NumPy files, `.npy` and `.npz`, with bounded memory."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Container
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...files import UnmappableError, open_regular, readable
from ...large.stored import Header, entry_begin, read_npy_header
from . import plain_pickle
from .bounds import check_room

READ_AT_ONCE = 2**24  # bytes
KINDS = "biufUS"  # numbers and texts
PLAIN = "a complete {} file of plain arrays"


def read_npz(
    path: Path, wanted: Container[str] | None = None, mapped: Container[str] = ()
) -> dict[str, Any]:
    """The arrays of an archive by name; None in place of arrays that are not `wanted`.

    Arrays in `mapped` stay on disk, mapped copy-on-write.
    """
    contents: dict[str, Any] = {}
    with (
        readable(path, PLAIN.format(".npz")),
        open_regular(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in contents:
                raise ValueError(f"two arrays called {name!r}")
            if name in mapped:
                contents[name] = map_entry(path, file, entry)
            elif wanted is None or name in wanted:
                check_room(path, entry.file_size, entry.compress_size, f"an array {name!r}")
                with archive.open(entry) as member:
                    contents[name] = read_array(member, entry.file_size)
            else:
                contents[name] = None
    return contents


def read_npy(path: Path, *, mmap: bool = False) -> npt.NDArray[Any]:
    """The array of a file."""
    with readable(path, PLAIN.format(".npy")), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not mmap:
            return read_array(file, size)
        header = read_header(file)
        start = file.tell()
        if header.dtype.hasobject:
            raise UnmappableError(f"mmap must be False for an array of objects, got {path}")
        check_size(header, size - start)
        if not header.nbytes:
            return np.empty(header.shape, header.dtype)
        order = "F" if header.fortran else "C"
        return np.memmap(file, header.dtype, "c", start, header.shape, order)  # type: ignore[call-overload,no-any-return]  # C or F


def read_header(file: Any) -> Header:
    header = read_npy_header(file)
    if header.dtype.kind not in KINDS and not header.dtype.hasobject:
        raise ValueError(f"it must have numbers or texts, got {header.dtype}")
    if min(header.shape, default=0) < 0:
        raise ValueError(f"it must have a shape, got {list(header.shape)}")
    return header


def check_size(header: Header, there: int) -> None:
    if header.nbytes > there:
        raise ValueError(
            f"it must have {header.nbytes} bytes for shape {list(header.shape)}, got {there}"
        )


def read_array(file: Any, size: int) -> npt.NDArray[Any]:
    """Read an array from a file; `size` is the most the file can contain.

    Arrays of objects are pickles: only their texts and numbers are read.
    """
    header = read_header(file)
    if header.dtype.hasobject:
        found = plain_pickle.load(file)
        if not isinstance(found, np.ndarray) or found.shape != header.shape:
            raise ValueError("it must have an array of objects, got something else")
        return found
    check_size(header, size)
    flat = np.empty(math.prod(header.shape), header.dtype)
    if flat.nbytes:
        there = memoryview(flat.view(np.uint8))  # type: ignore[arg-type]  # it is a buffer
        for start in range(0, len(there), READ_AT_ONCE):
            part = there[start : start + READ_AT_ONCE]
            if file.readinto(part) != len(part):
                raise ValueError("it must have all its bytes, got fewer")
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def map_entry(path: Path, file: BinaryIO, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """An array of an archive, mapped copy-on-write: the file never changes."""
    if entry.compress_type != zipfile.ZIP_STORED:
        raise UnmappableError(
            "mmap must be False for a compressed file (or save the bank again), "
            f"got True for {path}"
        )
    file.seek(entry_begin(file, entry))
    header = read_header(file)
    if header.dtype.hasobject:
        raise ValueError("an array of objects")
    if header.fortran or file.tell() % header.dtype.itemsize or not header.nbytes:
        raise UnmappableError(
            "mmap must be False for an array that is not aligned (or save the bank again), "
            f"got True for {path}"
        )
    check_size(header, os.fstat(file.fileno()).st_size - file.tell())
    return np.memmap(file, header.dtype, "c", file.tell(), header.shape)
