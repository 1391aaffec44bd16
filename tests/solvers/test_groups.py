"""`groups=` of `adapt` and `adaptive`: against the reference, by hand, and in every form."""

import enum
import math
from typing import Any

import numpy as np
import pytest
import torch
from places import at_places, on_devices
from problems import Place, assert_clear_labels, largest, make_problem
from torch import Tensor

import paddle_ext
from paddle_ext.adaptive_rule import batch, likeness
from paddle_ext.adaptive_rule.learn import likelihood_of
from paddle_ext.groups import groups_of
from paddle_ext.large import passes
from paddle_ext.native.load import module as native
from paddle_ext.reference.groups import Groups as ReferenceGroups
from paddle_ext.reference.groups import (
    Members,
    adapt_groups,
    likeness_in_groups,
    posterior_of_groups,
)
from paddle_ext.reference.groups import Sets as ReferenceSets
from paddle_ext.reference.rule import centred, classify, learn
from paddle_ext.rows import sample_by_content, unit_rows
from paddle_ext.solvers import groups as of_groups
from paddle_ext.solvers.groups import Prior, first_proportions
from paddle_ext.solvers.sets import call_sets, evidence_of_sets

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-7}


def make_groups(sizes: list[int]) -> Tensor:
    """Group numbers that are not in order, nor from 0 on."""
    random = torch.Generator().manual_seed(0)
    names = torch.randperm(1000, generator=random)[: len(sizes)] - 300
    ids = names.repeat_interleave(torch.tensor(sizes))
    return ids[torch.randperm(len(ids), generator=random)]


def make_logits(groups: Tensor, K: int, *, present: int = 2, seed: int = 0) -> Tensor:
    """Logits of rows whose group has few classes; float64."""
    random = torch.Generator().manual_seed(seed)
    found = groups_of(groups, len(groups), groups.device)
    classes = torch.randint(K, (len(found.names), present), generator=random)
    which = torch.randint(present, (len(groups),), generator=random)
    logits = torch.randn(len(groups), K, generator=random, dtype=torch.float64)
    truth = classes[found.of_row, which].unsqueeze(-1)
    return logits.scatter_add(1, truth, torch.full((len(groups), 1), 2.5).double())


def assert_near(got: paddle_ext.Solution, want: paddle_ext.Solution, tolerance: float) -> None:
    for name in ("probabilities", "proportions"):
        error = largest(getattr(got, name).cpu().double() - getattr(want, name))
        assert error < tolerance, name
    assert largest((got.concentration.cpu().double() / want.concentration).log()) < 10 * tolerance
    assert_clear_labels(got, want, tolerance)


# --- against the reference ------------------------------------------------------------------------

# Sizes of groups and K: mixed; single rows; one class, two; many; and around tiles of pairs, panels
# of rows and classes in registers.
SHAPES = [
    ([1, 2, 5, 9, 40], 7),
    ([1] * 12, 5),
    ([1, 1, 2], 1),
    ([3, 4, 30], 2),
    ([2, 3, 17, 18], 300),
    ([70, 33], 33),
    ([64, 65, 2], 64),
    ([66, 3, 40], 65),
    ([52, 53, 2], 160),
    ([15, 16, 17, 31, 32, 33], 129),
    ([13, 12, 11, 1], 256),
]


@pytest.mark.parametrize(("sizes", "K"), SHAPES, ids=str)
def test_adapt_agrees_with_the_reference(place: Place, sizes: list[int], K: int) -> None:
    groups = make_groups(sizes)
    logits = make_logits(groups, K).to(place.dtype)
    got = paddle_ext.adapt(logits.to(place.device), groups=groups.to(place.device))
    want = adapt_groups(logits, groups)
    assert_near(got, want, TOLERANCE[place.dtype])
    error = (got.bound.cpu().double() - want.bound) / want.bound.abs().clamp(min=1)
    assert largest(error) < 10 * TOLERANCE[place.dtype]
    assert got.labels.shape == (len(groups),)
    assert got.proportions.shape == (len(sizes), K)
    assert got.groups.names == sorted(set(groups.tolist()))


NASTY: dict[str, Tensor] = {
    "constant": torch.zeros(11, 4).double(),
    "large": 1e4 * make_logits(make_groups([4, 7]), 5),
    "huge": 1e28 * make_logits(make_groups([4, 7]), 5),
    "offset": make_logits(make_groups([4, 7]), 5) + 1e4 * torch.arange(11).double().unsqueeze(1),
    "impossible": make_logits(make_groups([4, 7]), 5).index_fill(1, torch.tensor([1]), -math.inf),
    "at odds": 60 * torch.eye(11).double(),
}


@pytest.mark.parametrize("name", NASTY)
def test_nasty_logits(place: Place, name: str) -> None:
    logits, groups = NASTY[name].to(place.dtype), make_groups([4, 7])
    got = paddle_ext.adapt(logits.to(place.device), groups=groups)
    assert torch.isfinite(got.probabilities).all()
    want = adapt_groups(logits, groups)
    assert largest(got.probabilities.cpu().double() - want.probabilities) < TOLERANCE[place.dtype]


@at_places("share", [True, False])
def test_a_prior_for_each_group(place: Place, share: bool) -> None:
    groups = make_groups([3, 6, 12])
    logits = make_logits(groups, 4).to(place.dtype)
    prior = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.0, 0.4, 0.3, 0.3], [1.0, 1.0, 1.0, 1.0]])
    given: dict[str, Any] = {"groups": groups, "prior": prior, "share": share}
    got = paddle_ext.adapt(logits.to(place.device), **given)
    second = (got.groups.of_row == 1).cpu()
    assert largest(got.probabilities.cpu()[second, 0]) == 0.0
    assert got.prior_used.shape == (3,)
    if share:
        want = adapt_groups(logits, groups, prior=prior)
        assert_near(got, want, TOLERANCE[place.dtype])
        assert torch.equal(got.prior_used.cpu(), want.prior_used)


def test_what_is_expected_of_a_group_is_believed() -> None:
    """A group that is as expected uses its prior; one that contradicts it does not."""
    first, last, unsure = [3.0, 0.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]
    logits = torch.tensor(([first] * 20 + [unsure] * 4) + ([last] * 20 + [unsure] * 4))
    groups = ["as expected"] * 24 + ["another"] * 24
    prior = torch.tensor([[0.0001, 0.9999, 0.0001], [0.98, 0.01, 0.01]])
    found = paddle_ext.adapt(logits, groups=groups, prior=prior)
    assert found.prior_used.tolist() == [False, True]
    assert found.labels.tolist() == [0] * 24 + [2] * 24


# Q rows of K classes with D features and so many shots
TASKS = [(7, 12, (4, 4)), (6, 40, (2, 5)), (5, 9, (1, 1)), (9, 16, (3, 3)), (40, 24, (1, 3))]


@at_places("K, D, shots", TASKS)
def test_adaptive_agrees_with_the_reference(
    place: Place, K: int, D: int, shots: tuple[int, int]
) -> None:
    groups = make_groups([1, 2, 5, 9, 23])
    problem = make_problem(Q=len(groups), K=K, D=D, shots=shots, lead=4, B=None).to(place.dtype)
    got = paddle_ext.adaptive(*place.put(problem).inputs(), num_classes=K, groups=groups)
    exact = problem.to(torch.float64)
    known = learn(exact.support, exact.support_labels, K)
    want = posterior_of_groups(known, exact.query, groups)
    assert_near(got, want, TOLERANCE[place.dtype])


def test_adaptive_with_impossible_classes(place: Place) -> None:
    groups = make_groups([1, 4, 12])
    problem = make_problem(Q=len(groups), K=10, D=12, shots=(2, 4), lead=4, B=None).to(place.dtype)
    prior = torch.ones(3, 10)
    prior[0, 2:], prior[1, :7], prior[2, ::2] = 0, 0, 5  # two classes, three, and favoured ones
    prior[:2, 0], prior[1, 9] = 3, 1e-3
    prior[1, 0] = 0
    given: dict[str, Any] = {"groups": groups, "prior": prior}
    got = paddle_ext.adaptive(*place.put(problem).inputs(), num_classes=10, **given)
    exact = problem.to(torch.float64)
    known = learn(exact.support, exact.support_labels, 10)
    want = posterior_of_groups(known, exact.query, groups, prior=prior)
    assert_near(got, want, TOLERANCE[place.dtype])
    of_row = torch.unique(groups, return_inverse=True)[1]
    assert largest(got.probabilities.cpu()[prior[of_row] == 0]) == 0


# --- sets of few classes --------------------------------------------------------------------------


@at_places("sizes, K", [*SHAPES, ([3, 50], 9), ([4, 1], 1025), ([2500, 2], 12)])
def test_sets_agree_with_the_reference(place: Place, sizes: list[int], K: int) -> None:
    """In any proportions rows are those alone; groups have the measure m [G, K]."""
    groups = make_groups(sizes)
    random, G = torch.Generator().manual_seed(1), len(sizes)
    logits = make_logits(groups, K).to(place.dtype).to(place.device)
    m = torch.rand(G, K, generator=random).double().pow(6)
    m[0, K // 2 :] = 0
    m[:, 0] += 0.1
    m = m * K / m.sum(-1, keepdim=True)
    known, double = groups_of(groups, len(groups), logits.device), torch.float64
    weight = torch.linspace(0.5, 1, G, dtype=double, device=logits.device)
    measure = m.to(logits.device)
    prior = Prior(measure, torch.linspace(0.01, 3, G, dtype=double, device=logits.device))
    likeness = torch.full_like(weight[:1], 0.1)
    found = of_groups.rows_alone(logits, known, weight, prior)
    members = Members.of(groups)
    want_groups = ReferenceGroups(members, m, prior.concentration.cpu())
    exact = logits.cpu().double()
    alone = want_groups.alone(exact)
    assert largest(found.probabilities.cpu().double() - alone.exp()) < TOLERANCE[place.dtype]

    of_row = m[members.of_row]
    relative = torch.where(of_row > 0, alone - of_row.log() + math.log(K), -1.7e308)
    worth = weight.cpu() / (1 + (members.sizes - 1) * 0.1)
    evidence = evidence_of_sets(logits, known, weight, found, likeness)
    bounds = want_groups.bounds(relative, alone.exp(), worth).clamp(min=0)
    chances = torch.rand(G, native.CASES, generator=random).double()
    chances[evidence.cpu() < -1e29] = 0
    wanted = []
    for g, rows in enumerate(members.rows):
        sets = ReferenceSets(relative[rows], m[g], alone[rows].exp().sum(0), float(worth[g]))
        count = len(sets.evidence)
        logs = torch.cat([sets.evidence, bounds[g : g + 1]])
        got = torch.cat([evidence[g, :count], evidence[g, -1:]]).cpu()
        assert largest((got - logs) / (1 + logs.abs())) < TOLERANCE[place.dtype] / 10
        assert bool((evidence[g, count:-1] < -1e29).all())
        of_sizes = torch.cat([chances[g, :count], chances[g, -1:]])
        mixed = 0.9 * sets.mixed(alone[rows].exp(), of_sizes).clamp(min=1e-30).log()
        mixed = mixed + 0.1 * alone[rows]
        wanted.append(torch.where(m[g] > 0, mixed, -1.7e308).softmax(-1))
    call_sets(logits, known, weight, found, likeness, chances=chances.to(logits.device))
    for rows, want in zip(members.rows, wanted, strict=True):
        got = found.probabilities[rows.to(logits.device)].cpu().double()
        assert largest(got - want) < TOLERANCE[place.dtype]


@on_devices("number", [1, 2, 3, 20])
def test_how_many_classes_groups_have(device: str, number: int) -> None:
    random = torch.Generator().manual_seed(0)
    groups = torch.arange(60).repeat_interleave(24)
    truth = (7 * groups + torch.randint(number, groups.shape, generator=random)) % 20
    logits = torch.randn(len(groups), 20, generator=random)
    logits[torch.arange(len(groups)), truth] += 2
    known = groups_of(groups, len(groups), torch.device(device))
    weight = torch.ones(60, dtype=torch.float64, device=device)
    given = 2 * logits.to(device)  # as likely as they are
    found = first_proportions(given, known, weight, None)
    chances = evidence_of_sets(given, known, weight, found)
    of_groups.posterior_of_mixture(chances)
    assert largest(chances.cpu().sum(-1) - 1) < 1e-9
    place = 8 if number == 20 else number - 1  # the last are any proportions
    assert float(chances.cpu()[:, place].mean()) > 0.9


def test_rows_in_several_chunks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over the rows of all chunks, and each row in its place."""
    groups = make_groups([1, 2, 300, 260])
    problem = make_problem(Q=len(groups), K=5, D=8, shots=(2, 4), lead=2, B=None).to(device)
    given: dict[str, Any] = {"groups": groups, "prior": torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0])}
    whole = paddle_ext.adaptive(*problem.inputs(), num_classes=5, **given)
    monkeypatch.setattr(batch, "MOST_IN_ONE_BLOCK", 0)
    monkeypatch.setattr(passes, "CHUNK_NUMBERS", {"cpu": 0, "cuda": 0})  # the fewest rows
    monkeypatch.setattr(likeness, "PART", 300)
    parts = paddle_ext.adaptive(*problem.inputs(), num_classes=5, **given)
    assert largest(parts.probabilities - whole.probabilities) < 1e-5


def test_large_groups_of_the_same_classes(device: str) -> None:
    """Their pairs are a sample; only one chance is possible for each."""
    truth = torch.rand(40_000, generator=torch.Generator().manual_seed(0)).round().long()
    logits = 12.0 * torch.nn.functional.one_hot(truth, 100)
    found = paddle_ext.adapt(logits.to(device), groups=torch.arange(40_000) // 20_000)
    assert bool(found.probabilities.isfinite().all())
    assert torch.equal(found.labels.cpu(), truth)


# --- pairs, likeness and order --------------------------------------------------------------------


def test_classes_in_turn_are_classes_in_any_order() -> None:
    """Rows were compared with sixteen at equal shifts, none of them of their own class.

    Then 35 % of the rows were right, and 76 % in another order.
    """
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 24, generator=random)
    labels = torch.arange(20).repeat(5)
    support = centres[labels] + 2.5 * torch.randn(100, 24, generator=random)
    groups = torch.arange(6).repeat_interleave(320)
    truth = torch.arange(20).repeat(96)
    query = centres[truth] + 2.5 * torch.randn(1920, 24, generator=random)
    order = torch.randperm(1920, generator=random)
    in_turn = paddle_ext.adaptive(support, labels, query, groups=groups)
    mixed = paddle_ext.adaptive(support, labels, query[order], groups=groups[order])
    assert largest(in_turn.probabilities[order] - mixed.probabilities) < 1e-3
    one = paddle_ext.adaptive(support, labels, query)
    right = [float((found.labels == truth).float().mean()) for found in (in_turn, one)]
    assert right[0] > right[1] - 0.05


@pytest.mark.parametrize("sizes", [[3000, 5, 1], [1025, 1024, 1023], [40] * 30], ids=str)
def test_the_order_of_rows_does_not_matter(place: Place, sizes: list[int]) -> None:
    groups = make_groups(sizes)
    problem = make_problem(Q=len(groups), K=6, D=10, shots=(3, 3), lead=2, B=None).to(place.dtype)
    support, labels, query = place.put(problem).inputs()
    logits = make_logits(groups, 6).to(place.dtype).to(place.device)
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(3))
    for solve in (
        lambda rows: paddle_ext.adapt(logits[rows], groups=groups[rows]),
        lambda rows: paddle_ext.adaptive(support, labels, query[rows], groups=groups[rows]),
    ):
        one, other = solve(torch.arange(len(groups))), solve(order)
        assert largest(one.probabilities[order] - other.probabilities) < TOLERANCE[place.dtype]
        ratio = (one.concentration / other.concentration).log()
        assert largest(ratio) < TOLERANCE[place.dtype]


def test_rows_are_sampled_by_their_content(device: str) -> None:
    rows = torch.randn(5000, 7, generator=torch.Generator().manual_seed(0)).to(device)
    rows[:100] = rows[200:300]
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(1)).to(device)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = rows.to(dtype)
        taken, other = sample_by_content(x, 1000), sample_by_content(x[order], 1000)
        assert len(taken) == len(set(taken.tolist())) == 1000
        assert torch.equal(taken, taken.sort().values)

        def lexical(chosen: Tensor) -> list[list[float]]:
            return sorted(chosen.float().tolist())

        assert lexical(x[taken]) == lexical(x[order][other])
        # They are as good as random: of every fifth as many, and like the others.
        assert largest((taken // 1000).bincount().double() - 200) < 60
        assert largest(x[taken].double().mean(0)) < 0.15
    assert sample_by_content(rows[:3], 5).tolist() == [0, 1, 2]
    assert len(sample_by_content(rows.new_zeros(9, 2), 4)) == 4


# How many rows groups have, K and D: pairs of rows, sums of classes, or both.
LIKENESS = [([1, 2, 3, 30], 4, 12), ([5] * 9, 11, 3), ([70, 90, 1], 3, 7), ([100, 9], 80, 5)]


@at_places("sizes, K, D", LIKENESS)
def test_likeness_agrees_with_the_reference(place: Place, sizes: list[int], K: int, D: int) -> None:
    groups = make_groups(sizes)
    random = torch.Generator().manual_seed(0)
    problem = make_problem(Q=len(groups), K=K, D=D, shots=(2, 4), lead=2, B=None)
    members = Members.of(groups)
    shift = 0.5 * torch.randn(len(sizes), D, generator=random)[members.of_row]
    query = problem.query + shift
    u = torch.randn(len(groups), K, generator=random).double().softmax(-1).to(place.dtype)
    known = learn(problem.support.double(), problem.support_labels, K)
    want = likeness_in_groups(known, centred(query.double(), known.centre), members, u.double())
    given = (x.to(place.device) for x in (problem.support.to(place.dtype), problem.support_labels))
    likely = likelihood_of(*(x[None] for x in given), K)
    rows = query.to(place.dtype).to(place.device)
    known_groups = groups_of(groups, len(groups), rows.device)
    alike = likeness.LikenessOfRows(likely, rows, likely.logits(rows), known_groups)
    r, worth = alike.of(u.to(place.device)[known_groups.order])
    assert 0.01 < want < 1
    assert abs(float(r) - want) < TOLERANCE[place.dtype]
    assert largest(worth.cpu() - 1 / (1 + (members.sizes - 1) * want)) < TOLERANCE[place.dtype]


def test_groups_do_not_depend_on_threads() -> None:
    groups = make_groups([40] * 300)
    logits = make_logits(groups, 9).float()
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            found.append(paddle_ext.adapt(logits, groups=groups))
    finally:
        torch.set_num_threads(threads)
    for name in ("probabilities", "proportions", "concentration", "bound", "dual"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name
        assert torch.equal(getattr(found[0], name), getattr(found[2], name)), name


# --- what groups mean -----------------------------------------------------------------------------


@at_places("share", [True, False])
def test_one_group_is_a_batch(place: Place, share: bool) -> None:
    problem = place.put(make_problem(Q=30, K=6, D=10, shots=(3, 3), lead=4, B=None))
    one = paddle_ext.adaptive(*problem.inputs(), num_classes=6)
    same = paddle_ext.adaptive(*problem.inputs(), num_classes=6, groups=["x"] * 30, share=share)
    for name in ("labels", "probabilities"):
        assert torch.equal(getattr(same, name), getattr(one, name))
    for name in ("proportions", "dual", "concentration", "bound", "iterations"):
        assert torch.equal(getattr(same, name)[0], getattr(one, name)), name


def test_groups_of_their_own(device: str) -> None:
    """Without sharing each group is a task; rows come back in the order of the caller."""
    groups = make_groups([1, 4, 4, 11])
    problem = make_problem(Q=len(groups), K=5, D=8, shots=(2, 2), lead=4, B=None).to(device)
    support, labels, query = problem.inputs()
    found = paddle_ext.adaptive(support, labels, query, groups=groups, share=False)
    for place, name in enumerate(found.groups.names):
        rows = (groups == name).to(device)
        own = paddle_ext.adaptive(support, labels, query[rows], num_classes=5)
        assert largest(found.probabilities[rows] - own.probabilities) < 1e-5
        assert largest(found.proportions[place] - own.proportions) < 1e-5


def test_large_and_small_groups_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one is solved in chunks."""
    monkeypatch.setattr(batch, "MOST_IN_ONE_BLOCK", 10_000)
    random, K = torch.Generator().manual_seed(0), 300
    support = torch.randn(K, 16, generator=random).repeat_interleave(2, 0)
    support += 0.1 * torch.randn(2 * K, 16, generator=random)
    groups, labels = torch.tensor([0] * 300 + [1] * 9), torch.arange(K).repeat_interleave(2)
    query = support[torch.randint(8, (309,), generator=random)]
    found = paddle_ext.adaptive(support, labels, query, groups=groups, share=False)
    for place in range(2):
        own = paddle_ext.adaptive(support, labels, query[groups == place])
        assert largest(found.probabilities[groups == place] - own.probabilities) < 1e-5
        assert abs(found.bound[place] / own.bound - 1) < 1e-5


def test_small_groups_borrow(device: str) -> None:
    """Pairs of one class are too few to tell so alone; a hundred of them are not."""
    random = torch.Generator().manual_seed(0)
    groups = torch.arange(100).repeat_interleave(2)
    truth = torch.randint(20, (100,), generator=random)[groups]
    logits = torch.randn(200, 20, generator=random)
    logits[torch.arange(200), truth] += 1.7
    alone, shared = (
        paddle_ext.adapt(logits.to(device), groups=groups, share=share).labels.cpu()
        for share in (False, True)
    )
    right = [float((labels == truth).double().mean()) for labels in (alone, shared)]
    assert right[1] > right[0] + 0.1
    assert float((shared[::2] == shared[1::2]).double().mean()) > 0.9


def test_a_large_group_has_a_concentration_of_its_own() -> None:
    """Groups of one class do not make others believe that they have one."""
    random = torch.Generator().manual_seed(0)
    groups = torch.arange(30).repeat_interleave(30)
    truth = torch.where(
        groups < 20,
        torch.randint(10, (30,), generator=random)[groups],
        torch.randint(10, (900,), generator=random),
    )
    logits = torch.randn(900, 10, generator=random)
    logits[torch.arange(900), truth] += 3
    a = paddle_ext.adapt(logits, groups=groups).concentration
    assert a[:20].max() < 0.02
    assert a[20:].min() > 0.3


def test_results_of_groups_and_of_all(device: str) -> None:
    groups = make_groups([2, 6, 9])
    logits = make_logits(groups, 4).float().to(device)
    found = paddle_ext.adapt(logits, groups=groups)
    whole = found.over_all()
    for place in range(3):
        rows = found.groups.of_row == place
        own = found._replace(labels=found.labels[rows], probabilities=found.probabilities[rows])
        own = own._replace(groups=None)
        assert torch.equal(found.present()[place], own.present())
        for got, want in zip(found.prevalence(), own.prevalence(), strict=True):
            assert largest(got[place] - want) < 1e-6
    assert torch.equal(whole.present(), found._replace(groups=None).present())
    assert largest(whole.prevalence().estimate - whole.proportions) < 1e-6
    assert largest(found.class_sums().sum(0) - whole.class_sums()) < 1e-5
    best = paddle_ext.adapt(logits, groups=groups, return_assignments=False, top=2)
    assert best.probabilities.shape == (17, 2)
    assert torch.equal(best.present(), found.present())
    assert torch.equal(best.classes[:, 0], found.labels)
    assert largest(found.doubt() - (1 - found.probabilities.amax(-1))) < 1e-6
    assert "3 groups, 17 queries" in repr(found)


# --- forms of groups ------------------------------------------------------------------------------


def test_forms_of_groups() -> None:
    logits, ids = make_logits(make_groups([3, 4]), 3), [5, 5, -2, 5, -2, -2, -2]
    want = paddle_ext.adapt(logits, groups=torch.tensor(ids))
    assert want.groups.names == [-2, 5]
    assert want.groups.of_row.tolist() == [1, 1, 0, 1, 0, 0, 0]
    array = np.array(ids)
    forms: list[Any] = [ids, tuple(ids), array, array.astype(np.int8), array.astype(float)]
    forms += [array.astype(">i4"), array[::-1].copy()[::-1], torch.tensor(ids).float()]
    for form in forms:
        got = paddle_ext.adapt(logits, groups=form)
        assert torch.equal(got.probabilities, want.probabilities)
        assert got.groups.names == [-2, 5]
    named = ["b" if i == 5 else "a" for i in ids]
    for words in (named, np.array(named), np.array(named, dtype=object)):
        got = paddle_ext.adapt(logits, groups=words)
        assert torch.equal(got.probabilities, want.probabilities)
        assert got.groups.names == ["a", "b"]


BAD: dict[str, tuple[Any, str]] = {
    "short": ([1, 2], r"groups must have shape \[4\].* got \[2\]"),
    "halves": (torch.tensor([1.0, 1.0, 2.5, 2.0]), "integers of 64 bits, got 2.5 in row 2"),
    "NaN": (np.array([1.0, np.nan, 2.0, 2.0]), "integers of 64 bits, got nan in row 1"),
    "a missing name": (["a", None, "b", "b"], "got None in row 1"),
    "two kinds": (["a", 1, "b", "b"], "all strings or all integers of 64 bits, got 1 in row 1"),
    "beyond 64 bits": ([1, 2, 2**63, 4], "64 bits, got 9223372036854775808 in row 2"),
    "unsigned": (np.array([1, 2**63, 2, 2], "uint64"), "64 bits, got 9223372036854775808 in row 1"),
    "flags": (torch.tensor([True, True, False, False]), "integers or strings, got bool"),
    "one text": ("abcd", "an integer or a string per row, got str"),
    "a number": (4, "an integer or a string per row, got int"),
    "sparse": (torch.ones(4).to_sparse(), "groups must be a dense tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_groups(name: str) -> None:
    groups, message = BAD[name]
    logits = torch.zeros(4, 3)
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        paddle_ext.adapt(logits, groups=groups)
    assert "\n" not in str(caught.value)
    with pytest.raises((TypeError, ValueError), match=message.replace("groups", "same")):
        paddle_ext.adapt(logits, same=groups)
    with pytest.raises((TypeError, ValueError), match=message):
        paddle_ext.adaptive(torch.eye(3), torch.arange(3), torch.ones(4, 3), groups=groups)


def test_groups_that_do_not_fit(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="groups must be None for a batch of tasks"):
        paddle_ext.adapt(torch.zeros(2, 4, 3), groups=[1, 1, 2, 2])
    with pytest.raises(ValueError, match=r"prior must have shape \[3\] or \[2, 3\], got \[3, 3\]"):
        paddle_ext.adapt(torch.zeros(4, 3), groups=[1, 1, 2, 2], prior=torch.ones(3, 3))
    with pytest.raises(TypeError, match="share must be True or False, got int"):
        paddle_ext.adapt(torch.zeros(4, 3), groups=[1, 1, 2, 2], share=1)
    file = str(tmp_path / "rows.npy")
    np.save(file, np.ones((4, 3), dtype=np.float32))
    with pytest.raises(ValueError, match="groups must be None for queries from a file"):
        paddle_ext.adaptive(torch.eye(3), torch.arange(3), file, groups=[1, 1, 2, 2])


# --- rows that are the same thing -----------------------------------------------------------------


def logits_by_hand(logits: Any, same: Any, known: float = 0.0, labelled: int = 0) -> np.ndarray:
    """What `adapt` makes of rows [Q, K] of things; labelled rows know how alike they are."""
    rows = [logits[same == name] for name in sorted(set(same.tolist()))]
    mean = np.stack([own.mean(0) for own in rows])
    u = np.exp(mean - mean.max(1, keepdims=True))
    u /= u.sum(1, keepdims=True)
    away = [own - own.mean(1, keepdims=True) for own in rows]
    means = np.stack([own.mean(0) for own in away])
    within = sum(((own - own.mean(0)) ** 2).sum() for own in away) / (len(logits) - len(rows))
    held, between = u.sum(0), 0.0
    for k, share in enumerate(held):
        centre = (u[:, k, None] * means).sum(0) / share
        between += (u[:, k] * ((means - centre) ** 2).sum(1)).sum()
    freedom = len(rows) - np.minimum(held, 1).sum()
    r = known if labelled else 1.0
    if freedom >= 1:
        variance = between / freedom + within * np.mean([1 - 1 / len(own) for own in rows])
        r = min(max(1 - within / variance, 0), 1)
        r = (freedom * r + labelled * known) / (freedom + labelled)
    likely = []
    for own in rows:
        p = torch.from_numpy(own).softmax(1).numpy()
        mean_p = np.log((p**r).mean(0)) / r if r > 1e-5 else np.log(p).mean(0)
        likely.append(mean_p * len(own) / (1 + (len(own) - 1) * r))
    return np.stack(likely)


@pytest.mark.parametrize("alike", [0.0, 0.6, 1.0])
def test_things_by_hand(place: Place, alike: float) -> None:
    random = np.random.default_rng(0)
    for things, K in ((40, 4), (3, 9)):  # too few do not tell how alike their rows are
        same = random.permutation(np.arange(things).repeat(random.integers(1, 5, things)))
        own, noise = random.normal(size=(things, K)), random.normal(size=(len(same), K))
        own[np.arange(things), np.arange(things) % K] += 4
        logits = own[same] * alike**0.5 + noise * (1 - alike) ** 0.5
        given = torch.from_numpy(logits).to(place.dtype).to(place.device)
        got = paddle_ext.adapt(given, same=same)
        want = paddle_ext.adapt(torch.from_numpy(logits_by_hand(logits, same)))
        assert largest(got.probabilities.cpu() - want.probabilities[same]) < TOLERANCE[place.dtype]
        assert torch.equal(got.labels, got.labels[got.same.first][got.same.of_row])


@at_places("alike, rows", [(0.0, 1), (0.6, 1), (0.6, 2), (1.0, 2)])
def test_labelled_rows_tell_how_alike_rows_are(place: Place, alike: float, rows: int) -> None:
    """Labelled things of so many rows, and things of three."""
    random, K, D = torch.Generator().manual_seed(0), 4, 12
    centres = torch.randn(K, 1, D, generator=random)

    def draw(things: int, n: int) -> Tensor:
        own, noise = (torch.randn(things, m, D, generator=random) for m in (1, n))
        x = centres[torch.arange(things) % K] + alike**0.5 * own + (1 - alike) ** 0.5 * noise
        return unit_rows(x.double())

    support, query, labels = draw(20, rows), draw(9, 3), torch.arange(20) % K
    given = [x.flatten(0, 1).to(place.device, place.dtype) for x in (support, query)]
    tied, same = torch.arange(20 * rows) // rows, torch.arange(27) // 3
    more: dict[str, Any] = {"support_same": tied if rows > 1 else None, "metric": "diagonal"}
    given.insert(1, labels[tied].to(place.device))
    got = paddle_ext.adaptive(*given, same=same, **more)
    known, squares = learn(support.mean(1), labels, K, metric="diagonal"), 0.0
    for x in (support, query):
        off = centred(x, known.centre)
        off = off - off.mean(1, keepdim=True)
        squares += float(((off @ known.metric) * off).sum())
    within = squares / (20 * (rows - 1) + 18)
    r = min(max(1 - within / (known.model.variance + within * (1 - 1 / rows)), 0), 1)
    of_rows, of_means = (
        known.logits(centred(x, known.centre)) for x in (query.flatten(0, 1), query.mean(1))
    )
    added = torch.from_numpy(logits_by_hand(of_rows.numpy(), same.numpy(), r, 16)) - of_means
    want = classify(known, query.mean(1), added=added).probabilities
    assert largest(got.probabilities.cpu() - want[same]) < TOLERANCE[place.dtype]


@at_places("grouped, share", [(False, True), (True, True), (True, False)])
def test_copies_of_a_row_are_one(place: Place, grouped: bool, share: bool) -> None:
    """They say no more than the row, and count once."""
    groups = make_groups([2, 5, 9])
    problem = place.put(make_problem(Q=16, K=5, D=8, shots=(3, 3), lead=4, B=None).to(place.dtype))
    support, labels, query = problem.inputs()
    copies = torch.arange(16).repeat(3)
    more: dict[str, Any] = {"groups": groups, "share": share} if grouped else {}
    one = paddle_ext.adaptive(support, labels, query, **more)
    more |= {"groups": groups[copies]} if grouped else {}
    found = paddle_ext.adaptive(support, labels, query[copies], same=copies, **more)
    assert largest(found.probabilities - one.probabilities[copies]) < TOLERANCE[place.dtype]
    assert largest(found.proportions - one.proportions) < 1e-4
    assert torch.equal(found.present(), one.present())
    novelty = torch.linspace(0, 1, 16).to(place.device)
    assert largest(found.class_sums(novelty[copies]) - one.class_sums(novelty)) < 1e-3
    assert largest(found.over_all().proportions - one.over_all().proportions) < 1e-4
    more |= {"same": copies, "return_assignments": False}
    best = paddle_ext.adaptive(support, labels, query[copies], **more)
    assert torch.equal(best.present(), one.present())


def test_wrong_things() -> None:
    known = torch.eye(3), torch.arange(3), torch.ones(4, 3)
    with pytest.raises(ValueError, match="of a thing in one group, got 7 in 'x' and 'y'"):
        paddle_ext.adaptive(*known, groups=["x", "x", "y", "x"], same=[7, 8, 7, 8])
    with pytest.raises(ValueError, match="support_same must have the rows of a thing in one class"):
        paddle_ext.adaptive(*known, support_same=[1, 2, 2])
    with pytest.raises(ValueError, match=r"support_same must be None for \[B, S, D\], got \[1, 3"):
        paddle_ext.adaptive(*(x[None] for x in known), support_same=[1, 2, 3])
    with pytest.raises(ValueError, match="must have a possible class in every thing, got"):
        paddle_ext.adapt(torch.eye(2).log(), same=[1, 1])


def test_names_of_any_kind_of_text() -> None:
    """Those of an enumeration are its values; zeros at the end and lengths do not matter."""

    class Site(str, enum.Enum):
        NORTH = "north"
        SOUTH = "south"

    device = torch.device("cpu")
    for given, names in {
        (Site.SOUTH, Site.NORTH, Site.SOUTH): ["north", "south"],
        ("a\0", "a", "a\0"): ["a", "a\0"],
        ("z", "a" * 100_000, "z"): ["a" * 100_000, "z"],
    }.items():
        found = groups_of([*given] * 1000, 3000, device)
        assert found.names == names
        assert found.of_row[:3].tolist() == [1, 0, 1]
    if hasattr(np.dtypes, "StringDType"):
        own = np.array(["b", "a"], dtype=np.dtypes.StringDType())
        assert groups_of(own, 2, device).names == ["a", "b"]
