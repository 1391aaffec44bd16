"""`adaptive` for one large task: its queries anywhere, in chunks, shared by processes.

The same rule as that of `Adaptive`, in three passes over the queries: likelihoods, which are kept
where they fit; sums of the queries by class, weighed; and each query judged without itself.
Letters: N rows in this process, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import check
from ..ops.large.class_sums import sums_by_class
from ..ops.large.fixed import Told, settle, tell
from ..ops.large.group import ALONE, Group
from ..ops.large.products import MANY_ROWS, Coordinates, Form, Plain, TwoHalves
from ..ops.large.queries import Queries, check_summable
from ..ops.large.sources import Rows
from ..ops.large.steps import LateStep, State
from ..solution import Solution
from .calibration import Likelihood
from .late_step import plain_factor, plain_share, softer_share


class LikelihoodScores:
    """Logits by calibrated likelihoods; see `fixed.Scores`."""

    pieces: int | None = None

    def __init__(self, queries: Queries, likelihood: Likelihood, validate: bool) -> None:
        self.queries, self.likelihood = queries, likelihood
        K, D = likelihood.weights.shape[1:]
        ones = likelihood.weights.new_ones(1, D)
        same = Coordinates(None, ones, torch.zeros_like(ones))
        self.form: Form = Plain(same)
        if queries.device.type == "cuda":
            self.form = TwoHalves(same, queries.N < MANY_ROWS)
        self.operand = self.form.prototypes(likelihood.weights)
        self.shape = (1, queries.N, K)
        self.slope = likelihood.sharpness
        self.bias = likelihood.bias.double()
        self.unseen = validate  # values that are not finite are found in the first pass

    def rows(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Places, rows in the coordinates of the likelihood, norms before the last division."""
        extremes: list[Tensor] = []
        for part, rows in self.queries.chunks(max(self.shape[2], self.queries.D)):
            if self.unseen:
                extremes += rows.aminmax()
            x, lengths = self.likelihood.coordinates_and_lengths(rows.to(self.slope.dtype))
            yield part, x, lengths
        if self.unseen:
            seen = torch.stack(extremes)
            check_summable(seen.amin(), seen.amax(), self.queries.features)
        self.unseen = False

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        whole = slice(None)
        for part, x, _ in self.rows():
            found = self.form.products(self.form.operand(x, whole), self.operand)
            del x
            yield part, found, None


class LateScores:
    """Logits after the late step; see `fixed.Scores`."""

    pieces: int | None = 1  # the products are followed by others

    def __init__(self, before: LikelihoodScores, sums: Tensor, step: LateStep) -> None:
        self.before, self.step = before, step
        likelihood = before.likelihood
        moved = torch.cat([likelihood.weights, likelihood.in_metric(sums)], 1)
        self.operand = before.form.prototypes(moved)
        self.shape = before.shape
        self.slope = torch.ones_like(before.slope)
        self.bias = torch.zeros_like(before.bias)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        form, step, whole = self.before.form, self.step, slice(None)
        for part, x, lengths in self.before.rows():
            found = form.products(form.operand(x, whole), self.operand)
            own = self.before.likelihood.squared(x)
            step(found, own[0], lengths[0].contiguous() if step.prototypes is not None else None)
            yield part, found, None


def weighted_sums(
    scores: LikelihoodScores, dual: Tensor, trust: Tensor, group: Group
) -> tuple[Tensor, Tensor]:
    """Sums of the rows by class, with weights (trust u)^2: [1, K, D], and of these, [1, K]."""
    form, whole = scores.form, slice(None)
    operands = (form.operand(x, whole) for _, x, _ in scores.rows())
    parts = ((form.products(x, scores.operand), None, x) for x in operands)
    return sums_by_class(parts, scores, dual, form, group, trust=trust)


def late_step_of(
    likelihood: Likelihood,
    state: State,
    total: Tensor,
    trust: Tensor,
    sums: Tensor,
    mass: Tensor,
    weight: float,
) -> tuple[LateStep, Tensor]:
    """The step, and the sums of all rows by class [1, K, D]; `late_step` has the equations."""
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
    scores = LikelihoodScores(queries, likelihood, validate)
    K = scores.shape[2]
    total = float(group.count(queries.N, queries.device))
    weight = likelihood.weight_of(total)
    state = State(
        1,
        K,
        queries.device,
        prior=check.DIRICHLET,
        total=weight * total,
        weight=weight,
        epsilon=1.0,
        tol=tol,
    )
    _, holding = settle(scores, state, group, dual_weight=1.0, max_iter=max_iter)
    held = holding.held(state.dual, group)
    del holding  # it may be large
    a = state.concentration.unsqueeze(-1)
    total_held = weight * held + a
    trust = (1 - a / total_held).clamp(min=0).to(scores.slope.dtype)
    sums, mass = weighted_sums(scores, state.dual, trust, group)
    step, all_sums = late_step_of(likelihood, state, total_held, trust, sums, mass, weight)
    late = LateScores(scores, all_sums, step)
    told = tell(late, torch.zeros_like(state.dual), group, top=top, all_classes=all_classes)
    return solution_of(told, state, weight * held)


def with_batch(solution: Solution) -> Solution:
    """As a batch of one task."""
    fields: dict[str, Any] = {
        name: x.unsqueeze(0) for name, x in solution._asdict().items() if isinstance(x, Tensor)
    }
    return solution._replace(**fields)


def solution_of(told: Told, state: State, counts: Tensor) -> Solution:
    """Without a batch dimension; `counts` [1, K] are of the classes before the late step."""
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
