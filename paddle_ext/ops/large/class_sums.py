"""Sums of the rows of large tasks by class, weighted by the probabilities of one pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from .fixed import Scores
from .group import Group
from .products import Form
from .steps import assign

# Products of some rows with the prototypes, the lengths of these rows, and the terms to sum.
Part: TypeAlias = tuple[Tensor, Tensor | None, Tensor]


def sums_by_class(
    parts: Iterable[Part],
    scores: Scores,
    dual: Tensor,
    form: Form,
    group: Group,
    *,
    weigh: bool = False,
    trust: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sums of rows by class [B, K, D], in the coordinates of `form`, and of their weights [B, K].

    `dual` [B, K] is added to the logits; `weigh` and `trust` are those of `assign`.
    """
    K = dual.shape[-1]
    sums, held = form.room(K), torch.zeros_like(dual)
    bias = (scores.bias + dual).to(scores.slope.dtype)
    for products, length, x in parts:
        u, rest = products, None
        if form.written is not None:
            shape = *products.shape[:2], K
            u = torch.empty(shape, dtype=form.written, device=products.device)
            rest = torch.empty_like(u) if form.rest else None
        assign(
            products,
            scores.slope,
            bias,
            length=length,
            trust=trust,
            probabilities=u,
            rest=rest,
            held=held,
            weigh=weigh,
        )
        form.add(sums, u, rest, x)
    group.sum(held, *sums)
    return form.total(sums, held), held
