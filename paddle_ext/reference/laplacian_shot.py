"""LaplacianShot in plain torch, task by task, with the graph as a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from .paddle import batched, class_means
from .simpleshot import distances, scaled


def graph(z: Tensor, knn: int) -> Tensor:
    """Row q has ones at the knn - 1 queries nearest to q, itself excluded, [Q, Q].

    Squared distances plus 2^-20 are compared in single precision, so that equal ones compare equal;
    of equals, the first are taken.
    """
    Q = len(z)
    compared = (distances(z, z) + 2.0**-20).float().fill_diagonal_(torch.inf)
    nearest = compared.sort(stable=True).indices[:, : min(knn, Q) - 1]
    return torch.zeros(Q, Q, dtype=z.dtype, device=z.device).scatter_(1, nearest, 1.0)


def laplacian_shot(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    base_mean: Tensor | None = None,
    scaling: str = "cl2n",
    lam: float = 0.7,
    knn: int = 3,
    max_iter: int = 20,
    tol: float = 1e-6,
) -> Tensor:
    """Classify queries by the nearest class mean, with neighbours pulled to one class.

    With W the graph, a_qk the squared distance of query q to the mean of class k's support and
    y = softmax_k(-a), every iteration does ``y = softmax_k( -a + lam W y )``. A task stops when
    ``sum y (ln y + a - lam W y)`` changes by at most a share of `tol`, at the third iteration or
    later.

    Parameters
    ----------
    support, support_labels, query, num_classes, base_mean, scaling
        As in `paddle_ext.reference.simpleshot`.
    lam : float
        Weight of the neighbours.
    knn : int
        Size of a neighbourhood including the query itself.
    max_iter, tol : int, float
        Limit on iterations; relative change at which a task stops.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> support, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> laplacian_shot(support, torch.tensor([0, 1]), query).argmax(-1)
    tensor([0])
    """
    supports, one_hots, queries = batched(support, support_labels, query, num_classes)
    supports, queries = scaled(supports, queries, base_mean, scaling)
    means = class_means(supports, one_hots)
    results = []
    for b, z in enumerate(queries):
        a = distances(z, means[b if len(means) > 1 else 0])
        W = graph(z, knn)
        y, energy = torch.softmax(-a, dim=-1), torch.inf
        for i in range(max_iter):
            y = torch.softmax(-a + lam * W @ y, dim=-1)
            terms = torch.special.xlogy(y, y) + (a - lam * W @ y) * y
            before, energy = energy, float(terms.sum())
            if i > 1 and abs(energy - before) <= tol * abs(before):
                break
        results.append(y)
    return torch.stack(results) if query.dim() == 3 else results[0]
