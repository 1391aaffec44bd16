"""Logits of large tasks from distances to prototypes, which may move.

Letters: B tasks, N rows of each in this process, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import check
from ..native import load as native
from ..native.operators import target
from ..native.pointers import pointer
from ..rows import laid_out
from .class_sums import Part
from .coordinates import Placed
from .products import Form
from .queries import Queries

HELD_BYTES = 2**28  # rows prepared for products are kept in memory if all fit in this


class RowFactors:
    """Iterate over chunks of rows, prepared for products; kept from the first pass if they fit."""

    def __init__(self, queries: Queries, form: Form, K: int) -> None:
        self.queries, self.form, self.K = queries, form, K
        row = queries.D * (12 if queries.device.type == "cuda" else 4)
        self.holds = queries.B * queries.N * row <= HELD_BYTES
        self.held: list[tuple[slice, Tensor]] = []

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        if self.held:
            yield from self.held
            return
        fresh = []
        for part, rows in self.queries.chunks(max(self.K, self.queries.D)):
            x = self.form.operand(rows, part)
            if self.holds:
                fresh.append((part, x.clone() if x is rows else x))
            yield part, x
        self.held = fresh


class DistanceScores:
    """Logits from the distances of rows to prototypes; implements `fixed.Scores`.

    `move` modifies the prototypes `w` [B, K, D] in place.
    """

    def __init__(self, factors: RowFactors, w: Tensor, slope: Tensor, placed: Placed) -> None:
        self.w, self.before, self.exact_slope, self.placed = w, torch.empty_like(w), slope, placed
        B, K, _ = w.shape
        self.shape = (B, factors.queries.N, K)
        self.away = torch.empty(B, K, dtype=torch.float64, device=w.device)
        self.bias = torch.empty_like(self.away)  # without the dual
        self.use(factors)

    def use(self, factors: RowFactors) -> None:
        """Use these factors for all products from now on."""
        self.factors = factors
        self.slope = (self.exact_slope * factors.form.factor()).to(self.w.dtype)
        self.move([], None, None)

    def move(self, sums: list[Tensor], held: Tensor | None, running: Tensor | None) -> None:
        """Move the prototypes of the tasks that are still running; `before` keeps the old ones.

        `sums` are the sums of rows by class, laid out as by `Form.zero_sums`, and `held` [B, K]
        those of their weights. Without sums no prototype moves, but the factors of products and the
        bias are computed.
        """
        form, (B, K, D) = self.factors.form, self.w.shape
        scale, centre, factor = form.on_prototypes or (None, None, None)
        real, exact, on = self.w.dtype, torch.float64, self.w.get_device()
        all_sums, rest = ([*sums, None, None])[:2]
        parts, width = (1, D) if all_sums is None else (len(all_sums) // B, all_sums.shape[-1])
        call = native.module.move_call(
            target=target(self.w),
            dtype=check.DTYPES[self.w.dtype],
            B=B,
            K=K,
            D=D,
            parts=parts,
            width=width,
            pieces=form.pieces,
            start=pointer(self.placed.means, real, (B, K, D), on),
            shots=pointer(self.placed.shots, exact, (B, K), on),
            scale=pointer(scale, real, (B, D), on),
            centre=pointer(centre, real, (B, D), on),
            factor=pointer(factor, real, (B, D), on),
            slope=pointer(self.exact_slope, exact, (B,), on),
        )
        operand = self.w
        if form.pieces:
            shape = (B, K, form.pieces * D)
            operand = torch.empty(shape, dtype=torch.float16, device=self.w.device)
        call.move(
            sums=pointer(all_sums, real, (parts * B, K, width), on),
            rest=pointer(rest, real, (parts * B, K, D), on),
            held=pointer(held, exact, (B, K), on),
            running=pointer(running, torch.int32, (B,), on),
            prototypes=pointer(self.w, real, (B, K, D), on),
            before=pointer(self.before, real, (B, K, D), on),
            away=pointer(self.away, exact, (B, K), on),
            base=pointer(self.bias, exact, (B, K), on),
            operand=pointer(operand, operand.dtype, (B, K, max(form.pieces, 1) * D), on),
        )
        self.operand = operand if form.pieces else laid_out(operand)

    def lengths(self, part: slice) -> Tensor | None:
        form = self.factors.form
        return form.coordinates.lengths(part) if form.weigh else None

    def parts(self) -> Iterator[Part]:
        for at, x in self.factors:
            yield at, self.factors.form.products(x, self.operand), self.lengths(at), x

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        return ((at, products, length) for at, products, length, _ in self.parts())
