"""A prior of the caller on the class proportions, as measures of the Dirichlet distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import check

# Of a class, relative to the mean: less than this counts as this, so that float32 can hold it.
LEAST_WEIGHT = 1e-8


def measures_of(prior: Any, num_classes: int, batch: int | None, like: Tensor) -> Tensor:
    """The measures that a batch of tasks chooses from, [B or 1, 2, K]: even, and the prior.

    Parameters
    ----------
    prior : array [K] or [B, K]
        Weights of the classes, 0 for an impossible one.
    num_classes : int
    batch : int, optional
        B; None: one task, without a batch dimension.
    like : Tensor
        The measures are in its dtype, and on its device.
    """
    K = num_classes
    (prior,) = check.tensors(prior)
    if not isinstance(prior, Tensor):
        raise TypeError(f"prior must be a tensor or an array, got {check.described(prior)}")
    check.dense_tensor("prior", prior)
    shapes = [(K,)] if batch is None else [(K,), (batch, K)]
    if tuple(prior.shape) not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"prior must have shape {wanted}, got {list(prior.shape)}")
    if prior.is_complex():
        raise TypeError(f"prior must be real numbers, got {check.plain(prior.dtype)}")
    p = prior.detach().to("cpu", torch.float64).reshape(-1, K)
    if not bool((p >= 0).all() and p.isfinite().all()):
        worst = p[~(p >= 0) | p.isinf()][0].item()
        raise ValueError(f"prior must be finite and at least 0, got {worst:g}")
    largest = p.amax(-1, keepdim=True)
    if not bool((largest > 0).all()):
        raise ValueError("prior must have a positive weight, got zeros only")
    p = p / largest  # the sum of very large weights would overflow
    possible = p > 0
    even = possible * (K / possible.sum(-1, keepdim=True))
    given = (K * p / p.sum(-1, keepdim=True)).clamp(min=LEAST_WEIGHT) * possible
    return torch.stack([even, given], 1).to(like.device, like.dtype)
