"""Helpers for the native calls of the rule `adaptive`: device, input pointers and results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .. import check
from ..solution import Solution
from . import devices
from .backend import uses_reference
from .operators import allocator, target, warn_of_the_cpu, workspace
from .pointers import pointer, pointers_to_new

P = ParamSpec("P")
Result = TypeVar("Result")


def where_code_is(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function to compute on the CPU where the GPU has no native code.

    That is an unsupported GPU, or float64 on any GPU; the results are moved back to the GPU.
    """

    @wraps(function)
    def wrapper(*arguments: P.args, **options: P.kwargs) -> Result:
        like: Any = arguments[0]
        if not like.is_cuda:
            return function(*arguments, **options)
        if not uses_reference("auto", like):
            if devices.has_code_for(like.get_device()):
                return function(*arguments, **options)
            warn_of_the_cpu(str(devices.no_code(like.get_device())))
        on_cpu: Any = [x.to("cpu") if hasattr(x, "to") else x for x in arguments]
        found: Result = moved_to(function(*on_cpu, **options), like.device)
        return found

    return wrapper


def moved_to(found: Any, device: torch.device) -> Any:
    """Move a tensor, a likelihood, or the members of a tuple or `Solution` to a device."""
    if found is None:
        return None
    if hasattr(found, "to"):
        return found.to(device)
    if isinstance(found, Solution):
        moved: Any = {k: x.to(device) for k, x in found._asdict().items() if isinstance(x, Tensor)}
        return found._replace(**moved)
    parts = [moved_to(x, device) for x in found]
    return type(found)(*parts) if hasattr(found, "_fields") else tuple(parts)


def call_native(
    call: Any, like: Tensor, given: dict[str, int], wanted: dict[str, Any]
) -> list[Tensor]:
    """Allocate the results of a native call, make the call and return the results.

    `given` are the pointers to its inputs. `wanted` maps the name of each result to its shape, or
    to a dtype and a shape; without a dtype a result has that of `like`.
    """
    new, outputs = allocator(like), []
    for kind in wanted.values():
        dtype, shape = kind if isinstance(kind[0], torch.dtype) else (like.dtype, kind)
        outputs.append(new(shape, strides(shape), dtype))
    memory = workspace(call.workspace(), like)
    call.solve(
        **given,
        **dict(zip(wanted, pointers_to_new(outputs), strict=True)),
        workspace=pointer(memory, torch.uint8, memory.shape, like.get_device()),
        workspace_bytes=memory.numel(),
    )
    return outputs


@lru_cache(maxsize=256)
def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of this shape."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def options_of(like: Tensor) -> dict[str, Any]:
    """The device and the dtype of `like`, as arguments of a native call."""
    return {"target": target(like), "dtype": check.DTYPES[like.dtype]}


def pointers(like: Tensor, **tensors: tuple[Tensor | None, tuple[int, ...]]) -> dict[str, Any]:
    """Addresses of tensors of these shapes, in the dtype and on the device of `like`."""
    dtype, device = like.dtype, like.get_device()
    return {name: pointer(x, dtype, shape, device) for name, (x, shape) in tensors.items()}
