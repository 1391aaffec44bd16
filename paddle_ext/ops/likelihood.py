"""Likelihoods from labelled rows, in the metric of the feature scale."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from . import native
from .calibrate import CENTRE, SPREAD
from .labelled import check_labelled, run
from .operators import allocator, computable, integers, register, target


class Likelihoods(NamedTuple):
    """With x a row in the coordinates, log-likelihoods are ``sharpness x.weights_k + bias_k``."""

    centre: Tensor  # [B, D]
    means: Tensor  # [B, K, D] of the rows of each class, in the coordinates
    weights: Tensor  # [B, K, D] the means times the feature scale
    squares: Tensor  # [B, K] mean . weights
    bias: Tensor  # [B, K]
    shots: Tensor  # [B, K]
    sharpness: Tensor  # [B]
    usual: Tensor  # [B, R] squared distances to the own class, as for new rows; NaN: none
    sound: (
        Tensor  # [B] bool: every class has a row, and each is plainly finite; False is inconclusive
    )
    scale: Tensor  # [B, D] weight of a feature in squared distances, 1 on average


def likelihood(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Likelihoods:
    """From labelled rows to likelihoods; docs/adaptive.md, steps 1 to 3 and 5, in one call.

    Parameters
    ----------
    support : Tensor [B, S, D]
        Float32 or float64, on the CPU; float32 on a CUDA device.
    labels : Tensor [B, S] int64
        Every class should have a row, and one of them two.
    num_classes : int
    rows : int
        Limit on calibration rows, of classes with two or more, evenly spread; at least 1.

    Examples
    --------
    >>> import torch
    >>> support = torch.tensor([[[1.0, 0.0], [4.0, 1.0], [0.0, 2.0]]])
    >>> found = likelihood(support, torch.tensor([[0, 0, 1]]), 2, 8)
    >>> found.shots, bool(0.1 < found.sharpness < 1e4)
    (tensor([[2., 1.]]), True)
    """
    return Likelihoods(*likelihood_op(support, labels, num_classes, rows))


# --- operator -----------------------------------------------------------------------------------


def check_call(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> None:
    check_labelled(support, labels, num_classes, rows)
    check.integer("rows", rows)


def allocate(support: Tensor, K: int, R: int) -> Likelihoods:
    B, _, D = support.shape
    new, dtype = allocator(support), support.dtype
    return Likelihoods(
        centre=new((B, D), (D, 1), dtype),
        means=new((B, K, D), (K * D, D, 1), dtype),
        weights=new((B, K, D), (K * D, D, 1), dtype),
        squares=new((B, K), (K, 1), dtype),
        bias=new((B, K), (K, 1), dtype),
        shots=new((B, K), (K, 1), dtype),
        sharpness=new((B,), (1,), dtype),
        usual=new((B, R), (R, 1), dtype),
        sound=new((B,), (1,), torch.bool),
        scale=new((B, D), (D, 1), dtype),
    )


def likelihood_kernel(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Likelihoods:
    check_call(support, labels, num_classes, rows)
    B, S, D = support.shape
    found = allocate(support, num_classes, rows)
    if B == 0:
        return found
    support, labels = computable("support", support), integers(labels)
    call = native.module.likelihood_call(
        target=target(support),
        dtype=check.DTYPES[support.dtype],
        B=B,
        S=S,
        K=num_classes,
        D=D,
        R=rows,
        prior_sharpness=CENTRE,
        spread=SPREAD,
    )
    run(call, support, labels, found)
    return found


def likelihood_fake(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Likelihoods:
    check_call(support, labels, num_classes, rows)
    return allocate(support, num_classes, rows)


register(
    "likelihood(Tensor support, Tensor labels, int num_classes, int rows) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    likelihood_kernel,
    likelihood_fake,
)

likelihood_op = torch.ops.paddle_ext.likelihood.default
