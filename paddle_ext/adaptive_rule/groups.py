"""The rule for many groups of rows with the same labelled rows: docs/groups.md has the equations.

Letters: Q rows, G groups, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..groups import Groups, thing_logits
from ..limits import CHUNK_NUMBERS
from ..native import load as native
from ..native.devices import on_cpu_without_gpu_code
from ..rows import products
from ..solution import Solution
from ..solvers.groups import Shared, shared_proportions, solution_of_groups
from .large import FEW, SOFTER, trust_in_queries
from .likelihood import Likelihood


def chunks(rows: Tensor, K: int) -> Iterator[slice]:
    """Slices of the rows [Q, D] that are computed at once."""
    size = max(256, CHUNK_NUMBERS[rows.device.type] // (rows.shape[-1] + 4 * K))
    return (slice(start, start + size) for start in range(0, len(rows), size))


def all_logits(query: Tensor, likelihood: Likelihood, added: Tensor | None) -> Tensor:
    """The logits of rows [Q, D], with further ones `added`, [Q, K]."""
    K = likelihood.bias.shape[-1]
    logits = query.new_empty(len(query), K, dtype=likelihood.bias.dtype)
    for part in chunks(query, K):
        logits[part] = likelihood.logits(query[part])
    return logits if added is None else logits.add_(added)


@on_cpu_without_gpu_code
def by_thing(
    query: Tensor, likelihood: Likelihood, added: Tensor | None, things: Groups
) -> tuple[Tensor, Tensor]:
    """Things as rows: means [T, D] of the query [Q, D], and what their logits lack, [T, K]."""
    rows = things.means(query.to(likelihood.bias.dtype))
    of_things = thing_logits(all_logits(query, likelihood, added), things)
    return rows, of_things.to(rows.dtype) - all_logits(rows, likelihood, None)


@on_cpu_without_gpu_code
def classify_groups(
    query: Tensor,
    likelihood: Likelihood,
    groups: Groups,
    added: Tensor | None = None,
    measures: Tensor | None = None,
    *,
    max_iter: int,
    tol: float,
    top: int | None,
) -> Solution:
    """Classify rows [Q, D] in groups that share what they know; `added` [Q, K] are further logits.

    `measures` are those of `shared_proportions`. With `top`, only so many probabilities of a row
    are returned.
    """
    logits = all_logits(query, likelihood, added)
    weight = likelihood.weight_of(groups.sizes.double())
    found = shared_proportions(
        logits, groups, weight, likelihood.rows, measures, max_iter=max_iter, tol=tol
    )
    del logits
    u = absorbed(query, likelihood, groups, weight, found, added)
    return solution_of_groups(groups, found._replace(probabilities=u), None, top)


def absorbed(
    query: Tensor,
    likelihood: Likelihood,
    groups: Groups,
    weight: Tensor,
    found: Shared,
    added: Tensor | None,
) -> Tensor:
    """The probabilities [Q, K] after prototypes have absorbed the rows of all groups, in place."""
    u, K, real = found.probabilities, likelihood.bias.shape[-1], likelihood.bias.dtype
    trust, shots = trust_in_queries(len(query), K), likelihood.shots[0]
    sums, mass = torch.zeros_like(likelihood.prototypes[0]), torch.zeros_like(shots).double()
    for part in chunks(query, K):
        squares = u[part].square()
        sums += squares.mT @ likelihood.centred(query[part].to(real).unsqueeze(0))[0]
        mass += squares.sum(0, dtype=torch.float64)
    sums = likelihood.prototypes[0] * shots.unsqueeze(-1) + trust * sums
    mass = (shots + trust * mass).to(real)
    in_metric, half = likelihood.in_metric(sums.unsqueeze(0))[0], likelihood.sharpness / 2
    square = half * (in_metric * sums).sum(-1)
    constant = likelihood.constant_with(mass - shots)[0]

    a, n = found.concentration, groups.sizes.double()
    # Where few classes are present logits count less, but not for a row without others.
    share = 1 - SOFTER / (1 + a / FEW) * (n - 1) / n
    two_classes, held = (K - 1) * a / (1 + K * a), found.counts.sum(0)
    kept = 1 - two_classes.unsqueeze(-1) * held / (held + shots)
    scaled, least = (kept * weight.unsqueeze(-1)).to(real), found.prior.to(real)
    share, lowest = share.to(real), native.module.IMPOSSIBLE

    def others(part: slice, total: Tensor) -> Tensor:
        """The log proportions of each row, by the others of its group; c N + A are the `total`."""
        of_row = groups.of_row[part]
        left = torch.addcmul(total[of_row], scaled[of_row], u[part], value=-1)
        return torch.maximum(left, least[of_row]).log_().clamp_(min=lowest)

    total, even = (kept * found.counts + found.prior).to(real), least.log().clamp(min=lowest)
    logits = torch.empty_like(u)
    # The other one of two rows knows of this one only; in a large group that hardly matters.
    known = ((n - 2).clamp(min=0) / n).to(real).unsqueeze(-1)
    for part in chunks(query, K):
        x = likelihood.centred(query[part].to(real).unsqueeze(0))
        own, of_row = likelihood.squared(x)[0].unsqueeze(-1), groups.of_row[part]
        # With M the mass and W that of this row, -f/2 (M / (M - W))^2 ||x - w||^2
        z = products(x[0], in_metric * (2 * half * mass).unsqueeze(-1)) - square
        z = torch.addcmul(z, half * own, mass.square(), value=-1)
        z /= torch.addcmul(mass, u[part], u[part], value=-trust).square_()
        z += constant
        if likelihood.correction is not None:
            z += likelihood.corrected(x)[0]
        if added is not None:
            z += added[part]
        logits[part] = z = share[of_row, None] * z
        start = torch.lerp(even[of_row], others(part, total), known[of_row])
        u[part] = (z + start).softmax(-1)
    total = scaled * groups.sums(u) + least
    for part in chunks(query, K):
        u[part] = (likelihood.temper * (logits[part] + others(part, total))).softmax(-1)
    return u
