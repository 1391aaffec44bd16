"""Rows in the coordinates of `adaptive`, and rows as products on CUDA read them: split into halves.

Letters: B tasks, N rows, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native
from .calls import options_of, pointers, strides, where_code_is
from .operators import allocator
from .pointers import pointer

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
    return written(rows, centre.contiguous(), rows.dtype, tuple(rows.shape))


def written(
    rows: Tensor, centre: Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    """Rows in the coordinates of a centre, or as they are, in another format if not the same."""
    (B, N, D), rows = rows.shape, rows.contiguous()
    x = allocator(rows)(shape, strides(shape), dtype)
    if x.numel():
        shared = centre is not None and len(centre) == 1
        call = native.module.coordinates_call(
            **options_of(rows), B=B, N=N, D=D, shared=shared, split=dtype is not rows.dtype
        )
        centres = (centre, (1 if shared else B, D))
        given = pointers(rows, rows=(rows, (B, N, D)), centre=centres)
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
def as_split(rows: Tensor) -> Tensor:
    """Rows [B, N, D] as products read them."""
    dtype, shape = split_kind(rows, *rows.shape)
    return rows if dtype is rows.dtype else written(rows, None, dtype, shape)


def numbers(rows: Tensor, width: int) -> Tensor:
    """Rows of this many numbers, from what products read."""
    if rows.dtype is not torch.float16:
        return rows
    halves = rows.float().view(*rows.shape[:-1], -1, 2, GROUP)
    return halves.sum(-2).flatten(-2)[..., :width] / SPLIT_FACTOR
