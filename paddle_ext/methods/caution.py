"""Caution: where a batch promises little, the nearest class mean keeps more of its labels.

With all classes present `adaptive` gains a point or two over the nearest class mean on average, and
chance may turn that into a loss. For query q with probabilities u, let k be the most likely class
and n the class with the nearest mean. If the probabilities are right, the labels k instead of n
gain

    G = mean_q ( u_qk - u_qn )

in accuracy. If that is small, u_qk and u_qn change places where ``u_qk < (1 + c) u_qn``, with
``c = ODDS max(0, 1 - (G / ENOUGH)^2)^2``. So a row keeps its numbers, and its confidence.

Letters: B tasks, N rows, K classes, D features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..rows import products
from ..solution import Solution
from .calibration import Likelihood, column

# Queries of a batch: with fewer, chance moves the accuracy by more than this could prevent; with
# more, a further product of every query with every class would take too long.
FEWEST, MOST = 150, 2**14
# Labelled rows per class: with one, half of the gain would be lost; from this many on, the gain is
# large enough.
SHOTS = 10
ODDS, ENOUGH = 1.0, 0.04


def is_cautious(queries: int, rows: int, num_classes: int) -> bool:
    """Whether a batch of this many queries, with this many labelled rows, needs caution."""
    return FEWEST <= queries <= MOST and num_classes < rows < SHOTS * num_classes


def nearest(crossing: Tensor, lengths: Tensor, plain: Tensor) -> Tensor:
    """The classes with the nearest means, [B, N, 1].

    Rows are minus the centre and have norms `lengths` [B, N]; `plain` [B or 1, K, D] are the class
    means minus the centre, and `crossing` [B, N, K] their products with the rows made unit-norm.
    """
    halves = plain.square().sum(-1).unsqueeze(-2) / 2
    return torch.addcmul(-halves, crossing, lengths.unsqueeze(-1)).argmax(-1, keepdim=True)


def odds_for(gain: Tensor) -> Tensor:
    """c for the gain that a batch promises, [B]."""
    return ODDS * (1 - (gain / ENOUGH).square()).clamp(min=0).square()


class Rivals(NamedTuple):
    """The most likely class of each row, and the class with the nearest mean; [B, N, 1] each."""

    label: Tensor
    near: Tensor
    most: Tensor  # their probabilities
    other: Tensor

    @classmethod
    def of(cls, u: Tensor, label: Tensor, near: Tensor) -> Rivals:
        return cls(label, near, u.gather(-1, label), u.gather(-1, near))

    def gain(self) -> Tensor:
        """The sum over the rows, [B]."""
        return (self.most - self.other).double().sum((-2, -1))

    def exchange(self, x: Tensor, odds: Tensor) -> Tensor:
        """Exchange their numbers in x [B, N, K], in place, by odds [B]; the new labels."""
        swap = self.most < (1 + column(odds)) * self.other
        most, other = x.gather(-1, self.label), x.gather(-1, self.near)
        x.scatter_(-1, self.label, torch.where(swap, other, most))
        x.scatter_(-1, self.near, torch.where(swap, most, other))
        return torch.where(swap, self.near, self.label)


def cautious(likelihood: Likelihood, found: Solution, x: Tensor, lengths: Tensor) -> Solution:
    """The solution of queries x [B, Q, D] in the coordinates, with norms [B, Q] before them."""
    assert likelihood.plain is not None
    near = nearest(products(x, likelihood.plain), lengths, likelihood.plain)
    u = found.probabilities.clone()
    rivals = Rivals.of(u, found.labels.unsqueeze(-1), near)
    odds = odds_for(rivals.gain() / u.shape[-2])
    labels = rivals.exchange(u, odds)
    return found._replace(labels=labels.squeeze(-1), probabilities=u)
