"""Rows in the coordinates of `adaptive`, and rows as products on CUDA read them: split into halves.

Letters: B tasks, N rows, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native
from .calls import options_of, pointers, strides, where_code_is
from .operators import allocator
from .pointers import packed, pointer

GROUP, SPLIT_FACTOR = 32, 64  # as in csrc/common/mma.cuh and csrc/cuda/split_rows.cuh


@where_code_is
def coordinates(rows: Tensor, centre: Tensor) -> Tensor:
    """Rows [B, N, D] made unit-norm, minus a centre [B or 1, D], unit-norm again.

    A row that equals the centre, up to rounding, becomes zero.

    Examples
    --------
    >>> import torch
    >>> coordinates(torch.tensor([[[2.0, 0.0]]]), torch.tensor([[0.5, 0.0]]))
    tensor([[[1., 0.]]])
    """
    return written(rows, centre, None, rows.dtype, tuple(rows.shape))


def written(
    rows: Tensor,
    centre: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> Tensor:
    """Rows in the coordinates of a centre, or as they are; times the root of a scale, if any."""
    (B, N, D), rows = rows.shape, packed(rows)
    centre, scale = (None if x is None else packed(x) for x in (centre, scale))
    x = allocator(rows)(shape, strides(shape), dtype)
    if x.numel():
        shared = centre is not None and len(centre) == 1
        call = native.module.coordinates_call(
            **options_of(rows), B=B, N=N, D=D, shared=shared, split=dtype is not rows.dtype
        )
        each = (1 if shared else B, D)
        given = pointers(rows, rows=(rows, (B, N, D)), centre=(centre, each), scale=(scale, each))
        call.solve(**given, x=pointer(x, dtype, shape, rows.get_device()))
    return x


def split_kind(like: Tensor, *shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and shape of rows of numbers as products read them: on CUDA split into halves.

    In groups of 32 numbers, padded with zeros: the high halves of a group, then the low ones.
    """
    if not like.is_cuda:
        return like.dtype, shape
    return torch.float16, (*shape[:-1], -(-shape[-1] // GROUP) * 2 * GROUP)


@where_code_is
def as_split(rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """Rows [B, N, D] as products read them, times the root of a scale [B, D]."""
    dtype, shape = split_kind(rows, *rows.shape)
    if dtype is not rows.dtype:
        return written(rows, None, scale, dtype, shape)
    return rows if scale is None else rows * scale.sqrt().unsqueeze(1)


def numbers(rows: Tensor, width: int) -> Tensor:
    """Rows of this many numbers, from what products read."""
    if rows.dtype is not torch.float16:
        return rows
    groups = rows.shape[-1] // (2 * GROUP)
    halves = rows.float().reshape(*rows.shape[:-1], groups, 2, GROUP)
    return halves.sum(-2).flatten(-2)[..., :width] / SPLIT_FACTOR
