"""BD-CSPN in plain torch, task by task."""

from __future__ import annotations

import torch
from torch import Tensor

from .paddle import batched, class_means, unit_rows
from .simpleshot import distances, scaled


def bd_cspn(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    base_mean: Tensor | None = None,
    scaling: str = "cl2n",
    temperature: float = 50.0,
    empty_class: str = "keep_own",
) -> Tensor:
    """Classify queries by the nearest rectified prototype.

    The rows x of a task are its scaled support, and its scaled queries z moved by
    mean(support) - mean(queries). From the class means w_k of the support::

        weight_nk = softmax_k( temperature cos(x_n, w_k) )
        w'_k      = mean of weight_nk x_n over the rows n that are nearest, by cosine, to w_k

    and the probabilities are ``softmax_k( -temperature/2 ||z_q - w'_k||^2 / scale )``, with scale
    the mean squared norm of the support for scaling="none", else 1.

    Parameters
    ----------
    support, support_labels, query, num_classes, base_mean
        As in `paddle_ext.reference.simpleshot`.
    scaling : {"cl2n", "l2n", "none"}
        "cl2n" centres the features and makes rows unit-norm; "l2n" makes them unit-norm; "none"
        leaves them unchanged.
    temperature : float
        Sharpness of the weights.
    empty_class : {"keep_own", "keep_all"}
        If no row is nearest to some w_k: that class keeps its w_k, or all classes keep theirs.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> support, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> bd_cspn(support, torch.tensor([0, 1]), query).argmax(-1)
    tensor([0])
    """
    supports, one_hots, queries = batched(support, support_labels, query, num_classes)
    supports, queries = scaled(supports, queries, base_mean, scaling)
    results = []
    for b, z in enumerate(queries):
        own = b if len(supports) > 1 else 0
        rows, means = supports[own], class_means(supports[own], one_hots[own])
        x = torch.cat([rows, z + rows.mean(0) - z.mean(0)])
        cosines = unit_rows(x) @ unit_rows(means).mT
        nearest = cosines.argmax(-1)
        weighted = torch.softmax(temperature * cosines, dim=-1)
        prototypes = means.clone()
        present = set(nearest.tolist())
        for k in present:
            chosen = nearest == k
            prototypes[k] = (weighted[chosen, k, None] * x[chosen]).mean(0)
        if empty_class == "keep_all" and len(present) < len(means):
            prototypes = means
        scale = rows.square().sum(-1).mean() if scaling == "none" else 1
        results.append(torch.softmax(-temperature / 2 * distances(z, prototypes) / scale, dim=-1))
    return torch.stack(results) if query.dim() == 3 else results[0]
