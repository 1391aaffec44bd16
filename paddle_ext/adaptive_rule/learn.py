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
PRIOR_SHARPNESS, SHARPNESS_SPREAD = 40.0, math.log(2.0)
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
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    metric: str = "auto",
    groups: Tensor | None = None,
) -> Likelihood:
    """The likelihood of labelled rows [B, S, D] with labels [B, S]; every class must have a row."""
    return learned(support, labels, num_classes, metric, groups=groups)[0]


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


def learned(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    metric: str = "auto",
    *,
    left_out: bool = False,
    groups: Tensor | None = None,
) -> tuple[Likelihood, Tensor | None]:
    """The likelihood, and with `left_out` the distances (5) of rows left out (6), [B, S, K].

    With `groups` [S], numbers of those of the rows of one task, whole groups are left out.
    """
    from ._scaffold import learn

    tensors, distances = learn(support, labels, num_classes, metric)
    likelihood = Likelihood(**tensors, rows=support.shape[1])
    if groups is not None and bool((groups != groups[0]).any()):
        from .group_folds import calibrated_by_groups  # which calibrates by this module

        likelihood, distances = calibrated_by_groups(likelihood, support, labels, groups, metric)
    return likelihood, distances if left_out else None
