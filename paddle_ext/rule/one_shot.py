"""What one labelled row per class tells: which features vary, and which classes are hubs.

Letters: B tasks, or 1 for labelled rows shared by all tasks; K classes, D features. The equations
are in docs/adaptive.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..ops.adaptive import CENTRE
from ..rows import evenly_spread, products

PRIOR_ROWS = 10  # few rows tell little, as in csrc/common/labelled.h
NO_SCATTER = 1e-10  # likewise: squared distances below are rounding


def one_shot_scale(means: Tensor) -> Tensor:
    """Feature weights, lower for features in which most of the rows [B, K, D] are large; [B, D].

    Rows times the root of the weights are as long as before, on average.
    """
    squares = means.square()
    scatter = squares.sum(1)
    # How many rows the variance of a feature rests on: 1 to K.
    rows = scatter.square() / squares.square().sum(1).clamp(min=1e-30)
    variance = scatter / means.shape[1]
    mean = variance.mean(-1, keepdim=True)
    variance = (rows * variance + PRIOR_ROWS * mean) / (rows + PRIOR_ROWS)
    scale = 1 / (variance + mean + NO_SCATTER / means.shape[2])
    scale = scale / scale.mean(-1, keepdim=True)
    before, after = (x.sum(-1, keepdim=True) + NO_SCATTER for x in (scatter, scale * scatter))
    return scale * (before / after)


def one_shot_hubs(means: Tensor, bias: Tensor, count: int) -> Tensor:
    """Bias, lower for classes that attract rows of others; [B, K].

    Parameters
    ----------
    means : Tensor [B, K, D]
        The only row of each class, in the feature scale.
    bias : Tensor [B, K]
        That of the squared distances.
    count : int
        The rows that judge, evenly spread, each without its own class. If they are few, they count
        less.
    """
    B, K, _ = means.shape
    if K == 1:
        return torch.zeros_like(bias)
    own = evenly_spread(count, K, means.device) if count < K else None  # None: all
    judges = means if own is None else means.index_select(1, own)
    logits = products(judges, means).mul_(CENTRE).add_(bias.unsqueeze(1))
    if own is None:
        logits.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
    else:
        logits.scatter_(-1, own.view(1, -1, 1).expand(B, -1, -1), -math.inf)
    drawn = logits.softmax(-1).sum(1)
    found = -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (count / K + 1))
    return found * (count / (count + PRIOR_ROWS))
