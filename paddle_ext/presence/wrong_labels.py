"""Find labelled rows with a wrong label."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.label_noise import AUTO, weigh_labels
from ..rows import computing_dtype


class LabelDoubt(NamedTuple):
    """How likely the labels of labelled rows are to be wrong."""

    doubt: Tensor  # [S]: the probability that the label is wrong; 0 for the only row of its class
    suggestion: Tensor  # [S] int64: the most probable class

    def suspects(self, threshold: float = 0.9) -> Tensor:
        """Indices of the rows with a doubt above `threshold`, most doubtful first, [n] int64."""
        threshold = check.real("threshold", threshold)
        order = self.doubt.argsort(descending=True, stable=True)
        return order[self.doubt[order] > threshold]


def label_doubt(support: Tensor, support_labels: Tensor) -> LabelDoubt:
    """Find wrong labels among labelled rows.

    Each row is classified from all others, as the method `adaptive` with `label_noise="auto"` would
    classify one new row: every class has the same prior probability, and the weight of another row
    is the probability that its label is right.

    Parameters
    ----------
    support, support_labels : Tensor [S, D], [S]
        Every class from 0 to the largest label must have a row.

    Returns
    -------
    LabelDoubt
        A class with a single row has no evidence about itself: its doubt is 0.

    Examples
    --------
    >>> import torch
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> truth = torch.arange(3).repeat(20)
    >>> support = 4 * torch.eye(3)[truth] + torch.randn(60, 3)
    >>> labels = truth.clone()
    >>> labels[7] = 2  # is of class 1
    >>> found = label_doubt(support, labels)
    >>> found.suspects()[0], found.suggestion[7]
    (tensor(7), tensor(1))
    """
    support, support_labels = check.tensors(support, support_labels)
    check.dense(support, support_labels, support)
    K = check.dense_values(support, support_labels, support, None)
    rows = support.detach().to(computing_dtype(support))
    return doubt_of_labels(rows, support_labels.long(), K)


def doubt_of_labels(rows: Tensor, labels: Tensor, num_classes: int) -> LabelDoubt:
    """`label_doubt` for checked rows."""
    if len(labels) == num_classes or num_classes == 1:
        return LabelDoubt(rows.new_zeros(len(labels)), labels)
    support, given = rows.unsqueeze(0), labels.unsqueeze(0)
    found = weigh_labels(support, given, num_classes, AUTO)
    alone = labels.bincount()[labels] < 2
    u = found.logits[0].softmax(-1)
    own = u.gather(1, labels.unsqueeze(1)).squeeze(1)
    doubt = (1 - own).clamp(min=0).masked_fill(alone, 0)
    return LabelDoubt(doubt, torch.where(alone, labels, u.argmax(-1)))
