"""A prior on the class proportions: `adapt` and `adaptive` against the float64 reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, reference
from paddle_ext.adaptive_rule.solve import solve_tasks
from paddle_ext.large import passes
from paddle_ext.prior import measures_of
from paddle_ext.reference.adapt import LEAST, MOST, iterate, measures
from paddle_ext.task import Task

SHAPES = [(1, 1, 1), (3, 7, 2), (4, 20, 5), (2, 75, 33), (2, 40, 160), (2, 60, 300), (1, 30, 600)]


def logits_of(B: int, Q: int, K: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of queries in proportions near a prior, and the prior with some impossible classes."""
    g = torch.Generator().manual_seed(seed)
    prior = torch.rand(B, K, generator=g, dtype=torch.float64).pow(6) + 1e-6
    prior[:, 1::7] = 0
    truth = torch.multinomial(prior, Q, replacement=True, generator=g)
    logits = torch.randn(B, Q, K, generator=g, dtype=torch.float64)
    return logits.scatter_add(2, truth.unsqueeze(2), torch.full((B, Q, 1), 1.5).double()), prior


def permuted(prior: Tensor) -> Tensor:
    """The same weights for other classes; impossible ones stay so."""
    found = prior.clone()
    for row in found:
        possible = row.nonzero().squeeze(1)
        row[possible] = row[possible].flip(0)
    return found


def assert_same(found: Solution, wanted: Solution, tolerance: float) -> None:
    assert found.prior_used is not None
    assert wanted.prior_used is not None
    if wanted.probabilities.amax(-1).amin() < 1:  # with one possible class both models are the same
        assert torch.equal(found.prior_used.cpu(), wanted.prior_used.cpu())
    for name in ("probabilities", "proportions"):
        got, want = (getattr(x, name).cpu().double() for x in (found, wanted))
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_adapt_follows_the_reference(shape: tuple[int, int, int], device: str) -> None:
    logits, prior = logits_of(*shape)
    for given in (prior, permuted(prior), prior[0]):
        wanted = reference.adapt(logits, prior=given)
        for dtype, tolerance in ((torch.float32, 2e-4), (torch.float64, 1e-7)):
            if dtype is torch.float64 and device == "cuda":
                continue
            x = logits.to(device, dtype)
            found = paddle_ext.adapt(x, prior=given)
            assert_same(found, wanted, tolerance)
            single = paddle_ext.adapt(x[0], prior=given if given.dim() == 1 else given[0])
            assert torch.equal(single.probabilities, found.probabilities[0])


def test_large_tasks_follow_the_reference(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, prior = logits_of(1, 300, 40)
    monkeypatch.setattr(passes, "MOST_IN_ONE_BLOCK", 100)
    for given in (prior[0], permuted(prior)[0]):
        wanted = reference.adapt(logits[0], prior=given)
        found = paddle_ext.adapt(logits[0].float().to(device), prior=given)
        assert_same(found, wanted, 2e-3 if device == "cuda" else 2e-4)
        top = paddle_ext.adapt(
            logits[0].float().to(device), prior=given, return_assignments=False, top=3
        )
        assert top.prior_used == wanted.prior_used


def task(B: int = 2, Q: int = 40, noise: float = 1.2) -> tuple[Tensor, ...]:
    K, D, g = 12, 16, torch.Generator().manual_seed(1)
    centres = torch.randn(K, D, generator=g, dtype=torch.float64)
    labels = torch.arange(K).repeat(3)
    support = centres[labels] + noise * torch.randn(B, 3 * K, D, generator=g, dtype=torch.float64)
    prior = torch.rand(B, K, generator=g, dtype=torch.float64).pow(4)
    prior[:, 5] = 0
    truth = torch.multinomial(prior, Q, replacement=True, generator=g)
    query = centres[truth] + noise * torch.randn(B, Q, D, generator=g, dtype=torch.float64)
    return support, labels.repeat(B, 1), query, prior, truth


@pytest.mark.parametrize("large", [False, True])
def test_adaptive_follows_the_reference(
    device: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    support, labels, query, prior, _ = task()
    if large:
        monkeypatch.setattr(passes, "MOST_IN_ONE_BLOCK", 100)
    for given in (prior, permuted(prior), prior[0]):
        wanted = reference.adaptive(support, labels, query, prior=given)
        for dtype, tolerance in ((torch.float32, 5e-4), (torch.float64, 1e-6)):
            if dtype is torch.float64 and device == "cuda" and large:
                continue
            rows, queries = support.to(device, dtype), query.to(device, dtype)
            found = paddle_ext.adaptive(rows, labels.to(device), queries, prior=given)
            assert_same(found, wanted, 4 * tolerance if large else tolerance)
            assert float(found.probabilities[..., 5].max()) == 0.0
            assert float(found.proportions[..., 5].max()) == 0.0


def test_right_prior_helps_and_wrong_one_is_ignored() -> None:
    support, labels, query, prior, truth = task(B=8, Q=60, noise=2.0)

    def right(given: Any) -> float:
        found = paddle_ext.adaptive(support, labels, query, prior=given)
        return float((found.labels == truth).double().mean())

    alone, helped = right((prior > 0).double()), right(prior)
    assert helped > alone + 0.03
    used = paddle_ext.adaptive(support, labels, query, prior=prior).prior_used
    ignored = paddle_ext.adaptive(support, labels, query, prior=permuted(prior)).prior_used
    assert used.sum() >= 6
    assert ignored.sum() <= 2


def test_names_take_a_prior() -> None:
    support, labels, query, prior, _ = task()
    names = torch.stack([support[0, labels[0] == k].mean(0) for k in range(12)])
    for rows in (36, 7):
        own = Task(
            support[:, :rows].contiguous(),
            labels[:, :rows].contiguous(),
            query,
            12,
            prototypes=names.unsqueeze(0),
            measures=measures_of(prior, 12, 2, query).values,
        )
        found = solve_tasks(own, "auto", max_iter=100, tol=1e-3)
        assert float(found.probabilities[..., 5].max()) == 0.0
        assert found.prior_used is not None


def test_bound_never_falls() -> None:
    logits, prior = logits_of(4, 50, 30)
    _, m = measures(prior, 4)
    least = torch.full((4, 1), LEAST, dtype=torch.float64)
    for first in (1.0, MOST):
        found = [iterate(logits, m, least, 0.7, n, 0.0, first).bound for n in range(1, 12)]
        assert (torch.stack(found).diff(dim=0) > -1e-9).all()


def test_priors_out_of_reach_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, prior = logits_of(4, 200, 30)
    logits = 2 * logits
    least = torch.full((4, 1), LEAST, dtype=torch.float64)
    even, wrong = measures(permuted(prior), 4)
    first = iterate(logits, even, least, 1.0, 100, 1e-3)
    for m, won in ((measures(prior, 4)[1], True), (wrong, False)):
        least = first.concentration
        full = iterate(logits, m, least, 1.0, 100, 1e-3, MOST)
        found = iterate(logits, m, least, 1.0, 100, 1e-3, MOST, first.bound)
        assert ((full.bound > first.bound) == won).all()
        assert ((found.bound > first.bound) == won).all()
        assert ((found.iterations == full.iterations) == won).all()
    duals, held = [], passes.StoredLikelihoods.held

    def counted(self: passes.StoredLikelihoods, dual: Tensor) -> Tensor:
        duals.append(dual)
        return held(self, dual)

    monkeypatch.setattr(passes, "MOST_IN_ONE_BLOCK", 100)
    monkeypatch.setattr(passes.StoredLikelihoods, "held", counted)
    paddle_ext.adapt(logits[0], prior=permuted(prior)[0])
    assert len(duals) < int(first.iterations[0] + full.iterations[0])


def test_a_row_of_impossible_classes_is_refused() -> None:
    logits = torch.tensor([[0.0, -torch.inf], [1.0, 2.0]])
    with pytest.raises(ValueError, match="possible class in every row"):
        paddle_ext.adapt(logits, prior=torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("size", [9e29, 9e250])
def test_impossible_classes_stay_so(size: float) -> None:
    """However far their logits are ahead, and in whatever way the task is solved."""
    logits = size * torch.tensor([[-1.0, 1.0], [1.0, -1.0]], dtype=torch.float64).repeat(2, 1)
    if size < 1e38:
        logits = logits.float()
    first = {"prior": torch.tensor([1.0, 0.0])}
    each = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    groups = {"groups": [0, 0, 1, 1]}
    for more, want in (
        (first, [0, 0, 0, 0]),
        (first | {"return_assignments": False, "top": 1}, [0, 0, 0, 0]),
        (first | groups, [0, 0, 0, 0]),
        (first | groups | {"share": False}, [0, 0, 0, 0]),
        (groups | {"prior": each}, [0, 0, 1, 1]),
        ({"same": [0, 1, 2, 2], **first}, [0, 0, 0, 0]),
    ):
        found = paddle_ext.adapt(logits, **more)
        assert found.labels.tolist() == want
        assert torch.isfinite(found.probabilities).all()
    both = paddle_ext.adapt(logits.expand(2, 4, 2), prior=each)
    assert both.labels.tolist() == [[0] * 4, [1] * 4]


def test_priors_of_no_tasks_and_of_extreme_weights() -> None:
    none = paddle_ext.adapt(torch.zeros(0, 4, 3), prior=torch.ones(0, 3))
    assert none.labels.shape == (0, 4)
    with pytest.raises(ValueError, match="prior must have a positive weight, got zeros only"):
        measures_of(
            torch.tensor([[0.0, 0.0], [1e308, 1e308]], dtype=torch.float64), 2, 2, torch.zeros(1)
        )
