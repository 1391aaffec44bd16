"""Tasks with class names, given as prototypes or zero-shot logits, besides labelled rows.

Letters: B tasks, S labelled rows, Q queries, K classes, D features, R calibration rows, which are
labelled too. The equations are in docs/names.md. If every class has a labelled row, and three on
average, the logits of the names are added to the likelihoods of `adaptive`; otherwise prototypes
start at the names and absorb the batch in rounds.
"""

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..groups import Groups
from ..limits import SEVERAL
from ..native.devices import on_cpu_without_gpu_code
from ..native.graphs import replayed
from ..native.load import module as native
from ..prevalence import counts_of, estimated_shares
from ..rows import class_sums, evenly_spread, laid_out, mean_row, products, unit_rows
from ..solution import Solution, outweigh_names
from ..solvers.adapt import call_adapt, solution_of
from ..solvers.groups import each_alone, first_proportions, of_rows, solution_of_groups
from ..task import Task, how_many, merged, without_batch
from .classify import classify
from .learn import calibrate, learned
from .likelihood import Likelihood, column
from .rounds import Classified
from .single_rows import after_batch, expecting

MOST_CALIBRATION_ROWS = 256
NAME_SHARPNESS = 20.0  # limit for the names' logits, for centred unit-norm rows and names
NAME_WEIGHT = 0.7  # weight of the names' logits next to distances
NAME_SHOTS = 1.4  # with n labelled rows, a name has weight NAME_SHOTS / (1 + n)
NAME_SHARES = (0.0, 0.5, 2.0)  # factors on that weight, besides 1, of which the best is chosen
# A name as a row: its length, relative to the mean deviation of rows, and how many rows it counts.
ANCHOR, ANCHOR_ROWS = 0.4, 0.5
SHARPNESS = 3.0  # of distances, times one plus the entropy of the class proportions
UNIT = SHARPNESS * math.e  # of variances, so that their inverse is
# Few, because proportions must not converge before the prototypes have seen the queries.
FIRST_ITERATIONS = 3
ROUNDS, ROUND_ITERATIONS = 2, 10  # in which prototypes absorb the queries, of either kind
# If there are more classes than this, and more than rows, only the likeliest count.
MOST_LIKELY_CLASSES = 128
# With more queries a class each has less weight, and features covary as they do in the batch. A
# batch of fewer rows hardly knows its own centre.
TELLING = 8
JITTER = 0.01  # added to a covariance matrix, relative to its mean variance
# A unit-norm row this near to the centre counts as the centre.
SAME = {torch.float32: 1e-6, torch.float64: 1e-12}


def solve_named(task: Task, metric: str, logit_scale: float, **options: Any) -> Solution:
    """Solve tasks with prototypes or logits; `options` are those of `classify`."""
    B, step = len(task.query), how_many(bytes_per_task(task), task.query)
    parts = [task]
    if step < B:
        parts = [task.part(slice(i, i + step)) for i in range(0, B, step)]
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


def tasks_with_every_class(task: Task) -> list[bool]:
    """Which tasks have rows of every class, and enough on average; one flag if shared."""
    (B, S), K = task.support_labels.shape, task.num_classes
    if S < SEVERAL * K:
        return [False] * B
    flags: list[bool] = outweigh_names(shots_of(task)).tolist()
    return flags


def shots_of(task: Task) -> Tensor:
    """Labelled rows of each class, [B or 1, K], in the dtype of the task."""
    labels = task.support_labels
    none = task.query.new_zeros(len(labels), task.num_classes)
    return counts_of(labels, none) if labels.numel() else none


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
    calibration: Tensor | None = None  # [B, R, K] of the calibration rows; None: unknown
    # None if logits are given instead of prototypes:
    away: Tensor | None = None  # [B or 1, K, D] unit-norm names minus their mean
    products: Tensor | None = None  # [B, Q, K] products of the queries minus their mean with them
    scale: Tensor | None = None  # [B, 1, 1] factor on products of unit-norm rows with them
    reach: Tensor | None = None  # [B, K, 1] factors on `away` that make anchors of them


@dataclass(frozen=True)
class UnitRows:
    """Unit-norm queries and labelled rows, and which of these are calibration rows."""

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
    mean, none = mean_row(query), task.support_labels[0, :0]
    return UnitRows(
        mean=mean,
        off=query.sub_(mean),
        support=unit_rows(task.support) if S else task.support,
        labels=task.support_labels,
        shots=shots_of(task),
        index=evenly_spread(min(S, MOST_CALIBRATION_ROWS), S, query.device) if S else none,
    )


def name_logits_of(task: Task, rows: UnitRows, logit_scale: float) -> NameLogits:
    weight: Any = NAME_WEIGHT
    if len(rows.index):
        weight *= (NAME_SHOTS / (1 + rows.shots)).clamp(max=1).mean(-1).view(-1, 1, 1)
    if task.prototypes is None:
        assert task.logits is not None
        logits = task.logits - task.logits.mean(-1, keepdim=True)
        return NameLogits(logits * weight)
    away = unit_rows(task.prototypes)
    away.sub_(mean_row(away))
    inner = products(rows.off, away)
    deviation = lengths(rows.off).mean(1, keepdim=True)
    if len(rows.index):
        apart = lengths(rows.support - mean_row(rows.support))
        deviation = torch.maximum(deviation, apart.mean(1, keepdim=True))
    # Dividing by the spread of rows and of names makes encoders with narrow embeddings comparable.
    length = lengths(away)
    reach = ANCHOR * deviation * inverse(length)
    scale = NAME_SHARPNESS / (deviation * length.mean(-2, keepdim=True))
    scale = scale.clamp(max=logit_scale)
    calibration = None
    if len(rows.index):
        calibration = products(rows.calibration(rows.support), away) * scale
        factor = column(fitted(calibration, rows)[0].clamp(max=1))
        # Few rows do not contradict names as clearly as they deserve, so it counts twice.
        weight, reach = weight * factor.square(), reach * factor
        calibration = calibration * weight
    scale = scale * weight
    query = torch.addcmul(products(rows.mean, away) * scale, inner, scale)
    return NameLogits(query, calibration, away, inner, scale, reach)


def fitted(logits: Tensor, rows: UnitRows) -> tuple[Tensor, Tensor]:
    """The factor on logits [B, R, K] that fits calibration rows best, and the misfit; [B] each."""
    labels = rows.calibration(rows.labels).expand(logits.shape[:2])
    usual = native.SHARPNESS
    sharpness, objective, _ = calibrate(logits * (-2 / usual), labels)
    return sharpness / usual, objective


def lengths(x: Tensor) -> Tensor:
    """Norms of rows, [.., N, D] -> [.., N, 1]."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms


def inverse(length: Tensor) -> Tensor:
    """1 / length; 0 where the length is 0 up to rounding."""
    return torch.threshold(length, SAME[length.dtype], math.inf).reciprocal_()


# --- prototypes that absorb the queries ----------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Centred rows and what is known of the classes before they absorb the queries."""

    centre: Tensor  # [B, 1, D] the mean of all rows
    x: Tensor  # [B, Q, D] the queries minus the centre
    squares: Tensor  # [B, Q, D] of x
    spread: Tensor  # [B, 1, D] the mean square of all centred rows, over UNIT
    counts: Tensor  # [B or 1, 3, K] of labelled rows, with the anchor, and with it twice
    sums: Tensor | None  # [B, K, D] of the labelled rows of each class; None: there are none
    anchors: Tensor  # [B, K, D] names as rows; 0 if there are only logits
    count: int  # of all rows
    one: Tensor  # []
    trust: float  # in distances, which depend on the centre

    def narrowed(self, likely: Tensor) -> "Start":
        """The same for the likely classes [B, M]."""
        B, K = self.anchors.shape[:2]
        place = likely + torch.arange(0, B * K, K, device=likely.device).unsqueeze(1)
        anchors = F.embedding(place, self.anchors.flatten(0, 1))
        sums = None if self.sums is None else F.embedding(place, self.sums.flatten(0, 1))
        return replace(self, anchors=anchors, sums=sums, counts=narrowed(self.counts, likely))

    def judged(self, added: Tensor, u: Tensor, joint: bool) -> tuple[Tensor, ...]:
        """Absorb the queries with weights u [B, Q, K]; `joint` if features covary.

        Returns the logits of the queries: `added`, and those by distances to prototypes without the
        query itself. The squared distances of other rows are ``offset - 2 x.weights``, up to a
        constant: also returns `offset` [B, 1, K], and the factors of `weights` [B, K, D].
        """
        (Q, K), by_class = u.shape[-2:], u.mT
        held = u.sum(1, keepdim=True)
        n, mass, more = (held + self.counts).chunk(3, 1)
        # The mean of the anchors becomes the centre.
        anchors = torch.sub(self.anchors, torch.bmm(n, self.anchors), alpha=1 / self.count)
        known = anchors if self.sums is None else anchors.add(self.sums, alpha=1 / ANCHOR_ROWS)
        w = torch.baddbmm(known, by_class, self.x, beta=ANCHOR_ROWS).div_(mass.mT)
        # n w^2 - 2 w (sum u x), where sum u x = mass w - anchors / 2
        within = torch.addcmul(anchors, w, more.mT, value=-1).mul_(w).sum(1, keepdim=True)
        variance = torch.add(self.spread, within, alpha=1 / (UNIT * self.count)).clamp_(min=0)
        least = SAME[u.dtype] ** 2 / UNIT
        mean = torch.threshold(variance.mean(-1, keepdim=True), least, math.inf)  # then metric is 0
        metric = torch.add(variance, mean, alpha=1 / self.count).reciprocal_()
        # Not 0, even if the metric is.
        upright = metric.mT
        own = torch.baddbmm(self.one, variance, upright, beta=least, alpha=1 / self.trust)
        # The sum of p - p ln p is one plus the entropy.
        metric.mul_(torch.special.entr(held / (math.e * Q)).sum(-1, keepdim=True).div_(own))
        weights = laid_out(w * metric)
        of_class = weights.mT
        if joint:
            # Of the covariance inside classes only that of the products y matters. It would be
            # `scores` if features were independent, and has as many rows as classes of that.
            y, scores = torch.bmm(self.x, of_class), torch.bmm(w, of_class)
            apart = torch.baddbmm(scores * held.mT, by_class, y, alpha=-1)
            inner, part = torch.baddbmm(y, u, scores, alpha=-1), 1 / (Q + K)
            covariance = torch.baddbmm(scores, y.mT, inner, beta=K)
            covariance = torch.baddbmm(covariance, scores, apart, beta=part, alpha=part)
            diagonal = covariance.diagonal(dim1=-2, dim2=-1)
            least = torch.finfo(u.dtype).tiny / JITTER
            diagonal.add_(diagonal.mean(-1, keepdim=True).clamp_(min=least), alpha=JITTER)
            # Both are symmetric; this is the memory order that is fastest.
            inverted, both = torch.linalg.inv_ex(covariance).inverse.mT, torch.cat([y, scores], 1)
            solved = torch.bmm(both, inverted)
            squared = torch.linalg.vecdot(solved, both).unsqueeze(-1)
            own, offset = squared.split_with_sizes((Q, K), 1)
            solved, mixture = solved.split_with_sizes((Q, K), 1)
            offset = offset.mT
            distances = torch.baddbmm(own + offset, solved, scores, alpha=-2)
            factors = [mixture, weights]
        else:
            own, offset = torch.bmm(self.squares, upright), torch.bmm(w.square(), upright).mT
            distances = torch.baddbmm(own + offset, self.x, of_class, alpha=-2)
            factors = [weights]
        others = torch.addcdiv(self.one, u, mass, value=-1).square_()
        logits = torch.addcdiv(added, distances, others, value=-0.5)
        return logits, offset, *factors


def start_of(rows: UnitRows, names: NameLogits) -> "Start":
    """Centre the rows, and turn the names into rows."""
    (B, Q, K), S = names.query.shape, rows.support.shape[1]
    centre, x, sums = rows.mean, rows.off, None
    if S:
        centre = torch.lerp(centre, mean_row(rows.support), S / (S + Q))
        x, labelled = x + (rows.mean - centre), rows.support - centre
        sums, _ = class_sums(labelled, rows.labels.expand(B, -1).contiguous(), K)
    squares = x.square()
    spread = mean_row(squares)
    spread = torch.lerp(spread, mean_row(labelled.square()), S / (S + Q)) if S else spread
    if names.away is None or names.reach is None:
        anchors = x.new_zeros(B, K, x.shape[-1])
    else:
        anchors = names.away * names.reach
    anchored = torch.linspace(0, 2 * ANCHOR_ROWS, 3, dtype=x.dtype, device=x.device).unsqueeze(1)
    counts, spread = rows.shots.unsqueeze(1) + anchored, spread / UNIT
    one, trust = x.new_ones(()), 1 / (1 + (TELLING / (S + Q)) ** 3)
    return Start(centre, x, squares, spread, counts, sums, anchors, S + Q, one, trust)


def first_logits(start: Start, names: NameLogits) -> Tensor:
    """Those of the names and of distances to names and labelled rows, [B, Q, K].

    All features vary alike, and nothing is known of the classes present.
    """
    mass, least = start.counts[:, 1:2], SAME[start.x.dtype] ** 2 / UNIT
    variance = torch.threshold(start.spread.sum(-1, keepdim=True), least, math.inf)
    sharpness = start.trust * SHARPNESS * (1 + math.log(mass.shape[-1]))
    scale = sharpness / UNIT / (variance * mass)
    if start.sums is not None:
        s = torch.add(start.sums, start.anchors, alpha=ANCHOR_ROWS)
        offset = s.square().sum(-1).unsqueeze(1) / (2 * mass)
        return torch.addcmul(names.query, products(start.x, s) - offset, scale)
    if names.products is None or names.reach is None:
        return names.query
    # Anchors are all of one length.
    return torch.addcmul(names.query, names.products, scale * names.reach.mT, value=ANCHOR_ROWS)


def solve_by_rounds(task: Task, logit_scale: float, options: dict[str, Any]) -> Solution:
    """Solve with prototypes that start at names and absorb all rows; groups are of one task."""
    groups, same, logits = options.get("groups"), options.get("same"), task.logits
    if same is not None:  # a thing is the mean of its rows
        query = same.means(unit_rows(task.query[0]))[None]
        logits = None if logits is None else same.means(logits[0])[None]
        own = {"same": None, "groups": groups and groups.of_things(same)}
        means = replace(task, query=query, logits=logits)
        return of_rows(solve_by_rounds(means, logit_scale, options | own), same, groups)
    if groups is not None and (len(groups.names) == 1 or not options.get("share", True)):

        def solve(rows: Tensor, places: Tensor) -> Solution:
            own = task.measures
            own = own if own is None or len(own) == 1 else own[places]
            added = None if task.logits is None else task.logits[0, rows]
            part = replace(task, query=task.query[0, rows], logits=added, measures=own)
            return solve_named(part, "auto", logit_scale, **options | {"groups": None})

        return each_alone(groups, solve)
    steps = logit_scale, options.get("max_iter", 100), options.get("tol", 1e-3)
    if groups is None:
        return replayed(rounds, task, *steps)
    solution = rounds(task, *steps, groups)
    labels, u = solution.labels[0], solution.probabilities[0]
    return solution._replace(labels=labels, probabilities=u)


def rounds(
    task: Task, logit_scale: float, max_iter: int, tol: float, groups: Groups | None = None
) -> Solution:
    """Solve tasks by rounds. The host waits for nothing in between."""
    logits, likely, measures = last_logits(task, logit_scale, groups, max_iter, tol)
    (Q, M), K = logits.shape[-2:], task.num_classes
    steps = {"max_iter": min(ROUND_ITERATIONS, max_iter), "tol": tol}
    solution = proportions(logits, TELLING * K, measures, groups, **steps)
    if groups is None:
        held = solution.probabilities.sum(1)
        shares = estimated_shares(counts_of(solution.labels, torch.zeros_like(held)), held, Q)
        solution = solution._replace(proportions=shares)
    solution = widened(solution, likely, K) if M < K else solution
    # Nothing is calibrated, so intervals are as wide as with one labelled row of each class.
    ones = torch.ones_like(solution.proportions)
    return solution._replace(shots=ones, variance=ones[..., 0].clone())


@torch.inference_mode()  # a sixth less time for the host, which is what small tasks take
def last_logits(
    task: Task, logit_scale: float, groups: Groups | None, max_iter: int, tol: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The logits [B, Q, M] of the last round, the classes that they are of, and their measures."""
    rows = unit_rows_of(task)
    names = name_logits_of(task, rows, logit_scale)
    start, added, measures = start_of(rows, names), names.query, task.measures
    (Q, K), M = added.shape[-2:], max(MOST_LIKELY_CLASSES, start.count)  # no more can have a row
    logits, likely, enough = first_logits(start, names), rows.shots, TELLING * K
    most, count = FIRST_ITERATIONS, float(enough)
    if start.sums is not None:  # prototypes have seen rows, and queries count as in `adaptive`
        known = 2 * (start.count - Q + ANCHOR_ROWS * K)
        most, count = ROUND_ITERATIONS, min(enough, known * Q / (known + Q))
    for joint in [False] * ROUNDS + [True] * (ROUNDS * (enough < Q)):
        steps = {"max_iter": min(most, max_iter), "tol": tol}
        found = proportions(logits, count, measures, groups, **steps)
        u, most, count = found.probabilities, ROUND_ITERATIONS, enough
        if u.shape[-1] > M:
            order = mean_row(u).squeeze(1)
            order += counts_of(found.labels, torch.zeros_like(order)).add_(rows.shots) > 0
            likely = order.topk(M, sorted=False).indices.sort().values
            added, start, u = narrowed(added, likely), start.narrowed(likely), narrowed(u, likely)
            u = u / u.sum(-1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
            if measures is not None:
                measures = narrowed(measures, likely)
                measures = measures / measures.mean(-1, keepdim=True)
        logits = start.judged(added, u, joint)[0]
    return logits, likely, measures


@on_cpu_without_gpu_code
def proportions(
    logits: Tensor, enough: float, measures: Tensor | None, groups: Groups | None, **steps: Any
) -> Solution:
    """`adapt` with queries of which no more than `enough` count, or the same for each group."""
    if groups is None:
        weight = min(1.0, enough / logits.shape[-2])
        found = call_adapt(logits, weight, measures=measures, top=None, **steps)
        return solution_of(found, measures)
    weights = (enough / groups.sizes.double()).clamp(max=1)
    # These logits are too rough to compare sets of classes.
    shared = first_proportions(logits[0], groups, weights, measures)
    own = solution_of_groups(groups, shared, None, None)
    return own._replace(labels=own.labels[None], probabilities=own.probabilities[None])


def narrowed(x: Tensor, likely: Tensor) -> Tensor:
    """The columns of the likely classes [B, M], [B or 1, N, K] -> [B, N, M]; also for groups."""
    B = max(len(x), len(likely))
    return x.expand(B, -1, -1).gather(-1, likely.unsqueeze(1).expand(B, x.shape[1], -1))


def widened(solution: Solution, likely: Tensor, K: int) -> Solution:
    """The solution for all K classes, from that for the likely; others have probability 0."""
    u, shares, dual = solution.probabilities, solution.proportions, solution.dual
    place = likely.unsqueeze(1).expand_as(u)
    labels, likely = likely.gather(-1, solution.labels), likely.expand_as(shares)  # of groups
    return solution._replace(
        labels=labels,
        probabilities=u.new_zeros(*u.shape[:2], K).scatter_(-1, place, u),
        proportions=u.new_zeros(len(shares), K).scatter_(-1, likely, shares),
        dual=dual.amin(-1, keepdim=True).repeat(1, K).scatter_(-1, likely, dual),
    )


# --- every class has labelled rows ----------------------------------------------------------------


def solve_by_rows(task: Task, metric: str, logit_scale: float, options: dict[str, Any]) -> Solution:
    """Solve with the likelihood of the labelled rows, plus names in the share that suits them."""
    named = NamedLikelihood.of(task, metric, logit_scale)
    return named.classify(task, **options).solution


@dataclass(frozen=True)
class NamedLikelihood:
    """What labelled rows of every class and names say of the queries, as likely as they should."""

    likelihood: Likelihood  # less sharp, if the labelled rows ask for that next to names
    names: NameLogits
    weight: Tensor  # [B] of the logits of the names

    @classmethod
    def of(cls, task: Task, metric: str, logit_scale: float) -> "NamedLikelihood":
        rows = unit_rows_of(task)
        names = name_logits_of(task, rows, logit_scale)
        known = task.support, task.support_labels, task.num_classes, metric
        likelihood, distances = learned(*known, left_out=True)
        assert distances is not None
        share, factor = fitted_name_share(rows, likelihood, distances, names)
        softened = replace(
            likelihood,
            sharpness=likelihood.sharpness * factor,
            bias=likelihood.bias * factor.unsqueeze(-1),
        )
        return cls(softened, names, share * factor)

    def classify(self, task: Task, **options: Any) -> Classified:
        added = self.names.query * column(self.weight)
        return classify(self.likelihood, task.query, added, measures=task.measures, **options)

    def row_logits(self, likelihood: Likelihood) -> "RowLogits":
        """Those of single rows of one task, with this likelihood."""
        assert self.names.away is not None
        assert self.names.scale is not None
        scaled = self.names.away[0] * self.names.scale[0] * self.weight
        return RowLogits(scaled, torch.zeros_like(scaled[:, 0]), likelihood)


def fitted_name_share(
    rows: UnitRows, likelihood: Likelihood, distances: Tensor, names: NameLogits
) -> tuple[Tensor, Tensor]:
    """The share of names that fits the calibration rows best, and a factor <= 1; [B] each.

    `distances` [B, S, K] are those of labelled rows left out of their class.
    """
    share = names.query.new_ones(len(names.query))
    if names.calibration is None:
        return share, share
    half = column(likelihood.sharpness) / 2
    logits = likelihood.bias.unsqueeze(-2) - half * rows.calibration(distances)
    n = rows.shots.gather(1, rows.calibration(rows.labels))
    counts = (n > 1).to(logits.dtype).unsqueeze(-1)  # an only row carries no information
    factor, best = fitted((logits + names.calibration) * counts, rows)
    for other in NAME_SHARES:
        mixed = torch.add(logits, names.calibration, alpha=other)
        other_factor, objective = fitted(mixed * counts, rows)
        objective = objective + (1.0 if other else 2.0)  # prefers the default among near-equals
        better, best = objective < best, torch.minimum(objective, best)
        factor = torch.where(better, other_factor, factor)
        share = torch.where(better, other, share)
    return share, factor.clamp(max=1)


# --- one more row ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowLogits:
    """Logits of single rows: ``z.names_k + bias_k`` of a unit-norm row z, and their likelihoods."""

    names: Tensor  # [K, D]
    bias: Tensor  # [K]
    likelihood: Likelihood | None = None  # where labelled rows decide

    def to(self, device: torch.device | str) -> "RowLogits":
        there = None if self.likelihood is None else self.likelihood.to(device)
        return RowLogits(self.names.to(device), self.bias.to(device), there)

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, D] -> [N, K]."""
        z = unit_rows(rows.to(self.names.dtype))
        logits = z @ self.names.mT + self.bias
        return logits if self.likelihood is None else logits + self.likelihood.logits(z)


def solve_and_keep(task: Task, logit_scale: float, **options: Any) -> tuple[Solution, RowLogits]:
    """Solve one task with prototypes; also returns what classifies further rows one by one."""
    if all(tasks_with_every_class(task)):
        named = NamedLikelihood.of(task, "auto", logit_scale)
        found = named.classify(task, keep=True, **options)
        return found.solution, named.row_logits(after_batch(found, named.likelihood))

    solution = solve_by_rounds(task, logit_scale, options)
    whole = without_batch(solution) if solution.groups is None else solution.over_all()
    return solution, absorbed_logits(task, whole.probabilities, whole.dual, logit_scale)


def row_logits(task: Task, log_shares: Tensor | None, logit_scale: float) -> RowLogits:
    """Those of one task with prototypes without a batch: its queries are its labelled rows.

    `log_shares` [K] are the log proportions of the classes; by default those of the labelled rows,
    with one more row of each class.
    """
    shots = shots_of(task)[0]
    log_shares = shots.log1p().log_softmax(-1) if log_shares is None else log_shares
    if all(tasks_with_every_class(task)):
        named = NamedLikelihood.of(task, "auto", logit_scale)
        return named.row_logits(expecting(named.likelihood, log_shares))

    # The labelled rows are absorbed like queries of which the class is known, and count once.
    u = F.one_hot(task.support_labels[0], task.num_classes).to(shots.dtype)
    return absorbed_logits(task, u, log_shares, logit_scale, count_once=True)


def absorbed_logits(
    task: Task, u: Tensor, log_shares: Tensor, logit_scale: float, count_once: bool = False
) -> RowLogits:
    """Those of rounds that end with probabilities u [Q, K] and log proportions [K]."""
    rows = unit_rows_of(task)
    names = name_logits_of(task, rows, logit_scale)
    assert names.away is not None
    assert names.scale is not None
    if count_once:
        rows = replace(rows, support=rows.support[:, :0], shots=torch.zeros_like(rows.shots))
    start = start_of(rows, names)
    joint = len(u) > TELLING * task.num_classes
    _, offset, *factors = start.judged(names.query, u[None], joint)
    w = reduce(torch.bmm, factors)[0]
    bias = log_shares - offset[0, 0] / 2 - w @ start.centre[0, 0]
    # Rows are not made unit-norm again, so all is linear in them.
    return RowLogits(names.away[0] * names.scale[0] + w, bias)
