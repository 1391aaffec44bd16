"""The competitors, behind one interface: `prepare(tasks, settings)` returns the call to time.

- "torch Gram": the Gram form of the iteration in batched torch, what a careful PyTorch user would
  write without native code. Class sums once; centred; G = Z Z^T and C = Z s^T once; then one
  product G U per iteration.
- "public arithmetic": what the published implementation computes, restated: min-max scaling,
  one-hot labels, and in every iteration the product of the one-hot labels with the whole support.
- "reference": `paddle_ext.reference.solve`, the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tasks import DenseTasks, Shape, Tasks

import paddle_ext
from paddle_ext import reference
from paddle_ext.reference.paddle import AUTO_GAP, AUTO_MIN_GAP, AUTO_MIN_SHARE


@dataclass(frozen=True)
class Settings:
    max_iter: int = 100
    tol: float = 0.0
    scaling: str = "minmax"
    epsilon: float = 1e-6

    def keywords(self, shape: Shape) -> dict[str, Any]:
        return {
            "num_classes": shape.classes,
            "scaling": self.scaling,
            "epsilon": self.epsilon,
            "max_iter": self.max_iter,
            "tol": self.tol,
        }


class Result(NamedTuple):
    labels: torch.Tensor  # [B, Q]
    probabilities: torch.Tensor  # [B, Q, K]
    iterations: torch.Tensor  # [B]


Call = Callable[[], Result]


# --- the torch Gram form ------------------------------------------------------------------------


class Gram(NamedTuple):
    """Everything the iterations need; their cost no longer depends on D or S."""

    G: torch.Tensor  # [B, Q, Q]  Z Z^T
    C: torch.Tensor  # [B, Q, K]  Z s^T
    norms: torch.Tensor  # [B, 1, K]  ||s_k||^2
    counts: torch.Tensor  # [B, 1, K]


class State(NamedTuple):
    U: torch.Tensor  # [B, Q, K]
    M: torch.Tensor  # [B, Q, K]  z_q . w_k = M_qk / N_k
    N: torch.Tensor  # [B, 1, K]
    squares: torch.Tensor  # [B, 1, K]  ||w_k||^2
    v: torch.Tensor  # [B, 1, K]


class Sums(NamedTuple):
    z: torch.Tensor  # [B, Q, D]  scaled and centred queries
    s: torch.Tensor  # [B, K, D]  class sums of the support, in the same coordinates
    counts: torch.Tensor  # [B, 1, K]


def class_sums(support: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """[B, K, D]. `index_add_` is much faster than a one-hot product or `scatter_add_`."""
    B, S, D = support.shape
    rows = (labels + classes * torch.arange(B, device=labels.device)[:, None]).flatten()
    sums = torch.zeros(B * classes, D, dtype=support.dtype, device=support.device)
    return sums.index_add_(0, rows, support.reshape(B * S, D)).view(B, classes, D)


def query_range(query: torch.Tensor) -> torch.Tensor:
    low, high = query.aminmax(dim=1, keepdim=True)
    return (high - low).masked_fill_(high == low, 1.0)  # [B, 1, D]


def gram_sums(tasks: DenseTasks, settings: Settings) -> Sums:
    """Class sums, scaling and centring; min-max scales the sums, not the whole support."""
    support, query, classes = tasks.support, tasks.query, tasks.shape.classes
    counts = torch.zeros(len(tasks), classes, device=query.device)
    counts.scatter_add_(
        1, tasks.support_labels, torch.ones_like(tasks.support_labels, dtype=counts.dtype)
    )
    if settings.scaling == "auto":
        support = torch.nn.functional.normalize(support, dim=-1)
        query = torch.nn.functional.normalize(query, dim=-1)
    s = class_sums(support, tasks.support_labels, classes)
    if settings.scaling == "minmax":
        ranges = query_range(query)
        query, s = query / ranges, s / ranges
    centre = query.mean(1, keepdim=True)
    return Sums(query - centre, s - counts[..., None] * centre, counts[:, None])


def gram_products(sums: Sums, settings: Settings) -> Gram:
    z, s, counts = sums
    G, C = torch.bmm(z, z.mT), torch.bmm(z, s.mT)
    norms = s.square().sum(-1)[:, None]
    if settings.scaling == "auto" and C.shape[2] > 1:
        squares = G.diagonal(dim1=1, dim2=2)[..., None]
        distances = (squares - 2 * C / counts + norms / counts.square()).sort(-1).values
        median = distances[..., C.shape[2] // 2]
        gap = (median - distances[..., 0]).mean(1)[:, None, None]
        least = (AUTO_MIN_SHARE * median.mean(1)).clamp_min(AUTO_MIN_GAP)[:, None, None]
        factor = torch.where(gap > least, AUTO_GAP / gap, torch.ones_like(gap))  # squared
        G, C, norms = G * factor, C * factor, norms * factor
    return Gram(G, C, norms, counts)


def gram_step(gram: Gram, state: State, ratio: float, epsilon: float) -> State:
    bias = ratio * state.v - 0.5 * state.squares
    U = torch.addcmul(bias, state.M, state.N.reciprocal()).softmax(-1)
    mass = U.sum(1, keepdim=True)
    M = torch.baddbmm(gram.C, gram.G, U)
    N = gram.counts + mass
    cross = (gram.C + M).mul_(U).sum(1, keepdim=True)
    squares = (gram.norms + cross) / N.square()
    return State(U, M, N, squares, 1.0 + torch.log(mass / U.shape[1] + epsilon))


def gram_criterion(gram: Gram, new: State, old: State) -> torch.Tensor:
    """mean_k ||w_k - w_k_previous|| from the changes of the coefficients, [B]."""
    change = new.U / new.N - old.U / old.N
    product = (new.M - gram.C) / new.N - (old.M - gram.C) / old.N  # G change
    offset = 1.0 / new.N - 1.0 / old.N
    squares = (change * (product + 2.0 * offset * gram.C)).sum(1, keepdim=True)
    squares = squares + offset.square() * gram.norms
    return squares.clamp_min(0.0).sqrt().mean((1, 2))


def gram_iterate(
    gram: Gram, settings: Settings, step: Callable[..., State] = gram_step, check_every: int = 5
) -> Result:
    """All iterations; with a tolerance the host compacts the batch once half has converged."""
    B = gram.C.shape[0]
    zero = torch.zeros_like(gram.counts)
    state = State(
        torch.zeros_like(gram.C), gram.C, gram.counts, gram.norms / gram.counts.square(), zero
    )
    ratio, epsilon = 1.0, settings.epsilon  # lambda = |Q|
    if settings.tol == 0.0:
        for _ in range(settings.max_iter):
            state = step(gram, state, ratio, epsilon)
        count = torch.full((B,), settings.max_iter, device=gram.C.device)
        return Result(state.U.argmax(-1), state.U, count)

    final = torch.empty_like(gram.C)
    count = torch.full((B,), settings.max_iter, device=gram.C.device)
    tasks = torch.arange(B, device=gram.C.device)  # the rows of the batch still computed
    for iteration in range(1, settings.max_iter + 1):
        previous, state = state, step(gram, state, ratio, epsilon)
        if iteration % check_every and iteration < settings.max_iter:
            continue
        running = gram_criterion(gram, state, previous) > settings.tol
        left = int(running.sum())
        if left == 0 or iteration == settings.max_iter:
            final[tasks] = state.U
            count[tasks] = iteration
            break
        if 2 * left <= len(tasks):
            final[tasks[~running]] = state.U[~running]
            count[tasks[~running]] = iteration
            tasks = tasks[running]
            gram = Gram(*(tensor[running] for tensor in gram))
            state = State(*(tensor[running] for tensor in state))
    return Result(final.argmax(-1), final, count)


# --- the published implementation's arithmetic --------------------------------------------------


def public_arithmetic(tasks: DenseTasks, settings: Settings) -> Result:
    """No centring, no stopping rule, and class sums of the support again in every iteration."""
    support, query, shape = tasks.support, tasks.query, tasks.shape
    if settings.scaling == "minmax":
        ranges, low = query_range(query), query.amin(1, keepdim=True)
        support, query = (support / ranges).sub_(low), (query / ranges).sub_(low)
    onehot = torch.zeros(len(tasks), shape.support, shape.classes, device=query.device)
    onehot.scatter_(2, tasks.support_labels[..., None], 1.0)
    counts = onehot.sum(1)
    w = torch.bmm(onehot.mT, support) / counts[..., None]
    v = torch.zeros_like(counts)
    for _ in range(settings.max_iter):
        logits = torch.bmm(query, w.mT)
        logits = (
            logits - 0.5 * w.square().sum(-1)[:, None] - 0.5 * query.square().sum(-1)[..., None]
        )
        u = torch.softmax(logits + v[:, None], -1)  # lambda / |Q| = 1
        v = torch.log(u.mean(1) + settings.epsilon) + 1.0
        numerator = torch.bmm(u.mT, query) + torch.bmm(onehot.mT, support)
        w = numerator / (u.sum(1) + counts)[..., None]
    return Result(u.argmax(-1), u, torch.full((len(tasks),), settings.max_iter))


# --- agreement ----------------------------------------------------------------------------------

TIE = 1e-2  # a query whose two best probabilities are closer is a tie: its label may differ


class Agreement(NamedTuple):
    wrong: int  # labels that differ, ties aside
    worst: float  # max|du|, ties aside
    ties: int


def solve_in_double(dense: DenseTasks, settings: Settings) -> torch.Tensor:
    """Assignments of the float64 reference."""
    return reference.solve(
        dense.support.double(),
        dense.support_labels,
        dense.query.double(),
        **settings.keywords(dense.shape),
    ).probabilities


def agreement(probabilities: torch.Tensor, truth: torch.Tensor) -> Agreement:
    two = truth.topk(2, -1).values
    clear = two[..., 0] - two[..., 1] > TIE
    wrong = int(((probabilities.argmax(-1) != truth.argmax(-1)) & clear).sum())
    difference = (probabilities.double() - truth).abs().amax(-1)
    return Agreement(wrong, float((difference * clear).max()), int((~clear).sum()))


# --- one interface ------------------------------------------------------------------------------


def _result(solution: reference.Solution) -> Result:
    return Result(solution.labels, solution.probabilities, solution.iterations)


def prepare_ours(validate: bool) -> Callable[..., Call]:
    def prepare(tasks: Tasks, dense: DenseTasks, settings: Settings) -> Call:
        keywords = settings.keywords(dense.shape)
        arguments = dense.support, dense.support_labels, dense.query
        return lambda: _result(paddle_ext.solve(*arguments, **keywords, validate=validate))

    return prepare


def prepare_indexed(tasks: Tasks, dense: DenseTasks, settings: Settings) -> Call:
    keywords = settings.keywords(tasks.shape)
    arguments = tasks.bank, tasks.support_index, tasks.support_labels, tasks.query_index
    return lambda: _result(paddle_ext.solve_indexed(*arguments, **keywords, validate=False))


def prepare_gram(tasks: Tasks, dense: DenseTasks, settings: Settings) -> Call:
    return lambda: gram_iterate(gram_products(gram_sums(dense, settings), settings), settings)


def prepare_gram_late(tasks: Tasks, dense: DenseTasks, settings: Settings) -> Call:
    """Only products and iterations; scaling and class sums are done beforehand."""
    sums = gram_sums(dense, settings)
    return lambda: gram_iterate(gram_products(sums, settings), settings)


def prepare_compiled(tasks: Tasks, dense: DenseTasks, settings: Settings) -> Call:
    step = torch.compile(gram_step, dynamic=settings.tol > 0.0)
    return lambda: gram_iterate(gram_products(gram_sums(dense, settings), settings), settings, step)


def prepare_public(tasks: Tasks, dense: DenseTasks, settings: Settings) -> Call:
    return lambda: public_arithmetic(dense, settings)


def prepare_reference(dtype: torch.dtype) -> Callable[..., Call]:
    def prepare(tasks: Tasks, dense: DenseTasks, settings: Settings) -> Call:
        support, query = dense.support.to(dtype), dense.query.to(dtype)
        keywords = settings.keywords(dense.shape)
        return lambda: _result(reference.solve(support, dense.support_labels, query, **keywords))

    return prepare


@dataclass(frozen=True)
class Peer:
    title: str
    prepare: Callable[[Tasks, DenseTasks, Settings], Call]
    tolerance: float  # of the probabilities, except ties, against the float64 reference
    form: str = "gram"  # how its operations are counted: "gram", "direct" or "onehot"
    most_tasks: int | None = None  # timed on fewer tasks than the others: too slow or too large


FLOAT32, FLOAT64 = torch.float32, torch.float64
PEERS = {
    "ours": Peer("paddle_ext.solve", prepare_ours(validate=False), 1e-4),
    "ours-validated": Peer("the same, validated", prepare_ours(validate=True), 1e-4),
    "ours-indexed": Peer("paddle_ext.solve_indexed", prepare_indexed, 1e-4),
    "gram": Peer("torch Gram form", prepare_gram, 5e-3),
    "gram-late": Peer("torch Gram, without class sums", prepare_gram_late, 5e-3),
    "gram-compiled": Peer("torch Gram, compiled", prepare_compiled, 5e-3),
    "public": Peer("public arithmetic", prepare_public, 5e-3, "onehot"),
    "reference32": Peer("reference, float32", prepare_reference(FLOAT32), 5e-3, "direct", 8),
    "reference64": Peer("reference, float64", prepare_reference(FLOAT64), 1e-9, "direct", 8),
}


def flops(form: str, shape: Shape, iterations: float) -> float:
    """Additions and multiplications of one task; an exponential counts as one."""
    S, Q, K, D = shape.support, shape.queries, shape.classes, shape.dim
    softmax = 12 * Q * K
    if form == "gram":
        return S * D + 2 * Q * (Q + K) * D + iterations * (2 * Q * Q * K + softmax)
    support_per_iteration = 2 * S * K * D if form == "onehot" else 0
    return S * D + iterations * (4 * Q * K * D + support_per_iteration + softmax)


def bytes_moved(shape: Shape) -> int:
    """Bytes moved by one dense task: features and labels in, probabilities and labels out."""
    S, Q, K, D = shape.support, shape.queries, shape.classes, shape.dim
    return 4 * (S + Q) * D + 8 * S + 4 * Q * K + 8 * Q
