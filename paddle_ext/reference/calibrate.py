"""Calibrate the sharpness of squared distances by cross-entropy, in plain torch: the specification.

For rows i with distances d_ik to the classes and own classes y_i, each task minimises over ln f

    sum_i CE_i( softmax_k( -f/2 d_ik ) ) + (ln f - ln centre)^2 / (2 spread^2)

by Newton steps inside a bracket; a step outside the bracket becomes a bisection.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST, MOST = 0.1, 1e4  # limits of f
MAX_STEPS = 40  # of Newton's method
ARRIVED, LONGEST = 1e-3, 1.5  # it stops at a step shorter than the first, in ln f; limit on steps


def calibrate(
    distances: Tensor,
    labels: Tensor,
    count: Tensor,
    *,
    centre: float = 16.0,
    spread: float = math.log(2.0),
) -> tuple[Tensor, Tensor, Tensor]:
    """The sharpness [B], the minimum [B], and what classes attract from rows of others [B, K].

    See `paddle_ext.adaptive_rule.learn.calibrate`.

    Examples
    --------
    >>> import torch
    >>> distances = torch.tensor([[[0.1, 2.0], [1.9, 0.2], [0.5, 0.4]]])
    >>> sharpness, _, _ = calibrate(distances, torch.tensor([[0, 1, 1]]), torch.tensor([0]))
    >>> round(float(sharpness), 3)  # no row counts
    16.0
    """
    d = distances.detach().double()
    B, R, _ = d.shape
    counts = (torch.arange(R, device=d.device) < count.unsqueeze(-1)).double()  # [B, R]
    own = d.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    middle, precision = math.log(centre), spread**-2
    low, high = d.new_full((B,), math.log(LEAST)), d.new_full((B,), math.log(MOST))
    at = d.new_full((B,), min(max(middle, math.log(LEAST)), math.log(MOST)))
    running = torch.ones(B, dtype=torch.bool, device=d.device)
    for _ in range(MAX_STEPS):
        f = at.exp()
        p = (-0.5 * f.view(-1, 1, 1) * d).softmax(-1)
        mean = (p * d).sum(-1)
        variance = (p * (d - mean.unsqueeze(-1)).square()).sum(-1)
        first = 0.5 * f * ((own - mean) * counts).sum(-1)
        slope = first + (at - middle) * precision
        curvature = first + 0.25 * f.square() * (variance * counts).sum(-1) + precision
        low = torch.where(running & (slope < 0), at, low)
        high = torch.where(running & (slope >= 0), at, high)
        step = at - (slope / curvature).clamp(-LONGEST, LONGEST)
        inside = (curvature > 0) & (step >= low) & (step <= high)
        step = torch.where(inside, step, (low + high) / 2)
        moved = (step - at).abs() > ARRIVED
        at = torch.where(running, step, at)
        running = running & moved
        if not running.any():
            break
    logits = -0.5 * at.exp().view(-1, 1, 1) * d
    own_logits = logits.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    entropy = ((logits.logsumexp(-1) - own_logits) * counts).sum(-1)
    objective = entropy + 0.5 * (at - middle).square() * precision
    drawn = logits.softmax(-1).scatter(-1, labels.long().unsqueeze(-1), 0.0)
    drawn = (drawn * counts.unsqueeze(-1)).sum(1)
    dtype = distances.dtype
    return at.exp().to(dtype), objective.to(dtype), drawn.to(dtype)
