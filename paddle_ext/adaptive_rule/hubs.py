"""Hubs, classes that attract rows of others, for one labelled row per class.

Letters: B tasks, or 1 for labelled rows shared by all tasks; K classes, D features. The equations
are in docs/adaptive.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..rows import evenly_spread, products
from .kernels import CENTRE

PRIOR_ROWS = 10  # as in the feature scale: with fewer rows than this, the bias counts little


def one_shot_hubs(means: Tensor, scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The square of the only row of each class, and the bias of the class, [B, K] each.

    The bias is lower for classes that attract rows of others.

    Parameters
    ----------
    means : Tensor [B, K, D]
        The rows.
    scale : Tensor [B, D]
        Weights of the features in squares.
    count : int
        How many rows, evenly spread, are compared with all other classes to find the hubs. If they
        are few, the bias is reduced.
    """
    B, K, _ = means.shape
    weighted = means * scale.unsqueeze(1)
    if count < K:
        own = evenly_spread(count, K, means.device)
        logits = products(weighted.index_select(1, own), means)
        squares = (weighted * means).sum(-1)
    else:
        own = torch.arange(K, device=means.device)
        logits = products(weighted, means)
        squares = logits.diagonal(dim1=-2, dim2=-1).clone()
    if K == 1:
        return squares, torch.zeros_like(squares)
    logits = logits.mul_(CENTRE).sub_(CENTRE / 2 * squares.unsqueeze(1))
    logits.scatter_(-1, own.view(1, -1, 1).expand(B, -1, -1), -math.inf)
    drawn = logits.softmax(-1).sum(1)
    found = -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (count / K + 1))
    return squares, found * (count / (count + PRIOR_ROWS))
