"""Tasks with class names, given as prototypes or zero-shot logits, besides labelled rows.

Letters: B tasks, S labelled rows, Q queries, K classes, D features, R calibration rows, which are
labelled too. The equations are in docs/names.md. If every class has a labelled row, and two on
average, the logits of the names are added to the likelihoods of `adaptive`; otherwise prototypes
start at the names and absorb the batch in rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..prevalence import counts_of, estimated_shares
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
# A name as a row: its length, relative to the mean deviation of rows, and how many rows it counts.
ANCHOR, ANCHOR_ROWS = 0.4, 0.5
SHARPNESS = 3.0  # of distances, times one plus the entropy of the class proportions
# Few, because proportions must not converge before the prototypes have seen the queries.
FIRST_ITERATIONS = 3
ROUNDS, ROUND_ITERATIONS = 2, 10  # in which prototypes absorb the queries, of either kind
# If there are more classes than this, and more than rows, only the likeliest count.
MOST_LIKELY_CLASSES = 128
# With more queries each has less weight, and features covary as they do in the batch.
QUERIES_PER_CLASS = 8
JITTER = 0.01  # added to a covariance matrix, relative to its mean variance
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
        return solve_by_rounds(task, logit_scale, options)
    # No task may depend on the others in its batch.
    kind = torch.tensor(by_rows, device=task.query.device)
    first, second = kind.nonzero().squeeze(1), (~kind).nonzero().squeeze(1)
    parts = [
        solve_by_rows(task.part(first), metric, logit_scale, options),
        solve_by_rounds(task.part(second), logit_scale, options),
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
    M = min(K, max(MOST_LIKELY_CLASSES, Q + S))
    numbers = Q * (5 * D + 10 * K) + 8 * M * D
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
    reach: Tensor | None  # [B, K, 1] factors on `away` that make anchors of them


@dataclass(frozen=True)
class UnitRows:
    """Unit-norm queries and labelled rows, and which of these are calibration rows."""

    query: Tensor  # [B, Q, D]
    mean: Tensor  # [B, 1, D] of the queries
    off: Tensor  # [B, Q, D] the queries minus their mean
    support: Tensor  # [B or 1, S, D]
    labels: Tensor  # [B or 1, S]
    shots: Tensor  # [B or 1, K]
    index: Tensor  # [R] of the calibration rows, evenly spread over the labelled rows

    def calibration(self, rows: Tensor) -> Tensor:
        """The calibration rows among labelled rows [B or 1, S, ..]."""
        return rows.index_select(1, self.index)


def unit_rows_of(task: Task) -> UnitRows:
    S, query = task.support.shape[1], unit_rows(task.query)
    mean = query.mean(1, keepdim=True)
    return UnitRows(
        query=query,
        mean=mean,
        off=query - mean,
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
        return NameLogits(logits * weight, None, None, None, None)
    away = unit_rows(task.prototypes)
    away = away - away.mean(-2, keepdim=True)
    inner = products(rows.query, away)
    deviation = lengths(rows.off).mean(1, keepdim=True)
    if len(rows.index):
        apart = lengths(rows.support - rows.support.mean(1, keepdim=True))
        deviation = torch.maximum(deviation, apart.mean(1, keepdim=True))
    # Dividing by the spread of rows and of names makes encoders with narrow embeddings comparable.
    length = lengths(away)
    reach = (ANCHOR * deviation * inverse(length)).expand(len(inner), -1, 1)
    scale = NAME_SHARPNESS / (deviation * length.mean(-2, keepdim=True))
    scale = scale.clamp(max=logit_scale).expand(len(inner), 1, 1)
    if not len(rows.index):
        return NameLogits(inner * (scale * weight), None, away, inner, reach)
    calibration = products(rows.calibration(rows.support), away) * scale
    weight = weight * column(fitted(calibration, rows)[0].clamp(max=1))
    return NameLogits(inner * (scale * weight), calibration * weight, away, inner, reach)


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


def inverse(length: Tensor) -> Tensor:
    """1 / length; 0 where the length is 0 up to rounding."""
    same = SAME[length.dtype]
    return torch.where(length > same, 1 / length.clamp(min=same), 0)


# --- prototypes that absorb the queries ----------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Centred rows and what is known of the classes before they absorb the queries."""

    centre: Tensor  # [B, 1, D] the mean of all rows
    x: Tensor  # [B, Q, D] the queries minus the centre
    squares: Tensor  # [B, 1, D] the squares of all centred rows, summed up
    shots: Tensor  # [B or 1, 1, K]
    sums: Tensor  # [B, K, D] of the labelled rows of each class
    anchors: Tensor  # [B, K, D] names as rows; 0 if there are only logits
    count: int  # of all rows

    def narrowed(self, likely: Tensor) -> Start:
        """The same for the likely classes [B, M]."""
        place = likely.unsqueeze(-1)
        sums, anchors = (torch.take_along_dim(x, place, 1) for x in (self.sums, self.anchors))
        return replace(self, sums=sums, anchors=anchors, shots=narrowed(self.shots, likely))

    def judged(self, u: Tensor, joint: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Absorb the queries with weights u [B, Q, K]; `joint` if features covary.

        Returns the squared distances of each query to prototypes without itself, and weights
        [B, K, D] and offset [B, 1, K] of those of other rows, `offset - 2 x.weights`.
        """
        n = u.sum(1, keepdim=True) + self.shots
        mass = n + ANCHOR_ROWS
        absorbed = torch.baddbmm(self.sums, u.mT, self.x)
        anchors = self.anchors - torch.bmm(n / self.count, self.anchors)  # their mean is the centre
        w = torch.add(absorbed, anchors, alpha=ANCHOR_ROWS).div_(mass.mT)
        within = (w * torch.sub(n.mT * w, absorbed, alpha=2)).sum(1, keepdim=True)
        variance = within.add_(self.squares).div_(self.count).clamp_(min=0)
        mean = variance.mean(-1, keepdim=True)
        varied, tiny = mean > SAME[mean.dtype] ** 2, torch.finfo(u.dtype).tiny
        metric = varied / torch.add(variance, mean, alpha=1 / self.count).clamp_(min=tiny)
        own = (variance * metric).sum(-1, keepdim=True).clamp_(min=0.5)  # less only if it is 0
        entropy = torch.special.entr(u.mean(1, keepdim=True)).sum(-1, keepdim=True)
        factor = (1 + entropy).mul_(SHARPNESS) / own
        weights = w * metric
        y = products(self.x, weights)
        if joint:
            # Of the covariance inside classes only that of the products y matters. It would be
            # `scores` if features were independent, and has as many rows as classes of that.
            Q, K = u.shape[-2:]
            scores = torch.bmm(w, weights.mT)
            sums = torch.bmm(u.mT, y)
            covariance = torch.bmm(y.mT, y) - torch.bmm(sums.mT, scores)
            covariance += torch.bmm(scores, u.sum(1).unsqueeze(-1) * scores - sums)
            covariance = torch.addcdiv(covariance, scores, factor, value=K).div_(Q + K)
            diagonal = covariance.diagonal(dim1=-2, dim2=-1)
            diagonal += (JITTER * diagonal.mean(-1, keepdim=True)).clamp(min=tiny)
            inverted = torch.linalg.inv_ex(covariance).inverse
            mixture = torch.bmm(scores, inverted)
            own = (torch.bmm(y, inverted) * y).sum(-1, keepdim=True)
            y, weights = torch.bmm(y, mixture.mT), torch.bmm(mixture, weights)
            offset = (mixture * scores).sum(-1).unsqueeze(1)
        else:
            own = factor * torch.bmm(self.x.square(), metric.mT)
            offset = factor * (weights * w).sum(-1).unsqueeze(1)
            y, weights = y * factor, weights * factor
        distances = torch.sub(own + offset, y, alpha=2)
        return distances.mul_((mass / (mass - u)).square_()), weights, offset


def start_of(rows: UnitRows, names: NameLogits) -> Start:
    """Centre the rows, and turn the names into rows."""
    (B, Q, K), S = names.query.shape, rows.support.shape[1]
    centre, x, sums = rows.mean, rows.off, rows.off.new_zeros(B, K, rows.off.shape[-1])
    if S:
        centre = torch.lerp(centre, rows.support.mean(1, keepdim=True), S / (S + Q))
        x, labelled = rows.query - centre, rows.support - centre
        sums, _ = class_sums(labelled, rows.labels.expand(B, -1).contiguous(), K)
    squares = x.square().sum(1, keepdim=True)
    squares = squares + labelled.square().sum(1, keepdim=True) if S else squares
    anchors = torch.zeros_like(sums)
    if names.away is not None and names.reach is not None:
        anchors = names.away * names.reach
    return Start(centre, x, squares, rows.shots.unsqueeze(1), sums, anchors, S + Q)


def first_logits(start: Start, names: NameLogits) -> Tensor:
    """Those of the names and of distances to names and labelled rows, [B, Q, K].

    All features vary alike, and nothing is known of the classes present.
    """
    variance, least = start.squares.sum(-1, keepdim=True) / start.count, SAME[start.x.dtype] ** 2
    sharpness = SHARPNESS * (1 + math.log(names.query.shape[-1]))
    mass = ANCHOR_ROWS + start.shots
    scale = sharpness / variance.clamp(min=least) * (variance > least) / mass
    logits, offset = names.query, torch.zeros_like(scale)
    if names.products is not None and names.reach is not None:  # anchors are all of one length
        assert names.away is not None
        by_name = ANCHOR_ROWS * scale * names.reach.mT
        logits = torch.addcmul(logits, names.products, by_name)
        offset = products(start.centre, names.away) * by_name
    if start.count > start.x.shape[1]:
        logits = torch.addcmul(logits, products(start.x, start.sums), scale)
        s = torch.add(start.sums, start.anchors, alpha=ANCHOR_ROWS)
        offset = offset + s.square().sum(-1).unsqueeze(1) * scale / (2 * mass)
    return logits - offset


def solve_by_rounds(task: Task, logit_scale: float, options: dict[str, Any]) -> Solution:
    """Solve tasks with prototypes that start at names and absorb labelled rows and queries."""
    rows = unit_rows_of(task)
    names = name_logits_of(task, rows, logit_scale)
    start, added, measures = start_of(rows, names), names.query, task.measures
    Q, K = added.shape[-2:]
    weight = min(1.0, QUERIES_PER_CLASS * K / Q)
    solution = adapted(first_logits(start, names), weight, FIRST_ITERATIONS, options, measures)
    u = solution.probabilities
    likely, M = None, max(MOST_LIKELY_CLASSES, start.count)  # no more can have a row
    if M < K:
        order = solution.proportions + (rows.shots > 0)
        likely = order.topk(M, sorted=False).indices.sort().values
        added, start, u = narrowed(added, likely), start.narrowed(likely), narrowed(u, likely)
        u = u / u.sum(-1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
        measures = None if measures is None else narrowed(measures, likely)
    for joint in [False] * ROUNDS + [True] * (ROUNDS * (weight < 1)):
        logits = torch.sub(added, start.judged(u, joint)[0], alpha=0.5)
        solution = adapted(logits, weight, ROUND_ITERATIONS, options, measures)
        u = solution.probabilities
    held = u.sum(1, dtype=torch.float64)
    shares = estimated_shares(counts_of(solution.labels, torch.zeros_like(held)), held, Q)
    solution = solution._replace(proportions=shares.to(solution.dual.dtype))
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
        u = F.one_hot(task.support_labels, task.num_classes).to(scaled.dtype)
    else:
        u, log_shares = solution.probabilities, solution.dual[0]
    if all(tasks_with_every_class(task)):
        likelihood = likelihood_of(task.support, task.support_labels, task.num_classes)
        share, factor = fitted_name_share(task, rows, likelihood, names)
        return RowLogits(
            scaled * (share * factor),
            likelihood.centre[0],
            likelihood.weights[0] * (likelihood.sharpness * factor),
            likelihood.bias[0] * factor + log_shares,
        )
    if solution is None:  # the queries are the labelled rows, and count once
        rows = replace(rows, support=rows.support[:, :0], shots=torch.zeros_like(rows.shots))
    start = start_of(rows, names)
    weights, offset = start.judged(u, u.shape[1] > QUERIES_PER_CLASS * u.shape[2])[1:]
    bias = log_shares - offset[0, 0] / 2 - weights[0] @ start.centre[0, 0]
    # Rows are not made unit-norm again, so all is linear in z.
    return RowLogits(scaled + weights[0], start.centre[0, 0], torch.zeros_like(scaled), bias)
