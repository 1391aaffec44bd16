"""Standardise the columns of tables; rows of embeddings stay as they are.

`adaptive` makes rows unit-norm, which suits embeddings. In a table of different quantities the
column with the largest numbers would then hide the others, and the length of a row would be lost,
which is all that a single column has. So columns are standardised, and a constant column is added,
as large as rows are long on average: rows that differ in length then differ in direction too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..adaptive_rule.correction import left_out
from ..adaptive_rule.label_noise import MOST_LEFT_OUT
from ..rows import class_means, evenly_spread

MOST_ROWS = 1024  # labelled rows, and as many unlabelled ones, used for statistics of columns
FIRST_ROWS = 16  # rows of a first look, which often suffices to recognise embeddings
TABLE = 64  # rows with fewer effective columns than this may be a table,
FEW, SHARE = 4, 8  # and with fewer than 4 + D/8 they are one, unless the labels contradict
SURE = 2.0  # standard errors from which on the labels decide
TINY = torch.finfo(torch.float64).tiny
UNIT = 1e-3  # rows whose norms are this close to 1 are embeddings
CONSTANT = 1e-10  # a deviation below this share of a column's numbers is rounding
LARGEST = 1e15  # standardised numbers are clamped here, so that their products stay finite


@dataclass(frozen=True)
class Columns:
    """How the columns of a table are standardised; with None, rows stay as they are."""

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
        """The inverse of `of`: rows [.., D + 1] back to rows of the table, [.., D]."""
        if self.centre is None or self.scale is None:
            return rows
        deviation = torch.where(self.scale > 0, 1 / self.scale, 0)
        return (rows[..., :-1].double() * deviation + self.centre).to(rows.dtype)


def columns_for(
    support: Tensor, labels: Tensor, num_classes: int, query: Tensor | None = None
) -> Columns:
    """Decide whether rows are a table, and how to standardise it; embeddings stay as they are.

    From labelled rows [S, D] with their labels [S], and from unlabelled ones [Q, D], if there are
    any yet. Rows that are unit-norm already, or whose variance many columns share, are embeddings.
    Otherwise the better way to classify the labelled rows decides, each left out of its class. If
    that may be chance, or no class has two rows, rows with few effective columns are a table.
    """
    given = [x for x in (query, support) if x is not None]
    if sharing(variance(given[0][:: max(1, len(given[0]) // FIRST_ROWS)])) >= TABLE:
        return Columns()
    norms = torch.linalg.vector_norm(support, dim=-1)
    if bool(((norms - 1).abs() < UNIT).all()):
        return Columns()
    sample = torch.cat([sampled_rows(x) for x in given]).double()
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
    if num_classes < len(labels) and len(labels) * num_classes <= MOST_LEFT_OUT:
        gain = sure_gain(support, found.of(support), labels, num_classes)
    if gain == 0:
        gain = FEW + support.shape[1] / SHARE - effective
    return found if gain > 0 else Columns()


def sampled_rows(rows: Tensor) -> Tensor:
    """The rows, or `MOST_ROWS` of them, evenly spread."""
    if len(rows) <= MOST_ROWS:
        return rows
    return rows.index_select(0, evenly_spread(MOST_ROWS, len(rows), rows.device))


def variance(rows: Tensor) -> Tensor:
    """The variance of each column, [D]; torch's function takes four times as long."""
    return (rows - rows.mean(0)).square().mean(0)


def sharing(variances: Tensor) -> float:
    """The effective number of columns that share the variance, at most D.

    NaN if there is no variance, or if it overflows.
    """
    return float(variances.sum().square() / variances.square().sum())


def sure_gain(before: Tensor, after: Tensor, labels: Tensor, num_classes: int) -> float:
    """By how much the rows `after` make the labels likelier than `before`; 0 if that may be chance.

    A mean difference of log-probabilities.
    """
    losses = [labels_cost(rows, labels, num_classes) for rows in (before, after)]
    gains = losses[0] - losses[1]
    gain = float(gains.mean())
    error = float(gains.std(correction=0)) / math.sqrt(max(1, len(gains)))
    return gain if abs(gain) > SURE * error else 0.0


def labels_cost(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """-ln p of the label of each row, left out of its class; only of classes with two rows."""
    _, found = left_out(rows, labels, num_classes)
    logits = found.logits + labels.bincount(minlength=num_classes).log()
    cost = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    return cost[found.counts > 0]
