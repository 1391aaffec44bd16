"""PT-MAP in plain torch: a power transform, then optimal transport to centroids that move."""

from __future__ import annotations

import torch
from torch import Tensor

from .paddle import batched, class_means, unit_rows
from .sinkhorn import sinkhorn

AT_THE_MEAN = 1e-5  # a unit-norm row closer than this to the mean of its set has no direction


def prepared(x: Tensor, power: float) -> Tensor:
    """Features in the coordinates of the method, [.., N, D]; a row at the mean becomes zero.

    Support and query are prepared separately, each centred at its own mean.
    """
    if power != 1:
        x = (x + 1e-6).pow(power)
    x = unit_rows(x)
    x = x - x.mean(-2, keepdim=True)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm > AT_THE_MEAN, x / norm, 0)


def pt_map(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    power: float = 0.5,
    reg: float = 0.1,
    step: float = 0.02,
    epochs: int = 20,
    class_mass: str = "balanced",
    k_eff: int = 5,
    max_iter: int = 1000,
    tol: float = 1e-6,
) -> Tensor:
    """Classify queries by optimal transport to the classes.

    With z the prepared queries and mu_k, at first, the means of the prepared support, every epoch
    transports a mass of 1 from each query and Q/K to each class at the cost ``||z_q - mu_k||^2``,
    by `paddle_ext.reference.sinkhorn`, and moves the centroids with the plan p::

        mu_k += step ( (sum of class k's support + sum_q p_qk z_q) / (shots + sum_q p_qk) - mu_k )

    The plan at the last centroids gives the probabilities.

    Parameters
    ----------
    support, support_labels, query, num_classes
        As in `paddle_ext.reference.solve`; at least 0 unless `power` is 1.
    power : float
        Exponent of the features, after 1e-6 is added; 1 leaves them unchanged.
    reg : float
        Weight of the entropy.
    step : float
        Step fraction of the centroids towards their new position per epoch.
    epochs : int
        Moves of the centroids.
    class_mass : {"balanced", "oracle"}
        With "oracle" each of the K classes has a mass of Q // k_eff instead, and each query of 1,
        as in the public code. Such a plan does not exist; Sinkhorn's iteration then ends at the
        "balanced" plan times K (Q // k_eff) / Q.
    k_eff : int
        The number of classes among the queries, known to an oracle.
    max_iter, tol : int, float
        As in `paddle_ext.reference.sinkhorn`.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> support = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> query = torch.tensor([[3.0, 1.0], [1.0, 4.0]])
    >>> pt_map(support, torch.tensor([0, 1]), query).argmax(-1)
    tensor([0, 1])
    """
    rows, one_hot, z = batched(support, support_labels, query, num_classes)
    rows, z = prepared(rows, power), prepared(z, power)
    Q, K = z.shape[-2], one_hot.shape[-1]
    weight = 1.0 if class_mass == "balanced" else K * (Q // k_eff) / Q
    row_mass, col_mass = z.new_ones(Q), z.new_full((K,), Q / K)
    shots = one_hot.sum(-2).unsqueeze(-1)
    means = mu = class_means(rows, one_hot).expand(len(z), -1, -1)
    for epoch in range(epochs + 1):
        cost = torch.stack([(z - m.unsqueeze(-2)).square().sum(-1) for m in mu.unbind(-2)], dim=-1)
        plan = sinkhorn(cost, row_mass, col_mass, reg=reg, max_iter=max_iter, tol=tol).plan
        if epoch < epochs:
            p = weight * plan
            estimate = (shots * means + p.mT @ z) / (shots + p.sum(-2).unsqueeze(-1))
            mu = mu + step * (estimate - mu)
    probabilities = plan / plan.sum(-1, keepdim=True)
    return probabilities if query.dim() == 3 else probabilities[0]
