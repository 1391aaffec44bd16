"""Large tasks with fixed logits: class proportions, from stored likelihoods.

Letters: B tasks, N rows of each in this process, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .group import Group
from .steps import State, Top, assign, count, is_captured

LARGE = 2**22  # queries times classes from which a task is processed in chunks
KEPT_BYTES = 2**31 - 2**26  # of likelihoods; beyond, logits are recomputed in every iteration


def is_large(Q: int, K: int) -> bool:
    """Whether a task is too large for one thread block."""
    return Q * K > LARGE


class Scores(Protocol):
    """Logits of the rows of B tasks, ``slope length products + bias``, in chunks."""

    shape: tuple[int, int, int]  # B, N, K
    slope: Tensor  # [B] float32, or float64 like the products
    bias: Tensor  # [B, K] float64

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Indices, products [B, n, K or more] that may be overwritten, lengths [B, n]."""


class Recomputed:
    """Sums of probabilities by class, from recomputed logits."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def held(self, dual: Tensor, group: Group) -> Tensor:
        """With `dual` [B, K] added to the logits, [B, K] float64."""
        scores = self.scores
        held = torch.zeros_like(scores.bias)
        bias = (scores.bias + dual).to(scores.slope.dtype)
        for _, products, length in scores.chunks():
            written = None if products.shape[-1] != bias.shape[-1] else products
            assign(
                products,
                scores.slope,
                bias,
                length=length,
                probabilities=written,
                held=held,
            )
        group.sum(held)
        return held


class Kept:
    """The same from stored likelihoods; float16 on CUDA.

    They are relative to the largest one of a row under an early dual. If a later dual prefers a
    class whose likelihood has underflowed, they are recomputed.
    """

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        dtype = kept_dtype(scores.slope)
        self.likelihood = torch.empty(scores.shape, dtype=dtype, device=scores.slope.device)
        self.anchor = torch.zeros_like(scores.bias)
        self.compute()

    def compute(self) -> None:
        scores = self.scores
        bias = (scores.bias + self.anchor).to(scores.slope.dtype)
        for part, products, length in scores.chunks():
            assign(
                products,
                scores.slope,
                bias,
                length=length,
                probabilities=self.likelihood[:, part],
                normalise=False,
            )
            del products  # makes room for the next ones

    def held(self, dual: Tensor, group: Group) -> Tensor:
        held, faint = self.count(dual, group)
        if bool(faint.any()):
            self.anchor = dual.clone()
            self.compute()
            held, _ = self.count(dual, group)
        return held

    def count(self, dual: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        held = torch.zeros_like(self.anchor)
        faint = torch.zeros_like(held[:, 0])
        weights = dual - self.anchor
        weights = torch.exp(weights - weights.amax(-1, keepdim=True))
        count(self.likelihood, weights.to(self.scores.slope.dtype), held, faint)
        group.sum(held, faint)
        return held, faint


def kept_dtype(real: Tensor) -> torch.dtype:
    return torch.float16 if real.is_cuda else real.dtype


def class_counter(scores: Scores) -> Kept | Recomputed:
    """What sums probabilities by class: from stored likelihoods, if they fit."""
    B, N, K = scores.shape
    if is_captured(scores.slope) or B * N * K * kept_dtype(scores.slope).itemsize > KEPT_BYTES:
        return Recomputed(scores)
    return Kept(scores)


def iterate_dual(scores: Scores, state: State, group: Group, max_iter: int) -> Kept | Recomputed:
    """Iterate the dual until every task has stopped; returns the counter of classes."""
    counter = class_counter(scores)
    for _ in range(max_iter):
        state.update(counter.held(state.dual_weight * state.dual, group))
        if not state.goes_on():
            break
    return counter


@dataclass(frozen=True)
class RowResults:
    """Results for the rows of B tasks."""

    top: Top
    probabilities: Tensor | None  # [B, N, K]
    held: Tensor  # [B, K] float64
    log_sums: Tensor  # [B] float64: of the normalisers


def empty_results(scores: Scores, *, top: int, all_classes: bool) -> RowResults:
    """Memory for the results, with sums of zero."""
    B, N, K = scores.shape
    return RowResults(
        Top.room(scores.slope, B, N, min(top, K)),
        scores.slope.new_empty(B, N, K) if all_classes else None,
        torch.zeros_like(scores.bias),
        torch.zeros_like(scores.bias[:, 0]),
    )


def classify_rows(
    scores: Scores, dual: Tensor, group: Group, *, top: int, all_classes: bool
) -> RowResults:
    """Labels and probabilities of all rows, with `dual` [B, K] added to their logits."""
    found = empty_results(scores, top=top, all_classes=all_classes)
    bias = (scores.bias + dual).to(scores.slope.dtype)
    for part, products, length in scores.chunks():
        written = None if found.probabilities is None else found.probabilities[:, part]
        assign(
            products,
            scores.slope,
            bias,
            length=length,
            top=found.top.rows(part),
            probabilities=written,
            held=found.held,
            log_sums=found.log_sums,
        )
    group.sum(found.held, found.log_sums)
    return found
