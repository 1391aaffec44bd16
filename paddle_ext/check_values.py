"""Checks of the values of tensors: labels, indices, finite features.

They need a pass over the tensors, and on CUDA one host synchronisation, or two without
`num_classes`. `check` has the other checks, and re-exports these; `ops.values` is faster.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float64).max
# Features up to this size can be summed, over any number of rows, without overflow.
SUMMABLE = {torch.float16: 1e30, torch.bfloat16: 1e30, torch.float32: 1e30, torch.float64: 1e290}


def dense_values(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    num_classes: int | None,
    base_mean: Tensor | None = None,
) -> int:
    """Labels and finiteness; returns the number of classes."""
    seen = {"support_labels": support_labels, "support": support, "query": query}
    if base_mean is not None:
        seen["base_mean"] = base_mean
    return values(seen, support_labels, {}, num_classes)


def indexed_values(
    bank: Tensor,
    support_index: Tensor,
    support_labels: Tensor,
    query_index: Tensor,
    num_classes: int | None,
    base_mean: Tensor | None = None,
) -> int:
    """Labels, indices and finiteness (of the whole bank); returns the number of classes."""
    seen = {
        "support_labels": support_labels,
        "support_index": support_index,
        "query_index": query_index,
        "features": bank,
    }
    if base_mean is not None:
        seen["base_mean"] = base_mean
    N = bank.shape[0]
    return values(seen, support_labels, {"support_index": N, "query_index": N}, num_classes)


def values(
    seen: dict[str, Tensor], labels: Tensor, limits: dict[str, int], num_classes: int | None
) -> int:
    """Check all tensors by their extremes: one pass each, and one read for all."""
    seen = {name: x for name, x in seen.items() if x.numel() and not plainly_summable(x)}
    # A NaN anywhere makes both extremes NaN, so they show finiteness too.
    scalars = [extreme for x in seen.values() for extreme in torch.aminmax(x.detach())]
    if num_classes is not None:
        scalars += every_class(labels, num_classes)
    read = numbers_of(scalars)
    ranges = {name: (read[2 * i], read[2 * i + 1]) for i, name in enumerate(seen)}

    low, high = ranges.get("support_labels", (0, -1))
    if num_classes is None:
        if low < 0:
            raise ValueError(f"support_labels must be at least 0, got {low:.0f}")
        num_classes = int(high) + 1
        complete = numbers_of(every_class(labels, num_classes))
    else:
        outside("support_labels", low, high, num_classes)
        complete = read[2 * len(seen) :]
    if labels.numel() and complete != [True]:
        missing_class(labels, num_classes)
    for name, limit in limits.items():
        if name in ranges:
            outside(name, *ranges[name], limit)
    for name, (low, high) in ranges.items():
        most = SUMMABLE.get(seen[name].dtype, LARGEST)
        if not (low >= -most and high <= most):  # false for NaN
            too_large(name, seen[name], most)
    return num_classes


def plainly_summable(x: Tensor) -> bool:
    """Whether the norm alone rules out NaN, infinity and too large numbers.

    On the CPU it takes a third of the time of the extremes, which are then not needed; False is
    inconclusive. (`torch.dot` is even faster, but a forked child hung in it.)
    """
    if not x.is_cpu or x.dtype not in SUMMABLE or x.numel() < 2**12:
        return False  # on CUDA it would add a host synchronisation
    return bool(torch.linalg.vector_norm(x.detach()).item() <= SUMMABLE[x.dtype])


def numbers_of(scalars: list[Tensor]) -> list[float]:
    """Read zero-dimensional tensors, with one synchronisation for all."""
    if scalars and scalars[0].is_cuda:
        together: list[float] = torch.stack([x.double() for x in scalars]).tolist()
        return together
    return [x.item() for x in scalars]


def every_class(labels: Tensor, num_classes: int) -> list[Tensor]:
    """Whether each task has each class; None if there are fewer rows than classes."""
    if num_classes > labels.shape[-1]:
        return []
    return [presence(labels, num_classes).all()]


def presence(labels: Tensor, num_classes: int) -> Tensor:
    """[B or 1, K] bool; ignores labels out of range, which are reported separately."""
    labels = labels.long().reshape(-1, labels.shape[-1]).clamp(0, num_classes - 1)
    found = torch.zeros(labels.shape[0], num_classes, dtype=torch.bool, device=labels.device)
    return found.scatter_(1, labels, True)


def outside(name: str, low: float, high: float, limit: int) -> None:
    if low < 0 or high >= limit:
        got = low if low < 0 else high
        raise ValueError(f"{name} must be in [0, {limit}), got {got:.0f}")


def missing_class(labels: Tensor, num_classes: int) -> None:
    if num_classes > labels.shape[-1]:  # every task misses one, and K may be too large to list
        task, there = 0, set(labels.reshape(-1, labels.shape[-1])[0].tolist())
        label = next(k for k in range(num_classes) if k not in there)
    else:
        task, label = (~presence(labels, num_classes)).nonzero()[0].tolist()
    where = f" in task {task}" if labels.dim() == 2 else ""
    raise ValueError(
        f"support_labels must have every class in [0, {num_classes}) at least once, "
        f"got none of class {label}{where}"
    )


def too_large(name: str, x: Tensor, most: float) -> None:
    place = (~(x.double().abs() <= most)).nonzero()[0].tolist()
    value = x[tuple(place)].item()
    expected = f"at most {most:g} in magnitude" if math.isfinite(value) else "finite"
    raise ValueError(f"{name} must be {expected}, got {value:g} at {place}")
