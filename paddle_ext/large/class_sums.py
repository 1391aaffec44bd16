"""Sums of the rows of large tasks by class, weighted by the probabilities of one pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from .products import Form
from .steps import Top, assign

# Some rows of a task: their indices, products with the prototypes, lengths, and the terms to sum.
Part: TypeAlias = tuple[slice, Tensor, Tensor | None, Tensor]


def sums_by_class(
    parts: Iterable[Part],
    slope: Tensor,
    bias: Tensor,
    form: Form,
    *,
    weigh: bool = False,
    squared: bool = False,
    top: Top | None = None,
    out: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Sums of rows by class, laid out as by `Form.zero_sums`, and of their weights, [B, K] float64.

    `slope` [B], `bias` [B, K], `weigh` and `squared` are those of `assign`. The most probable
    classes of all rows are written to `top`. `out` [B, N, K] receives the weights, unless the form
    needs them in a dtype of its own.
    """
    K = bias.shape[-1]
    sums, held = form.zero_sums(K), torch.zeros_like(bias, dtype=torch.float64)
    for part, products, length, x in parts:
        u, rest = products if out is None else out[:, part], None
        if form.written is not None:
            shape = *products.shape[:2], K
            u = torch.empty(shape, dtype=form.written, device=products.device)
            rest = torch.empty_like(u) if form.rest else None
        assign(
            products,
            slope,
            bias,
            length=length,
            squared=squared,
            probabilities=u,
            rest=rest,
            held=held,
            weigh=weigh,
            top=None if top is None else top.rows(part),
        )
        form.add(sums, u, rest, x)
    return sums, held
