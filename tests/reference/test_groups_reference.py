"""The specification of groups, piece by piece, against the equations written out again."""

import itertools
import math
from typing import Any

import pytest
import torch
from problems import largest
from torch import Tensor

from paddle_ext.reference.adapt import IMPOSSIBLE
from paddle_ext.reference.groups import (
    CHANCES,
    Groups,
    Members,
    adapt_groups,
    concentrations_by_pairs,
    few_classes,
    likeness_in_groups,
    mixture_posterior,
    posterior_of_groups,
    start_of,
)
from paddle_ext.reference.rule import Known, centred, classify, learn

NUMBERS = torch.tensor([8, 3, 3, 8, 5, 8, 8, 8])  # groups of 2, 1 and 5 rows


def exact(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def logits_of(K: int = 4, seed: int = 3) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(len(NUMBERS), K, generator=random).double()


def measures_of(K: int = 4) -> Tensor:
    """One for each of three groups; the first has an impossible class."""
    random = torch.Generator().manual_seed(4)
    m = torch.rand(3, K, generator=random).double() + 0.1
    m[0, 1] = 0
    return m * K / m.sum(-1, keepdim=True)


# --- pieces ---------------------------------------------------------------------------------------


def test_rows_of_groups() -> None:
    members = Members.of(NUMBERS)
    assert [rows.tolist() for rows in members.rows] == [[1, 2], [4], [0, 3, 5, 6, 7]]
    assert members.sizes.tolist() == [2, 1, 5]
    u = torch.arange(16.0).double().view(8, 2)
    assert members.counts(u, exact([2, 1, 0.5]))[0].tolist() == [2 * (2 + 4), 2 * (3 + 5)]


def test_the_shares_of_cases_make_groups_likely() -> None:
    """Of two groups that are sure and one that is not, the last follows the others."""
    evidence = exact([[0.0, -50.0], [0.0, -50.0], [-1.0, 0.0]])
    found = mixture_posterior(evidence)
    assert float(found[2, 0]) > 0.9
    assert torch.allclose(found.sum(-1), exact([1.0, 1.0, 1.0]))
    assert torch.allclose(mixture_posterior(evidence + exact([[7.0], [0.0], [-9.0]])), found)


@pytest.mark.parametrize("even", [True, False])
def test_concentrations_by_hand(even: bool) -> None:
    """Every pair of rows: one draw of a class, or two."""
    members = Members.of(NUMBERS)
    m = torch.ones(3, 4).double() if even else measures_of()
    t = (logits_of() + m[members.of_row].log()).softmax(-1)
    evidence = torch.zeros(3, 17).double()
    for g, rows in enumerate(members.rows):
        for q, other in itertools.permutations(rows.tolist(), 2):
            possible = m[g] > 0
            likely = (t[q] * t[other])[possible] / (m[g] / 4)[possible]
            for i, c in enumerate(CHANCES):
                evidence[g, i] += math.log(c * float(likely.sum()) + 1 - c) / (2 * (len(rows) - 1))
    c = mixture_posterior(evidence) @ exact(CHANCES)
    a = concentrations_by_pairs(t, members, m)
    assert largest(a / ((1 - c) / (4 * c)) - 1) < 1e-9


@pytest.mark.parametrize("likeness", [0.0, 0.3, 1.0])
def test_proportions_by_hand(likeness: float) -> None:
    """The others of the group, as much as they differ; a row alone is as its measure says."""
    members, m = Members.of(NUMBERS), measures_of()
    a, weights, logits = exact([0.3, 2.0, 0.1]), exact([0.9, 0.5, 0.7]), logits_of()
    groups = Groups(members, m, a)
    start = groups.alone(logits).exp()
    got = groups.probabilities(logits, weights, likeness)
    want = start.clone()
    for g, rows in enumerate(members.rows):
        for _ in range(3):
            N = weights[g] * want[rows].sum(0)
            A = a[g] * m[g]
            before = want.clone()
            for q in rows.tolist():
                factor = (N - weights[g] * before[q] + A) * (N + A + 0.5) / (N + A + 1)
                p = logits[q].exp() * m[g] ** likeness * factor ** (1 - likeness) * (m[g] > 0)
                want[q] = p / p.sum()
    assert largest(got - want) < 1e-12
    if likeness == 1.0:
        assert largest(got - start) < 1e-12


def test_bounds_are_below_the_evidence() -> None:
    """Of two rows of two classes, whose evidence is a sum over all four cases."""
    members, a = Members.of(torch.tensor([0, 0])), 0.4
    logits, m = exact([[1.0, 0.0], [0.5, 0.2]]), exact([[1.4, 0.6]])
    groups = Groups(members, m, exact([a]))
    u = groups.probabilities(logits, torch.ones(1).double())
    evidence = 0.0
    for first, second in itertools.product(range(2), repeat=2):
        chance = float(m[0, first]) / 2
        same = a * float(m[0, second]) + (first == second)
        evidence += math.exp(logits[0, first] + logits[1, second]) * chance * same / (2 * a + 1)
    bound = float(groups.bounds(logits, u, torch.ones(1).double()))
    assert math.log(evidence) - 0.5 < bound < math.log(evidence)


@pytest.mark.parametrize("even", [True, False])
def test_sets_of_classes_are_those_of_all_subsets(even: bool) -> None:
    """Of four classes, against a loop over all subsets."""
    members, K = Members.of(NUMBERS), 4
    m = torch.ones(3, K).double() if even else measures_of()
    logits, weights = logits_of(), exact([0.5, 0.9, 0.8])
    groups = Groups(members, m, exact([0.5, 1.0, 0.2]))
    u = groups.probabilities(logits, weights)

    R = logits.exp() * K / (logits.exp() * m[members.of_row]).sum(-1, keepdim=True)
    evidence = torch.full((3, K + 1), IMPOSSIBLE).double()
    of_sets: list[dict[tuple[int, ...], float]] = [{}, {}, {}]
    for g, rows in enumerate(members.rows):
        for size in range(1, K + 1):
            sets = [*itertools.combinations(range(K), size)]
            shares = {one: math.prod(m[g, [*one]].tolist()) for one in sets}
            for one in sets:
                likely = float(weights[g] * R[rows][:, [*one]].mean(-1).log().sum())
                of_sets[g][one] = shares[one] / max(sum(shares.values()), 1e-300) * math.exp(likely)
            total = sum(of_sets[g][one] for one in sets)
            evidence[g, size - 1] = math.log(total) if total > 0 else IMPOSSIBLE
    usual = (logits.exp() * m[members.of_row]).sum(-1).log() - math.log(K)
    independent = members.counts(usual.unsqueeze(1), weights).squeeze(1)
    evidence[:, K] = (groups.bounds(logits, u, weights) - independent).clamp(min=0)
    chances = mixture_posterior(evidence)

    want = chances[members.of_row, -1:] * u
    for g, rows in enumerate(members.rows):
        for one, likely in of_sets[g].items():
            within = torch.zeros(K).double()
            within[[*one]] = 1
            share = chances[g, len(one) - 1] * likely
            restricted = R[rows] * within
            if likely > 0:
                share = share / math.exp(evidence[g, len(one) - 1])
                want[rows] += share * restricted / restricted.sum(-1, keepdim=True)
    found = few_classes(groups, logits, u, weights)
    assert largest(found - want / want.sum(-1, keepdim=True)) < 1e-9


# --- the prior ------------------------------------------------------------------------------------


def test_a_group_uses_its_prior_if_it_is_likelier() -> None:
    first, last, unsure = [3.0, 0.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]
    logits = exact(([first] * 20 + [unsure] * 4) + ([last] * 20 + [unsure] * 4))
    groups = torch.arange(2).repeat_interleave(24)
    prior = exact([[0.0001, 0.9999, 0.0001], [0.01, 0.01, 0.98]])
    found = adapt_groups(logits, groups, prior=prior)
    assert found.prior_used.tolist() == [False, True]
    assert found.labels.tolist() == [0] * 24 + [2] * 24
    plain, members = adapt_groups(logits, groups), Members.of(groups)
    one = torch.ones(2).double()
    bounds = start_of(logits, members, one, prior).bounds
    assert bool((bounds >= start_of(logits, members, one, None).bounds).all())
    assert float(bounds[0]) == float(plain.bound[0])
    assert float(bounds[1]) > float(plain.bound[1])


def test_an_even_prior_changes_nothing() -> None:
    plain = adapt_groups(logits_of(), NUMBERS)
    assert plain.prior_used is None
    even = adapt_groups(logits_of(), NUMBERS, prior=torch.full((3, 4), 0.25))
    assert largest(even.probabilities - plain.probabilities) < 1e-9


# --- without features -----------------------------------------------------------------------------


def test_what_is_reported_by_hand() -> None:
    found = adapt_groups(logits_of(), NUMBERS, weight=0.6)
    for g, number in enumerate([3, 5, 8]):
        u, a = found.probabilities[number == NUMBERS], found.concentration[g]
        own = 0.6 * u.sum(0) + a
        assert largest(found.proportions[g] - own / own.sum()) < 1e-12
        assert largest(found.dual[g] - (torch.digamma(own) - torch.digamma(own.sum()))) < 1e-9
    alone = found.probabilities[4]
    assert largest(alone - logits_of()[4].softmax(-1)) < 0.2


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e28])
def test_extreme_logits(scale: float) -> None:
    logits = scale * logits_of()
    logits[2, 1], logits[0, 3] = -math.inf, -math.inf
    for prior in (None, measures_of()):
        found = adapt_groups(logits, NUMBERS, prior=prior)
        assert largest(found.probabilities.sum(-1) - 1) < 1e-9
        if prior is not None:
            assert largest(found.probabilities[NUMBERS == 3][:, 1]) == 0.0


def test_rows_of_a_group_agree() -> None:
    """Pairs of one class, each too unsure to tell alone."""
    random = torch.Generator().manual_seed(0)
    groups = torch.arange(60).repeat_interleave(2)
    truth = torch.randint(12, (60,), generator=random)[groups]
    logits = torch.randn(120, 12, generator=random).double()
    logits[torch.arange(120), truth] += 1.7
    found = adapt_groups(logits, groups).labels
    right = float((found == truth).double().mean())
    assert right > float((logits.argmax(-1) == truth).double().mean()) + 0.15


# --- with features --------------------------------------------------------------------------------


def scene(
    offset: float, shots: int = 6, K: int = 3, D: int = 16, seed: int = 0
) -> tuple[Known, Tensor, Tensor, Tensor]:
    """Labelled rows, and queries of eight groups, their classes and groups; groups may differ."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).double()

    centres, labels = 1.2 * draw(K, D), torch.arange(K).repeat(shots)
    groups, truth = torch.arange(40) % 8, torch.randint(K, (40,), generator=random)
    query = centres[truth] + draw(40, D) + offset * draw(8, D)[groups]
    return learn(centres[labels] + draw(len(labels), D), labels, K), query, truth, groups


def test_likeness_by_hand() -> None:
    """Products of two rows of a class, in their groups and across, over the squares of rows."""
    known, query, _, numbers = scene(0.7)
    x = centred(query, known.centre)
    u = known.logits(x).softmax(-1)
    within, across, usual = [0.0, 0.0], [0.0, 0.0], 0.0
    for k, m in enumerate(known.prototypes.rows):
        products = (x - m) @ known.metric @ (x - m).T
        for q, p in itertools.product(range(40), repeat=2):
            weight, product = float(u[q, k] * u[p, k]), float(products[q, p])
            if q == p:
                usual += float(u[q, k]) * product / 40
            else:
                pairs = within if numbers[q] == numbers[p] else across
                pairs[0] += weight * product
                pairs[1] += weight
    p, other = within[0] / within[1], across[0] / across[1]
    found = likeness_in_groups(known, x, Members.of(numbers), u)
    assert found == pytest.approx((p - other) / (usual - other))
    assert likeness_in_groups(known, x, Members.of(torch.arange(40)), u) == 0.0


@pytest.mark.parametrize(("offset", "low", "high"), [(0.0, 0.0, 0.1), (2.0, 0.5, 1.0)])
def test_rows_of_a_real_group_are_alike(offset: float, low: float, high: float) -> None:
    known, query, truth, groups = scene(offset)
    u = torch.nn.functional.one_hot(truth).double()
    found = likeness_in_groups(known, centred(query, known.centre), Members.of(groups), u)
    assert low <= found <= high


@pytest.mark.parametrize("prior", [None, exact([0.0, 0.4, 0.6])])
def test_results_of_groups(prior: Tensor | None) -> None:
    """Of each group; and no class that its prior rules out."""
    known, query, _, groups = scene(0.5)
    found = posterior_of_groups(known, query, groups, prior=prior)
    assert largest(found.probabilities.sum(-1) - 1) < 1e-9
    assert found.proportions.shape == found.dual.shape == (8, 3)
    assert found.concentration.shape == found.bound.shape == (8,)
    assert largest(found.proportions.sum(-1) - 1) < 1e-9
    if prior is not None:
        assert largest(found.probabilities[:, 0]) == 0.0
        assert bool((found.dual[:, 0] == IMPOSSIBLE).all())
        one = posterior_of_groups(known, query, groups, prior=prior.expand(8, -1))
        assert torch.equal(one.probabilities, found.probabilities)


def test_order_changes_nothing() -> None:
    known, query, _, groups = scene(0.5)
    want = posterior_of_groups(known, query, groups)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    got = posterior_of_groups(known, query[order], 90 - 3 * groups[order])
    assert largest(got.probabilities - want.probabilities[order]) < 1e-9
    assert largest(got.proportions.flip(0) - want.proportions) < 1e-9


def test_logits_may_be_added() -> None:
    known, query, truth, groups = scene(0.5)
    told = 30.0 * torch.nn.functional.one_hot(truth).double()
    assert torch.equal(posterior_of_groups(known, query, groups, added=told).labels, truth)
    assert torch.equal(classify(known, query, added=told).labels, truth)
