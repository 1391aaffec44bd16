"""Rows that belong together: of one place, day or customer. Letters: Q rows, G groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import check

# The group of each row: integers, or strings.
GroupNames: TypeAlias = Tensor | np.ndarray[Any, Any] | Sequence[int] | Sequence[str]


class Groups(NamedTuple):
    """The groups of rows, in the order of their names."""

    names: list[Any]  # G distinct integers or strings, in ascending order
    of_row: Tensor  # [Q] int64: the place of a row's group in `names`
    sizes: Tensor  # [G] int64: how many rows each group has
    order: Tensor  # [Q] int64: the rows, group by group, each in the order of the caller

    @property
    def starts(self) -> Tensor:
        """Where each group begins in `order`, and the end, [G + 1] int64."""
        return F.pad(self.sizes.cumsum(0), (1, 0))

    def to(self, device: torch.device | str) -> Groups:
        return Groups(self.names, *(x.to(device) for x in self[1:]))

    def sums(self, x: Tensor) -> Tensor:
        """Sums of rows [Q, N] by group, [G, N]; the order of summation is fixed."""
        return F.embedding_bag(self.order, x, self.starts[:-1], mode="sum")


def groups_of(groups: Any, rows: int, device: torch.device) -> Groups:
    """Check the groups of `rows` rows, one integer or string for each; on CUDA it synchronises."""
    (values,) = check.tensors(groups)
    if not isinstance(values, Tensor):
        return named_groups(values, rows, device)
    check.dense_tensor("groups", values)
    if values.is_complex() or values.dtype is torch.bool:
        raise TypeError(f"groups must be integers or strings, got {check.plain(values.dtype)}")
    check_length(values.shape, rows)
    values = values.detach().to(device)
    if values.is_floating_point():
        wrong = values != values.trunc()  # NaN too
        wrong |= values.isinf()
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            got = f"{values[place].item():g} in row {place}"
            raise ValueError(f"groups must be integers or strings, got {got}")
    names, of_row, sizes = torch.unique(values.long(), return_inverse=True, return_counts=True)
    return Groups(names.tolist(), of_row, sizes, of_row.argsort(stable=True))


def named_groups(values: Any, rows: int, device: torch.device) -> Groups:
    """Groups by a sequence of strings or integers, such as a list or a column of a table."""
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise TypeError(f"groups must be an integer or a string per row, got {check.kind(values)}")
    array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    check_length(array.shape, rows)
    is_text = len(array) == 0 or isinstance(array[0], str)  # the others must be alike
    fits = (isinstance(x, str) if is_text else is_whole(x) for x in array)
    odd = next((i for i, fit in enumerate(fits) if not fit), None)
    if odd is not None:
        got = f"{array[odd]!r} in row {odd}"
        raise ValueError(f"groups must be all integers or all strings, got {got}")
    if not is_text:
        return groups_of(torch.tensor([int(x) for x in array]), rows, device)
    names, of_row = np.unique(array.astype(str), return_inverse=True)
    numbered = groups_of(torch.from_numpy(of_row.reshape(-1)), rows, device)
    return numbered._replace(names=names.tolist())


def is_whole(x: object) -> bool:
    """Whether this is an integer, also one written as a float; no bool."""
    if isinstance(x, float):
        return x.is_integer()
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def check_length(shape: tuple[int, ...], rows: int) -> None:
    if tuple(shape) != (rows,):
        raise ValueError(f"groups must have shape [{rows}], one for each row, got {list(shape)}")
