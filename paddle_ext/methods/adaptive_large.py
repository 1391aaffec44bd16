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
from ..ops.calibrate import CENTRE
from ..ops.large.fixed import Told, settle, tell
from ..ops.large.group import ALONE, Group
from ..ops.large.products import MANY_ROWS, Coordinates, Form, Plain, TwoHalves
from ..ops.large.queries import Queries, check_summable
from ..ops.large.sources import Rows
from ..ops.large.steps import LateStep, State, assign
from ..rows import products
from ..solution import Solution
from .calibration import Likelihood
from .late_step import FEW, MANY, PLAIN, SAME, SOFTER

DIRICHLET = check.PRIORS["dirichlet"]


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
        moved = torch.cat([likelihood.weights, in_metric(likelihood, sums)], 1)
        self.operand = before.form.prototypes(moved)
        self.shape = before.shape
        self.slope = torch.ones_like(before.slope)
        self.bias = torch.zeros_like(before.bias)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        form, step, whole = self.before.form, self.step, slice(None)
        for part, x, lengths in self.before.rows():
            found = form.products(form.operand(x, whole), self.operand)
            own = in_metric_with_itself(self.before.likelihood, x)
            step(found, own[0], lengths[0].contiguous() if step.prototypes is not None else None)
            yield part, found, None


def in_metric(likelihood: Likelihood, x: Tensor) -> Tensor:
    """Rows [1, N, D] times the metric."""
    found = x * (likelihood.scale * likelihood.plain.view(-1, 1, 1))
    if likelihood.projection is None:
        return found
    inner = products(x, likelihood.projection) * likelihood.projected.view(-1, 1, 1)
    return found + inner @ likelihood.projection


def in_metric_with_itself(likelihood: Likelihood, x: Tensor) -> Tensor:
    """Products of rows [1, N, D] with themselves, [1, N]."""
    scaled = likelihood.scale.sqrt() * x
    found: Tensor = scaled.square().sum(-1) * likelihood.plain.unsqueeze(-1)
    if likelihood.projection is None:
        return found
    inner = products(x, likelihood.projection).square().sum(-1)
    return found + inner * likelihood.projected.unsqueeze(-1)


def weighted_sums(
    scores: LikelihoodScores, dual: Tensor, trust: Tensor, group: Group
) -> tuple[Tensor, Tensor]:
    """Sums of the rows by class, with weights (trust u)^2: [1, K, D], and of these, [1, K]."""
    form, (_, _, K) = scores.form, scores.shape
    sums, mass = form.room(K), torch.zeros_like(dual)
    bias = (scores.bias + dual).to(scores.slope.dtype)
    for _, x, _ in scores.rows():
        operand = form.operand(x, slice(None))
        found = form.products(operand, scores.operand)
        u, rest = found, None
        if form.written is not None:
            u = torch.empty_like(found, dtype=form.written)
            rest = torch.empty_like(u) if form.rest else None
        assign(found, scores.slope, bias, trust=trust, probabilities=u, rest=rest, held=mass)
        form.add(sums, u, rest, operand)
    group.sum(mass, *sums)
    return form.total(sums, mass), mass


def late_step_of(
    likelihood: Likelihood,
    state: State,
    held: Tensor,
    sums: Tensor,
    mass: Tensor,
    weight: float,
) -> tuple[LateStep, Tensor]:
    """The step, and the sums of all rows by class [1, K, D]; `late_step` has the equations."""
    real = likelihood.weights.dtype
    a = state.concentration
    total = weight * held + a.unsqueeze(-1)
    shots = likelihood.shots.double()
    all_sums = sums + likelihood.prototypes * likelihood.shots.unsqueeze(-1)
    square = (in_metric(likelihood, all_sums) * all_sums).sum(-1)
    constant = likelihood.bias + likelihood.sharpness.unsqueeze(-1) / 2 * likelihood.squares
    share, plain = 1 - SOFTER / (1 + a / FEW), torch.zeros_like(a)
    if likelihood.lengths is not None:
        plain = PLAIN * (1 - weight) * a / (MANY + a)
        share = 1 - plain
        plain = plain * CENTRE / likelihood.lengths.double().square().mean(-1).clamp(min=SAME**2)
    sharpness = float(likelihood.sharpness)
    step = LateStep(
        weight=weight,
        temper=likelihood.temper,
        slope=sharpness,
        sharper=sharpness * float(share),
        prior=float(a),
        plain=float(plain),
        bias=(likelihood.bias + state.dual).to(real)[0],
        trust=(1 - a.unsqueeze(-1) / total).clamp(min=0).to(real)[0],
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
    weight = 2 * likelihood.rows / (2 * likelihood.rows + total)
    state = State(
        1,
        K,
        queries.device,
        prior=DIRICHLET,
        total=weight * total,
        weight=weight,
        epsilon=1.0,
        tol=tol,
    )
    _, held = settle(scores, state, group, dual_weight=1.0, max_iter=max_iter)
    a = state.concentration.unsqueeze(-1)
    trust = (1 - a / (weight * held + a)).clamp(min=0).to(scores.slope.dtype)
    sums, mass = weighted_sums(scores, state.dual, trust, group)
    step, all_sums = late_step_of(likelihood, state, held, sums, mass, weight)
    late = LateScores(scores, all_sums, step)
    told = tell(late, torch.zeros_like(state.dual), group, top=top, all_classes=all_classes)
    return solution_of(told, state, held, weight * total, weight)


def with_batch(solution: Solution) -> Solution:
    """As a batch of one task."""
    fields: dict[str, Any] = {
        name: x.unsqueeze(0) for name, x in solution._asdict().items() if isinstance(x, Tensor)
    }
    return solution._replace(**fields)


def solution_of(told: Told, state: State, held: Tensor, total: float, weight: float) -> Solution:
    """Without a batch dimension."""
    real, K = told.top.probabilities.dtype, held.shape[-1]
    a = state.concentration.unsqueeze(-1)
    proportions = (weight * held + a) / (total + K * a)
    all_classes = told.probabilities is not None
    return Solution(
        told.top.classes[0, :, 0],
        told.top.probabilities[0] if told.probabilities is None else told.probabilities[0],
        proportions[0].to(real),
        state.dual[0].to(real),
        state.iterations[0],
        state.criterion[0].to(real),
        concentration=state.concentration[0].to(real),
        classes=None if all_classes else told.top.classes[0],
        held=None if all_classes else told.held[0],
    )
