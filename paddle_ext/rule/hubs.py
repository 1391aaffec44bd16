"""Hubs: classes that attract labelled rows of others.

Letters: B tasks, or 1 for labelled rows shared by all tasks; K classes, D features. The equations
are in docs/adaptive.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..ops.adaptive import CENTRE
from ..rows import evenly_spread, products


def hubs(drawn: Tensor, count: Tensor | int) -> Tensor:
    """Bias, lower for classes that attract many (`drawn` [B, K]) of `count` rows; [B, K].

    `count` is one number, or one for each task [B, 1].
    """
    rows = count / drawn.shape[-1]
    return -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (rows + 1))


def one_shot_hubs(means: Tensor, bias: Tensor, count: int) -> Tensor:
    """The same for classes of one row each, [B, K, D], of which `count` judge; [B, K].

    `bias` [B, K] is that of the squared distances. No row judges its own class.
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
    return hubs(logits.softmax(-1).sum(1), count)
