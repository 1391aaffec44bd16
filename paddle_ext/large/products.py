"""Matrix products with the rows of large tasks: by the fastest library, as precise as needed.

Letters: B tasks, N rows in a chunk, K classes, D features. In the coordinates of a task a row is

    x = length row scale - centre

with a length per row, and a scale and a centre per feature. A `Form` says how x is passed to the
library: unchanged, as halves for tensor cores, or not at all if the rows are already halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..rows import laid_out, power_of_two
from .steps import add_sums, split

SMALL = {torch.float32: 1e-9, torch.float64: 1e-16}  # class sums ignore smaller probabilities
DENSE = 16  # if more than one in 16 is larger, a product by the library is faster
MANY_ROWS = 2**18  # from this many rows on, the rounding of halves in class sums averages out
SUMS_AT_ONCE = 4  # parts of a chunk that are summed by class at once, to keep the GPU busy


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of B tasks, all in the dtype of the computation."""

    length: Tensor | None  # [B, all rows of the task]
    scale: Tensor  # [B, D]
    centre: Tensor  # [B, D]

    def lengths(self, part: slice) -> Tensor | None:
        """Lengths of some rows, [B, N]."""
        return None if self.length is None else self.length[:, part].contiguous()

    def of(self, rows: Tensor, part: slice) -> Tensor:
        """The rows [B, N, D] in these coordinates."""
        x, length = rows.to(self.scale.dtype), self.lengths(part)
        if length is not None:
            x = x * length.unsqueeze(-1)
        return torch.addcmul(-self.centre.unsqueeze(1), x, self.scale.unsqueeze(1))

    def halves(self, rows: Tensor, part: slice, pieces: int) -> Tensor:
        """The rows in these coordinates as float16 pieces, on CUDA; see `split`."""
        return split(rows, pieces, self.scale, self.centre, length=self.lengths(part))


class Form(Protocol):
    """How rows and prototypes are multiplied, and how rows are summed by class."""

    coordinates: Coordinates
    written: ClassVar[torch.dtype | None]  # dtype of class-sum weights; None: that of the products
    rest: bool  # whether class sums need the rounding errors of these weights too
    weigh: ClassVar[bool]  # whether the weights must include the length, which the operand does not

    @property
    def pieces(self) -> int:
        """How many halves represent a number of a prototype; 0 if it is not split."""

    @property
    def on_prototypes(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Scale, centre and factor [B, D] to apply to prototypes, if rows are multiplied raw."""

    def operand(self, rows: Tensor, part: slice) -> Tensor:
        """The rows [B, N, D] prepared as a factor of products, [B, N, ..]."""

    def factor(self) -> Tensor | float:
        """What products must be multiplied by, [B] or a number."""

    def products(self, x: Tensor, w: Tensor) -> Tensor:
        """Products of prepared rows x with prepared prototypes w, [B, N, K]."""

    def zero_sums(self, K: int) -> list[Tensor]:
        """Zeros to which `add` adds the sums of rows by class."""

    def add(self, sums: list[Tensor], u: Tensor, rest: Tensor | None, x: Tensor) -> None:
        """Add the sums by class of prepared rows x with weights u [B, N, K], and their errors."""

    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        """The final sums in the coordinates, [B, K, D]; `held` [B, K] are the sums of weights."""


class Plain:
    """Rows in their coordinates, in the dtype of the computation, on the CPU.

    The memory order decides which library multiplies: if both factors are contiguous along the
    summed dimension, torch on ARM calls oneDNN, which uses all cores whatever the thread limit is.
    """

    written: ClassVar[torch.dtype | None] = None
    weigh: ClassVar[bool] = False
    pieces = 0
    on_prototypes = None

    def __init__(self, coordinates: Coordinates) -> None:
        self.coordinates, self.rest = coordinates, False

    def operand(self, rows: Tensor, part: slice) -> Tensor:
        return self.coordinates.of(rows, part)

    def factor(self) -> float:
        return 1.0

    def prototypes(self, w: Tensor) -> Tensor:
        """Prototypes [B, K, D] in the coordinates, prepared as a factor of products."""
        return laid_out(w)

    def products(self, x: Tensor, w: Tensor) -> Tensor:
        return matrix_products(x, w.mT)

    def zero_sums(self, K: int) -> list[Tensor]:
        B, D = self.coordinates.scale.shape
        return [self.coordinates.scale.new_zeros(B, K, D)]

    def add(self, sums: list[Tensor], u: Tensor, rest: Tensor | None, x: Tensor) -> None:
        if add_sums(sums[0], u, x, SMALL[u.dtype], u.numel() // DENSE):
            return
        if len(u) == 1:
            sums[0][0].addmm_(u[0].T, x[0])
        else:
            sums[0].baddbmm_(u.mT, x)

    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        return sums[0]


class Halves:
    """Numbers as one half-precision number (a "half") or the sum of two, for tensor cores.

    Products are summed in float32. With `sums_of_two`, class sums use two halves as well; otherwise
    their terms are rounded to one, which averages out if classes have many rows.
    """

    written: ClassVar[torch.dtype | None] = torch.float16
    weigh: ClassVar[bool] = False
    pieces: int
    on_prototypes = None

    def __init__(self, coordinates: Coordinates, sums_of_two: bool) -> None:
        self.coordinates, self.rest = coordinates, sums_of_two

    def operand(self, rows: Tensor, part: slice) -> Tensor:
        return self.coordinates.halves(rows, part, self.pieces)

    def factor(self) -> float:
        return 1.0

    def products(self, x: Tensor, w: Tensor) -> Tensor:
        return half_products(x, w.mT)

    def zero_sums(self, K: int) -> list[Tensor]:
        B, D = self.coordinates.scale.shape
        new, at_once = self.coordinates.scale.new_zeros, SUMS_AT_ONCE if B == 1 else B
        return [new(at_once, K, 2 * D), new(at_once, K, D)] if self.rest else [new(at_once, K, D)]

    def add(self, sums: list[Tensor], u: Tensor, rest: Tensor | None, x: Tensor) -> None:
        add_half_products(sums[0], u, x[..., : sums[0].shape[-1]])
        if rest is not None:
            add_half_products(sums[1], rest, x[..., : sums[1].shape[-1]])

    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        B, D = self.coordinates.scale.shape
        found = sums[0]
        if self.rest:
            found = sums[0][..., :D] + sums[0][..., D:] + sums[1]
        return found if len(found) == B else found.sum(0, keepdim=True)


class OneHalf(Halves):
    """Everything rounded to half precision."""

    pieces = 1

    def __init__(self, coordinates: Coordinates) -> None:
        super().__init__(coordinates, sums_of_two=False)

    def prototypes(self, w: Tensor) -> Tensor:
        return w.half()


class TwoHalves(Halves):
    """As accurate as float32: only the product of two rounding errors is lost."""

    pieces = 3

    def prototypes(self, w: Tensor) -> Tensor:
        high, low = halves(w)
        return torch.cat([high, high, low], -1)


class RowsAsTheyAre:
    """Rows that are already float16, multiplied raw; the coordinates are applied to the prototypes.

    ``x.w = length row.(scale w) - centre.w``, and the weights of class sums include the length.
    Prototypes are one half, or the sum of two; then each row is repeated, so that one product
    multiplies it by both halves.
    """

    written: ClassVar[torch.dtype | None] = torch.float16
    weigh: ClassVar[bool] = True

    def __init__(self, coordinates: Coordinates, of_two: bool, sums_of_two: bool) -> None:
        self.coordinates, self.pieces, self.rest = coordinates, 2 if of_two else 1, sums_of_two
        # Dividing by it keeps scaled prototypes within the range of float16.
        self.unit = power_of_two(coordinates.scale.abs().amax(-1))
        factor = coordinates.scale / self.unit.unsqueeze(-1)
        self.on_prototypes = coordinates.scale, coordinates.centre, factor

    def operand(self, rows: Tensor, part: slice) -> Tensor:
        return self.coordinates.halves(rows, part, 2) if self.pieces == 2 else rows

    def factor(self) -> Tensor:
        return self.unit.double()

    def products(self, x: Tensor, w: Tensor) -> Tensor:
        return half_products(x, w.mT)

    def zero_sums(self, K: int) -> list[Tensor]:
        B, D = self.coordinates.scale.shape
        return [self.coordinates.scale.new_zeros(SUMS_AT_ONCE if B == 1 else B, K, D)]

    def add(self, sums: list[Tensor], u: Tensor, rest: Tensor | None, x: Tensor) -> None:
        x = x[..., : sums[0].shape[-1]]
        add_half_products(sums[0], u, x)
        if rest is not None:
            add_half_products(sums[0], rest, x)

    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        c = self.coordinates
        found = sums[0] if len(sums[0]) == len(c.scale) else sums[0].sum(0, keepdim=True)
        centre = held.to(found.dtype).unsqueeze(-1) * c.centre.unsqueeze(1)
        return found * c.scale.unsqueeze(1) - centre


def matrix_products(x: Tensor, y: Tensor) -> Tensor:
    """[B, N, D] and [B, D, K] -> [B, N, K]; torch runs a batch of one on a single thread."""
    return torch.mm(x[0], y[0]).unsqueeze(0) if len(x) == 1 else torch.bmm(x, y)


def halves(w: Tensor) -> tuple[Tensor, Tensor]:
    """w rounded to half precision, and the rounding error."""
    high = w.half()
    return high, (w - high).half()


@contextmanager
def tensor_float() -> Iterator[None]:
    """Within this context float32 products on CUDA use TF32, which is exact for halves."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@cache
def has_float_results() -> bool:
    """Whether torch can multiply halves with float32 results."""
    return hasattr(torch.ops.aten.bmm, "dtype") and hasattr(torch.ops.aten.baddbmm, "dtype_out")


def half_products(x: Tensor, w: Tensor) -> Tensor:
    """[B, N, E] and [B, E, K] float16 -> [B, N, K] float32."""
    if has_float_results():
        found: Tensor = torch.ops.aten.bmm.dtype(x, w, torch.float32)
        return found
    with tensor_float():
        return torch.bmm(x.float(), w.float())


def add_half_products(sums: Tensor, u: Tensor, x: Tensor) -> None:
    """Add u^T x, of float16 u [B, N, K] and x [B, N, E], to `sums` [B, K, E] float32.

    For one task there may be several sums [n, K, E], each of a part of its rows.
    """
    if len(sums) != len(u):
        N = u.shape[1]
        if N % len(sums):
            sums = sums[:1]
        else:
            u, x = (y[0].reshape(len(sums), N // len(sums), -1) for y in (u, x))
    if has_float_results():
        torch.ops.aten.baddbmm.dtype_out(sums, u.mT, x, torch.float32, out=sums)
        return
    with tensor_float():
        sums.baddbmm_(u.float().mT, x.float())
