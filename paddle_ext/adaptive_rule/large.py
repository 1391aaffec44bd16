"""One task of any size, with queries from any source, in chunks.

It has the equations of `classify.posterior`, in three passes over the queries: likelihoods, which
are stored if they fit; weighted sums of the queries by class; and the classification of each query
without itself. Letters: N queries, K classes, D features.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..large import passes
from ..large.products import MANY_ROWS, OneHalf, Plain, Transform, TwoHalves
from ..large.sources import Rows
from ..large.steps import AbsorbStep, Counter, State, assign_call, split
from ..native.call import packed
from ..native.graphs import replayed
from ..native.load import module as native
from ..prevalence import counts_of, estimated_shares
from ..rows import directions
from ..solution import Solution
from .likelihood import Likelihood, coordinates


@dataclass(frozen=True)
class UnitTransform(Transform):
    """Rows made unit-norm, minus the centre, unit-norm again, as `Likelihood.centred` does it."""

    metric: Tensor  # [1, D]

    def apply(self, rows: Tensor, part: slice) -> Tensor:
        return coordinates(rows, self.centre)

    def halves(self, rows: Tensor, part: slice, pieces: int) -> Tensor:
        return self.measured_halves(rows, pieces)[0]

    def measured_halves(self, rows: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
        """The pieces, and the squares of the rows in the metric."""
        own = torch.empty(rows.shape[:2], device=rows.device)
        rows = packed(rows)
        return split(rows, pieces, self.scale, self.centre, metric=self.metric, own=own), own


class LikelihoodScores:
    """Logits before the absorb step, from a likelihood; implements `passes.Scores`.

    For very many rows the products are in half precision: these logits are stored as halves anyway,
    and only used for sums over the rows.
    """

    def __init__(
        self,
        queries: passes.Queries,
        likelihood: Likelihood,
        added: Tensor | None,
        validate: bool,
        exact: bool = False,
    ) -> None:
        """With `exact` the products are as accurate as float32, however many rows there are."""
        self.queries, self.likelihood, self.added = queries, likelihood, added
        K = likelihood.weights.shape[1]
        centre, metric = likelihood.centre.contiguous(), likelihood.diagonal.contiguous()
        self.transform = UnitTransform(None, torch.ones_like(centre), centre, metric)
        self.form: Plain | OneHalf | TwoHalves = Plain(self.transform)
        if queries.device.type == "cuda":
            many = queries.N >= MANY_ROWS and not exact
            of_two = TwoHalves(self.transform, sums_of_two=True)
            self.form = OneHalf(self.transform) if many else of_two
        weights, bias = likelihood.weights, likelihood.bias.double()
        if likelihood.correction is not None:
            weights = weights + likelihood.correction[:-1].mT / likelihood.sharpness
            bias = bias + likelihood.correction[-1]
        self.operand = self.form.prototypes(weights)
        self.shape = (1, queries.N, K)
        self.slope, self.bias = likelihood.sharpness, bias
        self.unseen = validate  # whether the next pass looks for non-finite values

    def as_precise(self, stored: Counter) -> bool:
        """Whether stored likelihoods are as precise as those that are computed again."""
        return not self.form.sums_of_two or stored.likelihood.dtype is not torch.float16

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Indices and rows [1, n, D]."""
        extremes: list[Tensor] = []
        # Small chunks, because the stored likelihoods take most of the memory.
        for part, rows in self.queries.chunks(5 * max(self.shape[2], self.queries.D) // 4):
            if self.unseen:
                extremes += rows.aminmax()
            yield part, rows if rows.is_cuda else directions(rows, self.slope.dtype)
        if self.unseen:
            passes.check_summable(extremes, self.queries.given_dtype)
        self.unseen = False

    def products(self, x: Tensor, part: slice) -> Tensor:
        """Products of prepared rows x with the weights; pieces of x that these lack are ignored."""
        found = self.form.products(x[..., : self.operand.shape[-1]], self.operand)
        return found if self.added is None else found.add_(self.added[part] / self.slope)

    def parts(self) -> Iterator[passes.Part]:
        for part, rows in self.rows():
            x = self.form.operand(rows, part)
            products = self.products(x, part)
            yield part, products, None, x
            del products, x  # before the next ones are computed, to save memory

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        for part, products, length, x in self.parts():
            del x
            yield part, products, length
            del products


class AbsorbedScores:
    """Logits after the absorb step; implements `passes.Scores`, if there is a `step`.

    It takes the likelihoods of `stored` if they are given, else those of `before` with this dual.
    """

    def __init__(
        self,
        before: LikelihoodScores,
        weights: Tensor,
        step: AbsorbStep | None = None,
        dual: Tensor | None = None,
        stored: Counter | None = None,
    ) -> None:
        self.before, self.step, self.stored = before, step, stored
        self.old_bias = before.bias if dual is None else before.bias + dual
        likelihood = self.likelihood = before.likelihood
        self.form = before.form
        if weights.is_cuda:
            self.form = TwoHalves(before.transform, sums_of_two=True)
        self.operand = self.form.prototypes(weights)
        self.projection = self.correction = None
        if weights.is_cuda and likelihood.projection is not None:
            self.projection = self.form.prototypes(likelihood.projection[0])
        if likelihood.correction is not None:
            self.correction = self.form.prototypes(likelihood.correction[:-1].mT.unsqueeze(0))
        self.shape = before.shape
        self.slope = torch.ones_like(before.slope)
        self.bias = torch.zeros_like(before.bias)

    def measured(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows prepared for products, and their squares in the metric."""
        if not isinstance(self.form, TwoHalves):
            x = self.likelihood.centred(rows)
            return x, self.likelihood.squared(x)
        x, own = self.before.transform.measured_halves(rows, TwoHalves.pieces)
        if self.projection is not None and self.likelihood.projection is not None:
            inner = torch.linalg.vector_norm(self.form.products(x, self.projection), dim=-1)
            own.addcmul_(inner.square_(), self.likelihood.projection[1].unsqueeze(-1))
        return x, own

    def added(self, part: slice, x: Tensor) -> Tensor | None:
        """Logits [n, K] to add: those of the correction and those given; None without either."""
        given = self.before.added
        found = None if given is None else given[part].contiguous()
        if self.correction is not None and self.likelihood.correction is not None:
            linear = self.form.products(x, self.correction)[0] + self.likelihood.correction[-1]
            found = linear if found is None else linear.add_(found)
        return found

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        bias = self.old_bias.to(self.slope.dtype)
        weights = torch.ones_like(bias) if self.stored is None else self.stored.weights
        assert self.step is not None
        for part, rows in self.before.rows():
            x, own = self.measured(rows)
            found = self.form.products(x, self.operand)
            if self.stored is not None:
                likely = self.stored.likelihood[:, part]
            else:
                likely = self.before.products(x, part)
                assign_call(likely, self.before.slope, bias, probabilities=likely)()
            self.step(found, likely, weights, own[0].contiguous(), self.added(part, x))
            yield part, found, None


def sums_of_squares(
    scores: LikelihoodScores, stored: Counter, dual: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Sums of rows by class, weighed by the squares of their probabilities, and of the weights."""
    stored.start(dual)
    sums, squares = scores.form.zero_sums(scores.shape[2]), None
    for part, rows in scores.rows():
        if squares is None:  # the first chunk is the largest
            squares = torch.empty_like(stored.likelihood[:, part])
        u = squares[:, : rows.shape[1]]
        stored.call(part=part, squares=u)()
        scores.form.adder(sums, u, None, scores.form.operand(rows, part))(1)
    return sums, stored.held


def absorb_step_of(
    likelihood: Likelihood, state: State, held: Tensor, sums: Tensor, mass: Tensor, queries: float
) -> tuple[AbsorbStep, Tensor]:
    """The absorb step, and the sums of rows by class times the metric, [1, K, D]."""
    all_sums = sums + likelihood.prototypes * likelihood.shots.unsqueeze(-1)
    weights = likelihood.in_metric(all_sums)
    given = state.concentration, state.measure, state.weight, held, mass
    tables, numbers = replayed(absorb_tables, likelihood, *given)
    sharpness, share = numbers.tolist()
    step = AbsorbStep(
        trust=trust_in_queries(queries, held.shape[-1]),
        temper=likelihood.temper,
        sharper=sharpness * share,
        share=share,
        square=(weights * all_sums).sum(-1)[0],
        **dict(zip(("mass", "constant", "count_share", "prior_share"), tables, strict=True)),
    )
    return step, weights


def absorb_tables(
    likelihood: Likelihood, a: Tensor, measure: Tensor, weight: float, held: Tensor, mass: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """What `AbsorbStep` has of each class, [K], and the sharpness and the share of logits, [2]."""
    K, real, shots = held.shape[-1], likelihood.bias.dtype, likelihood.shots.double()
    share = 1 - native.SOFTER / (1 + a / native.FEW)  # the fewer classes are present, the lower
    counts, two_classes = weight * held, (K - 1) * a / (1 + K * a)
    kept = 1 - two_classes.unsqueeze(-1) * counts / (counts + shots)
    prior = a.unsqueeze(-1) * measure
    possible = prior > 0
    total = (kept * counts + prior).masked_fill(~possible, 1.0)
    constant = likelihood.constant_with(mass.to(real)) * share.to(real).unsqueeze(-1)
    constant = (constant + total.log().to(real)).masked_fill(~possible, native.IMPOSSIBLE)
    prior_share = prior.masked_fill(~possible, 1.0) / total
    tables = shots + mass, constant, weight * kept / total, prior_share
    return tuple(x[0].to(real) for x in tables), torch.cat([likelihood.sharpness.double(), share])


def solve_large(
    likelihood: Likelihood,
    rows: Rows,
    added: Tensor | None,
    measures: Tensor | None,
    *,
    max_iter: int,
    tol: float,
    top: int,
    all_classes: bool,
    validate: bool,
) -> Solution:
    """Classify one task; `added` [N, K] are further logits, `measures` [n, K] possible priors."""
    queries = passes.Queries(rows)
    scores = LikelihoodScores(queries, likelihood, added, validate)
    K, total = scores.shape[2], float(queries.N)
    weight = likelihood.weight_of(total)
    counter, state, chosen, bound = passes.best_prior(
        scores, measures, max_iter, total=weight * total, weight=weight, tol=tol
    )
    held, stored = counter.held(state.dual), None
    if isinstance(counter, passes.StoredLikelihoods) and scores.as_precise(counter.counter):
        stored = counter.counter
        sums, mass = sums_of_squares(scores, stored, state.dual)
    else:
        bias = (scores.bias + state.dual).to(scores.slope.dtype)
        adding = passes.ClassSums(scores.form, scores.slope, bias, squared=True)
        sums, mass = adding.add_up(scores.parts())
    del counter  # it may be large
    trust = trust_in_queries(total, K)
    moved = scores.form.total(sums, mass) * trust
    step, weights = absorb_step_of(likelihood, state, held, moved, trust * mass, total)
    absorbed = AbsorbedScores(scores, weights, step, state.dual, stored)
    found = passes.classify_rows(absorbed, None, top=top, all_classes=all_classes)
    counted = counts_of(found.top.classes[..., 0], torch.zeros_like(found.held))
    real, every, top_classes = scores.slope.dtype, found.probabilities, found.top.classes
    used = None if measures is None else torch.tensor([chosen > 0], device=queries.device)
    return Solution(
        top_classes[..., 0],
        found.top.probabilities if every is None else every,
        estimated_shares(counted, found.held, total).to(real),
        state.dual.to(real),
        state.iterations,
        state.criterion.to(real),
        concentration=state.concentration.to(real),
        bound=None if bound is None else torch.full_like(state.concentration, bound).to(real),
        prior_used=used,
        classes=top_classes if every is None else None,
        held=found.held if every is None else None,
    )


def trust_in_queries(queries: float, num_classes: int) -> float:
    """The weight in a prototype of a query with probability 1: less with few queries per class."""
    return queries / (queries + num_classes)
