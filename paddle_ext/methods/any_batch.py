"""The method `adaptive` as one function: for tensors, files and several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .. import check
from ..ops.adapt import no_tasks
from ..ops.large.fixed import is_large
from ..ops.large.sources import TensorRows
from ..ops.paddle_large import Source, check_large, is_elsewhere, queries_of, returns_all
from ..rows import computing_dtype
from ..solution import Solution
from .adaptive import Adaptive
from .adaptive_large import solve_large, with_batch
from .base import batched, detached, without_autocast
from .task import Task, merged, without_batch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def adaptive(
    support: Tensor,
    support_labels: Tensor,
    query: Source,
    *,
    num_classes: int | None = None,
    metric: str = "auto",
    max_iter: int = 100,
    tol: float = 1e-3,
    return_assignments: bool | None = None,
    top: int = 5,
    group: ProcessGroup | None = None,
    validate: bool = True,
) -> Solution:
    """Classify any batch, whether one class is present or all.

    This is the method `paddle_ext.methods.Adaptive`: the labelled rows determine how sharp
    distances are, the batch determines how frequent its classes are. The equations are in
    docs/adaptive.md.

    Parameters
    ----------
    support : Tensor [S, D] or [B, S, D]
        Labelled features: float16, bfloat16, float32 or float64, on the CPU or a CUDA device.
        Without a batch dimension but with a batched query, all tasks share the support.
    support_labels : Tensor [S] or [B, S]
        Integers in [0, K). Every class must occur in every task; the numbers of shots may differ.
    query : Tensor [Q, D] or [B, Q, D], path or Rows
        Features to classify. A path, or `paddle_ext.FileRows`, is a file of one task, read in
        chunks: three times if the likelihoods of all classes fit in 2 GiB, else in every iteration;
        and one time more if the batch needs caution.
    num_classes : int, optional
        K. By default the largest label + 1.
    metric, max_iter, tol
        As in `paddle_ext.methods.Adaptive`.
    return_assignments : bool, optional
        Whether to return the probabilities of all classes, or only the `top` largest of each query,
        with their classes in `classes`; default: all, unless a task has more than 2^28.
    top : int
        At most 64.
    group : torch.distributed.ProcessGroup, optional
        Processes that share one task: each calls with the same support and its own part of the
        queries, and gets the labels of that part.
    validate : bool
        Check the values of the tensors: labels in range, a support for every class, features finite
        and of a magnitude that can be summed.

    Returns
    -------
    Solution

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, before any work, in one sentence that names it, what is expected
        and what was given.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> support = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> query = torch.tensor([[3.0, 1.0], [4.0, 1.0], [5.0, 2.0], [1.0, 4.0]])
    >>> paddle_ext.adaptive(support, torch.tensor([0, 1, 2]), query).labels
    tensor([0, 0, 0, 1])
    """
    method = Adaptive(metric=metric, max_iter=max_iter, tol=tol)
    check.classes(num_classes, check.flag("validate", validate))
    support, support_labels, query = check.tensors(support, support_labels, query)
    options = check_large("auto", return_assignments, top, group)
    check.dense(support, support_labels, support if is_elsewhere(query) else cast(Tensor, query))
    rows = queries_of(query, support)
    if validate:
        seen = query if isinstance(query, Tensor) else support[:1]
        num_classes = check.dense_values(support, support_labels, seen, num_classes)
    assert num_classes is not None
    Q = rows.shape[-2]
    all_classes = returns_all(return_assignments, Q, num_classes)
    if isinstance(rows, Tensor) and rows.shape[0] == 0:
        none = rows.new_empty(0, Q, num_classes)
        return no_tasks(none, None if all_classes else options["top"])
    dtype = computing_dtype(support)
    labelled = batched(detached(support, dtype), 3)
    labels = batched(detached(support_labels, torch.int64), 2)
    small = group is None and all_classes and not is_large(Q, num_classes)
    with torch.no_grad(), without_autocast(support):
        if small and isinstance(query, Tensor):
            task = Task(labelled, labels, batched(detached(query, dtype), 3), num_classes)
            found = method.solution(task)
            return found if query.dim() == 3 else without_batch(found)
        tasks = [rows] if not isinstance(rows, Tensor) else [TensorRows(one) for one in rows]
        solved = []
        for number, one in enumerate(tasks):
            own = slice(0, 1) if len(labelled) == 1 else slice(number, number + 1)
            task = Task(labelled[own], labels[own], labelled[own, :1], num_classes)
            solved.append(
                solve_large(
                    method.likelihood(task),
                    one,
                    max_iter=max_iter,
                    tol=tol,
                    top=options["top"],
                    all_classes=all_classes,
                    group=options["group"],
                    validate=validate and not isinstance(query, Tensor),
                )
            )
    if not isinstance(rows, Tensor):
        return solved[0]
    return merged([with_batch(one) for one in solved])
