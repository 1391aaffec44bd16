"""Classify batches with the engine that suits their size; every caller of the rule uses this."""

from __future__ import annotations

from torch import Tensor

from ..large.fixed import is_large
from ..large.sources import Rows, TensorRows
from ..native.call import packed
from ..native.devices import moved_to, needs_cpu
from ..solution import Solution
from ..task import merged
from .large import solve_large
from .likelihood import Likelihood
from .small import solve_small


def classify(
    likelihood: Likelihood,
    query: Tensor | Rows,
    added: Tensor | None = None,
    *,
    measures: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
    all_classes: bool = True,
    top: int = 5,
    validate: bool = False,
) -> tuple[Solution, Tensor | None]:
    """Classify batches with a likelihood that has been learned from labelled rows.

    Parameters
    ----------
    likelihood : Likelihood
        Of each batch, or shared by all.
    query : Tensor [B, Q, D] or Rows
        Of any floating-point dtype; `Rows` are one batch, B = 1.
    added : Tensor [B, Q, K], optional
        Further logits, such as those of names.
    measures : Tensor [B or 1, n, K], optional
        Priors on the proportions to choose from; the first is even.
    max_iter, tol
        As in `paddle_ext.adapt`.
    all_classes : bool
        Whether to return the probabilities of all classes, or those of the `top` likeliest.
    validate : bool
        Whether to check a large batch for non-finite values, in the first pass over it.

    Returns
    -------
    Solution
        With a batch dimension.
    Tensor [B] bool or None
        True if the queries of a batch are finite, False is inconclusive; None: not checked.
    """
    K, device = likelihood.bias.shape[-1], query.device
    if isinstance(query, Tensor):
        if all_classes and not is_large(query.shape[1], K):
            query = query.to(likelihood.bias.dtype)
            return solve_small(
                likelihood, query, added, measures=measures, max_iter=max_iter, tol=tol
            )
        if needs_cpu(query):
            likelihood, query = likelihood.to("cpu"), query.cpu()
            added = None if added is None else added.cpu()
            measures = None if measures is None else measures.cpu()
        sources: list[Rows] = [TensorRows(one) for one in query]
    else:
        sources = [query]
    found = merged(
        [
            solve_large(
                likelihood.task(number),
                rows,
                None if added is None else packed(added[number]),
                measures=None if measures is None else measures[number % len(measures)],
                max_iter=max_iter,
                tol=tol,
                top=top,
                all_classes=all_classes,
                validate=validate,
            )
            for number, rows in enumerate(sources)
        ]
    )
    return moved_to(found, device), None
