"""The queries of large tasks, in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..native.call import packed
from .sources import Rows

CUDA_NUMBERS = 5 * 2**23  # of the products of a chunk: enough to hide the cost of launches
CPU_NUMBERS = 2**19


def numbers_at_once(device: torch.device) -> int:
    """How many numbers the largest matrix of a chunk may have."""
    return CUDA_NUMBERS if device.type == "cuda" else CPU_NUMBERS


class Queries:
    """The queries of one task from any source, or those of a few tasks in a tensor [B, N, D]."""

    def __init__(self, source: Rows | Tensor) -> None:
        self.source = source
        self.B = len(source) if isinstance(source, Tensor) else 1
        self.N, self.D = source.shape[-2:]
        self.features, self.device = source.dtype, source.device
        self.dtype = torch.float64 if source.dtype is torch.float64 else torch.float32

    def rows_at_once(self, numbers: int) -> int:
        """How many rows a chunk has, if each row takes this many numbers."""
        if isinstance(self.source, Tensor):
            return self.N
        return max(256, numbers_at_once(self.device) // numbers // 256 * 256)

    def chunks(self, numbers: int) -> Iterator[tuple[slice, Tensor]]:
        """Indices and contiguous rows [B, n, D] of each chunk; `numbers` as in `rows_at_once`."""
        if isinstance(self.source, Tensor):
            yield slice(0, self.N), packed(self.source)
            return
        start = 0
        for rows in self.source.chunks(self.rows_at_once(numbers)):
            yield slice(start, start + len(rows)), packed(rows).unsqueeze(0)
            start += len(rows)
