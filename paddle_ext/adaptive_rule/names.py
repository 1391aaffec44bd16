"""Tasks with class names, given as prototypes or zero-shot logits, besides labelled rows.

Letters: B tasks, S labelled rows, Q queries, K classes, D features, R calibration rows, which are
labelled too. The equations are in docs/names.md. If every class has a labelled row, and two on
average, the logits of the names are added to the likelihoods of `adaptive`; otherwise prototypes
start as anchors at the names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..rows import class_sums, evenly_spread, products, unit_rows
from ..solution import Solution
from ..solvers.adapt import adapt_checked
from ..task import Task, how_many, merged
from .classify import classify
from .learn import PRIOR_SHARPNESS, calibrate, likelihood_of
from .likelihood import Likelihood, column

MOST_CALIBRATION_ROWS = 256
NAME_SHARPNESS = 20.0  # limit for the names' logits, for centred unit-norm rows and names
NAME_WEIGHT = 0.7  # weight of the names' logits next to distances
NAME_SHOTS = 1.4  # with n labelled rows, a name has weight NAME_SHOTS / (1 + n)
NAME_SHARES = (0.0, 0.5, 2.0)  # factors on that weight, besides 1, of which the best is chosen
ANCHOR, ANCHOR_ROWS = 0.3, 0.5  # length of a name as a row, and its weight in labelled rows
MODALITY_SLOPE = 0.4  # ratio of the offset of a class mean to the offset of its name
ANCHOR_SHARPNESS = 12.0  # of distances to anchors
MOST_FACTOR = 1.25  # limit on the factor on logits: labelled rows of few classes may overfit
# Few, because proportions must not converge before the prototypes have seen the queries.
FIRST_ITERATIONS = 3
STEPS, STEP_ITERATIONS = 2, 10  # steps in which prototypes absorb the queries
# If there are more classes than this, and more than queries, only the likeliest count.
MOST_LIKELY_CLASSES = 256
QUERIES_PER_CLASS = 8  # in a batch with more queries each has less weight
# A unit-norm row this near to the centre counts as the centre.
SAME = {torch.float32: 1e-6, torch.float64: 1e-12}


def solve_named(task: Task, metric: str, logit_scale: float, **options: Any) -> Solution:
    """Solve tasks with prototypes or logits; `options` are those of `classify`."""
    step = how_many(bytes_per_task(task), task.query)
    parts = [task.part(slice(i, i + step)) for i in range(0, len(task.query), step)]
    return merged([solve_part(part, metric, logit_scale, options) for part in parts])


def solve_part(task: Task, metric: str, logit_scale: float, options: dict[str, Any]) -> Solution:
    by_rows = tasks_with_every_class(task)
    if all(by_rows):
        return solve_by_rows(task, metric, logit_scale, options)
    if not any(by_rows):
        return solve_by_anchors(task, logit_scale, options)
    # No task may depend on the others in its batch.
    kind = torch.tensor(by_rows, device=task.query.device)
    first, second = kind.nonzero().squeeze(1), (~kind).nonzero().squeeze(1)
    parts = [
        solve_by_rows(task.part(first), metric, logit_scale, options),
        solve_by_anchors(task.part(second), logit_scale, options),
    ]
    return merged(parts, torch.cat([first, second]).argsort())


def adapted(
    logits: Tensor, weight: float, most: int, options: dict[str, Any], measures: Tensor | None
) -> Solution:
    """Adapt logits [B, Q, K] to the class proportions, in at most `most` iterations."""
    max_iter, tol = min(most, options["max_iter"]), options["tol"]
    return adapt_checked(logits, weight, max_iter, tol, measures)


def tasks_with_every_class(task: Task) -> list[bool]:
    """Which tasks have rows of every class, and two on average; one flag if shared."""
    (B, S), K = task.support_labels.shape, task.num_classes
    if S < 2 * K:
        return [False] * B
    flags: list[bool] = (shots_of(task) > 0).all(-1).tolist()
    return flags


def shots_of(task: Task) -> Tensor:
    """Labelled rows of each class, [B or 1, K], in the dtype of the task."""
    labels = task.support_labels
    shots = torch.zeros(len(labels), task.num_classes, dtype=torch.int64, device=labels.device)
    return shots.scatter_add_(1, labels, torch.ones_like(labels)).to(task.query.dtype)


def bytes_per_task(task: Task) -> int:
    """Memory of the temporary tensors of one task."""
    (Q, D), K, S = task.query.shape[1:], task.num_classes, task.support.shape[1]
    numbers = Q * (5 * D + 10 * K + Q)
    if task.prototypes is not None and len(task.prototypes) > 1:
        numbers += 4 * K * D
    if S:
        numbers += 4 * S * D + 4 * K * D + min(S, MOST_CALIBRATION_ROWS) * (2 * D + 6 * K)
    return numbers * task.query.itemsize


# --- logits of the names ------------------------------------------------------------------------


@dataclass(frozen=True)
class NameLogits:
    """Zero-shot logits minus their mean over the classes, times the weight of names."""

    query: Tensor  # [B, Q, K] of the queries
    calibration: Tensor | None  # [B, R, K] of the calibration rows; None: unknown
    # None if logits are given instead of prototypes:
    away: Tensor | None  # [B or 1, K, D] unit-norm names minus their mean
    products: Tensor | None  # [B, Q, K] products of unit-norm queries with them


@dataclass(frozen=True)
class UnitRows:
    """Unit-norm queries and labelled rows, and which of these are calibration rows."""

    query: Tensor  # [B, Q, D]
    support: Tensor  # [B or 1, S, D]
    labels: Tensor  # [B or 1, S]
    shots: Tensor  # [B or 1, K]
    index: Tensor  # [R] of the calibration rows, evenly spread over the labelled rows

    def calibration(self, rows: Tensor) -> Tensor:
        """The calibration rows among labelled rows [B or 1, S, ..]."""
        return rows.index_select(1, self.index)


def unit_rows_of(task: Task) -> UnitRows:
    S = task.support.shape[1]
    return UnitRows(
        query=unit_rows(task.query),
        support=unit_rows(task.support),
        labels=task.support_labels,
        shots=shots_of(task),
        index=evenly_spread(min(S, MOST_CALIBRATION_ROWS), S, task.query.device),
    )


def name_logits_of(task: Task, rows: UnitRows, logit_scale: float) -> NameLogits:
    weight = NAME_WEIGHT * (NAME_SHOTS / (1 + rows.shots)).clamp(max=1).mean(-1).view(-1, 1, 1)
    if task.prototypes is None:
        assert task.logits is not None
        logits = task.logits - task.logits.mean(-1, keepdim=True)
        return NameLogits(logits * weight, None, None, None)
    away = unit_rows(task.prototypes)
    away = away - away.mean(-2, keepdim=True)
    inner = products(rows.query, away)
    deviation = mean_deviation(rows.query)
    if len(rows.index):
        deviation = torch.maximum(deviation, mean_deviation(rows.support))
    # Dividing by the spread of rows and of names makes encoders with narrow embeddings comparable.
    scale = NAME_SHARPNESS / (deviation * lengths(away).mean(-2, keepdim=True))
    scale = scale.clamp(max=logit_scale).expand(len(inner), 1, 1)
    if not len(rows.index):
        return NameLogits(inner * (scale * weight), None, away, inner)
    calibration = products(rows.calibration(rows.support), away) * scale
    weight = weight * column(fitted(calibration, rows)[0].clamp(max=1))
    return NameLogits(inner * (scale * weight), calibration * weight, away, inner)


def fitted(logits: Tensor, rows: UnitRows) -> tuple[Tensor, Tensor]:
    """The factor on logits [B, R, K] that fits calibration rows best, and the misfit; [B] each."""
    B, R, _ = logits.shape
    labels = rows.calibration(rows.labels).expand(B, R)
    count = torch.full((B,), R, device=logits.device)
    sharpness, objective = calibrate(logits * (-2 / PRIOR_SHARPNESS), labels, count)[:2]
    return sharpness / PRIOR_SHARPNESS, objective


def lengths(x: Tensor) -> Tensor:
    """Norms of rows, [.., N, D] -> [.., N, 1]."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms


def mean_deviation(x: Tensor) -> Tensor:
    """The mean distance of rows to their mean, [.., 1, 1]."""
    return lengths(x - x.mean(-2, keepdim=True)).mean(-2, keepdim=True)


def inverse(length: Tensor) -> Tensor:
    """1 / length; 0 where the length is 0 up to rounding."""
    same = SAME[length.dtype]
    return torch.where(length > same, 1 / length.clamp(min=same), 0)


# --- prototypes that absorb the queries ----------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Prototypes before they absorb the queries: s / mass, with s a sum of rows."""

    cross: Tensor  # [B, Q, K] queries . s
    squares: Tensor  # [B or 1, 1, K] s . s
    mass: Tensor  # [B or 1, 1, K]

    def distances(self) -> Tensor:
        """Squared distances of the queries to the prototypes, minus the squares of the queries."""
        return torch.sub(self.squares / self.mass.square(), self.cross / self.mass, alpha=2)

    def distances_with(self, weights: Tensor, inner: Tensor, own: Tensor) -> Tensor:
        """The distances once prototypes have absorbed the queries, each query without itself.

        `weights` [B, Q, K] are those of the queries in each class, `inner` the products of queries
        with the weighted sums of all queries, `own` [B, Q, 1] those with themselves.
        """
        everything = self.cross + inner
        square = (weights * (self.cross + everything)).sum(-2, keepdim=True) + self.squares
        mass = (self.mass + weights.sum(-2, keepdim=True)) - weights
        alone = everything - weights * own
        square = torch.addcmul(square, weights, everything.add_(alone), value=-1)
        return square.div_(mass).sub_(alone.mul_(2)).div_(mass)


def solve_by_anchors(task: Task, logit_scale: float, options: dict[str, Any]) -> Solution:
    """Solve tasks with prototypes that start as names and absorb labelled rows and queries."""
    rows = unit_rows_of(task)
    names = name_logits_of(task, rows, logit_scale)
    measures, (Q, K) = task.measures, names.query.shape[-2:]
    weight, solution, _, x, sums, _, factor = anchored(rows, names, options, measures)
    sharpness = column(factor) * (ANCHOR_SHARPNESS / 2)
    added = names.query if names.calibration is None else names.query * column(factor)
    if len(rows.index):
        logits = torch.addcmul(added, sums.distances(), sharpness, value=-1)
        solution = adapted(logits, weight, FIRST_ITERATIONS, options, measures)
    likely, M = None, max(MOST_LIKELY_CLASSES, Q)  # at most Q classes occur
    if M < K:
        likely = solution.proportions.topk(M, sorted=False).indices.sort().values
        added = narrowed(added, likely)
        sums = Sums(*(narrowed(x, likely) for x in (sums.cross, sums.squares, sums.mass)))
        solution = solution._replace(probabilities=narrowed(solution.probabilities, likely))
        measures = None if measures is None else narrowed(measures, likely)
    gram = torch.bmm(x, x.mT)
    own = gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    for _ in range(STEPS):
        W = solution.probabilities.square()
        d = sums.distances_with(W, torch.bmm(gram, W), own)
        logits = torch.addcmul(added, d, sharpness, value=-1)
        solution = adapted(logits, weight, STEP_ITERATIONS, options, measures)
    shares = solution.prevalence().estimate.to(solution.dual.dtype)
    solution = solution._replace(proportions=shares)
    return solution if likely is None else widened(solution, likely, K)


def narrowed(x: Tensor, likely: Tensor) -> Tensor:
    """The columns of the likely classes, [B or 1, N, K] -> [B, N, M]."""
    B, M = likely.shape
    return x.expand(B, -1, -1).gather(-1, likely.unsqueeze(1).expand(B, x.shape[1], M))


def widened(solution: Solution, likely: Tensor, K: int) -> Solution:
    """The solution for all K classes, from that for the likely; others have probability 0."""
    u = solution.probabilities
    B, Q, M = u.shape
    place = likely.unsqueeze(1).expand(B, Q, M)
    lowest = solution.dual.amin(-1, keepdim=True).expand(B, K)
    return solution._replace(
        labels=likely.gather(-1, solution.labels),
        probabilities=u.new_zeros(B, Q, K).scatter_(-1, place, u),
        proportions=u.new_zeros(B, K).scatter_(-1, likely, solution.proportions),
        dual=lowest.scatter(-1, likely, solution.dual),
    )


def centre_of(rows: UnitRows, names: NameLogits, u: Tensor) -> Tensor:
    """The mean of all class means, [B, 1, D], estimated from queries and from labelled rows."""
    share = u.mean(-2, keepdim=True)
    centre = rows.query.mean(-2, keepdim=True)
    if names.away is not None:
        centre = centre - MODALITY_SLOPE * torch.matmul(share, names.away)
    if not len(rows.index):
        return centre
    seen = (rows.shots > 0).to(u.dtype).unsqueeze(1)
    classes = seen.sum(-1, keepdim=True)
    sums, _ = class_sums(rows.support, rows.labels, u.shape[-1])
    means = sums / rows.shots.clamp(min=1).unsqueeze(-1)
    if names.away is not None:
        means = means - MODALITY_SLOPE * names.away
    other = torch.matmul(seen / classes, means)
    present = 1 / share.square().sum(-1, keepdim=True)
    return torch.lerp(centre, other.expand_as(centre), classes / (classes + present))


class Anchored(NamedTuple):
    """Prototypes that start at the names, and what they are compared with."""

    weight: float  # of a query in the class counts
    first: Solution  # by the names alone
    centre: Tensor  # [B, 1, D]
    x: Tensor  # [B, Q, D] the queries minus the centre, unit-norm
    sums: Sums  # of anchors and labelled rows
    s: Tensor | None  # [B or 1, K, D] the sums themselves; None without either
    factor: Tensor  # [B] on logits, which fits the calibration rows


def anchored(
    rows: UnitRows, names: NameLogits, options: dict[str, Any], measures: Tensor | None
) -> Anchored:
    (B, Q, K), shots = names.query.shape, rows.shots.unsqueeze(1)
    weight = min(1.0, QUERIES_PER_CLASS * K / Q)
    first = adapted(names.query / NAME_WEIGHT, weight, FIRST_ITERATIONS, options, measures)
    centre = centre_of(rows, names, first.probabilities)
    off = rows.query - centre
    length = inverse(lengths(off))
    x, mass = off.mul_(length), ANCHOR_ROWS + shots
    cross, squares = x.new_zeros(B, Q, K), torch.zeros_like(shots)
    s = None
    if names.away is not None:
        assert names.products is not None
        shrink = ANCHOR_ROWS * ANCHOR * inverse(lengths(names.away))
        cross = names.products - products(centre, names.away)
        cross = cross.mul_(length).mul_(shrink.mT)
        s = names.away * shrink
        squares = s.square().sum(-1).unsqueeze(1)
    if not len(rows.index):
        return Anchored(weight, first, centre, x, Sums(cross, squares, mass), s, x.new_ones(B))
    support = rows.support - centre
    support = support * inverse(lengths(support))
    labels = rows.labels.expand(B, -1)
    labelled, _ = class_sums(support, labels.contiguous(), K)
    s = labelled if s is None else labelled + s
    squares = s.square().sum(-1).unsqueeze(1)
    sums = Sums(products(x, labelled).add_(cross), squares, mass)
    calibration = rows.calibration(support)
    own = rows.calibration(labels).unsqueeze(-1)
    d = Sums(products(calibration, s), squares, mass).distances()
    # Move each calibration row as far from its own class as a new row is on average.
    mass = mass.expand_as(d).gather(-1, own)
    square = calibration.square().sum(-1, keepdim=True)
    d = d.scatter_add(-1, own, 2 / (mass - 1) * (d.gather(-1, own) + square))
    logits = d * (-ANCHOR_SHARPNESS / 2)
    logits = logits if names.calibration is None else logits + names.calibration
    factor = fitted(logits, rows)[0].clamp(max=MOST_FACTOR)
    return Anchored(weight, first, centre, x, sums, s, factor)


# --- every class has labelled rows ----------------------------------------------------------------


def solve_by_rows(task: Task, metric: str, logit_scale: float, options: dict[str, Any]) -> Solution:
    """Solve with the likelihood of the labelled rows, plus names in the share that suits them."""
    rows = unit_rows_of(task)
    names = name_logits_of(task, rows, logit_scale)
    likelihood = likelihood_of(task.support, task.support_labels, task.num_classes, metric)
    share, factor = fitted_name_share(task, rows, likelihood, names)
    softened = replace(
        likelihood,
        sharpness=likelihood.sharpness * factor,
        bias=likelihood.bias * factor.unsqueeze(-1),
    )
    added = names.query * column(share * factor)
    return classify(softened, task.query, added, measures=task.measures, **options)[0]


def fitted_name_share(
    task: Task, rows: UnitRows, likelihood: Likelihood, names: NameLogits
) -> tuple[Tensor, Tensor]:
    """The share of names that fits the calibration rows best, and a factor <= 1; [B] each."""
    one = names.query.new_ones(len(names.query))
    if names.calibration is None:
        return one, one
    own = rows.calibration(rows.labels)
    x = likelihood.centred(rows.calibration(task.support))
    sharpness = column(likelihood.sharpness)
    logits = torch.addcmul(
        likelihood.bias.unsqueeze(-2), products(x, likelihood.weights), sharpness
    )
    n = likelihood.shots.gather(1, own)
    offset = x - torch.take_along_dim(likelihood.prototypes, own.unsqueeze(-1), 1)
    farther = 2 / (n - 1).clamp(min=1) * likelihood.squared(offset).clamp(min=0)
    logits.scatter_add_(-1, own.unsqueeze(-1), (farther.unsqueeze(-1) * sharpness).div_(-2))
    counts = (n > 1).to(x.dtype).unsqueeze(-1)  # the only row of its class carries no information
    factor, best = fitted((logits + names.calibration) * counts, rows)
    share = one
    for other in NAME_SHARES:
        other_factor, objective = fitted(
            torch.add(logits, names.calibration, alpha=other) * counts, rows
        )
        objective = objective + (1.0 if other else 2.0)  # prefers the default among near-equals
        better = objective < best
        factor, best = (
            torch.where(better, other_factor, factor),
            torch.where(better, objective, best),
        )
        share = torch.where(better, other, share)
    return share, factor.clamp(max=1)


# --- one more row of a batch ----------------------------------------------------------------------


@dataclass(frozen=True)
class RowLogits:
    """Logits ``z.names_k + x.weights_k + bias_k`` of rows, unit-norm (z) and centred (x)."""

    names: Tensor  # [K, D]
    centre: Tensor  # [D]
    weights: Tensor  # [K, D]
    bias: Tensor  # [K]

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, D] -> [N, K]."""
        z = unit_rows(rows.to(self.weights.dtype))
        off = z - self.centre
        x = off * inverse(lengths(off))
        return z @ self.names.mT + x @ self.weights.mT + self.bias


def row_logits(
    task: Task, solution: Solution | None, *, logit_scale: float, **options: Any
) -> RowLogits:
    """Those of one task with prototypes; without a solution its queries are its labelled rows."""
    rows = unit_rows_of(task)
    names = name_logits_of(task, rows, logit_scale)
    assert names.away is not None
    assert names.products is not None
    size = names.products.square().sum().clamp(min=torch.finfo(names.products.dtype).tiny)
    scaled = names.away[0] * ((names.query * names.products).sum() / size)
    if solution is None:  # the class proportions of the labelled rows, with one more of each class
        shots = rows.shots[0]
        log_shares = torch.log((shots + 1) / (shots + 1).sum())
    else:
        log_shares = solution.dual[0]
    if all(tasks_with_every_class(task)):
        likelihood = likelihood_of(task.support, task.support_labels, task.num_classes)
        share, factor = fitted_name_share(task, rows, likelihood, names)
        return RowLogits(
            scaled * (share * factor),
            likelihood.centre[0],
            likelihood.weights[0] * (likelihood.sharpness * factor),
            likelihood.bias[0] * factor + log_shares,
        )
    anchors = anchored(rows, names, options, None)
    assert anchors.s is not None
    sums, mass = anchors.s[0], ANCHOR_ROWS + rows.shots[0]
    if solution is not None:
        W = solution.probabilities[0].square()
        sums, mass = sums + W.mT @ anchors.x[0], mass + W.sum(0)
    w = sums / mass.unsqueeze(-1)
    sharpness = anchors.factor * (ANCHOR_SHARPNESS / 2)
    return RowLogits(
        scaled if names.calibration is None else scaled * anchors.factor,
        anchors.centre[0, 0],
        2 * sharpness * w,
        log_shares - sharpness * w.square().sum(-1),
    )
