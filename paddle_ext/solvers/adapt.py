"""`adapt` with the native code: the public function and its checks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import check
from ..large.arguments import check_top, returns_all
from ..large.logits import adapt_large
from ..native.backend import uses_reference
from ..native.calls import moved_to
from ..prior import measures_of
from ..rows import computing_dtype
from ..solution import Solution
from .adapt_operators import Outputs, adapt_op, empty_outputs, task_outputs


def adapt(
    logits: Tensor,
    *,
    weight: float = 1.0,
    prior: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
    return_assignments: bool | None = None,
    top: int = 5,
    validate: bool = True,
    backend: str = "auto",
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
        class, if a row has others.
    weight : float
        How much a query adds to the counts, from 1e-30 to 1. Use less than 1 if queries resemble
        each other, so that their likelihoods are not independent.
    prior : Tensor or array [K] or [B, K], optional
        What is known of the class proportions, such as those of last month: a weight of each class,
        of any sum; 0 for an impossible class. Then ``pi ~ Dirichlet(K a p)`` a priori, with `p` the
        prior and `a` learned, but only if the batch is more likely with the prior than without, so
        that a wrong prior hardly costs anything. Impossible classes stay impossible either way.
    max_iter : int
        Limit on iterations.
    tol : float
        Stop a task when no count changes by more than this many queries. 0.0 runs `max_iter`
        iterations.
    return_assignments : bool, optional
        Whether to return the probabilities of all classes, or only the `top` largest of each query,
        with their classes in `classes`; default: all, unless a task has more than 2^28.
    top : int
        At most 64.
    validate : bool
        Check the values of the logits. On CUDA this synchronises with the host. Without it nothing
        does, the call works under `torch.cuda.graph` and `torch.compile(fullgraph=True)`, and the
        result for invalid values is undefined. A call that may take more than half a second always
        waits for the device, so that Ctrl-C works.
    backend : {"auto", "native", "reference"}
        "native" is the C++ and CUDA code, "reference" `paddle_ext.reference.adapt` in plain torch.
        "auto" is "native", except for float64 on CUDA, which has no native kernel.

    Returns
    -------
    Solution
        labels : Tensor [.., Q] int64
            The most probable class; of equals, the smallest.
        probabilities : Tensor [.., Q, K]
            Rows on the simplex.
        proportions : Tensor [.., K]
            The mean of the proportions, ``(N_k + a) / (weight Q + K a)``.
        dual : Tensor [.., K]
            ``e``.
        iterations : Tensor [..] int32
        criterion : Tensor [..]
            Largest change of a count in the last iteration.
        concentration : Tensor [..]
            ``a``, in [1e-4, 1e4].
        bound : Tensor [..]
            Lower bound of the log evidence; no iteration lowers it.
        prior_used : Tensor [..] bool, or None without a prior
            Whether the prior was used: the batch is more likely with it than without.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, before any work, in one sentence that names it, what is expected
        and what was given.
    ImportError
        If the native module is not built.

    Notes
    -----
    The computation is in float64 for float64 logits and in float32 otherwise, and so are the
    results. Inputs are not modified, and there is no gradient. The result of a task does not depend
    on its batch or the number of threads, and two runs are bitwise identical.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> logits = torch.tensor([[3.0, 0.0, 0.0]] * 6 + [[0.4, 0.5, 0.0]])
    >>> logits.argmax(1), paddle_ext.adapt(logits).labels  # the last one is unsure
    (tensor([0, 0, 0, 0, 0, 0, 1]), tensor([0, 0, 0, 0, 0, 0, 0]))
    """
    weight = check.query_weight(weight)
    max_iter, tol = check.integer("max_iter", max_iter), check.real("tol", tol)
    check.flag("validate", validate)
    top = check_top(return_assignments, top)
    (logits,) = check.tensors(logits)
    check.logits(logits)
    *batch, Q, K = logits.shape
    measures, all_possible = None, True
    if prior is not None:
        measures, all_possible = measures_of(prior, K, batch[0] if batch else None, logits)
    by_reference = uses_reference(backend, logits)
    if validate:
        check_values(logits, None if all_possible else measures)
    if by_reference:
        from .. import reference

        (prior,) = check.tensors(prior)
        return reference.adapt(logits, weight=weight, prior=prior, max_iter=max_iter, tol=tol)
    if not returns_all(return_assignments, Q, K):
        return adapt_without_matrix(logits.detach(), weight, max_iter, tol, measures, top)
    return adapt_checked(logits, weight, max_iter, tol, measures)


def adapt_checked(
    logits: Tensor, weight: float, max_iter: int, tol: float, measures: Tensor | None
) -> Solution:
    """`adapt` for checked arguments, returning the probabilities of all classes.

    `measures` [B or 1, n, K] are the priors to choose from.
    """
    if uses_reference("auto", logits):  # float64 on CUDA: compute on the CPU instead
        on_cpu = None if measures is None else measures.cpu()
        found: Solution = moved_to(
            adapt_checked(logits.cpu(), weight, max_iter, tol, on_cpu), logits.device
        )
        return found
    return solution_of(adapt_op(logits, weight, max_iter, tol, measures), measures)


def solution_of(outputs: Outputs, measures: Tensor | None) -> Solution:
    labels, u, proportions, dual, iterations, criterion, a, bound, chosen = outputs
    return Solution(
        labels,
        u,
        proportions,
        dual,
        iterations,
        criterion,
        concentration=a,
        bound=bound,
        prior_used=None if measures is None else chosen > 0,
    )


def adapt_without_matrix(
    logits: Tensor, weight: float, max_iter: int, tol: float, measures: Tensor | None, top: int
) -> Solution:
    """`adapt` one task at a time, keeping only the `top` largest probabilities of each query."""
    *batch, Q, K = logits.shape
    if batch == [0]:
        return no_tasks(logits, top, measures)
    found = []
    for number, own in enumerate(logits.reshape(-1, Q, K)):
        results, state, proportions, bound, chosen = adapt_large(
            own,
            weight,
            max_iter,
            tol,
            measures=None if measures is None else measures[number % len(measures)],
            top=top,
            all_classes=False,
        )
        real = computing_dtype(logits)
        tensors = task_outputs(results, state, proportions, bound, chosen)
        tensors = tuple(x.to(real) if x.is_floating_point() else x for x in tensors)
        found.append((*tensors, results.top.classes[0], results.held[0]))
    *outputs, classes, held = (torch.stack(x) if batch else x[0] for x in zip(*found, strict=True))
    return solution_of(tuple(outputs), measures)._replace(classes=classes, held=held)


def no_tasks(logits: Tensor, top: int | None = None, measures: Tensor | None = None) -> Solution:
    """The solution for logits [0, Q, K]; with the `top` largest probabilities, if given."""
    found = solution_of(empty_outputs(logits), measures)
    if top is None:
        return found
    u = found.probabilities[..., :top]
    return found._replace(probabilities=u, classes=u.long(), held=found.proportions.double())


def check_values(logits: Tensor, measures: Tensor | None = None) -> None:
    """Raise unless all logits are finite or -inf and every row has a possible class.

    On CUDA this synchronises once.
    """
    if logits.numel() == 0:
        return
    # A NaN anywhere makes both extremes NaN.
    if measures is None:
        best = logits.detach().amax(-1)
    else:
        impossible = (measures[:, :1] == 0)[() if logits.dim() == 3 else 0]
        best = logits.detach().masked_fill(impossible, -math.inf).amax(-1)
    scalars = check.numbers_of([*torch.aminmax(best), logits.detach().amin()])
    least, most, lowest = scalars
    largest = check.SUMMABLE[logits.dtype]
    if -largest <= least and most <= largest and not math.isnan(lowest):
        return
    bad = logits.isnan() | (logits > largest)
    if bad.any():
        place = bad.nonzero()[0].tolist()
        value = logits[tuple(place)].item()
        raise ValueError(f"logits must be at most {largest:g} or -inf, got {value:g} at {place}")
    place = (~(best >= -largest)).nonzero()[0].tolist()
    raise ValueError(
        "logits must have a possible class in every row, got a largest value of "
        f"{best[tuple(place)].item():g} in row {place}"
    )
