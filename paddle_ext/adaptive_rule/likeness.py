"""How alike rows of a class are if they share their group, (14) in docs/groups.md.

Letters: Q rows, G groups of n rows, K classes, D features; m_k are the prototypes before they
absorb rows. Sums over pairs of rows x, x' of a group are found in one of two ways:

    sum (x - m).(x' - m) u u' = | sum u (x - m) |^2                      of each class
                              = sum u u' ( |x - m|^2 + |x' - m|^2 - |x - x'|^2 ) / 2

The first takes K products of D features with the metric for a group, the second n, and once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..groups import Groups
from ..native.call import call_native
from ..native.load import module as native
from ..rows import parts
from .likelihood import Likelihood

FEW_ROWS = 64  # of a group with as many classes: there pairs are exact, and cancel nothing
PART = 2**22  # numbers that are summed at once, so that they stay in the cache of a CPU
STEPS_PER_OCTAVE = 4  # of the sizes to which groups are padded


class Bucket(NamedTuple):
    """Groups of about the same size, padded to it."""

    rows: Tensor  # [g, w] their rows; a place beyond the last has a row of its group
    filled: Tensor  # [g, w, 1] 1, or 0 beyond the last
    squares: Tensor | None  # [g, w, w] |x - x'|^2, if pairs are compared


class LikenessOfRows:
    """What (14) needs of the rows, for any probabilities."""

    def __init__(self, likelihood: Likelihood, x: Tensor, logits: Tensor, groups: Groups) -> None:
        """Centred rows x [Q, D], and their logits [Q, K] by the likelihood alone."""
        self.likelihood, self.x, self.groups = likelihood, x, groups
        self.residuals = squared_distances(likelihood, logits)
        self.buckets = list(self.make_buckets())

    def make_buckets(self) -> Iterator[Bucket]:
        D, K, groups = self.x.shape[-1], self.residuals.shape[-1], self.groups
        # From here on products with all other rows take longer than with all classes.
        many = max(K * D // (K + D), min(K, FEW_ROWS))
        sizes, starts, device = groups.sizes.cpu(), groups.starts[:-1], self.x.device
        padded = padded_sizes(sizes)
        for width in sorted(set(padded.tolist())):
            every = (padded == width).nonzero().squeeze(-1).to(device)
            pairs = width <= many
            row = width * (K + D + (width if pairs else 0)) + (0 if pairs else 2 * K * D)
            for part in parts(len(every), row, PART):
                own = every[part]
                place = torch.arange(width, device=device)
                n = groups.sizes[own].unsqueeze(-1)
                rows = groups.order[starts[own].unsqueeze(-1) + place.minimum(n - 1)]
                filled = (place < n).to(self.x.dtype).unsqueeze(-1)
                yield Bucket(rows, filled, self.squared_differences(rows) if pairs else None)

    def squared_differences(self, rows: Tensor) -> Tensor:
        """|x - x'|^2 in the metric, of rows [g, w] with each other, [g, w, w]."""
        x = self.x[rows]
        products = x @ self.likelihood.in_metric(x).mT
        own = products.diagonal(dim1=-2, dim2=-1)
        return own.unsqueeze(-1) + own.unsqueeze(-2) - 2 * products

    def of(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """r, [1], and h, the part that a row of each group is worth, [G]; u [Q, K]."""
        G, double = len(self.groups.names), torch.float64
        inputs = {
            "sums": (self.sums(u), double, (7,)),
            "sizes": (self.groups.sizes, torch.int64, (G,)),
        }
        sizes, outputs = (
            {"B": G, "Q": len(u)},
            {"likeness": (double, (1,)), "worth": (double, (G,))},
        )
        r, worth = call_native(native.likeness_call, sizes, u, inputs, outputs, typed=False)
        return r, worth

    def sums(self, u: Tensor) -> Tensor:
        """Those of `LikenessSums`, in common/groups.h."""
        (Q, K), D = u.shape, self.x.shape[-1]
        usual, itself, itself_count = (u.new_zeros(1, dtype=torch.float64) for _ in range(3))
        by_class, held = (u.new_zeros(K, n, dtype=torch.float64) for n in (D, 1))
        for part in parts(Q, K + D, PART):
            own, residuals = u[part], self.residuals[part]
            weighed = own * residuals
            usual += weighed.sum(dtype=torch.float64)
            itself += (own * weighed).sum(dtype=torch.float64)
            itself_count += own.double().square().sum()
            by_class += own.mT @ self.x[part]
            held += own.sum(0, dtype=torch.float64).unsqueeze(-1)

        every = self.squared_sums(by_class.to(u.dtype), held).view(1)
        within, within_count = (u.new_zeros(1, dtype=torch.float64) for _ in range(2))
        for bucket in self.buckets:
            own = u[bucket.rows] * bucket.filled
            exact, residuals = own.double(), self.residuals[bucket.rows].double()
            held_by_group = exact.sum(1)
            within_count += held_by_group.square().sum() - exact.square().sum()
            if bucket.squares is None:
                by_group = own.mT @ self.x[bucket.rows]
                within += self.squared_sums(by_group, held_by_group.unsqueeze(-1))
                within -= (exact.square() * residuals).sum()
                continue
            apart = ((own @ own.mT) * bucket.squares).sum(-1, dtype=torch.float64).sum()
            weighed = exact * residuals
            within += (held_by_group * weighed.sum(1)).sum() - (exact * weighed).sum() - apart / 2
        every_count = held.square().sum().view(1)
        return torch.cat([within, within_count, every, every_count, itself, itself_count, usual])

    def squared_sums(self, sums: Tensor, held: Tensor) -> Tensor:
        """| sum u x - m sum u |^2 in the metric, over all classes: [.., K, D] and [.., K, 1]."""
        away = sums - held.to(sums.dtype) * self.likelihood.prototypes[0]
        inside = self.likelihood.in_metric(away.reshape(1, -1, away.shape[-1]))
        return (away.reshape(inside.shape) * inside).sum(-1).sum(dtype=torch.float64)


def squared_distances(likelihood: Likelihood, logits: Tensor) -> Tensor:
    """|x - m_k|^2 in the metric, [Q, K], of rows with these logits [Q, K]."""
    steepness, constant = (x[0] for x in likelihood.terms)
    beyond = constant + steepness * likelihood.squares[0] - logits
    return (beyond / steepness).clamp_(min=0)


def padded_sizes(sizes: Tensor) -> Tensor:
    """Sizes of at least those of groups, a few in each octave."""
    step = (2 ** (sizes.double().log2().floor().long())) // STEPS_PER_OCTAVE
    step = step.clamp(min=1)
    return (sizes + step - 1) // step * step
