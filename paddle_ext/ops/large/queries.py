"""The queries of large tasks, in chunks, and the coordinates they determine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import check
from ...rows import class_sums, power_of_two, unit_rows
from .group import Group
from .products import Coordinates
from .sources import Rows
from .steps import is_captured

CUDA_NUMBERS = 2**25  # of the products of a chunk: enough to hide the launches
CPU_NUMBERS = 2**19


def numbers_at_once(device: torch.device) -> int:
    """Limit on the size of the largest matrix of a chunk."""
    return CUDA_NUMBERS if device.type == "cuda" else CPU_NUMBERS


class Queries:
    """The queries of one task from any source, or those of a few tasks in a tensor [B, N, D]."""

    def __init__(self, source: Rows | Tensor) -> None:
        self.source = source
        self.B = len(source) if isinstance(source, Tensor) else 1
        self.N, self.D = source.shape[-2:]
        self.features, self.device = source.dtype, source.device
        self.dtype = torch.float64 if source.dtype is torch.float64 else torch.float32

    def rows_at_once(self, numbers: int) -> int:
        """Rows per chunk, if a row takes this many numbers."""
        if isinstance(self.source, Tensor):
            return self.N
        return max(256, numbers_at_once(self.device) // numbers // 256 * 256)

    def chunks(self, numbers: int) -> Iterator[tuple[slice, Tensor]]:
        """Indices and rows [B, n, D]; `numbers` is the cost of a row."""
        if isinstance(self.source, Tensor):
            yield slice(0, self.N), self.source
            return
        start = 0
        for rows in self.source.chunks(self.rows_at_once(numbers)):
            yield slice(start, start + len(rows)), rows.unsqueeze(0)
            start += len(rows)


@dataclass
class Survey:
    """Statistics of one pass over the queries, over all processes."""

    total: int  # rows of a task
    means: Tensor  # [B, D] float64, of rows times their lengths, like all below
    least: Tensor  # [B, D]
    most: Tensor  # [B, D]
    squares: Tensor  # [B] float64: sums of squares
    length: Tensor | None  # [B, own rows] 1 / norm; 0 for a row of zeros

    def alike(self) -> bool:
        """Whether no row is so much longer than another that halves cannot represent the ratio."""
        if self.length is None:
            return True
        if is_captured(self.length):
            return False  # cannot be read
        some = self.length[self.length > 0]
        return len(some) == 0 or bool(some.amax() <= 64 * some.amin())


def inverse_norms(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, n, D] -> [B, n]; 0 for a row of zeros."""
    if rows.dtype is torch.float64:  # float64 may not hold its squares
        largest = rows.abs().amax(-1, keepdim=True)
        scaled = rows / torch.where(largest > 0, largest, 1)
        norm = torch.linalg.vector_norm(scaled, dim=-1) * largest.squeeze(-1)
    else:
        norm = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    most = torch.finfo(dtype).max
    return torch.where(norm > 0, (1 / norm).clamp(max=most), 0).to(dtype)


def survey(queries: Queries, unit: bool, group: Group, *, validate: bool) -> Survey:
    """Scan all queries; `unit` normalises rows to unit length."""
    B, D, dtype = queries.B, queries.D, queries.dtype
    new = {"dtype": dtype, "device": queries.device}
    sums = torch.zeros(B, D, dtype=torch.float64, device=queries.device)
    squares = torch.zeros(B, dtype=torch.float64, device=queries.device)
    least = torch.full((B, D), torch.inf, **new)  # type: ignore[call-overload]
    most = -least
    length = torch.empty(B, queries.N, **new) if unit else None  # type: ignore[call-overload]
    for part, rows in queries.chunks(queries.D):
        x = rows
        if length is not None:
            own = inverse_norms(rows, dtype)
            length[:, part] = own
            x = rows.to(dtype) * own.unsqueeze(-1)
        low, high = x.amin(1), x.amax(1)
        least, most = torch.minimum(least, low.to(dtype)), torch.maximum(most, high.to(dtype))
        sums += x.sum(1, dtype=torch.float64)
        squares += torch.linalg.vector_norm(x, dim=(1, 2), dtype=torch.float64).square_()
    group.sum(sums, squares)
    group.min(least)
    group.max(most)
    total = group.count(queries.N, queries.device)
    if validate:
        check_summable(least, most, queries.features)
    return Survey(total, sums / total, least, most, squares, length)


def check_summable(least: Tensor, most: Tensor, features: torch.dtype) -> None:
    """Reject NaN, infinity and values too large to sum; a NaN makes both extremes NaN."""
    low, high = check.numbers_of([least.amin(), most.amax()])
    limit = check.SUMMABLE[features]
    if not (-limit <= low and high <= limit):
        raise ValueError(
            f"query must be finite and at most {limit:g} in magnitude, got values from {low:g} "
            f"to {high:g}"
        )


@dataclass(frozen=True)
class Labelled:
    """The labelled rows of tasks in their coordinates."""

    means: Tensor  # [B, K, D]
    shots: Tensor  # [B, K] float64


@dataclass(frozen=True)
class Scaled:
    """Tasks in coordinates of about 1."""

    coordinates: Coordinates
    labelled: Labelled
    unit: Tensor  # [B] float64: the size of 1, in the units of `scaling`
    squares: Tensor  # [B] float64: sum of the squares of the queries in the coordinates


def labelled_sums(rows: Tensor, labels: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Sums [B, K, D] and counts [B, K] of float64 rows; a label outside [0, K) has no class."""
    labels = labels.long()
    labels = torch.where((labels >= 0) & (labels < K), labels, K)
    sums, counts = class_sums(rows, labels, K + 1)
    return sums[:, :K], counts[:, :K].double()


def scaled(
    found: Survey, support: Tensor, labels: Tensor, K: int, scaling: str, dtype: torch.dtype
) -> Scaled:
    """Coordinates centred at the queries' mean, by `scaling` except for a factor.

    Support [B or 1, S, D] and labels [B or 1, S]; a label outside [0, K) has no class.
    """
    B = len(found.means)
    width = torch.ones_like(found.means)
    if scaling == "minmax":
        spread = (found.most - found.least).double()
        width = torch.where(spread > 0, spread, 1)
    rows = support.double()
    if scaling in ("auto", "calibrated"):
        rows = unit_rows(rows)
    sums, shots = labelled_sums(rows, labels, K)
    centre = found.means / width
    means = sums / shots.clamp(min=1e-12).unsqueeze(-1) / width.unsqueeze(1) - centre.unsqueeze(1)
    reach = torch.maximum(found.most / width - centre, centre - found.least / width).amax(-1)
    reach = torch.maximum(reach, means.abs().amax((1, 2)))
    unit = power_of_two(reach)
    squares = found.squares - found.total * found.means.square().sum(-1)
    if scaling == "minmax":
        squares = torch.full_like(squares, torch.nan)  # unused
    unit_column = unit.unsqueeze(-1)
    coordinates = Coordinates(
        found.length, (1 / width / unit_column).to(dtype), (centre / unit_column).to(dtype)
    )
    means = (means / unit_column.unsqueeze(-1)).to(dtype)
    labelled = Labelled(means, shots.expand(B, K))
    return Scaled(coordinates, labelled, unit, squares / unit.square())


def raw_coordinates(found: Survey, dtype: torch.dtype) -> Coordinates:
    """Rows centred and scaled to size 1, otherwise unchanged; `found` has no lengths."""
    reach = torch.maximum(found.most - found.means, found.means - found.least).amax(-1)
    unit = power_of_two(reach).unsqueeze(-1)
    ones = torch.ones_like(found.means)
    return Coordinates(None, (ones / unit).to(dtype), (found.means / unit).to(dtype))
