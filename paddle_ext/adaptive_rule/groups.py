"""The rule for many groups of rows with the same labelled rows: docs/groups.md has the equations.

Letters: Q rows, G groups, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..groups import Groups
from ..limits import CHUNK_NUMBERS
from ..native import load as native
from ..native.devices import on_cpu_without_gpu_code
from ..rows import products
from ..solution import Solution
from ..solvers.groups import Shared, proportions_under, shared_proportions, solution_of_groups
from .large import FEW, SOFTER, trust_in_queries
from .likelihood import Likelihood


def chunks(rows: Tensor, K: int) -> Iterator[slice]:
    """Slices of the rows [Q, D] that are computed at once."""
    size = max(256, CHUNK_NUMBERS[rows.device.type] // (rows.shape[-1] + 4 * K))
    return (slice(start, start + size) for start in range(0, len(rows), size))


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
    K, real = likelihood.bias.shape[-1], likelihood.bias.dtype
    logits = query.new_empty(len(query), K, dtype=real)
    for part in chunks(query, K):
        logits[part] = likelihood.logits(query[part])
    if added is not None:
        logits += added
    weight = likelihood.weight_of(groups.sizes.double())
    found = shared_proportions(
        logits, groups, weight, likelihood.rows, measures, max_iter=max_iter, tol=tol
    )
    del logits
    steps: Any = {"max_iter": max_iter, "tol": tol}
    u = absorbed(query, likelihood, groups, weight, found, added, **steps)
    return solution_of_groups(groups, found._replace(probabilities=u), None, top)


def absorbed(
    query: Tensor,
    likelihood: Likelihood,
    groups: Groups,
    weight: Tensor,
    found: Shared,
    added: Tensor | None,
    **steps: Any,
) -> Tensor:
    """The probabilities [Q, K] after prototypes have absorbed the rows of all groups.

    `steps` are options of `proportions_under`. The probabilities of `found` are overwritten.
    """
    u, K, real = found.probabilities, likelihood.bias.shape[-1], likelihood.bias.dtype
    trust, shots = trust_in_queries(len(query), K), likelihood.shots[0]
    sums = likelihood.prototypes[0] * shots.unsqueeze(-1)
    mass = shots.double()
    for part in chunks(query, K):
        taken = trust * u[part].square()
        sums = sums + taken.mT @ likelihood.centred(query[part].to(real).unsqueeze(0))[0]
        mass = mass + taken.sum(0, dtype=torch.float64)
    in_metric = likelihood.in_metric(sums.unsqueeze(0))[0]
    square = (in_metric * sums).sum(-1)
    constant = likelihood.constant_with((mass - shots).to(real))[0]

    a, n = found.concentration, groups.sizes.double()
    # Where few classes are present logits count less, but not for a row without others.
    share = 1 - SOFTER / (1 + a / FEW) * (n - 1) / n
    two_classes, held = (K - 1) * a / (1 + K * a), found.counts.sum(0)
    kept = 1 - two_classes.unsqueeze(-1) * held / (held + shots)
    mean = found.prior / found.prior.sum(-1, keepdim=True)
    constants = (kept * mean).log().clamp(min=native.module.IMPOSSIBLE).to(real)
    share, mass = share.to(real), mass.to(real)
    for part in chunks(query, K):
        x = likelihood.centred(query[part].to(real).unsqueeze(0))
        own, of_row = likelihood.squared(x)[0].unsqueeze(-1), groups.of_row[part]
        cross = products(x[0], in_metric)
        taken = trust * u[part].square()
        left = mass - taken
        z = (cross - taken * own) / left
        z -= (square - 2 * taken * cross + taken.square() * own) / (2 * left.square())
        z = z * likelihood.sharpness + constant
        if likelihood.correction is not None:
            z += likelihood.corrected(x)[0]
        if added is not None:
            z += added[part]
        u[part] = (share[of_row, None] * z + constants[of_row]).softmax(-1)
    # c N + A is c (N + A / c)
    u = proportions_under(u, groups, mean, found.prior / kept, weight, **steps)[0]
    if likelihood.temper == 1:
        return u
    return (likelihood.temper * u.log()).softmax(-1)
