"""Tables: standardised columns instead of unit-norm rows, where these serve better.

`adaptive` makes rows unit-norm, which suits embeddings. In a table of different quantities the
column with the largest numbers then hides the others, and the length of a row, all that a single
column has, is lost. Standardised columns get a constant one in addition, as long as a row is on
average: rows that differ in length then differ in direction too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..rows import class_means, evenly_spread
from ..rule.correction import MOST_ENTRIES, left_out

MOST_ROWS = 1024  # labelled, and as many unlabelled, that statistics of columns are computed from,
FIRST_ROWS = 16  # unless so many say that rows are embeddings
TABLE = 64  # rows with fewer effective columns may be a table,
FEW, SHARE = 4, 8  # and are one, unless labels contradict, with fewer than 4 + D/8
SURE = 2.0  # standard errors from which the labels contradict
TINY = torch.finfo(torch.float64).tiny
UNIT = 1e-3  # norms this close to 1 are those of an embedding
CONSTANT = 1e-10  # share of its numbers up to which the deviation of a column is rounding
LARGEST = 1e15  # standardised numbers are clamped here, so that their products stay finite


@dataclass(frozen=True)
class Columns:
    """How the columns of a table are standardised; without these numbers rows stay as they are."""

    centre: Tensor | None = None  # [D] float64
    scale: Tensor | None = None  # [D] float64: one over the deviation; 0 for a constant column

    def of(self, rows: Tensor) -> Tensor:
        """Rows [.., D] of the table as rows [.., D + 1] for `adaptive`, in the same dtype."""
        if self.centre is None or self.scale is None:
            return rows
        centre, scale = self.centre.to(rows.device), self.scale.to(rows.device)
        z = (rows.double() - centre) * scale
        z = torch.nn.functional.pad(z, (0, 1), value=math.sqrt(int((self.scale > 0).sum())))
        return z.clamp(-LARGEST, LARGEST).to(rows.dtype)

    def back(self, rows: Tensor) -> Tensor:
        """Rows [.., D + 1] as rows of the table."""
        if self.centre is None or self.scale is None:
            return rows
        deviation = torch.where(self.scale > 0, 1 / self.scale, 0)
        return (rows[..., :-1].double() * deviation + self.centre).to(rows.dtype)


def columns_for(
    support: Tensor, labels: Tensor, num_classes: int, query: Tensor | None = None
) -> Columns:
    """How to standardise a table; rows that are better made unit-norm stay as they are.

    Rows that are unit-norm already, or whose variance many columns share, are embeddings. In other
    cases the labelled rows decide, each left out of its class. If their difference is within chance
    or each class has only one, few effective columns mean a table.

    Parameters
    ----------
    support : Tensor [S, D]
        Labelled rows.
    labels : Tensor [S] int64
    num_classes : int
    query : Tensor [Q, D], optional
        Unlabelled rows, if there are any yet.
    """
    given = [x for x in (query, support) if x is not None]
    if sharing(variance(given[0][:: max(1, len(given[0]) // FIRST_ROWS)])) >= TABLE:
        return Columns()
    norms = torch.linalg.vector_norm(support, dim=-1)
    if bool(((norms - 1).abs() < UNIT).all()):
        return Columns()
    sample = torch.cat([spread(x) for x in given]).double()
    largest = sample.abs().amax(0).clamp(min=TINY)  # divides columns, so that no square overflows
    deviation = variance(sample / largest).sqrt()
    deviation = torch.where(deviation > CONSTANT, deviation, 0) * largest
    effective = sharing((deviation / deviation.amax()).square())
    if not effective < TABLE:
        return Columns()
    centre = class_means(support.double() / largest, labels, num_classes).mean(0) * largest
    scale = torch.where(deviation > 0, 1 / deviation, 0).clamp(max=1 / TINY)
    found = Columns(centre, scale)
    gain = 0.0
    if num_classes < len(labels) and len(labels) * num_classes <= MOST_ENTRIES:
        gain = sure_gain(support, found.of(support), labels, num_classes)
    if gain == 0:
        gain = FEW + support.shape[1] / SHARE - effective
    return found if gain > 0 else Columns()


def spread(rows: Tensor) -> Tensor:
    """At most `MOST_ROWS` of the rows."""
    if len(rows) <= MOST_ROWS:
        return rows
    return rows.index_select(0, evenly_spread(MOST_ROWS, len(rows), rows.device))


def variance(rows: Tensor) -> Tensor:
    """Of the columns, [D]; torch's own takes four times as long."""
    return (rows - rows.mean(0)).square().mean(0)


def sharing(variances: Tensor) -> float:
    """How many columns share the variance, at most D; NaN if there is none, or too much."""
    return float(variances.sum().square() / variances.square().sum())


def sure_gain(before: Tensor, after: Tensor, labels: Tensor, num_classes: int) -> float:
    """How much likelier other rows make the labels of rows [S, D]; 0 if that may be chance."""
    losses = [labels_cost(rows, labels, num_classes) for rows in (before, after)]
    gains = losses[0] - losses[1]
    gain = float(gains.mean())
    error = float(gains.std(correction=0)) / math.sqrt(max(1, len(gains)))
    return gain if abs(gain) > SURE * error else 0.0


def labels_cost(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """-ln p of the labels, each row left out of its class; of classes with two rows or more."""
    _, found = left_out(rows, labels, num_classes)
    logits = found.logits + labels.bincount(minlength=num_classes).log()
    cost = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    return cost[found.counts > 0]
