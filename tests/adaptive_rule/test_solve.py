"""`adaptive` against its reference, and on batches of one class, of few, of all."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from method_tasks import assert_prediction, nearest_mean
from places import at_places
from problems import (
    NASTY,
    Place,
    Problem,
    assert_clear_labels,
    largest,
    make_problem,
    remembered,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import paddle_ext
from paddle_ext import methods, reference
from paddle_ext import task as features
from paddle_ext.adaptive_rule import learn
from paddle_ext.adaptive_rule.classify import classify
from paddle_ext.adaptive_rule.learn import calibration_count, likelihood_of
from paddle_ext.methods.adaptive import Adaptive
from paddle_ext.solution import Solution
from paddle_ext.task import Task

# How far probabilities may be from the reference in float64. In that of `adapt` the trigamma of
# torch is good to 1e-9, which the iterations enlarge.
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-7}
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
    assert_clear_labels(got, want, tolerance)


# --- against the reference ------------------------------------------------------------------------

# Q, K, D, shots: one shot; ragged; covariance by rows; by features; more rows than calibrate; on
# the CPU, products of all queries and sums of them; tiles full and not, around blocks of 64
SHAPES = [
    (12, 4, 6, (1, 1)),
    (30, 9, 20, (1, 4)),
    (30, 7, 60, (5, 5)),
    (75, 5, 12, (4, 20)),
    (20, 40, 9, (8, 8)),
    (20, 2, 7, (3, 3)),
    (10, 300, 5, (1, 1)),
    (33, 40, 130, (2, 3)),
    (20, 40, 64, (2, 2)),
    (81, 16, 65, (4, 4)),
    (200, 16, 33, (1, 3)),
    (20, 16, 130, (4, 4)),
    (5, 3, 1, (3, 5)),
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
    count = 2**18
    spread, labels = torch.tensor([1.0, 0.1, 0.1]), torch.arange(count) % 2
    support = torch.randn(len(labels), 3, generator=g) * spread + 1
    query = torch.randn(20, 3, generator=g) * spread + 1
    support[:, 1] += 0.5 * labels
    query[:10, 1] += 0.5
    # In one precision, whose bits choose the calibration rows, on both devices.
    found = likelihood_of(support.to(place.device)[None], labels.to(place.device)[None], 2)
    want = likelihood_of(support[None], labels[None], 2)
    assert float(found.sharpness) == pytest.approx(float(want.sharpness), rel=1e-3)
    assert largest(found.logits(query.to(place.device)).cpu() - want.logits(query)) < 1e-2
    assert torch.equal(
        paddle_ext.adaptive(support, labels, query).labels[:10], torch.ones(10).long()
    )


# --- more rows, one by one ------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [(1, 1), (2, 5), (6, 6)])
def test_likelihood_of_further_rows(place: Place, shots: tuple[int, int]) -> None:
    """Logits need only the labelled rows, and each row is independent."""
    problem = place.put(make_problem(B=2, Q=9, K=5, D=8, shots=shots, lead=4.0, seed=7))
    task = task_of(problem)
    likelihood = likelihood_of(task.support, task.support_labels, 5)
    logits = likelihood.logits(problem.query)
    assert logits.shape == (2, 9, 5)
    assert largest(likelihood.logits(problem.query[:, :1]) - logits[:, :1]) < 1e-4
    for b in range(2):
        alone = likelihood.task(b).logits(problem.query[b])
        assert largest(alone - logits[b]) < 1e-3


# --- invariances ----------------------------------------------------------------------------------


def same(a: Problem, b: Problem) -> None:
    got, want = solution(a), solution(b)
    assert largest(got.probabilities - want.probabilities) < 1e-9


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
    names = torch.randperm(6, generator=random)
    renamed = solution(replace(problem, support_labels=names[problem.support_labels]))
    got = renamed.probabilities[..., names]
    assert largest(got - solution(problem).probabilities) < 1e-9


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


# --- how many classes are present -----------------------------------------------------------------

CLASSES, DIMENSION = 40, 32


def drawn(
    present: int, queries: int = 400, shots: int = 5, noise: float = 1.5
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Support, its labels, queries of the first `present` classes, and their labels."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, DIMENSION, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(shots)
    truth = torch.arange(present).repeat_interleave(queries // present)
    support, query = (
        centres[rows] + noise * torch.randn(len(rows), DIMENSION, generator=generator)
        for rows in (labels, truth)
    )
    return support, labels, query, truth


def share(found: Tensor, truth: Tensor) -> float:
    return float((found == truth).double().mean())


def test_all_classes_present() -> None:
    """Each query nearly on its own, where the solver collapses; probabilities are calibrated."""
    *given, truth = drawn(CLASSES)
    found = Adaptive().predict(*given)
    right = share(found.labels, truth)
    assert right > share(nearest_mean(*given), truth) - 0.01
    assert right > share(paddle_ext.solve(*given).labels, truth) + 0.2
    assert abs(float(found.probabilities.amax(1).mean()) - right) < 0.1


@pytest.mark.parametrize("present", [1, 3])
def test_few_classes_present(present: int) -> None:
    *given, truth = drawn(present, queries=60, noise=1.2)
    found = Adaptive().predict(*given)
    alone = share(nearest_mean(*given), truth)
    assert 0.5 < alone < share(found.labels, truth) - 0.05
    assert share(found.labels, truth) > 0.95
    assert found.present().nonzero().view(-1).tolist() == list(range(present))


@pytest.mark.parametrize("offset", [1e5, 1e7, 1e10])
def test_a_common_offset(offset: float) -> None:
    """Rows far from the origin differ by little more than rounding; float32 resolves 1e5."""
    dtype = torch.float32 if offset == 1e5 else torch.float64
    torch.manual_seed(0)
    centres, labels, there = torch.randn(10, 64), torch.arange(10).repeat(5), torch.arange(60) % 10
    support, query = (
        (centres[x] + 0.5 * torch.randn(len(x), 64)).to(dtype) + offset for x in (labels, there)
    )
    for adaptive in (paddle_ext.adaptive, reference.adaptive):
        assert torch.equal(adaptive(support, labels, query).labels, there)


def test_nothing_to_tell_apart() -> None:
    """All rows equal, or zero: no NaN."""
    labels = torch.arange(4).repeat(2)
    for value in (0.0, 1.0, 1e29):
        rows = torch.full((8, 3), value)
        found = Adaptive().predict(rows, labels, rows[:5])
        torch.testing.assert_close(found.probabilities.sum(1), torch.ones(5))


def test_one_row_next_to_twenty() -> None:
    """Of two classes, one with twenty labelled rows takes nothing from one with a single row."""
    right = []
    for seed in range(5):
        random = torch.Generator().manual_seed(seed)
        centres = torch.randn(2, 64, generator=random) + 2 * torch.randn(64, generator=random)
        labels = torch.arange(2).repeat_interleave(torch.tensor([20, 1]))
        truth = torch.arange(2).repeat(40)
        support, query = (
            centres[own] + 1.5 * torch.randn(len(own), 64, generator=random)
            for own in (labels, truth)
        )
        found = paddle_ext.adaptive(support, labels, query).labels
        right.append(float((found == truth).double().mean()))
    assert min(right) > 0.95


# --- many classes ---------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The largest number of entries of a tensor that an operation returns."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.entries = max(self.entries, found.numel())
        return found


def test_memory_of_one_shot() -> None:
    """Linear in the number of classes, and so is the work."""
    K, D = 20_000, 4
    assert calibration_count(10**6, 10**6) == learn.CALIBRATION_ROWS
    rows = torch.randn(1, K, D, generator=torch.Generator().manual_seed(0))
    with Largest() as largest:
        found = likelihood_of(rows, torch.arange(K).unsqueeze(0), K)
    assert largest.entries <= 16 * learn.CALIBRATION_ROWS * K  # bytes of a workspace
    assert bool(found.bias.isfinite().all())


@pytest.mark.parametrize("metric", ["diagonal", "auto"])
def test_many_labelled_rows(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer calibration rows give nearly the same result."""
    support, labels, query, truth = drawn(5, shots=10)
    rows = support.double()[None], labels[None], CLASSES, metric
    assert calibration_count(len(labels), CLASSES) == len(labels)
    whole = likelihood_of(*rows)
    monkeypatch.setattr(learn, "CALIBRATION_ROWS", 60)
    monkeypatch.setattr(learn, "FEW_ROWS", 60)
    assert calibration_count(len(labels), CLASSES) == 60
    fewer = likelihood_of(*rows)
    assert float(fewer.sharpness) != float(whole.sharpness)
    assert float(fewer.sharpness) == pytest.approx(float(whole.sharpness), rel=0.6)
    found = classify(fewer, query.double()[None]).solution
    assert share(found.labels[0], truth) > share(nearest_mean(support, labels, query), truth)


# --- values that are not finite, or look so -------------------------------------------------------


@pytest.mark.parametrize("label", [1, 4])
@pytest.mark.parametrize("batched", [False, True])
def test_bad_labels_are_found(place: Place, label: int, batched: bool) -> None:
    """A class without rows, and labels out of range, which only a pass over the rows finds."""
    problem = place.put(make_problem(B=2, Q=9, K=4, D=6, shots=(2, 3), seed=1))
    labels = problem.support_labels.clone()
    labels[1, labels[1] == 2] = label
    problem = replace(problem, support_labels=labels)
    problem = problem if batched else problem.task(1)
    with pytest.raises(ValueError, match=r"^support_labels must "):
        methods.create("adaptive").predict(*problem.inputs(), num_classes=4)


def test_odd_values_are_not_bad(place: Place) -> None:
    """Rows of zeros, tiny and huge ones look suspicious but are valid."""
    problem = make_problem(B=2, Q=9, K=4, D=6, shots=(3, 3), seed=1)
    support = problem.support.clone()
    support[0, 0], support[1, 1], support[1, 2] = 0, 1e-30 * support[1, 1], 1e25 * support[1, 2]
    there = place.put(replace(problem, support=support).to(place.dtype))
    found = methods.create("adaptive").predict(*there.inputs(), num_classes=4)
    assert torch.isfinite(found.probabilities).all()
    for given, plainly_finite in ((there, False), (place.put(problem.to(place.dtype)), True)):
        finite = likelihood_of(given.support, given.support_labels, 4, "diagonal").finite
        assert finite.tolist() == [plainly_finite] * 2
