"""How alike rows of a class are if they share their group, (14) in docs/groups.md.

Letters: Q rows, G groups of n rows, K classes, D features; m_k are the prototypes before they
absorb rows. Sums over pairs of rows x, x' of a group are found in one of two ways:

    sum (x - m).(x' - m) u u' = | sum u (x - m) |^2                      of each class
                              = sum u u' ( |x - m|^2 + |x' - m|^2 - |x - x'|^2 ) / 2

The first takes K products of D features with the metric for a group, the second n, and once. Rows
are copied once, so that those of a group are next to each other.
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
    """Groups of about the same size w, padded to it."""

    places: Tensor  # [g w] of their rows in the order of the groups; beyond the last, of the last
    filled: Tensor  # [g, w, 1] 1, or 0 beyond the last
    x: Tensor  # [g, w, D] centred
    residuals: Tensor  # [g, w, K] |x - m|^2
    differences: Tensor | None  # [g, w, w] |x - x'|^2, if pairs are compared

    def members(self, u: Tensor) -> Tensor:
        """The probabilities [Q, K] of the rows, [g, w, K], and 0 beyond the last."""
        return u.index_select(0, self.places).view_as(self.residuals) * self.filled


class LikenessOfRows:
    """What (14) needs of the rows, for any probabilities, which are in the order of the groups."""

    def __init__(
        self, likelihood: Likelihood, query: Tensor, logits: Tensor, groups: Groups
    ) -> None:
        """Rows [Q, D], and their logits [Q, K] by the likelihood alone."""
        self.likelihood, self.groups = likelihood, groups
        self.buckets = list(self.make_buckets(query, squared_distances(likelihood, logits)))

    def make_buckets(self, query: Tensor, residuals: Tensor) -> Iterator[Bucket]:
        D, K, groups = query.shape[-1], residuals.shape[-1], self.groups
        # From here on products with all other rows take longer than with all classes.
        many = max(K * D // (K + D), min(K, FEW_ROWS))
        sizes, starts, device = groups.sizes.cpu(), groups.starts[:-1], query.device
        padded = padded_sizes(sizes)
        for width in sorted(set(padded.tolist())):
            every = (padded == width).nonzero().squeeze(-1).to(device)
            pairs = width <= many
            row = width * (K + D + (width if pairs else 0)) + (0 if pairs else 2 * K * D)
            for part in parts(len(every), row, PART):
                own = every[part]
                place = torch.arange(width, device=device)
                n = groups.sizes[own].unsqueeze(-1)
                places = (starts[own].unsqueeze(-1) + place.minimum(n - 1)).flatten()
                rows = groups.order[places]
                filled = (place < n).to(residuals.dtype).unsqueeze(-1)
                of_rows = query.index_select(0, rows).to(residuals.dtype)
                x = self.likelihood.centred(of_rows.unsqueeze(0)).view(-1, width, D)
                own_residuals = residuals.index_select(0, rows).view(-1, width, K)
                differences = self.squared_differences(x) if pairs else None
                yield Bucket(places, filled, x, own_residuals, differences)

    def squared_differences(self, x: Tensor) -> Tensor:
        """|x - x'|^2 in the metric, of rows [g, w, D] with each other, [g, w, w]."""
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
        prototypes, double = self.likelihood.prototypes[0], torch.float64
        usual, itself, itself_count, within, within_count = u.new_zeros(5, 1, dtype=double)
        by_class = torch.zeros_like(prototypes, dtype=double)
        held = u.new_zeros(len(prototypes), dtype=double)
        for bucket in self.buckets:
            own = bucket.members(u)
            exact = own.double()
            weighed, squares, held_by_group = exact * bucket.residuals, exact.square(), exact.sum(1)
            held += held_by_group.sum(0)
            usual += weighed.sum()
            itself += (exact * weighed).sum()
            itself_count += squares.sum()
            within_count += held_by_group.square().sum()
            if bucket.differences is None:
                by_group = own.mT @ bucket.x
                by_class += by_group.sum(0)
                within += self.squared_sums(by_group, held_by_group)
            else:
                by_class += own.flatten(0, 1).mT @ bucket.x.flatten(0, 1)
                apart = ((own @ own.mT) * bucket.differences).sum(-1, dtype=double).sum()
                within += (held_by_group * weighed.sum(1)).sum() - apart / 2
        # So far, with pairs of a row and itself.
        within, within_count = within - itself, within_count - itself_count
        every = self.squared_sums(by_class.to(u.dtype), held).view(1)
        every_count = held.square().sum().view(1)
        return torch.cat([within, within_count, every, every_count, itself, itself_count, usual])

    def squared_sums(self, sums: Tensor, held: Tensor) -> Tensor:
        """| sum u x - m sum u |^2 in the metric, over all classes: [.., K, D] and [.., K]."""
        away = sums - held.to(sums.dtype).unsqueeze(-1) * self.likelihood.prototypes[0]
        away = away.reshape(1, -1, away.shape[-1])
        return self.likelihood.squared(away).sum(dtype=torch.float64)


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
