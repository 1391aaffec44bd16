"""The torch operator `paddle_ext::adapt`."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .. import check
from ..large.fixed import RowResults, is_large
from ..large.logits import adapt_large
from ..large.steps import State
from ..native import load as native
from ..native.operators import allocator, computable, register, target, workspace
from ..native.pointers import packed, pointer, pointers_to_new
from ..rows import computing_dtype

# Labels, probabilities, proportions, dual, iterations, criterion, concentration, bound, prior.
Outputs: TypeAlias = tuple[Tensor, ...]


def empty_outputs(logits: Tensor) -> Outputs:
    """Uninitialised tensors for the outputs."""
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
        new(per_task, strides, torch.int32),
    )


def check_call(
    logits: Tensor, weight: float, max_iter: int, tol: float, measures: Tensor | None
) -> None:
    check.logits(logits)
    check.query_weight(weight)
    *batch, _, K = logits.shape
    if measures is not None and (
        measures.dim() != 3
        or len(measures) not in (1, *batch)
        or measures.shape[1] < 1
        or measures.shape[2] != K
        or measures.device != logits.device
        or measures.dtype is not computing_dtype(logits)
    ):
        raise ValueError(
            "measures must have shape [B or 1, n, K], on the device of the logits and in the dtype "
            f"of the computation, got {list(measures.shape)}, {measures.device}, {measures.dtype}"
        )
    check.integer("max_iter", max_iter)
    check.real("tol", tol)


def adapt_kernel(
    logits: Tensor, weight: float, max_iter: int, tol: float, measures: Tensor | None = None
) -> Outputs:
    check_call(logits, weight, max_iter, tol, measures)
    *batch, Q, K = logits.shape
    B = batch[0] if batch else 1
    outputs = empty_outputs(logits)
    if B == 0:
        return outputs
    if is_large(Q, K) and not (logits.is_cuda and logits.dtype is torch.float64):
        for number, own in enumerate(logits.reshape(B, Q, K)):
            priors = None if measures is None else measures[number % len(measures)]
            found = adapt_large(own, weight, max_iter, tol, measures=priors)
            for to, x in zip(outputs, task_outputs(*found), strict=True):
                to.view(B, *to.shape[len(batch) :])[number].copy_(x)
        return outputs
    logits, n = computable("logits", logits), 0
    if measures is not None:
        measures, n = packed(measures.expand(B, -1, K)), measures.shape[1]
    call = native.module.adapt_call(
        target=target(logits),
        dtype=check.DTYPES[logits.dtype],
        B=B,
        Q=Q,
        K=K,
        weight=weight,
        max_iter=max_iter,
        tol=tol,
        priors=n,
    )
    memory = workspace(call.workspace(), logits)
    on, results = logits.get_device(), pointers_to_new(outputs)
    call.solve(
        logits=pointer(logits, logits.dtype, (*batch, Q, K), on),
        measures=pointer(measures, computing_dtype(logits), (B, n, K), on),
        labels=results[0],
        probabilities=results[1],
        proportions=results[2],
        dual=results[3],
        iterations=results[4],
        criterion=results[5],
        concentration=results[6],
        bound=results[7],
        chosen=results[8],
        workspace=pointer(memory, torch.uint8, memory.shape, on),
        workspace_bytes=memory.numel(),
    )
    return outputs


def task_outputs(
    results: RowResults, state: State, proportions: Tensor, bound: Tensor, prior: int
) -> Outputs:
    """The outputs for a task that is too large for one thread block, from `adapt_large`."""
    u = results.top.probabilities if results.probabilities is None else results.probabilities
    return (
        results.top.classes[0, :, 0],
        u[0],
        proportions[0],
        state.dual[0],
        state.iterations[0],
        state.criterion[0],
        state.concentration[0],
        bound[0],
        torch.full_like(state.iterations[0], prior),
    )


def adapt_fake(
    logits: Tensor, weight: float, max_iter: int, tol: float, measures: Tensor | None = None
) -> Outputs:
    check_call(logits, weight, max_iter, tol, measures)
    return empty_outputs(logits)


register(
    "adapt(Tensor logits, float weight, int max_iter, float tol, Tensor? measures=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    adapt_kernel,
    adapt_fake,
)

adapt_op = torch.ops.paddle_ext.adapt.default
