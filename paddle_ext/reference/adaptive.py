"""The method `adaptive` in plain torch, for batches of tasks: the specification."""

from typing import Any

import torch
from torch import Tensor

from ..solution import Solution
from .label_noise import weigh_labels
from .paddle import batched, computing_dtype
from .rule import Labelled, centred, classify, learn


def adaptive(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    metric: str = "auto",
    label_noise: float | str = 0.0,
    prior: Tensor | None = None,
    support_groups: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Solution:
    """Classify queries by calibrated distances and the class proportions of their batch.

    See `paddle_ext.adaptive` for the parameters; the result is in float64 for float64 features,
    else in float32. `support_groups` [S] or [B, S] says which labelled rows belong together.
    """
    rows, one_hot, queries = batched(support, support_labels, query, num_classes)
    K = one_hot.shape[-1]

    def of_task(x: Tensor | None, b: int) -> Tensor | None:
        """The row of a task; one row is for all of them."""
        return x if x is None or x.dim() == 1 else x[b % len(x)]

    solutions = []
    for b in range(len(queries)):
        labels = one_hot[b % len(rows)].argmax(-1)
        groups = of_task(support_groups, b)
        known = learn(rows[b % len(rows)], labels, K, metric=metric, groups=groups)
        if label_noise != 0.0 and K > 1:
            labelled = Labelled(centred(rows[b % len(rows)], known.centre), labels, K)
            known = weigh_labels(known, labelled, label_noise, metric)
        own = of_task(prior, b)
        solutions.append(classify(known, queries[b], prior=own, max_iter=max_iter, tol=tol))

    together: dict[str, Any] = {}
    for name, first in solutions[0]._asdict().items():
        if isinstance(first, Tensor):
            every = torch.stack([getattr(solution, name) for solution in solutions])
            x = every if query.dim() == 3 else first
            together[name] = x.to(computing_dtype(query)) if x.is_floating_point() else x
    return solutions[0]._replace(**together)
