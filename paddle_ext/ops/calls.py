"""Native calls for the rule `adaptive`: where they run, what they are given and return."""

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
from .backend import takes_reference
from .operators import allocator, target, warn_of_the_cpu, workspace
from .pointers import pointer, pointers_to_new

P = ParamSpec("P")
Result = TypeVar("Result")


def where_code_is(function: Callable[P, Result]) -> Callable[P, Result]:
    """Compute on the CPU for a GPU without code, which no GPU has for float64; results go back."""

    @wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> Result:
        like: Any = arguments[0]
        if not like.is_cuda:
            return function(*arguments, **options)
        if not takes_reference("auto", like):
            if devices.has_code_for(like.get_device()):
                return function(*arguments, **options)
            warn_of_the_cpu(str(devices.no_code(like.get_device())))
        near: Any = [x.cpu() if isinstance(x, Tensor) else x for x in arguments]
        found: Result = on(function(*near, **options), like.device)
        return found

    return run


def on(found: Any, device: torch.device) -> Any:
    """A tensor, None, or a tuple of them, on a device."""
    if found is None:
        return None
    if isinstance(found, Tensor):
        return found.to(device)
    if isinstance(found, Solution):
        moved: Any = {k: x.to(device) for k, x in found._asdict().items() if isinstance(x, Tensor)}
        return found._replace(**moved)
    parts = [on(x, device) for x in found]
    return type(found)(*parts) if hasattr(found, "_fields") else tuple(parts)


def run(call: Any, like: Tensor, given: dict[str, int], wanted: dict[str, Any]) -> list[Tensor]:
    """Make a native call; `wanted` are the shapes of its results, or dtypes and shapes."""
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
    """Of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def options_of(like: Tensor) -> dict[str, Any]:
    return {"target": target(like), "dtype": check.DTYPES[like.dtype]}


def pointers(like: Tensor, **tensors: tuple[Tensor | None, tuple[int, ...]]) -> dict[str, Any]:
    """Addresses of tensors of these shapes, in the dtype and on the device of `like`."""
    dtype, device = like.dtype, like.get_device()
    return {name: pointer(x, dtype, shape, device) for name, (x, shape) in tensors.items()}
