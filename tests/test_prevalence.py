"""How much of a batch each class is: hand-computed cases, intervals that cover, bad arguments."""

import math

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, presence, reference
from paddle_ext.adaptive_rule.learn import likelihood_of
from paddle_ext.prevalence import count_variance, from_sums, with_certain

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


def sums(
    counted: list[float], held: list[float], spread: list[float], shots: float = math.inf
) -> Tensor:
    """Class sums; by default the labels need no labelled rows."""
    inexact = [sum(counted) / shots] * len(counted)
    return torch.tensor([counted, held, spread, inexact], dtype=torch.float64)


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


def test_quantiles_are_those_of_beta() -> None:
    """By scipy.stats.beta, of mean 50 and variance W + (0.45 W)^2: the counts inside.

    C = 50 x 150 / 200 = 37.5 and r = 15 / 37.5, so that W = 15 (1 + r / (1 - r + 450 / 200^2)).
    """
    found = from_sums(sums([50, 150], [50, 150], [15, 15]))
    low, high = 31.09, 71.24
    assert found.low.tolist() == [math.ceil(low) / 200, 1 - math.floor(high) / 200]
    assert found.high.tolist() == [math.floor(high) / 200, 1 - math.ceil(low) / 200]


def test_few_labelled_rows_by_hand() -> None:
    """Sure labels by 3 rows of each of two classes: one in 14 labels may be wrong.

    The variance is (1/14) (13/14) (60^2 + 140^2) / (3 + 2) and the mean 60 + (100 - 60) / 14.
    """
    found = from_sums(sums([60, 140], [60, 140], [0, 0], shots=3))
    low, high = 35.61, 93.28  # by scipy.stats.beta
    assert found.low.tolist() == pytest.approx([math.ceil(low) / 200, 1 - math.floor(high) / 200])
    assert found.estimate.tolist() == [0.3, 0.7]
    only = from_sums(sums([9], [9], [0], shots=3))  # there is no other class
    assert [x.tolist() for x in only] == [[1.0]] * 3


def test_of_no_use_is_nearly_as_wide_as_chance() -> None:
    """Probabilities that say nothing: nine in ten draws of Dirichlet(1) are in 0.013 to 0.527."""
    found = from_sums(sums([30] * 5, [30] * 5, [24] * 5, shots=9))
    assert (found.low < 0.03).all()
    assert (found.high > 0.5).all()
    assert (found.high < 0.55).all()
    many = from_sums(sums([2.5] * 100, [2.5] * 100, [2.4] * 100, shots=5))
    assert (many.low == 0).all()  # of many classes each may be absent


def test_wrong_labels_move_a_share_further_if_probabilities_are_unsure() -> None:
    """With 3 rows of each of two classes, e = (20 / 100 + 1 / 12) / (1 + 1 / 6) = 17 / 70."""
    variance, _ = count_variance(
        *torch.tensor([[60.0, 40.0], [10.0, 10.0], [1 / 3, 1 / 3], [100.0, 100.0]]).double()
    )
    r = 10 / 24
    g = 1 + r / (1 - r + 12 * 24 / 100**2)
    want = 10 * g + g**2 * ((0.45 * 10) ** 2 + 17 / 70 * 53 / 70 * (60**2 + 40**2) / 5)
    assert variance.tolist() == pytest.approx([want, want])


def test_intervals_never_shrink_as_the_variance_grows() -> None:
    widths = []
    for spread in (0.0, 1.0, 5.0, 9.0, 9.4):
        found = from_sums(sums([10, 90], [10, 90], [spread, spread]))
        widths.append(float(found.high[0] - found.low[0]))
    assert widths == sorted(widths)


@pytest.mark.parametrize("sampling", [False, True])
def test_intervals_are_ordered_and_grow(sampling: bool) -> None:
    found, _ = solution(1, CLASSES)
    narrow, wide = (found.prevalence(x, sampling) for x in (0.5, 1 - 1e-9))
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
    """Of the classes present, nine tenths or more lie in their intervals."""
    covered = []
    for seed in range(60):
        found, true = solution(100 + seed, present)
        got = found.prevalence()
        inside = (got.low <= true + 1e-9) & (true <= got.high + 1e-9)
        covered.append(inside[true > 0])
    assert 0.85 < float(torch.cat(covered).double().mean()) < 0.999


def two_classes(seed: int, shots: int, copies: bool = False) -> tuple[Solution, float]:
    """A solution of a table of two classes, and the share of the first."""
    generator = torch.Generator().manual_seed(seed)
    share = float(torch.rand((), generator=generator))
    truth = (torch.rand(150, generator=generator) > share).long()
    labels = torch.arange(2).repeat(shots)
    noise = torch.randn(len(labels) + 150, 9, generator=generator)
    rows = 0.8 * (2 * torch.cat([labels, truth]) - 1).unsqueeze(1) + noise
    support = rows[: len(labels)]
    if copies:
        support = support[:2].repeat(shots, 1) + 0.02 * noise[: len(labels)]
    support, query = (torch.nn.functional.pad(x, (0, 1), value=1.0) for x in (support, rows[-150:]))
    return paddle_ext.adaptive(support, labels, query), float((truth == 0).double().mean())


@pytest.mark.parametrize(("shots", "copies"), [(1, False), (3, False), (3, True), (30, False)])
def test_intervals_know_how_few_labels_there_are(shots: int, copies: bool) -> None:
    """They cover, although nearly all probabilities are near 0 or 1; near copies are one row."""
    covered, widths = [], []
    for seed in range(60):
        found, true = two_classes(seed, shots, copies)
        got = found.prevalence()
        covered.append(float(got.low[0]) - 1e-9 <= true <= float(got.high[0]) + 1e-9)
        widths.append(float(got.high[0] - got.low[0]))
    assert sum(covered) >= 51
    assert (sum(widths) / 60 < 0.12) == (shots == 30)


# --- queries of no known class --------------------------------------------------------------------


def with_strangers(seed: int) -> tuple[Solution, Tensor, Tensor]:
    """Five known classes of twelve, a batch of them and two others; novelty and true shares."""
    support, labels, query, shares = batch(seed, 7)
    known, novel = labels < 5, shares[5:].sum().view(1)
    found = paddle_ext.adaptive(support[known], labels[known], query)
    novelty = presence.novelty(found, support[known], labels[known], query)
    return found, novelty, torch.cat([shares[:5], novel])


def test_strangers_have_a_share_of_their_own() -> None:
    """Without novelty they count where they are nearest, which is wrong by more."""
    inside, errors = [], []
    for seed in range(20):
        found, novelty, true = with_strangers(seed)
        got, without = found.prevalence(novelty=novelty, hidden=0.1), found.prevalence()
        assert got.estimate.shape == (6,)
        assert float(got.estimate.sum()) == pytest.approx(1.0)
        inside.append((got.low <= true + 1e-9) & (true <= got.high + 1e-9))
        errors.append([float((x[:5] - true[:5]).abs().mean()) for x in (got[0], without[0])])
    assert float(torch.stack(inside)[:, -1].double().mean()) > 0.85
    with_novelty, without_it = torch.tensor(errors).mean(0).tolist()
    assert with_novelty < 0.9 * without_it


def test_strangers_by_hand() -> None:
    """Of 100 queries 24 look like strangers, 4 of the 80 others by chance: 20 remain."""
    found = paddle_ext.adapt(torch.eye(2).repeat_interleave(50, 0) * 100)
    novelty = torch.linspace(0, 0.94, 100).index_fill(0, torch.arange(24), 0.97)
    sums_of_both = found.class_sums(novelty, hidden=0)
    got = from_sums(sums_of_both)
    torch.testing.assert_close(got.estimate, torch.tensor([0.3, 0.5, 0.2]).double())
    assert 0.1 < float(got.low[2]) < 0.2 < float(got.high[2]) < 0.8
    twice = from_sums(2 * sums_of_both)
    torch.testing.assert_close(twice.estimate, got.estimate)
    assert float(twice.high[2] - twice.low[2]) < float(got.high[2] - got.low[2])
    ends = [found.prevalence(novelty=novelty, hidden=share).high[2] for share in (0, 0.2, 0.5, 1)]
    assert float(ends[0]) == float(got.high[2]) < float(ends[1]) < float(ends[2]) == 1.0
    assert ends[2] == ends[3] == found.prevalence(novelty=novelty).high[2]
    unjudged = novelty.index_fill(0, torch.arange(24), math.nan)
    unjudged = found.prevalence(novelty=unjudged, hidden=0)
    assert unjudged.estimate[2] == 0.0
    assert float(unjudged.high[2]) >= 0.24  # nothing is known of these
    logits = torch.tensor([[0.7, 0.0], [0.5, 0.0], [0.0, 0.5]])
    everyone = paddle_ext.adapt(logits).prevalence(novelty=torch.ones(3))
    torch.testing.assert_close(everyone.estimate, torch.tensor([0.0, 0.0, 1.0]).double())
    assert bool((everyone.low <= everyone.high).all())  # neither is NaN, whatever is rounded


def test_novelty_must_belong_to_the_queries() -> None:
    found = paddle_ext.adapt(3 * torch.eye(3))
    with pytest.raises(ValueError, match=r"novelty must be \[3\], got \[2\]"):
        found.prevalence(novelty=torch.zeros(2))
    with pytest.raises(ValueError, match=r"sums must be \[.., 4, K\] or \[.., 10, K \+ 1\], got"):
        from_sums(torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"hidden must be >= 0 and at most 1, got 1\.5"):
        found.prevalence(novelty=torch.zeros(3), hidden=1.5)


def test_strangers_where_few_classes_tell_what_is_ordinary() -> None:
    """The fewer labelled rows the classes present have, the less sure it is that any are there."""
    novelty, low = torch.rand(200, generator=torch.Generator().manual_seed(0)), []
    novelty[:20] = 0.99
    for present in (1, 4):
        labels = torch.arange(200) % present
        logits = 100 * torch.nn.functional.one_hot(labels, 8).float()
        found = paddle_ext.adapt(logits)._replace(shots=torch.full((8,), 5.0))
        found = found._replace(variance=torch.tensor(1.0))
        low.append(float(found.prevalence(novelty=novelty).low[-1]))
    assert low[0] < low[1]


@pytest.mark.parametrize("shots", [1, 4])
@pytest.mark.parametrize("spread", [0.01, 1.0])
def test_the_variance_is_that_of_the_labelled_rows(spread: float, shots: int) -> None:
    """Not that of the rule, whose prior would hide that few rows are copies of one another."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat(shots)
    centres = torch.randn(6, 30, generator=generator, dtype=torch.float64)
    rows = centres[labels] + spread * torch.randn(
        len(labels), 30, generator=generator, dtype=torch.float64
    )
    found = paddle_ext.adaptive(rows, labels, rows)
    known = likelihood_of(rows[None], labels[None], 6)
    if shots == 1:
        wanted = torch.ones(())
    else:
        x = known.centred(rows[None])[0] * known.scale[0].sqrt()
        means = torch.stack([x[labels == k].mean(0) for k in range(6)])
        seen = shots / (shots - 1) * (x - means[labels]).square().sum(-1)
        wanted = seen.mean() / x.square().sum(-1).mean()
    assert found.variance is not None
    near = {"atol": 0.02, "rtol": 1e-6}  # V/q is at least 0.02
    torch.testing.assert_close(found.variance, wanted.double(), **near)


# --- the estimate, and batches together -----------------------------------------------------------


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


@pytest.mark.parametrize("grouped", [False, True])
def test_strangers_where_few_probabilities_are_kept(grouped: bool) -> None:
    """What is not kept of a query that looks strange is not left with the known classes."""
    support, labels, query, _ = batch(8)
    query = torch.cat([query, 1.5 * torch.randn(40, 20, dtype=torch.float64)])
    options = {"groups": torch.arange(len(query)) % 3} if grouped else {}
    every = paddle_ext.adaptive(support, labels, query, **options)
    novelty = presence.novelty(every, support, labels, query)
    want = every.prevalence(novelty=novelty).estimate
    for top in (1, 3):
        few = paddle_ext.adaptive(
            support, labels, query, return_assignments=False, top=top, **options
        )
        found = few.prevalence(novelty=novelty).estimate
        torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
        assert (found - want).abs().max() < 0.02


@pytest.mark.parametrize("novelty", [torch.zeros(3), torch.full((6,), 7.0)])
def test_bad_novelty(novelty: Tensor) -> None:
    found = paddle_ext.adapt(torch.randn(6, 4), same=[0, 0, 1, 1, 2, 2])
    with pytest.raises(
        ValueError, match=r"novelty must be (\[6\], got \[3\]|between 0 and 1, or NaN)"
    ):
        found.prevalence(novelty=novelty)


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


def test_few_labelled_rows_calibrate_nothing() -> None:
    support, labels, query, _ = batch(6)
    K = int(labels.max()) + 1
    every = paddle_ext.adaptive(support, labels, query)
    assert every.calibrated
    several = torch.stack([(labels == k).nonzero()[:2, 0] for k in range(9)]).flatten()
    alone = torch.stack([(labels == k).nonzero()[0, 0] for k in range(9, K)])
    few = torch.cat([several, alone])
    found = paddle_ext.adaptive(support[few], labels[few], query)
    assert not found.calibrated
    assert "probabilities not calibrated" in repr(found)
    assert found.prevalence().estimate.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("shots", "calibrated"),
    [([20, 2], False), ([17, 3], True), ([10, 9, 3, 3], True), ([10, 10, 2, 2], False)],
)
def test_few_rows_of_most_classes_calibrate_nothing(shots: list[int], calibrated: bool) -> None:
    labels = torch.arange(len(shots)).repeat_interleave(torch.tensor(shots))
    generator = torch.Generator().manual_seed(0)
    rows = torch.eye(4)[labels] + 0.2 * torch.randn(len(labels), 4, generator=generator)
    assert paddle_ext.adaptive(rows, labels, rows).calibrated == calibrated


def test_overconfident_probabilities_are_refused() -> None:
    support, labels, query, _ = batch(6)
    with pytest.raises(ValueError, match="those of PADDLE are overconfident"):
        paddle_ext.solve(support, labels, query).prevalence()


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5, -0.1, math.nan, 1 - 1e-16])
def test_bad_coverage(coverage: float) -> None:
    with pytest.raises(ValueError, match="coverage must be"):
        from_sums(sums([1], [1], [0]), coverage)
    with pytest.raises(TypeError, match="sampling must be"):
        from_sums(sums([1], [1], [0]), sampling="yes")
    with pytest.raises(TypeError, match="sums must be a tensor"):
        from_sums([[1.0]])
    with pytest.raises(ValueError, match="sums must be finite"):
        from_sums(sums([math.nan], [1], [0]))
    with pytest.raises(ValueError, match="sums must be at least 0, got -2"):
        from_sums(sums([-2, 3], [1, 0], [0, 0]))


def test_a_class_may_be_absent_unless_its_count_is_known_well() -> None:
    for spread, low, high in ((30, [0, 0], [1, 1]), (2, [0.2, 0.6], [0.4, 0.8])):
        for sampling in (False, True):
            found = from_sums(sums([45, 105], [45, 105], [spread] * 2), sampling=sampling)
            assert (found.low >= torch.tensor(low)).all()
            assert (found.high <= torch.tensor(high)).all()
            assert (found.low[0] == 0) == (found.high[1] == 1) == (spread == 30)


def test_nothing_is_known_of_no_queries() -> None:
    for none in (torch.zeros(4, 2), torch.full((4, 2), -1e-16, dtype=torch.float64)):  # rounding
        found = from_sums(none)
        assert found.low.tolist() == [0.0] * 2
        assert found.high.tolist() == [1.0] * 2


def test_no_interval_excludes_what_a_person_has_labelled() -> None:
    unclear = torch.zeros(10, 3, dtype=torch.float64)
    unclear[:4] = torch.tensor([[30, 50, 0], [40, 40, 0], [30, 30, 0], [30, 30, 0]])
    for counts in ([0, 20, 0], [0, 0, 10], [5, 10, 5]):
        certain = torch.tensor(counts).double()
        found, total = with_certain(unclear, certain), 80 + certain.sum()
        assert (found.low >= certain / total).all()
        assert (found.high <= 1 - (certain.sum() - certain) / total).all()
        assert (found.low <= found.estimate + 1e-12).all()
        assert (found.estimate <= found.high + 1e-12).all()


def test_novelty_of_certain_rows() -> None:
    """Variances that rounding brings below 0."""
    logits = torch.tensor([[115.0, -70.0], [0, 77], [45, 0], [0, 90]])
    novelty = torch.tensor([0.4, 0.97, 0.15, 0.26])
    found = paddle_ext.adapt(logits).prevalence(novelty=novelty)
    assert all(torch.isfinite(x).all() for x in found)
    as_array = paddle_ext.adapt(logits).prevalence(novelty=novelty.numpy())
    assert all(torch.equal(x, y) for x, y in zip(found, as_array, strict=True))
    with pytest.raises(TypeError, match="novelty must be"):
        paddle_ext.adapt(logits).prevalence(novelty=[0.5] * 4)
