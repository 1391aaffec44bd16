"""Matrix products with the rows of large tasks: by the fastest library, as precise as needed.

Letters: B tasks, N rows in a chunk, K classes, D features. Rows are first transformed to

    x = length row scale - centre

with a length per row, and a scale and a centre per feature. A `Form` says how x is passed to the
library: unchanged, as halves for tensor cores, or not at all if the rows are already halves.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from ..rows import laid_out, power_of_two
from .steps import add_sums, split

Add: TypeAlias = Callable[[int], None]

SMALL = {torch.float32: 1e-9, torch.float64: 1e-16}  # class sums ignore smaller probabilities
DENSE = 16  # if more than one in 16 is larger, a product by the library is faster
MANY_ROWS = 2**18  # from this many rows on, the rounding of halves in class sums averages out
SUMS_AT_ONCE = 4  # parts of a chunk that are summed by class at once, to keep the GPU busy


@dataclass(frozen=True)
class Transform:
    """The transform of the rows of B tasks, all in the dtype of the computation."""

    length: Tensor | None  # [B, all rows of the task]
    scale: Tensor  # [B, D]
    centre: Tensor  # [B, D]

    def lengths(self, part: slice) -> Tensor | None:
        """Lengths of some rows, [B, N]."""
        return None if self.length is None else self.length[:, part].contiguous()

    def apply(self, rows: Tensor, part: slice) -> Tensor:
        """The rows [B, N, D], transformed."""
        x, length = rows.to(self.scale.dtype), self.lengths(part)
        if length is not None:
            x = x * length.unsqueeze(-1)
        return torch.addcmul(-self.centre.unsqueeze(1), x, self.scale.unsqueeze(1))

    def halves(self, rows: Tensor, part: slice, pieces: int) -> Tensor:
        """The transformed rows as float16 pieces, on CUDA; see `split`."""
        return split(rows, pieces, self.scale, self.centre, length=self.lengths(part))


class Form(ABC):
    """How rows and prototypes are multiplied, and how rows are summed by class."""

    weight_dtype: ClassVar[torch.dtype | None] = torch.float16  # in class sums; None: the products'
    weigh: ClassVar[bool] = False  # whether the weights must include the length, as x does not
    pieces: int  # how many halves represent a number of a prototype; 0 if it is not split
    # Scale, centre and factor [B, D] to apply to prototypes, if rows are not transformed.
    on_prototypes: tuple[Tensor, Tensor, Tensor] | None = None
    factor: Tensor | float = 1.0  # of the products, [B] or a number

    def __init__(self, transform: Transform, *, sums_of_two: bool = False) -> None:
        """With `sums_of_two`, class sums need the rounding errors of their weights too."""
        self.transform, self.sums_of_two = transform, sums_of_two

    @abstractmethod
    def operand(self, rows: Tensor, part: slice) -> Tensor:
        """The rows [B, N, D] prepared as a factor x of products, [B, N, ..]."""

    @abstractmethod
    def products(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        """Products of prepared rows x with prepared prototypes w, [B, N, K], in `out` if given."""

    @abstractmethod
    def zero_sums(self, K: int) -> list[Tensor]:
        """Zeros for the sums of rows by class."""

    @abstractmethod
    def adder(self, sums: list[Tensor], u: Tensor, rest: Tensor | None, x: Tensor) -> Add:
        """A function of 1 or 0, whether to keep `sums`, that adds the class sums of rows x to them.

        u [B, N, K] are their weights, and `rest` the rounding errors of these.
        """

    @abstractmethod
    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        """The sums of transformed rows, [B, K, D]; `held` [B, K] are the sums of weights."""


class Plain(Form):
    """Transformed rows in the dtype of the computation, on the CPU.

    The memory order decides which library multiplies: if both factors are contiguous along the
    summed dimension, torch on ARM calls oneDNN, which uses all cores whatever the thread limit is.
    """

    weight_dtype = None
    pieces = 0

    def operand(self, rows: Tensor, part: slice) -> Tensor:
        return self.transform.apply(rows, part)

    def prototypes(self, w: Tensor) -> Tensor:
        """Prototypes [B, K, D], transformed, prepared as a factor of products."""
        return laid_out(w)

    def products(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        if len(x) > 1:
            return torch.bmm(x, w.mT, out=out)
        # Torch runs a batch of one on a single thread.
        return torch.mm(x[0], w[0].T, out=None if out is None else out[0]).unsqueeze(0)

    def zero_sums(self, K: int) -> list[Tensor]:
        B, D = self.transform.scale.shape
        return [self.transform.scale.new_zeros(B, K, D)]

    def adder(self, sums: list[Tensor], u: Tensor, rest: Tensor | None, x: Tensor) -> Add:
        def add(beta: int) -> None:
            if beta == 0:
                sums[0].zero_()
            for to, own, rows in zip(sums[0], u, x, strict=True):  # no task depends on the others
                if not add_sums(to, own, rows, SMALL[u.dtype], own.numel() // DENSE):
                    to.addmm_(own.T, rows)

        return add

    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        return sums[0]


class Halves(Form):
    """Numbers as one half-precision number (a "half") or the sum of two, for tensor cores.

    Products are summed in float32. With `sums_of_two`, class sums use two halves as well; otherwise
    their terms are rounded to one, which averages out if classes have many rows.
    """

    def operand(self, rows: Tensor, part: slice) -> Tensor:
        return self.transform.halves(rows, part, self.pieces)

    def products(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            shape = *x.shape[:2], w.shape[1]
            out = torch.empty(shape, dtype=torch.float32, device=x.device)
        if has_float_results():
            return torch.bmm(x, w.mT, out_dtype=torch.float32, out=out)
        with tensor_float():
            return torch.bmm(x.float(), w.mT.float(), out=out)

    def zero_sums(self, K: int) -> list[Tensor]:
        B, D = self.transform.scale.shape
        widths = [2 * D, D] if self.sums_of_two and not self.weigh else [D]
        at_once = SUMS_AT_ONCE if B == 1 else B
        return [self.transform.scale.new_zeros(at_once, K, width) for width in widths]

    def adder(self, sums: list[Tensor], u: Tensor, rest: Tensor | None, x: Tensor) -> Add:
        terms = [factors(sums[0], u, x)]
        if rest is not None:
            terms.append(factors(sums[-1], rest, x))

        def add(beta: int) -> None:
            for number, (to, left, right) in enumerate(terms):
                # Rounding errors may have sums of their own, or be added to those of the weights.
                keep = beta if number < len(sums) else 1
                if has_float_results():
                    torch.baddbmm(to, left, right, out_dtype=torch.float32, beta=keep, out=to)
                else:
                    with tensor_float():
                        to.baddbmm_(left.float(), right.float(), beta=keep)

        return add

    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        B, D = self.transform.scale.shape
        whole = sums[0]
        if self.sums_of_two:
            whole = sums[0][..., :D] + sums[0][..., D:] + sums[1]
        return whole if len(whole) == B else whole.sum(0, keepdim=True)


class OneHalf(Halves):
    """Everything rounded to half precision."""

    pieces = 1

    def prototypes(self, w: Tensor) -> Tensor:
        return w.half()


class TwoHalves(Halves):
    """As accurate as float32: only the product of two rounding errors is lost."""

    pieces = 3

    def prototypes(self, w: Tensor) -> Tensor:
        high = w.half()
        return torch.cat([high, high, (w - high).half()], -1)


class RowsAsTheyAre(Halves):
    """Rows that are already float16, not transformed; the prototypes are instead.

    ``x.w = length row.(scale w) - centre.w``, and the weights of class sums include the length.
    Prototypes are one half, or the sum of two; then each row is repeated, so that one product
    multiplies it by both halves.
    """

    weigh = True

    def __init__(self, transform: Transform, *, of_two: bool, sums_of_two: bool = False) -> None:
        super().__init__(transform, sums_of_two=sums_of_two)
        self.pieces = 2 if of_two else 1
        # Dividing by it keeps scaled prototypes within the range of float16.
        unit = power_of_two(transform.scale.abs().amax(-1))
        self.factor = unit.double()
        on_prototypes = transform.scale / unit.unsqueeze(-1)
        self.on_prototypes = transform.scale, transform.centre, on_prototypes

    def operand(self, rows: Tensor, part: slice) -> Tensor:
        return torch.cat([rows, rows], -1) if self.pieces == 2 else rows

    def total(self, sums: list[Tensor], held: Tensor) -> Tensor:
        scale, centre = (x.unsqueeze(1) for x in (self.transform.scale, self.transform.centre))
        whole = sums[0] if len(sums[0]) == len(scale) else sums[0].sum(0, keepdim=True)
        return whole * scale - held.to(whole.dtype).unsqueeze(-1) * centre


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
    return hasattr(torch.ops.aten.bmm, "dtype_out") and hasattr(torch.ops.aten.baddbmm, "dtype_out")


def factors(sums: Tensor, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`sums` [B, K, E] float32, u^T and x, whose product is added to them.

    u [B, N, K] and x [B, N, E or more] are float16. For one task there may be several sums
    [n, K, E], each of a part of its rows; if these do not divide evenly, only the first is used.
    """
    x = x[..., : sums.shape[-1]]
    if len(sums) != len(u):
        N = u.shape[1]
        if N % len(sums):
            sums = sums[:1]
        else:
            u, x = (y[0].reshape(len(sums), N // len(sums), -1) for y in (u, x))
    return sums, u.mT, x
