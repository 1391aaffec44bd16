"""A column of embeddings in a Parquet file, read a few pages at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import check
from .files import check_regular, current_version, readable, require_unchanged
from .libraries import library
from .text import several

Numbers = npt.NDArray[Any]
WHOLE = "a complete .parquet file"
BUFFER = 2**20  # bytes of the file read at once
PIECE = 2**22  # bytes of features decoded at once
DTYPES = {"halffloat": torch.float16, "float": torch.float32, "double": torch.float64}


class ParquetColumn:
    """A column of lists, all of one length."""

    def __init__(self, path: Path, column: str) -> None:
        self.path, self.column = path, column
        self.version = current_version(path)
        with open_parquet(path) as table:
            schema = table.schema_arrow
            check_column("column", column, schema.names, path)
            if schema.names.count(column) > 1:
                raise ValueError(f"{path} must have one column {column!r}, got several")
            kind = schema.field(column).type
            kind = getattr(kind, "storage_type", kind)
            if not is_lists(kind) or str(kind.value_type) not in DTYPES:
                raise ValueError(
                    f"{path} must have lists of float16, float32 or float64 in column "
                    f"{column!r}, got {kind}"
                )
            first = next(record_batches(table, path, 1, [column]), None)
            N, D = int(table.metadata.num_rows), 0 if first is None else width_of(first.column(0))
        if N < 1 or D < 1:
            raise ValueError(
                f"{path} must have at least one row with at least one feature in column "
                f"{column!r}, got {N} rows and {D} features"
            )
        self.shape, self.dtype = (N, D), DTYPES[str(kind.value_type)]

    @contextmanager
    def reading(self, start: int, stop: int) -> Iterator[Callable[[Tensor], None]]:
        """Read rows [start, stop); row groups without any of them are not read."""
        require_unchanged(self.path, self.version)
        with open_parquet(self.path) as table:
            pieces = self.pieces(table, start, stop)
            rest = np.empty((0, self.shape[1]))

            def fill(rows: Tensor) -> None:
                nonlocal rest
                out, done = rows.numpy(), 0
                while done < len(out):
                    rest = rest if len(rest) else next(pieces)
                    count = min(len(rest), len(out) - done)
                    out[done : done + count] = rest[:count]
                    rest, done = rest[count:], done + count

            yield fill

    def pieces(self, table: Any, start: int, stop: int) -> Iterator[Numbers]:
        """Rows [start, stop), and the rest of the last row group, piece by piece."""
        D, (groups, row) = self.shape[1], row_groups(table.metadata, start, stop)
        at_once = max(1, PIECE // (D * self.dtype.itemsize))
        for batch in record_batches(table, self.path, at_once, [self.column], groups):
            rows = range(row, row + len(batch))
            numbers = vectors(batch.column(0), D, f"{self.path}, column {self.column!r},", rows)
            yield numbers[max(0, start - row) :]
            row = rows.stop
        raise ValueError(f"{self.path} must have {self.shape[0]} rows, got {row}")


def vectors(column: Any, width: int, source: str, rows: Sequence[int]) -> Numbers:
    """An Arrow array of lists of numbers as a matrix [n, width], without a copy."""
    lists = storage(column)
    lengths = lists.value_lengths().fill_null(-1).to_numpy()  # -1: there is no list
    numbers, got = lists.flatten(), ""
    if (lengths != width).any():
        row = int(np.argmax(lengths != width))
        got = "nothing" if lengths[row] < 0 else str(lengths[row])
    elif numbers.null_count:
        row = int(np.argmax(numbers.is_null().to_numpy(zero_copy_only=False))) // width
        got = "a missing value"
    if got:
        raise ValueError(
            f"{source} must have {width} numbers in each row, got {got} in row {rows[row]}"
        )
    return np.asarray(numbers.to_numpy().reshape(-1, width))


def width_of(column: Any) -> int:
    """The length of the first list of an Arrow array, or of all by its type; 0 if there is none."""
    lists = storage(column)
    if (size := getattr(lists.type, "list_size", None)) is not None:
        return int(size)
    return len(lists[0]) if len(lists) and lists[0].is_valid else 0


def storage(column: Any) -> Any:
    """The plain lists inside an extension type, which some libraries use for fixed-length lists."""
    return getattr(column, "storage", column)


def check_column(argument: str, name: str, names: Sequence[str], path: Path) -> None:
    if name not in names:
        listed, near = several([*map(repr, names)], 8), check.did_you_mean(name, names)
        what = f"must be a column of {path} ({listed}), got {name!r}{near}"
        raise check.ArgumentValueError(argument, what)


def is_lists(kind: Any) -> bool:
    types, kind = pyarrow().types, getattr(kind, "storage_type", kind)
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def row_groups(metadata: Any, start: int, stop: int) -> tuple[list[int], int]:
    """The row groups with rows [start, stop), and the number of their first row."""
    ends = np.cumsum([metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)])
    first = int(np.searchsorted(ends, start, "right"))
    last = int(np.searchsorted(ends, stop, "left"))
    before = int(ends[first - 1]) if first else 0
    return list(range(first, min(last + 1, len(ends)))), before


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a file with a small read buffer: by default pyarrow fetches a whole row group."""
    module = library("pyarrow.parquet", "a .parquet file", "pyarrow")
    check_regular(path)
    with readable(path, WHOLE):
        table = module.ParquetFile(
            path, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True
        )
    with table:
        yield table


def record_batches(
    table: Any,
    path: Path,
    size: int,
    columns: Sequence[str],
    groups: Sequence[int] | None = None,
) -> Iterator[Any]:
    """Columns of an open file, `size` rows at a time; only of these row groups, if given."""
    batches = table.iter_batches(size, row_groups=groups, columns=[*columns], use_threads=False)
    while True:
        with readable(path, WHOLE):
            batch = next(batches, None)
        if batch is None:
            return
        yield with_plain_types(batch)


def with_plain_types(batch: Any) -> Any:
    """The columns, with types that every function of Arrow and Python takes."""
    names, columns = batch.schema.names, batch.columns
    kinds = [plain_type(column.type) for column in columns]
    if kinds == [column.type for column in columns]:
        return batch
    plain = [column.cast(kind) for column, kind in zip(columns, kinds, strict=True)]
    return pyarrow().RecordBatch.from_arrays(plain, names)


def plain_type(kind: Any) -> Any:
    """Text and bytes for views, which few functions take; UTC for an unknown time zone."""
    arrow = pyarrow()
    types = arrow.types
    if types.is_list(kind):
        return arrow.list_(plain_type(kind.value_type))
    if types.is_large_list(kind):
        return arrow.large_list(plain_type(kind.value_type))
    if getattr(types, "is_string_view", never)(kind):  # since pyarrow 16
        return arrow.string()
    if getattr(types, "is_binary_view", never)(kind):
        return arrow.binary()
    if types.is_timestamp(kind) and not is_known_zone(kind.tz):
        return arrow.timestamp(kind.unit, "UTC")
    return kind


def never(_: object) -> bool:
    return False


@cache
def is_known_zone(name: str | None) -> bool:
    try:
        pyarrow().scalar(0, pyarrow().timestamp("s", name)).as_py()
    except (ValueError, KeyError):  # KeyError: of pytz, where that is installed
        return False
    return True


def python_values(column: Any) -> list[Any]:
    """The values of a column; what Python's dates cannot hold, as beyond the year 9999, as text."""
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        values = [python_value(cell) for cell in column]
    return values


def python_value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except OverflowError:
        return f"out of range: {cell.type}"


def pyarrow(module: str = "pyarrow") -> Any:
    return library(module, "a table", "pyarrow")
