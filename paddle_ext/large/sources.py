"""Feature rows in a fixed order from any source: a tensor, an index, a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import check
from ..files import Contents, Fill
from .ahead import chunks_of
from .parquet import ParquetColumn
from .stored import SUFFIXES, open_stored

Report = Callable[[int, int], object]


@runtime_checkable
class Rows(Protocol):
    """Feature rows in a fixed order that can be iterated repeatedly.

    Attributes
    ----------
    shape : tuple of int
        [N, D].
    dtype : torch.dtype
        Of the chunks: float16, bfloat16, float32 or float64.
    device : torch.device
        Of the chunks.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All rows in order, [n, D] with n = `size` except for the last chunk.

        A chunk is valid until the next one is requested, and on CUDA in the stream that was current
        when it was requested.
        """
        ...


class TensorRows:
    """The rows of a tensor; chunks are views of it.

    Parameters
    ----------
    tensor : Tensor [N, D]

    Examples
    --------
    >>> rows = TensorRows(torch.eye(3))
    >>> [chunk.shape[0] for chunk in rows.chunks(2)]
    [2, 1]
    """

    def __init__(self, tensor: Tensor) -> None:
        check_matrix("tensor", tensor)
        self.tensor = tensor
        self.shape = (tensor.shape[0], tensor.shape[1])
        self.dtype, self.device = tensor.dtype, tensor.device

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Views of the tensor."""
        return parts(self.tensor, check.integer("size", size))


class IndexedRows:
    """Rows of a tensor in the order of an index, gathered one chunk at a time.

    Parameters
    ----------
    features : Tensor [N, D]
    index : Tensor [Q]
        Integers in [0, N), on the device of `features`.
    validate : bool
        Whether to check the index; if not, it must be valid.

    Examples
    --------
    >>> rows = IndexedRows(torch.eye(3), torch.tensor([2, 0, 2]))
    >>> torch.cat([*rows.chunks(2)]).argmax(1)
    tensor([2, 0, 2])
    """

    def __init__(self, features: Tensor, index: Tensor, *, validate: bool = True) -> None:
        check_matrix("features", features)
        check.integers("index", index)
        check.one_device(features=features, index=index)
        if index.dim() != 1:
            raise ValueError(f"index must have shape [Q], got {list(index.shape)}")
        if validate and len(index):
            low, high = check.numbers_of([*torch.aminmax(index)])
            check.outside("index", low, high, features.shape[0])
        self.features, self.index = features, index
        self.shape = (index.shape[0], features.shape[1])
        self.dtype, self.device = features.dtype, features.device

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Copies of the rows."""
        pieces = parts(self.index, check.integer("size", size))
        return (self.features.index_select(0, piece.long()) for piece in pieces)


class StreamedRows:
    """Rows [start, stop) of contents that are read in order, such as a file, to any device."""

    def __init__(
        self,
        contents: Contents,
        device: torch.device,
        start: int,
        stop: int,
        progress: Report | None = None,
    ) -> None:
        self.contents, self.start, self.stop, self.progress = contents, start, stop, progress
        self.shape = (stop - start, contents.shape[1])
        self.dtype, self.device = contents.dtype, numbered(device)

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Chunks in two buffers: one is read while the other is in use."""
        read = chunks_of(
            self.contents, self.start, self.stop, check.integer("size", size), self.device
        )
        return read if self.progress is None else reported(read, self.shape[0], self.progress)


class FileRows(StreamedRows):
    """The rows of a file, with two chunks in memory at a time.

    Parameters
    ----------
    path : path
        ``.npy``; uncompressed ``.npz``; ``.safetensors``; ``.parquet`` with a column of lists,
        which needs pyarrow. Numbers are float16, bfloat16, float32 or float64.
    column : str
        The column of a Parquet file.
    name : str or None
        The array of a ``.npz`` or ``.safetensors`` file. None: its only matrix of floating-point
        numbers, or the array ``features``.
    device : device
        Device of the chunks.
    start, stop : int
        Rows [start, stop); stop = None means to the end. For one of several processes.
    progress : callable or None
        Called with (rows read in this pass, all rows) after each chunk.

    Notes
    -----
    A thread reads one chunk ahead of the one in use. This takes the memory of two chunks, or 8 MiB
    if that is more; on CUDA it is device memory and as much pinned memory. Parquet also needs
    memory for pages that are being decoded. The file must not change while the object is in use; it
    is opened again for each pass, so the object can be pickled.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/rows.npy", np.eye(5, 3, dtype=np.float32))
    ...     rows = FileRows(f"{folder}/rows.npy")
    ...     sum(chunk.sum() for chunk in rows.chunks(2))
    tensor(3.)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        column: str = "embedding",
        name: str | None = None,
        device: str | torch.device = "cpu",
        start: int = 0,
        stop: int | None = None,
        progress: Report | None = None,
    ) -> None:
        place = check.device(device)
        first = check.integer("start", start, least=0)
        # Independent of later changes of the working directory.
        self.path = Path(os.path.abspath(path))  # noqa: PTH100
        contents = open_contents(self.path, column, name)
        N = contents.shape[0]
        last = N if stop is None else check.integer("stop", stop, least=0)
        if not first <= last <= N:
            raise ValueError(
                f"start and stop must be 0 <= start <= stop <= {N}, the rows of {self.path}, "
                f"got {first} and {last}"
            )
        super().__init__(contents, place, first, last, progress)

    def __repr__(self) -> str:
        return f"FileRows({str(self.path)!r}, {list(self.shape)}, {check.plain(self.dtype)})"


def as_rows(
    source: Tensor | str | os.PathLike[str] | Rows, device: str | torch.device | None = None
) -> Rows:
    """Make `Rows` of a tensor or a file; `Rows` are returned as they are.

    Parameters
    ----------
    source : Tensor [N, D], path or Rows
        A path is a file, see `FileRows`.
    device : device or None
        Device of the chunks. None: that of a tensor; the CPU for a file.

    Returns
    -------
    Rows

    Examples
    --------
    >>> as_rows(torch.eye(3)).shape
    (3, 3)
    """
    if isinstance(source, str | os.PathLike):
        return FileRows(source, device="cpu" if device is None else device)
    if isinstance(source, Tensor):
        rows = TensorRows(source)
        place = source.device if device is None else check.device(device)
        if numbered(place) == source.device:
            return rows
        if source.is_cpu:
            return StreamedRows(TensorContents(source), place, 0, len(source))
        raise ValueError(f"query must be on {place} or on the CPU, got {source.device}")
    if not isinstance(source, Rows):
        raise TypeError(f"query must be a torch.Tensor, a path or Rows, got {check.kind(source)}")
    if device is not None and numbered(check.device(device)) != source.device:
        raise ValueError(f"query must be on {device}, got {source.device}")
    return source


def open_contents(path: Path, column: str, name: str | None) -> Contents:
    """Open the rows of a file; the other arguments are those of `FileRows`."""
    if path.suffix in SUFFIXES:
        return open_stored(path, name)
    if path.suffix != ".parquet":
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}, .parquet")
    if name is not None:
        raise check.ArgumentValueError(
            "name", f"must be None for a file of columns, got {name!r} for {path}"
        )
    return ParquetColumn(path, column)


class TensorContents:
    """A CPU tensor whose rows are needed on another device."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self.shape, self.dtype = (tensor.shape[0], tensor.shape[1]), tensor.dtype

    @contextmanager
    def reading(self, start: int, stop: int, abandoned: Event) -> Iterator[Fill]:
        """Copy rows from `start` on."""
        row = start

        def fill(rows: Tensor) -> None:
            nonlocal row
            rows.copy_(self.tensor[row : row + len(rows)])
            row += len(rows)

        yield fill


def parts(x: Tensor, size: int) -> Iterator[Tensor]:
    """x in pieces of at most `size` rows."""
    return (x[start : start + size] for start in range(0, len(x), size))


def reported(chunks: Iterator[Tensor], total: int, progress: Report) -> Iterator[Tensor]:
    """The same chunks; calls `progress` after each."""
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        progress(done, total)


def numbered(device: torch.device) -> torch.device:
    """The device with an index, that of the current GPU for plain "cuda"."""
    return torch.empty(0, device=device).device


def check_matrix(name: str, x: Tensor) -> None:
    check.features(name, x)
    if x.dim() != 2 or x.shape[1] < 1:
        raise ValueError(f"{name} must have shape [N, D] with D at least 1, got {list(x.shape)}")
