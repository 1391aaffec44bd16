"""`solve` with Dirichlet proportions, fixed prototypes, calibrated distances; all combinations.

The truth is the float64 reference; with fixed prototypes, `adapt` is a second one.
"""

from itertools import product
from typing import Any

import pytest
import torch
from places import at_places
from problems import (
    NASTY,
    TOLERANCE,
    Place,
    Problem,
    all_equal,
    assert_on_simplex,
    assert_same,
    each_tensor,
    largest,
    make_problem,
    margin,
    sensitivity,
    tied,
)
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, reference
from paddle_ext.ops.paddle_sharpness import sharpness, sharpness_of

SWITCHES = [
    {"proportions": proportions, "update_prototypes": moving, "scaling": scaling}
    for proportions, moving, scaling in product(
        ("paddle", "dirichlet"), (True, False), ("auto", "calibrated", "none", "minmax")
    )
    if (proportions, moving) != ("paddle", True) or scaling == "calibrated"
]
VB = {"proportions": "dirichlet", "update_prototypes": False, "scaling": "calibrated"}
SHAPES = [(12, 4, 6), (75, 20, 33), (200, 30, 16)]  # Q, K, D: small; Gram; direct


def named(switch: dict[str, Any]) -> str:
    return " ".join(map(str, switch.values()))


def assert_agrees(got: Solution, truth: Solution) -> None:
    """All common fields are equal, up to rounding."""
    tolerance = TOLERANCE[got.probabilities.dtype]
    u = got.probabilities.cpu().double()
    assert u.shape == truth.probabilities.shape
    assert largest(u - truth.probabilities) < tolerance
    clear = margin(truth) > 2 * tolerance
    assert torch.equal(got.labels.cpu()[clear], truth.labels[clear])
    assert_on_simplex(got)
    assert (got.concentration is None) == (truth.concentration is None)
    if got.concentration is None or truth.concentration is None:
        return
    a, counts = got.concentration.cpu().double().unsqueeze(-1), u.sum(-2)
    Q, K = u.shape[-2:]
    mean, psi = (counts + a) / (Q + K * a), torch.special.digamma
    assert largest(got.proportions.cpu().double() - mean) < 10 * tolerance
    dual = psi(counts + a) - psi(Q + K * a)
    assert largest(got.dual.cpu().double().exp() - dual.exp()) < 10 * tolerance


def assert_same_prior(got: Solution, truth: Solution) -> None:
    """If the batch determines the concentration; its gamma functions are accurate to 2e-12."""
    tolerance = 1e-2 if got.probabilities.dtype == torch.float32 else 1e-6
    assert largest(got.concentration.cpu().double() / truth.concentration - 1) < tolerance
    assert largest(got.proportions.cpu().double() - truth.proportions) < tolerance


# --- against the reference ------------------------------------------------------------------------


@at_places("shape, switch", everywhere=product(SHAPES, SWITCHES))
def test_random_tasks(place: Place, shape: tuple[int, int, int], switch: dict[str, Any]) -> None:
    Q, K, D = shape
    for lam, shots in ((None, (1, 4)), (Q / 3, (1, 1))):
        problem = make_problem(B=2, Q=Q, K=K, D=D, shots=shots, lead=9.0, seed=Q)
        options = {**switch, "lam": lam, "tol": 0.0, "max_iter": 12}
        assert sensitivity(problem, **options) < 1e-5
        got, truth = place.solve(problem, **options), problem.to(place.dtype).truth(**options)
        assert_agrees(got, truth)
        if switch["proportions"] == "dirichlet":
            assert_same_prior(got, truth)
        assert (got.iterations == 12).all()


@at_places("name, switch", everywhere=product(NASTY, SWITCHES))
def test_nasty_tasks(place: Place, name: str, switch: dict[str, Any]) -> None:
    if place.device == "cuda" and switch["scaling"] == "minmax":
        pytest.skip("on the CPU")
    problem = NASTY[name]()
    got = place.solve(problem, **switch)
    assert_agrees(got, problem.to(place.dtype).truth(**switch))


@pytest.mark.parametrize("switch", SWITCHES, ids=named)
@pytest.mark.parametrize("make", [tied, all_equal])
def test_ties_are_shared(place: Place, make: Any, switch: dict[str, Any]) -> None:
    got = place.solve(make(), **switch)
    assert_on_simplex(got)
    u = got.probabilities
    same = (1, 3) if make is tied else (0, 2)
    assert largest(u[..., same[0]] - u[..., same[1]]) < 1e-4


@pytest.mark.parametrize("switch", SWITCHES, ids=named)
def test_stops_by_its_criterion(place: Place, switch: dict[str, Any]) -> None:
    problem = make_problem(B=3, Q=60, K=8, D=30, lead=5.0, seed=3)
    tol = 1e-4 if switch["update_prototypes"] else 1e-2
    got = place.solve(problem, **switch, tol=tol, max_iter=300)
    assert (got.iterations < 300).all()
    assert (got.criterion <= tol).all()
    for b, iterations in enumerate(got.iterations.tolist()):
        alone = problem.task(b)
        last, before = (
            place.solve(alone, **switch, tol=0.0, max_iter=count)
            for count in (iterations, max(1, iterations - 1))
        )
        assert largest(last.probabilities - got.probabilities[b]) < TOLERANCE[place.dtype]
        assert before.criterion > tol or iterations == 1
        if not switch["update_prototypes"] and iterations > 1:
            moved = last.probabilities.double().sum(-2) - before.probabilities.double().sum(-2)
            assert abs(float(moved.abs().max()) - float(got.criterion[b])) < 1e-4


def test_default_tolerances() -> None:
    problem = make_problem(B=3, Q=60, K=8, D=30, lead=5.0, seed=3)
    for options, tol in (({}, 1e-6), (VB, 1e-3)):
        assert_same(problem.solve(**options), problem.solve(**options, tol=tol))
        truth = problem.truth(**options)
        assert torch.equal(truth.iterations, problem.truth(**options, tol=tol).iterations)


def test_defaults_are_those_of_paddle(place: Place) -> None:
    problem = make_problem(B=2, Q=30, K=8, D=20, lead=5.0)
    said = {"proportions": "paddle", "update_prototypes": True, "scaling": "auto", "tol": 1e-6}
    got = place.solve(problem, return_prototypes=True)
    assert_same(got, place.solve(problem, **said, return_prototypes=True))
    assert got.concentration is None
    assert got.update_prototypes


@pytest.mark.parametrize("switch", SWITCHES, ids=named)
def test_prototypes_are_in_the_coordinates_of_the_inputs(
    place: Place, switch: dict[str, Any]
) -> None:
    problem = make_problem(Q=30, K=5, D=12, seed=6).map(lambda x: 30 * x + 100)
    got = place.solve(problem, **switch, return_prototypes=True)
    support, labels, query = (x.double() for x in problem.inputs())
    members = torch.nn.functional.one_hot(labels.long(), 5).double()
    u = got.probabilities.cpu().double() * switch["update_prototypes"]
    want = (members.mT @ support + u.mT @ query) / (members.sum(0) + u.sum(0)).unsqueeze(-1)
    assert largest(got.prototypes.cpu().double() - want) < TOLERANCE[place.dtype] * 1000


@pytest.mark.parametrize("switch", SWITCHES, ids=named)
@pytest.mark.parametrize("lam", [None, 4.0])
def test_no_iteration_increases_the_objective(lam: float | None, switch: dict[str, Any]) -> None:
    problem = make_problem(B=4, Q=30, K=6, D=8, lead=3.0, seed=8).to(torch.float64)
    options = {**switch, "lam": lam, "trace": True, "tol": 0.0, "max_iter": 30}
    trace = reference.solve(*problem.inputs(), **options).trace
    assert trace is not None
    steps = trace.objective.diff(dim=0)
    assert (steps <= 1e-9 * trace.objective.abs().max()).all()
    assert (steps[:3] < -1e-6).any()


# --- what the switches mean -----------------------------------------------------------------------


def plain_logits(problem: Problem) -> Tensor:
    """Variational Bayes: unit-norm rows, class means, the sharpness of the labelled rows."""
    support, labels, query = problem.inputs()
    support, query = (x / x.norm(dim=-1, keepdim=True) for x in (support, query))
    K = problem.num_classes
    means = torch.stack([support[labels == k].mean(0) for k in range(K)])
    distances = (query.unsqueeze(1) - means).square().sum(-1)
    ordered = distances.sort(-1).values
    least = 13 / (ordered[:, K // 2] - ordered[:, 0]).mean()
    shots = labels.bincount()
    chosen = shots[labels] > 1
    if not chosen.any():
        return -least * distances
    rows, own, n = support[chosen], labels[chosen, None], shots[labels][chosen, None]
    away = (rows.unsqueeze(1) - means).square().sum(-1)
    away.scatter_(1, own, away.gather(1, own) * (n + 1) / (n - 1))
    count = torch.tensor([len(own)])
    found = reference.calibrate(away[None], own.view(1, -1), count, spread=1e3)[0]
    return -torch.maximum(found, least) / 2 * distances


@pytest.mark.parametrize("shots", [(1, 1), (1, 5), (4, 4)])
@pytest.mark.parametrize("lead", [1.0, 4.0, 20.0])
def test_all_three_are_variational_bayes(shots: tuple[int, int], lead: float) -> None:
    problem = make_problem(Q=60, K=8, D=30, lead=lead, shots=shots, seed=2).to(torch.float64)
    logits = plain_logits(problem)
    got, want = problem.solve(**VB), paddle_ext.adapt(logits)
    assert torch.equal(got.labels, want.labels)
    assert got.iterations == want.iterations
    assert largest(got.dual.exp() - want.dual.exp()) < 1e-8
    assert largest(got.concentration / want.concentration - 1) < 1e-6
    # The probabilities of `adapt` are those of the last dual, one step further.
    assert largest((logits + got.dual).softmax(-1) - want.probabilities) < 1e-8
    exact = {"tol": 1e-9, "max_iter": 3000}
    got, want = problem.solve(**VB, **exact), paddle_ext.adapt(logits, **exact)
    assert largest(got.probabilities - want.probabilities) < 1e-6


def test_dirichlet_proportions_serve_any_number_of_classes(place: Place) -> None:
    torch.manual_seed(0)
    K, D = 20, 40
    centres = torch.randn(K, D)
    labels = torch.arange(K).repeat(5)
    support = centres[labels] + 1.5 * torch.randn(len(labels), D)
    concentrations = []
    for count in (1, 3, 20):
        truth = torch.arange(200).remainder(count)
        query = centres[truth] + 1.5 * torch.randn(200, D)
        problem = Problem(support, labels, query, K)
        nearest = place.solve(problem, **VB | {"proportions": "paddle"}, lam=0.0)
        found = place.solve(problem, **VB)
        right, base = ((x.labels.cpu() == truth).float().mean() for x in (found, nearest))
        assert right > base - 0.01
        if count < 20:
            assert right > 0.97 > base
        concentrations.append(float(found.concentration))
    assert concentrations == sorted(concentrations)
    assert concentrations[0] < 0.1
    assert concentrations[-1] > 2


def test_calibrated_is_never_less_sharp_than_auto() -> None:
    """Class means far apart, with overlapping rows, which call for less sharpness."""
    torch.manual_seed(0)
    labels = torch.arange(5).repeat(3)
    problem = Problem(torch.randn(15, 9), labels, torch.randn(40, 9), 5)
    options = {"lam": 0.0, "update_prototypes": False}
    assert 0 < float(sharpness_of(problem.support, labels, 5)) < 13
    got, least = (problem.solve(**options, scaling=x) for x in ("calibrated", "auto"))
    assert_same(got, least)
    one_shot = Problem(problem.support[:5], labels[:5], problem.query, 5)
    assert float(sharpness_of(*one_shot.inputs()[:2], 5)) == 0
    got = one_shot.solve(**options, scaling="calibrated")
    twice = one_shot.solve(**options, scaling="auto", temperature=2.0)
    assert largest(got.probabilities - twice.probabilities) < 1e-5


def test_many_labelled_rows_are_spread_over_the_classes() -> None:
    """256 of 6400 rows calibrate; their classes must not depend on the order of the rows."""
    problem = make_problem(Q=10, K=20, D=6, shots=(320, 320), lead=2.0, seed=5)
    support, labels, _ = problem.inputs()
    by_class = labels.sort(stable=True).indices
    shuffled = float(sharpness_of(support, labels, 20))
    assert abs(float(sharpness_of(support[by_class], labels[by_class], 20)) / shuffled - 1) < 1e-4
    far = support.clone()
    far[labels == 7] = -far[labels == 7]  # one class that asks for another sharpness
    assert abs(float(sharpness_of(far, labels, 20)) / shuffled - 1) > 1e-4
    problem.to(torch.float64).solve(**VB)


# --- forms of a call ------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", SWITCHES, ids=named)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_batches_and_banks(place: Place, shared: bool, switch: dict[str, Any]) -> None:
    problem = place.put(make_problem(B=3, Q=20, K=5, D=16, shared=shared, seed=4))
    options = {**switch, "return_prototypes": True, "num_classes": 5}
    got = paddle_ext.solve(*problem.inputs(), **options)
    if not shared:
        for b in range(3):
            alone = paddle_ext.solve(*problem.task(b).inputs(), **options)
            one = each_tensor(got, lambda x, b=b: x[b])
            if switch["scaling"] == "calibrated" and place.device == "cuda":
                # Products that calibrate are torch's, which for a batch takes other sums.
                torch.testing.assert_close(one.probabilities, alone.probabilities)
            else:
                assert_same(one, alone)
    bank = torch.cat([x.reshape(-1, 16) for x in (problem.support, problem.query)])
    rows = torch.arange(len(bank), device=bank.device)
    split = problem.support.shape[:-1].numel()
    index = rows[:split].view(problem.support_labels.shape), rows[split:].view(3, 20)
    again = paddle_ext.solve_indexed(bank, index[0], problem.support_labels, index[1], **options)
    assert_same(again, got)
    if got.concentration is not None:
        assert torch.equal(again.concentration, got.concentration)


def test_parts_of_a_bank_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(B=7, Q=20, K=5, D=16, seed=4)
    bank = problem.support.reshape(-1, 16)
    rows = torch.arange(len(bank)).view(problem.support_labels.shape)
    query = torch.randint(len(bank), (7, 20))
    whole = paddle_ext.solve_indexed(bank, rows, problem.support_labels, query, **VB)
    sizes = []

    def noted(support: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(support))
        return sharpness(support, *rest)

    monkeypatch.setattr("paddle_ext.ops.paddle_sharpness.sharpness", noted)
    monkeypatch.setattr("paddle_ext.rows.PART", 700)  # numbers: two tasks at a time
    again = paddle_ext.solve_indexed(bank, rows, problem.support_labels, query, **VB)
    assert_same(again, whole)
    assert max(sizes) < 3
    assert sum(sizes) == 7


@pytest.mark.parametrize("switch", [VB, VB | {"update_prototypes": True}], ids=named)
def test_small_and_empty_calls(place: Place, switch: dict[str, Any]) -> None:
    for B, Q, K, D in ((0, 4, 3, 5), (2, 1, 1, 1), (2, 1, 6, 3), (None, 3, 1, 4)):
        problem = make_problem(B=B, Q=Q, K=K, D=D, shots=(1, 3), seed=K)
        got = place.solve(problem, **switch)
        assert got.concentration.shape == got.iterations.shape
        assert_on_simplex(got)
    empty = paddle_ext.solve(torch.ones(0, 4, 5), torch.ones(0, 4).long(), torch.ones(0, 3, 5))
    assert empty.probabilities.shape == (0, 3, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, device: str) -> None:
    problem = make_problem(B=2, Q=30, K=5, D=16, seed=4).to(dtype).to(device)
    got, want = problem.solve(**VB), problem.to(torch.float32).solve(**VB)
    assert largest(got.probabilities - want.probabilities) < 1e-4
    assert got.concentration.dtype == torch.float32


def test_one_task_and_many_threads() -> None:
    problem = make_problem(B=9, Q=300, K=30, D=20, lead=5.0, seed=5)
    threads = torch.get_num_threads()
    for switch in SWITCHES:
        found = []
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(problem.solve(**switch, max_iter=10))
        torch.set_num_threads(threads)
        assert_same(*found)


@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_numbers_without_validation(device: str, bad: int) -> None:
    problem = make_problem(B=2, Q=20, K=5, D=16, shots=(2, 2)).to(device)
    labels = problem.support_labels.clone()
    labels[0, ::3] = bad
    options = {**VB, "num_classes": 5, "validate": False}
    assert_on_simplex(paddle_ext.solve(problem.support, labels, problem.query, **options))
    bank, index = problem.query[0], torch.full((2, 10), bad, device=device)
    query = torch.arange(20, device=device).expand(2, 20)
    assert_on_simplex(paddle_ext.solve_indexed(bank, index, labels, query, **options))


@pytest.mark.parametrize("switch", SWITCHES[::3], ids=named)
def test_compile(switch: dict[str, Any], device: str) -> None:
    torch._dynamo.reset()
    problem = make_problem(B=3, Q=6, K=4, D=5).to(device)

    def call(*inputs: Tensor) -> Solution:
        return paddle_ext.solve(*inputs, num_classes=4, validate=False, max_iter=5, **switch)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*problem.inputs()), call(*problem.inputs()))


@pytest.mark.parametrize("prior", [0, 1])
@pytest.mark.parametrize("moving", [True, False])
def test_opcheck(prior: int, moving: bool, device: str) -> None:
    problem = make_problem(B=3, Q=6, K=4, D=5).to(device)
    given = torch.tensor([9.0, 0.0, 2.0], device=device)
    tail = (4, None, 3, 1.0, 1e-6, 7, 1e-6, True, prior, moving, given)
    switched = torch.ops.paddle_ext.solve_switched.default
    torch.library.opcheck(switched, (*problem.inputs(), *tail))
