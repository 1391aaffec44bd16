"""Rows in the coordinates of `adaptive`, and rows split into halves for products on CUDA.

Letters: B tasks, N rows, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import load as native
from .call import call_native, packed
from .devices import on_cpu_without_gpu_code


@on_cpu_without_gpu_code
def coordinates(rows: Tensor, centre: Tensor) -> Tensor:
    """Rows [B, N, D] made unit-norm, minus a centre [B or 1, D], unit-norm again.

    A row that equals the centre, up to rounding, becomes zero.
    """
    return rewritten(rows, centre, None, rows.dtype, tuple(rows.shape))


def rewritten(
    rows: Tensor,
    centre: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> Tensor:
    """Rows written as `dtype` in this shape, split into halves if the dtype is not their own.

    With a centre, they are in its coordinates; with a scale, multiplied by its square root.
    """
    (B, N, D), rows = rows.shape, packed(rows)
    centre, scale = (None if x is None else packed(x) for x in (centre, scale))
    shared = centre is not None and len(centre) == 1
    own, each = rows.dtype, (1 if shared else B, D)
    inputs = {
        "rows": (rows, own, (B, N, D)),
        "centre": (centre, own, each),
        "scale": (scale, own, each),
    }
    options = {"B": B, "N": N, "D": D, "shared": shared, "split": dtype is not own}
    (x,) = call_native(native.module.coordinates_call, options, rows, inputs, {"x": (dtype, shape)})
    return x


def split_kind(like: Tensor, *shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and shape in which matrix products read rows: on CUDA, split into float16 halves.

    Numbers are in groups of 32, padded with zeros: the high halves of a group, then the low ones.
    """
    if not like.is_cuda:
        return like.dtype, shape
    group = native.module.GROUP
    return torch.float16, (*shape[:-1], -(-shape[-1] // group) * 2 * group)


@on_cpu_without_gpu_code
def as_split(rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """Rows [B, N, D] as described by `split_kind`, times the root of a scale [B, D]."""
    dtype, shape = split_kind(rows, *rows.shape)
    if dtype is not rows.dtype:
        return rewritten(rows, None, scale, dtype, shape)
    return rows if scale is None else rows * scale.sqrt().unsqueeze(1)


def unsplit(rows: Tensor, width: int) -> Tensor:
    """The inverse of `as_split`: rows of `width` numbers each."""
    if rows.dtype is not torch.float16:
        return rows
    groups = rows.shape[-1] // (2 * native.module.GROUP)
    halves = rows.float().reshape(*rows.shape[:-1], groups, 2, native.module.GROUP)
    return halves.sum(-2).flatten(-2)[..., :width] / native.module.SPLIT_FACTOR
