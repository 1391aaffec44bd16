"""The torch operator of Sinkhorn's iteration, `paddle_ext::sinkhorn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from .. import check
from ..rows import computing_dtype
from . import native
from .operators import computable, register, target, workspace

Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor]  # plan, iterations, residual


def allocate(cost: Tensor) -> Outputs:
    batch: Sequence[int] = cost.shape[:-2]
    device, dtype, strides = cost.device, computing_dtype(cost), (1,) * len(batch)
    return (
        torch.empty(cost.shape, dtype=dtype, device=device),
        torch.empty_strided(batch, strides, dtype=torch.int32, device=device),
        torch.empty_strided(batch, strides, dtype=dtype, device=device),
    )


def check_tensors(cost: Tensor, row_mass: Tensor, col_mass: Tensor) -> None:
    check.features("cost", cost)
    check.features("row_mass", row_mass)
    check.features("col_mass", col_mass)
    if not (cost.is_cpu and row_mass.is_cpu and col_mass.is_cpu):
        check.one_device(cost=cost, row_mass=row_mass, col_mass=col_mass)
    shape = cost.shape
    if cost.dim() not in (2, 3) or shape[-2] < 1 or shape[-1] < 1:
        raise ValueError(
            f"cost must have shape [Q, K] or [B, Q, K] with Q and K at least 1, got {list(shape)}"
        )
    for name, mass, side in (("row_mass", row_mass, -2), ("col_mass", col_mass, -1)):
        shared, own = (shape[side],), (*shape[:-2], shape[side])
        if mass.shape != shared and mass.shape != own:
            allowed = dict.fromkeys(str(list(one)) for one in (shared, own))
            raise ValueError(
                f"{name} must have shape {' or '.join(allowed)}, as cost has shape "
                f"{list(shape)}, got {list(mass.shape)}"
            )


def check_call(
    cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float, max_iter: int, tol: float
) -> None:
    check_tensors(cost, row_mass, col_mass)
    check.real("reg", reg, positive=True)
    check.integer("max_iter", max_iter)
    check.real("tol", tol)


def sinkhorn_kernel(
    cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float, max_iter: int, tol: float
) -> Outputs:
    check_call(cost, row_mass, col_mass, reg, max_iter, tol)
    *batch, Q, K = cost.shape
    B = batch[0] if batch else 1
    outputs = plan, iterations, residual = allocate(cost)
    if B == 0:
        return outputs
    # Unlike features, a half-precision cost is copied even on CUDA.
    cost = computable("cost", cost).to(plan.dtype)
    row_mass, col_mass = (x.to(plan.dtype).contiguous() for x in (row_mass, col_mass))
    call = native.module.sinkhorn_call(
        target=target(cost),
        dtype=check.DTYPES[cost.dtype],
        B=B,
        Q=Q,
        K=K,
        row_mass_shared=row_mass.dim() < cost.dim() - 1,
        col_mass_shared=col_mass.dim() < cost.dim() - 1,
        sharpness=min(1.0 / reg, check.LARGEST),
        max_iter=max_iter,
        tol=tol,
    )
    memory = workspace(call.workspace(), cost)
    call.solve(
        cost=cost.data_ptr(),
        row_mass=row_mass.data_ptr(),
        col_mass=col_mass.data_ptr(),
        plan=plan.data_ptr(),
        iterations=iterations.data_ptr(),
        residual=residual.data_ptr(),
        workspace=memory.data_ptr(),
        workspace_bytes=memory.numel(),
    )
    return outputs


def sinkhorn_fake(
    cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float, max_iter: int, tol: float
) -> Outputs:
    check_call(cost, row_mass, col_mass, reg, max_iter, tol)
    return allocate(cost)


register(
    "sinkhorn(Tensor cost, Tensor row_mass, Tensor col_mass, float reg, int max_iter, float tol) "
    "-> (Tensor, Tensor, Tensor)",
    sinkhorn_kernel,
    sinkhorn_fake,
)

sinkhorn_op = torch.ops.paddle_ext.sinkhorn.default
