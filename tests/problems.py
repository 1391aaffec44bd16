"""Tasks for all tests: random ones with distinct classes, and difficult ones; and comparisons.

A problem is made on the CPU, in float32 or converted from it. The truth is the float64 reference on
the very same numbers.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from rounds import assert_sound
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, TimSolution, reference

# How far probabilities may be from the float64 reference.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}

Result = TypeVar("Result")
REMEMBERED: dict[tuple[object, ...], Any] = {}


def remembered(function: Callable[..., Result], *tensors: Tensor, **options: Any) -> Result:
    """The result of a slow function for these numbers, computed once for all callers."""
    bits = (hashlib.blake2b(x.detach().numpy().tobytes()).digest() for x in tensors)
    forms = ((x.shape, x.dtype) for x in tensors)
    key = (function, *bits, *forms, repr(sorted(options.items())))
    if key not in REMEMBERED:
        REMEMBERED[key] = function(*tensors, **options)
    return REMEMBERED[key]


@dataclass(frozen=True)
class Problem:
    support: Tensor  # [S, D] or [B, S, D]
    support_labels: Tensor  # [S] or [B, S]
    query: Tensor  # [Q, D] or [B, Q, D]
    num_classes: int

    def to(self, where: torch.dtype | torch.device | str) -> "Problem":
        labels = self.support_labels
        if not isinstance(where, torch.dtype):
            labels = labels.to(where)
        return replace(
            self, support=self.support.to(where), support_labels=labels, query=self.query.to(where)
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "Problem":
        """Apply the same change to support and query."""
        return replace(self, support=change(self.support), query=change(self.query))

    def task(self, b: int) -> "Problem":
        """One task of a batch on its own."""
        if self.support.dim() == 2:
            return replace(self, query=self.query[b])
        labels = self.support_labels[b]
        return Problem(self.support[b], labels, self.query[b], self.num_classes)

    def solve(self, **options: Any) -> Solution:
        return paddle_ext.solve(*self.inputs(), num_classes=self.num_classes, **options)

    def truth(self, **options: Any) -> Solution:
        """The float64 reference, on the CPU."""
        exact = self.to("cpu").to(torch.float64)
        return remembered(reference.solve, *exact.inputs(), num_classes=self.num_classes, **options)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.support, self.support_labels, self.query


def make_problem(
    *,
    B: int | None = None,
    Q: int = 12,
    K: int = 4,
    D: int = 6,
    shots: tuple[int, int] = (1, 4),
    lead: float = 40.0,
    shared: bool = False,
    seed: int = 0,
) -> "Problem":
    """Random classes, on average `lead` nats apart, at most five of them among the queries.

    The shots differ from class to class, between the two bounds, and the rows are shuffled; in a
    batch every task has its own shots for every class, but the same number of rows.
    """
    random = torch.Generator().manual_seed(seed)
    rows = K * (shots[0] + shots[1]) // 2
    gap = math.sqrt(2 * lead)  # squared distance / 2 = lead

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    def labels_of_a_task() -> Tensor:
        extra = torch.randint(K, (rows - K * shots[0],), generator=random)
        labels = torch.cat([torch.arange(K).repeat(shots[0]), extra])
        return labels[torch.randperm(rows, generator=random)]

    def samples(centres: Tensor, labels: Tensor) -> Tensor:
        return centres[labels] + 0.5 / math.sqrt(D) * normal(len(labels), D)

    def centres_of_a_task() -> Tensor:
        if D == 1:  # a line has no room for random centres that are apart
            return gap * (torch.randperm(K, generator=random) - K / 2).unsqueeze(1).float()
        return gap / math.sqrt(2 * D) * normal(K, D)

    supports, labels, queries = [], [], []
    common = centres_of_a_task()
    for b in range(1 if B is None else B):
        centres = common if shared else centres_of_a_task()
        if not shared or b == 0:
            labels.append(labels_of_a_task())
            supports.append(samples(centres, labels[-1]))
        present = torch.randperm(K, generator=random)[:5]
        queries.append(
            samples(centres, present[torch.randint(len(present), (Q,), generator=random)])
        )
    if B == 0:
        query = torch.empty(0, Q, D)
        if shared:
            own = labels_of_a_task()
            return Problem(samples(common, own), own, query, K)
        return Problem(torch.empty(0, rows, D), torch.empty(0, rows).long(), query, K)
    if B is None:
        return Problem(supports[0], labels[0], queries[0], K)
    if shared:
        return Problem(supports[0], labels[0], torch.stack(queries), K)
    return Problem(torch.stack(supports), torch.stack(labels), torch.stack(queries), K)


# --- nasty problems -----------------------------------------------------------------------------


def offset() -> "Problem":
    """A common offset that dwarfs every difference."""
    return make_problem(Q=40, K=6, D=16, seed=1).map(lambda x: x + 1e4)


def duplicates() -> "Problem":
    """Every query three times, and all of them in the support too."""
    base = make_problem(Q=10, K=5, D=8, seed=2)
    found = base.truth(scaling="none").labels
    support = torch.cat([base.support, base.query])
    labels = torch.cat([base.support_labels, found])
    return Problem(support, labels, base.query.repeat(3, 1), 5)


def constant_columns() -> "Problem":
    """Features that are the same for all queries, one of them not in the support."""
    base = make_problem(Q=30, K=5, D=12, seed=3)
    base.support[:, 3], base.query[:, 3] = 2.0, 2.0
    base.query[:, 7] = 0.5
    return base


def far_class() -> "Problem":
    """A class so far away that its distances dwarf the others; no query is in it."""
    base = make_problem(Q=30, K=6, D=10, seed=6)
    present = base.truth(scaling="none").labels.unique()
    absent = next(k for k in range(6) if k not in present)
    base.support[base.support_labels == absent] += 1e4
    return base


def far_queries() -> "Problem":
    """A class far from the others, with queries in it."""
    base = make_problem(Q=30, K=6, D=10, seed=7)
    found = base.truth(scaling="none").labels
    base.support[base.support_labels == found[0]] += 40.0
    base.query[found == found[0]] += 40.0
    return base


def zero_rows() -> "Problem":
    """All-zero rows in support and query, which cannot be normalised."""
    base = make_problem(Q=20, K=4, D=8, shots=(3, 3), seed=8)
    base.support[base.support_labels == 2] = 0.0
    base.query[[0, 5]] = 0.0
    return base


def scaled_by(factor: float) -> Callable[[], Problem]:
    return lambda: make_problem(Q=30, K=5, D=12, seed=9).map(lambda x: x * factor)


NASTY: dict[str, Callable[[], Problem]] = {
    "offset": offset,
    "duplicates": duplicates,
    "constant columns": constant_columns,
    "one query": lambda: make_problem(Q=1, K=7, D=9, seed=4),
    "one class": lambda: make_problem(Q=9, K=1, D=5, seed=5),
    "far class": far_class,
    "far queries": far_queries,
    "zero rows": zero_rows,
    "tiny": scaled_by(1e-20),
    "huge": scaled_by(1e20),
}


def tied() -> "Problem":
    """Classes 1 and 3 have the same support, so they cannot be distinguished."""
    base = make_problem(Q=20, K=4, D=6, shots=(2, 2), seed=10)
    base.support[base.support_labels == 3] = base.support[base.support_labels == 1]
    return base


def all_equal() -> "Problem":
    """One point, many times."""
    base = make_problem(Q=8, K=3, D=4, shots=(2, 2), seed=11)
    return base.map(lambda x: torch.full_like(x, 0.7))


def one_direction() -> "Problem":
    """Classes of one direction and different lengths: unit-norm rows cannot separate them."""
    base = make_problem(Q=12, K=2, D=5, shots=(3, 3), seed=12)
    direction = torch.linspace(-1.0, 1.3, 5)
    lengths = 1.0 + base.support_labels + 0.37 * torch.arange(len(base.support_labels))
    signs = torch.tensor([1.0, -1.0]).repeat(6) * torch.linspace(0.3, 2.0, 12)
    return replace(base, support=lengths[:, None] * direction, query=signs[:, None] * direction)


def late_class() -> "Problem":
    """Class 1 holds nothing until the prototype of class 0 has left the last five queries."""
    support, query = torch.zeros(40, 40), torch.zeros(65, 40)
    support[1, 0] = -10.0
    support[2:, 1] = torch.arange(32.0, 70.0)  # no query comes near these
    query[:60, 0] = torch.linspace(7.5, 8.5, 60)
    query[60:, 0] = -4.0
    base = make_problem(Q=65, K=40, D=40)
    return replace(base, support=support, support_labels=torch.arange(40), query=query)


# --- comparing ----------------------------------------------------------------------------------


def margin(solution: Solution | TimSolution) -> Tensor:
    """The lead of the largest probability of a query over the second, [.., Q]."""
    if solution.probabilities.shape[-1] == 1:
        return torch.ones_like(solution.probabilities[..., 0])
    best = solution.probabilities.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def sensitivity(problem: Problem, **options: Any) -> float:
    """How far the float64 solution moves when the inputs move by a float32 rounding.

    If this is not far below the tolerance, a task is near a tie, and no float32 computation can be
    expected to agree.
    """
    random = torch.Generator().manual_seed(0)

    def rounded(x: Tensor) -> Tensor:
        return x * (1 + 2.0**-24 * (2 * torch.rand(x.shape, generator=random).double() - 1))

    exact = problem.to("cpu").to(torch.float64)
    moved = exact.map(rounded).truth(**options).probabilities
    return largest(moved - exact.truth(**options).probabilities)


def largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def assert_clear_labels(got: Any, truth: Any, tolerance: float) -> None:
    """Labels agree where rounding of the probabilities cannot change them."""
    clear = (margin(truth) > 2 * tolerance).cpu()
    assert torch.equal(got.labels.cpu()[clear], truth.labels.cpu()[clear])


def assert_agrees(got: Solution, truth: Solution, *, epsilon: float = 1e-6) -> None:
    """Assignments, labels, proportions and dual agree with the float64 reference."""
    tolerance = TOLERANCE[got.probabilities.dtype]
    u = got.probabilities.cpu().double()
    assert u.shape == truth.probabilities.shape
    assert largest(u - truth.probabilities) < tolerance
    assert_clear_labels(got, truth, tolerance)
    assert largest(got.proportions.cpu().double() - truth.proportions) < tolerance
    # The dual is steep where a class is empty, so it is compared through its exponential, and with
    # the proportions it belongs to.
    dual = got.dual.cpu().double()
    assert largest((dual - 1).exp() - (truth.dual - 1).exp()) < tolerance
    own = 1 + (got.proportions.cpu().double() + epsilon).log()
    assert largest(dual - own) < 10 * tolerance
    assert got.iterations.dtype == torch.int32
    assert_on_simplex(got)


def assert_on_simplex(got: Solution) -> None:
    u = got.probabilities
    assert_sound(got, u.shape[-1], TOLERANCE[u.dtype] / 10)
    assert torch.equal(got.labels, u.argmax(-1))
    assert torch.isfinite(got.dual).all()
    assert torch.isfinite(got.criterion).all()


def each_tensor(solution: Solution, change: Callable[[Tensor], Tensor]) -> Solution:
    """The solution with its tensors changed; its options stay."""
    return Solution(*(change(x) if isinstance(x, Tensor) else x for x in solution))


def assert_same(a: Any, b: Any) -> None:
    """All tensors of two results are bitwise identical."""
    for name, x, y in zip(a._fields, a, b, strict=True):
        assert isinstance(x, Tensor) == isinstance(y, Tensor), name
        assert not isinstance(x, Tensor) or torch.equal(x.cpu(), y.cpu()), name


# --- the maths again, as plainly as possible -----------------------------------------------------


def naive_scaled(problem: Problem, scaling: str) -> "Problem":
    """One task in scaled coordinates, in float64."""
    support, query = problem.support.double(), problem.query.double()
    K = problem.num_classes
    if scaling == "minmax":
        width = query.max(0).values - query.min(0).values
        width[width == 0] = 1
        support, query = support / width, query / width
    if scaling == "auto":
        support, query = (
            torch.stack([row / row.norm() if row.norm() > 0 else row for row in rows])
            for rows in (support, query)
        )
        means = [support[problem.support_labels == k].mean(0) for k in range(K)]
        gaps, medians = [], []
        for z in query:
            distances = sorted(float((z - mean).square().sum()) for mean in means)
            gaps.append(distances[K // 2] - distances[0])
            medians.append(distances[K // 2])
        gap, median = sum(gaps) / len(gaps), sum(medians) / len(medians)
        factor = math.sqrt(13 / gap) if gap > max(1e-12, 1e-5 * median) else 1.0
        support, query = factor * support, factor * query
    return replace(problem, support=support, query=query)


def naive_objective(
    problem: Problem, u: Tensor, v: Tensor, w: Tensor, lam: float, T: float, epsilon: float
) -> float:
    """The objective of one task at the temperature T, term by term."""
    total = 0.0
    for z, row in zip(problem.query, u, strict=True):
        for k, share in enumerate(row.tolist()):
            total += T / 2 * share * float((z - w[k]).square().sum())
            total += share * math.log(share) if share > 0 else 0.0
    for z, k in zip(problem.support, problem.support_labels.tolist(), strict=True):
        total += T / 2 * float((z - w[k]).square().sum())
    for v_k, p_k in zip(v.tolist(), u.mean(0).tolist(), strict=True):
        total += lam * (math.exp(v_k - 1) - v_k * (p_k + epsilon))
    return total


# --- where ----------------------------------------------------------------------------------------

SCALINGS = ("auto", "minmax", "none")
SHAPES = [(12, 4, 6), (75, 20, 33), (200, 30, 16)]  # Q, K, D: small; Gram; direct


class Place(NamedTuple):
    """Where the native code runs, and in which precision."""

    device: str
    dtype: torch.dtype

    def put(self, problem: Problem) -> "Problem":
        return problem.to(self.dtype).to(self.device)

    def solve(self, problem: Problem, **options: Any) -> Solution:
        return self.put(problem).solve(**options)

    def agrees(self, problem: Problem, **options: Any) -> Solution:
        """Solve, and compare with the reference on the same numbers."""
        got = self.solve(problem, **options)
        truth = problem.to(self.dtype).truth(**options)
        assert_agrees(got, truth, epsilon=options.get("epsilon", 1e-6))
        return got


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Torch raises an error in the block if it waits for the device; always resets the mode."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
