"""Likelihoods with a linear correction, for labelled rows that many batches share.

Distances to class means ignore which rows are hard to classify. With many labelled rows, W and b
correct the logits; they minimise

    1/2 ||W||^2 + C sum_i -ln softmax(logits_i + ln n + x_i W + b)[y_i]

over the labelled rows i, each left out of its class, so that its logits are those of a new row. W
is small where the distances already explain the labels. n is the number of labelled rows of each
class: thanks to ln n, W and b do not learn how frequent classes are among the labelled rows, and a
batch can add its own frequencies. Letters as in `likelihood`; here B = 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from .label_noise import models_noise, trusted_likelihood, weigh_labels
from .likelihood import Likelihood, likelihood_of, reweighted
from .logistic import Fit, fit

SHOTS = 16  # from this many labelled rows per class on, a correction pays
WORK = 2**29  # limit on the multiplications of one pass over the rows
INVERSE_REGULARISATION = 3.0  # C
TOL = 0.05  # norm of the gradient at which the fit stops: labels hardly change any more
MOST_ENTRIES = 2**26  # limit on labelled rows times classes


def corrected_likelihood(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    weights: Tensor | None = None,
    label_noise: float | str = 0.0,
) -> Likelihood:
    """The likelihood learned from labelled rows, with a correction where it pays.

    Every class must have a row.

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
    corrects = uses_correction(S, support.shape[1], K)
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    given = None if weights is None else weights.unsqueeze(0)
    if models_noise(label_noise, S, K):
        found, rate, right, logits = weigh_labels(rows, own, K, label_noise, given=given)
        noisy = bool(rate > 0)
        if noisy:  # the likelihood has these weights already
            total = right[0] if weights is None else right[0] * weights
    elif corrects:
        found, logits = trusted_likelihood(rows, own, K)
    else:
        found = likelihood_of(rows, own, K)
    if corrects:
        judged = LeftOut.of(found, rows, own, logits)
        found = replace(found, correction=correction_of(judged, total))
    if given is None or noisy:
        return found
    return reweighted(found, found.coordinates(rows), own, given)


def uses_correction(S: int, D: int, K: int) -> bool:
    """Whether a correction is worth the time.

    Examples
    --------
    >>> uses_correction(3000, 384, 150), uses_correction(750, 384, 150)
    (True, False)
    """
    return SHOTS * K <= S and S * K * (D + 1) <= WORK and S * K <= MOST_ENTRIES


class LeftOut(NamedTuple):
    """Labelled rows classified as if they were new: each is left out of its class."""

    x: Tensor  # [S, D] in the coordinates
    own: Tensor  # [S] int64 labels
    counts: Tensor  # [S] 1, or 0 for the only row of a class, which cannot be left out
    logits: Tensor  # [S, K]

    @classmethod
    def of(cls, found: Likelihood, rows: Tensor, labels: Tensor, logits: Tensor) -> LeftOut:
        """For one task with rows [1, S, D], labels [1, S] and left-out logits [1, S, K]."""
        counts = (labels[0].bincount() > 1).to(logits.dtype)[labels[0]]
        return cls(found.coordinates(rows)[0], labels[0], counts, logits[0])


def left_out(support: Tensor, labels: Tensor, num_classes: int) -> tuple[Likelihood, LeftOut]:
    """The likelihood learned from the labelled rows [S, D] of one task, and those rows left out.

    Each is classified without itself in its class mean and in the covariance, in closed form.
    """
    rows, own = support.unsqueeze(0), labels.unsqueeze(0)
    found, logits = trusted_likelihood(rows, own, num_classes)
    return found, LeftOut.of(found, rows, own, logits)


def correction_of(rows: LeftOut, weights: Tensor | None = None) -> Tensor:
    """W and b as one matrix [D + 1, K]; `weights` [S] of the rows are divided by their mean."""
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
