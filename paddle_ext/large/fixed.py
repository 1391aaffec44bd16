"""Class proportions of large tasks whose logits are fixed, from stored likelihoods if they fit.

Letters: B tasks, N rows of each in this process, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import check
from ..native.load import module as native
from .steps import State, Top, assign, count, is_captured

LARGE = 2**22  # a task with more queries times classes is processed in chunks
KEPT_BYTES = 2**31 - 2**26  # if likelihoods take more, every iteration recomputes the logits


def is_large(Q: int, K: int) -> bool:
    """Whether a task is too large for one thread block."""
    return Q * K > LARGE


class Scores(Protocol):
    """Logits of the rows of B tasks, ``slope length products + bias``, in chunks."""

    shape: tuple[int, int, int]  # B, N, K
    slope: Tensor  # [B] float32, or float64 like the products
    bias: Tensor  # [B, K] float64

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Indices, products [B, n, K or more], which the caller may overwrite, lengths [B, n]."""


class Recomputed:
    """Sums probabilities by class; recomputes the logits every time."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def held(self, dual: Tensor) -> Tensor:
        """Sums of probabilities by class [B, K] float64, with `dual` [B, K] added to the logits."""
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
        return held


class Kept:
    """Sums probabilities by class from stored likelihoods; float16 on CUDA.

    Each row is divided by its largest likelihood under the dual `anchor`. If a later dual prefers a
    class whose likelihood has underflowed, the likelihoods are recomputed with that dual.
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
            del products  # before the next ones are computed, to save memory

    def held(self, dual: Tensor) -> Tensor:
        held, faint = self.count(dual)
        if bool(faint.any()):
            self.anchor = dual.clone()
            self.compute()
            held, _ = self.count(dual)
        return held

    def count(self, dual: Tensor) -> tuple[Tensor, Tensor]:
        held = torch.zeros_like(self.anchor)
        faint = torch.zeros_like(held[:, 0])
        weights = dual - self.anchor
        weights = torch.exp(weights - weights.amax(-1, keepdim=True)).to(self.scores.slope.dtype)
        # Subnormal numbers are slow, and negligible here.
        weights.masked_fill_(weights < torch.finfo(weights.dtype).tiny, 0)
        count(self.likelihood, weights, held, faint)
        return held, faint


def kept_dtype(real: Tensor) -> torch.dtype:
    return torch.float16 if real.is_cuda else real.dtype


def class_counter(scores: Scores) -> Kept | Recomputed:
    """A counter of the probabilities of each class, with stored likelihoods if they fit."""
    B, N, K = scores.shape
    if is_captured(scores.slope) or B * N * K * kept_dtype(scores.slope).itemsize > KEPT_BYTES:
        return Recomputed(scores)
    return Kept(scores)


def iterate_dual(
    counter: Kept | Recomputed,
    state: State,
    max_iter: int,
    is_lost: Callable[[int], bool] = lambda done: False,
) -> None:
    """Iterate the dual until every task has stopped, or `is_lost` of the iterations done."""
    for done in range(max_iter):
        if is_lost(done):
            break
        state.update(counter.held(state.dual_weight * state.dual))
        if not state.any_running():
            break


def dirichlet_priors(
    K: int, device: torch.device, measures: Tensor | None, **options: float
) -> list[Callable[[float, float], State]]:
    """A function for each measure [n, K], or one even measure, that makes the state of one task.

    It takes the first and the least concentration; see `best_prior`.
    """
    each: list[Tensor | None] = [None]
    if measures is not None:
        each = [x.double().unsqueeze(0) for x in measures]
    kind = check.PRIORS["dirichlet"]

    def make(measure: Tensor | None, first: float, least: float) -> State:
        chosen: Any = {"measure": measure, "first": first, "least": least, **options}
        return State(1, K, device, prior=kind, epsilon=1.0, **chosen)

    return [partial(make, measure) for measure in each]


def best_prior(
    scores: Scores, priors: list[Callable[[float, float], State]], max_iter: int
) -> tuple[Kept | Recomputed, State, int]:
    """Iterate the dual of one task under each prior, and keep the one with the largest bound.

    The first prior is even; the concentration that it finds is the least for all others. Returns
    the counter, the best state, and the number of its prior.
    """
    counter = class_counter(scores)
    best, chosen = priors[0](native.FIRST_CONCENTRATION, native.MIN_CONCENTRATION), 0
    iterate_dual(counter, best, max_iter)
    if len(priors) == 1:
        return counter, best, 0
    least = float(best.concentration)

    def bound_of(state: State) -> float:
        return float(state.bound(*normalisers(scores, state.dual)))

    most = bound_of(best)
    for number, make in enumerate(priors[1:], 1):
        state = make(native.MAX_CONCENTRATION, least)
        is_lost = Race(partial(bound_of, state), most)
        iterate_dual(counter, state, max_iter, is_lost)
        bound = bound_of(state)
        if bound > most:
            best, chosen, most = state, number, bound
    return counter, best, chosen


class Race:
    """Whether a prior is out of reach of the best one; see `Race` in csrc/common/adapt.h."""

    def __init__(self, bound: Callable[[], float], rival: float) -> None:
        self.bound, self.rival, self.earlier = bound, rival, 0.0

    def __call__(self, done: int) -> bool:
        if self.rival == -math.inf or done < 1 or done & (done - 1):
            return False
        bound = self.bound()
        growth, self.earlier = bound - self.earlier, bound
        if bound > self.rival:
            self.rival = -math.inf  # it has won: no iteration lowers the bound
        return done > 1 and bound + 2 * growth < self.rival


def normalisers(scores: Scores, dual: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over rows: of probabilities by class [B, K], and of the log normalisers [B]."""
    held, log_sums = torch.zeros_like(scores.bias), torch.zeros_like(scores.bias[:, 0])
    bias = (scores.bias + dual).to(scores.slope.dtype)
    for _, products, length in scores.chunks():
        assign(products, scores.slope, bias, length=length, held=held, log_sums=log_sums)
    return held, log_sums


@dataclass(frozen=True)
class RowResults:
    """Results for the rows of B tasks."""

    top: Top
    probabilities: Tensor | None  # [B, N, K]
    held: Tensor  # [B, K] float64: sums of the probabilities over the rows
    log_sums: Tensor  # [B] float64: sum of the logarithms of the rows' normalisers


def empty_results(scores: Scores, *, top: int, all_classes: bool) -> RowResults:
    """Memory for the results, with sums of zero."""
    B, N, K = scores.shape
    return RowResults(
        Top.empty(scores.slope, B, N, min(top, K)),
        scores.slope.new_empty(B, N, K) if all_classes else None,
        torch.zeros_like(scores.bias),
        torch.zeros_like(scores.bias[:, 0]),
    )


def classify_rows(scores: Scores, dual: Tensor, *, top: int, all_classes: bool) -> RowResults:
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
    return found
