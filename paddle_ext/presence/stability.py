"""Which labels would be others if the batch were another."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.solve import adaptive
from ..groups import GroupNames, Groups, groups_and_things, groups_of


def label_changes(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    groups: GroupNames | None = None,
    same: GroupNames | None = None,
    prior: Tensor | None = None,
    halvings: int = 5,
    seed: int = 0,
    **options: Any,
) -> Tensor:
    """How often the label of each query changes if its batch is split in two at random.

    `paddle_ext.adaptive` labels a query as part of its batch, so the same query may get another
    label in another batch. Here the batch is halved at random, and each half classified on its own.
    The mean over the queries is the share of labels that change; the queries that change most
    depend on their batch, and should be checked.

    Parameters
    ----------
    support, support_labels, query : Tensor [S, D], [S], [Q, D]
        As in `paddle_ext.adaptive`.
    groups, same, prior
        As in `paddle_ext.adaptive`. The queries of a thing stay in one half.
    halvings : int
        How often the batch is halved; each takes about as long as classifying it once.
    seed : int
        Of the random numbers; the same seed gives the same result.
    **options
        Further options of `paddle_ext.adaptive`, such as `label_noise`.

    Returns
    -------
    Tensor [Q]
        In [0, 1], float64.

    Examples
    --------
    >>> import torch
    >>> from paddle_ext import presence
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> labels, centres = torch.arange(4).repeat(5), torch.randn(4, 8)
    >>> support = centres[labels] + torch.randn(20, 8)
    >>> query = centres[torch.randint(2, (60,))] + torch.randn(60, 8)
    >>> changed = presence.label_changes(support, labels, query)
    >>> print(f"{changed.mean():.0%} of the labels change, {(changed == 0).sum()} never do")
    6% of the labels change, 51 never do
    """
    check_halvings(halvings, seed)
    support, support_labels, query = check.tensors(support, support_labels, query)
    if query.dim() != 2:
        raise ValueError(f"query must have shape [Q, D], got {list(query.shape)}")
    whole = adaptive(
        support, support_labels, query, groups=groups, same=same, prior=prior, **options
    )
    grouped, things = groups_and_things(groups, same, len(query), query.device)

    def labels_of(rows: Tensor) -> Tensor:
        found = adaptive(
            support,
            support_labels,
            query[rows],
            groups=None if grouped is None else grouped.of_row[rows],
            same=None if things is None else things.of_row[rows],
            prior=prior_of(prior, grouped, rows),
            **options,
        )
        return found.labels

    return changes(whole.labels, labels_of, things, halvings, seed)


def check_halvings(halvings: object, seed: object) -> None:
    check.integer("halvings", halvings)
    check.integer("seed", seed, least=0)


def changes(
    labels: Tensor,
    labels_of: Callable[[Tensor], Tensor],
    things: Groups | None,
    halvings: int,
    seed: int,
) -> Tensor:
    """How often each of the `labels` [Q] differs from that in a random half, [Q] float64.

    `labels_of` classifies a part of the rows, given by their numbers, as a batch.
    """
    thing = torch.arange(len(labels)) if things is None else things.of_row.cpu()
    count = int(thing.max()) + 1 if len(thing) else 0
    random = torch.Generator().manual_seed(seed)
    changed = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    for _ in range(halvings):
        in_first = (torch.randperm(count, generator=random) < count // 2)[thing]
        for half in (in_first, ~in_first):
            rows = half.nonzero().view(-1).to(labels.device)
            if len(rows):
                changed[rows] += labels_of(rows) != labels[rows]
    return changed / halvings


def part_of(groups: Groups | None, rows: Tensor) -> Groups | None:
    """The groups of some of the rows; those without a row are left out."""
    return None if groups is None else groups_of(groups.of_row[rows], len(rows), rows.device)


def prior_of(prior: Any, groups: Groups | None, rows: Tensor) -> Any:
    """The prior of some of the rows: if each group has one, those of the groups that are left."""
    if groups is None or getattr(prior, "ndim", 1) == 1:
        return prior
    return prior[sorted({*groups.of_row[rows].tolist()})]
