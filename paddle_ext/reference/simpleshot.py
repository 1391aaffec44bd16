"""SimpleShot in plain torch: the nearest class mean, after CL2N."""

from __future__ import annotations

import torch
from torch import Tensor

from .paddle import batched, class_means, unit_rows


def scaled(
    support: Tensor, query: Tensor, base_mean: Tensor | None, scaling: str
) -> tuple[Tensor, Tensor]:
    """Support [B or 1, S, D] and query [B, Q, D], scaled by "cl2n", "l2n" or "none"."""
    if scaling == "cl2n":
        mean = support.mean(-2, keepdim=True) if base_mean is None else base_mean.double()
        support, query = support - mean, query - mean
    if scaling != "none":
        support, query = unit_rows(support), unit_rows(query)
    return support, query


def distances(x: Tensor, w: Tensor) -> Tensor:
    """Squared distances of the rows [.., N, D] to the rows [.., K, D], [.., N, K]."""
    return torch.stack([(x - w_k.unsqueeze(-2)).square().sum(-1) for w_k in w.unbind(-2)], dim=-1)


def simpleshot(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    base_mean: Tensor | None = None,
    scaling: str = "cl2n",
    temperature: float = 15.0,
) -> Tensor:
    """Classify queries by the nearest class mean.

    With z the scaled features and w_k the mean of class k's support, the probabilities are
    ``softmax_k( -temperature/2 ||z_q - w_k||^2 )``.

    Parameters
    ----------
    support, support_labels, query, num_classes
        As in `paddle_ext.reference.solve`.
    base_mean : Tensor [D], optional
        Subtracted by "cl2n"; default: the mean of the task's support.
    scaling : {"cl2n", "l2n"}
        "cl2n" centres the features and makes rows unit-norm; "l2n" makes them unit-norm.
    temperature : float
        Sharpness of the probabilities.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> support, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> simpleshot(support, torch.tensor([0, 1]), query).argmax(-1)
    tensor([0])
    """
    rows, one_hot, z = batched(support, support_labels, query, num_classes)
    rows, z = scaled(rows, z, base_mean, scaling)
    means = class_means(rows, one_hot)
    probabilities = torch.softmax(-temperature / 2 * distances(z, means), dim=-1)
    return probabilities if query.dim() == 3 else probabilities[0]
