"""The native parts of the rule `adaptive`, from checked tensors to tensors.

Letters: B tasks, S labelled rows, Q queries, K classes, D features, R calibration rows. All tensors
of a call are float32, or float64 on the CPU, and on one device; the equations are in
docs/adaptive.md.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..native import load as native
from ..native.call import DTYPES, call_native, packed, packed_int64
from ..native.coordinates import split_kind
from ..native.devices import on_cpu_without_gpu_code
from ..solution import Solution
from ..solvers.adapt import adapt_table, solution_of

FACTOR_BLOCK = 64  # as in csrc/common/likelihood.h
# The prior of the sharpness is log-normal: its median, and the standard deviation of its logarithm.
CENTRE, SPREAD = 16.0, math.log(2.0)


class Labelled(NamedTuple):
    """Labelled rows in the coordinates of `adaptive`: unit norm, minus the centre, unit norm again.

    A support row has the coordinates ``(row first - centre) second``.
    """

    first: Tensor  # [B, S] 1 / norm of the row
    second: Tensor  # [B, S] 1 / norm after centring; 0 if the row equals the centre, up to rounding
    centre: Tensor  # [B, D] the mean of the class means; 0 with a single class
    means: Tensor  # [B, K, D] class means, in the coordinates
    shots: Tensor  # [B, K] labelled rows of each class
    own: Tensor  # [B, R] int64: the class of each calibration row
    judging: Tensor  # [B] int64: number of calibration rows; the rest is padding
    scale: Tensor  # [B, D] weight of a feature in squared distances, 1 on average


class Calibration(NamedTuple):
    """The sharpness f that makes the labels of calibration rows most likely; see `calibrate`."""

    sharpness: Tensor  # [B] f
    objective: Tensor  # [B] the minimum of the objective
    drawn: Tensor  # [B, K] probability that a class takes from rows of other classes, summed


class Likelihoods(NamedTuple):
    """The likelihoods that are learned from labelled rows, as `posterior` needs them.

    "Scaled" rows are multiplied by the root of the feature scale. With a full metric, the product
    of two is ``plain x.y + projected (Z x).(Z y)``; Z is given by its Cholesky factor, see
    csrc/common/likelihood.h. M = min(S, D), rounded up to a multiple of 64. On CUDA `scaled`,
    `factor` and `solved` are split into halves; `coordinates.unsplit` restores the shapes below.
    """

    centre: Tensor  # [B, D]
    means: Tensor  # [B, K, D] class means, in the coordinates
    # [B, N, D] the scaled means, N = K; with a full metric and S < D, the S scaled offsets of rows
    # from their class means come first, N = S + K
    scaled: Tensor
    squares: Tensor  # [B, K] products of the means with themselves, in the metric
    bias: Tensor  # [B, K] of log-likelihoods
    shots: Tensor  # [B, K] labelled rows of each class
    sharpness: Tensor  # [B] factor on products with the means in log-likelihoods
    variance: Tensor  # [B] mean squared distance of a row to the mean of its class
    # [B] bool: True if every class has a row and all numbers are finite; False is inconclusive
    finite: Tensor
    scale: Tensor  # [B, D] weight of a feature in squared distances, 1 on average
    factor: Tensor | None = None  # [B, M, M] its diagonal blocks of 64 are inverted
    solved: Tensor | None = None  # [B, K, M] Z of the scaled means
    shares: Tensor | None = None  # [B, 3] weight of the full metric, in [0, 1]; plain; projected
    # [B, S, K] squared distances of every row to the class means, each row left out of its own
    left_out: Tensor | None = None


@on_cpu_without_gpu_code
def labelled(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Labelled:
    """Coordinates, class means and feature scale of labelled rows [B, S, D] with labels [B, S].

    Up to `rows` calibration rows are chosen, evenly spread over the rows of classes that have at
    least two; 0 chooses none.
    """
    (B, S, D), K, R = support.shape, num_classes, rows
    support, labels = packed(support), packed_int64(labels)
    real = support.dtype
    make = partial(native.module.labelled_call, dtype=DTYPES[real], B=B, S=S, K=K, D=D, R=R)
    inputs = {"support": (support, real, (B, S, D)), "labels": (labels, torch.int64, (B, S))}
    outputs = {
        "first": (real, (B, S)),
        "second": (real, (B, S)),
        "centre": (real, (B, D)),
        "means": (real, (B, K, D)),
        "shots": (real, (B, K)),
        "own": (torch.int64, (B, R)),
        "judging": (torch.int64, (B,)),
        "scale": (real, (B, D)),
    }
    return Labelled(*call_native(make, support, inputs, outputs))


@on_cpu_without_gpu_code
def calibrate(
    distances: Tensor,
    labels: Tensor,
    count: Tensor,
    *,
    centre: float = CENTRE,
    spread: float = SPREAD,
) -> Calibration:
    """Find the sharpness f of each task, the factor on half the squared distances in logits.

    f in [0.1, 1e4] minimises ``sum_i CE_i(softmax_k(-f/2 distances_ik)) +
    (ln f - ln centre)^2 / (2 spread^2)``, the sum over the first ``count`` rows of a task.

    Parameters
    ----------
    distances : Tensor [B, R, K]
        From rows to classes, each less than 1e30.
    labels : Tensor [B, R] int64
        The class of the row.
    count : Tensor [B] int64
        Number of rows used in each task, from the first; if 0, f is `centre`.
    centre, spread : float
        Expected f, in [0.1, 1e4], and the standard deviation of its logarithm, in [1e-6, 1e6].

    Examples
    --------
    >>> import torch
    >>> distances = torch.tensor([[[0.1, 2.0], [1.9, 0.2], [0.5, 0.4]]])
    >>> found = calibrate(distances, torch.tensor([[0, 1, 1]]), torch.tensor([3]))
    >>> bool(5 < found.sharpness < 20)
    True
    """
    B, R, K = distances.shape
    distances, labels, count = packed(distances), packed_int64(labels), packed_int64(count)
    real = distances.dtype
    make = partial(
        native.module.calibrate_call,
        dtype=DTYPES[real],
        B=B,
        R=R,
        K=K,
        centre=centre,
        spread=spread,
    )
    inputs = {
        "distances": (distances, real, (B, R, K)),
        "labels": (labels, torch.int64, (B, R)),
        "count": (count, torch.int64, (B,)),
    }
    outputs = {"sharpness": (real, (B,)), "objective": (real, (B,)), "drawn": (real, (B, K))}
    return Calibration(*call_native(make, distances, inputs, outputs))


@on_cpu_without_gpu_code
def likelihood(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    rows: int,
    full: bool = False,
    every: bool = False,
) -> Likelihoods:
    """From labelled rows to likelihoods, in one call.

    Parameters
    ----------
    support, labels, num_classes, rows
        As in `labelled`, with at least one calibration row.
    full : bool
        Whether to mix the feature scale with the full metric, in the share that suits the
        calibration rows best.
    every : bool
        Whether to return `left_out`, the distances of every row; exact up to a constant per row.
    """
    (B, S, D), K, R = support.shape, num_classes, rows
    support, labels = packed(support), packed_int64(labels)
    real = support.dtype
    make = partial(
        native.module.likelihood_call,
        dtype=DTYPES[real],
        B=B,
        S=S,
        K=K,
        D=D,
        R=R,
        full=full,
        every=every,
        prior_sharpness=CENTRE,
        spread=SPREAD,
    )
    M = -(-min(S, D) // FACTOR_BLOCK) * FACTOR_BLOCK
    outputs = {
        "centre": (real, (B, D)),
        "means": (real, (B, K, D)),
        "rows": split_kind(support, B, K + S if full and S < D else K, D),
        "squares": (real, (B, K)),
        "bias": (real, (B, K)),
        "shots": (real, (B, K)),
        "sharpness": (real, (B,)),
        "variance": (real, (B,)),
        "finite": (torch.bool, (B,)),
        "scale": (real, (B, D)),
        "factor": split_kind(support, B, M, M) if full else None,
        "solved": split_kind(support, B, K, M) if full else None,
        "shares": (real, (B, 3)) if full else None,
        "left_out": (real, (B, S, K)) if every else None,
    }
    early = {"support": (support, real, (B, S, D)), "labels": (labels, torch.int64, (B, S))}
    names = [name for name, wanted in outputs.items() if wanted is not None]
    results = call_native(make, support, {}, outputs, early=early)
    fields: dict[str, Any] = dict(zip(names, results, strict=True))
    return Likelihoods(scaled=fields.pop("rows"), **fields)


@on_cpu_without_gpu_code
def posterior(
    query: Tensor,
    centre: Tensor,
    scaled: Tensor,
    scale: Tensor,
    squares: Tensor,
    bias: Tensor,
    shots: Tensor,
    variance: Tensor,
    sharpness: Tensor,
    factor: Tensor | None = None,
    solved: Tensor | None = None,
    shares: Tensor | None = None,
    added: Tensor | None = None,
    measures: Tensor | None = None,
    *,
    weight: float,
    temper: float,
    mean_shots: float,
    max_iter: int,
    tol: float,
) -> tuple[Solution, Tensor]:
    """Turn queries [B, Q, D] into probabilities: class proportions and the late step, in one call.

    In the late step a query with probability u for class k has the weight ``u^2 Q / (Q + K)`` in
    it. With s the sum of the labelled rows and the weighted queries of the class, and m their total
    weight, both without the query itself, its logit is ``temper (share (sharpness (x.s / m - s.s /
    (2 m^2)) + added + hub_k) + ln(total_k - weight u))``, products in the metric.

    Parameters
    ----------
    query : Tensor [B, Q, D]
    centre, scaled, scale, squares, bias, shots, variance, sharpness, factor, solved, shares
        Fields of `Likelihoods`, with a batch of B, or of 1 if shared by all tasks; bias and
        sharpness may have a batch of B even then.
    added : Tensor [B, Q, K], optional
        Further logits.
    measures : Tensor [B or 1, n, K], optional
        Priors on the proportions to choose from; the first is even.
    weight, max_iter, tol
        Those of `adapt`.
    temper : float
        A factor on the final logits.
    mean_shots : float
        Labelled rows per class.

    Returns
    -------
    Solution
    Tensor [B] bool
        True if the queries of a task are finite; False is inconclusive.
    """
    (B, Q, D), (L, K), N = query.shape, shots.shape, scaled.shape[1]
    bias, sharpness, real = bias.expand(B, K), sharpness.expand(B), query.dtype
    full = factor is not None
    M = 0 if factor is None else min(N - K, D) if N > K else D
    wide = 0 if factor is None else factor.shape[-2]
    # Copies, if any, live as long as the call.
    each = query, centre, scaled, scale, squares, bias, shots, sharpness
    query, centre, scaled, scale, squares, bias, shots, sharpness = (packed(x) for x in each)
    variance = packed(variance)
    factor, solved, shares, added = (
        None if x is None else packed(x) for x in (factor, solved, shares, added)
    )
    if measures is not None:
        measures = packed(measures.to(query.dtype).expand(B, -1, K))
    priors = 0 if measures is None else measures.shape[1]
    make = partial(
        native.module.posterior_call,
        dtype=DTYPES[real],
        sizes=(B, Q, K, D, M, N, L),
        weight=weight,
        temper=temper,
        mean_shots=mean_shots,
        max_iter=max_iter,
        tol=tol,
        priors=priors,
    )
    early = {
        "added": (added, real, (B, Q, K)),
        "measures": (measures, real, (B, priors, K)),
        "shares": (shares if full else None, real, (L, 3)),
        "squares": (squares, real, (L, K)),
        "bias": (bias, real, (B, K)),
        "shots": (shots, real, (L, K)),
        "variance": (variance, real, (L,)),
        "sharpness": (sharpness, real, (B,)),
        "factor": (factor, *split_kind(query, L, wide, wide)),
        "solved": (solved if full else None, *split_kind(query, L, K, wide)),
    }
    inputs = {
        "query": (query, real, (B, Q, D)),
        "centre": (centre, real, (L, D)),
        "rows": (scaled, *split_kind(query, L, N, D)),
        "scale": (scale, real, (L, D)),
    }
    outputs = {**adapt_table((B, Q), K, real, None), "finite": (torch.bool, (B,))}
    *results, finite = call_native(make, query, inputs, outputs, early=early)
    return solution_of(results, measures), finite
