"""The torch operators of PADDLE: `paddle_ext::solve` and `paddle_ext::solve_indexed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import check
from ..large import paddle as large
from ..large.paddle import Options as LargeOptions
from ..native import load as native
from ..native.operators import (
    Sizes,
    allocator,
    check_classes,
    computable,
    dense_sizes,
    integers,
    register,
    target,
    workspace,
)
from ..native.pointers import pointer, pointers_to_new
from ..rows import computing_dtype

# Labels, probabilities, proportions, dual, iterations, criterion, prototypes.
Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

OPTIONS = (
    "SymInt num_classes, float? lam, int scaling, float temperature, float epsilon, "
    "int max_iter, float tol, bool prototypes"
)
OUTPUTS = "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor"


def empty_outputs(
    like: Tensor, batch: Sequence[int], Q: int, K: int, D: int, prototypes: bool
) -> Outputs:
    """Uninitialised tensors for the outputs; without `prototypes`, theirs has no elements."""
    new, dtype = allocator(like), computing_dtype(like)
    per_query, per_class, per_task = (*batch, Q), (*batch, K), tuple(batch)
    strides = (1,) * len(batch)
    return (
        new(per_query, (Q, 1) if batch else (1,), torch.int64),
        new((*batch, Q, K), (Q * K, K, 1) if batch else (K, 1), dtype),
        new(per_class, (K, 1) if batch else (1,), dtype),
        new(per_class, (K, 1) if batch else (1,), dtype),
        new(per_task, strides, torch.int32),
        new(per_task, strides, dtype),
        new((*batch, K, D), (K * D, D, 1) if batch else (D, 1), dtype)
        if prototypes
        else new((0,), (1,), dtype),
    )


def check_options(
    lam: float | None,
    scaling: int,
    temperature: float,
    epsilon: float,
    max_iter: int,
    tol: float,
) -> None:
    most = check.LARGEST
    if (
        (lam is None or 0.0 <= lam <= most)
        and 0 <= scaling < len(check.SCALINGS)
        and 0.0 < temperature <= most
        and 0.0 < epsilon <= most
        and 1 <= max_iter <= check.MOST
        and 0.0 <= tol <= most
    ):
        return
    check_number("scaling", scaling, check.SCALING_NAMES)
    if lam is not None:
        check.real("lam", lam)
    check.real("temperature", temperature, positive=True)
    check.real("epsilon", epsilon, positive=True)
    check.integer("max_iter", max_iter)
    check.real("tol", tol)


def check_number(name: str, value: int, meanings: Sequence[str]) -> None:
    """Raise unless `value` is the number of one of these meanings."""
    if not 0 <= value < len(meanings):
        known = ", ".join(f"{number} ({meaning})" for number, meaning in enumerate(meanings))
        raise ValueError(f"{name} must be one of {known}, got {value}")


def indexed_sizes(
    features: Tensor, support_index: Tensor, support_labels: Tensor, query_index: Tensor, K: int
) -> Sizes:
    check.indexed(features, support_index, support_labels, query_index)
    *batch, Q = query_index.shape
    B = batch[0] if batch else 1
    check_classes(K, B)
    shared = support_index.dim() < query_index.dim()
    return batch, B, Q, support_index.shape[-1], K, features.shape[1], shared


def solve_kernel(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int, *options: Any
) -> Outputs:
    sizes = dense_sizes(support, support_labels, query, num_classes)
    check_options(*options[:-1])
    support, query = computable("support", support), computable("query", query)
    labels = integers(support_labels)
    return launch(query, support, labels, None, None, sizes, 0, *options)


def solve_indexed_kernel(
    features: Tensor,
    support_index: Tensor,
    support_labels: Tensor,
    query_index: Tensor,
    num_classes: int,
    *options: Any,
) -> Outputs:
    sizes = indexed_sizes(features, support_index, support_labels, query_index, num_classes)
    check_options(*options[:-1])
    bank, labels = computable("features", features), integers(support_labels)
    rows = integers(support_index), integers(query_index)
    return launch(bank, bank, labels, *rows, sizes, bank.shape[0], *options)


def launch(
    query: Tensor,
    support: Tensor,
    support_labels: Tensor,
    support_index: Tensor | None,
    query_index: Tensor | None,
    sizes: Sizes,
    N: int,  # rows of the bank, 0 without one
    lam: float | None,
    scaling: int,
    temperature: float,
    epsilon: float,
    max_iter: int,
    tol: float,
    prototypes: bool,
) -> Outputs:
    batch, B, Q, S, K, D, shared = sizes
    if B == 0:
        return empty_outputs(query, batch, Q, K, D, prototypes)
    call = native.module.paddle_call(
        target=target(query),
        dtype=check.DTYPES[query.dtype],
        sizes=(B, Q, S, K, D, N),
        support_shared=shared,
        lam=float(Q) if lam is None else lam,
        scaling=scaling,
        temperature=temperature,
        epsilon=epsilon,
        max_iter=max_iter,
        tol=tol,
    )
    somewhere = 64 if prototypes else 0  # an address that is not followed
    bytes_needed = call.workspace(prototypes=somewhere)
    if bytes_needed < 0:
        name = check.SCALING_NAMES[scaling]
        options = LargeOptions(
            lam, name, temperature, epsilon, max_iter, tol, prototypes=prototypes
        )
        tensors = query, support, support_labels, support_index, query_index
        return launch_large(tensors, sizes, options)
    outputs = empty_outputs(query, batch, Q, K, D, prototypes)
    memory = workspace(bytes_needed, query)
    *results, means, scratch = pointers_to_new((*outputs, memory))
    labels, probabilities, proportions, dual, iterations, criterion = results
    given, on = query.dtype, query.get_device()
    per_query, labelled = (*batch, Q), (S,) if shared else (*batch, S)
    call.solve(
        support=pointer(support, given, (N, D) if N else (*labelled, D), on),
        support_labels=pointer(support_labels, torch.int64, labelled, on),
        query=pointer(query, given, (N, D) if N else (*per_query, D), on),
        support_index=pointer(support_index, torch.int64, labelled, on),
        query_index=pointer(query_index, torch.int64, per_query, on),
        labels=labels,
        probabilities=probabilities,
        proportions=proportions,
        dual=dual,
        iterations=iterations,
        criterion=criterion,
        prototypes=means if prototypes else 0,
        workspace=scratch,
        workspace_bytes=memory.numel(),
    )
    return outputs


def launch_large(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    sizes: Sizes,
    options: LargeOptions,
) -> Outputs:
    """Solve tasks that are too large for one CPU thread, or one thread block of a GPU."""
    query, support, labels, support_index, query_index = tensors
    batch, B, Q, S, K, D, _ = sizes
    if support_index is not None and query_index is not None:
        inside = support_index.reshape(-1, S).clamp(0, len(query) - 1)
        rows = support.index_select(0, inside.view(-1)).view(-1, S, D)
        index = query_index.reshape(B, Q).clamp(0, len(query) - 1)
        found = large.solve_indexed(query, index, rows, labels.reshape(-1, S), K, options)
    else:
        rows = support.reshape(-1, S, D)
        found = large.solve(query.reshape(B, Q, D), rows, labels.reshape(-1, S), K, options)
    assert found.probabilities is not None
    nothing = query.new_empty(0, dtype=computing_dtype(query))
    return (
        found.top.classes[..., 0].reshape(*batch, Q),
        found.probabilities.view(*batch, Q, K),
        found.proportions.view(*batch, K),
        found.dual.view(*batch, K),
        found.iterations.view(batch),
        found.criterion.view(batch),
        nothing if found.prototypes is None else found.prototypes.view(*batch, K, D),
    )


def solve_fake(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int, *options: Any
) -> Outputs:
    batch, _, Q, _, K, D, _ = dense_sizes(support, support_labels, query, num_classes)
    check_options(*options[:-1])
    return empty_outputs(query, batch, Q, K, D, options[-1])


def solve_indexed_fake(
    features: Tensor,
    support_index: Tensor,
    support_labels: Tensor,
    query_index: Tensor,
    num_classes: int,
    *options: Any,
) -> Outputs:
    tensors = features, support_index, support_labels, query_index
    batch, _, Q, _, K, D, _ = indexed_sizes(*tensors, num_classes)
    check_options(*options[:-1])
    return empty_outputs(features, batch, Q, K, D, options[-1])


DENSE = "Tensor support, Tensor support_labels, Tensor query"
INDEXED = "Tensor features, Tensor support_index, Tensor support_labels, Tensor query_index"

register(f"solve({DENSE}, {OPTIONS}) -> ({OUTPUTS})", solve_kernel, solve_fake)
register(
    f"solve_indexed({INDEXED}, {OPTIONS}) -> ({OUTPUTS})", solve_indexed_kernel, solve_indexed_fake
)

solve_op = torch.ops.paddle_ext.solve.default
solve_indexed_op = torch.ops.paddle_ext.solve_indexed.default
