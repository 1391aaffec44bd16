"""Labelled rows, their coordinates and calibration rows, in plain torch.

The equations are in docs/adaptive.md.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .paddle import unit_rows

SAME, NO_SCATTER = 1e-6, 1e-10  # rounding, of lengths and of squared distances
PRIOR_ROWS = 10.0
# In the order of `paddle_ext.ops.labelled.Labelled`.
Fields: TypeAlias = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]


def inverse_lengths(x: Tensor) -> Tensor:
    """1 / norm of rows [.., D], 0 for those within rounding of zero."""
    length = torch.linalg.vector_norm(x, dim=-1)
    return torch.where(length > SAME, 1 / length.clamp(min=SAME), 0)


def coordinates(rows: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [B, N, D] unit-norm, minus the centre [B or 1, D], unit-norm again; and the norms.

    Examples
    --------
    >>> import torch
    >>> coordinates(torch.tensor([[[2.0, 0.0]]]), torch.tensor([[0.5, 0.0]]))
    (tensor([[[1., 0.]]]), tensor([[0.5000]]))
    """
    x = unit_rows(rows.detach().double()) - centre.detach().double().unsqueeze(1)
    inverse = inverse_lengths(x)
    lengths = torch.where(inverse > 0, 1 / inverse, 0)
    return (x * inverse.unsqueeze(-1)).to(rows.dtype), lengths.to(rows.dtype)


def evenly_spread(able: Tensor, rows: int) -> tuple[Tensor, int]:
    """At most `rows` of the eligible rows [S], padded with row 0; and their number."""
    numbers = able.nonzero().flatten()
    count = min(len(numbers), rows)
    places = (2 * torch.arange(count, device=able.device) + 1) * len(numbers) // max(1, 2 * count)
    chosen = torch.zeros(rows, dtype=torch.int64, device=able.device)
    chosen[:count] = numbers[places]
    return chosen, count


def one_task(support: Tensor, labels: Tensor, K: int, rows: int) -> Fields:
    D = support.shape[-1]
    one_hot = (labels.unsqueeze(-1) == torch.arange(K, device=labels.device)).double()
    shots = one_hot.sum(0)
    averaging = one_hot.mT / shots.clamp(min=1).unsqueeze(-1)  # [K, S]
    unit = unit_rows(support)
    centre = (averaging @ unit).mean(0) * (K > 1)
    second = inverse_lengths(unit - centre)
    x = (unit - centre) * second.unsqueeze(-1)
    means = averaging @ x
    length = torch.linalg.vector_norm(support, dim=-1)
    first = torch.where(length > 0, 1 / length, 0)

    chosen, count = evenly_spread((one_hot @ shots) > 1, rows)
    counts = (torch.arange(rows, device=labels.device) < count).double()
    own = labels[chosen] * counts.long()
    judges = x[chosen] * counts.unsqueeze(-1)
    away = (judges - means[own]).square() * counts.unsqueeze(-1)
    degrees = float((counts * (1 - 1 / shots[own].clamp(min=1))).sum())
    mean = away.sum() / (D * degrees) if degrees else away.sum()
    variance = (away.sum(0) + PRIOR_ROWS * mean) / (degrees + PRIOR_ROWS)
    scale = 1 / (variance + mean + NO_SCATTER / D)
    scale = scale / scale.mean()
    total = torch.tensor(count, device=labels.device)
    return first, second, centre, means, shots, own, total, judges, away @ scale, scale


def labelled(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Fields:
    """See `paddle_ext.ops.labelled`; computed in float64.

    Examples
    --------
    >>> import torch
    >>> support = torch.tensor([[[1.0, 0.0], [4.0, 0.0], [0.0, 2.0]]])
    >>> labelled(support, torch.tensor([[0, 0, 1]]), 2, 8)[2]
    tensor([[0.5000, 0.5000]])
    """
    exact, numbers = support.detach().double(), labels.long()
    tasks = [one_task(exact[b], numbers[b], num_classes, rows) for b in range(len(exact))]
    stacked = [torch.stack(parts) for parts in zip(*tasks, strict=True)]
    first, second, centre, means, shots, own, count, x, off, scale = (
        part.to(support.dtype) if part.is_floating_point() else part for part in stacked
    )
    return first, second, centre, means, shots, own, count, x, off, scale
