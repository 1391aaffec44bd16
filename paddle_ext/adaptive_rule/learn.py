"""From labelled rows to likelihoods: the part of `adaptive` that needs no queries.

Letters: B tasks, or 1 for labelled rows shared by all tasks; S labelled rows, K classes, D
features, R calibration rows. All tensors of a call are float32 or float64, and on one device; the
equations are in docs/adaptive.md.
"""

from typing import Any, NamedTuple

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
CALIBRATION_ROWS = 256
FEW_ROWS = 512
MOST_CALIBRATION_ENTRIES = 2**22


class Given(NamedTuple):
    """What is not learned from labelled rows."""

    centre: Tensor  # [B, D] of the coordinates (1)
    scale: Tensor | None = None  # [B, D] the feature weights (2)
    weights: Tensor | None = None  # [B, S] > 0 how much a row counts

    def to(self, device: torch.device | str) -> "Given":
        return Given(
            self.centre.to(device),
            None if self.scale is None else self.scale.to(device),
            None if self.weights is None else self.weights.to(device),
        )


def calibration_count(S: int, K: int, *, weighted: bool = False) -> int:
    """How many of S labelled rows are left out to calibrate; all that are weighted if possible."""
    if S <= FEW_ROWS or (weighted and S * K <= MOST_CALIBRATION_ENTRIES):
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
    weights: Tensor | None = None,
    *,
    centre: float | None = None,
    spread: float | None = None,
) -> list[Tensor]:
    """The sharpness f of each task, the factor on half the distances [B, R, K] in logits.

    f in [0.1, 1e4] minimises ``sum_i CE_i(softmax_k(-f/2 distances_ik))`` minus its log prior, the
    sum over the rows, which count by `weights` [B, R] if there are any; `labels` [B, R] are their
    classes. ln f has the mean ln `centre` and the deviation `spread` a priori, by default those of
    the rule. Distances are less than 1e30, which a class has that does not compete. Returns f [B],
    the minimum [B], and the probability that each class takes from rows of other classes, summed,
    [B, K].
    """
    B, R, K = distances.shape
    distances, labels = packed(distances), packed_int64(labels)
    real = distances.dtype
    weights = None if weights is None else packed(weights.to(real))
    centre = native.SHARPNESS if centre is None else centre
    spread = native.SHARPNESS_SPREAD if spread is None else spread
    options = {"B": B, "R": R, "K": K, "centre": centre, "spread": spread}
    inputs = {
        "distances": (distances, real, (B, R, K)),
        "labels": (labels, torch.int64, (B, R)),
        "weights": (weights, real, (B, R)),
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
    given: Given | None = None,
) -> tuple[Likelihood, Tensor | None]:
    """The likelihood, and with `left_out` the distances (5) of rows left out (6), [B, S, K]."""
    S, K = support.shape[1], num_classes
    R = calibration_count(S, K, weighted=given is not None and given.weights is not None)
    full = uses_full_metric(metric, S, K)
    in_order = learned_as_given if R == S else learned_in_order
    return in_order(support, labels, num_classes, R, full, left_out, given)


def learned_in_order(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    R: int,
    full: bool,
    left_out: bool,
    given: Given | None,
) -> tuple[Likelihood, Tensor | None]:
    """The same with the rows in an order that does not depend on the one in which they are given.

    The calibration rows are evenly spread in it, so over the classes.
    """
    by_content = content_keys(support).argsort(dim=-1, stable=True)
    by_class = labels.gather(1, by_content).argsort(dim=-1, stable=True)
    order = by_content.gather(1, by_class)
    at = order.unsqueeze(-1)
    rows = support.gather(1, at.expand_as(support))
    if given is not None and given.weights is not None:
        given = given._replace(weights=given.weights.gather(1, order))
    ordered = rows, labels.gather(1, order)
    likelihood, distances = learned_as_given(*ordered, num_classes, R, full, left_out, given)
    if distances is None:
        return likelihood, None
    return likelihood, torch.empty_like(distances).scatter_(1, at.expand_as(distances), distances)


@on_cpu_without_gpu_code
def learned_as_given(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    R: int,
    full: bool,
    left_out: bool,
    given: Given | None,
) -> tuple[Likelihood, Tensor | None]:
    """`learned`, with R calibration rows evenly spread in the order given."""
    (B, S, D), K = support.shape, num_classes
    support, labels = packed(support), packed_int64(labels)
    real = support.dtype
    options = {
        "B": B,
        "S": S,
        "K": K,
        "D": D,
        "R": R,
        "full": full,
        "every": left_out,
        "centred": given is not None,
        "scaled": given is not None and given.scale is not None,
    }
    early = {"support": (support, real, (B, S, D)), "labels": (labels, torch.int64, (B, S))}
    N = S + K if full and S < D else K
    block = native.FACTOR_BLOCK
    M = -(-min(S, D) // block) * block
    kinds = native_kinds(real, support.is_cuda, L=B, K=K, D=D, N=N, M=M)
    absent = set() if full else {"factor", "solved", "scatter", "shares"}
    taken: dict[str, Tensor] = {}  # as they are
    weights: Tensor | None = None
    if given is not None:
        both = {"centre": given.centre, "scale": given.scale}
        taken = {name: packed(x) for name, x in both.items() if x is not None}
        weights = None if given.weights is None else packed(given.weights.to(real))
    inputs: dict[str, Any] = {name: (x, *kinds[name]) for name, x in taken.items()}
    inputs["weights"] = weights, real, (B, S)
    outputs: dict[str, Any] = {
        NATIVE_TENSORS[x].name or x: None if x in absent else kinds[x]
        for x in kinds
        if x not in taken
    }
    outputs["left_out"] = (real, (B, S, K)) if left_out else None
    results = call_native(native.likelihood_call, options, support, inputs, outputs, early=early)
    distances = results.pop() if left_out else None
    found = (x for x in kinds if x not in absent and x not in taken)
    tensors: Any = taken | dict(zip(found, results, strict=True))
    return Likelihood(**tensors, rows=S), distances
