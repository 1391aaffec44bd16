"""From labelled rows to likelihoods: the part of `adaptive` that needs no queries.

Letters: B tasks, or 1 for labelled rows shared by all tasks; S labelled rows, K classes, D
features, R calibration rows. All tensors of a call are float32 or float64, and on one device; the
equations are in docs/adaptive.md.
"""

from typing import Any

import torch
from torch import Tensor

from ..native.call import call_native, packed, packed_int64
from ..native.devices import on_cpu_without_gpu_code
from ..native.load import module as native
from ..rows import content_keys
from .likelihood import NATIVE_TENSORS, Likelihood, native_kinds

# So many labelled rows are left out to calibrate, or as many as there are classes, within a limit
# on rows times classes: more change no accuracy by what could be measured. A few more are all left
# out, which takes less time than to choose among them.
CALIBRATION_ROWS, FEW_ROWS, MOST_CALIBRATION_ENTRIES = 256, 512, 2**22


def calibration_count(S: int, K: int) -> int:
    """How many of S labelled rows are left out to calibrate."""
    if S <= FEW_ROWS:
        return S
    return min(S, max(CALIBRATION_ROWS, min(K, MOST_CALIBRATION_ENTRIES // K)))


def uses_full_metric(metric: str, S: int, K: int) -> bool:
    """Whether the option `metric` means the full metric for S labelled rows of K classes."""
    return S > K and metric != "diagonal"


def likelihood_of(
    support: Tensor, labels: Tensor, num_classes: int, metric: str = "auto"
) -> Likelihood:
    """The likelihood of labelled rows [B, S, D] with labels [B, S]; every class must have a row."""
    return learned(support, labels, num_classes, metric)[0]


@on_cpu_without_gpu_code
def calibrate(
    distances: Tensor,
    labels: Tensor,
    judged: Tensor | None = None,
    *,
    centre: float | None = None,
    spread: float | None = None,
) -> list[Tensor]:
    """The sharpness f of each task, the factor on half the distances [B, R, K] in logits.

    f in [0.1, 1e4] minimises ``sum_i CE_i(softmax_k(-f/2 distances_ik))`` minus its log prior, the
    sum over the rows that are `judged` [B, R], or all; `labels` [B, R] are their classes. ln f has
    the mean ln `centre` and the deviation `spread` a priori, by default those of the rule.
    Distances are less than 1e30, which a class has that does not compete. Returns f [B], the
    minimum [B], and the probability that each class takes from rows of other classes, summed,
    [B, K].
    """
    B, R, K = distances.shape
    distances, labels = packed(distances), packed_int64(labels)
    judged = None if judged is None else packed(judged)
    real = distances.dtype
    centre = native.SHARPNESS if centre is None else centre
    spread = native.SHARPNESS_SPREAD if spread is None else spread
    options = {"B": B, "R": R, "K": K, "centre": centre, "spread": spread}
    inputs = {
        "distances": (distances, real, (B, R, K)),
        "labels": (labels, torch.int64, (B, R)),
        "judged": (judged, torch.bool, (B, R)),
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
) -> tuple[Likelihood, Tensor | None]:
    """The likelihood, and with `left_out` the distances (5) of rows left out (6), [B, S, K]."""
    S, K = support.shape[1], num_classes
    in_order = learned_as_given if calibration_count(S, K) == S else learned_in_order
    return in_order(support, labels, num_classes, metric, left_out)


def learned_in_order(
    support: Tensor, labels: Tensor, num_classes: int, metric: str, left_out: bool
) -> tuple[Likelihood, Tensor | None]:
    """The same with the rows in an order that does not depend on the one in which they are given.

    The calibration rows are evenly spread in it, so over the classes.
    """
    by_content = content_keys(support).argsort(dim=-1, stable=True)
    by_class = labels.gather(1, by_content).argsort(dim=-1, stable=True)
    order = by_content.gather(1, by_class)
    at = order.unsqueeze(-1)
    rows = support.gather(1, at.expand_as(support))
    given = rows, labels.gather(1, order), num_classes, metric, left_out
    likelihood, distances = learned_as_given(*given)
    if distances is None:
        return likelihood, None
    return likelihood, torch.empty_like(distances).scatter_(1, at.expand_as(distances), distances)


@on_cpu_without_gpu_code
def learned_as_given(
    support: Tensor, labels: Tensor, num_classes: int, metric: str, left_out: bool
) -> tuple[Likelihood, Tensor | None]:
    """`learned`, with calibration rows evenly spread in the order given."""
    (B, S, D), K = support.shape, num_classes
    full = uses_full_metric(metric, S, K)
    support, labels = packed(support), packed_int64(labels)
    real = support.dtype
    options = {
        "B": B,
        "S": S,
        "K": K,
        "D": D,
        "R": calibration_count(S, K),
        "full": full,
        "every": left_out,
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
    return Likelihood(**tensors, rows=S), distances
