"""PADDLE for large tasks, in chunks: products by torch's BLAS, everything else native.

The full matrix of queries and classes is never stored, unless requested. Letters: B tasks, N rows
of each in this process, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import check
from ..rows import computing_dtype
from .class_sums import Part, sums_by_class
from .coordinates import Survey, labelled_sums, place, raw_coordinates, slope_of, survey
from .distances import DistanceScores, RowFactors
from .fixed import RowResults, classify_rows, empty_results
from .products import (
    MANY_ROWS,
    Coordinates,
    Form,
    OneHalf,
    Plain,
    RowsAsTheyAre,
    TwoHalves,
)
from .queries import Queries, numbers_at_once
from .sources import IndexedRows, Rows, TensorRows
from .steps import Moved, State, Top, assign, is_captured

PRECISIONS = ("auto", "half")
ROUGH = 1e-3  # iterations that move prototypes by more than this may use half precision
STEEPEST = {torch.float32: 1e30, torch.float64: 1e250}  # largest factor on squared distances


@dataclass(frozen=True)
class Options:
    """Options of the solver; see `paddle_ext.solve`."""

    lam: float | None = None
    scaling: str = "auto"
    temperature: float = 1.0
    epsilon: float = 1e-6
    max_iter: int = 100
    tol: float = 1e-6
    precision: str = "auto"
    prototypes: bool = False
    all_classes: bool = True  # return all probabilities, else those of the `top` classes
    top: int = 5
    validate: bool = False

    @property
    def unit(self) -> bool:
        """Whether rows are normalised to unit length."""
        return self.scaling == "auto"


@dataclass(frozen=True)
class Found:
    """Results for B tasks."""

    top: Top
    probabilities: Tensor | None  # [B, N, K]
    proportions: Tensor  # [B, K]
    dual: Tensor  # [B, K]
    iterations: Tensor  # [B] int32
    criterion: Tensor  # [B]
    prototypes: Tensor | None  # [B, K, D]
    held: Tensor  # [B, K] float64: sums of the queries' probabilities


def form_for(queries: Queries, found: Survey, coordinates: Coordinates, precision: str) -> Form:
    """Choose how rows are multiplied."""
    if queries.device.type != "cuda":
        return Plain(coordinates)
    of_two = precision == "auto"
    sums_of_two = of_two and found.total < MANY_ROWS
    if queries.features is torch.float16 and found.similar_lengths():
        return RowsAsTheyAre(coordinates, of_two, sums_of_two)
    return TwoHalves(coordinates, sums_of_two) if of_two else OneHalf(coordinates)


def rough_form(form: Form, total: int) -> Form:
    """The form for the first iterations: half precision if there are many rows.

    The last iterations use the full precision, so the result is the same.
    """
    if total < MANY_ROWS:
        return form
    if isinstance(form, RowsAsTheyAre):
        return RowsAsTheyAre(form.coordinates, of_two=False, sums_of_two=False)
    return OneHalf(form.coordinates) if isinstance(form, TwoHalves) else form


class Paddle:
    """B tasks in their coordinates, ready for iteration."""

    def __init__(
        self, queries: Queries, support: Tensor, labels: Tensor, K: int, o: Options
    ) -> None:
        self.queries, self.options, self.K = queries, o, K
        self.support, self.labels = support, labels
        found = survey(queries, o.unit, validate=o.validate)
        self.total = found.total
        self.placed = place(found, support, labels, K, o.scaling, queries.dtype)
        form = form_for(queries, found, self.placed.coordinates, o.precision)
        self.factors = RowFactors(queries, form, K)
        rough = rough_form(form, self.total)
        self.rough = self.factors if rough is form else RowFactors(queries, rough, K)
        self.slope, self.distance_unit = slope_of(
            self.placed,
            self.total,
            self.leads() if o.unit else None,
            o.scaling,
            temperature=o.temperature,
            steepest=STEEPEST[queries.dtype],
        )
        lam = float(self.total) if o.lam is None else o.lam
        self.dual_weight = min(lam / self.total, STEEPEST[queries.dtype])

    def leads(self) -> Tensor:
        """Leads of the nearest class over the median one, summed over all rows; see `assign`."""
        placed = self.placed
        scores = DistanceScores(self.factors, placed.means, torch.ones_like(placed.unit), placed)
        leads = torch.zeros(self.queries.B, 2, dtype=torch.float64, device=self.queries.device)
        bias = scores.bias.to(scores.slope.dtype)
        for _, products, length in scores.chunks():
            assign(products, scores.slope, bias, length=length, leads=leads)
        return leads

    def state(self) -> State:
        o = self.options
        return State(
            self.queries.B,
            self.K,
            self.queries.device,
            prior=check.PRIORS["paddle"],
            total=float(self.total),
            dual_weight=self.dual_weight,
            epsilon=o.epsilon,
            tol=o.tol,
        )

    def scores(self, factors: RowFactors, w: Tensor) -> DistanceScores:
        return DistanceScores(factors, w, self.slope, self.placed)

    def class_sums(
        self, scores: DistanceScores, bias: Tensor, results: RowResults | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Sums of the rows by class, and of their probabilities; see `sums_by_class`."""
        form = scores.factors.form
        return sums_by_class(
            scores.parts(),
            scores.slope,
            bias,
            form,
            weigh=form.weigh,
            top=None if results is None else results.top,
            out=None if results is None else results.probabilities,
        )

    def writes_results(self) -> bool:
        """Whether an iteration computes probabilities in the form in which they are returned."""
        return self.queries.B == 1 and self.factors.form.written is None

    def move(self, state: State) -> tuple[Tensor, RowResults | None]:
        """Iterate prototypes and dual, and return the prototypes behind the last probabilities.

        Also returns the results for the rows, if the last iteration could write them.
        """
        o = self.options
        results = None
        w = self.placed.means.clone()
        scores = self.scores(self.factors if is_captured(w) else self.rough, w)
        bias = scores.bias.to(w.dtype)
        moved = Moved(scores.away, self.distance_unit, scores.bias, bias)
        for step in range(1, o.max_iter + 1):
            if step == o.max_iter and scores.factors is self.factors and self.writes_results():
                results = empty_results(scores, top=o.top, all_classes=o.all_classes)
            sums, held = self.class_sums(scores, bias, results)
            if results is not None:
                results.held.copy_(held)
            scores.move(sums, held, state.running)
            state.update(held, moved)
            if scores.factors is not self.factors and float(state.criterion.amax()) <= ROUGH:
                scores.use(self.factors)
                state.running.fill_(1)  # no task stops on rounded values
            if not state.any_running():
                break
        return scores.before, results

    def solve(self) -> Found:
        o, state = self.options, self.state()
        w, results = self.move(state)
        scores = self.scores(self.factors, w)
        weighed = self.dual_weight * state.before
        if results is None:
            results = classify_rows(scores, weighed, top=o.top, all_classes=o.all_classes)
        dtype = self.queries.dtype
        return Found(
            results.top,
            results.probabilities,
            state.proportions(state.counts).to(dtype),
            state.dual.to(dtype),
            state.iterations,
            state.criterion.clamp(max=torch.finfo(dtype).max).to(dtype),
            self.input_prototypes(scores, weighed) if o.prototypes else None,
            results.held,
        )

    def input_prototypes(self, scores: DistanceScores, dual: Tensor) -> Tensor:
        """Prototypes [B, K, D] in the coordinates of the inputs: weighted means of input rows."""
        queries, dtype = self.queries, self.queries.dtype
        sums, counts = labelled_sums(self.support.double(), self.labels, self.K)
        found = survey(queries, False, validate=False)
        query_means = found.sums / found.total
        raw = raw_coordinates(found, query_means, dtype)
        form: Form = TwoHalves(raw, True) if queries.device.type == "cuda" else Plain(raw)
        own = self.factors.form

        def parts() -> Iterator[Part]:
            for at, rows in queries.chunks(max(self.K, queries.D)):
                products = own.products(own.operand(rows, at), scores.operand)
                yield at, products, scores.lengths(at), form.operand(rows, at)

        bias = (scores.bias + dual).to(scores.slope.dtype)
        found_sums, held = sums_by_class(parts(), scores.slope, bias, form)
        taken = form.total(found_sums, held)
        centre = query_means.unsqueeze(1)
        unit = (1 / raw.scale.double()).unsqueeze(1)
        moved = sums - counts.unsqueeze(-1) * centre + taken.double() * unit
        return (moved / (counts + held).clamp(min=1e-12).unsqueeze(-1) + centre).to(dtype)


def solve(
    query: Rows | Tensor,
    support: Tensor,
    labels: Tensor,
    K: int,
    options: Options,
) -> Found:
    """Solve one task with queries `Rows`, or tasks with queries [B, Q, D].

    Support [B or 1, S, D] and labels [B or 1, S]; rows with a label outside [0, K) are ignored.
    """
    if not isinstance(query, Tensor):
        return Paddle(Queries(query), support, labels, K, options).solve()

    def queries(tasks: slice) -> Rows | Tensor:
        own = query[tasks]
        return own if len(own) > 1 else TensorRows(own[0])

    return solve_groups(query.shape, queries, support, labels, K, options)


def solve_indexed(
    features: Tensor,
    query_index: Tensor,
    support: Tensor,
    labels: Tensor,
    K: int,
    options: Options,
) -> Found:
    """Solve tasks whose queries are rows of one bank [N, D]; the index is [B, Q]."""

    def queries(tasks: slice) -> Rows | Tensor:
        own = query_index[tasks]
        if len(own) == 1:
            return IndexedRows(features, own[0], validate=False)
        return features.index_select(0, own.flatten()).view(*own.shape, -1)

    shape = torch.Size((*query_index.shape, features.shape[1]))
    return solve_groups(shape, queries, support, labels, K, options)


def solve_groups(
    shape: torch.Size,
    queries: Callable[[slice], Rows | Tensor],
    support: Tensor,
    labels: Tensor,
    K: int,
    o: Options,
) -> Found:
    """Solve as many tasks at a time as fit in a chunk, at least one; `shape` is [B, Q, D]."""
    B, Q, D = shape
    if B == 0:
        return no_task(Q, D, K, support, o)
    size = max(1, numbers_at_once(support.device) // (Q * max(K, D)))
    found = []
    for start in range(0, B, size):
        tasks = slice(start, start + size)
        mine = (support, labels) if len(support) == 1 else (support[tasks], labels[tasks])
        found.append(Paddle(Queries(queries(tasks)), *mine, K, o).solve())
    return merged(found)


def no_task(Q: int, D: int, K: int, like: Tensor, o: Options) -> Found:
    """The results for zero tasks."""
    real = like.new_empty(0, dtype=computing_dtype(like))
    per_class, per_task = real.new_empty(0, K), real.new_empty(0)
    return Found(
        Top.empty(real, 0, Q, min(o.top, K)),
        real.new_empty(0, Q, K) if o.all_classes else None,
        per_class,
        per_class.clone(),
        per_task.int(),
        per_task.clone(),
        real.new_empty(0, K, D) if o.prototypes else None,
        per_class.double(),
    )


def merged(found: list[Found]) -> Found:
    """Concatenate the results of several groups of tasks."""
    if len(found) == 1:
        return found[0]

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(one, name) for one in found])

    top = Top(
        torch.cat([one.top.probabilities for one in found]),
        torch.cat([one.top.classes for one in found]),
    )
    first = found[0]
    return Found(
        top,
        None if first.probabilities is None else joined("probabilities"),
        joined("proportions"),
        joined("dual"),
        joined("iterations"),
        joined("criterion"),
        None if first.prototypes is None else joined("prototypes"),
        joined("held"),
    )
