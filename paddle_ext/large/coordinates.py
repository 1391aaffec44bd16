"""Choose coordinates for large tasks in which numbers are about 1, in one pass over the queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import check
from ..native import load as native
from ..native.operators import target, workspace
from ..native.pointers import pointer
from ..rows import class_sums, power_of_two, unit_rows
from ..scaling import AUTO_GAP, AUTO_MIN_GAP, AUTO_MIN_SHARE
from .products import Coordinates
from .queries import Queries
from .steps import is_captured

LEAST_SPREAD = {torch.float32: 1e-37, torch.float64: 1e-300}  # a smaller range counts as zero
LEAST_UNIT = {torch.float32: 2.0**-120, torch.float64: 2.0**-1000}  # so that its inverse is finite


@dataclass
class Survey:
    """Statistics of one pass over the queries of all processes."""

    total: int  # rows of a task
    sums: Tensor  # [B, D] float64: sums of the rows, here and below multiplied by `length`
    squares: Tensor  # [B] float64: sums of squares
    least: Tensor  # [B, D]
    most: Tensor  # [B, D]
    length: Tensor | None  # [B, own rows] 1 / norm; 0 for a row of zeros

    def similar_lengths(self) -> bool:
        """Whether no row is so much longer than another that halves cannot represent the ratio."""
        if self.length is None:
            return True
        if is_captured(self.length):
            return False  # cannot be read
        shortest = torch.where(self.length > 0, self.length, torch.inf).amin()
        return bool(self.length.amax() <= 64 * shortest)


def survey(queries: Queries, unit: bool, *, validate: bool) -> Survey:
    """Scan all queries; with `unit`, after normalising them to unit length."""
    B, D, dtype, device = queries.B, queries.D, queries.dtype, queries.device
    sums = torch.zeros(B, D, dtype=torch.float64, device=device)
    squares = torch.zeros(B, dtype=torch.float64, device=device)
    least = torch.full((B, D), torch.inf, dtype=dtype, device=device)
    most = -least
    length = torch.empty(B, queries.N, dtype=dtype, device=device) if unit else None
    exact, on = torch.float64, sums.get_device()
    for part, rows in queries.chunks(D):
        own, N = rows if rows.is_cuda else rows.to(dtype), rows.shape[1]
        call = native.module.survey_call(
            target=target(own), dtype=check.DTYPES[own.dtype], B=B, N=N, D=D
        )
        memory = workspace(call.workspace(), own)
        call.add(
            rows=pointer(own, own.dtype, (B, N, D), on),
            length=pointer(None if length is None else length[:, part], dtype, (B, N), on),
            sums=pointer(sums, exact, (B, D), on),
            squares=pointer(squares, exact, (B,), on),
            least=pointer(least, dtype, (B, D), on),
            most=pointer(most, dtype, (B, D), on),
            workspace=pointer(memory, torch.uint8, memory.shape, on),
            workspace_bytes=memory.numel(),
        )
    if validate:
        check_summable(least, most, queries.features)
    return Survey(queries.N, sums, squares, least, most, length)


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
class Placed:
    """The coordinates of tasks, and the means of their labelled rows in them."""

    coordinates: Coordinates
    means: Tensor  # [B, K, D]
    shots: Tensor  # [B, K] float64
    unit: Tensor  # [B] float64: what a distance of 1 here is after `scaling`
    spread: Tensor  # [B] float64: sum of the squares of the queries, without the scale


def place(
    found: Survey, support: Tensor, labels: Tensor, K: int, scaling: str, dtype: torch.dtype
) -> Placed:
    """Coordinates centred at the mean of the queries, with `scaling` except for its final factor.

    Support [B or 1, S, D] and labels [B or 1, S]; rows with a label outside [0, K) are ignored.
    """
    rows = support.double()
    sums, shots = labelled_sums(unit_rows(rows) if scaling == "auto" else rows, labels, K)
    least, most, mean = found.least.double(), found.most.double(), found.sums / found.total
    width = torch.ones_like(mean)
    if scaling == "minmax":
        width = torch.where(most - least > LEAST_SPREAD[dtype], most - least, 1.0)
    centre = mean / width
    means = sums / shots.clamp(min=1).unsqueeze(-1) / width.unsqueeze(1) - centre.unsqueeze(1)
    reach = torch.maximum(most / width - centre, centre - least / width).amax(-1)
    reach = torch.maximum(reach, means.abs().amax((1, 2)))
    unit = power_of_two(reach).clamp(min=LEAST_UNIT[dtype])
    of_task = unit.unsqueeze(-1)
    return Placed(
        Coordinates(found.length, (1 / width / of_task).to(dtype), (centre / of_task).to(dtype)),
        (means / of_task.unsqueeze(-1)).to(dtype),
        shots.expand(len(mean), -1).contiguous(),
        unit,
        (found.squares - found.total * mean.square().sum(-1)) / unit / unit,
    )


def slope_of(
    placed: Placed,
    total: int,
    leads: Tensor | None,
    scaling: str,
    *,
    temperature: float,
    steepest: float,
) -> tuple[Tensor, Tensor]:
    """The factor on products in logits, and the unit of distances, [B] float64 each.

    `leads` [B, 2] are the outputs of `assign` that the scaling "auto" needs.
    """
    squared = placed.unit.square()
    if scaling == "auto":
        assert leads is not None
        each = squared / total
        gap, median = leads[:, 0] * each, (leads[:, 1] + placed.spread) * each
        least = (AUTO_MIN_SHARE * median).clamp(min=AUTO_MIN_GAP)
        squared = torch.where(gap > least, squared * (AUTO_GAP / gap), squared)
    return (temperature * squared).clamp(max=steepest), squared.sqrt()


def labelled_sums(rows: Tensor, labels: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Sums [B, K, D] and counts [B, K] of float64 rows by class; ignores labels outside [0, K)."""
    labels = labels.long()
    labels = torch.where((labels >= 0) & (labels < K), labels, K)
    sums, counts = class_sums(rows, labels, K + 1)
    return sums[:, :K], counts[:, :K].double()


def raw_coordinates(found: Survey, means: Tensor, dtype: torch.dtype) -> Coordinates:
    """Coordinates that only centre rows at `means` and scale them to size 1; without lengths."""
    reach = torch.maximum(found.most - means, means - found.least).amax(-1)
    unit = power_of_two(reach).clamp(min=LEAST_UNIT[dtype]).unsqueeze(-1)
    ones = torch.ones_like(means)
    return Coordinates(None, (ones / unit).to(dtype), (means / unit).to(dtype))
