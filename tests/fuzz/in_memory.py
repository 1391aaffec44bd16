"""Tensors laid out in memory in every way; numbers between theirs are 77, and must not be read.

Most layouts hold the numbers they are given. `EXPANDED` repeat some of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]


def other(x: Tensor) -> Tensor:
    return torch.full_like(x, 77)


def offset(x: Tensor, by: int = 1) -> Tensor:
    flat = x.flatten()
    return torch.cat([other(flat[:1]).expand(by), flat])[by:].view(x.shape)


def between_addresses(x: Tensor) -> Tensor:
    """At an odd byte, as in the middle of a file; torch itself copies to a GPU."""
    if x.is_cuda:
        return x
    flat = x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
    memory = torch.cat([flat[:1], flat]).numpy()
    found = torch.frombuffer(memory, dtype=x.dtype, offset=1).view(x.shape)
    assert x.element_size() == 1 or found.data_ptr() % x.element_size()
    return found


def every_third(x: Tensor) -> Tensor:
    """Every third row; of one dimension, every third number."""
    rows = max(0, x.dim() - 2)
    three = torch.stack([x, other(x), other(x)], rows + 1).flatten(rows, rows + 1)
    return three.unfold(rows, 1, 3).squeeze(-1)


EXPANDED: dict[str, Layout] = {
    "expanded": lambda x: x[:1].expand(x.shape) if x.dim() > 1 else x,
    "expanded column": lambda x: x[..., :1].expand(x.shape) if x.is_floating_point() else x,
}
LAYOUTS: dict[str, Layout] = {
    "column-major": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "batch last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "strided": lambda x: torch.stack([x, other(x)], -1)[..., 0],
    "offset": offset,
    "between addresses": between_addresses,
    "every third": every_third,
    **EXPANDED,
}
