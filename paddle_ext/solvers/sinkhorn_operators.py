"""The torch operator of Sinkhorn's iteration, `paddle_ext::sinkhorn`."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .. import check
from ..native import load as native
from ..native.operators import allocator, computable, register, target, workspace
from ..native.pointers import packed, pointer
from ..rows import computing_dtype

Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor]  # plan, iterations, residual


def empty_outputs(cost: Tensor) -> Outputs:
    """Uninitialised tensors for the outputs."""
    *batch, Q, K = cost.shape
    new, dtype, per_task = allocator(cost), computing_dtype(cost), tuple(batch)
    strides = (1,) * len(batch)
    return (
        new((*batch, Q, K), (Q * K, K, 1) if batch else (K, 1), dtype),
        new(per_task, strides, torch.int32),
        new(per_task, strides, dtype),
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
    outputs = plan, iterations, residual = empty_outputs(cost)
    if B == 0:
        return outputs
    # Unlike features, a half-precision cost is copied even on CUDA.
    cost = computable("cost", cost).to(plan.dtype)
    row_mass, col_mass = (packed(x.to(plan.dtype)) for x in (row_mass, col_mass))
    rows_shared, columns_shared = (x.dim() < cost.dim() - 1 for x in (row_mass, col_mass))
    call = native.module.sinkhorn_call(
        target=target(cost),
        dtype=check.DTYPES[cost.dtype],
        B=B,
        Q=Q,
        K=K,
        row_mass_shared=rows_shared,
        col_mass_shared=columns_shared,
        sharpness=min(1.0 / reg, check.LARGEST),
        max_iter=max_iter,
        tol=tol,
    )
    memory = workspace(call.workspace(), cost)
    real, on, per_task = plan.dtype, cost.get_device(), tuple(batch)
    call.solve(
        cost=pointer(cost, real, (*batch, Q, K), on),
        row_mass=pointer(row_mass, real, (Q,) if rows_shared else (*batch, Q), on),
        col_mass=pointer(col_mass, real, (K,) if columns_shared else (*batch, K), on),
        plan=pointer(plan, real, (*batch, Q, K), on),
        iterations=pointer(iterations, torch.int32, per_task, on),
        residual=pointer(residual, real, per_task, on),
        workspace=pointer(memory, torch.uint8, memory.shape, on),
        workspace_bytes=memory.numel(),
    )
    return outputs


def sinkhorn_fake(
    cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float, max_iter: int, tol: float
) -> Outputs:
    check_call(cost, row_mass, col_mass, reg, max_iter, tol)
    return empty_outputs(cost)


register(
    "sinkhorn(Tensor cost, Tensor row_mass, Tensor col_mass, float reg, int max_iter, float tol) "
    "-> (Tensor, Tensor, Tensor)",
    sinkhorn_kernel,
    sinkhorn_fake,
)

sinkhorn_op = torch.ops.paddle_ext.sinkhorn.default
