"""The queries of a batch, as its rounds see them, in two forms: `GramBatch` and `ChunkedBatch`.

Prototypes absorb weighted queries. Small tasks have the products of all queries with one another,
from which the products with moved prototypes follow. A task of any size, from any source, is read
in chunks: sums of weighted rows by class, then products with prototypes. Letters: B tasks, N
queries of each, K classes, D features; those of likelihoods as there.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..large.passes import Queries, best_prior, check_summable
from ..large.products import MANY_ROWS, OneHalf, Plain, Transform, TwoHalves
from ..large.steps import split
from ..limits import MOST_GRAM_WORK, MOST_IN_ONE_BLOCK
from ..native.call import Inputs, alike, call_native, packed
from ..native.load import module as native
from ..rows import directions
from ..solvers.adapt import call_adapt
from .likelihood import NATIVE_TENSORS, Likelihood, coordinates, native_kinds
from .steps import gathered, weigh_call


def in_chunks(likelihood: Likelihood, Q: int, D: int, *, cuda: bool) -> bool:
    """Whether a task is solved in chunks, which takes longer to begin, but less for each query."""
    K = likelihood.bias.shape[-1]
    E = D if likelihood.factor is None else D + likelihood.factor.shape[-2]
    with_others, with_sums = Q * Q * (E + 3 * K), 8 * Q * K * E
    most = MOST_GRAM_WORK["cuda" if cuda else "cpu"]
    return Q * K > MOST_IN_ONE_BLOCK or with_others - with_sums > most


class Prototypes(NamedTuple):
    """The prototypes of a turn, and what finds their products with the queries."""

    mass: Tensor  # [B, K] of how many rows each is the mean
    square: Tensor  # [B, K] in the metric
    factor: Tensor  # the products themselves, or a factor of products, as the form has it


class Proportions(NamedTuple):
    """The class proportions of a turn, in which every query counts; float64."""

    counts: Tensor  # [B, K] N
    concentration: Tensor  # [B] a
    measure: Tensor  # [B, K] m


class Begun(NamedTuple):
    """(9) The class proportions before the first turn: what `paddle_ext.adapt` finds."""

    dual: Tensor  # [B, K] e
    concentration: Tensor  # [B]
    measure: Tensor  # [B, K] float64
    iterations: Tensor  # [B] int32
    criterion: Tensor  # [B]
    bound: Tensor  # [B]
    chosen: Tensor  # [B] the number of the measure


class Batch(ABC):
    """The queries of B tasks; implements `passes.Scores`, with the logits of single rows."""

    own: Tensor  # [B, N] products of the queries with themselves
    first: Prototypes  # those of the likelihood
    finite: Tensor | None = None  # [B] True if the queries are finite, False is inconclusive

    def __init__(
        self, likelihood: Likelihood, shape: tuple[int, int, int], added: Tensor | None
    ) -> None:
        """`added` [B, N, K] are further logits."""
        B, N, K = shape
        self.likelihood, self.shape, self.added = likelihood, shape, added

        def of_classes(x: Tensor) -> Tensor:
            return packed(x.expand(B, K))

        self.bias_of_class = of_classes(likelihood.bias)
        self.before = of_classes(likelihood.mass)
        self.labelled_mass = of_classes(likelihood.labelled_mass)
        self.squares, self.shots = of_classes(likelihood.squares), of_classes(likelihood.shots)
        self.variance = packed(likelihood.variance.expand(B))
        self.sharpness = packed(likelihood.sharpness.expand(B))
        # How much a query weighs in the counts, and at most in a prototype: next to few labelled
        # rows, little.
        self.weight = likelihood.rows / (likelihood.rows + N)
        self.most = 2 * likelihood.rows / (2 * likelihood.rows + N)
        self.slope, self.nothing = self.variance.new_ones(B), torch.zeros_like(self.before)
        self.bias = self.nothing.double()

    @abstractmethod
    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """The queries in chunks: their indices, and how the other methods take them, x."""

    @abstractmethod
    def products(self, part: slice, x: Tensor, prototypes: Prototypes) -> Tensor:
        """Products of queries with prototypes [B, n, K], in memory of their own."""

    @abstractmethod
    def start(self) -> None:
        """Forget what `add` has added."""

    @abstractmethod
    def add(self, part: slice, x: Tensor, u: Tensor, worth: Tensor | None = None) -> None:
        """(10) Add queries to prototypes, by their probabilities [B, n, K].

        `worth` [B, n] are factors on their weights.
        """

    @abstractmethod
    def moved(self) -> Prototypes:
        """The prototypes that hold what was added."""

    @abstractmethod
    def absorbed(self) -> tuple[Tensor, Tensor]:
        """What was added: its weight [B, K], and the mean of each prototype with it [B, K, D]."""

    @abstractmethod
    def begun(self, measures: Tensor, *, max_iter: int, tol: float) -> Begun:
        """(9) from the measures [B or 1, n, K] to choose from, the first of which is even."""

    def further(self, part: slice, x: Tensor) -> Tensor | None:
        """Further logits of queries [B, n, K]; None: without any."""
        return None if self.added is None else packed(self.added[:, part])

    def logits(
        self,
        part: slice,
        x: Tensor,
        prototypes: Prototypes,
        u: Tensor | None = None,
        *,
        worth: Tensor | None = None,
        proportions: Proportions | None = None,
    ) -> Tensor:
        """(5), (10) and (11): logits [B, n, K] of queries, each without itself.

        Prototypes hold the queries by the probabilities u [B, n, K], or not at all.
        """
        found = self.products(part, x, prototypes)
        (B, n, K), real, double = found.shape, found.dtype, torch.float64
        counts, concentration, measure = proportions or (None, None, None)
        inputs: Inputs = {
            **alike(real, B, n, K, products=found, probabilities=u, added=self.further(part, x)),
            **alike(real, B, n, own=packed(self.own[:, part]), worth=worth),
            **alike(real, B, K, mass=prototypes.mass, square=prototypes.square),
            **alike(real, B, K, labelled_mass=self.labelled_mass, bias=self.bias_of_class),
            **alike(real, B, variance=self.variance, sharpness=self.sharpness),
            **alike(double, B, K, counts=counts, measure=measure),
            "concentration": (concentration, double, (B,)),
        }
        options = {"B": B, "N": n, "K": K, "weight": self.weight, "most": self.most}
        call_native(native.absorb_call, options, found, inputs)
        return found

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """The first logits, as `passes.Scores` has them."""
        for part, x in self.parts():
            yield part, self.logits(part, x, self.first), None
            del x  # before the next ones are computed, to save memory


# --- products of the queries with one another -----------------------------------------------------


class GramBatch(Batch):
    """Small tasks, in one part."""

    def __init__(self, query: Tensor, likelihood: Likelihood, added: Tensor | None = None) -> None:
        """`query` [B, N, D] in the dtype of the likelihood; `added` [B, N, K]."""
        B, N, _ = query.shape
        self.query = query
        if likelihood.correction is not None:
            correction = likelihood.corrected(likelihood.centred(query))
            added = correction if added is None else correction.add_(added)
        super().__init__(likelihood, (B, N, likelihood.bias.shape[-1]), added)
        self.cross, self.gram, self.finite = products_of(query, likelihood)
        self.own = self.gram.diagonal(dim1=-2, dim2=-1).contiguous()
        self.first = Prototypes(self.before, self.squares, self.cross)
        self.weights, self.held = torch.empty_like(self.cross), torch.zeros_like(self.bias)

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, self.shape[1]), self.query

    def products(self, part: slice, x: Tensor, prototypes: Prototypes) -> Tensor:
        # Those of moved prototypes are needed once.
        return self.cross.clone() if prototypes is self.first else prototypes.factor

    def start(self) -> None:
        self.held.zero_()

    def add(self, part: slice, x: Tensor, u: Tensor, worth: Tensor | None = None) -> None:
        weigh_call(u, self.most, self.held, self.weights, worth=worth)()

    def moved(self) -> Prototypes:
        mass = self.before + self.held.to(self.before.dtype)
        prototypes = self.cross, self.squares, self.before
        products, square = gathered(self.gram, self.weights, *prototypes, mass)
        return Prototypes(mass, square, products)

    def absorbed(self) -> tuple[Tensor, Tensor]:
        sums = self.weights.mT @ self.likelihood.centred(self.query)
        return means_with(self, self.held, sums)

    def begun(self, measures: Tensor, *, max_iter: int, tol: float) -> Begun:
        B, _, K = self.shape
        part, x = next(self.parts())
        logits, measures = self.logits(part, x, self.first), measures.expand(B, -1, K)
        found = call_adapt(logits, self.weight, max_iter, tol, packed(measures), None)
        _, _, _, dual, iterations, criterion, a, bound, chosen = found
        index = chosen.long().view(B, 1, 1).expand(B, 1, K)
        measure = measures.gather(1, index).squeeze(1).double()
        return Begun(dual, a, measure, iterations, criterion, bound, chosen)


def products_of(query: Tensor, likelihood: Likelihood) -> list[Tensor]:
    """Products of queries [B, N, D] in the metric: with prototypes [B, N, K], and [B, N, N].

    Also [B] bool: True if the queries are finite, False is inconclusive.
    """
    (B, Q, D), (L, K), N = query.shape, likelihood.shots.shape, likelihood.scaled.shape[1]
    M = 0 if likelihood.factor is None else likelihood.factor.shape[1]
    kinds = native_kinds(query.dtype, query.is_cuda, L=L, K=K, D=D, N=N, M=M)
    query = packed(query)
    inputs: dict[str, Any] = {"query": (query, query.dtype, (B, Q, D))}
    for name in ("centre", "scaled", "scale", "factor", "solved", "shares"):
        inputs[NATIVE_TENSORS[name].name or name] = getattr(likelihood, name), *kinds[name]
    real = query.dtype
    outputs = {
        "cross": (real, (B, Q, K)),
        "gram": (real, (B, Q, Q)),
        "finite": (torch.bool, (B,)),
    }
    options = {"size": (B, Q, K, D, 0 if M == 0 else min(N - K or D, D), N, L)}
    return call_native(native.products_call, options, query, inputs, outputs)


def means_with(batch: Batch, held: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The weights [B, K], and the prototypes with these sums [B, K, D] of queries."""
    added, before = held.to(sums.dtype), batch.before.unsqueeze(-1)
    sums = torch.addcmul(sums, batch.likelihood.prototypes, before)
    return added, sums / (batch.before + added).unsqueeze(-1)


# --- chunks ---------------------------------------------------------------------------------------


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


class ChunkedBatch(Batch):
    """One task of any size, with queries from any source.

    For very many rows the first products are in half precision: their logits are stored as halves
    anyway, and only used for sums over the rows.
    """

    def __init__(
        self,
        queries: Queries,
        likelihood: Likelihood,
        added: Tensor | None = None,
        *,
        validate: bool = False,
    ) -> None:
        """`added` is [1, N, K]; `validate` looks for non-finite values in the first pass."""
        super().__init__(likelihood, (1, queries.N, likelihood.bias.shape[-1]), added)
        self.queries = queries
        self.unseen = validate  # whether the next pass looks for non-finite values
        centre, metric = likelihood.centre.contiguous(), likelihood.diagonal.contiguous()
        self.transform = UnitTransform(None, torch.ones_like(centre), centre, metric)
        self.form: Plain | TwoHalves = Plain(self.transform)
        self.form_of_first: Plain | OneHalf | TwoHalves = self.form
        if queries.device.type == "cuda":
            many = queries.N >= MANY_ROWS
            self.form = TwoHalves(self.transform, sums_of_two=not many)
            rough = many and likelihood.correction is None
            self.form_of_first = OneHalf(self.transform) if rough else self.form

        weights = likelihood.in_metric(likelihood.prototypes)
        operand = self.form_of_first.prototypes(weights)
        self.first = Prototypes(self.before, self.squares, operand)
        self.projection = self.correction = None
        if self.queries.device.type == "cuda" and likelihood.projection is not None:
            self.projection = self.form.prototypes(likelihood.projection[0])
        if likelihood.correction is not None:
            self.correction = self.form.prototypes(likelihood.correction[:-1].mT.unsqueeze(0))

        self.own = self.before.new_empty(self.shape[:2])
        self.measured: set[int] = set()  # where chunks begin whose `own` is known
        self.start()

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Indices and rows [1, n, D]."""
        extremes: list[Tensor] = []
        # Small chunks, because the stored likelihoods take most of the memory.
        for part, rows in self.queries.chunks(5 * max(self.shape[2], self.queries.D) // 4):
            if self.unseen:
                extremes += rows.aminmax()
            yield part, rows if rows.is_cuda else directions(rows, self.slope.dtype)
        if self.unseen:
            check_summable(extremes, self.queries.given_dtype)
        self.unseen = False

    def parts(self, pieces: int = TwoHalves.pieces) -> Iterator[tuple[slice, Tensor]]:
        """Indices and prepared rows; on CUDA, of so many pieces."""
        for part, rows in self.rows():
            x, own = self.prepared(rows, pieces)
            del rows
            if part.start not in self.measured:
                self.own[:, part] = self.squared(x, own)
                self.measured.add(part.start)
            yield part, x
            del x  # before the next ones are computed, to save memory

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        measures = self.projection is not None and not self.measured
        pieces = TwoHalves.pieces if measures else self.form_of_first.pieces
        for part, x in self.parts(pieces):
            yield part, self.logits(part, x, self.first), None
            del x

    def prepared(self, rows: Tensor, pieces: int) -> tuple[Tensor, Tensor | None]:
        """Rows as factors of products, and the plain part of their squares in the metric."""
        if not rows.is_cuda:
            return self.likelihood.centred(rows), None
        return self.transform.measured_halves(rows, pieces)

    def squared(self, x: Tensor, own: Tensor | None) -> Tensor:
        """Squares [1, n] of prepared rows in the metric."""
        if own is None:
            return self.likelihood.squared(x)
        if self.projection is not None and self.likelihood.projection is not None:
            inner = torch.linalg.vector_norm(self.form.products(x, self.projection), dim=-1)
            own.addcmul_(inner.square_(), self.likelihood.projection[1].unsqueeze(-1))
        return own

    def products(self, part: slice, x: Tensor, prototypes: Prototypes) -> Tensor:
        """Pieces of x that the prototypes lack are ignored."""
        return self.form.products(x[..., : prototypes.factor.shape[-1]], prototypes.factor)

    def further(self, part: slice, x: Tensor) -> Tensor | None:
        """With the correction, if the likelihood has one."""
        given = super().further(part, x)
        if self.correction is None or self.likelihood.correction is None:
            return given
        linear = self.form.products(x, self.correction).add_(self.likelihood.correction[-1])
        return linear if given is None else linear.add_(given)

    def start(self) -> None:
        self.sums = self.form.zero_sums(self.shape[2])
        self.held = torch.zeros_like(self.bias)

    def add(self, part: slice, x: Tensor, u: Tensor, worth: Tensor | None = None) -> None:
        weights, rest = torch.empty_like(u, dtype=self.form.weight_dtype or u.dtype), None
        if self.form.sums_of_two:
            rest = torch.empty_like(weights)
        weigh_call(u, self.most, self.held, weights, rest=rest, worth=worth)()
        self.form.adder(self.sums, weights, rest, x)(1)

    def moved(self) -> Prototypes:
        added, means = self.absorbed()
        in_metric = self.likelihood.in_metric(means)
        square = (in_metric * means).sum(-1)
        return Prototypes(self.before + added, square, self.form.prototypes(in_metric))

    def absorbed(self) -> tuple[Tensor, Tensor]:
        return means_with(self, self.held, self.form.total(self.sums, self.held))

    def begun(self, measures: Tensor, *, max_iter: int, tol: float) -> Begun:
        total, real = self.weight * self.shape[1], self.slope.dtype
        _, state, chosen, bound = best_prior(
            self, measures[0], max_iter, total=total, weight=self.weight, tol=tol
        )
        number = torch.full_like(state.iterations, chosen)
        bounds = torch.full_like(state.criterion, 0.0 if bound is None else bound)
        return Begun(
            state.dual.to(real),
            state.concentration.to(real),
            state.measure,
            state.iterations,
            state.criterion.to(real),
            bounds.to(real),
            number,
        )
