"""The late step of `adaptive` in plain torch: every query is classified without itself."""

from __future__ import annotations

import torch
from torch import Tensor


def step(
    given: Tensor,
    cross: Tensor,
    inner: Tensor,
    own: Tensor,
    extra: Tensor | None,
    shots: Tensor,
    squares: Tensor,
    sharpness: Tensor,
    constant: Tensor,
    total: Tensor,
    prior: Tensor,
    *,
    weight: float = 1.0,
    temper: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """See `paddle_ext.ops.step`; computed in float64.

    Examples
    --------
    >>> import torch
    >>> given, ones = torch.full((1, 2, 2), 0.5), torch.ones(1, 2)
    >>> cross, prior = torch.tensor([[[3.0, 0.0], [0.0, 3.0]]]), torch.ones(1)
    >>> step(given, cross, 0 * cross, ones, None, ones, ones, prior, ones, ones, prior)[1]
    tensor([[0, 1]])
    """
    u, still, moving, self_product = (x.detach().double() for x in (given, cross, inner, own))
    n, own_square, all_of, added = (
        x.detach().double().unsqueeze(1) for x in (shots, squares, total, constant)
    )
    f, a = (x.detach().double().view(-1, 1, 1) for x in (sharpness, prior))
    w = (u * (1 - a / all_of).clamp(min=0)).square()
    # With s the sum of a class: products x.s, the square s.s, the mass.
    with_sum = n * still + moving
    square = n.square() * own_square + (w * (n * still + with_sum)).sum(1, keepdim=True)
    mass = n + w.sum(1, keepdim=True)
    # Without the query itself.
    alone = with_sum - w * self_product.unsqueeze(-1)
    square = square - 2 * w * with_sum + w.square() * self_product.unsqueeze(-1)
    mass = mass - w
    half = alone / mass - square / (2 * mass.square())
    logits = f * half + added + torch.log(torch.maximum(all_of - weight * u, a))
    if extra is not None:
        logits = logits + extra.detach().double()
    probabilities = torch.softmax(temper * logits, dim=-1)
    return probabilities.to(given.dtype), probabilities.argmax(-1)
