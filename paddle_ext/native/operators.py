"""What the torch operators share: registration, checks of arguments, devices and memory.

They are functional: torch allocates results and workspace, the native code gets pointers and, on
CUDA, the current stream. They are registered by define and impl, which costs a fifth of a
`torch.library.custom_op` per call.

Code may call `torch.ops.paddle_ext` directly, without the checks of the public functions, and even
then an operator must not access memory outside its tensors. So each operator checks types, shapes
and options itself, and the native code keeps labels and indices in range: one that is out of range
counts as no class, or as the nearest row.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import cache, lru_cache, partial, wraps
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from .. import check
from . import devices
from . import load as native
from .pointers import packed

if TYPE_CHECKING:
    from .._native import Target

library = torch.library.Library("paddle_ext", "DEF")  # type: ignore[no-untyped-call]


def register(schema: str, kernel: Callable[..., object], fake: Callable[..., object]) -> None:
    """Register an operator; its results are detached, so it needs no autograd formula."""
    library.define(schema, tags=torch.Tag.pt2_compliant_tag)  # type: ignore[no-untyped-call]
    name = schema.partition("(")[0]
    library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
    library.impl(name, or_on_the_cpu(kernel), "CUDA")  # type: ignore[no-untyped-call]
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"paddle_ext::{name}", fake, lib=library)


def or_on_the_cpu(kernel: Callable[..., object]) -> Callable[..., object]:
    """A kernel that computes on the CPU if the GPU has no native code, and moves results back."""

    @wraps(kernel)
    def wrapper(*arguments: object) -> object:
        try:
            return kernel(*arguments)
        except devices.NoCodeError as error:
            warn_of_the_cpu(str(error))
        device = next(x.device for x in arguments if isinstance(x, Tensor))
        found = kernel(*(x.cpu() if isinstance(x, Tensor) else x for x in arguments))
        if isinstance(found, Tensor):
            return found.to(device)
        assert isinstance(found, tuple)
        return tuple(x.to(device) for x in found)

    return wrapper


@cache
def warn_of_the_cpu(why: str) -> None:
    """Warn once per process and reason."""
    warnings.warn(f"computing on the CPU, which is slower: {why}", UserWarning, stacklevel=4)


# --- tensors ------------------------------------------------------------------------------------


# The sizes of a call: its batch dimensions ([B], or none for a single task), B, Q, S, K, D, and
# whether all tasks share one support. A plain tuple, because a named one takes longer to make.
Sizes: TypeAlias = tuple[list[int], int, int, int, int, int, bool]


def dense_sizes(support: Tensor, support_labels: Tensor, query: Tensor, K: int) -> Sizes:
    """Check that the tensors of a task match, and return their sizes."""
    check.dense(support, support_labels, query)
    *batch, Q, D = query.shape
    B = batch[0] if batch else 1
    check_classes(K, B)
    return batch, B, Q, support.shape[-2], K, D, support.dim() < query.dim()


def check_classes(K: int, B: int) -> None:
    if not (1 if B else 0) <= K <= check.MOST:  # without a task there may be no labels
        raise ValueError(f"num_classes must be an integer in [1, {check.MOST}], got {K}")


def computable(name: str, x: Tensor) -> Tensor:
    """x, packed and in a dtype that the native code takes; copied only if necessary."""
    dtype = x.dtype
    if dtype is not torch.float32:
        if x.is_cuda:
            if dtype is torch.float64:
                raise ValueError(
                    f"{name} on CUDA must be float16, bfloat16 or float32 for the native code, "
                    "got float64"
                )
        elif dtype is not torch.float64:
            x = x.float()
    return packed(x)


def integers(x: Tensor) -> Tensor:
    return packed(x if x.dtype is torch.int64 else x.long())


# --- where to run -------------------------------------------------------------------------------


def target(x: Tensor) -> Target:
    """The CPU with torch's number of threads, or the current stream of a CUDA device."""
    if not x.is_cuda:
        return make_target(False, torch.get_num_threads(), 0, 0)
    device = x.get_device()
    return make_target(True, 0, device, raw_stream(device))


def stream_by_object(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# torch's own function, which torch.compile uses too, makes no Stream object and is faster. It is
# not public, so a torch without it is possible, and one without CUDA never has it.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", stream_by_object)


@lru_cache(maxsize=64)
def make_target(cuda: bool, threads: int, device: int, stream: int) -> Target:
    if cuda and not devices.has_code_for(device):
        raise devices.no_code(device)
    return native.module.Target(cuda=cuda, threads=threads, device=device, stream=stream)


# --- memory -------------------------------------------------------------------------------------

# Functions of sizes, strides and a dtype that return an uninitialised tensor. Those of torch that
# torch.compile uses take less than half the time of torch.empty, but they are not public: a torch
# may lack them, or have functions of the same name that do something else.
Allocate: TypeAlias = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]


def allocates(function: Allocate) -> bool:
    """Whether a function allocates tensors as expected, tried on a small one."""
    try:
        found = function((2, 3), (3, 1), torch.int32)
    except (TypeError, ValueError, RuntimeError):
        return False
    return found.shape == (2, 3) and found.dtype is torch.int32


def generated_code(name: str) -> Allocate | None:
    """The allocating function of torch with this name, if the one for the CPU works as expected."""
    found = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    known = getattr(found, "_empty_strided_cpu", None)
    return getattr(found, name, None) if known is not None and allocates(known) else None


empty_on_cpu = generated_code("_empty_strided_cpu")
empty_on_gpu = generated_code("_empty_strided_cuda")


def allocator(x: Tensor) -> Allocate:
    """A function that allocates tensors on the device of `x`."""
    found = None
    if type(x) is Tensor:  # a fake tensor has another type
        if x.is_cpu:
            found = empty_on_cpu
        elif x.is_cuda and x.get_device() == torch.cuda.current_device():
            found = empty_on_gpu
    return found or partial(empty, x.device)


def empty(
    device: torch.device, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


class Scratch(threading.local):
    """A small workspace kept by each thread, so that small CPU calls do not allocate."""

    size = 2**15  # bytes

    def __init__(self) -> None:
        self.memory = torch.empty(self.size, dtype=torch.uint8)


scratch = Scratch()


def workspace(bytes_needed: int, x: Tensor) -> Tensor:
    """Memory of at least `bytes_needed` bytes on the device of `x`, [n] uint8."""
    if bytes_needed <= Scratch.size and not x.is_cuda:
        return scratch.memory
    return allocator(x)((bytes_needed,), (1,), torch.uint8)
