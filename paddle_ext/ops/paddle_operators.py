"""The torch operators of PADDLE: `paddle_ext::solve` and `paddle_ext::solve_indexed`.

They are functional: torch allocates results and workspace, the native code gets pointers and, on
CUDA, the current stream. They are registered by define and impl, which costs a fifth of a
`torch.library.custom_op` per call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from . import check, native

Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

OPTIONS = (
    "SymInt num_classes, float? lam, int scaling, float temperature, float epsilon, "
    "int max_iter, float tol, bool prototypes"
)
OUTPUTS = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"

library = torch.library.Library("paddle_ext", "DEF")  # type: ignore[no-untyped-call]
library.define(  # type: ignore[no-untyped-call]
    f"solve(Tensor support, Tensor support_labels, Tensor query, {OPTIONS}) -> {OUTPUTS}",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(  # type: ignore[no-untyped-call]
    "solve_indexed(Tensor features, Tensor support_index, Tensor support_labels, "
    f"Tensor query_index, {OPTIONS}) -> {OUTPUTS}",
    tags=torch.Tag.pt2_compliant_tag,
)


# Prototypes that nobody asked for: one tensor for all calls, for it has nothing to share.
NOTHING = torch.empty(0)


def allocate(
    like: Tensor,
    batch: Sequence[int],
    Q: int,
    K: int,
    D: int,
    prototypes: bool,
    fake: bool = False,
) -> Outputs:
    """Labels, assignments, proportions, dual, iterations, criterion, prototypes (or nothing)."""
    # Half the time of a small call is spent here. Torch takes sizes faster as separate arguments
    # than as a tuple, and strides faster than an empty tuple of sizes.
    new, device = torch.empty, like.device
    real = torch.float64 if like.dtype is torch.float64 else torch.float32
    proportions = new(*batch, K, dtype=real, device=device)
    means = NOTHING
    if prototypes:
        means = new(*batch, K, D, dtype=real, device=device)
    elif fake or real is torch.float64 or not like.is_cpu:
        means = new(0, dtype=real, device=device)
    strides = (1,) * len(batch)
    return (
        new(*batch, Q, dtype=torch.int64, device=device),
        new(*batch, Q, K, dtype=real, device=device),
        proportions,
        torch.empty_like(proportions),
        torch.empty_strided(batch, strides, dtype=torch.int32, device=device),
        torch.empty_strided(batch, strides, dtype=real, device=device),
        means,
    )


def computable(features: Tensor) -> Tensor:
    """Contiguous, and in a dtype the native code has: no copy unless one of the two is missing."""
    dtype = features.dtype
    if dtype is not torch.float32:
        if features.is_cuda:
            if dtype is torch.float64:
                raise ValueError(
                    "the features on CUDA must be float16, bfloat16 or float32 for the native "
                    "code, got float64"
                )
        elif dtype is not torch.float64:
            features = features.float()
    return features.contiguous()


def integers(x: Tensor) -> Tensor:
    return (x if x.dtype is torch.int64 else x.long()).contiguous()


def misfit(*tensors: Tensor) -> None:
    """Whoever calls an operator directly has no other check: keep it inside its tensors."""
    shapes = ", ".join(str(list(x.shape)) for x in tensors)
    raise ValueError(f"support, its labels and query must fit each other, got shapes {shapes}")


def dense_sizes(
    support: Tensor, support_labels: Tensor, query: Tensor
) -> tuple[list[int], int, int, int, int, bool]:
    """The batch dimensions of the query, B, Q, S, D, and whether the support is shared."""
    *batch, Q, D = query.shape
    B, S, shared = batch[0] if batch else 1, support.shape[-2], support.dim() < query.dim()
    rows = S if shared else B * S
    if support.numel() != rows * D or support_labels.numel() != rows:
        misfit(support, support_labels, query)
    return batch, B, Q, S, D, shared


def place(x: Tensor) -> tuple[bool, int, int, int]:
    """Where the native code is to run: on CUDA or not, device, stream, CPU threads."""
    if not x.is_cuda:
        return False, 0, 0, torch.get_num_threads()
    device = x.get_device()
    return True, device, torch.cuda.current_stream(device).cuda_stream, 0


def solve_kernel(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    num_classes: int,
    lam: float | None,
    scaling: int,
    temperature: float,
    epsilon: float,
    max_iter: int,
    tol: float,
    prototypes: bool,
) -> Outputs:
    batch, B, Q, S, D, shared = dense_sizes(support, support_labels, query)
    outputs = allocate(query, batch, Q, num_classes, D, prototypes)
    support, query = computable(support), computable(query)
    labels = integers(support_labels)
    launch(
        query,
        (B, Q, S, num_classes, D, 0, shared),
        (support.data_ptr(), labels.data_ptr(), query.data_ptr(), 0, 0),
        (float(Q) if lam is None else lam, scaling, temperature, epsilon, max_iter, tol),
        outputs,
        prototypes,
    )
    return outputs


def solve_indexed_kernel(
    features: Tensor,
    support_index: Tensor,
    support_labels: Tensor,
    query_index: Tensor,
    num_classes: int,
    lam: float | None,
    scaling: int,
    temperature: float,
    epsilon: float,
    max_iter: int,
    tol: float,
    prototypes: bool,
) -> Outputs:
    *batch, Q = query_index.shape
    N, D = features.shape
    B, S = batch[0] if batch else 1, support_index.shape[-1]
    shared = support_index.dim() < query_index.dim()
    rows = S if shared else B * S
    if support_index.numel() != rows or support_labels.numel() != rows:
        misfit(support_index, support_labels, query_index)
    outputs = allocate(features, batch, Q, num_classes, D, prototypes)
    features = computable(features)
    index, labels, query_index = map(integers, (support_index, support_labels, query_index))
    bank = features.data_ptr()
    launch(
        features,
        (B, Q, S, num_classes, D, N, shared),
        (bank, labels.data_ptr(), bank, index.data_ptr(), query_index.data_ptr()),
        (float(Q) if lam is None else lam, scaling, temperature, epsilon, max_iter, tol),
        outputs,
        prototypes,
    )
    return outputs


SMALL = 2**15  # bytes


class Scratch(threading.local):
    """A small workspace that each thread keeps: no allocation for a small call on the CPU."""

    def __init__(self) -> None:
        self.memory = torch.empty(SMALL, dtype=torch.uint8)
        self.pointer = self.memory.data_ptr()


scratch = Scratch()


def launch(
    features: Tensor,
    sizes: tuple[int, int, int, int, int, int, bool],  # B, Q, S, K, D, N, support shared
    inputs: tuple[int, int, int, int, int],  # pointers
    options: tuple[float, int, float, float, int, float],
    outputs: Outputs,
    prototypes: bool,
) -> None:
    """Call the native code; `features` says where and in which dtype."""
    B, Q, S, K, D, N, shared = sizes
    if B == 0:
        return
    module = native.load()
    on_cuda, device, stream, threads = place(features)
    dtype = check.DTYPES[features.dtype]
    bytes_needed = module.paddle_workspace(
        on_cuda, device, threads, dtype, B, Q, S, K, D, shared, N > 0, options[1], prototypes
    )
    if on_cuda or bytes_needed > SMALL:
        workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=features.device)
        workspace_pointer = workspace.data_ptr()
    else:
        workspace_pointer = scratch.pointer
    labels, assignments, proportions, dual, iterations, criterion, means = outputs
    module.paddle_solve(
        on_cuda,
        device,
        stream,
        threads,
        dtype,
        *sizes,
        *inputs,
        *options,
        labels.data_ptr(),
        assignments.data_ptr(),
        proportions.data_ptr(),
        dual.data_ptr(),
        iterations.data_ptr(),
        criterion.data_ptr(),
        means.data_ptr() if prototypes else 0,
        workspace_pointer,
        bytes_needed,
    )


for key in ("CPU", "CUDA"):
    library.impl("solve", solve_kernel, key)  # type: ignore[no-untyped-call]
    library.impl("solve_indexed", solve_indexed_kernel, key)  # type: ignore[no-untyped-call]
for name in ("solve", "solve_indexed"):  # nothing to record: results are detached
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]


@torch.library.register_fake("paddle_ext::solve", lib=library)  # type: ignore[untyped-decorator]
def solve_fake(
    support: Tensor, labels: Tensor, query: Tensor, K: int, *options: float | bool | None
) -> Outputs:
    *batch, Q, D = query.shape
    return allocate(query, batch, Q, K, D, bool(options[-1]), fake=True)


@torch.library.register_fake("paddle_ext::solve_indexed", lib=library)  # type: ignore[untyped-decorator]
def solve_indexed_fake(
    features: Tensor,
    support_index: Tensor,
    labels: Tensor,
    query_index: Tensor,
    K: int,
    *options: float | bool | None,
) -> Outputs:
    *batch, Q = query_index.shape
    return allocate(features, batch, Q, K, features.shape[1], bool(options[-1]), fake=True)


solve_op = torch.ops.paddle_ext.solve.default
solve_indexed_op = torch.ops.paddle_ext.solve_indexed.default
