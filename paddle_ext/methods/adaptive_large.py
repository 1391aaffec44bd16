"""`adaptive` for one large task: its queries anywhere, in chunks, shared by processes.

The same equations as `Adaptive`, in three passes over the queries: likelihoods, which are kept if
they fit; weighted sums of the queries by class; and each query classified without itself. Caution
takes one more before the last.
Letters: N rows in this process, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import check
from ..ops.labelled import coordinates
from ..ops.large.class_sums import sums_by_class
from ..ops.large.coordinates import check_summable
from ..ops.large.fixed import RowResults, classify_rows, iterate_dual
from ..ops.large.group import ALONE, Group
from ..ops.large.products import (
    MANY_ROWS,
    Coordinates,
    OneHalf,
    Plain,
    TwoHalves,
)
from ..ops.large.queries import Queries
from ..ops.large.sources import Rows
from ..ops.large.steps import LateStep, State, split_unit
from ..solution import Solution
from .calibration import Likelihood
from .caution import Rivals, is_cautious, nearest, odds_for
from .late_step import plain_factor, plain_share, softer_share


@dataclass(frozen=True)
class UnitCoordinates(Coordinates):
    """Rows of a likelihood: unit-norm, minus the centre, unit-norm again."""

    metric: Tensor  # [1, D]

    def of(self, rows: Tensor, part: slice) -> Tensor:
        return coordinates(rows.to(self.scale.dtype), self.centre)[0]

    def halves(self, rows: Tensor, part: slice, pieces: int) -> Tensor:
        return self.measured_halves(rows, pieces)[0]

    def measured_halves(self, rows: Tensor, pieces: int) -> tuple[Tensor, Tensor, Tensor]:
        """Also the norms before the last normalisation, and the squares in the metric."""
        return split_unit(rows.contiguous(), pieces, self.scale, self.centre, self.metric)


class LikelihoodScores:
    """Logits from calibrated likelihoods; see `fixed.Scores`.

    For very many rows they are products of halves: they are stored as halves anyway, and only used
    for sums over the rows.
    """

    def __init__(
        self, queries: Queries, likelihood: Likelihood, total: int, validate: bool
    ) -> None:
        self.queries, self.likelihood = queries, likelihood
        K = likelihood.weights.shape[1]
        centre, metric = likelihood.centre.contiguous(), likelihood.scale.contiguous()
        self.coordinates = UnitCoordinates(None, torch.ones_like(centre), centre, metric)
        self.form: Plain | OneHalf | TwoHalves = Plain(self.coordinates)
        if queries.device.type == "cuda":
            many = total >= MANY_ROWS
            self.form = OneHalf(self.coordinates) if many else TwoHalves(self.coordinates, True)
        self.operand = self.form.prototypes(likelihood.weights)
        self.shape = (1, queries.N, K)
        self.slope = likelihood.sharpness
        self.bias = likelihood.bias.double()
        self.unseen = validate  # non-finite values are found in the first pass

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Indices and rows [1, n, D]."""
        extremes: list[Tensor] = []
        # Small chunks, because the likelihoods that are kept take most of the memory there is.
        for part, rows in self.queries.chunks(5 * max(self.shape[2], self.queries.D) // 2):
            if self.unseen:
                extremes += rows.aminmax()
            yield part, rows
        if self.unseen:
            seen = torch.stack(extremes)
            check_summable(seen.amin(), seen.amax(), self.queries.features)
        self.unseen = False

    def operands(self) -> Iterator[tuple[slice, Tensor]]:
        """Indices, and the rows as factors of products."""
        return ((part, self.form.operand(rows, part)) for part, rows in self.rows())

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        for part, x in self.operands():
            yield part, self.form.products(x, self.operand), None


class LateScores:
    """Logits after the late step; see `fixed.Scores`."""

    def __init__(self, before: LikelihoodScores, sums: Tensor, step: LateStep) -> None:
        self.before, self.step = before, step
        likelihood = self.likelihood = before.likelihood
        self.form = TwoHalves(before.coordinates, True) if sums.is_cuda else before.form
        moved = torch.cat([likelihood.weights, likelihood.in_metric(sums)], 1)
        self.operand = self.form.prototypes(moved)
        self.projection: Tensor | None = None
        if sums.is_cuda and likelihood.projection is not None:
            self.projection = self.form.prototypes(likelihood.projection)
        self.odds: Tensor | None = None  # of caution; None: without
        self.shape = before.shape
        self.slope = torch.ones_like(before.slope)
        self.bias = torch.zeros_like(before.bias)

    def measured(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows as factors of products, norms before the last normalisation, metric squares."""
        if not isinstance(self.form, TwoHalves):
            x, norms = self.likelihood.coordinates_and_lengths(rows.to(self.slope.dtype))
            return x, norms, self.likelihood.squared(x)
        x, norms, own = self.before.coordinates.measured_halves(rows, TwoHalves.pieces)
        if self.projection is not None and self.likelihood.projected is not None:
            inner = torch.linalg.vector_norm(self.form.products(x, self.projection), dim=-1)
            own.addcmul_(inner.square_(), self.likelihood.projected.unsqueeze(-1))
        return x, norms, own

    def logits(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Indices; logits [1, n, K and more] without caution; x and norms as in `measured`."""
        for part, rows in self.before.rows():
            x, norms, own = self.measured(rows)
            found = self.form.products(x, self.operand)
            one_shot = self.step.prototypes is not None
            self.step(found, own[0].contiguous(), norms[0].contiguous() if one_shot else None)
            yield part, found, x, norms

    def rivals(self, found: Tensor, x: Tensor, norms: Tensor) -> Rivals:
        plain = self.likelihood.plain
        assert plain is not None
        u = found[..., : self.shape[2]].softmax(-1)
        near = nearest(self.form.products(x, self.form.prototypes(plain)), norms, plain)
        return Rivals.of(u, u.argmax(-1, keepdim=True), near)

    def be_cautious(self, total: float, group: Group) -> None:
        """Be so from now on, after a pass over all rows."""
        gain = torch.zeros_like(self.bias[:, 0])
        for _, found, x, norms in self.logits():
            gain += self.rivals(found, x, norms).gain()
        group.sum(gain)
        self.odds = odds_for(gain / total)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        for part, found, x, norms in self.logits():
            if self.odds is not None:
                self.rivals(found, x, norms).exchange(found, self.odds)
            yield part, found, None


def weighted_sums(
    scores: LikelihoodScores, dual: Tensor, trust: Tensor, group: Group
) -> tuple[Tensor, Tensor]:
    """Sums of the rows by class [1, K, D] with weights (trust u)^2, and of these [1, K]."""
    form = scores.form
    parts = ((at, form.products(x, scores.operand), None, x) for at, x in scores.operands())
    bias = (scores.bias + dual).to(scores.slope.dtype)
    sums, mass = sums_by_class(parts, scores.slope, bias, form, group, trust=trust)
    return form.total(sums, mass), mass


def late_step_of(
    likelihood: Likelihood,
    state: State,
    total: Tensor,
    trust: Tensor,
    sums: Tensor,
    mass: Tensor,
    weight: float,
) -> tuple[LateStep, Tensor]:
    """The step, and the sums of all rows by class [1, K, D]; equations in `late_step`."""
    real = likelihood.weights.dtype
    a = state.concentration
    shots = likelihood.shots.double()
    all_sums = sums + likelihood.prototypes * likelihood.shots.unsqueeze(-1)
    square = (likelihood.in_metric(all_sums) * all_sums).sum(-1)
    constant = likelihood.bias + likelihood.sharpness.unsqueeze(-1) / 2 * likelihood.squares
    share, plain = softer_share(a), torch.zeros_like(a)
    if likelihood.lengths is not None:
        plain = plain_share(a, weight)
        share = 1 - plain
        plain = plain_factor(plain, likelihood.lengths.double())
    sharpness = float(likelihood.sharpness)
    step = LateStep(
        weight=weight,
        temper=likelihood.temper,
        slope=sharpness,
        sharper=sharpness * float(share),
        prior=float(a),
        plain=float(plain),
        bias=(likelihood.bias + state.dual).to(real)[0],
        trust=trust[0],
        square=square[0].contiguous(),
        mass=(shots + mass).to(real)[0],
        constant=(constant * share.to(real).unsqueeze(-1))[0].contiguous(),
        total=total.to(real)[0],
        prototypes=None if likelihood.lengths is None else likelihood.lengths[0].contiguous(),
    )
    return step, all_sums


def solve_large(
    likelihood: Likelihood,
    rows: Rows,
    *,
    max_iter: int,
    tol: float,
    top: int = 5,
    all_classes: bool = False,
    group: Group = ALONE,
    validate: bool = False,
) -> Solution:
    """Classify the rows of one task whose likelihood is known, [1, ..]."""
    queries = Queries(rows)
    rows_of_all = group.count(queries.N, queries.device)
    scores = LikelihoodScores(queries, likelihood, rows_of_all, validate)
    K, total = scores.shape[2], float(rows_of_all)
    weight = likelihood.weight_of(total)
    state = State(
        1,
        K,
        queries.device,
        prior=check.PRIORS["dirichlet"],
        total=weight * total,
        weight=weight,
        epsilon=1.0,
        tol=tol,
    )
    holding = iterate_dual(scores, state, group, max_iter)
    held = holding.held(state.dual, group)
    del holding  # it may be large
    a = state.concentration.unsqueeze(-1)
    total_held = weight * held + a
    trust = (1 - a / total_held).clamp(min=0).to(scores.slope.dtype)
    sums, mass = weighted_sums(scores, state.dual, trust, group)
    step, all_sums = late_step_of(likelihood, state, total_held, trust, sums, mass, weight)
    late = LateScores(scores, all_sums, step)
    if likelihood.plain is not None and is_cautious(rows_of_all, likelihood.rows, K):
        late.be_cautious(total, group)
    told = classify_rows(
        late, torch.zeros_like(state.dual), group, top=top, all_classes=all_classes
    )
    return solution_of(told, state, weight * held)


def with_batch(solution: Solution) -> Solution:
    """With a batch dimension for one task."""
    fields: dict[str, Any] = {
        name: x.unsqueeze(0) for name, x in solution._asdict().items() if isinstance(x, Tensor)
    }
    return solution._replace(**fields)


def solution_of(told: RowResults, state: State, counts: Tensor) -> Solution:
    """Without a batch dimension; `counts` [1, K] are those before the late step."""
    real = told.top.probabilities.dtype
    all_classes = told.probabilities is not None
    return Solution(
        told.top.classes[0, :, 0],
        told.top.probabilities[0] if told.probabilities is None else told.probabilities[0],
        state.proportions(counts)[0].to(real),
        state.dual[0].to(real),
        state.iterations[0],
        state.criterion[0].to(real),
        concentration=state.concentration[0].to(real),
        classes=None if all_classes else told.top.classes[0],
        held=None if all_classes else told.held[0],
    )
