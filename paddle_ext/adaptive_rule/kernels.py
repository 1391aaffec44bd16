"""The native parts of the rule `adaptive`, from checked tensors to tensors.

Letters: B tasks, S labelled rows, Q queries, K classes, D features, R calibration rows. All tensors
of a call are float32, or float64 on the CPU, and on one device; the equations are in
docs/adaptive.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..native import load as native
from ..native.calls import call_native, options_of, pointers, where_code_is
from ..native.coordinates import split_kind
from ..native.operators import integers
from ..native.pointers import packed, pointer
from ..solution import Solution
from ..solvers.adapt import solution_of

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
    csrc/common/adaptive.h. M = min(S, D), rounded up to a multiple of 64. On CUDA `scaled`,
    `factor` and `solved` are split into halves; `coordinates.numbers` restores the shapes below.
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


@where_code_is
def labelled(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Labelled:
    """Coordinates, class means and feature scale of labelled rows [B, S, D] with labels [B, S].

    Up to `rows` calibration rows are chosen, evenly spread over the rows of classes that have at
    least two; 0 chooses none.
    """
    (B, S, D), K, R = support.shape, num_classes, rows
    support, labels = packed(support), integers(labels)
    call = native.module.labelled_call(**options_of(support), B=B, S=S, K=K, D=D, R=R)
    given = pointers(support, support=(support, (B, S, D)))
    given["labels"] = pointer(labels, torch.int64, (B, S), support.get_device())
    wanted = {
        "first": (B, S),
        "second": (B, S),
        "centre": (B, D),
        "means": (B, K, D),
        "shots": (B, K),
        "own": (torch.int64, (B, R)),
        "count": (torch.int64, (B,)),
        "scale": (B, D),
    }
    return Labelled(*call_native(call, support, given, wanted))


@where_code_is
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
    distances, labels, count = packed(distances), integers(labels), integers(count)
    call = native.module.calibrate_call(
        **options_of(distances), B=B, R=R, K=K, centre=centre, spread=spread
    )
    given = pointers(distances, distances=(distances, (B, R, K)))
    device = distances.get_device()
    given["labels"] = pointer(labels, torch.int64, (B, R), device)
    given["count"] = pointer(count, torch.int64, (B,), device)
    wanted = {"sharpness": (B,), "objective": (B,), "drawn": (B, K)}
    return Calibration(*call_native(call, distances, given, wanted))


@where_code_is
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
    support, labels = packed(support), integers(labels)
    call = native.module.likelihood_call(
        **options_of(support),
        B=B,
        S=S,
        K=K,
        D=D,
        R=R,
        full=full,
        every=every,
        prior_sharpness=CENTRE,
        spread=SPREAD,
        labels=pointer(labels, torch.int64, (B, S), support.get_device()),
        **pointers(support, support=(support, (B, S, D))),
    )
    wanted: dict[str, Any] = {
        "centre": (B, D),
        "means": (B, K, D),
        "rows": split_kind(support, B, K + S if full and S < D else K, D),
        "squares": (B, K),
        "bias": (B, K),
        "shots": (B, K),
        "sharpness": (B,),
        "variance": (B,),
        "finite": (torch.bool, (B,)),
        "scale": (B, D),
    }
    M = -(-min(S, D) // native.module.FACTOR_BLOCK) * native.module.FACTOR_BLOCK
    optional: dict[str, Any] = {}
    if full:
        optional |= {"factor": split_kind(support, B, M, M), "solved": split_kind(support, B, K, M)}
        optional |= {"shares": (B, 3)}
    if every:
        optional |= {"left_out": (B, S, K)}
    missing = dict.fromkeys({"factor", "solved", "shares", "left_out"} - optional.keys(), 0)
    outputs = call_native(call, support, missing, wanted | optional)
    found: dict[str, Any] = dict(zip([*wanted, *optional], outputs, strict=True))
    return Likelihoods(scaled=found.pop("rows"), **found)


@where_code_is
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
    bias, sharpness, device = bias.expand(B, K), sharpness.expand(B), query.get_device()
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
    call = native.module.posterior_call(
        **options_of(query),
        sizes=(B, Q, K, D, M, N, L),
        weight=weight,
        temper=temper,
        mean_shots=mean_shots,
        max_iter=max_iter,
        tol=tol,
        priors=priors,
        **pointers(
            query,
            added=(added, (B, Q, K)),
            measures=(measures, (B, priors, K)),
            shares=(shares if full else None, (L, 3)),
            squares=(squares, (L, K)),
            bias=(bias, (B, K)),
            shots=(shots, (L, K)),
            variance=(variance, (L,)),
            sharpness=(sharpness, (B,)),
        ),
        factor=pointer(factor, *split_kind(query, L, wide, wide), device),
        solved=pointer(solved if full else None, *split_kind(query, L, K, wide), device),
    )
    given = pointers(
        query, query=(query, (B, Q, D)), centre=(centre, (L, D)), scale=(scale, (L, D))
    )
    given["rows"] = pointer(scaled, *split_kind(query, L, N, D), device)
    wanted = {
        "labels": (torch.int64, (B, Q)),
        "probabilities": (B, Q, K),
        "proportions": (B, K),
        "dual": (B, K),
        "iterations": (torch.int32, (B,)),
        "criterion": (B,),
        "concentration": (B,),
        "bound": (B,),
        "chosen": (torch.int32, (B,)),
        "finite": (torch.bool, (B,)),
    }
    *outputs, finite = call_native(call, query, given, wanted)
    return solution_of(tuple(outputs), measures), finite
