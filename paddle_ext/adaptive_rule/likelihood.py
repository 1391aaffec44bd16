"""Likelihoods of rows: what is learned from labelled rows, in the form that native code reads.

Letters: L tasks, or 1 for labelled rows shared by all B tasks; S labelled rows, K classes, D
features. N = K, or S + K with a full metric and S < D; M = min(S, D), rounded up to a multiple of
`FACTOR_BLOCK`. The equations are in docs/adaptive.md.

Which code runs depends on shapes only, not on values of tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..native.call import call_native, packed
from ..native.devices import on_cpu_without_gpu_code
from ..native.graphs import replayed
from ..native.load import module as native
from ..rows import class_sums, laid_out, products
from .steps import density_terms


class NativeTensor(NamedTuple):
    """How native code knows a tensor of a likelihood."""

    letters: str  # its shape
    name: str | None = None  # its name there; None: the same
    split: bool = False  # whether it is in halves on CUDA, as described by `split_kind`
    dtype: torch.dtype | None = None  # None: that of the rows


def shaped(letters: str, **options: Any) -> dict[str, NativeTensor]:
    """Metadata of a field that native code reads or writes as a tensor of this shape."""
    return {"native": NativeTensor(letters, **options)}


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihoods of rows, up to a constant per row, calibrated on labelled rows.

    A row x is first centred: made unit-norm, minus the centre, and unit-norm again. Its logits are
    ``-f/2 d_k(x) + bias_k``, with the distances d of equation (5), plus a linear correction of x if
    there is one. They are linear in x and its square in the metric:

        logit_k = x.weights_k - steepness_k x.x + constant_k

    "Scaled" rows are multiplied by the root of the feature weights. With a full metric, the product
    of two is ``plain x.y + projected (Z x).(Z y)``; Z is given by its Cholesky factor, see
    csrc/common/adaptive.h.
    """

    centre: Tensor = field(metadata=shaped("LD"))  # the mean of the class means
    prototypes: Tensor = field(metadata=shaped("LKD"))  # m_k, means of labelled rows and n0 others
    # The scaled prototypes; if N > K, the scaled offsets of rows from their class means come first.
    scaled: Tensor = field(metadata=shaped("LND", name="rows", split=True))
    squares: Tensor = field(metadata=shaped("LK"))  # of the prototypes, in the metric
    bias: Tensor = field(metadata=shaped("LK"))  # b_k, lower if a class attracts rows of others
    shots: Tensor = field(metadata=shaped("LK"))  # n_k, the labelled rows of each class
    prior_rows: Tensor = field(metadata=shaped("L"))  # n0, rows at the centre in every prototype
    variance: Tensor = field(metadata=shaped("L"))  # V inside classes, in squared length
    sharpness: Tensor = field(metadata=shaped("L"))  # f
    scale: Tensor = field(metadata=shaped("LD"))  # g, the weight of a feature, 1 on average
    rows: int  # S
    # With a full metric only: its Cholesky factor, with inverted diagonal blocks; Z of the scaled
    # prototypes; L; and the weight of the full metric, in [0, 1], plain and projected.
    factor: Tensor | None = field(default=None, metadata=shaped("LMM", split=True))
    solved: Tensor | None = field(default=None, metadata=shaped("LKM", split=True))
    scatter: Tensor | None = field(default=None, metadata=shaped("L"))
    shares: Tensor | None = field(default=None, metadata=shaped("L3"))
    absorbed: Tensor | None = None  # [L, K] how many rows of a batch are in the prototypes
    correction: Tensor | None = None  # [D + 1, K] of one task, the last row a constant
    ties: Tensor | None = None  # [1, 3] float64, if rows are means of labelled things: `ties_of`
    # True if every class has a row and all are finite, False is inconclusive; None: checked before.
    finite: Tensor | None = field(default=None, metadata=shaped("L", dtype=torch.bool))

    @property
    def labelled_mass(self) -> Tensor:
        """Of how many rows a prototype is the mean, [L, K], before it absorbs those of a batch."""
        return self.shots + self.prior_rows.unsqueeze(-1)

    @property
    def mass(self) -> Tensor:
        """Of how many rows each prototype is the mean, [L, K]."""
        return self.labelled_mass if self.absorbed is None else self.labelled_mass + self.absorbed

    @property
    def variance_seen(self) -> Tensor:
        """The variance inside classes that labelled rows show, in squared lengths of a row, [L].

        It is V / q of (4) without its prior; V / q is n0 / (n0 + 1). With one row of each class it
        is 1: nothing says that rows are alike.
        """
        degrees = self.rows - self.shots.shape[-1]
        share = self.prior_rows / (self.prior_rows + 1)
        if degrees <= 0:
            return torch.ones_like(share)
        of_prior = native.PRIOR_DEGREES * (native.VARIANCE_INSIDE - share) / degrees
        return (share - of_prior).clamp(0, 1)

    @cached_property
    def terms(self) -> tuple[Tensor, Tensor]:
        """The steepness and the constant of each class in the logits, [L, K] each."""
        of_classes = self.squares, self.mass, self.labelled_mass, self.bias
        steepness, constant = density_terms(*of_classes, self.variance, self.sharpness)
        return steepness, constant

    @cached_property
    def weights(self) -> Tensor:
        """The factors of a centred row in its logits, [L, K, D]."""
        return laid_out(self.in_metric(self.prototypes) * (2 * self.terms[0]).unsqueeze(-1))

    @cached_property
    def diagonal(self) -> Tensor:
        """The weights of the features in the metric, [L, D]."""
        return self.scale if self.shares is None else self.scale * self.shares[:, 1:2]

    @cached_property
    def projection(self) -> tuple[Tensor, Tensor] | None:
        """P [L, M, D] and c [L]: x.y is ``sum_d diagonal_d x_d y_d + c (P x).(P y)``."""
        if self.factor is None or self.shares is None:
            return None
        offsets = self.scaled[:, : -self.bias.shape[1]]
        return replayed(projection_of, self.factor, offsets, self.scale), self.shares[:, 2]

    def task(self, number: int) -> "Likelihood":
        """The likelihood of one task, [1, ..]; some of the tensors may be shared by all tasks."""
        if len(self.bias) == 1:
            return self
        own: Any = {name: x[number % len(x)][None] for name, x in self.tensors().items()}
        return replace(self, **own)

    def to(self, device: torch.device | str) -> "Likelihood":
        if self.bias.device == torch.device(device):
            return self
        moved: Any = {name: x.to(device) for name, x in self.tensors().items()}
        for name, kind in NATIVE_TENSORS.items():
            x = getattr(self, name)
            if kind.split and x is not None:
                sized_like = self.scale if kind.letters[-1] == "D" else self.factor
                assert sized_like is not None
                moved[name] = as_split(unsplit(x, sized_like.shape[1]).to(device))
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in every.items() if isinstance(x, Tensor)}

    def centred(self, rows: Tensor) -> Tensor:
        """Rows [B, N, D] made unit-norm, minus the centre, and made unit-norm again."""
        return coordinates(rows, self.centre)

    def in_metric(self, x: Tensor) -> Tensor:
        """Centred rows [B, N, D] times the metric."""
        plain = x * self.diagonal.unsqueeze(-2)
        if self.projection is None:
            return plain
        P, projected = self.projection
        return plain + (products(x, P) * column(projected)) @ P

    def squared(self, x: Tensor) -> Tensor:
        """Products of centred rows [B, N, D] with themselves, in the metric, [B, N]."""
        plain: Tensor = (x.square() * self.diagonal.unsqueeze(-2)).sum(-1)
        if self.projection is None:
            return plain
        P, projected = self.projection
        return plain + products(x, P).square().sum(-1) * projected.unsqueeze(-1)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of rows [N, D] or [B, N, D], not centred yet, each independent, [.., N, K]."""
        x = self.centred(rows.to(self.bias.dtype).reshape(-1, *rows.shape[-2:]))
        return self.logits_of(x).reshape(*rows.shape[:-1], -1)

    def logits_of(self, x: Tensor) -> Tensor:
        """Logits of centred rows [B, N, D], each independent, [B, N, K]."""
        steepness, constant = self.terms
        logits = products(x, self.weights)
        logits -= steepness.unsqueeze(-2) * self.squared(x).unsqueeze(-1)
        logits += constant.unsqueeze(-2)
        return logits if self.correction is None else logits + self.corrected(x)

    def corrected(self, x: Tensor) -> Tensor:
        """What the correction adds to the logits of centred rows, [B, N, K]."""
        assert self.correction is not None
        return x @ self.correction[:-1] + self.correction[-1]


NATIVE_TENSORS: dict[str, NativeTensor] = {
    x.name: x.metadata["native"] for x in fields(Likelihood) if x.metadata
}


@lru_cache(maxsize=256)
def native_kinds(
    real: torch.dtype, cuda: bool, *, L: int, K: int, D: int, N: int, M: int
) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The dtype and shape of each tensor of a likelihood that native code reads or writes."""
    sizes = {"L": L, "K": K, "D": D, "N": N, "M": M, "3": 3}
    kinds = {}
    for name, kind in NATIVE_TENSORS.items():
        shape = tuple(map(sizes.__getitem__, kind.letters))
        own = kind.dtype or real
        kinds[name] = split_kind(own, cuda, *shape) if kind.split else (own, shape)
    return MappingProxyType(kinds)


def projection_of(factor: Tensor, offsets: Tensor, scale: Tensor) -> Tensor:
    """P of `Likelihood.projection`; `offsets` are the scaled ones of rows, if there are any."""
    root = scale.sqrt()
    rows = unsplit(offsets, root.shape[-1])
    right = rows * root.unsqueeze(1) if rows.shape[1] else torch.diag_embed(root)
    return laid_out(solved_by(unsplit(factor, factor.shape[1]), right))


def solved_by(factor: Tensor, right: Tensor) -> Tensor:
    """The inverse of a Cholesky factor, given as in `Likelihood`, times a matrix [L, M, D]."""
    M = right.shape[1]
    solved = torch.empty_like(right)
    for start in range(0, M, native.FACTOR_BLOCK):
        here = slice(start, min(start + native.FACTOR_BLOCK, M))
        before = factor[:, here, :start], solved[:, :start]
        left = torch.baddbmm(right[:, here], *before, alpha=-1)
        solved[:, here] = factor[:, here, here] @ left
    return solved


def column(x: Tensor) -> Tensor:
    """One number per task, shaped to multiply matrices."""
    return x.view(-1, 1, 1)


def reweighted(likelihood: Likelihood, x: Tensor, labels: Tensor, weights: Tensor) -> "Likelihood":
    """The likelihood with means of centred rows by weights [B, S]; its metric stays as it is."""
    K = likelihood.shots.shape[-1]
    w = weights.to(x.dtype)
    both = torch.stack([w, w.square()], -1)
    mass, squared_mass = class_sums(both, labels, K)[0].unbind(-1)
    shots = (mass.square() / squared_mass).to(likelihood.shots.dtype)
    means = class_sums(x, labels, K, w)[0] / mass.unsqueeze(-1)
    known = shots / (shots + likelihood.prior_rows.unsqueeze(-1))  # the rest is at the centre
    prototypes = means * known.unsqueeze(-1)
    scaled = torch.cat([likelihood.scaled[:, :-K], as_split(prototypes, likelihood.scale)], 1)
    solved = likelihood.solved
    if likelihood.factor is not None and likelihood.projection is not None:
        solved = products(prototypes, likelihood.projection[0])
        pad = (0, likelihood.factor.shape[1] - solved.shape[-1])
        solved = as_split(torch.nn.functional.pad(solved, pad))
    return replace(
        likelihood,
        prototypes=prototypes,
        scaled=scaled,
        solved=solved,
        squares=likelihood.squared(prototypes),
        shots=shots,
    )


@on_cpu_without_gpu_code
def coordinates(rows: Tensor, centre: Tensor) -> Tensor:
    """Rows [B, N, D] made unit-norm, minus a centre [B or 1, D], unit-norm again.

    A row that equals the centre, up to rounding, becomes zero.
    """
    return rewritten(rows, centre, None, rows.dtype, tuple(rows.shape))


def rewritten(
    rows: Tensor,
    centre: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> Tensor:
    """Rows written as `dtype` in this shape, split into halves if the dtype is not their own.

    With a centre, they are in its coordinates; with a scale, multiplied by its square root.
    """
    (B, N, D), rows = rows.shape, packed(rows)
    centre, scale = (None if x is None else packed(x) for x in (centre, scale))
    shared = centre is not None and len(centre) == 1
    own, each = rows.dtype, (1 if shared else B, D)
    inputs = {
        "rows": (rows, own, (B, N, D)),
        "centre": (centre, own, each),
        "scale": (scale, own, each),
    }
    options = {"B": B, "N": N, "D": D, "shared": shared, "split": dtype is not own}
    (x,) = call_native(native.coordinates_call, options, rows, inputs, {"x": (dtype, shape)})
    return x


def split_kind(real: torch.dtype, cuda: bool, *shape: int) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and shape in which matrix products read rows: on CUDA, split into float16 halves.

    Numbers are in groups of 32, padded with zeros: the high halves of a group, then the low ones.
    """
    if not cuda:
        return real, shape
    group = native.GROUP
    return torch.float16, (*shape[:-1], -(-shape[-1] // group) * 2 * group)


@on_cpu_without_gpu_code
def as_split(rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """Rows [B, N, D] as described by `split_kind`, times the root of a scale [B, D]."""
    dtype, shape = split_kind(rows.dtype, rows.is_cuda, *rows.shape)
    if dtype is not rows.dtype:
        return rewritten(rows, None, scale, dtype, shape)
    return rows if scale is None else rows * scale.sqrt().unsqueeze(1)


def unsplit(rows: Tensor, width: int) -> Tensor:
    """The inverse of `as_split`: rows of `width` numbers each."""
    if rows.dtype is not torch.float16:
        return rows
    groups = rows.shape[-1] // (2 * native.GROUP)
    halves = rows.float().reshape(*rows.shape[:-1], groups, 2, native.GROUP)
    return halves.sum(-2).flatten(-2)[..., :width] / native.SPLIT_FACTOR
