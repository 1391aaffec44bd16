"""The torch operator `paddle_ext::adapt`."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .. import check
from ..rows import computing_dtype
from . import native
from .large.fixed import is_large
from .large.logits import adapt_large
from .operators import allocator, computable, register, target, workspace
from .pointers import pointer, pointers_to_new

# Labels, probabilities, proportions, dual, iterations, criterion, concentration, bound.
Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def allocate(logits: Tensor) -> Outputs:
    *batch, Q, K = logits.shape
    new, dtype = allocator(logits), computing_dtype(logits)
    per_query, per_class, per_task = (*batch, Q), (*batch, K), tuple(batch)
    strides = (1,) * len(batch)
    return (
        new(per_query, (Q, 1) if batch else (1,), torch.int64),
        new((*batch, Q, K), (Q * K, K, 1) if batch else (K, 1), dtype),
        new(per_class, (K, 1) if batch else (1,), dtype),
        new(per_class, (K, 1) if batch else (1,), dtype),
        new(per_task, strides, torch.int32),
        new(per_task, strides, dtype),
        new(per_task, strides, dtype),
        new(per_task, strides, dtype),
    )


def check_call(logits: Tensor, weight: float, max_iter: int, tol: float) -> None:
    check.logits(logits)
    check.query_weight(weight)
    check.integer("max_iter", max_iter)
    check.real("tol", tol)


def adapt_kernel(logits: Tensor, weight: float, max_iter: int, tol: float) -> Outputs:
    check_call(logits, weight, max_iter, tol)
    *batch, Q, K = logits.shape
    B = batch[0] if batch else 1
    outputs = allocate(logits)
    if B == 0:
        return outputs
    if is_large(Q, K) and not (logits.is_cuda and logits.dtype is torch.float64):
        for number, own in enumerate(logits.reshape(B, Q, K)):
            copy_task(
                own,
                weight,
                max_iter,
                tol,
                [x.view(B, *x.shape[len(batch) :])[number] for x in outputs],
            )
        return outputs
    logits = computable("logits", logits)
    call = native.module.adapt_call(
        target=target(logits),
        dtype=check.DTYPES[logits.dtype],
        B=B,
        Q=Q,
        K=K,
        weight=weight,
        max_iter=max_iter,
        tol=tol,
    )
    memory = workspace(call.workspace(), logits)
    on, results = logits.get_device(), pointers_to_new(outputs)
    call.solve(
        logits=pointer(logits, logits.dtype, (*batch, Q, K), on),
        labels=results[0],
        probabilities=results[1],
        proportions=results[2],
        dual=results[3],
        iterations=results[4],
        criterion=results[5],
        concentration=results[6],
        bound=results[7],
        workspace=pointer(memory, torch.uint8, memory.shape, on),
        workspace_bytes=memory.numel(),
    )
    return outputs


def copy_task(
    logits: Tensor, weight: float, max_iter: int, tol: float, outputs: list[Tensor]
) -> None:
    """Solve a task that is too large for one thread block, and copy the results."""
    results, state, proportions, bound = adapt_large(logits, weight, max_iter, tol)
    assert results.probabilities is not None
    found = (
        results.top.classes[0, :, 0],
        results.probabilities[0],
        proportions[0],
        state.dual[0],
        state.iterations[0],
        state.criterion[0],
        state.concentration[0],
        bound[0],
    )
    for to, x in zip(outputs, found, strict=True):
        to.copy_(x)


def adapt_fake(logits: Tensor, weight: float, max_iter: int, tol: float) -> Outputs:
    check_call(logits, weight, max_iter, tol)
    return allocate(logits)


register(
    "adapt(Tensor logits, float weight, int max_iter, float tol) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    adapt_kernel,
    adapt_fake,
)

adapt_op = torch.ops.paddle_ext.adapt.default
