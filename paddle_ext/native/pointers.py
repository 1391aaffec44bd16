"""Addresses of tensors for the native code; they are taken nowhere else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

ON_CPU = -1  # what `Tensor.get_device` returns for the CPU


def pointer(x: Tensor | None, dtype: torch.dtype, shape: tuple[int, ...], device: int) -> int:
    """The address of a tensor for native code, which knows nothing else about it; 0 for None.

    Parameters
    ----------
    x : Tensor or None
    dtype, shape
        What the native code expects; the tensor must also be contiguous.
    device : int
        Index of the GPU, or `ON_CPU`.

    Raises
    ------
    AssertionError
        If the tensor does not match: a mistake in this package, because the arguments of users have
        been checked and made contiguous before.
    """
    if x is None:
        return 0
    if (
        x.dtype is not dtype
        or x.shape != shape
        or x.get_device() != device
        or not x.is_contiguous()
        or not is_aligned(x)
    ):
        raise AssertionError(
            f"expected a contiguous tensor of {dtype}, shape {list(shape)}, device {device}, got "
            f"{x.dtype}, {list(x.shape)}, {x.get_device()} with strides {x.stride()} at "
            f"{x.data_ptr():#x}"
        )
    return x.data_ptr()


def packed(x: Tensor) -> Tensor:
    """Contiguous, and at a multiple of its element size; copies only if necessary.

    Torch takes any address, for example by `torch.frombuffer(bytes, offset=1)`; native code loads
    numbers from such multiples only.
    """
    x = x.contiguous()
    return x if is_aligned(x) else x.clone()


def is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % x.element_size() == 0


def pointers_to_new(tensors: Iterable[Tensor]) -> list[int]:
    """The addresses of results that the caller has just allocated, so they need no check.

    A small call has ten of them, and checking each with `pointer` would take a sixth of its time.
    """
    return [x.data_ptr() for x in tensors]
