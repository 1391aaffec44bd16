"""Feature rows in a fixed order from any source: a tensor, an index, a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import check
from ..arrays import map_npy, safetensors
from ..files import ahead, check_regular, current_version, open_regular, readable, require_unchanged
from ..parquet import ParquetColumn

Report = Callable[[int, int], object]
Fill = Callable[[Tensor], None]  # reads the next rows into a contiguous CPU tensor [n, D]

DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}  # of features in .safetensors files


@runtime_checkable
class Rows(Protocol):
    """Feature rows in a fixed order that can be iterated repeatedly."""

    @property
    def shape(self) -> tuple[int, int]:
        """[N, D]."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the chunks: float16, bfloat16, float32 or float64."""

    @property
    def device(self) -> torch.device:
        """Of the chunks."""

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All rows in order, [n, D] with n = `size` except for the last chunk.

        A chunk is valid until the next one is requested, and on CUDA in the stream that was current
        when it was requested.
        """


class TensorRows:
    """The rows of a tensor [N, D]; chunks are views of it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.shape = (tensor.shape[0], tensor.shape[1])
        self.dtype, self.device = tensor.dtype, tensor.device

    def chunks(self, size: int) -> Iterator[Tensor]:
        return iter(torch.split(self.tensor, size))


class IndexedRows:
    """Rows of a tensor [N, D] in the order of an index [Q], gathered one chunk at a time."""

    def __init__(self, features: Tensor, index: Tensor) -> None:
        self.features, self.index = features, index
        self.shape = (index.shape[0], features.shape[1])
        self.dtype, self.device = features.dtype, features.device

    def chunks(self, size: int) -> Iterator[Tensor]:
        return (self.features.index_select(0, part) for part in torch.split(self.index, size))


class FileRows:
    """The rows of a file, with two chunks in memory at a time.

    Parameters
    ----------
    path : path
        ``.npy``; ``.safetensors``, which needs safetensors; ``.parquet`` with a column of lists,
        which needs pyarrow. Numbers are float16, bfloat16, float32 or float64.
    column : str
        The column of a Parquet file.
    name : str or None
        The tensor of a ``.safetensors`` file. None: ``features``, or its only matrix of
        floating-point numbers.
    device : device
        Device of the chunks.
    start, stop : int
        Rows [start, stop); stop = None means to the end. For one of several processes.
    progress : callable or None
        Called with (rows read in this pass, all rows) after each chunk.

    Notes
    -----
    A thread reads one chunk ahead of the one in use. This takes the memory of two chunks; on CUDA
    it is device memory and as much pinned memory. Parquet also needs memory for pages that are
    being decoded. The file must not change while the object is in use; it is opened again for each
    pass, so the object can be pickled.

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
        self.contents, self.start, self.stop, self.progress = contents, first, last, progress
        self.shape = (last - first, contents.shape[1])
        self.dtype, self.device = contents.dtype, with_index(place)

    def __repr__(self) -> str:
        return f"FileRows({str(self.path)!r}, {list(self.shape)}, {check.plain(self.dtype)})"

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Chunks in two buffers: a thread reads one while the other is in use."""
        return self.read(check.integer("size", size))

    def read(self, size: int) -> Iterator[Tensor]:
        size, cuda = min(size, self.shape[0]), self.device.type == "cuda"
        turns = enumerate(range(self.start, self.stop, max(1, size)))
        # The thread must not write to tensors of the caller's inference mode.
        with torch.inference_mode(False):
            buffers = [
                torch.empty(size, self.shape[1], dtype=self.dtype, device="cpu", pin_memory=cuda)
                for _ in range(2)
            ]
        copied = [torch.cuda.Event(blocking=True) for _ in range(2)] if cuda else []  # type: ignore[no-untyped-call]
        with self.contents.reading(self.start, self.stop) as fill:

            def fetch() -> tuple[int, Tensor] | None:
                turn, row = next(turns, (0, self.stop))
                if row == self.stop:
                    return None
                if cuda:  # until the last copy out of this buffer has ended
                    copied[turn % 2].synchronize()
                rows = buffers[turn % 2][: self.stop - row]
                fill(rows)
                return turn % 2, rows

            done = 0
            with closing(ahead(fetch)) as fetched:
                for place, rows in fetched:
                    if cuda:
                        rows = rows.to(self.device, non_blocking=True)
                        copied[place].record(torch.cuda.current_stream(self.device))
                    yield rows
                    done += len(rows)
                    if self.progress is not None:
                        self.progress(done, self.shape[0])


# Where the queries of a task come from.
Source = Tensor | str | os.PathLike[str] | Rows


def open_contents(
    path: Path, column: str, name: str | None
) -> NpyMatrix | SafetensorsMatrix | ParquetColumn:
    """Open the rows of a file; the other arguments are those of `FileRows`."""
    if path.suffix == ".npz":
        raise ValueError(
            f"{path} must not be an archive, which is not read in parts: save its features by "
            "numpy.save as .npy"
        )
    if path.suffix not in (".npy", ".safetensors", ".parquet"):
        raise ValueError(f"{path} must end in one of .npy, .safetensors, .parquet")
    if path.suffix == ".safetensors":
        return SafetensorsMatrix(path, name)
    if name is not None:
        raise check.ArgumentValueError(
            "name", f"must be None unless the file is .safetensors, got {name!r} for {path}"
        )
    return NpyMatrix(path) if path.suffix == ".npy" else ParquetColumn(path, column)


class NpyMatrix:
    """A matrix of features in a `.npy` file.

    Its rows are read into memory of ours: a mapped file that is cut while in use would end the
    process, and its pages would count as memory in use.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, current_version(path)
        mapped = map_npy(path, "r")
        dtype = mapped.dtype
        order = " in Fortran order" if mapped.ndim > 1 and not mapped.flags.c_contiguous else ""
        is_float = dtype.kind == "f" and dtype.itemsize <= 8
        if not is_float or order or mapped.ndim != 2 or not mapped.size:
            refuse_matrix(path, f"{dtype}{order}", mapped.shape)
        self.shape = (mapped.shape[0], mapped.shape[1])
        self.dtype: torch.dtype = getattr(torch, dtype.newbyteorder("=").name)
        self.swapped, self.offset = not dtype.isnative, int(getattr(mapped, "offset", 0))

    @contextmanager
    def reading(self, start: int, stop: int) -> Iterator[Fill]:
        require_unchanged(self.path, self.version)
        with open_regular(self.path) as file:
            file.seek(self.offset + start * self.shape[1] * self.dtype.itemsize)

            def fill(rows: Tensor) -> None:
                bytes_read = file.readinto(rows.view(torch.uint8).numpy())  # type: ignore[attr-defined]
                if bytes_read < rows.nbytes:
                    raise ValueError(
                        f"{self.path} must not change while it is in use, got one that was cut"
                    )
                if self.swapped:
                    rows.numpy().byteswap(inplace=True)

            yield fill


class SafetensorsMatrix:
    """A matrix of features in a `.safetensors` file, which the library maps."""

    def __init__(self, path: Path, name: str | None) -> None:
        self.path = path
        with self.opened() as file:
            self.version = current_version(path)
            there = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            described = {
                key: (part.get_dtype(), tuple(part.get_shape())) for key, part in there.items()
            }
        self.name = select_matrix(described, name, path)
        dtype, shape = described[self.name]
        if not is_matrix(dtype, shape):
            refuse_matrix(path, dtype, shape)
        self.shape, self.dtype = (shape[0], shape[1]), DTYPES[dtype]

    def opened(self) -> Any:
        module = safetensors()
        check_regular(self.path)
        with readable(self.path, "a complete .safetensors file"):
            return module.safe_open(self.path, framework="pt")

    @contextmanager
    def reading(self, start: int, stop: int) -> Iterator[Fill]:
        require_unchanged(self.path, self.version)
        with self.opened() as file:
            matrix, row = file.get_slice(self.name), start

            def fill(rows: Tensor) -> None:
                nonlocal row
                rows.copy_(matrix[row : row + len(rows)])
                row += len(rows)

            yield fill


def is_matrix(dtype: str, shape: tuple[int, ...]) -> bool:
    return dtype in DTYPES and len(shape) == 2 and min(shape) > 0


def refuse_matrix(path: Path, dtype: str, shape: tuple[int, ...]) -> NoReturn:
    raise ValueError(
        f"{path} must have floating-point rows of shape [N, D] with N and D at least 1, "
        f"got {dtype} of shape {list(shape)}"
    )


def select_matrix(
    described: dict[str, tuple[str, tuple[int, ...]]], name: str | None, path: Path
) -> str:
    """The tensor of that name; by default ``features``, or the only matrix of features."""
    if name is None:
        matrices = [key for key, about in described.items() if is_matrix(*about)]
        candidates = ["features"] if "features" in described else matrices or [*described]
        name = candidates[0] if len(candidates) == 1 else None
    if name is None or name not in described:
        listed = ", ".join(map(repr, described)) or "nothing"
        raise check.ArgumentValueError(
            "name", f"must be the tensor of {path} ({listed}) with the features, got {name!r}"
        )
    return name


def with_index(device: torch.device) -> torch.device:
    """The device with an index, that of the current GPU for plain "cuda"."""
    return torch.empty(0, device=device).device


def comes_in_chunks(query: Source) -> bool:
    """Whether the queries are not in a tensor: in a file, or in chunks from another source."""
    if isinstance(query, Tensor):  # first, because it is quick
        return False
    return isinstance(query, str | os.PathLike | Rows)


def queries_of(query: Source, support: Tensor) -> Rows:
    """The queries of one task on the device of the support, checked except for their values."""
    assert not isinstance(query, Tensor)
    rows = FileRows(query, device=support.device) if isinstance(query, str | os.PathLike) else query
    if rows.device != support.device:
        raise ValueError(f"query must be on {support.device}, got {rows.device}")
    shape: tuple[int, ...] = rows.shape
    if len(shape) != 2 or rows.dtype not in check.LARGEST_FEATURE:
        got = f"{check.plain(rows.dtype)} of shape {list(shape)}"
        raise ValueError(f"query must be floating-point rows [N, D], got {got}")
    N, D = shape
    if support.dim() != 2:
        raise ValueError(
            f"support must have shape [S, D] for queries of one task, got {list(support.shape)}"
        )
    if N == 0:
        raise ValueError(f"query must have at least one row, got shape {[N, D]}")
    if support.shape[1] != D:
        raise ValueError(
            f"query must have as many features as support, {support.shape[1]}, got {D}"
        )
    if rows.dtype is torch.float64 and rows.device.type == "cuda":
        raise ValueError("query on CUDA must be float16, bfloat16 or float32, got float64")
    return rows
