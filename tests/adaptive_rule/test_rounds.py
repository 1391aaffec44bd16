"""The rounds of a batch, in both forms, against the specification in float64."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import Place, largest
from torch import Tensor

from paddle_ext import FileRows, adaptive
from paddle_ext.adaptive_rule import batch as forms
from paddle_ext.adaptive_rule import rounds as turns
from paddle_ext.adaptive_rule.batch import Batch, ChunkedBatch, GramBatch
from paddle_ext.adaptive_rule.classify import classify
from paddle_ext.adaptive_rule.learn import likelihood_of
from paddle_ext.adaptive_rule.likelihood import Likelihood
from paddle_ext.adaptive_rule.rounds import Classified, absorbed_logits, first_logits, rounds
from paddle_ext.adaptive_rule.steps import claimed, density_terms
from paddle_ext.large import passes
from paddle_ext.large.sources import TensorRows
from paddle_ext.reference.adapt import adapt
from paddle_ext.reference.rule import Known, Prototypes, centred, learn
from paddle_ext.reference.rule import absorbed_logits as specified_logits
from paddle_ext.reference.rule import claimed as specified_claims
from paddle_ext.reference.rule import classify as specified

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9}
FORMS = ("gram", "chunks", "chunks that are not stored")
STEPS: dict[str, Any] = {"max_iter": 100, "tol": 1e-3}


@dataclass(frozen=True)
class Case:
    """A task in float64, and what the specification knows of it."""

    support: Tensor  # [S, D]
    labels: Tensor  # [S]
    query: Tensor  # [Q, D]
    known: Known

    def likelihood(self, place: Place) -> Likelihood:
        """That of the labelled rows; the sharpness and the bias to the last digit."""
        K, support = len(self.known.bias), self.support.to(place.device, place.dtype)
        found = likelihood_of(support[None], self.labels.to(place.device)[None], K)
        exact = (
            self.known.bias[None].to(found.bias),
            found.sharpness.new_tensor([self.known.sharpness]),
        )
        return replace(found, bias=exact[0], sharpness=exact[1])

    def rows(self, place: Place) -> Tensor:
        return self.query.to(place.device, place.dtype)

    @property
    def x(self) -> Tensor:
        return centred(self.query, self.known.centre)


def make(
    shots: list[int], Q: int, D: int, *, noise: float = 1.2, scale: float = 1.0, seed: int = 0
) -> Case:
    """Half of the classes are present; `scale` multiplies the queries."""
    random = torch.Generator().manual_seed(seed)
    K, double = len(shots), torch.float64
    labels = torch.arange(K).repeat_interleave(torch.tensor(shots))
    truth = torch.randint((K + 1) // 2, (Q,), generator=random)
    centres = torch.randn(K, D, generator=random, dtype=double)
    support, query = (
        centres[y] + noise * torch.randn(len(y), D, generator=random, dtype=double)
        for y in (labels, truth)
    )
    return Case(support, labels, scale * query, learn(support, labels, K))


CASES = {
    "unequal": make([1, 7, 2, 12, 4], 60, 12),
    "a label each": make([1] * 9, 40, 20),
    "more classes than queries": make([3, 1, 2, 1] * 9, 17, 20),
    "one query": make([4, 2, 3], 1, 7),
    "two classes": make([20, 1], 33, 5),
    "more labels than features": make([9] * 6, 50, 8),
    "long rows": make([2, 3, 1], 25, 70),
    "tiny": make([3, 2, 4], 20, 6, scale=1e-20),
    "huge": make([3, 2, 4], 20, 6, scale=1e20),
    "clear": make([5, 5, 5], 30, 16, noise=1e-3),
    "more classes than vectors": make([2] * 140, 30, 24),
}
each_case = pytest.mark.parametrize("name", CASES)
each_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of as few rows as there can be."""
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(passes.CHUNK_NUMBERS, device, 1)


def batch_in(form: str, case: Case, place: Place, added: Tensor | None = None) -> Batch:
    likelihood, rows = case.likelihood(place), case.rows(place)
    extra = None if added is None else added.to(rows)[None]
    if form == "gram":
        return GramBatch(rows[None], likelihood, extra)
    return ChunkedBatch(passes.Queries(TensorRows(rows)), likelihood, extra)


def solved(
    form: str, case: Case, place: Place, measures: Tensor | None = None, **options: Any
) -> Classified:
    with pytest.MonkeyPatch.context() as patched:
        if form == "chunks that are not stored":
            patched.setattr(turns, "MOST_STORED_LIKELIHOODS", -1)
            options = {"all_classes": False, "top": 200, **options}
        options = {"all_classes": True, "top": 5, **STEPS, **options}
        found = rounds(batch_in(form, case, place), measures, **options)
    u, classes = found.solution.probabilities, found.solution.classes
    if classes is not None and classes.shape[-1] == len(case.known.bias):
        every = torch.zeros_like(u).scatter(-1, classes, u)
        found = replace(found, solution=found.solution._replace(probabilities=every))
    return found


# --- the specification ----------------------------------------------------------------------------


@each_form
@each_case
def test_probabilities(name: str, form: str, place: Place) -> None:
    case = CASES[name]
    found = solved(form, case, place).solution
    want = specified(case.known, case.query).probabilities
    assert largest(found.probabilities[0].cpu().double() - want) < TOLERANCE[place.dtype]
    assert torch.equal(found.labels, found.probabilities.argmax(-1))
    assert all(bool(x.isfinite().all()) for x in found if isinstance(x, Tensor))


@each_form
def test_several_chunks(form: str, place: Place) -> None:
    case = make([3, 5, 2, 9], 700, 10)
    found = solved(form, case, place).solution
    want = specified(case.known, case.query).probabilities
    assert largest(found.probabilities[0].cpu().double() - want) < TOLERANCE[place.dtype]


@each_form
def test_one_class(form: str, place: Place) -> None:
    found = solved(form, make([4], 12, 6), place).solution
    assert bool((found.probabilities == 1).all())
    assert bool((found.labels == 0).all())


@each_form
def test_impossible_classes(form: str, place: Place) -> None:
    case = CASES["unequal"]
    prior = torch.tensor([[[5 / 4] * 4 + [0.0], [2.0, 1.5, 1.0, 0.5, 0.0]]], dtype=torch.float64)
    measures = prior.to(place.device, place.dtype)
    found = solved(form, case, place, measures).solution
    assert bool((found.probabilities[..., 4] == 0).all())
    assert bool((found.dual[..., 4] <= -1e30).all())
    assert all(bool(x.isfinite().all()) for x in found if isinstance(x, Tensor))
    even = solved(form, case, place, measures[:, :1]).solution
    assert found.prior_used is not None
    if not bool(found.prior_used):
        assert largest(found.probabilities - even.probabilities) < TOLERANCE[place.dtype]


@pytest.mark.parametrize("worth", [False, True])
@each_case
def test_absorbed_logits(name: str, worth: bool, place: Place) -> None:
    """Those without the others, and where rows weigh less."""
    case = CASES[name]
    random = torch.Generator().manual_seed(1)
    Q, K, S = len(case.query), len(case.known.bias), len(case.support)
    u = torch.rand(Q, K, generator=random, dtype=torch.float64).pow(3)
    u /= u.sum(-1, keepdim=True)
    factors = torch.rand(Q, generator=random, dtype=torch.float64) if worth else None
    weights = 2 * S / (2 * S + Q) * u.square()
    if factors is not None:
        weights *= factors.unsqueeze(-1)
    known, x = case.known, case.x
    alone = specified_logits(known, x, torch.zeros_like(u))
    absorbed = specified_logits(known, x, weights)
    for added in (None, torch.randn(Q, K, generator=random, dtype=torch.float64)):
        extra = torch.zeros_like(u) if added is None else added
        most = absorbed.abs().amax().clamp(min=1) * 3 * TOLERANCE[place.dtype]
        for form in FORMS[:2]:
            batch = batch_in(form, case, place, added)
            given = None if factors is None else factors.to(batch.slope)[None]
            got = absorbed_logits(batch, u.to(batch.slope)[None], given)[0].cpu().double()
            assert largest(first_logits(batch)[0].cpu().double() - alone - extra) < most
            assert largest(got - absorbed - extra) < most


def test_densities(place: Place) -> None:
    case = CASES["unequal"]
    known, mass = case.known, case.known.prototypes.mass
    for absorbed in (0.0, 0.3, 40.0):
        squares = torch.rand(5, dtype=torch.float64)
        given = [squares, mass + absorbed, mass, known.bias]
        given = [x[None].to(place.device, place.dtype) for x in given]
        numbers = known.model.variance, known.sharpness
        own = [torch.tensor([x], device=place.device, dtype=place.dtype) for x in numbers]
        steepness, constant = density_terms(*given, *own)
        for distance in (0.0, 1.5):  # x.x - 2 x.m
            distances = known.model.distances(squares + distance, mass + absorbed, mass)
            want = known.bias - known.sharpness / 2 * distances
            got = constant - steepness * distance
            assert largest(got[0].cpu().double() - want) < 30 * TOLERANCE[place.dtype]


def test_claims(place: Place) -> None:
    u = torch.rand(2, 7, 19, dtype=torch.float64).pow(9)
    u[0, 0] = torch.eye(19, dtype=torch.float64)[3]
    u /= u.sum(-1, keepdim=True)
    n = torch.randint(1, 9, (1, 19)).double()
    want = torch.stack([specified_claims(task, n[0]) for task in u])
    got = claimed(u.to(place.device, place.dtype), n.to(place.device))
    assert largest(got.cpu().double() - want) < TOLERANCE[place.dtype]


def test_what_a_solution_says(place: Place) -> None:
    """Both forms; proportions are those of the final probabilities, before (16)."""
    case = CASES["unequal"]
    gram, chunks = (solved(form, case, place).solution for form in FORMS[:2])
    for name, x in gram._asdict().items():
        if isinstance(x, Tensor):
            y = getattr(chunks, name)
            close = x.cpu().double() - y.cpu().double()
            size = y.cpu().double().abs().amax().clamp(min=1)
            assert largest(close) / size < 1e-3, name
    first = specified_logits(case.known, case.x, torch.zeros(60, 5).double())
    S, Q = len(case.support), 60
    adapted = adapt(first, weight=S / (S + Q), prior=case.known.counts)
    assert torch.equal(gram.iterations.cpu(), adapted.iterations.view(1))
    assert gram.bound is not None
    assert adapted.bound is not None
    assert float(gram.bound) == pytest.approx(float(adapted.bound), rel=1e-4)


# --- what is the same -----------------------------------------------------------------------------


def test_a_task_does_not_depend_on_its_batch(place: Place) -> None:
    cases = [make([2, 3, 5, 1], 40, 10, seed=seed) for seed in range(5)]
    support, labels, query = (
        torch.stack([getattr(case, name) for case in cases])
        for name in ("support", "labels", "query")
    )
    support, query = support.to(place.device, place.dtype), query.to(place.device, place.dtype)
    labels = labels.to(place.device)
    for shared in (False, True):
        rows = (support[:1], labels[:1]) if shared else (support, labels)
        known = likelihood_of(*rows, 4)
        together = classify(known, query).solution
        for b in range(5):
            alone = classify(known.task(b), query[b : b + 1]).solution
            assert torch.equal(alone.probabilities[0], together.probabilities[b])
            assert torch.equal(alone.dual[0], together.dual[b])


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case, K = make([4] * 12, 900, 40), 12
    known = likelihood_of(case.support[None].float(), case.labels[None], K)
    before = torch.get_num_threads()
    for most in (2**60, -(2**60)):
        monkeypatch.setattr(forms, "MOST_GRAM_WORK", {"cpu": most})
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(classify(known, case.query[None].float()).solution)
        torch.set_num_threads(before)
        for x in found[1:]:
            assert torch.equal(x.probabilities, found[0].probabilities)
            assert torch.equal(x.dual, found[0].dual)


def test_a_file_is_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make([4, 2, 6], 600, 9)
    monkeypatch.setattr(forms, "MOST_IN_ONE_BLOCK", 0)
    np.save(tmp_path / "rows.npy", case.query.float().numpy())
    given = case.support.float(), case.labels
    want = adaptive(*given, case.query.float())
    got = adaptive(*given, FileRows(tmp_path / "rows.npy"))
    assert torch.equal(got.probabilities, want.probabilities)
    assert torch.equal(got.dual, want.dual)


def test_in_chunks_if_that_is_less_work() -> None:
    known = CASES["unequal"].likelihood(Place("cpu", torch.float32))
    assert not forms.in_chunks(known, 75, 512, cuda=False)
    assert forms.in_chunks(known, 20_000, 512, cuda=False)
    assert forms.in_chunks(known, 2**22, 1, cuda=True)


# --- after the batch ------------------------------------------------------------------------------


@each_case
def test_rows_after_the_batch(name: str, place: Place) -> None:
    """Prototypes hold the queries; their proportions are in the bias."""
    case = CASES[name]
    gram, chunks = (solved(form, case, place, keep=True) for form in FORMS[:2])
    assert gram.after is not None
    assert chunks.after is not None
    rows = case.rows(place)
    tolerance = 30 * TOLERANCE[place.dtype]
    u = [x.after.logits(rows).softmax(-1).cpu().double() for x in (gram, chunks) if x.after]
    assert largest(u[0] - u[1]) < tolerance

    after, known = gram.after, case.known
    mass = known.prototypes.mass + after.absorbed[0].cpu().double()
    prototypes = Prototypes(after.prototypes[0].cpu().double(), mass)
    bias = after.bias[0].cpu().double() - known.bias
    want = known.logits(case.x, prototypes) + bias
    assert largest(u[0] - want.softmax(-1)) < tolerance
    assert float(after.absorbed.sum()) <= len(case.query)
    if len(case.query) > 1:  # a row that is in the batch is not classified otherwise
        own = claimed(u[0][None], known.counts[None])[0]
        assert (own.argmax(-1) == gram.solution.labels[0].cpu()).double().mean() > 0.9
