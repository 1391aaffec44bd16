"""The rule for many groups of rows with the same labelled rows: docs/groups.md has the equations.

Letters: Q rows, G groups, K classes, D features.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..groups import Groups, thing_logits
from ..native.devices import on_cpu_without_gpu_code
from ..native.load import module as native
from ..rows import unit_rows
from ..solution import Solution
from ..solvers.groups import (
    first_proportions,
    rows_alone,
    solution_of_groups,
    steps_of_groups,
)
from ..solvers.sets import mix_few_classes
from .likelihood import Likelihood
from .likeness import LikenessOfRows
from .rounds import absorbed_logits, batch_of, first_logits
from .steps import claimed


def all_logits(query: Tensor, likelihood: Likelihood, added: Tensor | None) -> Tensor:
    """The logits of rows [Q, D], with further ones `added`, [Q, K]."""
    return first_logits(batch_of(query, likelihood, added))[0]


def ties_of(rows: Tensor, likelihood: Likelihood, things: Groups) -> Tensor:
    """How rows [Q, D] vary in their things, [1, 3]: sum |x - mean|^2, sum n - 1, mean 1 - 1/n."""
    x = likelihood.centred(rows.to(likelihood.bias.dtype)[None])[0] * likelihood.scale.sqrt()
    squares, n = (x - things.means(x)[things.of_row]).square().sum(), things.sizes.double()
    return torch.stack([squares.double(), (n - 1).sum(), (1 - 1 / n).mean()]).unsqueeze(0)


@on_cpu_without_gpu_code
def by_thing(
    query: Tensor, likelihood: Likelihood, added: Tensor | None, things: Groups
) -> tuple[Tensor, Tensor]:
    """Things as rows: means [T, D] of the query [Q, D], and what their logits lack, [T, K]."""
    rows = things.means(unit_rows(query.to(likelihood.bias.dtype)))
    own = ties_of(query, likelihood, things)[0]
    tied = torch.zeros_like(own) if likelihood.ties is None else likelihood.ties[0]
    within = (own + tied)[0] / (own + tied)[1].clamp(min=1)
    # Rows of different things vary like labelled rows around the mean of their class.
    variance = likelihood.variance[0].double() + within * tied[2]
    r = (1 - within / variance.clamp(min=1e-300)).clamp(0, 1)
    labelled = max(likelihood.rows - likelihood.bias.shape[-1], 0)
    of_things = thing_logits(all_logits(query, likelihood, added), things, r, labelled)
    return rows, of_things.to(rows.dtype) - all_logits(rows, likelihood, None)


@on_cpu_without_gpu_code
def classify_groups(
    query: Tensor,
    likelihood: Likelihood,
    groups: Groups,
    added: Tensor | None = None,
    measures: Tensor | None = None,
    *,
    top: int | None,
) -> Solution:
    """Classify rows [Q, D] in groups that share what they know; `added` [Q, K] are further logits.

    `measures` are those of `first_proportions`. With `top`, only so many probabilities of a row
    are returned.
    """
    batch = batch_of(query, likelihood, added)
    logits = first_logits(batch)[0]
    by_distance = logits
    if added is not None or likelihood.correction is not None:
        by_distance = all_logits(query, replace(likelihood, correction=None), None)
    alike = LikenessOfRows(likelihood, query, by_distance, groups)

    weight = likelihood.rows / (likelihood.rows + groups.sizes.double())
    first = first_proportions(logits, groups, weight, measures, content=query)

    # From here on rows are group by group: those of a group are next to each other in memory.
    back, places = groups.order.argsort(), torch.arange(len(query), device=query.device)
    ordered = groups._replace(of_row=groups.of_row[groups.order], order=places)
    logits = logits.index_select(0, groups.order)
    u = rows_alone(logits, ordered, weight, first.prior).probabilities
    for turn in range(native.GROUP_TURNS):
        r, worth = alike.of(u)
        if turn > 0:
            of_rows = worth[groups.of_row].to(u.dtype).unsqueeze(0)
            absorbed = absorbed_logits(batch, u.index_select(0, back).unsqueeze(0), of_rows)[0]
            logits = absorbed.index_select(0, groups.order)
        found = steps_of_groups(logits, ordered, weight, first.prior, u, likeness=r)
        mix_few_classes(logits, ordered, weight, found, r)
    # Counts are those of the rounds, probabilities those that they claim.
    claims = claimed(u.unsqueeze(0), likelihood.shots)[0]
    found = found.with_counts(ordered, weight)._replace(
        probabilities=claims.index_select(0, back),
        bound=first.bound,
        prior_used=first.prior_used,
    )
    return solution_of_groups(groups, found, None, top)
