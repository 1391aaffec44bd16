"""A prior of the caller on the class proportions, as measures of the Dirichlet distribution."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import check
from .limits import LEAST_PRIOR_WEIGHT
from .rows import computing_dtype


class Measures(NamedTuple):
    """The two candidate priors of each task; the one under which the batch is likelier is used."""

    values: Tensor  # [B or 1, 2, K] class weights: even ones, then the given ones; both of mean 1
    all_possible: bool  # whether no class has a weight of 0


def measures_of(prior: Any, num_classes: int, batch: int | None, like: Tensor) -> Measures:
    """Check a prior [K] or [batch, K], and turn it into measures; on CUDA this synchronises."""
    K = num_classes
    (prior,) = check.tensors(prior)
    check.dense_tensor("prior", prior)
    shapes = [(K,)] if batch is None else [(K,), (batch, K)]
    if tuple(prior.shape) not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"prior must have shape {wanted}, got {list(prior.shape)}")
    if prior.is_complex():
        raise TypeError(f"prior must be real numbers, got {check.plain(prior.dtype)}")
    p = prior.to(like.device).double().reshape(-1, K)
    if len(p) == 0:
        return Measures(p.new_ones(0, 2, K, dtype=computing_dtype(like)), True)
    total = p.sum(-1, keepdim=True)
    # A NaN anywhere makes the extremes NaN.
    least, lowest_total, most = check.numbers_of([p.amin(), *torch.aminmax(total)])
    if not 0 <= least <= most < math.inf:
        wrong = ~(p >= 0) | p.isinf()
        if wrong.any():
            raise ValueError(f"prior must be finite and at least 0, got {p[wrong][0].item():g}")
        # The sum overflows.
        scaled = p / p.amax(-1, True).clamp(min=1)
        return measures_of(scaled.reshape(prior.shape), K, batch, like)
    if lowest_total == 0:
        raise ValueError("prior must have a positive weight, got zeros only")
    values = torch.ones(len(p), 2, K, dtype=computing_dtype(like), device=like.device)
    values[:, 1] = (p / total).mul_(K).clamp_(min=LEAST_PRIOR_WEIGHT)
    if least == 0:
        possible = p > 0
        values *= possible.unsqueeze(1)
        values[:, 0] *= K / possible.sum(-1, keepdim=True, dtype=torch.float64)
    return Measures(values, least > 0)
