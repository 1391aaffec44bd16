"""Arithmetic of feature rows: unit norm, squared distances, sums and means by class.

Nothing here modifies its input. A batch of 1 is shared by all tasks and not copied for each.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 32  # from here on, copying to OpenBLAS's preferred memory order pays: up to 3x faster
MANY_ROWS = 512  # from here on, the copy takes longer than it saves
PART = 2**24  # how many numbers are processed at once; 128 MiB in float64
KEY_FACTOR = -0x61C8864680B583EB  # 2^64 over the golden ratio, as a signed integer
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


def computing_dtype(features: Tensor) -> torch.dtype:
    """The dtype of computations: float64 for float64 features, float32 for all others."""
    return torch.float64 if features.dtype is torch.float64 else torch.float32


def unit_rows(x: Tensor) -> Tensor:
    """Rows of norm 1, [.., D]; a zero row stays zero."""
    largest = x.abs().amax(-1, keepdim=True)  # scale to at most 1, so that squares cannot overflow
    x = x / torch.threshold(largest, 0, 1)
    return x.div_(torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1))  # 0 or >= 1


def directions(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of which only the direction counts, in this dtype, for which they may be too large."""
    x = rows.to(dtype)
    fits = rows.dtype is not torch.float64 or dtype is torch.float64 or bool(x.sum().isfinite())
    return x if fits else unit_rows(rows).to(dtype)


def products(x: Tensor, w: Tensor) -> Tensor:
    """Scalar products of rows, [.., N, D] and [.., K, D] -> [.., N, K]."""
    if w.dim() == 3 and len(w) == 1 <= len(x):
        w = w[0]  # a batch of 1 would be copied for every task, and torch transposes it slowly
    if x.shape[-2] >= FEW_ROWS and w.shape[-2] < MANY_ROWS:
        w = laid_out(w)
    return x @ w.mT


def laid_out(w: Tensor) -> Tensor:
    """The rows [.., K, D] in the memory order that is fastest for products with many others."""
    return w.mT.contiguous().mT if w.is_cpu else w


def mean_row(x: Tensor) -> Tensor:
    """[B, N, D] -> [B, 1, D]; on the CPU a product is up to twice as fast as a mean."""
    B, N, _ = x.shape
    return torch.bmm(x.new_full((B, 1, N), 1 / N), x) if x.is_cpu else x.mean(1, keepdim=True)


def squared_distances(x: Tensor, w: Tensor) -> Tensor:
    """[.., N, D] and [.., K, D] -> [.., N, K], centred at the mean of w to avoid cancellation."""
    centre = w.mean(-2, keepdim=True)
    x, w = x - centre, w - centre
    squares = x.square().sum(-1).unsqueeze(-1) + w.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * products(x, w)).clamp(min=0)


def class_sums(
    rows: Tensor, labels: Tensor, num_classes: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums [.., K, D] of the rows of each class, in a fixed order, and counts [.., K] int64."""
    *batch, N, D = rows.shape
    K = num_classes
    tasks = batch[0] if batch else 1
    bags = torch.arange(tasks * K + 1, device=rows.device)  # one for each task and class
    ordered, order = (
        (labels.view(tasks, N) + bags[: tasks * K : K, None]).flatten().sort(stable=True)
    )
    starts = torch.searchsorted(ordered, bags)
    if weights is not None:
        weights = weights.flatten()[order]
    sums = F.embedding_bag(
        order, rows.reshape(-1, D), starts[:-1], mode="sum", per_sample_weights=weights
    )
    return sums.view(*batch, K, D), starts.diff().view(*batch, K)


def class_means(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """[.., N, D] and [.., N] -> [.., K, D]; every class must have a row."""
    sums, counts = class_sums(rows, labels, num_classes)
    return sums / counts.unsqueeze(-1)


def power_of_two(x: Tensor) -> Tensor:
    """The smallest power of two above each number >= 0; 1 for 0."""
    return torch.exp2(torch.frexp(x).exponent.to(x.dtype))


def power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two above all numbers of a task, [B, N, D] -> [B, 1, 1]."""
    return power_of_two(x.abs().amax((-2, -1), keepdim=True))


def parts(count: int, row: int, most: int = PART) -> Iterator[slice]:
    """Slices of `count` rows with `row` numbers each; a slice has at most `most` numbers."""
    size = max(1, most // max(1, row))
    return (slice(start, start + size) for start in range(0, count, size))


def evenly_spread(count: int, total: int, device: torch.device) -> Tensor:
    """`count` indices spread evenly over [0, `total`), each in the middle of its part; int64."""
    return (2 * torch.arange(count, device=device) + 1) * total // max(1, 2 * count)


def content_keys(rows: Tensor) -> Tensor:
    """A key of each row [.., N, D], as good as random, that depends on its content alone; int64.

    It depends neither on the order of the rows nor on other rows; equal rows have equal keys. On
    CUDA nothing synchronises.
    """
    *batch, N, D = rows.shape
    rows = rows.reshape(-1, D) if rows.numel() else rows.new_zeros(math.prod(batch) * N, D)
    # A sum of the bits, as integers, times odd numbers: unlike one of reals it is exact, so that it
    # depends neither on the order of summation nor on the size of the numbers.
    integers = INTEGERS[rows.element_size()]
    factors = (torch.arange(1, D + 1, device=rows.device) * KEY_FACTOR | 1).to(integers)
    keys = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    for part in parts(len(rows), D):
        x = rows[part].contiguous() + 0.0  # both zeros are the same number
        keys[part] = (x.view(integers) * factors).sum(-1, dtype=torch.int64)
    for _ in range(2):  # all bits of a key depend on all of the sum
        keys = (keys ^ (keys >> 31 & 0x1FFFFFFFF)) * KEY_FACTOR
    return keys.view(*batch, N)


def sample_by_content(rows: Tensor, count: int) -> Tensor:
    """The indices of `count` of the rows [N, D], in ascending order; all if there are no more.

    Which rows they are depends on their content alone, not on their order. Of equal rows it does
    not matter which is taken.
    """
    if count >= len(rows):
        return torch.arange(len(rows), device=rows.device)
    return content_keys(rows).argsort(stable=True)[:count].sort().values
