"""PADDLE for large tasks, in chunks: products by a library, everything else native.

The full matrix of queries and classes is never stored, unless requested. Letters: B tasks, N rows
of each in this process, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...scaling import auto_factor, calibrated_factor
from .class_sums import Part, sums_by_class
from .fixed import settle, tell
from .group import ALONE, Group
from .products import (
    MANY_ROWS,
    Coordinates,
    Form,
    OneHalf,
    Plain,
    RowsAsTheyAre,
    TwoHalves,
)
from .queries import (
    Queries,
    Survey,
    labelled_sums,
    numbers_at_once,
    raw_coordinates,
    scaled,
    survey,
)
from .sources import IndexedRows, Rows, TensorRows
from .steps import State, Top, assign, is_captured

PRECISIONS = ("auto", "tf32", "half")
MOST_TOP = 64  # limit on classes reported per row
ROUGH = 1e-3  # iterations that move prototypes more than this, on average, may use half precision
HELD_BYTES = 2**28  # of rows as factors of products: computed once if all fit
STEEPEST = {torch.float32: 1e30, torch.float64: 1e250}  # factor on squared distances


@dataclass(frozen=True)
class Options:
    """Options of the solver; see `paddle_ext.solve`."""

    lam: float | None = None
    scaling: str = "auto"
    temperature: float = 1.0
    epsilon: float = 1e-6
    max_iter: int = 100
    tol: float = 1e-6
    prior: int = 0
    update_prototypes: bool = True
    sharpness: Tensor | None = None  # [B] of "calibrated"
    precision: str = "auto"
    prototypes: bool = False
    all_classes: bool = True  # return all probabilities, else those of the `top` classes
    top: int = 5
    validate: bool = False

    @property
    def unit(self) -> bool:
        """Whether rows are normalised to unit length."""
        return self.scaling in ("auto", "calibrated")


@dataclass(frozen=True)
class Found:
    """Results for B tasks."""

    top: Top
    probabilities: Tensor | None  # [B, N, K]
    proportions: Tensor  # [B, K]
    dual: Tensor  # [B, K]
    iterations: Tensor  # [B] int32
    criterion: Tensor  # [B]
    concentration: Tensor  # [B]
    prototypes: Tensor | None  # [B, K, D]
    held: Tensor  # [B, K] float64: sums of the queries' probabilities


def form_for(queries: Queries, found: Survey, coordinates: Coordinates, precision: str) -> Form:
    """How rows are multiplied."""
    if queries.device.type != "cuda":
        return Plain(coordinates)
    if precision == "tf32":
        return Plain(coordinates, tf32=True)
    of_two = precision == "auto"
    sums_of_two = of_two and found.total < MANY_ROWS
    if queries.features is torch.float16 and found.alike():
        return RowsAsTheyAre(coordinates, of_two, sums_of_two)
    return TwoHalves(coordinates, sums_of_two) if of_two else OneHalf(coordinates)


def rough_form(form: Form, total: int) -> Form:
    """For the first iterations: many rows in half precision, with no effect on the result."""
    if total < MANY_ROWS:
        return form
    if isinstance(form, RowsAsTheyAre):
        return RowsAsTheyAre(form.coordinates, of_two=False, sums_of_two=False)
    return OneHalf(form.coordinates) if isinstance(form, TwoHalves) else form


class Walk:
    """Iterates over the rows as factors of products; they are stored if they fit."""

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
    """Logits of rows by their distances to prototypes; see `fixed.Scores`."""

    def __init__(self, walk: Walk, w: Tensor, slope: Tensor) -> None:
        form, queries = walk.form, walk.queries
        self.walk, self.w = walk, form.prototypes(w)
        self.shape = (queries.B, queries.N, w.shape[1])
        self.slope = (slope * form.factor()).to(w.dtype)
        half_square = torch.linalg.vector_norm(w, dim=-1, dtype=torch.float64).square_() / 2
        self.bias = -slope.unsqueeze(-1) * (half_square + form.offset(w))

    def lengths(self, part: slice) -> Tensor | None:
        form = self.walk.form
        return form.coordinates.lengths(part) if form.weigh else None

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        for part, x in self.walk:
            yield part, self.walk.form.products(x, self.w), self.lengths(part)


class Paddle:
    """Tasks in their coordinates, ready for iteration."""

    def __init__(
        self, queries: Queries, support: Tensor, labels: Tensor, K: int, o: Options, group: Group
    ) -> None:
        self.queries, self.options, self.group, self.K = queries, o, group, K
        self.support, self.labels = support, labels
        found = survey(queries, o.unit, group, validate=o.validate)
        self.total = found.total
        self.task = scaled(found, support, labels, K, o.scaling, queries.dtype)
        form = form_for(queries, found, self.task.coordinates, o.precision)
        self.walk = Walk(queries, form, K)
        rough = rough_form(form, self.total)
        self.rough = self.walk if rough is form else Walk(queries, rough, K)
        squared = self.task.unit.square()
        if o.unit:
            squared = self.unit_rows_factor() * squared
        self.criterion_unit = squared.sqrt()
        self.slope = (o.temperature * squared).clamp(max=STEEPEST[queries.dtype])
        lam = float(self.total) if o.lam is None else o.lam
        self.dual_weight = min(lam / self.total, STEEPEST[queries.dtype])

    def unit_rows_factor(self) -> Tensor:
        """The squared factor of "auto" or "calibrated" on unit-norm rows, [B] float64."""
        task = self.task
        scores = DistanceScores(self.walk, task.labelled.means, torch.ones_like(task.unit))
        leads = torch.zeros(self.queries.B, 2, dtype=torch.float64, device=self.queries.device)
        bias = scores.bias.to(scores.slope.dtype)
        for _, products, length in scores.chunks():
            assign(products, scores.slope, bias, length=length, leads=leads)
        self.group.sum(leads)
        lead, median = leads.unbind(-1)
        scale = (task.unit.square() / self.total).unsqueeze(-1)
        lead, median = lead.unsqueeze(-1), (median + task.squares).unsqueeze(-1)
        factor = auto_factor(lead * scale, median * scale)
        if self.options.sharpness is not None:
            factor = calibrated_factor(self.options.sharpness.double(), factor)
        return factor.square()

    def state(self) -> State:
        o = self.options
        return State(
            self.queries.B,
            self.K,
            self.queries.device,
            prior=o.prior,
            total=float(self.total),
            epsilon=o.epsilon,
            tol=o.tol,
        )

    def scores(self, w: Tensor) -> DistanceScores:
        return DistanceScores(self.walk, w, self.slope)

    def class_sums(self, scores: DistanceScores, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the rows by class [B, K, D], and of their probabilities [B, K] float64."""
        form = scores.walk.form
        parts = ((form.products(x, scores.w), scores.lengths(at), x) for at, x in scores.walk)
        return sums_by_class(parts, scores, dual, form, self.group, weigh=form.weigh)

    def move(self, state: State) -> tuple[Tensor, Tensor]:
        """Iterate prototypes and dual; returns both as of the last probabilities."""
        labelled, w = self.task.labelled, self.task.labelled.means
        start = w * labelled.shots.to(w.dtype).unsqueeze(-1)
        used, used_dual = w, torch.zeros_like(state.dual)
        walk = self.walk if is_captured(w) else self.rough  # its end must be observed
        alone = len(w) == 1 and not is_captured(w)  # the loop ends with its only task
        for _ in range(self.options.max_iter):
            live = None if alone else (state.running > 0).view(-1, 1, 1)
            if live is None:
                used, used_dual = w, state.dual.clone()
            else:
                used = torch.where(live, w, used)
                used_dual = torch.where(live[:, 0], state.dual, used_dual)
            scores = DistanceScores(walk, w, self.slope)
            sums, held = self.class_sums(scores, self.dual_weight * state.dual)
            mass = (labelled.shots + held).clamp(min=1e-12).to(w.dtype).unsqueeze(-1)
            moved_to = (start + sums) / mass
            if live is not None:
                moved_to = torch.where(live, moved_to, w)
            away = torch.linalg.vector_norm(moved_to - w, dim=-1, dtype=torch.float64)
            w = moved_to
            state.update(held, away.mean(-1) * self.criterion_unit)
            if walk is not self.walk and float(state.criterion.amax()) <= ROUGH:
                walk = self.walk
                state.running.fill_(1)  # no task stops on rounded values
            if not state.goes_on():
                break
        return used, used_dual

    def solve(self) -> Found:
        o, state = self.options, self.state()
        scores = self.scores(self.task.labelled.means)
        if o.update_prototypes:
            w, dual = self.move(state)
            scores = self.scores(w)
        else:
            dual, _ = settle(
                scores, state, self.group, dual_weight=self.dual_weight, max_iter=o.max_iter
            )
        weighed = self.dual_weight * dual
        told = tell(scores, weighed, self.group, top=o.top, all_classes=o.all_classes)
        dtype = self.queries.dtype
        return Found(
            told.top,
            told.probabilities,
            state.proportions(state.counts).to(dtype),
            state.dual.to(dtype),
            state.iterations,
            state.criterion.to(dtype),
            state.concentration.to(dtype),
            self.input_prototypes(scores, weighed) if o.prototypes else None,
            told.held,
        )

    def input_prototypes(self, scores: DistanceScores, dual: Tensor) -> Tensor:
        """Prototypes in the coordinates of the inputs, [B, K, D]: means of the rows themselves."""
        queries, dtype = self.queries, self.queries.dtype
        sums, counts = labelled_sums(self.support.double(), self.labels, self.K)
        if not self.options.update_prototypes:
            means = sums / counts.clamp(min=1e-12).unsqueeze(-1)
            return means.expand(queries.B, -1, -1).to(dtype)
        found = survey(queries, False, self.group, validate=False)
        raw = raw_coordinates(found, dtype)
        form: Form = TwoHalves(raw, True) if queries.device.type == "cuda" else Plain(raw)
        own = self.walk.form

        def parts() -> Iterator[Part]:
            for at, rows in queries.chunks(max(self.K, queries.D)):
                products = own.products(own.operand(rows, at), scores.w)
                yield products, scores.lengths(at), form.operand(rows, at)

        taken, held = sums_by_class(parts(), scores, dual, form, self.group)
        centre = found.means.unsqueeze(1)
        unit = (1 / raw.scale.double()).unsqueeze(1)
        moved = sums - counts.unsqueeze(-1) * centre + taken.double() * unit
        return (moved / (counts + held).clamp(min=1e-12).unsqueeze(-1) + centre).to(dtype)


def solve(
    query: Rows | Tensor,
    support: Tensor,
    labels: Tensor,
    K: int,
    options: Options,
    group: Group = ALONE,
) -> Found:
    """Solve one task with queries `Rows`, or tasks with queries [B, Q, D].

    Support [B or 1, S, D], and labels [B or 1, S]; a label outside [0, K) has no class.
    """
    if not isinstance(query, Tensor):
        return Paddle(Queries(query), support, labels, K, options, group).solve()

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
    """Some tasks at a time: as many as fit a chunk, or one; `shape` is [B, Q, D]."""
    B, Q, D = shape
    size = max(1, numbers_at_once(support.device) // (Q * max(K, D)))
    found = []
    for start in range(0, B, size):
        tasks = slice(start, start + size)
        mine = (support, labels) if len(support) == 1 else (support[tasks], labels[tasks])
        own = o if o.sharpness is None else replace(o, sharpness=o.sharpness[tasks])
        found.append(Paddle(Queries(queries(tasks)), *mine, K, own, ALONE).solve())
    return merged(found)


def merged(found: list[Found]) -> Found:
    """Results of all tasks."""
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
        joined("concentration"),
        None if first.prototypes is None else joined("prototypes"),
        joined("held"),
    )
