"""Likelihoods from labelled rows shared by many batches, worth a longer computation.

Distances to class means ignore which rows are hard. With many labelled rows, a linear correction
of the logits is fitted to the labels,

    1/2 ||W||^2 + C sum_i -ln softmax(logits_i + ln n + x_i W + b)[y_i]

over the labelled rows i, each left out of its class, so that its logits are those of a new row; W
is small where the distances already explain the labels. n are the labelled rows of each class: with
them, how frequent a class is there enters neither W nor b, and a batch may add its own frequencies.

Letters as in `likelihood`; here B = 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from .label_noise import takes_noise, trusted, weighed
from .likelihood import Likelihood, likelihood_of, reweighted
from .logistic import Fit, fit

SHOTS = 16  # labelled rows per class from which a correction pays
WORK = 2**29  # limit on multiplications of a pass over the rows
INVERSE_REGULARISATION = 3.0  # C
TOL = 0.05  # of the norm of the gradient: below, labels hardly change
MOST_ENTRIES = 2**26  # of a matrix of labelled rows and classes


def corrected_likelihood(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    weights: Tensor | None = None,
    label_noise: float | str = 0.0,
) -> Likelihood:
    """The likelihood of labelled rows [S, D] with labels [S]; every class must have a row.

    Parameters
    ----------
    support : Tensor [S, D]
        Float32 or float64.
    labels : Tensor [S] int64
    num_classes : int
    weights : Tensor [S], optional
        Weight of each row in its class, > 0.
    label_noise : float or "auto"
        As in `paddle_ext.adaptive`.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> known = corrected_likelihood(x, torch.tensor([0, 0, 1, 1]), 2)
    >>> known.logits(torch.tensor([[0.2, 1.0]])).argmax(-1)
    tensor([1])
    """
    K, S, total, noisy = num_classes, len(labels), weights, False
    corrects = takes_correction(S, support.shape[1], K)
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    given = None if weights is None else weights.unsqueeze(0)
    if takes_noise(label_noise, S, K):
        found, rate, right, logits = weighed(rows, own, K, label_noise, given=given)
        noisy = bool(rate > 0)
        if noisy:  # the likelihood has these weights already
            total = right[0] if weights is None else right[0] * weights
    elif corrects:
        found, logits = trusted(rows, own, K)
    else:
        found = likelihood_of(rows, own, K)
    if corrects:
        judged = LeftOut.of(found, rows, own, logits)
        found = replace(found, correction=correction_of(judged, total))
    if given is None or noisy:
        return found
    return reweighted(found, found.coordinates(rows), own, given)


def takes_correction(S: int, D: int, K: int) -> bool:
    """Whether a correction is worth the time.

    Examples
    --------
    >>> takes_correction(3000, 384, 150), takes_correction(750, 384, 150)
    (True, False)
    """
    return SHOTS * K <= S and S * K * (D + 1) <= WORK and S * K <= MOST_ENTRIES


class LeftOut(NamedTuple):
    """Labelled rows as if they were new: each left out of its class."""

    x: Tensor  # [S, D] in the coordinates
    own: Tensor  # [S] int64
    counts: Tensor  # [S] 1; 0 for the only row of its class, of which nothing is known
    logits: Tensor  # [S, K]

    @classmethod
    def of(cls, found: Likelihood, rows: Tensor, labels: Tensor, logits: Tensor) -> LeftOut:
        """Of one task: rows [1, S, D], labels [1, S] and logits [1, S, K]."""
        counts = (labels[0].bincount() > 1).to(logits.dtype)[labels[0]]
        return cls(found.coordinates(rows)[0], labels[0], counts, logits[0])


def left_out(support: Tensor, labels: Tensor, num_classes: int) -> tuple[Likelihood, LeftOut]:
    """The likelihood of labelled rows [S, D] of one task, and the rows left out of their classes.

    They are classified in its metric, with the covariance without the row, in closed form.
    """
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    found, logits = trusted(rows, own, num_classes)
    return found, LeftOut.of(found, rows, own, logits)


def correction_of(rows: LeftOut, weights: Tensor | None = None) -> Tensor:
    """W and b, [D + 1, K]; `weights` [S] of the rows count relative to their mean."""
    K, D = rows.logits.shape[-1], rows.x.shape[-1]
    if weights is not None:
        weights = weights * (len(weights) / weights.sum())
    counts = rows.counts if weights is None else rows.counts * weights.to(rows.x.dtype)
    n = rows.own.bincount(weights, minlength=K).to(rows.x.dtype)
    logits = rows.logits + n.log()
    start = Fit(rows.x.new_zeros(1, D + 1, K), logits.unsqueeze(0), rows.own.new_zeros(1))
    found = fit(
        rows.x.unsqueeze(0),
        rows.own.unsqueeze(0),
        counts.unsqueeze(0),
        K,
        inverse_regularisation=INVERSE_REGULARISATION,
        tol=TOL,
        start=start,
    )
    return found.weights[0]
