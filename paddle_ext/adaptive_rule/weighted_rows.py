"""Labelled rows with weights, each left out of its class and of the full metric.

Letters as in `likelihood`. v is the offset of a row from the weighted mean of its class, r its
weight; A = (sum_i r_i v_i v_i^T / L + 1)^-1 is the full metric, L the mean of r ||v||^2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..native.coordinates import as_split
from ..native.load import module as native
from ..rows import class_sums, products
from .likelihood import Likelihood, column, masses, take

LEAST = 1e-3  # smallest weight of a row: less is lost in single precision
KEPT = 1e-3  # smallest share of the covariance that remains without a row
TINY = 1e-30


class WeightedRows(NamedTuple):
    """Labelled rows, two metrics, and what leaving a row out changes in the full one."""

    x: Tensor  # [B, S, D] in the coordinates
    labels: Tensor  # [B, S]
    weights: Tensor  # [B, S] of the rows in the full metric, between `LEAST` and 1
    plain: Likelihood  # with the metric of the feature scale alone
    full: Likelihood | None  # with the full metric alone, if there is one
    along: Tensor  # [B, S, D] A v
    share: Tensor  # [B, S] factor on ((x - mean) . along)^2, which is added to the distance

    @classmethod
    def of(cls, likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor) -> WeightedRows:
        plain = replace(likelihood, factor=None, solved=None, shares=None)
        if likelihood.factor is None:
            return cls(x, labels, weights, plain, None, x, weights)
        full, cut = full_metric(likelihood, x, labels, weights)
        v = x - take(full.prototypes, labels)
        along = full.in_metric(v)
        kept = (1 - cut * (along * v).sum(-1)).clamp(min=KEPT)
        return cls(x, labels, weights, plain, full, along, cut / kept)

    def distances(self, metric: Likelihood, weights: Tensor) -> Tensor:
        """Squared distances to the weighted class means, each row left out of its own, [B, S, K].

        `metric` is `plain` or `full`, and `weights` [B, S] are those in the means. The distance to
        its own class is scaled to that of a new row on average.
        """
        x, labels, K = self.x, self.labels, metric.shots.shape[-1]
        mass, squared_mass = masses(labels, K, weights)
        means = class_sums(x, labels, K, weights)[0] / mass.unsqueeze(-1)
        d = metric.squared(x).unsqueeze(-1) - 2 * products(x, metric.in_metric(means))
        d = (d + metric.squared(means).unsqueeze(-2)).clamp(min=0)
        # The distance to its own class is computed directly: above, cancellation may spoil it.
        own = metric.squared(x - take(means, labels)).clamp(min=0)
        d = d.scatter(-1, labels.unsqueeze(-1), own.unsqueeze(-1))
        if metric is self.full:
            along = (self.along * x).sum(-1, keepdim=True) - products(self.along, means)
            d = d + self.share.unsqueeze(-1) * along.square()
        n, n2 = mass.gather(1, labels), squared_mass.gather(1, labels)
        new = n.square() + n2
        seen = (n - weights).square() + (n2 - weights.square()).clamp(min=0)
        farther = torch.where(seen > 0, new / seen.clamp(min=TINY), 1)
        ones = torch.ones_like(d)
        return d * ones.scatter_(-1, labels.unsqueeze(-1), farther.unsqueeze(-1))


def full_metric(
    likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor
) -> tuple[Likelihood, Tensor]:
    """The likelihood with the full metric of weighted rows alone, and its prototypes.

    Also returns [B, S]: A^-1 without a row is smaller by this times v v^T. The form of the metric
    is that of csrc/common/adaptive.h, for offsets times the roots of the weights.
    """
    (_, S, D), K = x.shape, likelihood.shots.shape[-1]
    mass, squared_mass = masses(labels, K, weights)
    means = class_sums(x, labels, K, weights)[0] / mass.unsqueeze(-1)
    v = (x - take(means, labels)) * likelihood.scale.sqrt().unsqueeze(1)
    v = v * weights.sqrt().unsqueeze(-1)
    rows = (mass - squared_mass / mass).sum(-1).clamp(min=LEAST, max=native.COVARIANCE_ROWS)
    length = v.square().sum((-2, -1)) / rows + rows * native.NO_SCATTER
    gram = (products(v, v) if S < D else v.mT @ v) / column(length)
    pad = -gram.shape[-1] % native.FACTOR_BLOCK
    gram = torch.nn.functional.pad(gram, (0, pad, 0, pad))
    factor = torch.linalg.cholesky(gram + torch.eye(gram.shape[-1]).to(gram))
    for start in range(0, gram.shape[-1], native.FACTOR_BLOCK):
        here = slice(start, start + native.FACTOR_BLOCK)
        factor[:, here, here] = torch.linalg.inv(factor[:, here, here]).tril()
    one = torch.ones_like(length)
    shares = torch.stack([one, one, -1 / length] if S < D else [one, 0 * one, one], -1)
    scaled = likelihood.scaled
    if S < D:
        scaled = torch.cat([as_split(v), scaled[:, -K:]], 1)
    found = replace(
        likelihood, prototypes=means, scaled=scaled, factor=as_split(factor), shares=shares
    )
    own = mass.gather(1, labels)
    return found, weights * own / ((own - weights).clamp(min=LEAST) * length.unsqueeze(-1))
