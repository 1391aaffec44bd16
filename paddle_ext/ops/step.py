"""The late step of `adaptive`: prototypes absorb the queries, each classified without itself."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import check
from . import native
from .backend import takes_reference
from .labelled import check_alike, check_floats
from .operators import allocator, computable, register, target, workspace


def step(
    given: Tensor,
    cross: Tensor,
    inner: Tensor,
    own: Tensor,
    extra: Tensor | None,
    shots: Tensor,
    squares: Tensor,
    sharpness: Tensor,
    constant: Tensor,
    total: Tensor,
    prior: Tensor,
    *,
    weight: float = 1.0,
    temper: float = 1.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Probabilities and labels after the late step; docs/adaptive.md, step 7.

    A query of class k with probability u has weight ``W = (u (1 - prior / total_k))^2``. With s the
    sum of the labelled rows and the weighted queries of the class, and m their total weight, the
    logit of query x is ``temper (sharpness (x.s / m - s.s / (2 m^2)) + extra + constant +
    ln(total_k - weight u))``, s and m without x itself. All products are in the metric.

    Parameters
    ----------
    given : Tensor [B, Q, K]
        Probabilities before the step: float32 or float64, on the CPU or a CUDA device, like all
        others.
    cross, inner : Tensor [B, Q, K]
        Products of the queries with the means of the labelled rows, and with the weighted sums of
        the queries.
    own : Tensor [B, Q]
        Products of the queries with themselves.
    extra : Tensor [B, Q, K] or None
    shots, squares : Tensor [B or 1, K]
        Labelled rows of a class, and the product of their mean with itself.
    sharpness : Tensor [B]
    constant, total : Tensor [B, K]
        ``total`` is the count of a class among the queries plus its prior.
    prior : Tensor [B]
    weight : float
        Of a query in ``total``, from 1e-30 to 1.
    temper : float
        In (0, 1e6].
    backend : {"auto", "native", "reference"}
        As in `solve`.

    Returns
    -------
    Tensor [B, Q, K], Tensor [B, Q] int64

    Examples
    --------
    >>> import torch
    >>> given, ones = torch.full((1, 2, 2), 0.5), torch.ones(1, 2)
    >>> cross, prior = torch.tensor([[[3.0, 0.0], [0.0, 3.0]]]), torch.ones(1)
    >>> step(given, cross, 0 * cross, ones, None, ones, ones, prior, ones, ones, prior)[1]
    tensor([[0, 1]])
    """
    tensors = (
        *(given, cross, inner, own, extra),
        *(shots, squares, sharpness, constant, total, prior),
    )
    check_step(*tensors, weight, temper)
    if takes_reference(backend, given):
        from .. import reference

        return reference.step(*tensors, weight=weight, temper=temper)
    found: tuple[Tensor, Tensor] = step_op(*tensors, weight, temper)
    return found


def check_step(
    given: Tensor,
    cross: Tensor,
    inner: Tensor,
    own: Tensor,
    extra: Tensor | None,
    shots: Tensor,
    squares: Tensor,
    sharpness: Tensor,
    constant: Tensor,
    total: Tensor,
    prior: Tensor,
    weight: float,
    temper: float,
) -> None:
    check_floats("given", given)
    check.query_weight(weight)
    check.real("temper", temper, positive=True, most=1e6)
    if given.dim() != 3 or given.shape[1] < 1 or given.shape[2] < 1:
        raise ValueError(
            f"given must have shape [B, Q, K] with Q and K at least 1, got {list(given.shape)}"
        )
    B, Q, K = given.shape
    check.features("shots", shots)
    L = 1 if shots.shape[:1] == (1,) else B  # labelled rows shared by all tasks
    others = (
        ("cross", cross, (B, Q, K)),
        ("inner", inner, (B, Q, K)),
        ("own", own, (B, Q)),
        ("extra", extra, (B, Q, K)),
        ("shots", shots, (L, K)),
        ("squares", squares, (L, K)),
        ("sharpness", sharpness, (B,)),
        ("constant", constant, (B, K)),
        ("total", total, (B, K)),
        ("prior", prior, (B,)),
    )
    check_alike("given", given, others, optional="extra")


def allocate(given: Tensor) -> tuple[Tensor, Tensor]:
    B, Q, K = given.shape
    new = allocator(given)
    return new((B, Q, K), (Q * K, K, 1), given.dtype), new((B, Q), (Q, 1), torch.int64)


def step_kernel(
    given: Tensor,
    cross: Tensor,
    inner: Tensor,
    own: Tensor,
    extra: Tensor | None,
    shots: Tensor,
    squares: Tensor,
    sharpness: Tensor,
    constant: Tensor,
    total: Tensor,
    prior: Tensor,
    weight: float,
    temper: float,
) -> tuple[Tensor, Tensor]:
    tensors = (
        *(given, cross, inner, own, extra),
        *(shots, squares, sharpness, constant, total, prior),
    )
    check_step(*tensors, weight, temper)
    B, Q, K = given.shape
    probabilities, labels = allocate(given)
    if B == 0:
        return probabilities, labels
    # The copies, if any, must live as long as the call.
    held = [x if x is None else x.contiguous() for x in (computable("given", given), *tensors[1:])]
    pointers = [0 if x is None else x.data_ptr() for x in held]
    call = native.module.step_call(
        target=target(given),
        dtype=check.DTYPES[given.dtype],
        B=B,
        Q=Q,
        K=K,
        shared=shots.shape[0] == 1,
        weight=weight,
        temper=temper,
    )
    memory = workspace(call.workspace(), given)
    call.solve(
        given=pointers[0],
        cross=pointers[1],
        inner=pointers[2],
        own=pointers[3],
        extra=pointers[4],
        shots=pointers[5],
        squares=pointers[6],
        sharpness=pointers[7],
        constant=pointers[8],
        total=pointers[9],
        prior=pointers[10],
        probabilities=probabilities.data_ptr(),
        labels=labels.data_ptr(),
        workspace=memory.data_ptr(),
        workspace_bytes=memory.numel(),
    )
    return probabilities, labels


def step_fake(given: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    check_step(given, *others)  # type: ignore[arg-type]
    return allocate(given)


register(
    "step(Tensor given, Tensor cross, Tensor inner, Tensor own, Tensor? extra, Tensor shots, "
    "Tensor squares, Tensor sharpness, Tensor constant, Tensor total, Tensor prior, float weight, "
    "float temper) -> (Tensor, Tensor)",
    step_kernel,
    step_fake,
)

step_op = torch.ops.paddle_ext.step.default
