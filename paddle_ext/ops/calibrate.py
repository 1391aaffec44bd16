"""The sharpness that maximises the likelihood of the labels of some rows: function and operator."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from . import native
from .backend import takes_reference
from .operators import allocator, computable, integers, register, target, workspace

CENTRE, SPREAD = 16.0, math.log(2.0)


class Calibration(NamedTuple):
    """The result of `calibrate`, in the dtype of the distances."""

    sharpness: Tensor  # [B] f
    objective: Tensor  # [B] the minimum
    drawn: Tensor  # [B, K] the sum of softmax(-f/2 d) over rows of other classes


def calibrate(
    distances: Tensor,
    labels: Tensor,
    count: Tensor,
    *,
    centre: float = CENTRE,
    spread: float = SPREAD,
    backend: str = "auto",
) -> Calibration:
    """Find the factor on half the squared distances that minimises cross-entropy, for each task.

    Over ``f`` in [0.1, 1e4] it minimises ``sum_i CE_i(softmax_k(-f/2 distances_ik)) +
    (ln f - ln centre)^2 / (2 spread^2)``, the sum over the first ``count`` rows of a task.

    Parameters
    ----------
    distances : Tensor [B, R, K]
        From rows to classes, each less than 1e30: float32 or float64, on the CPU or a CUDA device.
    labels : Tensor [B, R] int64
        The class of the row.
    count : Tensor [B] int64
        Number of rows used in each task, from the first; if 0, f is `centre`.
    centre, spread : float
        Expected f, in [0.1, 1e4], and the standard deviation of its logarithm, in [1e-6, 1e6].
    backend : {"auto", "native", "reference"}
        As in `solve`.

    Returns
    -------
    Calibration
        sharpness : Tensor [B]
            f.
        objective : Tensor [B]
            The minimum.
        drawn : Tensor [B, K]
            The attraction of each class to rows of others: the sum of their probabilities.

    Examples
    --------
    >>> import torch
    >>> distances = torch.tensor([[[0.1, 2.0], [1.9, 0.2], [0.5, 0.4]]])
    >>> found = calibrate(distances, torch.tensor([[0, 1, 1]]), torch.tensor([3]))
    >>> bool(5 < found.sharpness < 20)
    True
    """
    check_call(distances, labels, count, centre, spread)
    if takes_reference(backend, distances):
        from .. import reference

        found = reference.calibrate(distances, labels, count, centre=centre, spread=spread)
        return Calibration(*found)
    return Calibration(*calibrate_op(distances, labels, count, centre, spread))


def check_call(
    distances: Tensor, labels: Tensor, count: Tensor, centre: float, spread: float
) -> None:
    for name, value, least, most in (("centre", centre, 0.1, 1e4), ("spread", spread, 1e-6, 1e6)):
        if not least <= check.real(name, value) <= most:
            raise check.ArgumentValueError(name, f"must be in [{least:g}, {most:g}], got {value}")
    check.features("distances", distances)
    check.integers("labels", labels)
    check.integers("count", count)
    check.one_device(distances=distances, labels=labels, count=count)
    if distances.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"distances must be float32 or float64, got {distances.dtype}")
    shape = distances.shape
    if distances.dim() != 3 or shape[1] < 1 or shape[2] < 1:
        raise ValueError(
            f"distances must have shape [B, R, K] with R and K at least 1, got {list(shape)}"
        )
    for name, x, expected in (("labels", labels, shape[:2]), ("count", count, shape[:1])):
        if x.shape != expected:
            raise ValueError(f"{name} must have shape {list(expected)}, got {list(x.shape)}")


def allocate(distances: Tensor) -> Calibration:
    B, _, K = distances.shape
    new, dtype = allocator(distances), distances.dtype
    return Calibration(
        sharpness=new((B,), (1,), dtype),
        objective=new((B,), (1,), dtype),
        drawn=new((B, K), (K, 1), dtype),
    )


def calibrate_kernel(
    distances: Tensor, labels: Tensor, count: Tensor, centre: float, spread: float
) -> Calibration:
    check_call(distances, labels, count, centre, spread)
    B, R, K = distances.shape
    found = allocate(distances)
    if B == 0:
        return found
    distances = computable("distances", distances)
    labels, count = integers(labels), integers(count)
    call = native.module.calibrate_call(
        target=target(distances),
        dtype=check.DTYPES[distances.dtype],
        B=B,
        R=R,
        K=K,
        centre=centre,
        spread=spread,
    )
    memory = workspace(call.workspace(), distances)
    call.solve(
        distances=distances.data_ptr(),
        labels=labels.data_ptr(),
        count=count.data_ptr(),
        sharpness=found.sharpness.data_ptr(),
        objective=found.objective.data_ptr(),
        drawn=found.drawn.data_ptr(),
        workspace=memory.data_ptr(),
        workspace_bytes=memory.numel(),
    )
    return found


def calibrate_fake(
    distances: Tensor, labels: Tensor, count: Tensor, centre: float, spread: float
) -> Calibration:
    check_call(distances, labels, count, centre, spread)
    return allocate(distances)


register(
    "calibrate(Tensor distances, Tensor labels, Tensor count, float centre, float spread) "
    "-> (Tensor, Tensor, Tensor)",
    calibrate_kernel,
    calibrate_fake,
)

calibrate_op = torch.ops.paddle_ext.calibrate.default
