"""PADDLE with the native code: the public functions, their checks and the native call."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from .. import check
from ..check import Options
from ..large import paddle as large
from ..large.sources import Source, comes_in_chunks, queries_of
from ..native.call import call_native, packed_features, packed_int64, solver
from ..native.load import module as native
from ..rows import computing_dtype
from ..solution import Solution, output_table, returns_all


@solver(Solution)
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
        synchronises with the host; without it only large tasks do. Then the call works under
        `torch.cuda.graph`, `num_classes` must be given, and the result for invalid values is
        undefined. `torch.compile(fullgraph=True)` takes either, with `num_classes`.

    Returns
    -------
    Solution
        Its proportions are the column means of the probabilities; `dual` is the ``v`` of the last
        iteration, and `criterion` the mean distance that the prototypes moved in it.

    Notes
    -----
    An invalid argument raises TypeError or ValueError before any work, in one sentence that names
    it, what is expected and what was given.

    The computation is in float64 for float64 features and in float32 otherwise, and so are the
    results; half-precision features on the CPU are copied to float32 first. Tensors that are not
    contiguous are copied. Inputs are not modified, and results are detached. Two runs are bitwise
    identical. The batch of a task and the number of threads change its result only by rounding, and
    only if the support is shared or the task is large (docs/reliability.md).

    What has no native code on CUDA is computed on the CPU, with one warning: float64, and anything
    on a GPU that this build has no code for.

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
        num_classes, lam, scaling, temperature, epsilon, max_iter, tol, return_prototypes, validate
    )
    check.choice("precision", precision, large.PRECISIONS)
    top = check.top(return_assignments, top)
    support, support_labels, query = check.tensors(support, support_labels, query)
    in_chunks = comes_in_chunks(query)
    rows = support if in_chunks else cast(Tensor, query)  # otherwise the check raises an error
    check.dense(support, support_labels, rows)
    if validate:
        seen = support[:1] if in_chunks else rows
        num_classes = check.dense_values(support, support_labels, seen, num_classes)
    queries = queries_of(query, support) if in_chunks else rows
    K = cast(int, num_classes)
    all_classes = returns_all(return_assignments, queries.shape[-2], K)
    outputs: list[Tensor] = []
    if isinstance(queries, Tensor) and all_classes and precision == "auto":
        support, queries = packed_features(support), packed_features(queries)
        labels = packed_int64(support_labels)
        outputs = call_paddle(queries, support, labels, K, options)
    if not outputs:
        asked = options._replace(precision=precision, all_classes=all_classes, top=top)
        asked = asked._replace(validate=validate and in_chunks)
        outputs = large.solve(queries, support, support_labels, K, asked)
    return solution(outputs, options)


@solver(Solution)
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
    num_classes, lam, scaling, temperature, epsilon, max_iter, tol, return_prototypes
        As in `solve`.
    validate : bool
        As in `solve`; also checks the indices, and the whole bank for NaN and infinity.

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
        num_classes, lam, scaling, temperature, epsilon, max_iter, tol, return_prototypes, validate
    )
    features, support_index, support_labels, query_index = check.tensors(
        features, support_index, support_labels, query_index
    )
    check.indexed(features, support_index, support_labels, query_index)
    if validate:
        indices = {"support_index": support_index, "query_index": query_index}
        seen = {"support_labels": support_labels, **indices, "features": features}
        limits = dict.fromkeys(indices, len(features))
        num_classes = check.values(seen, support_labels, limits, num_classes)
    K, features = cast(int, num_classes), packed_features(features)
    of_support, labels, of_query = map(packed_int64, (support_index, support_labels, query_index))
    outputs = call_paddle(features, features, labels, K, options, of_support, of_query)
    if not outputs:
        # Indices that were not validated are kept in range.
        at, index = (x.clamp(0, len(features) - 1) for x in (of_support, of_query))
        outputs = large.solve(features, features[at], labels, K, options, index)
    return solution(outputs, options)


def solution(outputs: list[Tensor], o: Options) -> Solution:
    """The solution with these outputs, in the order of `output_table`."""
    labels, probabilities, proportions, dual, iterations, criterion, *others = outputs
    prototypes = others.pop(0) if o.prototypes else None
    # By position: keywords would take as long as the rest of this function.
    fields = labels, probabilities, proportions, dual, iterations, criterion, prototypes
    whole = Solution(*fields, o.lam, o.scaling, o.temperature)
    if not others:
        return whole
    classes, held = others
    return whole._replace(classes=classes, held=held)


def call_paddle(
    query: Tensor,
    support: Tensor,
    labels: Tensor,
    K: int,
    o: Options,
    support_index: Tensor | None = None,
    query_index: Tensor | None = None,
) -> list[Tensor]:
    """Solve checked tasks, or rows of a bank by index; an empty list if they are too large."""
    *rows, D = query.shape
    of_query = tuple(rows if query_index is None else query_index.shape)
    of_support, Q, N = tuple(labels.shape), of_query[-1], 0 if query_index is None else rows[0]
    shared = len(of_support) < len(of_query)
    dtype, real = query.dtype, computing_dtype(query)
    options = {
        "size": (of_query[0] if len(of_query) == 2 else 1, Q, of_support[-1], K, D, N, shared),
        "lam": float(Q) if o.lam is None else o.lam,
        "scaling": check.SCALINGS[o.scaling],
        "temperature": o.temperature,
        "epsilon": o.epsilon,
        "max_iter": o.max_iter,
        "tol": o.tol,
    }
    inputs = {
        "support": (support, dtype, (N, D) if N else (*of_support, D)),
        "support_labels": (labels, torch.int64, of_support),
        "query": (query, dtype, (N, D) if N else (*of_query, D)),
        "support_index": (support_index, torch.int64, of_support),
        "query_index": (query_index, torch.int64, of_query),
    }
    others = {"prototypes": (real, (*of_query[:-1], K, D)) if o.prototypes else None}
    outputs = output_table(of_query, K, real, None, others)
    return call_native(native.paddle_call, options, query, inputs, outputs)
