"""What others use: the classifiers that our rule is compared with, on batches of tasks.

Every baseline is a `Rule`: it takes `Tasks` and returns probabilities [B, Q, K], on the device of
the tasks. Letters as in tasks.py: B tasks, S labelled rows, Q queries, K classes, D features; also
F fits of one task. `BASELINES`, at the end, has those that need nothing but the features.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import typing
import warnings
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import paddle_ext

from .tasks import Rule, Tasks, unit_norm

GIB = 2**30
MEMORY = 8 * GIB  # of the temporary tensors of one part of a batch

# --- shared ---------------------------------------------------------------------------------------


def in_parts(rule: Rule, tasks: Tasks, bytes_of_task: int) -> Tensor:
    """The result of a rule, computed for as many tasks at a time as the memory allows."""
    step = max(1, MEMORY // bytes_of_task)
    parts = [rule(tasks.part(start, start + step)) for start in range(0, len(tasks), step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def memberships(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """1 where a row is of a class, else 0: labels [B, S] as [B, S, K]."""
    return F.one_hot(labels, num_classes).to(dtype)


def class_means(rows: Tensor, members: Tensor) -> Tensor:
    """Means of the labelled rows [B, S, D] of each class, [B, K, D]."""
    shots = members.sum(1).unsqueeze(-1)
    return members.mT @ rows / shots


# --- nearest mean ---------------------------------------------------------------------------------


def nearest_mean(tasks: Tasks) -> Tensor:
    """The class whose mean of unit-norm rows has the largest cosine with the query.

    The probabilities are the softmax of ten times the cosines: only their order has a meaning.
    """
    support = unit_norm(tasks.support.float())
    query = unit_norm(tasks.query.float())

    members = memberships(tasks.labels, tasks.num_classes, support.dtype)
    means = unit_norm(class_means(support, members))

    return (10 * query @ means.mT).softmax(-1)


# --- logistic regression --------------------------------------------------------------------------

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # C of scikit-learn, from the strongest penalty
STRENGTH_UNJUDGED = 100.0  # without two rows of any class nothing can be left out
FOLDS = 5
EQUAL_LOSSES = 1e-6  # cross entropies of left-out rows closer than this are ties
JITTER = 1e-10  # squared length, per mean squared length, that each labelled row gets on its own

MOST_NEWTON_STEPS = 50
MOST_CONJUGATE_STEPS = 100
MOST_HALVINGS = 20
CONJUGATE_TOLERANCE = 0.1  # of a Newton equation: the residual over the gradient
DECREMENT = 1e-6  # a fit ends with a squared Newton decrement below this: see `fitted`


def logistic_regression(
    tasks: Tasks, *, standardise: bool = False, unit_rows: bool = True, groups: bool = False
) -> Tensor:
    """Multinomial logistic regression with the penalty that fits left-out rows best.

    It minimises ``C sum_s cross_entropy_s + 1/2 ||W||^2`` like scikit-learn, with an intercept that
    is not penalised. Every task chooses its C among `STRENGTHS` by the mean cross entropy of rows
    left out in five stratified folds; of equals the smallest; and C = 100 if nothing can be left
    out.

    Parameters
    ----------
    standardise : bool
        Subtract the mean of the labelled rows and divide by their standard deviation, for each
        feature, instead of making rows unit-norm: for tables.
    unit_rows : bool
        Make rows unit-norm. Without it, and without `standardise`, rows are taken as they are: for
        tables that the caller has standardised.
    groups : bool
        Leave out whole groups of labelled rows, if the tasks have groups.
    """
    S, D = tasks.support.shape[1:]
    # In `fitted` there are about 10 tensors of the size of the logits of the labelled rows, and 10
    # of the size of the weights, of float64; and the coordinates come from D features.
    fits = (FOLDS + 1) * tasks.num_classes
    coordinates = min(S, D) + 1
    queries = tasks.query.shape[1]
    bytes_of_task = 8 * (10 * fits * (S + coordinates) + 3 * (S + queries) * D + 3 * S * S)

    def rule(part: Tasks) -> Tensor:
        return regressed(part, standardise, unit_rows, groups)

    return in_parts(rule, tasks, bytes_of_task)


def regressed(tasks: Tasks, standardise: bool, unit_rows: bool, groups: bool) -> Tensor:
    """`logistic_regression` for tasks that fit in the memory together."""
    support = tasks.support.double()
    query = tasks.query.double()
    if standardise:
        mean = support.mean(1, keepdim=True)
        deviation = support.std(1, keepdim=True, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1)
        support = (support - mean) / deviation
        query = (query - mean) / deviation
    elif unit_rows:
        support = unit_norm(support)
        query = unit_norm(query)
    support, query = few_coordinates(support, query)

    members = memberships(tasks.labels, tasks.num_classes, support.dtype)
    group_of_row = tasks.support_groups if groups else None
    judged = left_out_rows(members, group_of_row)  # [B, S, folds]
    strengths = STRENGTHS if judged.shape[-1] > 0 else (STRENGTH_UNJUDGED,)

    # The first fit of a task has all rows; the others lack those of one fold.
    learned = F.pad((~judged).to(support.dtype), (1, 0), value=1.0)

    weights = None
    logits_of_query = []
    losses = []
    for strength in strengths:
        # For two classes scikit-learn penalises w_1 - w_0 alone. With w_1 = -w_0 its square is
        # twice the sum of theirs, so that here the cross entropy has half the weight.
        factor = strength / 2 if tasks.num_classes == 2 else strength
        weights = fitted(support, members, learned, factor, weights)
        logits_of_query.append(query @ weights[:, :, 0])
        losses.append(loss_of_left_out(support, members, judged, weights))

    # [strengths, B] and [strengths, B, Q, K]
    losses = torch.stack(losses)
    logits = torch.stack(logits_of_query)

    # The first of the smallest losses is that of the smallest C.
    smallest = losses.amin(0) + EQUAL_LOSSES
    chosen = (losses <= smallest).to(torch.uint8).argmax(0)
    if len(strengths) > 1:
        nothing_judged = ~judged.flatten(1).any(-1)
        chosen = torch.where(nothing_judged, STRENGTHS.index(STRENGTH_UNJUDGED), chosen)

    of_task = torch.arange(len(tasks), device=logits.device)
    return logits[chosen, of_task].softmax(-1).float()


def few_coordinates(support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates in which the same regression is cheap: at most S + 1 instead of D.

    The mean of the labelled rows is subtracted, which only moves the intercept, but without it the
    equations are badly conditioned. With fewer rows than features only inner products matter: the
    coordinates of the labelled rows are the Cholesky factor of theirs. The last coordinate is 1,
    for the intercept.
    """
    mean = support.mean(1, keepdim=True)
    support = support - mean
    query = query - mean

    if support.shape[1] < support.shape[2]:
        # L L' = X X'; then L^-1 X has orthonormal rows, and q becomes L^-1 X q.
        products = support @ support.mT
        length = products.diagonal(dim1=-2, dim2=-1).mean(-1)
        length = torch.where(length > 0, length, 1)
        identity = torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)
        factor = torch.linalg.cholesky(products + JITTER * length.view(-1, 1, 1) * identity)
        query = torch.linalg.solve_triangular(factor, support @ query.mT, upper=False).mT
        support = factor

    return F.pad(support, (0, 1), value=1.0), F.pad(query, (0, 1), value=1.0)


def left_out_rows(members: Tensor, groups: Tensor | None) -> Tensor:
    """Which rows are left out and judged in which fold, [B, S, folds] bool.

    Rows of a group are left out together; without groups every row is one. A group belongs to the
    class of its first row, and its fold is its rank among the groups of that class, modulo `FOLDS`.
    Where this would leave a class without any row to learn from, its rows stay, and are not judged.
    There are no folds if there is nothing to judge in any task.
    """
    B, S, _ = members.shape
    row = torch.arange(S, device=members.device).expand(B, S)
    if groups is None:
        first = row
    else:
        same_group = groups.unsqueeze(2) == groups.unsqueeze(1)
        first = same_group.to(torch.uint8).argmax(-1)  # the first row of the group of each row

    starts_group = (first == row).unsqueeze(-1)
    groups_so_far = (members * starts_group).cumsum(1)  # of each class
    rank = (groups_so_far * members).sum(-1).long() - 1  # right for first rows, which is enough
    fold_of_row = rank.gather(1, first) % FOLDS

    most_groups = int(groups_so_far.amax())
    folds = torch.arange(min(FOLDS, most_groups), device=members.device)
    left_out = fold_of_row.unsqueeze(-1) == folds  # [B, S, folds]

    # [B, K, folds] rows of a class that remain, and whether any remains of the class of a row
    remaining = members.mT @ (~left_out).to(members.dtype)
    can_judge = members @ (remaining > 0).to(members.dtype) > 0
    judged = left_out & can_judge
    return judged if most_groups > 1 else judged[:, :, :0]


def fitted(
    support: Tensor, members: Tensor, learned: Tensor, strength: float, start: Tensor | None
) -> Tensor:
    """Weights of F regressions for every task, by Newton's method with conjugate gradients.

    All fits of all tasks take their steps together. A fit that has ended stays where it is.

    A fit ends by its Newton decrement, ``sqrt(g' H^-1 g)`` for the gradient g and the Hessian H. As
    the penalty makes H at least 1 (except the intercept), what is still missing of the logit of a
    row x is about |x| times the decrement, or less.

    Parameters
    ----------
    support : Tensor [B, S, D]
        Labelled rows in the coordinates of `few_coordinates`: here D counts the last one, which is
        1. Its weight, the intercept, has no penalty.
    members : Tensor [B, S, K]
        Their classes.
    learned : Tensor [B, S, F]
        1 for the rows from which a fit learns, and 0 for others.
    strength : float
        The factor C of the cross entropies.
    start : Tensor [B, D, F, K] or None
        Where to begin: the weights of a slightly stronger penalty. None: at zero.
    """
    B, _, D = support.shape
    K = members.shape[-1]
    fits = learned.shape[-1]

    own = members.unsqueeze(2)  # [B, S, 1, K]
    factor = strength * learned.unsqueeze(-1)  # [B, S, F, 1]
    penalised = support.new_ones(D, 1, 1)
    penalised[-1] = 0
    weights = support.new_zeros(B, D, fits, K) if start is None else start.clone()
    logits = of_rows(support, weights)
    value = objective(logits, weights, own, factor, penalised)

    for _ in range(MOST_NEWTON_STEPS):
        probabilities = logits.softmax(-1)
        gradient = of_features(support, factor * (probabilities - own)) + penalised * weights
        step = newton_step(support, gradient, probabilities, factor, penalised)

        # f(w + step) is about f(w) - decrement / 2.
        decrement = -of_fits(gradient * step)
        moving = decrement > DECREMENT
        if not moving.any():
            break

        # Halve the step of each fit until its objective falls as much as it should.
        change = of_rows(support, step)
        length = moving.to(value.dtype)
        for _ in range(MOST_HALVINGS):
            tried_logits = logits + length * change
            tried_weights = weights + length * step
            tried = objective(tried_logits, tried_weights, own, factor, penalised)
            too_long = tried > value - 0.1 * length * decrement + 1e-12 * value.abs()
            if not too_long.any():
                break
            length = torch.where(too_long, length / 2, length)

        weights = weights + length * step
        logits = logits + length * change
        value = objective(logits, weights, own, factor, penalised)
    return weights


def newton_step(
    support: Tensor, gradient: Tensor, probabilities: Tensor, factor: Tensor, penalised: Tensor
) -> Tensor:
    """Solve H step = -gradient by conjugate gradients, for every fit, [B, D, F, K].

    With P the probabilities of a row, C its factor and t = X v the changes of its logits,

        H v = X' (C P (t - P.t)) + penalised v

    The diagonal of H is the preconditioner.
    """
    curvature = factor * probabilities  # [B, S, F, K]
    diagonal = of_features(support.square(), curvature * (1 - probabilities)) + penalised
    diagonal = diagonal.clamp(min=1e-12)

    step = torch.zeros_like(gradient)
    residual = -gradient
    scaled = residual / diagonal
    direction = scaled
    size = of_fits(residual * scaled)
    enough = CONJUGATE_TOLERANCE**2 * size

    for _ in range(MOST_CONJUGATE_STEPS):
        change = of_rows(support, direction)
        bent = curvature * (change - (probabilities * change).sum(-1, keepdim=True))
        turned = of_features(support, bent) + penalised * direction  # H direction

        # Fits that have ended, or whose gradient is zero, do not move.
        along = of_fits(direction * turned)
        active = (size > enough) & (along > 0)
        amount = torch.where(active, size / along, 0)
        step = step + amount * direction
        residual = residual - amount * turned

        scaled = residual / diagonal
        new_size = of_fits(residual * scaled)
        if not (active & (new_size > enough)).any():
            break
        conjugate = torch.where(active, new_size / size, 0)
        direction = scaled + conjugate * direction
        size = torch.where(active, new_size, size)
    return step


def of_rows(support: Tensor, weights: Tensor) -> Tensor:
    """Logits of rows: [B, S, D] and [B, D, F, K] to [B, S, F, K]."""
    return (support @ weights.flatten(2)).unflatten(2, weights.shape[2:])


def of_features(support: Tensor, x: Tensor) -> Tensor:
    """The transposed product: [B, S, D] and [B, S, F, K] to [B, D, F, K]."""
    return (support.mT @ x.flatten(2)).unflatten(2, x.shape[2:])


def of_fits(x: Tensor) -> Tensor:
    """Sums for every fit, [B, D, F, K] or [B, S, F, K] to [B, 1, F, 1]."""
    return x.sum((1, 3), keepdim=True)


def objective(
    logits: Tensor, weights: Tensor, own: Tensor, factor: Tensor, penalised: Tensor
) -> Tensor:
    """What a fit minimises, [B, 1, F, 1]."""
    entropy = logits.logsumexp(-1, keepdim=True) - (logits * own).sum(-1, keepdim=True)
    return of_fits(factor * entropy) + of_fits(penalised * weights.square()) / 2


def loss_of_left_out(support: Tensor, members: Tensor, judged: Tensor, weights: Tensor) -> Tensor:
    """The mean cross entropy of judged rows, each by the fit that lacks it, [B]."""
    logits = of_rows(support, weights[:, :, 1:])
    entropy = logits.logsumexp(-1) - (logits * members.unsqueeze(2)).sum(-1)  # [B, S, folds]
    counts = judged.to(entropy.dtype)
    return (entropy * counts).sum((1, 2)) / counts.sum((1, 2)).clamp(min=1)


# --- PLDA -----------------------------------------------------------------------------------------

LEAST_BETWEEN = 0.01  # the variance between classes, per mean variance within, is at least this
LEAST_WITHIN = 1e-6  # the mean variance within a class, per feature and mean squared length


def plda(tasks: Tasks) -> Tensor:
    """Two-covariance PLDA: a class is a Gaussian point, its rows are Gaussian around that point.

    Rows are unit-norm, less the mean of the class means, and unit-norm again. The model is

        m_k ~ N(mu, b I)   and   x = m_k + e,   e ~ N(0, W)

    mu is the mean of the class means. W is the pooled covariance of rows around their class means,
    with v = sum_k (n_k - 1) degrees of freedom, shrunk towards w I, with w the mean of its
    diagonal: W = (1 - s) pooled + s w I, with the s of the oracle approximating shrinkage (Chen,
    Wiesel, Eldar and Hero, 2010, equation 23, with v for the number of rows). Without two rows of
    any class W = b I: half of the variance of the rows. The variance b between the classes is by
    moments,

        sum_k |m_k - mu|^2 / (K - 1) = D b + trace(W) mean_k(1 / n_k),

    and at least one per cent of w. A query of class k, given its n_k rows of mean x_k, is then
    Gaussian; for an eigenvector of W with value w_d,

        its mean is         mu + c (x_k - mu)   with   c = n_k b / (n_k b + w_d),
        its variance is     w_d + b w_d / (n_k b + w_d).

    The class probabilities are those of these densities, for classes that are equally frequent.
    """
    S, D = tasks.support.shape[1:]
    queries = tasks.query.shape[1]
    bytes_of_task = 8 * (6 * (S + queries + tasks.num_classes) * D + 6 * min(S, D) * (S + D))
    return in_parts(plda_of_part, tasks, bytes_of_task)


def plda_of_part(tasks: Tasks) -> Tensor:
    """`plda` for tasks that fit in the memory together."""
    support = unit_norm(tasks.support.double())
    query = unit_norm(tasks.query.double())
    members = memberships(tasks.labels, tasks.num_classes, support.dtype)

    centre = class_means(support, members).mean(1, keepdim=True)
    support = unit_norm(support - centre)
    query = unit_norm(query - centre)

    means = class_means(support, members)
    mu = means.mean(1, keepdim=True)
    offsets = support - members @ means  # of rows from their class means
    means = means - mu
    query = query - mu

    shots = members.sum(1)  # [B, K]
    values, vectors = within_class_spectrum(offsets, shots)
    D = support.shape[-1]
    total = support.square().sum((1, 2)) / support.shape[1]
    values, other = shrunk(values, shots, total, D)

    # The variance between classes; [B]
    K = tasks.num_classes
    trace = values.sum(-1) + (D - values.shape[-1]) * other
    between_means = means.square().sum((1, 2)) / max(1, K - 1)
    between = (between_means - trace * (1 / shots).mean(-1)) / D
    without = (shots <= 1).all(-1)  # no class has two rows: W = b I
    between = torch.where(without, other, between)
    between = between.clamp(min=LEAST_BETWEEN * trace / D)

    logits = log_densities(query, means, shots, between, values, other, vectors)
    return logits.softmax(-1).float()


def within_class_spectrum(offsets: Tensor, shots: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [B, R] and eigenvectors [B, D, R] of the pooled covariance, R = min(S, D).

    With fewer rows than features they come from the inner products of rows. Eigenvalues that are
    zero then have a zero vector, as the other D - R directions are not represented either.
    """
    freedom = (shots - 1).sum(-1).clamp(min=1).view(-1, 1, 1)
    offsets = offsets / freedom.sqrt()
    S, D = offsets.shape[1:]

    if D <= S:
        values, vectors = torch.linalg.eigh(offsets.mT @ offsets)
        return values.clamp(min=0), vectors

    values, of_rows = torch.linalg.eigh(offsets @ offsets.mT)
    largest = values[:, -1:]
    positive = values > 1e-10 * largest
    values = torch.where(positive, values, 0)
    inverse_root = torch.where(positive, values, 1).rsqrt() * positive
    vectors = (offsets.mT @ of_rows) * inverse_root.unsqueeze(1)
    return values, vectors


def shrunk(values: Tensor, shots: Tensor, total: Tensor, D: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues of W, [B, R] and, of all directions without a vector, [B].

    `values` are those of the pooled covariance, and `total` [B] is the mean squared length of rows.
    """
    freedom = (shots - 1).sum(-1)
    trace = values.sum(-1)
    squares = values.square().sum(-1)

    # Oracle approximating shrinkage
    above = (1 - 2 / D) * squares + trace.square()
    below = (freedom + 1 - 2 / D) * (squares - trace.square() / D)
    share = torch.where(below > above, above / below, 1)

    mean = torch.where(freedom > 0, trace, total / 2) / D
    mean = torch.maximum(mean, LEAST_WITHIN * total / D).clamp(min=torch.finfo(mean.dtype).tiny)
    other = share * mean
    values = (1 - share).unsqueeze(-1) * values + other.unsqueeze(-1)
    return values, other


def log_densities(
    query: Tensor,
    means: Tensor,
    shots: Tensor,
    between: Tensor,
    values: Tensor,
    other: Tensor,
    vectors: Tensor,
) -> Tensor:
    """Log densities [B, Q, K] of queries less mu, in each class, up to a constant.

    A squared distance is the sum over the represented directions, plus what the remaining ones
    contribute: the difference of the whole inner products and those of the represented directions.
    """
    represented = vectors.square().sum(1) > 0.5  # [B, R]: the length of a vector is 1 or 0
    remaining = query.shape[-1] - represented.sum(-1, keepdim=True)  # [B, 1] directions

    # [B, K, R] and [B, K, 1]
    n_b = (shots * between.unsqueeze(-1)).unsqueeze(-1)
    within = values.unsqueeze(1)
    shrinkage = n_b / (n_b + within)
    variance = within + between.view(-1, 1, 1) * within / (n_b + within)
    within_other = other.view(-1, 1, 1)
    shrinkage_other = n_b / (n_b + within_other)
    variance_other = within_other + between.view(-1, 1, 1) * within_other / (n_b + within_other)

    # Represented directions: sum_d (x_d - c_d m_d)^2 / v_d
    x = query @ vectors
    m = means @ vectors
    inverse = 1 / variance
    centre = shrinkage * m
    distances = (
        x.square() @ inverse.mT
        - 2 * x @ (centre * inverse).mT
        + (centre.square() * inverse).sum(-1).unsqueeze(1)
    )

    # The remaining directions: (|x|^2 - 2 c x.m + c^2 |m|^2) / v
    x_squared = (query.square().sum(-1) - x.square().sum(-1)).clamp(min=0)
    m_squared = (means.square().sum(-1) - m.square().sum(-1)).clamp(min=0)
    x_m = query @ means.mT - x @ m.mT
    c = shrinkage_other.mT  # [B, 1, K]
    squares = x_squared.unsqueeze(-1) - 2 * c * x_m + c.square() * m_squared.unsqueeze(1)
    distances = distances + squares / variance_other.mT

    log_determinant = (variance.log() * represented.unsqueeze(1)).sum(-1)
    log_determinant = log_determinant + remaining * variance_other.squeeze(-1).log()  # [B, K]
    return -(distances + log_determinant.unsqueeze(1)) / 2


# --- after a classifier ---------------------------------------------------------------------------

LEAST_PROBABILITY = 1e-9


def log_of(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=LEAST_PROBABILITY).log()


def summed_over_groups(probabilities: Tensor, groups: Tensor) -> Tensor:
    """One prediction for a group of queries that are of the same class, as probabilities of each.

    Log-probabilities [B, Q, K] are summed over the queries of a group, as if they were independent;
    groups [B, Q] are integers.
    """
    logs = log_of(probabilities)
    same_group = (groups.unsqueeze(2) == groups.unsqueeze(1)).to(logs.dtype)  # [B, Q, Q]
    return (same_group @ logs).softmax(-1)


def adapted(probabilities: Tensor, groups: Tensor | None = None) -> Tensor:
    """Probabilities [B, Q, K] adapted to the unknown class proportions of the batch.

    This is `paddle_ext.adapt`: expectation maximisation for proportions with a symmetric Dirichlet
    prior, whose concentration is learned from the batch. With groups [B, Q] every group has its own
    proportions; then the tasks are computed one by one.
    """
    device = probabilities.device
    logs = log_of(probabilities).to(device_of_paddle_ext(device))

    if groups is None:
        found = paddle_ext.adapt(logs, return_assignments=True).probabilities
    else:
        groups = groups.to(logs.device)
        found = torch.stack(
            [
                paddle_ext.adapt(one, groups=group, return_assignments=True).probabilities
                for one, group in zip(logs, groups, strict=True)
            ]
        )
    return found.to(device)


# --- methods of paddle_ext ------------------------------------------------------------------------


def device_of_paddle_ext(device: torch.device) -> torch.device:
    """This device, or the CPU if it is CUDA and paddle_ext was built without."""
    if device.type == "cuda" and not paddle_ext.build_info()["cuda"]:
        return torch.device("cpu")
    return device


def from_methods(name: str) -> Rule:
    """A method of `paddle_ext.methods` with its default options, such as "tim"."""

    def predicted(tasks: Tasks) -> Tensor:
        prediction = paddle_ext.methods.create(name).predict(
            tasks.support, tasks.labels, tasks.query, num_classes=tasks.num_classes
        )
        return prediction.probabilities.float()

    def rule(tasks: Tasks) -> Tensor:
        S, D = tasks.support.shape[1:]
        Q = tasks.query.shape[1]
        bytes_of_task = 4 * (4 * (S + Q + tasks.num_classes) * D + 8 * (S + Q) * tasks.num_classes)

        device = tasks.support.device
        local = tasks.to(device_of_paddle_ext(device))
        return in_parts(predicted, local, bytes_of_task).to(device)

    return rule


# --- TabPFN v1 ------------------------------------------------------------------------------------

TABPFN_MISSING = """\
TabPFN v1 is missing. Its weights are only in the source package tabpfn-0.1.tar.gz on PyPI, which
pip can no longer build: unpack that file, and add its folder tabpfn-0.1 to PYTHONPATH. It must come
before any newer tabpfn, and needs scikit-learn, scipy, matplotlib and PyYAML."""
# Modules that it imports for its training and for figures only.
TABPFN_UNUSED = ("tabpfn.priors.fast_gp", "seaborn", "ConfigSpace", "ConfigSpace.hyperparameters")
TABPFN_MOST_CLASSES = 10
TABPFN_MOST_FEATURES = 100


def tabpfn_v1(ensemble: int = 32) -> Rule:
    """TabPFN v1: a transformer, trained on synthetic tables, that reads a task as its input.

    At most 10 classes and 100 features, which are taken as they are: it scales them itself. It runs
    on the CPU, task by task, and averages `ensemble` orders of features and classes.
    """
    model = load_tabpfn_v1(ensemble)

    def rule(tasks: Tasks) -> Tensor:
        if tasks.num_classes > TABPFN_MOST_CLASSES:
            raise ValueError(f"TabPFN v1 has at most 10 classes, got {tasks.num_classes}")
        if tasks.support.shape[-1] > TABPFN_MOST_FEATURES:
            raise ValueError(f"TabPFN v1 has at most 100 features, got {tasks.support.shape[-1]}")

        support = tasks.support.float().cpu().numpy()
        labels = tasks.labels.cpu().numpy()
        query = tasks.query.float().cpu().numpy()

        found = []
        # It draws the orders from torch's generator, and its warnings are about old functions.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True):
            for number in range(len(tasks)):
                torch.manual_seed(number)
                model.fit(support[number], labels[number])
                found.append(torch.from_numpy(model.predict_proba(query[number])))
        return torch.stack(found).float().to(tasks.support.device)

    return rule


@functools.cache
def load_tabpfn_v1(ensemble: int) -> typing.Any:
    """Its classifier, with the API of scikit-learn; it was written for torch 1.9."""
    # It has `from torch.nn.modules.transformer import *`, which gave it `Optional` and `Tensor`.
    transformer = importlib.import_module("torch.nn.modules.transformer")
    names = ["Optional", *(name for name in vars(transformer) if not name.startswith("_"))]
    old_names = mock.patch.multiple(
        transformer, create=True, __all__=names, Optional=typing.Optional
    )
    # Its checkpoint has objects other than tensors.
    old_load = mock.patch.object(torch, "load", functools.partial(torch.load, weights_only=False))

    unused = [name for name in TABPFN_UNUSED if name not in sys.modules]
    for name in unused:
        sys.modules[name] = mock.MagicMock()
    try:
        with old_names, old_load, contextlib.redirect_stdout(io.StringIO()):
            interface = importlib.import_module("tabpfn.scripts.transformer_prediction_interface")
            return interface.TabPFNClassifier(device="cpu", N_ensemble_configurations=ensemble)
    except ModuleNotFoundError as error:
        raise ImportError(TABPFN_MISSING) from error
    finally:
        for name in unused:
            del sys.modules[name]


BASELINES: dict[str, Rule] = {
    "logistic regression": logistic_regression,
    "nearest mean": nearest_mean,
    "alpha-TIM": from_methods("alpha_tim"),
    "PADDLE": from_methods("paddle"),
    "TIM": from_methods("tim"),
    "PLDA": plda,
}
