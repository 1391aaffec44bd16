"""`adapt` with the native code: the public function and its checks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import check
from ..rows import computing_dtype
from ..solution import Solution
from .adapt_operators import adapt_op, allocate
from .backend import takes_reference
from .large.logits import adapt_large
from .paddle_large import check_top, returns_all


def adapt(
    logits: Tensor,
    *,
    weight: float = 1.0,
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
        Of a query in the counts, from 1e-30 to 1. Less than 1 means that queries are similar, so
        that their likelihoods are not independent.
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
    by_reference = takes_reference(backend, logits)
    if validate:
        check_values(logits)
    if by_reference:
        from .. import reference

        return reference.adapt(logits, weight=weight, max_iter=max_iter, tol=tol)
    if not returns_all(return_assignments, *logits.shape[-2:]):
        return adapt_without_matrix(logits.detach(), weight, max_iter, tol, top)
    labels, u, proportions, dual, iterations, criterion, a, bound = adapt_op(
        logits, weight, max_iter, tol
    )
    return Solution(
        labels, u, proportions, dual, iterations, criterion, concentration=a, bound=bound
    )


def adapt_without_matrix(
    logits: Tensor, weight: float, max_iter: int, tol: float, top: int
) -> Solution:
    """One task at a time, with only the largest probabilities of each query."""
    *batch, Q, K = logits.shape
    if batch == [0]:
        return no_tasks(logits, top)
    real, found = computing_dtype(logits), []
    for own in logits.reshape(-1, Q, K):
        results, state, proportions, bound = adapt_large(
            own, weight, max_iter, tol, top=top, all_classes=False
        )
        found.append(
            (
                results.top.classes[0, :, 0],
                results.top.probabilities[0],
                proportions[0].to(real),
                state.dual[0].to(real),
                state.iterations[0],
                state.criterion[0].to(real),
                state.concentration[0].to(real),
                bound[0].to(real),
                results.top.classes[0],
                results.held[0],
            )
        )
    labels, u, p, dual, iterations, criterion, a, bounds, classes, held = (
        torch.stack(x) if batch else x[0] for x in zip(*found, strict=True)
    )
    return Solution(
        labels,
        u,
        p,
        dual,
        iterations,
        criterion,
        concentration=a,
        bound=bounds,
        classes=classes,
        held=held,
    )


def no_tasks(logits: Tensor, top: int | None = None) -> Solution:
    """The solution for logits [0, Q, K]; with the `top` largest probabilities, if given."""
    labels, u, proportions, dual, iterations, criterion, a, bound = allocate(logits)
    found = Solution(
        labels, u, proportions, dual, iterations, criterion, concentration=a, bound=bound
    )
    if top is None:
        return found
    u = u[..., :top]
    return found._replace(probabilities=u, classes=u.long(), held=proportions.double())


def check_values(logits: Tensor) -> None:
    """No NaN, no infinity, and a possible class in every row; on CUDA with one synchronisation."""
    if logits.numel() == 0:
        return
    # A NaN anywhere makes both extremes NaN.
    best = logits.detach().amax(-1)
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
        f"logits must have a possible class in every row, got a largest value of "
        f"{best[tuple(place)].item():g} in row {place}"
    )
