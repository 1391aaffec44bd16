"""The torch operator of Sinkhorn's iteration, `paddle_ext::sinkhorn`; see paddle_operators.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from . import check, native
from .paddle_operators import library, place

Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor]  # plan, iterations, residual

library.define(  # type: ignore[no-untyped-call]
    "sinkhorn(Tensor cost, Tensor row_mass, Tensor col_mass, float reg, int max_iter, float tol) "
    "-> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


def allocate(cost: Tensor) -> Outputs:
    batch: Sequence[int] = cost.shape[:-2]
    device, strides = cost.device, (1,) * len(batch)
    real = torch.float64 if cost.dtype is torch.float64 else torch.float32
    return (
        torch.empty(cost.shape, dtype=real, device=device),
        torch.empty_strided(batch, strides, dtype=torch.int32, device=device),
        torch.empty_strided(batch, strides, dtype=real, device=device),
    )


def sinkhorn_kernel(
    cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float, max_iter: int, tol: float
) -> Outputs:
    *batch, Q, K = cost.shape
    B = batch[0] if batch else 1
    shared = row_mass.dim() < len(batch) + 1, col_mass.dim() < len(batch) + 1
    if row_mass.numel() != Q * (1 if shared[0] else B) or col_mass.numel() != K * (
        1 if shared[1] else B
    ):  # whoever calls the operator directly has no other check
        shapes = ", ".join(str(list(x.shape)) for x in (cost, row_mass, col_mass))
        raise ValueError(f"cost, row_mass and col_mass must fit each other, got shapes {shapes}")
    outputs = plan, iterations, residual = allocate(cost)
    if B == 0:
        return outputs
    if cost.is_cuda and plan.dtype is torch.float64:
        raise ValueError(
            "cost on CUDA must be float16, bfloat16 or float32 for the native code, got float64"
        )
    # No copies unless a dtype or a layout is not what the native code takes.
    cost, row_mass, col_mass = (x.to(plan.dtype).contiguous() for x in (cost, row_mass, col_mass))
    module = native.load()
    on_cuda, device, stream, threads = place(cost)
    dtype = check.DTYPES[cost.dtype]
    size = module.sinkhorn_workspace(on_cuda, device, threads, dtype, B, Q, K)
    workspace = torch.empty(size, dtype=torch.uint8, device=cost.device)
    module.sinkhorn_solve(
        on_cuda,
        device,
        stream,
        threads,
        dtype,
        B,
        Q,
        K,
        cost.data_ptr(),
        row_mass.data_ptr(),
        shared[0],
        col_mass.data_ptr(),
        shared[1],
        reg,
        max_iter,
        tol,
        plan.data_ptr(),
        iterations.data_ptr(),
        residual.data_ptr(),
        workspace.data_ptr(),
        size,
    )
    return outputs


for key in ("CPU", "CUDA"):
    library.impl("sinkhorn", sinkhorn_kernel, key)  # type: ignore[no-untyped-call]
# Nothing to record: results are detached.
library.impl("sinkhorn", torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]


@torch.library.register_fake("paddle_ext::sinkhorn", lib=library)  # type: ignore[untyped-decorator]
def sinkhorn_fake(
    cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float, max_iter: int, tol: float
) -> Outputs:
    return allocate(cost)


sinkhorn_op = torch.ops.paddle_ext.sinkhorn.default
