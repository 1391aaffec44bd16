"""Sinkhorn's iteration with the native code: the public function, its checks, the native call."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import check
from ..limits import LARGEST_FLOAT
from ..native.call import call_native, is_traced, packed, solver
from ..native.load import module as native
from ..rows import computing_dtype
from ..solution import Transport

SAME_TOTAL = 1e-4  # the totals of row and column masses may differ by this share of the larger


@solver(Transport)
def sinkhorn(
    cost: Tensor,
    row_mass: Tensor,
    col_mass: Tensor,
    *,
    reg: float,
    max_iter: int = 1000,
    tol: float = 1e-6,
    validate: bool = True,
) -> Transport:
    r"""Solve entropic optimal transport, for one task or many, by Sinkhorn's iteration.

    The plan of a task is ``P = diag(a) exp(-cost / reg) diag(b)`` with row sums `row_mass` and
    column sums `col_mass`. From ``b = 1`` an iteration is a row step, then a column step::

        a_q = row_mass_q / sum_k exp(-cost_qk / reg) b_k
        b_k = col_mass_k / sum_q exp(-cost_qk / reg) a_q

    Column sums are then exact, and the task stops when row sums are, up to `tol`.

    Parameters
    ----------
    cost : Tensor [Q, K] or [B, Q, K]
        Finite numbers of any size and sign: float16, bfloat16, float32 or float64, on the CPU or a
        CUDA device. The result has a batch dimension if the cost has one.
    row_mass : Tensor [Q] or [B, Q]
        Required row sums, at least 0. Without a batch dimension but with a batched cost, all tasks
        share them. A row of mass 0 is zero in the plan.
    col_mass : Tensor [K] or [B, K]
        Required column sums, likewise. Their total must equal that of the rows, up to a relative
        1e-4; they are then scaled to the exact total of the rows.
    reg : float
        Weight of the entropy, > 0, as in POT: the smaller, the sharper the plan.
    max_iter : int
        Limit on iterations.
    tol : float
        Stop a task when no row sum is off by more than this, in units of the masses. 0.0 runs
        `max_iter` iterations. In float32 about 1e-6 of the largest mass can be reached.
    validate : bool
        Check the values of the tensors. On CUDA this synchronises with the host; without it the
        result for invalid values is undefined. More in `paddle_ext.adapt`.

    Returns
    -------
    Transport

    Notes
    -----
    Errors, precision, devices and reproducibility are as in `paddle_ext.solve`. Offsets of rows and
    columns of the cost, and large costs, do not reduce precision.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> cost = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.2, 0.0]])
    >>> mass = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1.5, 1.5])
    >>> paddle_ext.sinkhorn(cost, *mass, reg=0.1).plan.round(decimals=3)
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000],
            [0.5000, 0.5000]])
    """
    reg = check.real("reg", reg, positive=True)
    max_iter, tol = check.integer("max_iter", max_iter), check.real("tol", tol)
    check.flag("validate", validate)
    cost, row_mass, col_mass = check.tensors(cost, row_mass, col_mass)
    check_tensors(cost, row_mass, col_mass)
    if validate:
        check_values(cost, row_mass, col_mass)
    *batch, Q, K = cost.shape
    real = computing_dtype(cost)
    # Unlike features, a half-precision cost is copied even on CUDA.
    cost, row_mass, col_mass = (packed(x.to(real)) for x in (cost, row_mass, col_mass))
    options = {
        "B": batch[0] if batch else 1,
        "Q": Q,
        "K": K,
        "row_mass_shared": row_mass.dim() <= len(batch),
        "col_mass_shared": col_mass.dim() <= len(batch),
        "sharpness": min(1.0 / reg, LARGEST_FLOAT),
        "max_iter": max_iter,
        "tol": tol,
    }
    inputs = {
        "cost": (cost, real, (*batch, Q, K)),
        "row_mass": (row_mass, real, (*batch, Q)[-row_mass.dim() :]),
        "col_mass": (col_mass, real, (*batch, K)[-col_mass.dim() :]),
    }
    outputs = {
        "plan": (real, (*batch, Q, K)),
        "iterations": (torch.int32, tuple(batch)),
        "residual": (real, tuple(batch)),
    }
    return Transport(*call_native(native.sinkhorn_call, options, cost, inputs, outputs))


def check_tensors(cost: Tensor, row_mass: Tensor, col_mass: Tensor) -> None:
    check.of_classes("cost", cost)
    check.features("row_mass", row_mass)
    check.features("col_mass", col_mass)
    if not (cost.is_cpu and row_mass.is_cpu and col_mass.is_cpu):
        check.one_device(cost=cost, row_mass=row_mass, col_mass=col_mass)
    shape = cost.shape
    for name, mass, side in (("row_mass", row_mass, -2), ("col_mass", col_mass, -1)):
        shared, own = (shape[side],), (*shape[:-2], shape[side])
        if mass.shape != shared and mass.shape != own:
            allowed = dict.fromkeys(str(list(one)) for one in (shared, own))
            raise ValueError(
                f"{name} must have shape {' or '.join(allowed)}, as cost has shape "
                f"{list(shape)}, got {list(mass.shape)}"
            )


def check_values(cost: Tensor, row_mass: Tensor, col_mass: Tensor) -> None:
    """Check finiteness, signs and totals; on CUDA with one synchronisation."""
    if cost.numel() == 0 or is_traced():
        return
    most = check.LARGEST_FEATURE[cost.dtype]
    rows, columns = row_mass.double(), col_mass.double()
    row_total, col_total = rows.sum(-1), columns.sum(-1)
    off = (row_total - col_total).abs() - SAME_TOTAL * torch.maximum(row_total, col_total)
    scalars = [*torch.aminmax(rows), *torch.aminmax(columns), row_total.min(), off.max()]
    scalars += torch.aminmax(cost)
    row_low, row_high, col_low, col_high, least, worst, *ends = check.numbers_of(scalars)
    if not all(map(math.isfinite, ends)):
        check.raise_too_large("cost", cost, LARGEST_FLOAT)
    bounds = (("row_mass", row_mass, row_low, row_high), ("col_mass", col_mass, col_low, col_high))
    for name, mass, low, high in bounds:
        if not (low >= 0 and high <= most):  # false for NaN
            place = (~((mass >= 0) & (mass.double() <= most))).nonzero()[0].tolist()
            value = mass[tuple(place)].item()
            expected = "finite and at least 0" if not value > most else f"at most {most:g}"
            raise ValueError(f"{name} must be {expected}, got {value:g} at {place}")
    if not least > 0:
        where = f" in task {int(row_total.argmin())}" if row_total.dim() else ""
        raise ValueError(f"row_mass must have a total > 0, got 0{where}")
    if not worst <= 0:
        task = int(off.argmax())
        rows_have, columns_have = (
            float(total.expand_as(off).reshape(-1)[task]) for total in (row_total, col_total)
        )
        where = f" in task {task}" if off.dim() else ""
        raise ValueError(
            f"col_mass must have the total of row_mass, {rows_have:g}, up to {SAME_TOTAL:g} of it, "
            f"got {columns_have:g}{where}"
        )
