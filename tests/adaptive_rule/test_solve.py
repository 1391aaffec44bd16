"""`adaptive` against its reference and by hand."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from method_tasks import assert_prediction, hard
from places import at_places
from problems import NASTY, Place, Problem, largest, make_problem, nothing_waits, remembered

import paddle_ext
from paddle_ext import methods, reference
from paddle_ext import task as features
from paddle_ext.adaptive_rule.likelihood import likelihood_of
from paddle_ext.methods.adaptive import Adaptive
from paddle_ext.solution import Solution
from paddle_ext.task import Task

# How far probabilities may be from the reference in float64. In that of `adapt` the trigamma of
# torch is good to 1e-9, which the iterations enlarge.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-7}
STEPS = 15  # a fixed number of them: near a tie tasks may stop some iterations apart


def task_of(problem: Problem) -> Task:
    S, D = problem.support.shape[-2:]
    return Task(
        problem.support.reshape(-1, S, D),
        problem.support_labels.reshape(-1, S),
        problem.query.reshape(-1, *problem.query.shape[-2:]),
        problem.num_classes,
    )


def solution(problem: Problem, **options: Any) -> Solution:
    return Adaptive(**options).solution(task_of(problem))


def truth(problem: Problem, **options: Any) -> Solution:
    exact = problem.to("cpu").to(torch.float64)
    return remembered(
        reference.adaptive, *exact.inputs(), num_classes=problem.num_classes, **options
    )


def agrees(place: Place, problem: Problem, **options: Any) -> None:
    """The method agrees with the reference on the same numbers."""
    given = {"max_iter": STEPS, "tol": 0.0} | options
    problem = problem.to(place.dtype)
    there = place.put(problem)
    method = methods.create("adaptive", **given)
    got = method.predict(*there.inputs(), num_classes=problem.num_classes)
    want, tolerance = truth(problem, **given), TOLERANCE[place.dtype]
    assert_prediction(got, there)
    assert largest(got.probabilities.cpu().double() - want.probabilities) < tolerance
    best = want.probabilities.topk(min(2, problem.num_classes), dim=-1).values
    clear = best[..., 0] - best[..., -1] > 2 * tolerance
    assert torch.equal(got.labels.cpu()[clear], want.labels[clear])


# --- against the reference ------------------------------------------------------------------------

# Q, K, D, shots: one shot; ragged; covariance by rows; by features; more rows than calibrate
SHAPES = [
    (12, 4, 6, (1, 1)),
    (30, 9, 20, (1, 4)),
    (30, 7, 60, (5, 5)),
    (75, 5, 12, (4, 20)),
    (20, 40, 9, (8, 8)),
    (20, 2, 7, (3, 3)),
    (10, 300, 5, (1, 1)),
]


@at_places("shape", everywhere=SHAPES)
def test_reference(place: Place, shape: tuple[int, int, int, tuple[int, int]]) -> None:
    Q, K, D, shots = shape
    small = {"Q": Q, "K": K, "D": D, "shots": shots, "seed": Q}
    agrees(place, make_problem(lead=3.0, **small))
    if K < 100:
        agrees(place, make_problem(B=3, lead=6.0, **small))
        agrees(place, make_problem(B=3, lead=6.0, shared=True, **small))


@pytest.mark.parametrize("metric", ["auto", "diagonal"])
def test_metrics(place: Place, metric: str) -> None:
    for D in (6, 40):  # fewer features than labelled rows, and more
        problem = make_problem(Q=20, K=5, D=D, shots=(2, 8), lead=3.0, seed=2)
        agrees(place, problem, metric=metric)


@at_places("problem", everywhere=["zero rows", "huge"], cpu_only=NASTY)
def test_nasty(place: Place, problem: str) -> None:
    agrees(place, NASTY[problem]())


def test_many_rows_along_one_feature(place: Place) -> None:
    """So many that the factor of the full metric would leave the range of halves on CUDA."""
    g = torch.Generator().manual_seed(4)
    spread, labels = torch.tensor([1.0, 0.1, 0.1]), torch.arange(2**19) % 2
    support = torch.randn(len(labels), 3, generator=g) * spread + 1
    query = torch.randn(20, 3, generator=g) * spread + 1
    support[:, 1] += 0.5 * labels
    query[:10, 1] += 0.5
    agrees(place, Problem(support[None], labels[None], query[None], 2))


def test_ends_with_the_reference(place: Place) -> None:
    """Even if it stops early; the bound has another constant, that of the likelihoods."""
    problem = make_problem(B=2, Q=30, K=6, D=10, shots=(3, 3), lead=8.0, seed=3).to(place.dtype)
    got, want = solution(place.put(problem)), truth(problem)
    assert torch.equal(got.iterations.cpu(), want.iterations)
    for name in ("probabilities", "proportions", "dual"):
        a, b = getattr(got, name).cpu().double(), getattr(want, name)
        assert largest((a - b) / (1 + b.abs())) < 1e-3, name
    assert got.concentration is not None
    assert want.concentration is not None
    # A large one makes no difference, and float32 hardly tells it.
    assert largest((got.concentration.cpu().double() / want.concentration).log()) < 1e-2


# --- by hand --------------------------------------------------------------------------------------


def corner_task() -> Task:
    """Two classes of one shot each, and queries at one of them and between."""
    support = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]]).double()
    query = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]).double()
    return Task(support, torch.tensor([[0, 1]]), query, 2)


def test_one_shot_by_hand() -> None:
    task = corner_task()
    likelihood = Adaptive().likelihood(task)
    # Less the mean and unit-norm again the classes are opposite, at a squared distance of 4.
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double() / math.sqrt(2)
    assert torch.allclose(likelihood.prototypes[0], opposite)
    assert likelihood.sharpness.tolist() == [16.0]
    logits = likelihood.logits(task.query[0])
    assert torch.allclose(logits[0, 0] - logits[0, 1], torch.tensor(16 / 2 * 4.0).double())
    assert torch.allclose(logits[1, 0], logits[1, 1])
    # The batch prefers the class of which it has a query, but the classes are too few to tell.
    found = Adaptive().solution(task)
    assert found.labels.tolist() == [[0, 0]]
    assert 0.5 < float(found.probabilities[0, 1, 0]) < 0.9


def test_one_class_present_or_all() -> None:
    """The proportions are those of the batch, whatever it is, and on average no worse than none."""
    gains: dict[str, list[int]] = {"one": [], "all": []}
    gaps = []
    for seed in range(5):
        random = torch.Generator().manual_seed(seed)
        centres = torch.randn(10, 30, generator=random)
        labels = torch.arange(10).repeat(5)
        truths = torch.full((60,), 3), torch.arange(10).repeat(6)
        support, *queries = (
            centres[y] + 2.0 * torch.randn(len(y), 30, generator=random) for y in (labels, *truths)
        )
        for gain, y, query in zip(gains.values(), truths, queries, strict=True):
            found = solution(Problem(support, labels, query, 10))
            plain = methods.create("simpleshot").predict(support, labels, query)
            gain.append(int((found.labels[0] == y).sum() - (plain.labels == y).sum()))
            gaps.append(largest(found.proportions[0] - torch.bincount(y, minlength=10) / 60))
    assert min(gains["one"]) > 5
    assert sum(gains["all"]) > 0
    assert sum(gaps) / len(gaps) < 0.1


def test_concentration_separates_few_from_many() -> None:
    few = make_problem(Q=60, K=20, D=30, shots=(5, 5), seed=4)  # five present
    many = replace(few, query=few.support[few.support_labels.argsort()][::1][:100])
    found = [solution(problem).concentration for problem in (few, many)]
    assert found[0] is not None
    assert found[1] is not None
    assert float(found[0]) < 1 < float(found[1])


def test_sharpness_is_the_best() -> None:
    """No other sharpness makes the labels of left-out rows more likely, including the prior."""
    n, K, D = 4, 6, 8
    problem = make_problem(K=K, D=D, shots=(n, n), lead=1.5, seed=5).to(torch.float64)
    found = likelihood_of(
        problem.support.unsqueeze(0), problem.support_labels.unsqueeze(0), K, "diagonal"
    )
    x = found.coordinates(problem.support.unsqueeze(0))[0]
    scale, means = found.scale[0], found.prototypes[0]
    away = ((x.unsqueeze(1) - means).square() * scale).sum(-1)
    own = problem.support_labels.unsqueeze(1)
    away = away.scatter(1, own, away.gather(1, own) * (n + 1) / (n - 1))

    def objective(f: float) -> float:
        chance = torch.log_softmax(-f / 2 * away, dim=-1).gather(1, own)
        return float(-chance.sum()) + math.log(f / 16) ** 2 / (2 * math.log(2) ** 2)

    best = float(found.sharpness)
    grid = torch.logspace(-1, 4, 4001).tolist()
    assert objective(best) <= min(map(objective, grid)) + 1e-9
    assert 0.1 < best < 1e4


# --- more rows, one by one ------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [(1, 1), (2, 5), (6, 6)])
def test_likelihood_of_further_rows(place: Place, shots: tuple[int, int]) -> None:
    """Logits need only the labelled rows; with the dual they are those of the batch."""
    problem = place.put(make_problem(B=2, Q=9, K=5, D=8, shots=shots, lead=4.0, seed=7))
    task, method = task_of(problem), Adaptive()
    likelihood, found = method.likelihood(task), method.solution(task)
    logits = likelihood.logits(problem.query)
    assert logits.shape == (2, 9, 5)
    weight = 2 * likelihood.rows / (2 * likelihood.rows + 9)
    assert largest(likelihood.logits(problem.query[:, :1]) - logits[:, :1]) < 1e-4
    u = torch.softmax(logits + found.dual.unsqueeze(1), dim=-1)
    counts = weight * u.sum(1)
    assert found.concentration is not None
    a = found.concentration.unsqueeze(-1)
    dual = torch.digamma(counts + a) - torch.digamma(weight * 9 + 5 * a)
    assert largest(dual - found.dual) < 1e-3


def test_presence_and_doubt() -> None:
    problem = make_problem(Q=40, K=12, D=20, shots=(5, 5), lead=6.0, seed=8)
    found = solution(problem)
    assert found.present().sum() == found.labels.unique().numel()
    assert largest(found.doubt() - (1 - found.probabilities.amax(-1))) < 1e-5


# --- invariances ----------------------------------------------------------------------------------


def same(a: Problem, b: Problem, tolerance: float = 1e-9) -> None:
    got, want = solution(a), solution(b)
    assert largest(got.probabilities - want.probabilities) < tolerance


@pytest.mark.parametrize("shots", [(1, 1), (1, 4), (6, 6)])
def test_what_changes_nothing(shots: tuple[int, int]) -> None:
    problem = make_problem(Q=20, K=6, D=10, shots=shots, lead=4.0, seed=9).to(torch.float64)
    random = torch.Generator().manual_seed(9)
    lengths = 10 ** torch.randn(20, 1, generator=random).double()
    same(problem.map(lambda x: 7.3 * x), problem)
    same(replace(problem, query=problem.query * lengths), problem)
    features_order = torch.randperm(10, generator=random)
    same(problem.map(lambda x: x[:, features_order]), problem)
    signs = torch.tensor([1.0, -1.0]).repeat(5).double()
    same(problem.map(lambda x: x * signs), problem)
    rows = torch.randperm(len(problem.support), generator=random)
    shuffled = replace(
        problem, support=problem.support[rows], support_labels=problem.support_labels[rows]
    )
    same(shuffled, problem)


@pytest.mark.parametrize("shots", [(1, 1), (1, 4), (6, 6)])
def test_names_of_classes(shots: tuple[int, int]) -> None:
    problem = make_problem(Q=20, K=6, D=10, shots=shots, lead=4.0, seed=11).to(torch.float64)
    names = torch.randperm(6, generator=torch.Generator().manual_seed(11))
    renamed = replace(problem, support_labels=names[problem.support_labels])
    got, want = solution(renamed), solution(problem)
    assert largest(got.probabilities[..., names] - want.probabilities) < 1e-9


# --- batches --------------------------------------------------------------------------------------


def test_the_budget_changes_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for shared, shots in product((False, True), ((1, 1), (5, 5))):
        problem = make_problem(B=5, Q=15, K=5, D=8, shots=shots, shared=shared).to(device)
        want = solution(problem)
        with monkeypatch.context() as patched:
            patched.setattr(features, "BUDGET", {"cpu": 1, "cuda": 1})
            got = solution(problem)
        assert got.probabilities.shape == want.probabilities.shape
        assert largest(got.probabilities - want.probabilities) < 1e-5
        assert torch.equal(got.labels, want.labels)
        assert got.scaling == want.scaling


@pytest.mark.cuda
@pytest.mark.parametrize("shots", [(1, 1), (3, 3), (6, 6)])
def test_nothing_waits_for_the_device(shots: tuple[int, int]) -> None:
    for shared in (False, True):
        problem = make_problem(B=3, Q=15, K=5, D=8, shots=shots, shared=shared).to("cuda")
        task = task_of(problem)
        want = Adaptive().solution(task)
        with nothing_waits():
            got = Adaptive().solution(task)
        assert torch.equal(got.probabilities, want.probabilities)


def test_one_more_query_changes_few_labels() -> None:
    """Hard features, two shots: no threshold on the number of queries changes the rule."""
    K, D, Q, changed = 60, 64, 149, []
    for seed in range(8):
        random = torch.Generator().manual_seed(seed)
        centres = torch.randn(K, D, generator=random)
        labels = torch.arange(K).repeat(2)
        truth = torch.randint(K, (Q + 1,), generator=random)
        support, query = (
            centres[y] + 2.5 * torch.randn(len(y), D, generator=random) for y in (labels, truth)
        )
        fewer, more = (paddle_ext.adaptive(support, labels, query[:n]) for n in (Q, Q + 1))
        changed.append(float((more.labels[:Q] != fewer.labels).double().mean()))
    assert sum(changed) / len(changed) < 0.005


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"metric": "cosine"}, ValueError),
        ({"metric": None}, TypeError),
        ({"max_iter": 0}, ValueError),
        ({"tol": -1.0}, ValueError),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{next(iter(options))} must be .*, got "):
        methods.create("adaptive", **options)


def test_iterations_are_limited() -> None:
    problem = hard(2)
    assert solution(problem, max_iter=2, tol=0.0).iterations.tolist() == [2, 2]
