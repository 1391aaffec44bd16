"""Native steps of large tasks: from products to probabilities, class counts and the dual.

Sums are added to what their output already contains, so that the chunks of a task accumulate.
Letters: B tasks, N rows of each in a chunk, K classes, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..limits import LEAST_PRIOR_WEIGHT
from ..native.call import DTYPES, Inputs, alike, call_native, prepare
from ..native.load import module as native


@dataclass(frozen=True)
class Top:
    """The most probable classes of each row."""

    probabilities: Tensor  # [B, N, top]
    classes: Tensor  # [B, N, top] int64

    def rows(self, part: slice) -> "Top":
        """A view of some rows of a single task, or of all rows of several."""
        return Top(self.probabilities[:, part], self.classes[:, part])


def assign_call(
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
) -> Callable[[], None]:
    """A call for the probabilities of rows, the softmax of ``slope length products + bias``.

    Products [B, N, K or more] are float32 or float64, of which the first K are used; slope [B],
    bias [B, K] and length [B, N] have their dtype. The other tensors are outputs:

    - `probabilities` [B, N, K], in the dtype of the products, which they may overwrite, or float16
      on CUDA, and `rest`, the rounding errors of these halves. Without `normalise` they are
      likelihoods, scaled so that the largest of a row is 2^15; with `weigh`, they are multiplied by
      the length.
    - `held` [B, K] and `log_sums` [B], float64: incremented by the sums of the probabilities over
      the rows, and of the log normalisers.
    - `leads` [B, 2] float64: incremented by the lead of the nearest class over the median one in
      squared distance, and by the median distance minus the square of the row. The logits must be
      ``x.w - w.w / 2``, and the products are overwritten.
    """
    (B, N, stride), K, real = products.shape, bias.shape[-1], products.dtype
    likely, classes = (None, None) if top is None else (top.probabilities, top.classes)
    best = 0 if classes is None else classes.shape[-1]
    written = real if probabilities is None else probabilities.dtype
    tensors: Inputs = {
        "products": (products, real, (B, N, stride)),
        "length": (length, real, (B, N)),
        "slope": (slope, real, (B,)),
        "bias": (bias, real, (B, K)),
        **alike(written, B, N, K, probabilities=probabilities, rest=rest),
        "held": (held, torch.float64, (B, K)),
        "log_sums": (log_sums, torch.float64, (B,)),
        "top_probabilities": (likely, real, (B, N, best)),
        "top_classes": (classes, torch.int64, (B, N, best)),
        "leads": (leads, torch.float64, (B, 2)),
    }
    sizes = {"B": B, "N": N, "K": K, "stride": stride, "top": best}
    flags = {"normalise": normalise, "weigh": weigh}
    options = {"written": DTYPES[written], **sizes, **flags}
    return prepare(native.assign_call, options, products, tensors)[0]


class Counter:
    """Adds up probabilities by class from likelihoods [B, N, K] that `assign_call` wrote.

    Each class's likelihoods are multiplied by a weight, exp(dual - anchor) up to a factor.
    """

    def __init__(self, likelihood: Tensor) -> None:
        B, _, K = likelihood.shape
        self.likelihood = likelihood
        real = torch.promote_types(likelihood.dtype, torch.float32)
        self.weights = torch.ones(B, K, dtype=real, device=likelihood.device)
        # What a count is added to: the sums of the probabilities, and the number of rows in which
        # likelihoods that matter have lost precision.
        self.held = torch.zeros_like(self.weights, dtype=torch.float64)
        self.faint = torch.zeros_like(self.held[:, 0])
        self.anchor = torch.zeros_like(self.held)

    def start(self, dual: Tensor) -> None:
        """Set the weights for this dual [B, K], and what is counted to 0."""
        weights = dual - self.anchor
        weights = torch.exp(weights - weights.amax(-1, keepdim=True)).to(self.weights.dtype)
        # Subnormal numbers are slow, and negligible here.
        weights.masked_fill_(weights < torch.finfo(weights.dtype).tiny, 0)
        self.weights.copy_(weights)
        self.held.zero_()
        self.faint.zero_()

    def call(self, running: Tensor | None = None) -> Callable[[], None]:
        """A native call that counts the rows; tasks whose `running` [B] is not 1 are left out."""
        rows = self.likelihood
        B, N, K = rows.shape
        tensors: Inputs = {
            "likelihood": (rows, rows.dtype, (B, N, K)),
            "weights": (self.weights, self.weights.dtype, (B, K)),
            "running": (running, torch.int32, (B,)),
            "held": (self.held, torch.float64, (B, K)),
            "faint": (self.faint, torch.float64, (B,)),
        }
        options = {"B": B, "N": N, "K": K}
        return prepare(native.count_call, options, rows, tensors)[0]


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
    rounding error, and x rounded again. Length [B, N], scale and centre [B, D] are float32. With a
    metric [B, D], rows are first made unit-norm, centred, and made unit-norm again, and `own`
    [B, N] receives their squares ``sum_d metric_d x_d^2``.
    """
    (B, N, D), single, half = rows.shape, torch.float32, torch.float16
    tensors: Inputs = {
        "rows": (rows, rows.dtype, (B, N, D)),
        **alike(single, B, N, length=length, own=own),
        **alike(single, B, D, scale=scale, centre=centre, metric=metric),
    }
    options = {"B": B, "N": N, "D": D, "pieces": pieces, "unit": metric is not None}
    outputs = {"out": (half, (B, N, pieces * D))}
    (out,) = call_native(native.split_call, options, rows, tensors, outputs)
    return out


def add_sums(sums: Tensor, u: Tensor, x: Tensor, threshold: float, most: int) -> bool:
    """Add the sums of rows x [N, D] with weights u [N, K] to `sums` [K, D], on the CPU.

    Weights below `threshold` are ignored. If more than `most` weights are above, nothing is added
    and the result is False.
    """
    (N, K), D, real = u.shape, x.shape[-1], u.dtype
    tensors: Inputs = {
        "probabilities": (u, real, (N, K)),
        "rows": (x, real, (N, D)),
        "sums": (sums, real, (K, D)),
    }
    options = {"N": N, "K": K, "D": D, "threshold": threshold, "most": most}
    (above,) = call_native(native.sums_call, options, u, tensors, {"found": (torch.int64, (1,))})
    return int(above) <= most


class Moved(NamedTuple):
    """What `State.update_call` needs of prototypes that moved: the criterion, and the next bias."""

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
        self.learns = True  # the concentration
        self.weight, self.dual_weight, self.epsilon, self.tol = weight, dual_weight, epsilon, tol
        self.counts = torch.zeros(B, K, dtype=torch.float64, device=device)
        if measure is None:
            self.measure, self.dual = torch.ones_like(self.counts), torch.zeros_like(self.counts)
        else:
            self.measure = measure.contiguous()
            self.dual = self.measure.log().clamp(min=native.IMPOSSIBLE)
        self.least = native.MIN_CONCENTRATION if least is None else least
        first = native.FIRST_CONCENTRATION if first is None else first
        self.before = torch.empty_like(self.counts)  # the dual of the last probabilities
        self.concentration = self.counts.new_full((B,), first)
        self.criterion = torch.zeros_like(self.concentration)
        self.iterations = torch.zeros(B, dtype=torch.int32, device=device)
        self.running = torch.ones_like(self.iterations)  # 0: stopped, -1: its count was faint

    def update_call(
        self, held: Tensor, moved: Moved | None = None, counter: Counter | None = None
    ) -> Callable[[], None]:
        """A native call that ends an iteration, and prepares the next count of `counter`.

        `held` [B, K] float64 are its sums of probabilities by class. The criterion is how far
        prototypes have moved or, without `moved`, the largest change of a count.
        """
        B, K = self.counts.shape
        weights = anchor = faint = None
        if counter is not None:
            weights, anchor, faint = counter.weights, counter.anchor, counter.faint
        away, unit, base, bias = moved or (None, None, None, None)
        given = weights if bias is None else bias
        real = torch.float32 if given is None else given.dtype
        double, before, counts, dual = torch.float64, self.before, self.counts, self.dual
        tensors = {
            **alike(double, B, K, held=held, away=away, base=base, measure=self.measure),
            **alike(double, B, K, anchor=anchor, counts=counts, dual=dual, before=before),
            **alike(real, B, K, bias=bias, weights=weights),
            **alike(double, B, unit=unit, faint=faint, criterion=self.criterion),
            **alike(double, B, concentration=self.concentration),
            **alike(torch.int32, B, iterations=self.iterations, running=self.running),
        }
        options = {"dtype": DTYPES[real], "B": B, "K": K}
        for name in (
            "prior",
            "total",
            "weight",
            "epsilon",
            "tol",
            "dual_weight",
            "least",
            "learns",
        ):
            options[name] = getattr(self, name)
        make = native.dual_call
        return prepare(make, options, self.counts, tensors, typed=False)[0]

    def proportions(self, counts: Tensor) -> Tensor:
        """Proportions of the classes, from the weighted sums of probabilities, [B, K]."""
        if self.prior != check.PRIORS["dirichlet"]:
            return counts / self.total
        a = self.concentration.unsqueeze(-1)
        shares: Tensor = (counts + a * self.measure) / (self.total + counts.shape[-1] * a)
        return shares

    def bound(self, held: Tensor, log_sums: Tensor) -> Tensor:
        """Lower bound of the log evidence, [B].

        `held` and `log_sums` are sums over rows: of probabilities, and of their log normalisers.
        """
        counts, a, K = self.weight * held, self.concentration, held.shape[-1]
        least = native.MIN_CONCENTRATION * LEAST_PRIOR_WEIGHT
        own = (a.unsqueeze(-1) * self.measure).clamp(min=least)
        classes = torch.lgamma(counts + own) - torch.lgamma(own) - counts * self.dual
        whole = torch.lgamma(K * a) - torch.lgamma(self.total + K * a)
        return self.weight * log_sums + whole + classes.sum(-1)
