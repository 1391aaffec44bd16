"""`solve` for one large task: any source of queries, any precision, no full probability matrix."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import check
from ..solution import Solution
from . import paddle as large
from .sources import Rows, as_rows

if TYPE_CHECKING:
    from ..check import Options

# Limit on the probabilities of a task returned by default. 1 GiB in float32.
MOST_ASSIGNED = 2**28

Source = Tensor | str | os.PathLike[str] | Rows


def is_elsewhere(query: Source) -> bool:
    """Whether the queries are not in a tensor: in a file, or in chunks from another source."""
    if isinstance(query, Tensor):  # first, because torch.compile cannot check a protocol
        return False
    return isinstance(query, str | os.PathLike | Rows)


def returns_all(return_assignments: bool | None, Q: int, K: int) -> bool:
    """Whether the probabilities of all classes are returned."""
    return Q * K <= MOST_ASSIGNED if return_assignments is None else return_assignments


def check_large(precision: str, return_assignments: bool | None, top: int) -> dict[str, Any]:
    """Check the options of large tasks, and return them as arguments of `solve_large`."""
    check.choice("precision", precision, large.PRECISIONS)
    top = check_top(return_assignments, top)
    return {"precision": precision, "top": top}


def check_top(return_assignments: bool | None, top: int) -> int:
    """Check both options, and return `top`."""
    if return_assignments is not None:
        check.flag("return_assignments", return_assignments)
    top = check.integer("top", top)
    if top > large.MOST_TOP:
        raise ValueError(f"top must be at most {large.MOST_TOP}, got {top}")
    return top


def queries_of(query: Source, support: Tensor) -> Rows | Tensor:
    """Queries [B, Q, D] as they are; those of one task as `Rows` on the device of the support."""
    if isinstance(query, Tensor) and query.dim() == 3:
        return query
    rows = as_rows(query, support.device)
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


def solve_large(
    support: Tensor,
    support_labels: Tensor,
    query: Rows | Tensor,
    num_classes: int,
    scaling: str,
    options: Options,
    *,
    prototypes: bool,
    all_classes: bool,
    validate: bool,
    precision: str,
    top: int,
) -> Solution:
    """Solve one task with queries `Rows`, or tasks with queries [B, Q, D]; see `solve`."""
    lam, _, temperature, epsilon, max_iter, tol = options
    batched = isinstance(query, Tensor)
    rows = support if support.dim() == 3 else support.unsqueeze(0)
    labels = support_labels if support_labels.dim() == 2 else support_labels.unsqueeze(0)
    asked = large.Options(
        lam,
        scaling,
        temperature,
        epsilon,
        max_iter,
        tol,
        precision,
        prototypes,
        all_classes,
        top,
        validate and not batched,
    )
    with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
        found = large.solve(query, rows.detach(), labels, num_classes, asked)

    def shaped(x: Any) -> Any:
        """Without the batch dimension of a single task."""
        return x if x is None or batched else x[0]

    return Solution(
        shaped(found.top.classes[..., 0]),
        shaped(found.top.probabilities if found.probabilities is None else found.probabilities),
        shaped(found.proportions),
        shaped(found.dual),
        shaped(found.iterations),
        shaped(found.criterion),
        shaped(found.prototypes),
        None,
        lam,
        scaling,
        temperature,
        classes=shaped(found.top.classes) if found.probabilities is None else None,
        held=shaped(found.held) if found.probabilities is None else None,
    )
