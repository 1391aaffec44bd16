"""How much of a batch each class is: hand-computed cases, intervals that cover, bad arguments."""

import math

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, reference
from paddle_ext.prevalence import from_sums

CLASSES, SHOTS, QUERIES = 12, 5, 80


def batch(seed: int, present: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labelled rows, their labels, queries of some classes and the shares of all, in float64."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 20, generator=generator, dtype=torch.float64)
    labels = torch.arange(CLASSES).repeat(SHOTS)
    shares = torch.rand(present, generator=generator)
    truth = torch.multinomial(shares, QUERIES, replacement=True, generator=generator)
    noise = torch.randn(len(labels) + QUERIES, 20, generator=generator, dtype=torch.float64)
    rows = centres[torch.cat([labels, truth])] + 1.5 * noise
    true = torch.bincount(truth, minlength=CLASSES) / QUERIES
    return rows[: len(labels)], labels, rows[len(labels) :], true.double()


def solution(seed: int, present: int = 4, **options: object) -> tuple[Solution, Tensor]:
    support, labels, query, true = batch(seed, present)
    return paddle_ext.adaptive(support, labels, query, **options), true


def sums(counted: list[float], held: list[float], spread: list[float]) -> Tensor:
    return torch.tensor([counted, held, spread], dtype=torch.float64)


def test_sums_by_hand() -> None:
    u = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    found = paddle_ext.adapt(u.log().clamp(min=-200), max_iter=1)
    found = found._replace(probabilities=u, labels=torch.tensor([0, 0, 2]))
    want = sums([2, 0, 1], [1.25, 1.0, 0.75], [0.4375, 0.625, 0.1875])
    torch.testing.assert_close(found.class_sums(), want)
    shares = (want[0] / 3 + 2 * want[1] / 3) / 3  # two of three classes have a label
    torch.testing.assert_close(found.prevalence().estimate, shares)


def test_sure_labels_have_no_interval() -> None:
    found = from_sums(sums([7, 3, 0], [7, 3, 0], [0, 0, 0]))
    for x in found:
        assert x.tolist() == [0.7, 0.3, 0.0]


def test_one_query_is_possible() -> None:
    """Unless the probabilities add up to less than what the interval may leave out."""
    found = from_sums(sums([10, 0, 0], [9.8, 0.12, 0.08], [0.2, 0.12, 0.08]))
    torch.testing.assert_close(found.high, torch.tensor([1.0, 0.1, 0.08 / 30]).double())
    torch.testing.assert_close(found.low, torch.tensor([0.9, 0.0, 0.0]).double())


def test_quantiles_are_those_of_gamma() -> None:
    """By scipy.stats.gamma, of mean 50 and variance 20 + (1.2 x 20)^2: the counts inside."""
    found = from_sums(sums([50, 150], [50, 150], [20, 20]))
    low, high = 17.64, 95.72
    assert found.low.tolist() == [math.ceil(low) / 200, 1 - math.floor(high) / 200]
    assert found.high.tolist() == [math.floor(high) / 200, 1 - math.ceil(low) / 200]


@pytest.mark.parametrize("sampling", [False, True])
def test_intervals_are_ordered_and_grow(sampling: bool) -> None:
    found, _ = solution(1, CLASSES)
    narrow, wide = (found.prevalence(x, sampling) for x in (0.5, 0.95))
    for x in (narrow, wide):
        assert x.estimate.dtype == torch.float64
        assert float(x.estimate.sum()) == pytest.approx(1.0)
        assert (x.low >= 0).all()
        assert (x.low <= x.estimate).all()
        assert (x.estimate <= x.high).all()
        assert (x.high <= 1).all()
    assert (wide.high >= narrow.high).all()
    assert (wide.low <= narrow.low).all()
    assert (wide.high - wide.low).sum() > (narrow.high - narrow.low).sum()


@pytest.mark.parametrize("present", [3, CLASSES])
def test_intervals_cover(present: int) -> None:
    """Of the classes present, about nine tenths lie in their intervals."""
    covered = []
    for seed in range(60):
        found, true = solution(100 + seed, present)
        got = found.prevalence()
        inside = (got.low <= true + 1e-9) & (true <= got.high + 1e-9)
        covered.append(inside[true > 0])
    assert 0.85 < float(torch.cat(covered).double().mean()) < 0.98


def test_proportions_are_the_estimate_and_better_than_before_the_absorb_step() -> None:
    """Also in the reference, and if only the largest probabilities are kept."""
    errors = []
    for seed in range(10):
        found, true = solution(seed, CLASSES)
        torch.testing.assert_close(found.proportions, found.prevalence().estimate)
        few = solution(seed, CLASSES, return_assignments=False, top=3)[0]
        torch.testing.assert_close(few.proportions, found.proportions, atol=1e-6, rtol=0)
        want = reference.adaptive(*batch(seed, CLASSES)[:3])
        torch.testing.assert_close(found.proportions, want.proportions, atol=1e-6, rtol=0)
        before = found.dual.exp() / found.dual.exp().sum()
        errors.append([float((x - true).abs().mean()) for x in (found.proportions, before)])
    ours, theirs = torch.tensor(errors).mean(0).tolist()
    assert ours < theirs


def test_largest_probabilities_give_a_bound() -> None:
    """Intervals from the probabilities that are kept contain those from all."""
    every, _ = solution(3, CLASSES)
    few, _ = solution(3, CLASSES, return_assignments=False, top=2)
    exact, bound = every.class_sums(), few.class_sums()
    torch.testing.assert_close(exact[:2], bound[:2])
    assert (bound[2] >= exact[2] - 1e-9).all()
    assert (bound[2] > exact[2] + 1e-3).any()
    a, b = every.prevalence(), few.prevalence()
    assert (b.high >= a.high - 1e-9).all()


def test_tasks_and_batches_together() -> None:
    support, labels, query, _ = batch(4)
    both = paddle_ext.adaptive(support, labels, torch.stack([query, query.flip(0)]))
    one = paddle_ext.adaptive(support, labels, query)
    for x, y in zip(both.prevalence(), one.prevalence(), strict=True):
        assert x.shape == (2, CLASSES)
        torch.testing.assert_close(x[0], y)
    together = from_sums(both.class_sums().sum(0))
    torch.testing.assert_close(together.estimate, one.prevalence().estimate)
    # The error of a class mean is common to both batches: it does not average out.
    wide = one.class_sums()[2] > 4
    widths = [(x.high - x.low)[wide] for x in (together, one.prevalence())]
    assert wide.any()
    assert (widths[0] > widths[1] / math.sqrt(2)).all()


def test_overconfident_probabilities_are_refused() -> None:
    support, labels, query, _ = batch(6)
    with pytest.raises(ValueError, match="those of PADDLE are overconfident"):
        paddle_ext.solve(support, labels, query).prevalence()


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_bad_coverage(coverage: float) -> None:
    with pytest.raises(ValueError, match="coverage must be"):
        from_sums(sums([1], [1], [0]), coverage)
    with pytest.raises(TypeError, match="sampling must be"):
        from_sums(sums([1], [1], [0]), sampling="yes")  # type: ignore[arg-type]
