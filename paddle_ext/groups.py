"""Rows that belong together, of one place, day or customer, and rows that are the same thing.

Letters: Q rows, G groups, T things.
"""

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

    @property
    def first(self) -> Tensor:
        """The first row of each group, [G] int64."""
        return self.order[self.starts[:-1]]

    def to(self, device: torch.device | str) -> Groups:
        return Groups(self.names, *(x.to(device) for x in self[1:]))

    def sums(self, x: Tensor) -> Tensor:
        """Sums of rows [Q, N] by group, [G, N]; the order of summation is fixed."""
        return F.embedding_bag(self.order, x, self.starts[:-1], mode="sum")

    def means(self, x: Tensor) -> Tensor:
        """Means of rows [Q, N] by group, [G, N]."""
        return self.sums(x) / self.sizes.to(x.dtype).unsqueeze(-1)

    def of_things(self, things: Groups) -> Groups:
        """The groups of things, whose rows are each in one group."""
        of_row = self.of_row[things.first]
        sizes = of_row.bincount(minlength=len(self.names))
        return Groups(self.names, of_row, sizes, of_row.argsort(stable=True))


def groups_of(groups: Any, rows: int, device: torch.device, name: str = "groups") -> Groups:
    """Check the groups of `rows` rows, one integer or string for each; on CUDA it synchronises.

    `name` is that of the argument in errors.
    """
    (values,) = check.tensors(groups)
    if not isinstance(values, Tensor):
        return named_groups(values, rows, device, name)
    check.dense_tensor(name, values)
    if values.is_complex() or values.dtype is torch.bool:
        raise TypeError(f"{name} must be integers or strings, got {check.plain(values.dtype)}")
    check_length(values.shape, rows, name)
    if values.is_floating_point() or values.dtype is torch.uint64:
        return named_groups(values.tolist(), rows, device, name)
    values, order = values.to(device).long().sort(stable=True)
    names, place, sizes = torch.unique_consecutive(values, return_inverse=True, return_counts=True)
    return Groups(names.tolist(), torch.empty_like(place).scatter_(0, order, place), sizes, order)


def named_groups(values: Any, rows: int, device: torch.device, name: str) -> Groups:
    """Groups by a sequence of strings or integers, such as a list or a column of a table."""
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise TypeError(f"{name} must be an integer or a string per row, got {check.kind(values)}")
    array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    check_length(array.shape, rows, name)
    is_text = len(array) == 0 or isinstance(array[0], str)  # the others must be alike
    fits = (isinstance(x, str) if is_text else is_whole(x) for x in array)
    odd = next((i for i, fit in enumerate(fits) if not fit), None)
    if odd is not None:
        got = f"{array[odd]!r} in row {odd}"
        raise ValueError(f"{name} must be all strings or all integers of 64 bits, got {got}")
    if not is_text:
        return groups_of(torch.tensor([int(x) for x in array], device="cpu"), rows, device, name)
    texts = [str.__str__(x) for x in array]  # of an enumeration, too
    names = sorted(set(texts))
    place = {text: number for number, text in enumerate(names)}
    numbered = groups_of(
        torch.tensor([place[x] for x in texts], dtype=torch.int64, device="cpu"), rows, device
    )
    return numbered._replace(names=names)


def is_whole(x: object) -> bool:
    """Whether this is an integer of 64 bits, also one written as a float; no bool."""
    if isinstance(x, bool) or not isinstance(x, int | float | np.integer):
        return False
    return bool(-(2**63) <= x < 2**63) and int(x) == x  # not NaN


def check_length(shape: tuple[int, ...], rows: int, name: str) -> None:
    if tuple(shape) != (rows,):
        raise ValueError(f"{name} must have shape [{rows}], one for each row, got {list(shape)}")


def groups_and_things(
    groups: Any, same: Any, rows: int, device: torch.device, name: str = "same", kind: str = "group"
) -> tuple[Groups | None, Groups | None]:
    """Check groups and things as `groups_of` does, and that each thing is in one group (`kind`)."""
    grouped = None if groups is None else groups_of(groups, rows, device)
    things = None if same is None else groups_of(same, rows, device, name)
    if grouped is None or things is None:
        return grouped, things
    apart = grouped.of_row != grouped.of_row[things.first][things.of_row]
    if bool(apart.any()):
        row = int(apart.nonzero()[0])
        thing = int(things.of_row[row])
        found = [grouped.names[int(grouped.of_row[x])] for x in (things.first[thing], row)]
        raise ValueError(
            f"{name} must have the rows of a thing in one {kind}, got {things.names[thing]!r} in "
            f"{found[0]!r} and {found[1]!r}"
        )
    return grouped, things


def thing_logits(logits: Tensor, things: Groups, known: Any = 0.0, labelled: int = 0) -> Tensor:
    """The logits of things [T, K] from those of their rows [Q, K], in float64.

    If rows of a thing correlate by r within their class, n of them are worth
    ``n / (1 + (n - 1) r)`` independent rows. r is estimated from these logits, and averaged with
    `known` by degrees of freedom, `labelled` of which `known` has. If neither can tell, it is 1.
    docs/groups.md has the equations.
    """
    x, n = logits.double(), things.sizes.double().unsqueeze(-1)
    mean = things.means(x)
    p = x.log_softmax(-1).clamp(min=torch.finfo(x.dtype).min)
    finite = x.isfinite().all(0)
    x = torch.where(finite, x, 0.0)
    x = x - finite * (x.sum(-1, keepdim=True) / finite.sum().clamp(min=1))
    x = x / x.abs().amax().clamp(min=1e-300)  # the scale does not matter, and squares stay finite
    own, u = things.means(x), mean.softmax(-1)
    held = u.sum(0)
    centres = (u.mT @ own) / held.clamp(min=1e-300).unsqueeze(-1)
    within = (x - own[things.of_row]).square().sum() / max(len(x) - len(n), 1)
    freedom = len(n) - held.clamp(max=1).sum()
    between = (u * torch.cdist(own, centres).square()).sum() / freedom.clamp(min=1)
    # A mean of n rows varies by within / n more than what they have in common.
    variance = between + within * (1 - 1 / n).mean()
    freedom = torch.where((freedom >= 1) & (variance > 0), freedom, 0.0)
    r = freedom * (1 - within / variance.clamp(min=1e-300)).clamp(0, 1) + labelled * known
    r = torch.where(freedom + labelled > 0, r / (freedom + labelled).clamp(min=1), 1.0)
    # Between the geometric mean of likelihoods, of independent rows, and their arithmetic mean.
    power, place = r.clamp(min=1e-12), things.of_row.unsqueeze(-1).expand_as(p)
    most = torch.full_like(mean, -torch.inf).scatter_reduce(0, place, p, "amax")
    likely = things.means((power * (p - most[things.of_row])).expm1()).log1p() / power + most
    return likely.masked_fill(mean.isneginf(), -torch.inf) * n / (1 + (n - 1) * r)
