"""`adapt` with the native code: the public function, its checks and the native call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import check
from ..groups import GroupNames, Groups, groups_and_things, thing_logits
from ..large.passes import GivenScores, best_prior, classify_rows, is_large
from ..limits import LEAST_QUERY_WEIGHT
from ..native.call import Outputs, allocate, call_native, is_traced, packed, packed_features, solver
from ..native.load import module as native
from ..prior import measures_of
from ..rows import computing_dtype
from ..solution import Solution, output_table, returns_all
from .groups import each_alone, first_proportions, of_rows, solution_of_groups


@solver(Solution)
def adapt(
    logits: Tensor,
    *,
    weight: float = 1.0,
    prior: Tensor | None = None,
    groups: GroupNames | None = None,
    share: bool = True,
    same: GroupNames | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
    return_assignments: bool | None = None,
    top: int = 5,
    validate: bool = True,
) -> Solution:
    r"""Adapt the predictions for a batch to the classes in it, whether one or all.

    The class proportions are unknown, and so is the number of classes present: a priori
    ``pi ~ Dirichlet(a, ..., a)``, with ``a`` learned from the batch. From ``e = 0`` and ``a = 1``
    every iteration of variational Bayes does, for every task::

        u_qk = softmax_k( logits_qk + e_k )
        N_k  = weight * sum_q u_qk
        a    : a Newton step towards the largest evidence
        e_k  = digamma(N_k + a) - digamma(weight Q + K a)      the mean of ln pi_k

    If all classes are present, `a` grows and the predictions hardly change; if few are, it shrinks,
    and absent classes lose their probability.

    Parameters
    ----------
    logits : Tensor [Q, K] or [B, Q, K]
        Log-likelihoods or log-probabilities of any classifier, up to a constant per query: float16,
        bfloat16, float32 or float64, on the CPU or a CUDA device. They should be calibrated: if
        they are twice too sharp, the batch corrects too little. -inf is allowed for an impossible
        class, if a row has others. Probabilities, two rows or more that are >= 0 and sum to 1, are
        refused: pass their logarithm.
    weight : float
        How much a query adds to the counts, from 1e-6 to 1. Use less than 1 if queries resemble
        each other, so that their likelihoods are not independent.
    prior : Tensor or array [K] or [B, K], optional
        What is known of the class proportions, such as those of last month: a weight of each class,
        of any sum; 0 for an impossible class. Then ``pi ~ Dirichlet(K a p)`` a priori, with `p` the
        prior and `a` learned, but only if the batch is more likely with the prior than without, so
        that a wrong prior hardly costs anything. Impossible classes stay impossible either way.
        With groups [G, K] is a prior for each, in the order of the sorted groups.
    groups, share, same
        As in `paddle_ext.adaptive`, for logits [Q, K]. Groups that share learn from each other how
        few classes a group has. Unlike there, sets of few classes are not compared: it is unknown
        how sharp the logits are, and of soft ones too many classes seem likely.
    max_iter : int
        Limit on iterations; groups that share always take three.
    tol : float
        Stop a task when no count changes by more than this many queries. 0.0 runs `max_iter`
        iterations. Groups that share do not look at it.
    return_assignments, top
        As in `paddle_ext.adaptive`.
    validate : bool
        Check the values of the logits. On CUDA this synchronises with the host. Without it nothing
        does, the call works under `torch.cuda.graph`, and the result for invalid values is
        undefined. `torch.compile(fullgraph=True)` takes either.

    Returns
    -------
    Solution
        Its proportions are ``(N_k + a) / (weight Q + K a)``, `dual` is ``e``, and `criterion` the
        largest change of a count in the last iteration; `concentration` is ``a``, in [1e-4, 1e4],
        and `bound` a lower bound of the log evidence, which no iteration lowers.

    Notes
    -----
    Errors, precision, devices and reproducibility are as in `paddle_ext.solve`.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> logits = torch.tensor([[3.0, 0.0, 0.0]] * 6 + [[0.4, 0.5, 0.0]])
    >>> logits.argmax(1), paddle_ext.adapt(logits).labels  # the last one is unsure
    (tensor([0, 0, 0, 0, 0, 0, 1]), tensor([0, 0, 0, 0, 0, 0, 0]))
    """
    weight = check.real("weight", weight)
    if not LEAST_QUERY_WEIGHT <= weight <= 1.0:
        expected = f"must be from {LEAST_QUERY_WEIGHT:g} to 1"
        raise check.ArgumentValueError("weight", f"{expected}, got {weight}")
    max_iter, tol = check.integer("max_iter", max_iter), check.real("tol", tol)
    check.flag("validate", validate)
    top = check.top(return_assignments, top)
    check.flag("share", share)
    logits, prior = check.tensors(logits, prior)
    check.of_classes("logits", logits)
    *batch, Q, K = logits.shape
    grouped, things = groups_of_one_batch(groups, same, logits)
    tasks = batch[0] if batch else None
    measures, all_possible = None, True
    if prior is not None and not is_traced():
        tasks = tasks if grouped is None else len(grouped.names)
        measures, all_possible = measures_of(prior, K, tasks, logits)
    impossible = None
    if measures is not None and not all_possible:
        impossible = measures[:, 1] == 0
        several = len(impossible) > 1
        own = impossible[grouped.of_row] if grouped and several else impossible[:, None]
        impossible = own if len(own) > 1 else own[0]
    if validate:
        check_values(logits, impossible)
    if impossible is not None:  # however large the logits are
        logits = logits.masked_fill(impossible, -math.inf)
    best = None if returns_all(return_assignments, Q, K) else top
    of_things = grouped
    if things is not None:
        logits = thing_logits(logits, things).to(computing_dtype(logits))
        of_things = None if grouped is None else grouped.of_things(things)
        if validate:
            check_values(logits, row="thing")
    if of_things is not None:
        options: Any = {"weight": weight, "max_iter": max_iter, "tol": tol, "top": best}
        found = adapt_groups(logits, of_things, measures, share, **options)
    else:
        found = solution_of(call_adapt(logits, weight, max_iter, tol, measures, best), prior)
    return found if things is None else of_rows(found, things, grouped)


def groups_of_one_batch(
    groups: GroupNames | None, same: GroupNames | None, rows: Tensor
) -> tuple[Groups | None, Groups | None]:
    """Check the groups and the things of these rows, which have no batch dimension."""
    for name, value in {"groups": groups, "same": same}.items():
        if value is not None and is_traced():
            raise TypeError(f"{name} must be None for torch.compile, got {name}")
        if value is not None and rows.dim() != 2:
            raise ValueError(
                f"{name} must be None for a batch of tasks, got {name} and shape {list(rows.shape)}"
            )
    return groups_and_things(groups, same, rows.shape[-2], rows.device)


def adapt_groups(
    logits: Tensor,
    groups: Groups,
    measures: Tensor | None,
    share: bool,
    *,
    weight: float,
    max_iter: int,
    tol: float,
    top: int | None,
) -> Solution:
    """`adapt` for checked groups."""
    if not share or len(groups.names) == 1:

        def solve(rows: Tensor, places: Tensor) -> Solution:
            own = measures if measures is None or len(measures) == 1 else measures[places]
            return solution_of(call_adapt(logits[rows], weight, max_iter, tol, own, top), own)

        return each_alone(groups, solve)
    real = computing_dtype(logits)
    logits = packed(logits.to(real)).clamp(min=torch.finfo(real).min)
    weights = torch.full_like(groups.sizes, weight, dtype=torch.float64)
    found = first_proportions(logits, groups, weights, measures).with_counts(groups, weights)
    shares = found.counts + found.pseudocounts
    return solution_of_groups(groups, found, shares / shares.sum(-1, keepdim=True), top)


def solution_of(outputs: Sequence[Tensor], prior: object) -> Solution:
    """The solution with these outputs of the native code; `prior` is None if none was given."""
    labels, u, proportions, dual, iterations, criterion, a, bound, chosen, *top = outputs
    first = labels, u, proportions, dual, iterations, criterion
    used = None if prior is None else chosen > 0
    whole = Solution(*first, concentration=a, bound=bound, prior_used=used)
    return whole if not top else whole._replace(classes=top[0], held=top[1])


def call_adapt(
    logits: Tensor,
    weight: float,
    max_iter: int,
    tol: float,
    measures: Tensor | None,
    top: int | None,
) -> list[Tensor]:
    """Adapt checked logits; `top` is None if the probabilities of all classes are returned."""
    *batch, Q, K = logits.shape
    B = batch[0] if batch else 1
    outputs = adapt_table((*batch, Q), K, computing_dtype(logits), top)
    if B == 0 or is_traced():
        return allocate(logits, outputs)
    if top is not None or is_large(B, Q, K, cuda=logits.is_cuda):
        steps = {"weight": weight, "max_iter": max_iter, "tol": tol}
        return adapt_one_by_one(logits, allocate(logits, outputs), measures, top, **steps)
    logits, priors = packed_features(logits), 0
    if measures is not None:
        measures, priors = packed(measures.expand(B, -1, K)), measures.shape[1]
    sizes = {"B": B, "Q": Q, "K": K}
    options = {**sizes, "weight": weight, "max_iter": max_iter, "tol": tol, "priors": priors}
    inputs = {
        "logits": (logits, logits.dtype, (*batch, Q, K)),
        "measures": (measures, computing_dtype(logits), (B, priors, K)),
    }
    return call_native(native.adapt_call, options, logits, inputs, outputs)


def adapt_table(of_query: tuple[int, ...], K: int, real: torch.dtype, top: int | None) -> Outputs:
    batch = of_query[:-1]
    score = real, batch
    others = {"concentration": score, "bound": score, "chosen": (torch.int32, batch)}
    return output_table(of_query, K, real, top, others)


def adapt_one_by_one(
    logits: Tensor, outputs: list[Tensor], measures: Tensor | None, top: int | None, **steps: Any
) -> list[Tensor]:
    """`adapt` for tasks too large for one thread block, or without all probabilities."""
    (*batch, Q, K), weight = logits.shape, steps["weight"]
    for number, own in enumerate(logits.reshape(-1, Q, K)):
        scores = GivenScores(own)
        priors = None if measures is None else measures[number % len(measures)]
        counter, state, chosen, _ = best_prior(scores, priors, total=weight * Q, **steps)
        del counter  # it may be large
        found = classify_rows(scores, state.dual, top=top or 1, all_classes=top is None)
        values = [
            found.top.classes[..., 0],
            found.top.probabilities if found.probabilities is None else found.probabilities,
            state.proportions(weight * found.held),
            state.dual,
            state.iterations,
            state.criterion,
            state.concentration,
            state.bound(found.held, found.log_sums),
            torch.full_like(state.iterations, chosen),
        ]
        if top is not None:
            values += [found.top.classes, found.held]
        for output, x in zip(outputs, values, strict=True):
            (output[number] if batch else output).copy_(x[0])
    return outputs


def no_tasks(logits: Tensor, top: int | None = None) -> Solution:
    """The solution for logits [0, Q, K]; with the `top` largest probabilities, if given."""
    _, Q, K = logits.shape
    table = adapt_table((0, Q), K, computing_dtype(logits), top)
    return solution_of(allocate(logits, table), None)


def check_values(logits: Tensor, impossible: Tensor | None = None, row: str = "row") -> None:
    """Raise unless all logits are finite or -inf and every row, called `row`, has a possible class.

    Probabilities are refused too.
    """
    if logits.numel() == 0 or is_traced():
        return
    # A NaN anywhere makes both extremes NaN.
    best = (logits if impossible is None else logits.masked_fill(impossible, -math.inf)).amax(-1)
    least, most, lowest = check.numbers_of([*torch.aminmax(best), logits.amin()])
    largest = check.LARGEST_FEATURE[logits.dtype]
    if -largest <= least and most <= largest and not math.isnan(lowest):
        check.not_probabilities(logits, lowest, most)
        return
    # In float64, as above: the limit itself may be rounded in the dtype of the logits.
    bad = logits.isnan() | (logits.double() > largest)
    if bad.any():
        place = bad.nonzero()[0].tolist()
        value = logits[tuple(place)].item()
        raise ValueError(f"logits must be at most {largest:g} or -inf, got {value:g} at {place}")
    place = (~(best.double() >= -largest)).nonzero()[0].tolist()
    raise ValueError(
        f"logits must have a possible class in every {row}, got a largest value of "
        f"{best[tuple(place)].item():g} in {row} {place}"
    )
