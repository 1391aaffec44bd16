"""PADDLE with the native code: the public functions."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from .. import check
from ..check import Options
from ..large.arguments import (
    Source,
    check_large,
    is_elsewhere,
    queries_of,
    returns_all,
    solve_large,
)
from ..native.backend import uses_reference
from ..native.values import dense_values
from ..solution import Solution
from .paddle_operators import Outputs, empty_outputs, solve_indexed_op, solve_op


def solve(
    support: Tensor,
    support_labels: Tensor,
    query: Source,
    *,
    num_classes: int | None = None,
    lam: float | None = None,
    scaling: str = "auto",
    temperature: float = 1.0,
    epsilon: float = 1e-6,
    max_iter: int = 100,
    tol: float | None = None,
    return_prototypes: bool = False,
    return_assignments: bool | None = None,
    top: int = 5,
    precision: str = "auto",
    validate: bool = True,
    backend: str = "auto",
) -> Solution:
    r"""Classify the queries of transductive few-shot tasks with PADDLE.

    A task has K candidate classes, each with at least one labelled support row, and Q queries; only
    a few classes, unknown, occur among the queries. From the support means as prototypes ``w_k``
    and ``v = 0``, every iteration does, for every task::

        u_qk = softmax_k( -temperature/2 ||z_q - w_k||^2 + (lam/Q) v_k )
        v_k  = 1 + ln( mean_q u_qk + epsilon )
        w_k  = ( sum of class k's support + sum_q u_qk z_q ) / ( its shots + sum_q u_qk )

    and the task stops when its prototypes move by at most `tol` on average.

    PADDLE assumes that few classes are present. If most are, large classes absorb others, and it
    may be much less accurate than the nearest class mean; its probabilities are always
    overconfident (`Solution.calibrated`). Use `paddle_ext.adaptive` unless you know that few
    classes are present.

    Parameters
    ----------
    support : Tensor [S, D] or [B, S, D]
        Labelled features: float16, bfloat16, float32 or float64, on the CPU or a CUDA device.
        Without a batch dimension but with a batched query, all tasks share the support.
    support_labels : Tensor [S] or [B, S]
        Integers in [0, K). Every class must occur in every task; the numbers of shots may differ.
    query : Tensor [Q, D] or [B, Q, D], path or Rows
        Features to classify, of the dtype of `support`. The result has a batch dimension if they
        have one. A path, or `paddle_ext.FileRows`, is a file of one task, read in chunks, once per
        iteration unless it is small; its dtype may differ.
    num_classes : int, optional
        K. By default the largest label + 1.
    lam : float, optional
        Weight of the penalty on the number of classes present; default: Q, which makes the method
        parameter-free. 0 is soft K-means with a support.
    scaling : {"auto", "minmax", "none"}
        The method assumes classes of unit variance. "auto" suits any embedding: rows are made
        unit-norm, and one factor per task makes the nearest class lead the median one by 13 in
        squared distance, averaged over the queries. "minmax" divides each feature by its range over
        the task's queries, as in the tables of the paper. "none" leaves the features unchanged.
    temperature : float
        Factor on the squared distances, > 0.
    epsilon : float
        Added to the proportions inside the logarithm, > 0.
    max_iter : int
        Limit on iterations.
    tol : float, optional
        Stop a task when the mean distance its prototypes moved, in scaled coordinates, is at most
        this, by default 1e-6. 0.0 runs `max_iter` iterations.
    return_prototypes : bool
        Also return the prototypes, in the coordinates of the inputs.
    return_assignments : bool, optional
        Whether to return the probabilities of all classes, or only the `top` largest of each query,
        with their classes in `classes`; default: all, unless a task has more than 2^28. With False
        the matrix of queries and classes is never stored.
    top : int
        At most 64.
    precision : {"auto", "half"}
        Precision of the products of large tasks on CUDA. "auto" is as accurate as float32, using
        sums of half-precision products; "half" rounds to float16, and is faster. See docs/large.md.
    validate : bool
        Check the values of the tensors: labels in range, a support for every class, features finite
        and of a magnitude that can be summed (at most 1e30; 1e290 in float64). On CUDA this
        synchronises with the host; without it only large tasks do, and calls that may take more
        than half a second, to handle signals. Then the call works under `torch.cuda.graph` and
        `torch.compile(fullgraph=True)`, `num_classes` must be given, and the result for invalid
        values is undefined.
    backend : {"auto", "native", "reference"}
        "native" is the C++ and CUDA code, "reference" `paddle_ext.reference.solve` in plain torch.
        "auto" is "native", except for float64 on CUDA: that has no native kernel, so the reference
        is used, which synchronises with the host in every iteration. For a GPU that this build has
        no code for, "auto" computes on the CPU with one warning, and "native" raises an error.

    Returns
    -------
    Solution
        labels : Tensor [.., Q] int64
            The class of the largest assignment.
        probabilities : Tensor [.., Q, K]
            Rows on the simplex.
        proportions : Tensor [.., K]
            Column means of the probabilities.
        dual : Tensor [.., K]
            ``v`` of the last iteration.
        iterations : Tensor [..] int32
            Iterations of each task.
        criterion : Tensor [..]
            Mean distance the prototypes moved in the last iteration.
        prototypes : Tensor [.., K, D], or None

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, before any work, in one sentence that names it, what is expected
        and what was given.
    ImportError
        If the native module is not built.

    Notes
    -----
    The computation is in float64 for float64 features and in float32 otherwise, and so are the
    results; half-precision features on the CPU are copied to float32 first. Tensors that are not
    contiguous are copied. Inputs are not modified, and results are detached. With the native code
    the result of a task does not depend on its batch or the number of threads, and two runs are
    bitwise identical; only a shared support and the same support repeated for every task may differ
    by rounding.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> support = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> query = torch.tensor([[0.5, 0.0], [3.5, 0.5], [4.0, 0.5]])
    >>> solution = paddle_ext.solve(support, torch.tensor([0, 1, 2]), query, scaling="none")
    >>> solution.labels
    tensor([0, 1, 1])
    >>> solution
    Solution(3 queries, 3 classes, 1 present, 5 iterations, probabilities not calibrated)
    """
    num_classes, options = check.options(
        num_classes,
        lam,
        scaling,
        temperature,
        epsilon,
        max_iter,
        tol,
        return_prototypes,
        validate,
    )
    support, support_labels, query = check.tensors(support, support_labels, query)
    if (
        is_elsewhere(query)
        or precision != "auto"
        or not (return_assignments is None or return_assignments is True)
        or top != 5
    ):
        large = check_large(precision, return_assignments, top)
        check.choice("backend", backend, ("auto", "native"))
        return solve_without_operator(
            support,
            support_labels,
            query,
            num_classes,
            scaling,
            options,
            return_assignments,
            prototypes=return_prototypes,
            validate=validate,
            **large,
        )
    query = cast(Tensor, query)  # otherwise the check raises an error
    check.dense(support, support_labels, query)
    by_reference = uses_reference(backend, query)
    if validate:
        num_classes = dense_values(support, support_labels, query, num_classes)
    if not by_reference and not returns_all(return_assignments, query.shape[-2], num_classes or 0):
        large = check_large(precision, False, top)
        return solve_without_operator(
            support,
            support_labels,
            query,
            num_classes,
            scaling,
            options,
            False,
            prototypes=return_prototypes,
            validate=False,
            **large,
        )
    if by_reference:
        inputs = support, support_labels, query
        return solve_in_torch(inputs, num_classes, scaling, options, return_prototypes)
    out = solve_op(support, support_labels, query, num_classes, *options, return_prototypes)
    return solution(out, scaling, options, return_prototypes)


def solve_without_operator(
    support: Tensor,
    support_labels: Tensor,
    query: Source,
    num_classes: int | None,
    scaling: str,
    options: Options,
    return_assignments: bool | None,
    *,
    prototypes: bool,
    validate: bool,
    **large: Any,
) -> Solution:
    """Solve with the engine for large tasks, for what a torch operator cannot take.

    That is queries in a file, or results without all probabilities.
    """
    check.dense(support, support_labels, support if is_elsewhere(query) else cast(Tensor, query))
    rows = queries_of(query, support)
    if validate:
        seen = query if isinstance(query, Tensor) else support[:1]
        num_classes = dense_values(support, support_labels, seen, num_classes)
    assert num_classes is not None
    return solve_large(
        support,
        support_labels,
        rows,
        num_classes,
        scaling,
        options,
        prototypes=prototypes,
        all_classes=returns_all(return_assignments, rows.shape[-2], num_classes),
        validate=validate and not isinstance(query, Tensor),
        **large,
    )


def solve_indexed(
    features: Tensor,
    support_index: Tensor,
    support_labels: Tensor,
    query_index: Tensor,
    *,
    num_classes: int | None = None,
    lam: float | None = None,
    scaling: str = "auto",
    temperature: float = 1.0,
    epsilon: float = 1e-6,
    max_iter: int = 100,
    tol: float | None = None,
    return_prototypes: bool = False,
    validate: bool = True,
    backend: str = "auto",
) -> Solution:
    """Classify the queries of tasks whose features are rows of one bank, with PADDLE.

    The result is that of ``solve(features[support_index], support_labels, features[query_index])``,
    but the native code never gathers the features, which for many tasks would not fit in memory.

    Parameters
    ----------
    features : Tensor [N, D]
        The bank: float16, bfloat16, float32 or float64, on the CPU or a CUDA device.
    support_index : Tensor [S] or [B, S]
        Rows of the bank, integers in [0, N). Without a batch dimension but with a batched
        `query_index`, all tasks share the support.
    support_labels : Tensor [S] or [B, S]
        Integers in [0, K), one for each of `support_index`.
    query_index : Tensor [Q] or [B, Q]
        Rows of the bank to classify.
    num_classes, lam, scaling, temperature, epsilon, max_iter, tol, return_prototypes, backend
        As in `solve`. backend="reference" gathers the features.
    validate : bool
        As in `solve`; also checks the indices, and the whole bank for NaN and infinity.

    Returns
    -------
    Solution
        As in `solve`.

    Notes
    -----
    As in `solve`. A bank that is not contiguous, or a half-precision one on the CPU, is copied as a
    whole in every call.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> bank = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.5, 0.0], [3.5, 0.5], [4.0, 0.5]])
    >>> tasks = torch.tensor([[2, 3], [3, 4]])
    >>> support = torch.tensor([0, 1])
    >>> paddle_ext.solve_indexed(bank, support, support, tasks, scaling="none").labels
    tensor([[0, 1],
            [1, 1]])
    """
    num_classes, options = check.options(
        num_classes,
        lam,
        scaling,
        temperature,
        epsilon,
        max_iter,
        tol,
        return_prototypes,
        validate,
    )
    features, support_index, support_labels, query_index = check.tensors(
        features, support_index, support_labels, query_index
    )
    check.indexed(features, support_index, support_labels, query_index)
    by_reference = uses_reference(backend, features)
    if validate:
        num_classes = check.indexed_values(
            features, support_index, support_labels, query_index, num_classes
        )
    if by_reference:
        support, query = features[support_index.long()], features[query_index.long()]
        inputs = support, support_labels, query
        return solve_in_torch(inputs, num_classes, scaling, options, return_prototypes)
    tensors = features, support_index, support_labels, query_index
    out = solve_indexed_op(*tensors, num_classes, *options, return_prototypes)
    return solution(out, scaling, options, return_prototypes)


def solution(out: Outputs, scaling: str, options: Options, return_prototypes: bool) -> Solution:
    prototypes = out[6] if return_prototypes else None
    lam, _, temperature = options[:3]
    # By position: keywords would take as long as the rest of this function.
    return Solution(*out[:6], prototypes, None, lam, scaling, temperature)


def solve_in_torch(
    inputs: tuple[Tensor, Tensor, Tensor],
    num_classes: int | None,
    scaling: str,
    options: Options,
    return_prototypes: bool,
) -> Solution:
    from .. import reference

    *batch, Q, D = inputs[2].shape
    if num_classes == 0:  # no task, so no labels
        empty = empty_outputs(inputs[2], batch, Q, 0, D, return_prototypes)
        return solution(empty, scaling, options, return_prototypes)
    lam, _, temperature, epsilon, max_iter, tol = options
    return reference.solve(
        *inputs,
        num_classes=num_classes,
        lam=lam,
        scaling=scaling,
        temperature=temperature,
        epsilon=epsilon,
        max_iter=max_iter,
        tol=tol,
        return_prototypes=return_prototypes,
    )
