"""Passes over the rows of large tasks, in chunks: class sums, class proportions, probabilities.

Logits are fixed during a pass; their likelihoods are stored between passes if they fit. Letters:
B tasks, N rows of each, K classes, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from .. import check
from ..limits import (
    BLOCKS_AT_A_TIME,
    CHUNK_NUMBERS,
    MOST_BLOCK_WORK,
    MOST_IN_ONE_BLOCK,
    MOST_STORED_LIKELIHOODS,
)
from ..native.call import packed
from ..native.graphs import goes_on, is_captured
from ..native.load import module as native
from .products import Add, Form
from .sources import Rows, TensorRows
from .steps import Counter, State, Top, assign_call

# Iterations that are launched before the host asks whether the task has stopped: those after the
# stop do nothing.
AHEAD = 4

# Some rows of a task: their indices, products with the prototypes, lengths, and the terms to sum.
Part: TypeAlias = tuple[slice, Tensor, Tensor | None, Tensor]


def is_large(tasks: int, Q: int, K: int, *, cuda: bool) -> bool:
    """Whether tasks are solved one after the other, in chunks, and not each by one thread block.

    The limits are where the curves of benchmarks/curve.py cross.
    """
    if Q * K > MOST_IN_ONE_BLOCK:
        return True
    work = Q * (K + 128)
    return cuda and work > MOST_BLOCK_WORK * min(tasks, BLOCKS_AT_A_TIME)


class Queries:
    """The queries of one task from any source, or those of a few tasks in a tensor [B, N, D]."""

    def __init__(self, source: Rows | Tensor) -> None:
        self.source = source
        self.B = len(source) if isinstance(source, Tensor) else 1
        self.N, self.D = source.shape[-2:]
        self.device = source.device
        self.given_dtype = source.dtype  # of the rows; `dtype` is that of the computation
        self.dtype = torch.float64 if source.dtype is torch.float64 else torch.float32

    def chunks(self, numbers: int) -> Iterator[tuple[slice, Tensor]]:
        """Indices and contiguous rows [B, n, D] of each chunk; a row takes so many numbers."""
        if isinstance(self.source, Tensor):
            yield slice(0, self.N), packed(self.source)
            return
        size = max(256, CHUNK_NUMBERS[self.device.type] // numbers // 256 * 256)
        start = 0
        for rows in self.source.chunks(size):
            check_chunk(rows, start, (min(size, self.N - start), self.D), self.source)
            yield slice(start, start + len(rows)), packed(rows).unsqueeze(0)
            start += len(rows)
        if start < self.N:
            raise ValueError(f"query must have {self.N} rows, as its shape says, got {start}")


def check_chunk(rows: Any, start: int, shape: tuple[int, int], source: Rows) -> None:
    """Reject what a caller's `Rows` must not give."""
    of = (rows.shape, rows.dtype, rows.device) if isinstance(rows, Tensor) else None
    if 0 in shape or of != (shape, source.dtype, source.device):
        got = check.kind(rows)
        if of is not None:
            got = f"{list(rows.shape)}, {check.plain(rows.dtype)}, on {rows.device}"
        raise ValueError(
            f"query must have a chunk of shape {list(shape)}, {check.plain(source.dtype)}, on "
            f"{source.device} after {start} rows, got {got}"
        )


def check_summable(extremes: list[Tensor], dtype: torch.dtype) -> None:
    """Reject NaN, infinity and values too large to sum; a NaN makes all extremes NaN."""
    seen = torch.stack(extremes)
    low, high = check.numbers_of([seen.amin(), seen.amax()])
    limit = check.LARGEST_FEATURE[dtype]
    if not (-limit <= low and high <= limit):
        raise ValueError(
            f"query must be finite and at most {limit:g} in magnitude, got values from {low:g} "
            f"to {high:g}"
        )


class ClassSums:
    """Sums of rows by class, laid out as by `Form.zero_sums`, and of their weights, [B, K] float64.

    `slope` [B] and `bias` [B, K] are those of `assign_call`. The most probable classes of all rows
    are written to `top`. `out` [B, N, K] receives the weights, unless the form needs them in a
    dtype of its own. If products and rows are at the same place in every pass, the native
    calls are kept: an iteration of a small task takes as long as the host needs to make them.
    """

    def __init__(
        self,
        form: Form,
        slope: Tensor,
        bias: Tensor,
        *,
        top: Top | None = None,
        out: Tensor | None = None,
        keep: bool = False,
    ) -> None:
        self.form, self.slope, self.bias = form, slope, bias
        self.top, self.out, self.keep = top, out, keep
        self.sums = form.zero_sums(bias.shape[-1])
        self.held = torch.zeros_like(bias, dtype=torch.float64)
        self.kept: dict[int, tuple[Callable[[], None], Add]] = {}
        self.memory: tuple[Tensor, Tensor | None] | None = None

    def add_up(self, parts: Iterable[Part]) -> tuple[list[Tensor], Tensor]:
        """Sum all rows; the sums of weights are added to those of the pass before."""
        for part, products, length, x in parts:
            calls = self.kept.get(part.start) or self.calls(part, products, length, x)
            if self.keep:
                self.kept[part.start] = calls
            weigh, add = calls
            weigh()
            add(int(part.start > 0))
        return self.sums, self.held

    def calls(
        self, part: slice, products: Tensor, length: Tensor | None, x: Tensor
    ) -> tuple[Callable[[], None], Add]:
        """What computes the weights of some rows, and what adds their sums, as `Form.adder`."""
        u, rest = products if self.out is None else self.out[:, part], None
        if self.form.weight_dtype is not None:
            u, rest = self.weights(products)
        weigh = assign_call(
            products,
            self.slope,
            self.bias,
            length=length,
            weigh=self.form.weigh,
            probabilities=u,
            rest=rest,
            held=self.held,
            top=None if self.top is None else self.top.rows(part),
        )
        return weigh, self.form.adder(self.sums, u, rest, x)

    def weights(self, products: Tensor) -> tuple[Tensor, Tensor | None]:
        """Memory for weights in the form's dtype and their rounding errors; the chunks share it."""
        B, n, K = *products.shape[:2], self.bias.shape[-1]
        if self.memory is None:  # the first chunk is the largest
            u = torch.empty((B, n, K), dtype=self.form.weight_dtype, device=products.device)
            self.memory = u, torch.empty_like(u) if self.form.sums_of_two else None
        u, rest = self.memory
        return u[:, :n], None if rest is None else rest[:, :n]


# --- fixed logits -------------------------------------------------------------------------------


class Scores(Protocol):
    """Logits of the rows of B tasks, ``slope length products + bias``, in chunks."""

    shape: tuple[int, int, int]  # B, N, K
    slope: Tensor  # [B] float32, or float64 like the products
    bias: Tensor  # [B, K] float64

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Indices, products [B, n, K or more], which the caller may overwrite, lengths [B, n]."""


class GivenScores:
    """The given logits [Q, K] of one task; implements `Scores`."""

    def __init__(self, logits: Tensor) -> None:
        self.rows = Queries(TensorRows(logits))
        self.shape = (1, *logits.shape)
        self.slope = logits.new_ones(1, dtype=self.rows.dtype)
        self.bias = logits.new_zeros(1, logits.shape[1], dtype=torch.float64)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        for part, logits in self.rows.chunks(self.shape[2]):
            copy = torch.empty(logits.shape, dtype=self.slope.dtype, device=logits.device)
            yield part, copy.copy_(logits), None


def assign_all(
    scores: Scores,
    dual: Tensor | None,
    of_rows: Callable[[slice, Tensor], dict[str, Any]] = lambda part, products: {},
    **others: Any,
) -> None:
    """`assign_call` for all rows, with `dual` [B, K] added to their logits.

    `of_rows` makes the outputs for the rows of a chunk, given their indices and products; `others`
    are further outputs and options.
    """
    bias = (scores.bias if dual is None else scores.bias + dual).to(scores.slope.dtype)
    for part, products, length in scores.chunks():
        outputs = of_rows(part, products)
        assign_call(products, scores.slope, bias, length=length, **outputs, **others)()
        del products, outputs  # before the next ones are computed, to save memory


class RecomputedLikelihoods:
    """Sums probabilities by class; recomputes the logits every time."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def held(self, dual: Tensor) -> Tensor:
        """Sums of probabilities by class [B, K] float64, with `dual` [B, K] added to the logits."""
        K, held = self.scores.shape[2], torch.zeros_like(self.scores.bias)

        def in_place(part: slice, products: Tensor) -> dict[str, Any]:
            return {"probabilities": products if products.shape[-1] == K else None}

        assign_all(self.scores, dual, in_place, held=held)
        return held

    def iterate(self, state: State, max_iter: int, is_lost: Callable[[int], bool]) -> None:
        """Iterate the dual until every task has stopped, or `is_lost` of the iterations done."""
        for done in range(max_iter):
            if is_lost(done):
                break
            state.update_call(self.held(state.dual_weight * state.dual))()
            if not goes_on(state.running):
                break


class StoredLikelihoods:
    """Sums probabilities by class from stored likelihoods; float16 on CUDA.

    Each row is divided by its largest likelihood under the dual `anchor`. If a later dual prefers a
    class whose likelihood has underflowed, the likelihoods are recomputed with that dual.
    """

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        dtype, device = stored_dtype(scores), scores.slope.device
        self.counter = Counter(torch.empty(scores.shape, dtype=dtype, device=device))
        self.compute(self.counter.anchor)

    def compute(self, anchor: Tensor) -> None:
        def stored(part: slice, products: Tensor) -> dict[str, Any]:
            return {"probabilities": self.counter.likelihood[:, part]}

        self.counter.anchor.copy_(anchor)
        assign_all(self.scores, anchor, stored, normalise=False)

    def held(self, dual: Tensor) -> Tensor:
        count = self.counter.call()
        self.counter.start(dual)
        count()
        if bool(self.counter.faint.any()):
            self.compute(dual)
            self.counter.start(dual)
            count()
        return self.counter.held.clone()

    def iterate(self, state: State, max_iter: int, is_lost: Callable[[int], bool]) -> None:
        """The same for one task; the GPU runs ahead of what the host has read."""
        self.counter.start(state.dual)
        count = self.counter.call(state.running)
        update = state.update_call(self.counter.held, counter=self.counter)
        done, ahead = 0, AHEAD if state.running.is_cuda else 1
        while done < max_iter and not is_lost(done):
            count()
            update()
            done += 1
            if done % ahead and done < max_iter:
                continue
            running = int(state.running)
            if running == 0:
                break
            if running < 0:
                self.compute(state.dual)
                self.counter.start(state.dual)
                state.running.fill_(1)
                done = int(state.iterations)


def stored_dtype(scores: Scores) -> torch.dtype:
    return torch.float16 if scores.slope.is_cuda else scores.slope.dtype


# --- class proportions --------------------------------------------------------------------------


def best_prior(
    scores: Scores, measures: Tensor | None, max_iter: int, **counting: float
) -> tuple[StoredLikelihoods | RecomputedLikelihoods, State, int, float | None]:
    """Iterate the dual of one task under each prior, and keep the one with the largest bound.

    `measures` [n, K] are those of Dirichlet priors; None is an even one. The first is even; the
    concentration that it finds is the least for all others. `counting` are the total, the weight
    and the tol of `State`. Returns the counter, the best state, the number of its prior, and its
    bound, unless there is only one prior.
    """
    size, K = math.prod(scores.shape) * stored_dtype(scores).itemsize, scores.shape[2]
    fits = size <= MOST_STORED_LIKELIHOODS and not is_captured(scores.slope)
    counter = StoredLikelihoods(scores) if fits else RecomputedLikelihoods(scores)

    fixed: Any = {"prior": check.PRIORS["dirichlet"], **counting}
    new_state = partial(State, 1, K, scores.bias.device, epsilon=1.0, **fixed)

    states = [new_state(measure=None if measures is None else measures[:1].double())]
    counter.iterate(states[0], max_iter, lambda done: False)
    if measures is None or len(measures) == 1:
        return counter, states[0], 0, None
    least, most = float(states[0].concentration), native.MAX_CONCENTRATION
    (rival,) = bounds_of(scores, states)
    for measure in measures[1:].double():
        state = new_state(measure=measure[None], first=most, least=least)
        counter.iterate(state, max_iter, Race(partial(bounds_of, scores, [state]), rival))
        states.append(state)
    bounds = bounds_of(scores, states)
    chosen = bounds.index(max(bounds))  # the first, if several are
    return counter, states[chosen], chosen, bounds[chosen]


def bounds_of(scores: Scores, states: list[State]) -> list[float]:
    """Lower bounds of the log evidence of one task in these states, in one pass."""
    sums = [(torch.zeros_like(scores.bias), torch.zeros_like(scores.bias[:, 0])) for _ in states]
    for _, products, length in scores.chunks():
        for state, (held, log_sums) in zip(states, sums, strict=True):
            bias = (scores.bias + state.dual).to(scores.slope.dtype)
            given = products, scores.slope, bias
            assign_call(*given, length=length, held=held, log_sums=log_sums)()
        del products  # before the next ones are computed, to save memory
    return [float(state.bound(*own)) for state, own in zip(states, sums, strict=True)]


class Race:
    """Called with how many iterations are done: whether a prior is out of reach of the best one.

    After 2, 4, 8, .. it bounds what as many iterations again could add; see csrc/common/adapt.h.
    """

    def __init__(self, bounds: Callable[[], list[float]], rival: float) -> None:
        self.bounds, self.rival, self.earlier = bounds, rival, 0.0

    def __call__(self, done: int) -> bool:
        if self.rival == -math.inf or done < 1 or done & (done - 1):
            return False
        (bound,) = self.bounds()
        growth, self.earlier = bound - self.earlier, bound
        if bound > self.rival:
            self.rival = -math.inf  # it has won: no iteration lowers the bound
        return done > 1 and bound + 2 * growth < self.rival


# --- results ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowResults:
    """Results for the rows of B tasks."""

    top: Top
    probabilities: Tensor | None  # [B, N, K]
    held: Tensor  # [B, K] float64: sums of the probabilities over the rows
    log_sums: Tensor  # [B] float64: sum of the logarithms of the rows' normalisers

    @staticmethod
    def empty(scores: Scores, *, top: int, all_classes: bool) -> RowResults:
        """Memory for the results, with sums of zero."""
        B, N, K = scores.shape
        likely = scores.slope.new_empty(B, N, min(top, K))
        return RowResults(
            Top(likely, torch.empty_like(likely, dtype=torch.int64)),
            scores.slope.new_empty(B, N, K) if all_classes else None,
            torch.zeros_like(scores.bias),
            torch.zeros_like(scores.bias[:, 0]),
        )


def classify_rows(
    scores: Scores, dual: Tensor | None, *, top: int, all_classes: bool
) -> RowResults:
    """Labels and probabilities of all rows, with `dual` [B, K] added to their logits."""
    results = RowResults.empty(scores, top=top, all_classes=all_classes)

    def outputs(part: slice, products: Tensor) -> dict[str, Any]:
        u = results.probabilities
        return {"top": results.top.rows(part), "probabilities": None if u is None else u[:, part]}

    assign_all(scores, dual, outputs, held=results.held, log_sums=results.log_sums)
    return results
