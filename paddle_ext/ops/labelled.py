"""Statistics of labelled rows before calibration, and rows in the coordinates they choose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import check
from . import native
from .backend import takes_reference
from .operators import (
    allocator,
    check_classes,
    computable,
    integers,
    register,
    target,
    workspace,
)

FLOATS = (torch.float32, torch.float64)


class Labelled(NamedTuple):
    """Labelled rows in their coordinates: unit norm, minus the centre, unit norm.

    A row of the support is ``(row first - centre) second`` there.
    """

    first: Tensor  # [B, S]
    second: Tensor  # [B, S] 0 for a row that equals the centre, up to rounding
    centre: Tensor  # [B, D] the mean of the class means; 0 with a single class
    means: Tensor  # [B, K, D] of the rows of each class, in the coordinates
    shots: Tensor  # [B, K]
    own: Tensor  # [B, R] int64: the class of a calibration row
    judging: Tensor  # [B] int64: number of calibration rows; the rest is padding
    x: Tensor  # [B, R, D] these rows, in the coordinates
    off: Tensor  # [B, R] their squared distances to the means of their classes, in the scale
    scale: Tensor  # [B, D] weight of a feature in squared distances, 1 on average


def labelled(
    support: Tensor, labels: Tensor, num_classes: int, rows: int, *, backend: str = "auto"
) -> Labelled:
    """Coordinates, class means and feature scale of labelled rows; docs/adaptive.md, steps 1 to 3.

    Parameters
    ----------
    support : Tensor [B, S, D]
        Float32 or float64, on the CPU or a CUDA device.
    labels : Tensor [B, S] int64
        Every class should have a row.
    num_classes : int
    rows : int
        Limit on calibration rows, of classes with two or more, evenly spread; 0 for none.
    backend : {"auto", "native", "reference"}
        As in `solve`.

    Examples
    --------
    >>> import torch
    >>> support = torch.tensor([[[1.0, 0.0], [4.0, 0.0], [0.0, 2.0]]])
    >>> found = labelled(support, torch.tensor([[0, 0, 1]]), 2, 8)
    >>> found.centre, found.own[0, : found.judging]
    (tensor([[0.5000, 0.5000]]), tensor([0, 0]))
    """
    check_labelled(support, labels, num_classes, rows)
    if takes_reference(backend, support):
        from .. import reference

        return Labelled(*reference.labelled(support, labels, num_classes, rows))
    return Labelled(*labelled_op(support, labels, num_classes, rows))


def coordinates(rows: Tensor, centre: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Rows made unit-norm, minus a centre, unit-norm again; and the norms before the last step.

    Parameters
    ----------
    rows : Tensor [B, N, D]
        Float32 or float64, on the CPU or a CUDA device.
    centre : Tensor [B or 1, D]
    backend : {"auto", "native", "reference"}
        As in `solve`.

    Returns
    -------
    Tensor [B, N, D], Tensor [B, N]
        A row that equals the centre, up to rounding, becomes zero, and so does its norm.

    Examples
    --------
    >>> import torch
    >>> coordinates(torch.tensor([[[2.0, 0.0]]]), torch.tensor([[0.5, 0.0]]))
    (tensor([[[1., 0.]]]), tensor([[0.5000]]))
    """
    check_coordinates(rows, centre)
    if takes_reference(backend, rows):
        from .. import reference

        return reference.coordinates(rows, centre)
    found: tuple[Tensor, Tensor] = coordinates_op(rows, centre)
    return found


# --- operators ----------------------------------------------------------------------------------


def check_floats(name: str, x: Tensor) -> None:
    check.features(name, x)
    if x.dtype not in FLOATS:
        raise ValueError(f"{name} must be float32 or float64, got {x.dtype}")


def check_labelled(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> None:
    check_floats("support", support)
    check.integers("labels", labels)
    check.one_device(support=support, labels=labels)
    shape = support.shape
    if support.dim() != 3 or shape[1] < 1 or shape[2] < 1:
        raise ValueError(
            f"support must have shape [B, S, D] with S and D at least 1, got {list(shape)}"
        )
    if labels.shape != shape[:2]:
        raise ValueError(f"labels must have shape {list(shape[:2])}, got {list(labels.shape)}")
    check_classes(num_classes, shape[0])
    check.integer("rows", rows, least=0)


def check_coordinates(rows: Tensor, centre: Tensor) -> None:
    check_floats("rows", rows)
    check.features("centre", centre)
    check.one_device(rows=rows, centre=centre)
    shape = rows.shape
    if rows.dim() != 3 or shape[2] < 1:
        raise ValueError(f"rows must have shape [B, N, D] with D at least 1, got {list(shape)}")
    if centre.dtype is not rows.dtype:
        raise ValueError(f"centre must be {rows.dtype} like rows, got {centre.dtype}")
    if centre.shape not in ((shape[0], shape[2]), (1, shape[2])):
        raise ValueError(
            f"centre must have shape {[shape[0], shape[2]]}, or 1 instead of {shape[0]}, "
            f"got {list(centre.shape)}"
        )


def check_alike(
    like_name: str,
    like: Tensor,
    others: Iterable[tuple[str, Tensor | None, tuple[int, ...]]],
    *,
    optional: str,
) -> None:
    """Tensors of the given shapes, in the dtype and on the device of `like`; one may be None."""
    dtype, device = like.dtype, like.device
    for name, x, shape in others:
        if name == optional and x is None:
            continue
        if type(x) is Tensor and (x.shape, x.dtype, x.device) == (shape, dtype, device):
            continue  # the common case, checked cheaply
        check.features(name, x)
        assert x is not None
        check.one_device(**{like_name: like, name: x})
        if x.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(x.shape)}")
        if x.dtype is not dtype:
            raise ValueError(f"{name} must be {dtype} like {like_name}, got {x.dtype}")


def run(call: Any, support: Tensor, labels: Tensor, found: NamedTuple) -> None:
    """Make a call from labelled rows to the tensors of `found`, by name."""
    memory = workspace(call.workspace(), support)
    call.solve(
        support=support.data_ptr(),
        labels=labels.data_ptr(),
        **dict(zip(found._fields, [x.data_ptr() for x in found], strict=True)),
        workspace=memory.data_ptr(),
        workspace_bytes=memory.numel(),
    )


def allocate(support: Tensor, K: int, R: int) -> Labelled:
    B, S, D = support.shape
    new, dtype = allocator(support), support.dtype
    return Labelled(
        first=new((B, S), (S, 1), dtype),
        second=new((B, S), (S, 1), dtype),
        centre=new((B, D), (D, 1), dtype),
        means=new((B, K, D), (K * D, D, 1), dtype),
        shots=new((B, K), (K, 1), dtype),
        own=new((B, R), (R, 1), torch.int64),
        judging=new((B,), (1,), torch.int64),
        x=new((B, R, D), (R * D, D, 1), dtype),
        off=new((B, R), (R, 1), dtype),
        scale=new((B, D), (D, 1), dtype),
    )


def labelled_kernel(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Labelled:
    check_labelled(support, labels, num_classes, rows)
    B, S, D = support.shape
    found = allocate(support, num_classes, rows)
    if B == 0:
        return found
    support, labels = computable("support", support), integers(labels)
    call = native.module.labelled_call(
        target=target(support),
        dtype=check.DTYPES[support.dtype],
        B=B,
        S=S,
        K=num_classes,
        D=D,
        R=rows,
    )
    run(call, support, labels, found)
    return found


def labelled_fake(support: Tensor, labels: Tensor, num_classes: int, rows: int) -> Labelled:
    check_labelled(support, labels, num_classes, rows)
    return allocate(support, num_classes, rows)


def allocate_coordinates(rows: Tensor) -> tuple[Tensor, Tensor]:
    B, N, D = rows.shape
    new, dtype = allocator(rows), rows.dtype
    return new((B, N, D), (N * D, D, 1), dtype), new((B, N), (N, 1), dtype)


def coordinates_kernel(rows: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    check_coordinates(rows, centre)
    B, N, D = rows.shape
    x, lengths = allocate_coordinates(rows)
    if B * N == 0:
        return x, lengths
    rows, centre = computable("rows", rows), computable("centre", centre)
    native.module.coordinates_call(
        target=target(rows),
        dtype=check.DTYPES[rows.dtype],
        B=B,
        N=N,
        D=D,
        shared=centre.shape[0] == 1,
    ).solve(
        rows=rows.data_ptr(),
        centre=centre.data_ptr(),
        x=x.data_ptr(),
        lengths=lengths.data_ptr(),
    )
    return x, lengths


def coordinates_fake(rows: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    check_coordinates(rows, centre)
    return allocate_coordinates(rows)


register(
    "labelled(Tensor support, Tensor labels, int num_classes, int rows) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    labelled_kernel,
    labelled_fake,
)
register(
    "coordinates(Tensor rows, Tensor centre) -> (Tensor, Tensor)",
    coordinates_kernel,
    coordinates_fake,
)

labelled_op = torch.ops.paddle_ext.labelled.default
coordinates_op = torch.ops.paddle_ext.coordinates.default
