"""The torch operator of TIM, `paddle_ext::tim`; see `paddle_operators` for how it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from . import check, native
from .paddle_operators import computable, dense_sizes, integers, library, place

Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]

library.define(  # type: ignore[no-untyped-call]
    "tim(Tensor support, Tensor support_labels, Tensor query, SymInt num_classes, int solver, "
    "bool normalize, float temperature, float[] weights, float[] alphas, float learning_rate, "
    "int iterations, bool losses) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


def allocate(
    like: Tensor, batch: Sequence[int], Q: int, K: int, D: int, iterations: int, losses: bool
) -> Outputs:
    """Labels, probabilities, prototypes, losses (or nothing)."""
    new, device = torch.empty, like.device
    real = torch.float64 if like.dtype is torch.float64 else torch.float32
    return (
        new(*batch, Q, dtype=torch.int64, device=device),
        new(*batch, Q, K, dtype=real, device=device),
        new(*batch, K, D, dtype=real, device=device),
        new((iterations, *batch) if losses else 0, dtype=real, device=device),
    )


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
    iterations: int,
    losses: bool,
) -> Outputs:
    batch, B, Q, S, D, shared = dense_sizes(support, support_labels, query)
    outputs = allocate(query, batch, Q, num_classes, D, iterations, losses)
    if B == 0:
        return outputs
    support, query = computable(support), computable(query)
    labels = integers(support_labels)
    module = native.load()
    on_cuda, device, stream, threads = place(query)
    sizes = check.DTYPES[query.dtype], B, Q, S, num_classes, D, shared
    bytes_needed = module.tim_workspace(on_cuda, device, threads, *sizes)
    workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=query.device)
    found, probabilities, prototypes, trace = outputs
    module.tim_solve(
        on_cuda,
        device,
        stream,
        threads,
        *sizes,
        support.data_ptr(),
        labels.data_ptr(),
        query.data_ptr(),
        solver,
        normalize,
        temperature,
        weights,
        alphas,
        learning_rate,
        iterations,
        found.data_ptr(),
        probabilities.data_ptr(),
        prototypes.data_ptr(),
        trace.data_ptr() if losses else 0,
        workspace.data_ptr(),
        bytes_needed,
    )
    return outputs


for key in ("CPU", "CUDA"):
    library.impl("tim", tim_kernel, key)  # type: ignore[no-untyped-call]
library.impl("tim", torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]


@torch.library.register_fake("paddle_ext::tim", lib=library)  # type: ignore[untyped-decorator]
def tim_fake(support: Tensor, labels: Tensor, query: Tensor, K: int, *options: object) -> Outputs:
    *batch, Q, D = query.shape
    iterations, losses = options[-2:]
    assert isinstance(iterations, int)
    return allocate(query, batch, Q, K, D, iterations, bool(losses))


tim_op = torch.ops.paddle_ext.tim.default
