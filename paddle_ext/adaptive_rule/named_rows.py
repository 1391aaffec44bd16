"""Classify one more row of a batch that was solved with names.

`names` solves a batch; letters and terms are those of that module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rows import class_sums, unit_rows
from ..solution import Solution
from ..task import Task
from . import names
from .likelihood import likelihood_of


@dataclass(frozen=True)
class RowLogits:
    """Computes the logits of single rows, ``z.names_k + x.weights_k + bias_k``.

    z is the unit-norm row, x its difference from the centre, made unit-norm.
    """

    names: Tensor  # [K, D]
    centre: Tensor  # [D]
    weights: Tensor  # [K, D]
    bias: Tensor  # [K]

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, D] -> [N, K]."""
        z = unit_rows(rows.to(self.weights.dtype))
        off = z - self.centre
        x = off * names.inverse(names.lengths(off))
        return z @ self.names.mT + x @ self.weights.mT + self.bias


def row_logits(
    task: Task,
    found: Solution | None,
    *,
    metric: str = "auto",
    logit_scale: float = 100.0,
    **options: Any,
) -> RowLogits:
    """The logits for further rows of a single task with prototypes, which was solved as `found`.

    The options are those of the solution. Without `found` the queries of the task must be its
    labelled rows.
    """
    rows = names.unit_rows_of(task)
    named = names.name_logits_of(task, rows, logit_scale)
    assert named.away is not None
    assert named.products is not None
    size = named.products.square().sum().clamp(min=torch.finfo(named.products.dtype).tiny)
    scaled = named.away[0] * ((named.query * named.products).sum() / size)
    if all(names.tasks_with_every_class(task)):
        return by_rows(task, metric, rows, named, scaled, found)
    return by_anchors(options, rows, named, scaled, found)


def by_rows(
    task: Task,
    metric: str,
    rows: names.UnitRows,
    named: names.NameLogits,
    scaled: Tensor,
    found: Solution | None,
) -> RowLogits:
    likelihood = likelihood_of(task.support, task.support_labels, task.num_classes, metric)
    share, factor = names.fitted_name_share(task, rows, likelihood, named)
    prior = labelled_prior(rows) if found is None else found.dual[0]
    return RowLogits(
        scaled * (share * factor),
        likelihood.centre[0],
        likelihood.weights[0] * (likelihood.sharpness * factor),
        likelihood.bias[0] * factor + prior,
    )


def by_anchors(
    options: dict[str, Any],
    rows: names.UnitRows,
    named: names.NameLogits,
    scaled: Tensor,
    found: Solution | None,
) -> RowLogits:
    Q, K = named.query.shape[-2:]
    weight = min(1.0, names.QUERIES_PER_CLASS * K / Q)
    logits = named.query / names.NAME_WEIGHT
    first = names.adapted(logits, weight, names.FIRST_ITERATIONS, options)
    centre = names.centre_of(rows, named, first.probabilities)
    off = rows.query - centre
    length = names.inverse(names.lengths(off))
    x = off * length
    _, factor = names.anchored(rows, named, centre, x, length)
    assert named.away is not None
    length_of_anchors = names.ANCHOR_ROWS * names.ANCHOR
    sums = (named.away * (length_of_anchors * names.inverse(names.lengths(named.away))))[0]
    mass = names.ANCHOR_ROWS + rows.shots[0]
    if len(rows.index):
        support = rows.support - centre
        support = support * names.inverse(names.lengths(support))
        sums = sums + class_sums(support[0], rows.labels[0], K)[0]
    prior = labelled_prior(rows)
    if found is not None:
        W = found.probabilities[0].square()
        sums, mass, prior = sums + W.mT @ x[0], mass + W.sum(0), found.dual[0]
    w = sums / mass.unsqueeze(-1)
    sharpness = factor * (names.SHARPNESS / 2)
    return RowLogits(
        scaled if named.judges is None else scaled * factor,
        centre[0, 0],
        2 * sharpness * w,
        prior - sharpness * w.square().sum(-1),
    )


def labelled_prior(rows: names.UnitRows) -> Tensor:
    """Log class proportions among the labelled rows, with one row added to each class; [K]."""
    shots = rows.shots[0]
    return torch.log((shots + 1) / (shots + 1).sum())
