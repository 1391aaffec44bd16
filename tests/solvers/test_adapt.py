"""`adapt`: proportions of a batch with a learned Dirichlet prior, against its reference."""

import math
from typing import Any

import pytest
import torch
from problems import Place, assert_clear_labels, largest
from torch import Tensor

import paddle_ext
from paddle_ext import _native, reference
from paddle_ext.reference.adapt import bound

# Q, K: one warp of classes, several, more than registers hold; a query, a class; many queries.
SHAPES = [(1, 1), (3, 1), (1, 7), (20, 5), (75, 33), (75, 160), (40, 300), (30, 513), (300, 700)]
SHAPES += [(511, 20), (512, 20), (512, 128), (513, 129), (2100, 40)]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def make_logits(
    Q: int, K: int, *, B: int | None = 2, present: int = 3, lead: float = 4.0, seed: int = 0
) -> Tensor:
    """Of queries from the first classes; float64."""
    random = torch.Generator().manual_seed(seed)
    shape = (B or 1, Q)
    truth = torch.randint(0, min(present, K), shape, generator=random)
    logits = 1.5 * torch.randn(*shape, K, generator=random, dtype=torch.float64)
    logits.scatter_add_(2, truth.unsqueeze(-1), torch.full((*shape, 1), lead).double())
    return logits if B else logits[0]


NASTY: dict[str, Tensor] = {
    "constant": torch.zeros(2, 10, 4).double(),
    "large": 1e4 * make_logits(20, 9),
    "huge": 1e28 * make_logits(20, 9),
    "offset": make_logits(20, 9) + 1e4 * torch.arange(20).double().view(1, 20, 1),
    "tiny": 1e-30 * make_logits(20, 9),
    "impossible": make_logits(20, 9).index_fill(2, torch.tensor([1, 4]), -math.inf),
    "one possible": torch.full((1, 6, 3), -math.inf).double().index_fill(2, torch.tensor(1), 0),
    "late": torch.tensor([[0.0, -200.0, -90.0]] * 30 + [[-300.0, 0.0, -1.0]]).double().unsqueeze(0),
    "all present": make_logits(200, 20, present=20, lead=8.0),
    "one present": make_logits(200, 20, present=1),
}


def agrees(logits: Tensor, place: Place, **options: Any) -> paddle_ext.Solution:
    """After the same number of iterations: convergence may take a thousand."""
    options = {"tol": 0.0, "max_iter": 25} | options
    rounded = logits.to(place.dtype)
    got = paddle_ext.adapt(rounded.to(place.device), **options)
    want = reference.adapt(rounded.double(), **options)
    tolerance = TOLERANCE[place.dtype]
    assert got.probabilities.dtype == place.dtype
    assert torch.isfinite(got.probabilities).all()
    for name in ("probabilities", "proportions"):
        error = largest(getattr(got, name).cpu().double() - getattr(want, name))
        assert error < tolerance, name
    assert largest((got.concentration.cpu().double() / want.concentration).log()) < 1e-3
    scale = want.bound.abs().clamp(min=1)
    assert largest((got.bound.cpu().double() - want.bound) / scale) < 10 * tolerance
    assert torch.equal(got.iterations.cpu(), want.iterations)
    assert_clear_labels(got, want, tolerance)
    assert torch.equal(got.labels, got.probabilities.argmax(-1))
    return got


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_reference(place: Place, shape: tuple[int, int]) -> None:
    agrees(make_logits(*shape), place)


@pytest.mark.parametrize("name", NASTY)
def test_nasty_logits(place: Place, name: str) -> None:
    got = agrees(NASTY[name], place)
    assert largest(got.probabilities.double().sum(-1) - 1) < 1e-5


def test_subnormal_numbers() -> None:
    """On x86 they take long, so probabilities have none; arithmetic of the caller keeps them."""
    logits, tiny = 12 * make_logits(75, 160, B=None), torch.finfo(torch.float32).tiny
    exact, found = (adapt(logits).probabilities for adapt in (reference.adapt, in_float32))
    assert ((exact > 1e-44) & (exact < tiny)).any()
    if paddle_ext.build_info()["simd"] in {"sse2", "avx2", "avx512"}:
        assert not ((found > 0) & (found < tiny)).any()
    assert torch.tensor(tiny) * torch.tensor(0.5) > 0


def in_float32(logits: Tensor) -> paddle_ext.Solution:
    return paddle_ext.adapt(logits.float())


def test_weight(place: Place) -> None:
    for weight in (0.3, 1e-3, 1e-6):
        agrees(make_logits(60, 20), place, weight=weight)
        prior = torch.arange(1.0, 21.0)
        found = agrees(make_logits(60, 20), place, weight=weight, prior=prior)
        want = reference.adapt(make_logits(60, 20), weight=weight, prior=prior)
        assert torch.equal(found.prior_used.cpu(), want.prior_used)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_probabilities_are_refused(device: str, dtype: torch.dtype) -> None:
    """As `predict_proba` of a classifier returns them; their logarithm is what is meant."""
    logits = make_logits(60, 50).to(device)
    u = logits.softmax(-1).to(dtype)
    for given in (u, u[0], u.argmax(-1, keepdim=True) == torch.arange(50, device=device)):
        for options in ({}, {"return_assignments": False}, {"prior": torch.ones(50)}):
            with pytest.raises(ValueError, match=r"got probabilities, .*: pass probabilities.log"):
                paddle_ext.adapt(given.to(dtype), **options)
    method = paddle_ext.methods.create("zero_shot")
    rows, none = logits[0, :, :4].to(dtype), torch.empty(0, device=device)
    with pytest.raises(ValueError, match="logits must be log-likelihoods"):
        method.predict(none.to(dtype).view(0, 4), none.long(), rows, logits=u[0])
    paddle_ext.adapt(u.log())
    paddle_ext.adapt(u - 0.02)  # nothing else is
    paddle_ext.adapt(u[..., :1])
    paddle_ext.adapt(torch.ones(4, 1, dtype=dtype, device=device))
    paddle_ext.adapt(torch.cat([u[0], 0.9 * u[0, :1]]))


def test_one_row_of_logits_may_sum_to_one(device: str) -> None:
    """By chance, as one of a hundred rows of two logits does; two rows are no chance."""
    row = torch.tensor([[0.35, 0.65]], device=device)
    assert paddle_ext.adapt(row).labels.tolist() == [1]
    with pytest.raises(ValueError, match="got probabilities"):
        paddle_ext.adapt(row.repeat(2, 1))


# --- what it is for -------------------------------------------------------------------------------


def test_the_batch_decides() -> None:
    """Few classes: uncertain queries follow the others. All classes: nothing changes."""
    logits = make_logits(100, 30, B=None, present=2, lead=3.0)
    truth_like = paddle_ext.adapt(logits)
    assert truth_like.labels.unique().tolist() == [0, 1]
    assert truth_like.concentration < 0.2
    assert truth_like.present().nonzero().view(-1).tolist() == [0, 1]
    every = make_logits(300, 10, B=None, present=10, lead=3.0)
    mixed = paddle_ext.adapt(every)
    assert mixed.concentration > 100
    assert (mixed.labels == every.argmax(-1)).double().mean() > 0.98


@pytest.mark.parametrize("present", [1, 5, 40])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_no_iteration_lowers_the_bound(present: int, weight: float) -> None:
    logits = make_logits(80, 40, B=3, present=present)
    bounds = torch.stack(
        [paddle_ext.adapt(logits, tol=0.0, max_iter=i, weight=weight).bound for i in range(1, 60)]
    )
    assert bounds.diff(dim=0).min() > -1e-8 * float(bounds.abs().max())


def test_the_bound_is_that_of_the_evidence() -> None:
    """One query, two classes: the integral over the proportions by hand, for a given a."""
    logits = torch.tensor([[[0.3, -0.7]]]).double()
    e, a = torch.tensor([[-0.6, -0.8]]).double(), torch.tensor([[0.9]]).double()
    exact = float(logits.logsumexp(-1)) - math.log(2)  # the proportions are 1/2 on average
    assert float(bound(logits, e, a, torch.ones_like(e), 1.0)) <= exact


def test_gamma_functions() -> None:
    """Against SciPy: torch's trigamma is accurate to only 5e-10."""
    special = pytest.importorskip("scipy.special", reason="needs SciPy")
    x = torch.logspace(-4, 8, 3000, dtype=torch.float64).numpy()
    got = zip(*(_native.gamma_functions(value) for value in x.tolist()), strict=True)
    want = special.digamma(x), special.polygamma(1, x), special.gammaln(x)
    for ours, exact in zip(got, want, strict=True):
        # Relative, except near the zeros of digamma and lgamma; trigamma has none.
        error = abs(torch.tensor(ours, dtype=torch.float64).numpy() - exact)
        assert (error / abs(exact).clip(1e-8 if exact.min() > 0 else 1)).max() < 1e-11


# --- promises -------------------------------------------------------------------------------------


def test_each_task_stops_on_its_own(place: Place) -> None:
    logits = torch.cat([make_logits(50, 12, B=1, present=p) for p in (1, 4, 12)])
    logits = logits.to(place.device, place.dtype)
    together = paddle_ext.adapt(logits)
    assert len(together.iterations.unique()) > 1
    for b in range(3):
        alone = paddle_ext.adapt(logits[b])
        for name in ("probabilities", "proportions", "iterations", "bound", "concentration"):
            assert torch.equal(getattr(alone, name), getattr(together, name)[b]), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logits": torch.zeros(0, 3)}, r"at least 1, got \[0, 3\]"),
        ({"logits": torch.full((2, 3), -math.inf)}, "a possible class in every row"),
        ({"weight": 1e-320}, "weight must be from 1e-06 to 1, got 1e-320"),
    ],
)
def test_bad_input(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paddle_ext.adapt(**{"logits": torch.zeros(2, 3)} | changes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_limit_that_its_dtype_rounds(dtype: torch.dtype) -> None:
    """The limit, 1e30, is a little larger in these dtypes, and refused in a sentence."""
    logits = torch.zeros(3, 2, dtype=dtype)
    logits[1] = -1e30
    with pytest.raises(ValueError, match="a possible class in every row"):
        paddle_ext.adapt(logits)
    with pytest.raises(ValueError, match="at most 1e"):
        paddle_ext.adapt(-logits)
