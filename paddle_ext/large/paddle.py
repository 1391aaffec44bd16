"""PADDLE for large tasks, in chunks: products by torch's BLAS, everything else native.

The full matrix of queries and classes is never stored, unless requested. One pass over the queries
chooses a transform of the rows in which numbers are about 1. Letters: B tasks, N rows of each, K
classes, D features.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import check
from ..check import Options
from ..limits import CHUNK_NUMBERS, MOST_STORED_ROWS
from ..native.call import DTYPES, Inputs, alike, allocate, call_native, is_traced, packed, prepare
from ..native.graphs import Steps, done, is_captured, replayed
from ..native.load import module as native
from ..rows import class_sums, computing_dtype, laid_out, power_of_two
from ..solution import output_table
from ..task import batched, without_autocast
from .passes import ClassSums, Part, Queries, RowResults, assign_all, check_summable, classify_rows
from .products import MANY_ROWS, Form, OneHalf, Plain, RowsAsTheyAre, Transform, TwoHalves
from .sources import IndexedRows, Rows, TensorRows
from .steps import Moved, State

PRECISIONS = ("auto", "half")
LOOK_EVERY = 2  # iterations on a GPU, after which the host asks whether a task still runs
ROUGH = 1e-3  # iterations that move prototypes by more than this may use half precision
STEEPEST = {torch.float32: 1e30, torch.float64: 1e250}  # largest factor on squared distances
LEAST_UNIT = {torch.float32: 2.0**-120, torch.float64: 2.0**-1000}  # so that its inverse is finite


def solve(
    query: Rows | Tensor,
    support: Tensor,
    labels: Tensor,
    K: int,
    options: Options,
    index: Tensor | None = None,
) -> list[Tensor]:
    """Solve one task with queries `Rows` or [Q, D], or B tasks with queries [B, Q, D].

    With an index [Q] or [B, Q], queries are rows of one bank [N, D]. Support [S, D] or [B, S, D]
    and labels [S] or [B, S]; rows with a label outside [0, K) are ignored. Returns what
    `output_table` lists.
    """
    S, D = support.shape[-2:]
    of_query = tuple(query.shape[:-1] if index is None else index.shape)
    if isinstance(query, Tensor) and (is_traced() or of_query[0] == 0):
        real, top = computing_dtype(query), None if options.all_classes else options.top
        others = {"prototypes": (real, (*of_query[:-1], K, D)) if options.prototypes else None}
        return allocate(query, output_table(of_query, K, real, top, others))
    *batch, Q = of_query
    tasks = batch[0] if batch else 1
    support, labels = support.reshape(-1, S, D), labels.reshape(-1, S)
    with torch.no_grad(), without_autocast():
        # As many tasks at a time as fit in a chunk, at least one.
        size = max(1, CHUNK_NUMBERS[support.device.type] // (Q * max(K, D)))
        results: list[Any] = []
        function = function_to_replay(query, Q, options) if isinstance(query, Tensor) else None
        if tasks <= size and function is not None:
            results = [replayed(function, query, index, support, labels, K, options)]
        else:
            for start in range(0, tasks, size):
                part = slice(start, start + size)
                own = (support, labels) if len(support) == 1 else (support[part], labels[part])
                results.append(done(in_steps(query, index, *own, K, options, part)))
    whole = [x[0] if len(x) == 1 else torch.cat(x) for x in zip(*results, strict=True)]
    return whole if batch else [x[0] for x in whole]


def function_to_replay(query: Tensor, Q: int, o: Options) -> Callable[..., Any] | None:
    """What to record of tasks of Q queries: all of a few iterations, else one that is repeated.

    None if a step needs the host, or if steps differ.
    """
    if not query.is_cuda or query.dtype is not torch.float32 or Q >= MANY_ROWS:
        return None
    if o.max_iter <= 2 * LOOK_EVERY:
        return at_once
    return in_steps if o.max_iter % LOOK_EVERY == 0 else None


def at_once(*arguments: Any) -> Any:
    """`in_steps` to its end. In a recording no stop is seen: later iterations change nothing."""
    return done(in_steps(*arguments))


def in_steps(
    query: Rows | Tensor,
    index: Tensor | None,
    support: Tensor,
    labels: Tensor,
    K: int,
    options: Options,
    tasks: slice = slice(None),
) -> Steps:
    """Solve some tasks, with support [B or 1, S, D]; all by default."""
    queries = Queries(rows_of(query, index, tasks))
    yield from Paddle(queries, support, labels, K, options).steps()


def rows_of(query: Rows | Tensor, index: Tensor | None, tasks: slice) -> Rows | Tensor:
    """The queries of some tasks; those of a single one in chunks."""
    if not isinstance(query, Tensor):
        return query
    own = batched(query, 3)[tasks] if index is None else batched(index, 2)[tasks]
    if index is None:
        return own if len(own) > 1 else TensorRows(own[0])
    if len(own) == 1:
        return IndexedRows(query, own[0])
    return query.index_select(0, own.flatten()).view(*own.shape, -1)


# --- preparation --------------------------------------------------------------------------------


@dataclass
class Survey:
    """Statistics of one pass over the queries."""

    total: int  # rows of a task
    sums: Tensor  # [B, D] float64: sums of the rows, here and below multiplied by `length`
    squares: Tensor  # [B] float64: sums of squares
    least: Tensor  # [B, D]
    most: Tensor  # [B, D]
    length: Tensor | None  # [B, N] 1 / norm; 0 for a row of zeros

    def similar_lengths(self) -> bool:
        """Whether no row is so much longer than another that halves cannot represent the ratio."""
        if self.length is None:
            return True
        if is_captured(self.length):
            return False  # cannot be read
        shortest = torch.where(self.length > 0, self.length, torch.inf).amin()
        return bool(self.length.amax() <= 64 * shortest)


def survey(queries: Queries, unit_norm: bool, *, validate: bool) -> Survey:
    """Scan all queries; with `unit_norm`, after normalising them to unit length."""
    B, D, real, device = queries.B, queries.D, queries.dtype, queries.device
    sums = torch.zeros(B, D, dtype=torch.float64, device=device)
    squares = torch.zeros(B, dtype=torch.float64, device=device)
    least = torch.full((B, D), torch.inf, dtype=real, device=device)
    most = -least
    length = torch.empty(B, queries.N, dtype=real, device=device) if unit_norm else None
    extremes: list[Tensor] = []  # of the rows as they are
    for part, chunk in queries.chunks(D):
        extremes += chunk.aminmax() if validate else ()
        rows, N = chunk if chunk.is_cuda else chunk.to(real), chunk.shape[1]
        tensors: Inputs = {
            "rows": (rows, rows.dtype, (B, N, D)),
            "length": (None if length is None else length[:, part], real, (B, N)),
            **alike(torch.float64, B, D, sums=sums),
            **alike(torch.float64, B, squares=squares),
            **alike(real, B, D, least=least, most=most),
        }
        options = {"B": B, "N": N, "D": D}
        call_native(native.survey_call, options, rows, tensors)
    if validate:
        check_summable(extremes, queries.given_dtype)
    return Survey(queries.N, sums, squares, least, most, length)


@dataclass(frozen=True)
class Placed:
    """The transform of the rows of tasks, and the means of their labelled rows after it."""

    transform: Transform
    means: Tensor  # [B, K, D]
    shots: Tensor  # [B, K] float64
    unit: Tensor  # [B] float64: what a distance of 1 here is after `scaling`
    spread: Tensor  # [B] float64: sum of the squares of the queries, without the scale


def place(
    surveyed: Survey, support: Tensor, labels: Tensor, K: int, scaling: str, real: torch.dtype
) -> Placed:
    """The transform that centres rows at the mean of the queries, and scales them.

    That is `scaling` except for its final factor. Support [B or 1, S, D] and labels [B or 1, S];
    rows with a label outside [0, K) are ignored.
    """
    (B, D), (sets, S) = surveyed.sums.shape, labels.shape
    support = packed(support if support.is_cuda else support.double())
    ordered, order = labels.long().contiguous().sort(stable=True)
    classes = torch.arange(K + 1, device=labels.device).expand(sets, -1).contiguous()
    starts, double = torch.searchsorted(ordered, classes), torch.float64
    tensors: Inputs = {
        "support": (support, support.dtype, (sets, S, D)),
        "order": (order, torch.int64, (sets, S)),
        "start": (starts, torch.int64, (sets, K + 1)),
        **alike(double, B, D, sums=surveyed.sums),
        **alike(double, B, squares=surveyed.squares),
        **alike(real, B, D, least=surveyed.least, most=surveyed.most),
    }
    outputs = {
        "means": (real, (B, K, D)),
        "shots": (double, (B, K)),
        **dict.fromkeys(("scale", "centre"), (real, (B, D))),
        **dict.fromkeys(("unit", "spread"), (double, (B,))),
    }
    sizes = {"B": B, "S": S, "K": K, "D": D, "shared": sets < B}
    scaled = {"scaling": check.SCALINGS[scaling], "total": float(surveyed.total)}
    options = {"written": DTYPES[real], **sizes, **scaled}
    means, shots, scale, centre, unit, spread = call_native(
        native.place_call, options, support, tensors, outputs
    )
    return Placed(Transform(surveyed.length, scale, centre), means, shots, unit, spread)


def slope_of(placed: Placed, total: int, leads: Tensor | None, o: Options) -> tuple[Tensor, Tensor]:
    """The factor on products in logits, and the unit of distances, [B] float64 each.

    `leads` [B, 2] are the outputs of `assign_call` for the scaling "auto".
    """
    B, double = len(placed.unit), torch.float64
    tensors: Inputs = {
        **alike(double, B, unit=placed.unit, spread=placed.spread),
        "leads": (leads, double, (B, 2)),
    }
    limits = {"temperature": o.temperature, "steepest": STEEPEST[placed.means.dtype]}
    options = {"B": B, "total": float(total), **limits}
    outputs = {"slope": (double, (B,)), "distance_unit": (double, (B,))}
    slope, unit = call_native(
        native.slope_call, options, placed.unit, tensors, outputs, typed=False
    )
    return slope, unit


def forms_for(
    queries: Queries, surveyed: Survey, transform: Transform, precision: str
) -> tuple[Form, Form]:
    """How rows are multiplied, and how in the first iterations: if they are many, as halves.

    The last iterations use the full precision, so the result is the same.
    """
    form: Form = Plain(transform)
    if queries.device.type != "cuda":
        return form, form
    of_two, many = precision == "auto", surveyed.total >= MANY_ROWS
    if queries.given_dtype is torch.float16 and surveyed.similar_lengths():
        form = RowsAsTheyAre(transform, of_two=of_two, sums_of_two=of_two and not many)
        return form, RowsAsTheyAre(transform, of_two=False) if many else form
    rough = OneHalf(transform)
    form = TwoHalves(transform, sums_of_two=not many) if of_two else rough
    return form, rough if many else form


# --- iterations ---------------------------------------------------------------------------------


class PreparedRows:
    """Iterate over chunks of rows, prepared for products; stored in the first pass if they fit."""

    def __init__(self, queries: Queries, form: Form, K: int) -> None:
        self.queries, self.form, self.K = queries, form, K
        row = queries.D * (12 if queries.device.type == "cuda" else 4)
        self.fits = queries.B * queries.N * row <= MOST_STORED_ROWS
        self.stored: list[tuple[slice, Tensor]] = []

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        if self.stored:
            yield from self.stored
            return
        fresh = []
        for part, rows in self.queries.chunks(max(self.K, self.queries.D)):
            x = self.form.operand(rows, part)
            if self.fits:
                x = x.clone() if x is rows else x
                fresh.append((part, x))
            yield part, x
        self.stored = fresh


class DistanceScores:
    """Logits from the distances of rows to prototypes; implements `passes.Scores`.

    `move` modifies the prototypes `w` [B, K, D] in place.
    """

    def __init__(self, rows: PreparedRows, w: Tensor, slope: Tensor, placed: Placed) -> None:
        self.w, self.before, self.exact_slope, self.placed = w, torch.empty_like(w), slope, placed
        B, K, _ = w.shape
        self.shape = (B, rows.queries.N, K)
        self.away = torch.empty(B, K, dtype=torch.float64, device=w.device)
        self.bias = torch.empty_like(self.away)  # without the dual
        self.products: Tensor | None = None  # those of a chunk, overwritten by the next
        self.use(rows)

    def use(self, rows: PreparedRows) -> None:
        """Use these rows for all products from now on."""
        self.rows, (B, K, D) = rows, self.w.shape
        self.slope = (self.exact_slope * rows.form.factor).to(self.w.dtype)
        shape = (B, K, rows.form.pieces * D)
        self.operand = torch.empty(shape, dtype=torch.float16, device=self.w.device)
        self.move_call([], None, None)()

    def steepen(self, slope: Tensor) -> None:
        """Multiply the logits by a factor [B], float64."""
        self.exact_slope = self.exact_slope * slope
        self.slope = (self.exact_slope * self.rows.form.factor).to(self.w.dtype)
        self.bias *= slope.unsqueeze(-1)

    def move_call(
        self, sums: list[Tensor], held: Tensor | None, running: Tensor | None
    ) -> Callable[[], None]:
        """What moves the prototypes of the tasks still running; `before` keeps the old ones.

        `sums` are the sums of rows by class, laid out as by `Form.zero_sums`, and `held` [B, K]
        those of their weights. Without sums no prototype moves, but the factors of products and the
        bias are computed.
        """
        form, (B, K, D) = self.rows.form, self.w.shape
        real, double = self.w.dtype, torch.float64
        scale, centre, factor = form.on_prototypes or (None, None, None)
        all_sums, rest = ([*sums, None, None])[:2]
        parts, width = (1, D) if all_sums is None else (len(all_sums) // B, all_sums.shape[-1])
        operand = self.operand if form.pieces else self.w
        early: Inputs = {
            "start": (self.placed.means, real, (B, K, D)),
            "shots": (self.placed.shots, double, (B, K)),
            **alike(real, B, D, scale=scale, centre=centre, factor=factor),
            "slope": (self.exact_slope, double, (B,)),
        }
        tensors: Inputs = {
            "sums": (all_sums, real, (parts * B, K, width)),
            "rest": (rest, real, (parts * B, K, D)),
            "held": (held, double, (B, K)),
            "running": (running, torch.int32, (B,)),
            **alike(real, B, K, D, prototypes=self.w, before=self.before),
            **alike(double, B, K, away=self.away, base=self.bias),
            "operand": (operand, operand.dtype, (B, K, max(form.pieces, 1) * D)),
        }
        options = {"B": B, "K": K, "D": D, "parts": parts, "width": width, "pieces": form.pieces}
        move, _ = prepare(native.move_call, options, self.w, tensors, early=early)
        if form.pieces:
            return move

        def move_and_lay_out() -> None:
            move()
            self.operand = laid_out(self.w)

        return move_and_lay_out

    def lengths(self, part: slice) -> Tensor | None:
        """The lengths of rows, if the prepared ones do not include them."""
        form = self.rows.form
        return form.transform.lengths(part) if form.weigh else None

    def parts(self) -> Iterator[Part]:
        for at, x in self.rows:
            if self.products is None:  # the first chunk is the largest
                shape = *x.shape[:2], self.w.shape[1]
                self.products = torch.empty(shape, dtype=self.w.dtype, device=x.device)
            out = self.products[:, : x.shape[1]]
            yield at, self.rows.form.products(x, self.operand, out), self.lengths(at), x

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        return ((at, products, length) for at, products, length, _ in self.parts())


class Paddle:
    """B tasks with their transform, ready for iteration."""

    def __init__(
        self, queries: Queries, support: Tensor, labels: Tensor, K: int, o: Options
    ) -> None:
        self.queries, self.options, self.K = queries, o, K
        self.support, self.labels = support, labels
        unit_norm = o.scaling == "auto"
        surveyed = survey(queries, unit_norm, validate=o.validate)
        self.placed = place(surveyed, support, labels, K, o.scaling, queries.dtype)
        form, rough = forms_for(queries, surveyed, self.placed.transform, o.precision)
        self.rows = PreparedRows(queries, form, K)
        self.rough = self.rows if rough is form else PreparedRows(queries, rough, K)
        one = torch.ones_like(self.placed.unit)
        self.scores = DistanceScores(self.rows, self.placed.means.clone(), one, self.placed)
        leads = None
        if unit_norm:  # leads of the nearest class over the median one; see `assign_call`
            leads = torch.zeros(queries.B, 2, dtype=torch.float64, device=queries.device)
            assign_all(self.scores, None, leads=leads)
        slope, self.distance_unit = slope_of(self.placed, self.queries.N, leads, o)
        self.scores.steepen(slope)
        lam = float(self.queries.N) if o.lam is None else o.lam
        self.dual_weight = min(lam / self.queries.N, STEEPEST[queries.dtype])

    def move(self, state: State) -> Generator[Any, bool, RowResults | None]:
        """Iterate prototypes and dual.

        Returns the results for the rows, if the last iteration could write them: those of one task,
        computed in the dtype in which they are returned.
        """
        o, scores, results, iterate = self.options, self.scores, None, None
        if self.rough is not self.rows and not is_captured(scores.w):
            scores.use(self.rough)
        bias = scores.bias.to(scores.w.dtype)
        writes_results = self.queries.B == 1 and self.rows.form.weight_dtype is None
        every = LOOK_EVERY if scores.w.is_cuda and self.rough is self.rows else 1
        for step in range(1, o.max_iter + 1):
            if step == o.max_iter and scores.rows is self.rows and writes_results:
                results = RowResults.empty(scores, top=o.top, all_classes=o.all_classes)
                iterate = None
            iterate = iterate or self.iteration(scores, bias, state, results)
            iterate()
            if scores.rows is not self.rows and float(state.criterion.amax()) <= ROUGH:
                scores.use(self.rows)
                state.running.fill_(1)  # no task stops on rounded values
                iterate = None
            left = o.max_iter - step
            if (step % every == 0 or left == 0) and not (yield state.running, -(-left // every)):
                break
        return results

    def iteration(
        self, scores: DistanceScores, bias: Tensor, state: State, results: RowResults | None
    ) -> Callable[[], None]:
        """A function that does one more iteration and, if given, writes `results` for the rows."""
        adding = ClassSums(
            scores.rows.form,
            scores.slope,
            bias,
            top=None if results is None else results.top,
            out=None if results is None else results.probabilities,
            keep=scores.rows.fits,
        )
        move = scores.move_call(adding.sums, adding.held, state.running)
        moved = Moved(scores.away, self.distance_unit, scores.bias, bias)
        update = state.update_call(adding.held, moved)

        def iterate() -> None:
            adding.add_up(scores.parts())
            if results is not None:
                results.held.copy_(adding.held)
            move()
            update()

        return iterate

    def steps(self) -> Steps:
        """Solve the tasks; yields the results in the order of `output_table`."""
        o, dtype = self.options, self.queries.dtype
        state = State(
            self.queries.B,
            self.K,
            self.queries.device,
            prior=check.PRIORS["paddle"],
            total=float(self.queries.N),
            dual_weight=self.dual_weight,
            epsilon=o.epsilon,
            tol=o.tol,
        )
        results = yield from self.move(state)
        weighed = self.dual_weight * state.before
        if results is None or o.prototypes:  # back to the prototypes before the last move
            self.scores.w, self.scores.before = self.scores.before, self.scores.w
            self.scores.use(self.rows)
        if results is None:
            results = classify_rows(self.scores, weighed, top=o.top, all_classes=o.all_classes)
        top, every = results.top, results.probabilities
        outputs = [
            top.classes[..., 0].contiguous(),
            top.probabilities if every is None else every,
            state.proportions(state.counts).to(dtype),
            state.dual.to(dtype),
            state.iterations,
            state.criterion.clamp(max=torch.finfo(dtype).max).to(dtype),
        ]
        if o.prototypes:
            outputs.append(self.input_prototypes(weighed))
        yield tuple(outputs) if every is not None else (*outputs, top.classes, results.held)

    def input_prototypes(self, dual: Tensor) -> Tensor:
        """Prototypes [B, K, D] as weighted means of the input rows, not transformed."""
        queries, scores, dtype = self.queries, self.scores, self.queries.dtype
        labels = self.labels.long()
        labels = torch.where((labels >= 0) & (labels < self.K), labels, self.K)  # ignored
        sums, counts = class_sums(self.support.double(), labels, self.K + 1)
        sums, counts = sums[:, : self.K], counts[:, : self.K].double()
        surveyed = survey(queries, False, validate=False)
        query_means = surveyed.sums / surveyed.total
        # Rows are only centred, and scaled to size 1.
        reach = torch.maximum(surveyed.most - query_means, query_means - surveyed.least).amax(-1)
        size = power_of_two(reach).clamp(min=LEAST_UNIT[dtype]).unsqueeze(-1)
        scale, centre = torch.ones_like(query_means) / size, query_means / size
        centring = Transform(None, scale.to(dtype), centre.to(dtype))
        form: Form = Plain(centring)
        if queries.device.type == "cuda":
            form = TwoHalves(centring, sums_of_two=True)
        own = self.rows.form

        def parts() -> Iterator[Part]:
            for at, rows in queries.chunks(max(self.K, queries.D)):
                products = own.products(own.operand(rows, at), scores.operand)
                yield at, products, scores.lengths(at), form.operand(rows, at)

        bias = (scores.bias + dual).to(scores.slope.dtype)
        query_sums, held = ClassSums(form, scores.slope, bias).add_up(parts())
        taken = form.total(query_sums, held)
        centre = query_means.unsqueeze(1)
        unit = (1 / centring.scale.double()).unsqueeze(1)
        moved = sums - counts.unsqueeze(-1) * centre + taken.double() * unit
        return (moved / (counts + held).clamp(min=1e-12).unsqueeze(-1) + centre).to(dtype)
