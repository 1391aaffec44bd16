"""The torch operator of TIM, `paddle_ext::tim`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import check
from ..native import load as native
from ..native.operators import (
    allocator,
    computable,
    dense_sizes,
    integers,
    register,
    target,
    workspace,
)
from ..native.pointers import pointer
from ..rows import computing_dtype

Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
Triple: TypeAlias = tuple[float, float, float]

SOLVERS = ("gd", "adm")  # in the native numbering
TINY = 1e-30  # relative to the largest query


def empty_outputs(
    like: Tensor, batch: Sequence[int], Q: int, K: int, D: int, max_iter: int, losses: bool
) -> Outputs:
    """Uninitialised tensors for labels, probabilities, prototypes and losses.

    Without `losses`, theirs has no elements.
    """
    new, dtype = allocator(like), computing_dtype(like)
    B = batch[0] if batch else 1
    return (
        new((*batch, Q), (Q, 1) if batch else (1,), torch.int64),
        new((*batch, Q, K), (Q * K, K, 1) if batch else (K, 1), dtype),
        new((*batch, K, D), (K * D, D, 1) if batch else (D, 1), dtype),
        new((max_iter, *batch), (B, 1) if batch else (1,), dtype)
        if losses
        else new((0,), (1,), dtype),
    )


def triple(name: str, values: object, *, positive: bool = False) -> Triple:
    """Check that `values` are three numbers >= 0, or > 0 if `positive`, and return them."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} must be three numbers, got {check.kind(values)}")
    if len(values) != 3:
        raise ValueError(f"{name} must be three numbers, got {len(values)}")
    first, second, third = (
        check.real(f"{name}[{i}]", value, positive=positive) for i, value in enumerate(values)
    )
    return first, second, third


def check_options(
    solver: int,
    normalize: bool,
    temperature: float,
    weights: Sequence[float],
    alphas: Sequence[float],
    learning_rate: float,
    max_iter: int,
    losses: bool,
) -> None:
    if not 0 <= solver < len(SOLVERS):
        raise ValueError(f"solver must be 0 (gd) or 1 (adm), got {solver}")
    check.real("temperature", temperature, positive=True)
    triple("weights", weights)
    triple("alphas", alphas, positive=True)
    check.real("learning_rate", learning_rate, positive=True)
    check.integer("max_iter", max_iter)


def without_tiny(support: Tensor, query: Tensor) -> Tensor:
    """The support with zeros for numbers that are negligible next to the queries of the task.

    The CUDA code divides a task by the size of its support; with a tiny one the queries overflow.
    """
    largest = query.abs().amax((-2, -1), keepdim=True)
    if support.dim() < query.dim():
        largest = largest.amax(0) if len(query) else support.new_zeros(())
    return torch.where(support.abs() < TINY * largest, 0, support)


def tim_kernel(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    num_classes: int,
    solver: int,
    normalize: bool,
    temperature: float,
    weights: Sequence[float],
    alphas: Sequence[float],
    learning_rate: float,
    max_iter: int,
    losses: bool,
) -> Outputs:
    batch, B, Q, S, K, D, shared = dense_sizes(support, support_labels, query, num_classes)
    check_options(solver, normalize, temperature, weights, alphas, learning_rate, max_iter, losses)
    support, query = computable("support", support), computable("query", query)
    if query.is_cuda and not normalize:
        support = without_tiny(support, query)
    support_labels = integers(support_labels)
    outputs = labels, probabilities, prototypes, trace = empty_outputs(
        query, batch, Q, K, D, max_iter, losses
    )
    if B == 0:
        return outputs
    call = native.module.tim_call(
        target=target(query),
        dtype=check.DTYPES[query.dtype],
        B=B,
        Q=Q,
        S=S,
        K=K,
        D=D,
        support_shared=shared,
        solver=solver,
        normalize=normalize,
        temperature=temperature,
        weights=weights,
        alphas=alphas,
        learning_rate=learning_rate,
        max_iter=max_iter,
    )
    memory = workspace(call.workspace(), query)
    given, real, on = query.dtype, probabilities.dtype, query.get_device()
    per_query, labelled = (*batch, Q), (S,) if shared else (*batch, S)
    call.solve(
        support=pointer(support, given, (*labelled, D), on),
        support_labels=pointer(support_labels, torch.int64, labelled, on),
        query=pointer(query, given, (*per_query, D), on),
        labels=pointer(labels, torch.int64, per_query, on),
        probabilities=pointer(probabilities, real, (*per_query, K), on),
        prototypes=pointer(prototypes, real, (*batch, K, D), on),
        losses=pointer(trace, real, (max_iter, *batch), on) if losses else 0,
        workspace=pointer(memory, torch.uint8, memory.shape, on),
        workspace_bytes=memory.numel(),
    )
    return outputs


def tim_fake(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int, *options: Any
) -> Outputs:
    batch, _, Q, _, K, D, _ = dense_sizes(support, support_labels, query, num_classes)
    check_options(*options)
    max_iter, losses = options[-2:]
    return empty_outputs(query, batch, Q, K, D, max_iter, losses)


register(
    "tim(Tensor support, Tensor support_labels, Tensor query, SymInt num_classes, int solver, "
    "bool normalize, float temperature, float[] weights, float[] alphas, float learning_rate, "
    "int max_iter, bool losses) -> (Tensor, Tensor, Tensor, Tensor)",
    tim_kernel,
    tim_fake,
)

tim_op = torch.ops.paddle_ext.tim.default
