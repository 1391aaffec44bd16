"""From labelled rows to likelihoods: the part of `adaptive` that needs no queries.

Letters: B tasks, or 1 for labelled rows shared by all tasks; S labelled rows, K classes, D
features, R calibration rows. All tensors of a call are float32 or float64, and on one device; the
equations are in docs/adaptive.md.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..native.call import call_native, packed, packed_int64
from ..native.devices import on_cpu_without_gpu_code
from ..native.graphs import replayed
from ..native.load import module as native
from ..rows import FEW_ROWS, evenly_spread, products
from .likelihood import NATIVE_TENSORS, Likelihood, as_split, native_kinds

MOST_CALIBRATION_ROWS = 128  # twice as many for the full metric, or K if that is more
MOST_CALIBRATION_ENTRIES = 2**24  # limit on calibration rows times classes, if they are K
# The prior of the sharpness is log-normal: its median, and the standard deviation of its logarithm.
PRIOR_SHARPNESS, SHARPNESS_SPREAD = 16.0, math.log(2.0)
ONE_SHOT_TEMPER = 0.7  # factor on logits that cannot be calibrated
HUB_PRIOR_ROWS = 10  # as in the feature scale: with fewer rows than this, the bias counts little


class Labelled(NamedTuple):
    """What centring labelled rows takes: a centred row is ``(row first - centre) second``."""

    first: Tensor  # [B, S] 1 / norm of the row
    second: Tensor  # [B, S] 1 / norm after centring; 0 if the row equals the centre, up to rounding
    centre: Tensor  # [B, D] the mean of the class means; 0 with a single class
    means: Tensor  # [B, K, D] of the centred rows of each class
    shots: Tensor  # [B, K] labelled rows of each class
    own: Tensor  # [B, R] int64: the class of each calibration row
    calibration_rows: Tensor  # [B] int64: their number; the rest of `own` is padding
    scale: Tensor  # [B, D] weight of a feature in squared distances, 1 on average


def calibration_count(S: int, K: int, full: bool) -> int:
    """How many of S labelled rows calibrate the sharpness and, if `full`, choose the metric."""
    most = 2 * MOST_CALIBRATION_ROWS if full else MOST_CALIBRATION_ROWS
    return min(S, max(most, min(K, MOST_CALIBRATION_ENTRIES // K)))


def uses_full_metric(metric: str, S: int, K: int) -> bool:
    """Whether the option `metric` means the full metric for S labelled rows of K classes."""
    return S > K and metric != "diagonal"


def likelihood_of(
    support: Tensor, labels: Tensor, num_classes: int, metric: str = "auto"
) -> Likelihood:
    """The likelihood of labelled rows [B, S, D] with labels [B, S]; every class must have a row."""
    if support.shape[1] == num_classes:
        return replayed(one_shot, support, labels, num_classes)
    return learned(support, labels, num_classes, metric)[0]


@on_cpu_without_gpu_code
def labelled(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Labelled:
    """Centre, class means and feature scale of labelled rows; `rows` is how many calibrate."""
    (B, S, D), K, R = support.shape, num_classes, rows
    support, labels = packed(support), packed_int64(labels)
    real = support.dtype
    options = {"B": B, "S": S, "K": K, "D": D, "R": R}
    inputs = {"support": (support, real, (B, S, D)), "labels": (labels, torch.int64, (B, S))}
    outputs = {
        "first": (real, (B, S)),
        "second": (real, (B, S)),
        "centre": (real, (B, D)),
        "means": (real, (B, K, D)),
        "shots": (real, (B, K)),
        "own": (torch.int64, (B, R)),
        "count": (torch.int64, (B,)),
        "scale": (real, (B, D)),
    }
    return Labelled(*call_native(native.labelled_call, options, support, inputs, outputs))


@on_cpu_without_gpu_code
def calibrate(distances: Tensor, labels: Tensor, count: Tensor) -> list[Tensor]:
    """The sharpness f of each task, the factor on half the squared distances [B, R, K] in logits.

    f in [0.1, 1e4] minimises ``sum_i CE_i(softmax_k(-f/2 distances_ik))`` minus its log prior, the
    sum over the first ``count`` [B] rows of a task, of which `labels` [B, R] are the classes.
    Distances are less than 1e30. Returns f [B], the minimum [B], and the probability that each
    class takes from rows of other classes, summed, [B, K].
    """
    B, R, K = distances.shape
    distances, labels, count = packed(distances), packed_int64(labels), packed_int64(count)
    real = distances.dtype
    options = {"B": B, "R": R, "K": K, "centre": PRIOR_SHARPNESS, "spread": SHARPNESS_SPREAD}
    inputs = {
        "distances": (distances, real, (B, R, K)),
        "labels": (labels, torch.int64, (B, R)),
        "count": (count, torch.int64, (B,)),
    }
    outputs = {"sharpness": (real, (B,)), "objective": (real, (B,)), "drawn": (real, (B, K))}
    return call_native(native.calibrate_call, options, distances, inputs, outputs)


@on_cpu_without_gpu_code
def learned(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    metric: str = "auto",
    *,
    left_out: bool = False,
) -> tuple[Likelihood, Tensor | None]:
    """The likelihood, and with `left_out` the squared distances of rows left out, [B, S, K]."""
    (B, S, D), K = support.shape, num_classes
    full = uses_full_metric(metric, S, K)
    support, labels = packed(support), packed_int64(labels)
    real = support.dtype
    options = {
        "B": B,
        "S": S,
        "K": K,
        "D": D,
        "R": calibration_count(S, K, full),
        "full": full,
        "every": left_out,
        "prior_sharpness": PRIOR_SHARPNESS,
        "spread": SHARPNESS_SPREAD,
    }
    early = {"support": (support, real, (B, S, D)), "labels": (labels, torch.int64, (B, S))}
    N = S + K if full and S < D else K
    block = native.FACTOR_BLOCK
    M = -(-min(S, D) // block) * block
    kinds = native_kinds(real, support.is_cuda, L=B, K=K, D=D, N=N, M=M)
    absent = () if full else ("factor", "solved", "shares")
    outputs: dict[str, Any] = {
        NATIVE_TENSORS[x].name or x: None if x in absent else kinds[x] for x in kinds
    }
    outputs["left_out"] = (real, (B, S, K)) if left_out else None
    results = call_native(native.likelihood_call, options, support, {}, outputs, early=early)
    distances = results.pop() if left_out else None
    tensors: Any = dict(zip((x for x in kinds if x not in absent), results, strict=True))
    return Likelihood(**tensors, temper=1.0, rows=S), distances


def one_shot(support: Tensor, labels: Tensor, num_classes: int) -> Likelihood:
    """The likelihood for one row per class, with the sharpness of the prior."""
    data, K = labelled(support, labels, num_classes, 0), num_classes
    means = data.means
    squares, hubs = one_shot_hubs(means, data.scale, calibration_count(K, K, False))
    return Likelihood(
        centre=data.centre,
        prototypes=means,
        scaled=as_split(means, data.scale),
        squares=squares,
        bias=hubs - PRIOR_SHARPNESS / 2 * squares,
        shots=data.shots,
        sharpness=means.new_full((len(means),), PRIOR_SHARPNESS),
        variance=means.new_zeros(len(means)),
        temper=ONE_SHOT_TEMPER,
        rows=K,
        scale=data.scale,
    )


def one_shot_hubs(means: Tensor, scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The square of the only row of each class, and its bias, lower for hubs, [B, K] each."""
    B, K, _ = means.shape
    weighted = means * scale.unsqueeze(1)
    if count < K:  # some rows, evenly spread, are compared with all other classes
        own = evenly_spread(count, K, means.device)
        logits = products(weighted.index_select(1, own), means)
        squares = (weighted * means).sum(-1)
    else:
        own = torch.arange(K, device=means.device)
        # Of few rows, torch.mm, which products has for a single task, adds up in another order.
        logits = torch.bmm(weighted, means.mT) if K < FEW_ROWS else products(weighted, means)
        squares = logits.diagonal(dim1=-2, dim2=-1).clone()
    if K == 1:
        return squares, torch.zeros_like(squares)
    logits = logits.mul_(PRIOR_SHARPNESS).sub_(PRIOR_SHARPNESS / 2 * squares.unsqueeze(1))
    logits.scatter_(-1, own.view(1, -1, 1).expand(B, -1, -1), -math.inf)
    drawn = logits.softmax(-1).sum(1)
    bias = -torch.log1p((drawn - drawn.mean(-1, keepdim=True)) / (count / K + 1))
    return squares, bias * (count / (count + HUB_PRIOR_ROWS))
