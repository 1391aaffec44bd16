"""Native steps of large tasks: from products to probabilities, class counts and the dual.

Sums are added to what their output already holds, so that the chunks of a task accumulate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import check
from ..native import load as native
from ..native.operators import target, workspace
from ..native.pointers import ON_CPU, pointer
from ..prior import LEAST_WEIGHT


def is_captured(x: Tensor) -> bool:
    """Whether work on x is captured in a CUDA graph, so that its values cannot be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class Top:
    """The most probable classes of each row."""

    probabilities: Tensor  # [B, N, top]
    classes: Tensor  # [B, N, top] int64

    @staticmethod
    def empty(like: Tensor, B: int, N: int, top: int) -> Top:
        """Uninitialised, for N rows of B tasks, on the device of `like` and in its dtype."""
        probabilities = torch.empty(B, N, top, dtype=like.dtype, device=like.device)
        return Top(probabilities, torch.empty_like(probabilities, dtype=torch.int64))

    def rows(self, part: slice) -> Top:
        """A view of some rows of a single task, or of all rows of several."""
        return Top(self.probabilities[:, part], self.classes[:, part])


def assign(
    products: Tensor,
    slope: Tensor,
    bias: Tensor,
    *,
    length: Tensor | None = None,
    probabilities: Tensor | None = None,
    rest: Tensor | None = None,
    held: Tensor | None = None,
    log_sums: Tensor | None = None,
    top: Top | None = None,
    leads: Tensor | None = None,
    normalise: bool = True,
    weigh: bool = False,
    squared: bool = False,
) -> None:
    """Compute the probabilities of rows, the softmax of ``slope length products + bias``.

    Parameters
    ----------
    products : Tensor [B, N, K or more]
        float32 or float64; only the first K are used. Overwritten if `leads` is given.
    slope, bias : Tensor [B], Tensor [B, K]
    length : Tensor [B, N], optional
    probabilities, rest : Tensor [B, N, K], optional
        Outputs: in the dtype of the products, which they may overwrite, or float16 on CUDA; and the
        rounding errors of the halves.
    held, log_sums : Tensor [B, K], Tensor [B], float64, optional
        Incremented by the sums of the probabilities over the rows, and of the log normalisers.
    top : Top, optional
        Output.
    leads : Tensor [B, 2] float64, optional
        Incremented by the lead of the nearest class over the median one in squared distance, and by
        the median distance minus the square of the row. The logits are then ``x.w - w.w / 2``.
    normalise : bool
        If False, likelihoods are written, scaled so that the largest of a row is 2^15.
    weigh : bool
        Whether to multiply the written probabilities by the length.
    squared : bool
        Whether all outputs are of the squares of the probabilities.
    """
    B, N = products.shape[:2]
    K = bias.shape[-1]
    written = products.dtype if probabilities is None else probabilities.dtype
    call = native.module.assign_call(
        target=target(products),
        dtype=check.DTYPES[products.dtype],
        written=check.DTYPES[written],
        B=B,
        N=N,
        K=K,
        stride=products.shape[-1],
        top=0 if top is None else top.classes.shape[-1],
        normalise=normalise,
        weigh=weigh,
        squared=squared,
    )
    memory = workspace(call.workspace(), products)
    real, exact, on = products.dtype, torch.float64, products.get_device()
    likely, classes = (None, None) if top is None else (top.probabilities, top.classes)
    of_top = (B, N, 0 if classes is None else classes.shape[-1])
    call.assign(
        products=pointer(products, real, (B, N, products.shape[-1]), on),
        length=pointer(length, real, (B, N), on),
        slope=pointer(slope, real, (B,), on),
        bias=pointer(bias, real, (B, K), on),
        probabilities=pointer(probabilities, written, (B, N, K), on),
        rest=pointer(rest, written, (B, N, K), on),
        held=pointer(held, exact, (B, K), on),
        log_sums=pointer(log_sums, exact, (B,), on),
        top_probabilities=pointer(likely, real, of_top, on),
        top_classes=pointer(classes, torch.int64, of_top, on),
        leads=pointer(leads, exact, (B, 2), on),
        workspace=pointer(memory, torch.uint8, memory.shape, on),
        workspace_bytes=memory.numel(),
    )


def count(likelihood: Tensor, weights: Tensor, held: Tensor, faint: Tensor) -> None:
    """Add up probabilities by class from stored likelihoods, and count the faint rows.

    Parameters
    ----------
    likelihood : Tensor [B, N, K]
        As written by `assign`: float16 on CUDA, float32 or float64 on the CPU.
    weights : Tensor [B, K]
        Factors on the likelihoods of the classes: float64 if these are, else float32.
    held, faint : Tensor [B, K], Tensor [B], float64
        Incremented. A row is faint if likelihoods that matter for it have lost precision.
    """
    B, N, K = likelihood.shape
    call = native.module.count_call(
        target=target(likelihood), dtype=check.DTYPES[likelihood.dtype], B=B, N=N, K=K
    )
    memory = workspace(call.workspace(), likelihood)
    given, exact, on = likelihood.dtype, torch.float64, likelihood.get_device()
    real = exact if given is exact else torch.float32
    call.count(
        likelihood=pointer(likelihood, given, (B, N, K), on),
        weights=pointer(weights, real, (B, K), on),
        held=pointer(held, exact, (B, K), on),
        faint=pointer(faint, exact, (B,), on),
        workspace=pointer(memory, torch.uint8, memory.shape, on),
        workspace_bytes=memory.numel(),
    )


@dataclass(frozen=True)
class LateStep:
    """The late step of one large task: the options of `adaptive_rule.kernels.posterior`."""

    weight: float  # of a query in the counts
    trust: float  # the weight of a query in a prototype, if its probability is 1
    temper: float  # factor on the final logits
    slope: float  # of the logits before the step
    sharper: float  # factor on distances
    share: float  # factor on further logits
    bias: Tensor  # [K] of the logits before the step
    square: Tensor  # [K] squares of the class sums, in the metric
    mass: Tensor  # [K] total weight of the rows in each class sum
    constant: Tensor  # [K] added to the logits
    total: Tensor  # [K] counts plus prior
    prior: Tensor  # [K] the prior alone

    def __call__(self, products: Tensor, own: Tensor, added: Tensor | None) -> None:
        """Turn products [1, N, 2 K] into logits, which overwrite the first K of each row.

        The first K products are with prototypes, the others with class sums. `own` [N] are products
        of rows with themselves, `added` [N, K] further logits.
        """
        N, K = products.shape[1], products.shape[2] // 2
        dtype, device = products.dtype, products.get_device()
        call = native.module.absorb_call(
            target=target(products),
            dtype=check.DTYPES[dtype],
            N=N,
            K=K,
            weight=self.weight,
            trust=self.trust,
            temper=self.temper,
            slope=self.slope,
            sharper=self.sharper,
            share=self.share,
        )
        each = {
            name: pointer(getattr(self, name), dtype, (K,), device)
            for name in ("bias", "square", "mass", "constant", "total", "prior")
        }
        call.step(
            products=pointer(products, dtype, (1, N, 2 * K), device),
            added=pointer(added, dtype, (N, K), device),
            own=pointer(own, dtype, (N,), device),
            **each,
        )


def split_unit(
    rows: Tensor, pieces: int, scale: Tensor, centre: Tensor, metric: Tensor
) -> tuple[Tensor, Tensor]:
    """`split` for rows that are first made unit-norm, centred, and made unit-norm again.

    Also returns their squares ``sum_d metric_d x_d^2``, [B, N].
    """
    own = torch.empty(rows.shape[:2], device=rows.device)
    return split(rows, pieces, scale, centre, metric=metric, own=own), own


def split(
    rows: Tensor,
    pieces: int,
    scale: Tensor,
    centre: Tensor,
    *,
    length: Tensor | None = None,
    metric: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """Rows [B, N, D] as float16 pieces [B, N, pieces D] for tensor cores, on CUDA.

    With ``x = length rows scale - centre``, one piece is x rounded; three are x rounded, the
    rounding error, and x rounded again. Two are float16 rows unchanged, twice. Length [B, N], scale
    and centre [B, D] are float32. With a metric, x is in the coordinates of `adaptive`, and `own`
    [B, N] receives its squares; see `split_unit`.
    """
    B, N, D = rows.shape
    out = torch.empty(B, N, pieces * D, dtype=torch.float16, device=rows.device)
    call = native.module.split_call(
        target=target(rows),
        dtype=check.DTYPES[rows.dtype],
        B=B,
        N=N,
        D=D,
        pieces=pieces,
        unit=metric is not None,
    )
    real, on = torch.float32, rows.get_device()
    call.split(
        rows=pointer(rows, rows.dtype, (B, N, D), on),
        length=pointer(length, real, (B, N), on),
        scale=pointer(scale, real, (B, D), on),
        centre=pointer(centre, real, (B, D), on),
        metric=pointer(metric, real, (B, D), on),
        out=pointer(out, torch.float16, (B, N, pieces * D), on),
        own=pointer(own, real, (B, N), on),
    )
    return out


def add_sums(sums: Tensor, u: Tensor, x: Tensor, threshold: float, most: int) -> bool:
    """Add the sums of rows x [B, N, D] with weights u [B, N, K] to `sums` [B, K, D], on the CPU.

    Weights below `threshold` are ignored. If more than `most` weights are above, nothing is added
    and the result is False.
    """
    B, N, K = u.shape
    D = x.shape[-1]
    found = torch.zeros(1, dtype=torch.int64)
    call = native.module.sums_call(
        target=target(u),
        dtype=check.DTYPES[u.dtype],
        B=B,
        N=N,
        K=K,
        D=D,
        threshold=threshold,
        most=most,
    )
    memory = workspace(call.workspace(), u)
    call.add(
        probabilities=pointer(u, u.dtype, (B, N, K), ON_CPU),
        rows=pointer(x, u.dtype, (B, N, D), ON_CPU),
        sums=pointer(sums, u.dtype, (B, K, D), ON_CPU),
        found=pointer(found, torch.int64, (1,), ON_CPU),
        workspace=pointer(memory, torch.uint8, memory.shape, ON_CPU),
        workspace_bytes=memory.numel(),
    )
    return int(found) <= most


@dataclass(frozen=True)
class Moved:
    """What `State.update` needs of prototypes that moved: the criterion, and the next bias."""

    away: Tensor  # [B, K] float64: how far they moved
    unit: Tensor  # [B] float64: the unit of these distances
    base: Tensor  # [B, K] float64: the bias without the dual
    bias: Tensor  # [B, K] output, in the dtype of the products


class State:
    """The state of B tasks between iterations; that of a stopped task no longer changes."""

    def __init__(
        self,
        B: int,
        K: int,
        device: torch.device,
        *,
        prior: int,
        total: float,
        weight: float = 1.0,
        dual_weight: float = 1.0,
        epsilon: float,
        tol: float,
        measure: Tensor | None = None,
        first: float | None = None,
        least: float | None = None,
    ) -> None:
        """`measure` [B, K] float64 and the concentrations are for a Dirichlet prior."""
        self.prior, self.total = prior, total
        self.weight, self.dual_weight, self.epsilon, self.tol = weight, dual_weight, epsilon, tol
        new = {"dtype": torch.float64, "device": device}
        self.counts = torch.zeros(B, K, **new)  # type: ignore[call-overload]
        self.measure = torch.ones_like(self.counts) if measure is None else measure.contiguous()
        self.dual = self.measure.log().clamp(min=native.module.IMPOSSIBLE)
        self.least = native.module.MIN_CONCENTRATION if least is None else least
        first = native.module.FIRST_CONCENTRATION if first is None else first
        self.before = torch.empty_like(self.counts)  # the dual of the last probabilities
        self.concentration = torch.full((B,), first, **new)  # type: ignore[call-overload]
        self.criterion = torch.zeros_like(self.concentration)
        self.iterations = torch.zeros(B, dtype=torch.int32, device=device)
        self.running = torch.ones_like(self.iterations)

    def update(self, held: Tensor, moved: Moved | None = None) -> None:
        """End an iteration; `held` [B, K] float64 are its sums of probabilities by class.

        The criterion is how far prototypes have moved or, without `moved`, the largest change of a
        count.
        """
        real = torch.float32 if moved is None else moved.bias.dtype
        B, K = self.counts.shape
        call = native.module.dual_call(
            target=target(self.counts),
            dtype=check.DTYPES[real],
            B=B,
            K=K,
            prior=self.prior,
            total=self.total,
            weight=self.weight,
            epsilon=self.epsilon,
            tol=self.tol,
            dual_weight=self.dual_weight,
            least=self.least,
        )
        exact, on = torch.float64, self.counts.get_device()
        away = unit = base = bias = None
        if moved is not None:
            away, unit, base, bias = moved.away, moved.unit, moved.base, moved.bias
        call.update(
            held=pointer(held, exact, (B, K), on),
            away=pointer(away, exact, (B, K), on),
            unit=pointer(unit, exact, (B,), on),
            base=pointer(base, exact, (B, K), on),
            measure=pointer(self.measure, exact, (B, K), on),
            bias=pointer(bias, real, (B, K), on),
            counts=pointer(self.counts, exact, (B, K), on),
            dual=pointer(self.dual, exact, (B, K), on),
            before=pointer(self.before, exact, (B, K), on),
            concentration=pointer(self.concentration, exact, (B,), on),
            criterion=pointer(self.criterion, exact, (B,), on),
            iterations=pointer(self.iterations, torch.int32, (B,), on),
            running=pointer(self.running, torch.int32, (B,), on),
        )

    def proportions(self, counts: Tensor) -> Tensor:
        """Proportions of the classes, from the weighted sums of probabilities, [B, K]."""
        if self.prior != check.PRIORS["dirichlet"]:
            return counts / self.total
        a = self.concentration.unsqueeze(-1)
        found: Tensor = (counts + a * self.measure) / (self.total + counts.shape[-1] * a)
        return found

    def bound(self, held: Tensor, log_sums: Tensor) -> Tensor:
        """Lower bound of the log evidence, [B].

        `held` and `log_sums` are sums over rows: of probabilities, and of their log normalisers.
        """
        counts, a, K = self.weight * held, self.concentration, held.shape[-1]
        own = (a.unsqueeze(-1) * self.measure).clamp(
            min=native.module.MIN_CONCENTRATION * LEAST_WEIGHT
        )
        classes = torch.lgamma(counts + own) - torch.lgamma(own) - counts * self.dual
        whole = torch.lgamma(K * a) - torch.lgamma(self.total + K * a)
        return self.weight * log_sums + whole + classes.sum(-1)

    def any_running(self) -> bool:
        """Whether a task is still running; True during the capture of a CUDA graph."""
        some = self.running.any() if len(self.running) > 1 else self.running
        return is_captured(self.running) or bool(some)
