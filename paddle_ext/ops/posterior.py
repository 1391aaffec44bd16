"""Probabilities of queries under likelihoods of labelled rows."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .. import check
from ..solution import Solution
from . import native
from .labelled import check_alike, check_floats
from .operators import allocator, check_classes, computable, register, target, workspace

# Those of `adapt`, and whether the queries are plainly finite.
Outputs: TypeAlias = tuple[Tensor, ...]


def posterior(
    query: Tensor,
    centre: Tensor,
    weights: Tensor,
    scale: Tensor,
    squares: Tensor,
    bias: Tensor,
    shots: Tensor,
    sharpness: Tensor,
    lengths: Tensor | None,
    *,
    weight: float = 1.0,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> tuple[Solution, Tensor]:
    """From queries to probabilities; docs/adaptive.md, steps 6 and 7, in one call.

    Parameters
    ----------
    query : Tensor [B, Q, D]
        Float32 or float64, on the CPU; float32 on a CUDA device, like the other tensors.
    centre, weights, scale : Tensor [B or 1, D], [B or 1, K, D], [B or 1, D]
    squares, bias, shots, sharpness : Tensor [B or 1, K], the last [B or 1]
        Fields of `Likelihoods`, for each task or shared by all.
    lengths : Tensor [B or 1, K] or None
        With one shot, the norms of its rows minus the centre.
    weight, max_iter, tol
        As in `adapt`.

    Returns
    -------
    Solution
        That of `adapt`, with the probabilities and labels after the late step.
    Tensor [B] bool
        Whether the queries are plainly finite; False is inconclusive.

    Examples
    --------
    >>> import torch
    >>> from paddle_ext.ops.likelihood import likelihood
    >>> support = torch.tensor([[[2.0, 0.1], [3.0, 0.0], [0.0, 1.0], [0.1, 1.0]]])
    >>> x = likelihood(support, torch.tensor([[0, 0, 1, 1]]), 2, 4)
    >>> said = x.centre, x.weights, x.scale, x.squares, x.bias, x.shots, x.sharpness, None
    >>> posterior(torch.tensor([[[4.0, 1.0], [1.0, 5.0]]]), *said)[0].labels
    tensor([[0, 1]])
    """
    labels, u, proportions, dual, iterations, criterion, a, bound, sound = posterior_op(
        query, centre, weights, scale, squares, bias, shots, sharpness, lengths,
        weight, max_iter, tol,
    )  # fmt: skip
    found = Solution(
        labels, u, proportions, dual, iterations, criterion, concentration=a, bound=bound
    )
    return found, sound


# --- operator -----------------------------------------------------------------------------------


def check_posterior(
    query: Tensor,
    centre: Tensor,
    weights: Tensor,
    scale: Tensor,
    squares: Tensor,
    bias: Tensor,
    shots: Tensor,
    sharpness: Tensor,
    lengths: Tensor | None,
    weight: float,
    max_iter: int,
    tol: float,
) -> None:
    check_floats("query", query)
    check.features("weights", weights)
    check.query_weight(weight)
    check.integer("max_iter", max_iter)
    check.real("tol", tol)
    if query.dim() != 3 or query.shape[1] < 1 or query.shape[2] < 1:
        raise ValueError(
            f"query must have shape [B, Q, D] with Q and D at least 1, got {list(query.shape)}"
        )
    B, _, D = query.shape
    if weights.dim() != 3 or weights.shape[1] < 1:
        raise ValueError(
            f"weights must have shape [B, K, D] with K at least 1, got {list(weights.shape)}"
        )
    K = weights.shape[1]
    check_classes(K, B)
    L = 1 if weights.shape[0] == 1 else B  # labelled rows shared by all tasks
    others = (
        ("centre", centre, (L, D)),
        ("weights", weights, (L, K, D)),
        ("scale", scale, (L, D)),
        ("squares", squares, (L, K)),
        ("bias", bias, (L, K)),
        ("shots", shots, (L, K)),
        ("sharpness", sharpness, (L,)),
        ("lengths", lengths, (L, K)),
    )
    check_alike("query", query, others, optional="lengths")


def allocate(query: Tensor, K: int) -> Outputs:
    B, Q, _ = query.shape
    new, dtype = allocator(query), query.dtype
    return (
        new((B, Q), (Q, 1), torch.int64),
        new((B, Q, K), (Q * K, K, 1), dtype),
        new((B, K), (K, 1), dtype),
        new((B, K), (K, 1), dtype),
        new((B,), (1,), torch.int32),
        new((B,), (1,), dtype),
        new((B,), (1,), dtype),
        new((B,), (1,), dtype),
        new((B,), (1,), torch.bool),
    )


def posterior_kernel(
    query: Tensor,
    centre: Tensor,
    weights: Tensor,
    scale: Tensor,
    squares: Tensor,
    bias: Tensor,
    shots: Tensor,
    sharpness: Tensor,
    lengths: Tensor | None,
    weight: float,
    max_iter: int,
    tol: float,
) -> Outputs:
    tensors = (query, centre, weights, scale, squares, bias, shots, sharpness, lengths)
    check_posterior(*tensors, weight, max_iter, tol)
    B, Q, D = query.shape
    K = weights.shape[1]
    outputs = allocate(query, K)
    if B == 0:
        return outputs
    # The copies, if any, must live as long as the call.
    held = [x if x is None else x.contiguous() for x in (computable("query", query), *tensors[1:])]
    pointers = [0 if x is None else x.data_ptr() for x in held]
    call = native.module.posterior_call(
        target=target(query),
        dtype=check.DTYPES[query.dtype],
        B=B,
        Q=Q,
        K=K,
        D=D,
        shared=weights.shape[0] == 1,
        weight=weight,
        max_iter=max_iter,
        tol=tol,
        squares=pointers[4],
        bias=pointers[5],
        shots=pointers[6],
        sharpness=pointers[7],
        lengths=pointers[8],
    )
    memory = workspace(call.workspace(), query)
    labels, probabilities, proportions, dual, iterations, criterion, *scalars, sound = outputs
    concentration, bound = scalars
    call.solve(
        query=pointers[0],
        centre=pointers[1],
        weights=pointers[2],
        scale=pointers[3],
        labels=labels.data_ptr(),
        probabilities=probabilities.data_ptr(),
        proportions=proportions.data_ptr(),
        dual=dual.data_ptr(),
        iterations=iterations.data_ptr(),
        criterion=criterion.data_ptr(),
        concentration=concentration.data_ptr(),
        bound=bound.data_ptr(),
        sound=sound.data_ptr(),
        workspace=memory.data_ptr(),
        workspace_bytes=memory.numel(),
    )
    return outputs


def posterior_fake(query: Tensor, centre: Tensor, weights: Tensor, *others: object) -> Outputs:
    check_posterior(query, centre, weights, *others)  # type: ignore[arg-type]
    return allocate(query, weights.shape[1])


register(
    "posterior(Tensor query, Tensor centre, Tensor weights, Tensor scale, Tensor squares, "
    "Tensor bias, Tensor shots, Tensor sharpness, Tensor? lengths, float weight, "
    "int max_iter, float tol) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    posterior_kernel,
    posterior_fake,
)

posterior_op = torch.ops.paddle_ext.posterior.default
