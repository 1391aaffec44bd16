"""The queries of one large task from any source, and the outputs of `solve` and `adapt`."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from .. import check
from ..limits import MOST_PROBABILITIES, MOST_TOP
from ..native.call import Outputs
from .sources import FileRows, Rows

Source = Tensor | str | os.PathLike[str] | Rows


def comes_in_chunks(query: Source) -> bool:
    """Whether the queries are not in a tensor: in a file, or in chunks from another source."""
    if isinstance(query, Tensor):  # first, because it is quick
        return False
    return isinstance(query, str | os.PathLike | Rows)


def returns_all(return_assignments: bool | None, Q: int, K: int) -> bool:
    """Whether the probabilities of all classes are returned."""
    return Q * K <= MOST_PROBABILITIES if return_assignments is None else return_assignments


def check_top(return_assignments: bool | None, top: int) -> int:
    """Check both options, and return `top`."""
    if return_assignments is not None:
        check.flag("return_assignments", return_assignments)
    top = check.integer("top", top)
    if top > MOST_TOP:
        raise ValueError(f"top must be at most {MOST_TOP}, got {top}")
    return top


def queries_of(query: Source, support: Tensor) -> Rows:
    """The queries of one task on the device of the support, checked except for their values."""
    assert not isinstance(query, Tensor)
    rows = FileRows(query, device=support.device) if isinstance(query, str | os.PathLike) else query
    if rows.device != support.device:
        raise ValueError(f"query must be on {support.device}, got {rows.device}")
    N, D = rows.shape
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


def output_table(
    of_query: tuple[int, ...], K: int, real: torch.dtype, top: int | None, others: Outputs
) -> Outputs:
    """The outputs of `solve` and `adapt`: the fields of `Solution` up to `criterion`, and others.

    `others` have shapes without the batch. If `top` is given, only so many probabilities of each
    query are returned, with `classes` and `held` at the end.
    """
    batch, best = of_query[:-1], (*of_query, K if top is None else min(top, K))
    table: dict[str, tuple[torch.dtype, tuple[int, ...]] | None] = {
        "labels": (torch.int64, of_query),
        "probabilities": (real, best),
        "proportions": (real, (*batch, K)),
        "dual": (real, (*batch, K)),
        "iterations": (torch.int32, batch),
        "criterion": (real, batch),
    }
    for name, wanted in others.items():
        table[name] = None if wanted is None else (wanted[0], (*batch, *wanted[1]))
    if top is not None:
        table |= {"classes": (torch.int64, best), "held": (torch.float64, (*batch, K))}
    return table
