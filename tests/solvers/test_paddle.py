"""The native solver against the float64 reference, on every device."""

from collections import Counter
from functools import cache
from itertools import product

import pytest
import torch
from places import at_places
from problems import (
    NASTY,
    SCALINGS,
    TOLERANCE,
    Place,
    Problem,
    all_equal,
    assert_agrees,
    assert_on_simplex,
    assert_same,
    largest,
    late_class,
    make_problem,
    margin,
    one_direction,
    sensitivity,
    tied,
)
from tasks import OURS, PLAIN, assert_no_worse, compare

from paddle_ext import Solution

# --- agreement ----------------------------------------------------------------------------------

# Together they have every number of the grid Q 1, 2, 75, 129, 300; K 1, 2, 20, 160, 227;
# D 1, 33, 512, 768, with every scaling, and most pairs of two of them.
GRID = [
    # Q, K, D, shots, scaling
    (1, 1, 1, (1, 1), "none"),
    (1, 2, 33, (1, 3), "auto"),
    (1, 20, 512, (1, 3), "minmax"),
    (1, 160, 768, (1, 3), "none"),
    (1, 227, 33, (1, 1), "auto"),
    (2, 1, 512, (1, 3), "auto"),
    (2, 2, 1, (1, 3), "none"),
    (2, 20, 768, (1, 3), "minmax"),
    (2, 160, 33, (1, 3), "none"),
    (2, 227, 1, (1, 1), "none"),
    (75, 1, 33, (4, 4), "minmax"),
    (75, 2, 768, (1, 9), "auto"),
    (75, 20, 1, (1, 3), "none"),
    (75, 20, 33, (5, 5), "minmax"),
    (75, 20, 512, (1, 9), "auto"),
    (75, 160, 512, (1, 5), "auto"),
    (75, 227, 512, (1, 5), "minmax"),
    (129, 1, 768, (1, 3), "none"),
    (129, 2, 512, (1, 3), "minmax"),
    (129, 20, 33, (1, 3), "none"),
    (129, 160, 1, (1, 1), "none"),
    (129, 227, 768, (1, 3), "auto"),
    (300, 1, 1, (1, 1), "minmax"),
    (300, 2, 33, (1, 3), "auto"),
    (300, 20, 512, (1, 3), "none"),
    (300, 160, 33, (1, 3), "minmax"),
    (300, 227, 768, (1, 3), "none"),
    # and beyond it: more features than one pass of a kernel takes
    (75, 20, 1280, (1, 5), "auto"),
    (40, 5, 2049, (1, 3), "minmax"),
]


@cache
def of_the_grid(
    Q: int, K: int, D: int, shots: tuple[int, int], scaling: str
) -> tuple[Problem, Solution, float]:
    """A problem whose numbers are float32, its solution, and how near it is to a tie."""
    problem = make_problem(Q=Q, K=K, D=D, shots=shots, seed=Q + K + D)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 15}
    return problem, problem.truth(**options), sensitivity(problem, **options)


@pytest.mark.parametrize("row", GRID, ids=str)
def test_grid(place: Place, row: tuple[int, int, int, tuple[int, int], str]) -> None:
    problem, truth, away_from_ties = of_the_grid(*row)
    assert away_from_ties < 1e-5
    got = place.solve(problem, scaling=row[-1], tol=0.0, max_iter=15)
    assert_agrees(got, truth)
    assert got.iterations == 15


@at_places(
    "scaling, lam",
    everywhere=product(SCALINGS, [None, 0.0]),
    cpu_only=product(SCALINGS, [1.0, 200.0]),
)
def test_soft_assignments(place: Place, scaling: str, lam: float | None) -> None:
    # Classes that overlap: probabilities anywhere in the simplex, and still no ties.
    problem = make_problem(B=3, Q=40, K=6, D=20, lead=4.0, seed=1)
    options = {"scaling": scaling, "lam": lam, "temperature": 0.6, "epsilon": 1e-4}
    options |= {"tol": 0.0, "max_iter": 15}
    assert sensitivity(problem, **options) < 1e-5
    got = place.agrees(problem, **options)
    if lam == 0.0:
        assert margin(got).min() < 0.5


@cache
def like_features_of_images(scaling: str) -> tuple[Problem, Solution, float]:
    """Typical of a network: non-negative, correlated, overlapping classes, many of them."""
    random = torch.Generator().manual_seed(2)
    mixing = torch.randn(40, 512, generator=random) / 40**0.5
    labels = torch.arange(800).remainder(160)
    present = torch.randint(5, (75,), generator=random)
    latent = torch.randn(160, 40, generator=random)[torch.cat([labels, present])]
    latent = latent + torch.randn(875, 40, generator=random)
    rows = torch.relu(latent @ mixing + torch.randn(875, 512, generator=random))
    problem = Problem(rows[:800], labels, rows[800:], 160)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 40}
    return problem, problem.truth(**options), sensitivity(problem, **options)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_like_features_of_images(place: Place, scaling: str) -> None:
    problem, truth, away_from_ties = like_features_of_images(scaling)
    assert away_from_ties < 1e-5
    assert_agrees(place.solve(problem, scaling=scaling, tol=0.0, max_iter=40), truth)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize(("B", "scaling"), [*product([0, 1, 3], SCALINGS), (1000, "auto")])
def test_batches(place: Place, B: int, scaling: str, shared: bool) -> None:
    problem = make_problem(B=B, Q=9, K=5, D=7, shared=shared, seed=B)
    got = place.agrees(problem, scaling=scaling, tol=0.0, max_iter=10)
    assert got.probabilities.shape == (B, 9, 5)
    assert got.iterations.shape == got.criterion.shape == (B,)


def test_more_classes_than_a_kernel_counts_at_once(place: Place) -> None:
    K = 13000  # the truth is plain: points of a grid, and queries near three of them
    support = torch.stack([torch.arange(K) % 114, torch.arange(K) // 114], dim=1) * 20.0
    present = torch.tensor([0, 6543, K - 1]).repeat(4)
    problem = Problem(support, torch.arange(K), support[present] + 0.25, K)
    got = place.solve(problem, scaling="none")
    assert got.labels.tolist() == present.tolist()
    assert largest(got.proportions[present].cpu() - 1 / 3) < 1e-6
    assert_on_simplex(got)


@pytest.mark.parametrize("shape", [(12, 4, 6), (60, 20, 30), (500, 40, 24)])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_criterion(place: Place, shape: tuple[int, int, int], scaling: str) -> None:
    Q, K, D = shape
    problem = make_problem(Q=Q, K=K, D=D, lead=6.0, seed=5)
    for steps in (1, 2, 4):
        options = {"scaling": scaling, "tol": 0.0, "max_iter": steps}
        want = float(problem.to(place.dtype).truth(**options).criterion)
        slack = 1e-3 if place.dtype == torch.float32 else 1e-8
        assert float(place.solve(problem, **options).criterion) == pytest.approx(want, rel=slack)


# All pairs of a shape and a scaling, half of them with a shared support.
PROTOTYPES = [
    (shape, scaling, (i + j) % 2 == 1)
    for i, shape in enumerate([(12, 4, 6), (75, 40, 33), (500, 40, 24)])
    for j, scaling in enumerate(SCALINGS)
]


@at_places("shape, scaling, shared", everywhere=PROTOTYPES)
def test_prototypes(place: Place, shape: tuple[int, int, int], scaling: str, shared: bool) -> None:
    Q, K, D = shape
    problem = make_problem(B=2, Q=Q, K=K, D=D, shared=shared, seed=6).map(lambda x: 3 * x + 5)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 5, "return_prototypes": True}
    got = place.solve(problem, **options)
    want = problem.to(place.dtype).truth(**options)
    assert got.prototypes.shape == (2, K, D)
    assert got.prototypes.dtype == place.dtype
    size = float(problem.query.abs().max())
    assert largest(got.prototypes.cpu().double() - want.prototypes) < TOLERANCE[place.dtype] * size
    without = place.solve(problem, **options | {"return_prototypes": False})
    assert_same(got._replace(prototypes=None), without)


# --- nasty inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", NASTY)
def test_nasty(place: Place, name: str, scaling: str) -> None:
    problem = NASTY[name]().to(place.dtype)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 30}
    got = place.solve(problem, return_prototypes=True, **options)
    assert_on_simplex(got)
    assert torch.isfinite(got.prototypes).all()
    assert_agrees(got, problem.truth(**options))
    place.solve(problem, scaling=scaling)  # and with the default tolerance


def test_tied_classes_share(place: Place) -> None:
    problem = tied()
    got = place.solve(problem, scaling="none")
    want = problem.to(place.dtype).truth(scaling="none").probabilities
    assert_on_simplex(got)

    def merged(u: torch.Tensor) -> torch.Tensor:
        return torch.stack([u[:, 0], u[:, 1] + u[:, 3], u[:, 2]], dim=1)

    u = got.probabilities.cpu().double()
    assert largest(merged(u) - merged(want)) < TOLERANCE[place.dtype]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_one_point_many_times(place: Place, scaling: str) -> None:
    got = place.solve(all_equal(), scaling=scaling)
    assert largest(got.probabilities.cpu().double() - 1 / 3) < TOLERANCE[place.dtype]


def test_auto_does_not_scale_up_rounding(place: Place) -> None:
    got = place.solve(one_direction(), scaling="auto")
    assert largest(got.probabilities.cpu().double() - 0.5) < TOLERANCE[place.dtype]


def test_a_class_that_held_nothing_comes_back(place: Place) -> None:
    options = {"scaling": "none", "temperature": 6.0}
    first = place.solve(late_class(), max_iter=1, **options)
    assert not (first.labels == 1).any()
    assert largest(first.probabilities[:, 1]) < 1e-20
    got = place.solve(late_class(), **options)
    assert got.labels.tolist() == [0] * 60 + [1] * 5
    assert_agrees(got, late_class().to(place.dtype).truth(**options))


# --- many tasks -----------------------------------------------------------------------------------


def test_every_task_stops_on_its_own(place: Place) -> None:
    problem = make_problem(B=12, Q=25, K=5, D=6, lead=2.5, seed=8)
    options = {"tol": 1e-4, "max_iter": 80}
    got = place.solve(problem, **options)
    want = problem.to(place.dtype).truth(**options)
    counts = got.iterations.cpu()
    assert len(counts.unique()) > 3
    # Where the criterion is all but equal to the tolerance, rounding decides.
    assert ((counts - want.iterations).abs() <= 1).all()
    assert (got.criterion.cpu()[counts < 80] <= 1e-4).all()
    for b, count in enumerate(counts.tolist()):
        alone = place.solve(problem.task(b), **options)
        assert alone.iterations == count
        if count > 1:
            before = place.solve(problem.task(b), tol=0.0, max_iter=count - 1)
            assert before.criterion > 1e-4


def test_zero_tolerance_runs_all_iterations(place: Place) -> None:
    problem = make_problem(B=3, Q=10, K=3, D=4)
    got = place.solve(problem, tol=0.0, max_iter=300)
    assert (got.criterion < 1e-6).all()  # nothing has moved for long
    assert got.iterations.tolist() == [300] * 3


def test_seventy_thousand_tasks(place: Place) -> None:
    kinds, repeats = 7, 10_000
    problem = make_problem(B=kinds, Q=3, K=2, D=3, shots=(1, 1), seed=13)
    many = Problem(*(x.repeat(repeats, *(1,) * (x.dim() - 1)) for x in problem.inputs()), 2)
    got = place.solve(many)
    few = place.agrees(problem)
    for all_tasks, own in zip(got[:6], few[:6], strict=True):
        rows = all_tasks.view(repeats, kinds, *all_tasks.shape[1:])
        assert torch.equal(rows, own.expand_as(rows))


def test_random_tasks() -> None:
    found = sum(compare(500, 0), Counter())
    assert found["tasks"] == 500
    assert found[OURS] <= found[PLAIN] + 5


@pytest.mark.slow
def test_very_many_random_tasks() -> None:
    assert_no_worse(sum(compare(100_000, 1), Counter()))
