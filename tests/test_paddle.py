"""The native solver against the float64 reference, on every device."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from problems import (
    NASTY,
    TOLERANCE,
    Problem,
    all_equal,
    assert_agrees,
    assert_on_simplex,
    assert_same,
    largest,
    make_problem,
    margin,
    naive_objective,
    naive_scaled,
    one_direction,
    sensitivity,
    tied,
)

import paddle_ext
from paddle_ext import Solution, _native

SCALINGS = ("auto", "minmax", "none")
CUDA = pytest.mark.cuda


class Place(NamedTuple):
    """Where the native code runs, and in which precision."""

    device: str
    dtype: torch.dtype

    def put(self, problem: Problem) -> Problem:
        return problem.to(self.dtype).to(self.device)

    def solve(self, problem: Problem, **options: Any) -> Solution:
        return self.put(problem).solve(backend="native", **options)

    def agrees(self, problem: Problem, **options: Any) -> Solution:
        """Solve, and compare with the reference on the same numbers."""
        got = self.solve(problem, **options)
        truth = problem.to(self.dtype).truth(**options)
        assert_agrees(got, truth, epsilon=options.get("epsilon", 1e-6))
        return got


@pytest.fixture(
    params=[
        pytest.param(Place("cpu", torch.float32), id="cpu-float32"),
        pytest.param(Place("cpu", torch.float64), id="cpu-float64"),
        pytest.param(Place("cuda", torch.float32), id="cuda-float32", marks=CUDA),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


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
]


@cache
def of_the_grid(
    Q: int, K: int, D: int, shots: tuple[int, int], scaling: str
) -> tuple[Problem, Solution, float]:
    """A problem whose numbers are float32, its solution, and how near it is to a tie."""
    problem = make_problem(Q=Q, K=K, D=D, shots=shots, seed=Q + K + D)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 25}
    return problem, problem.truth(**options), sensitivity(problem, **options)


@pytest.mark.parametrize("row", GRID, ids=str)
def test_grid(place: Place, row: tuple[int, int, int, tuple[int, int], str]) -> None:
    problem, truth, away_from_ties = of_the_grid(*row)
    assert away_from_ties < 1e-5
    got = place.solve(problem, scaling=row[-1], tol=0.0, max_iter=25)
    assert_agrees(got, truth)
    assert got.iterations == 25


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("lam", [None, 0.0, 1.0, 200.0])
def test_soft_assignments(place: Place, scaling: str, lam: float | None) -> None:
    # Classes that overlap: assignments anywhere in the simplex, and still no ties.
    problem = make_problem(B=3, Q=40, K=6, D=20, lead=4.0, seed=1)
    options = {"scaling": scaling, "lam": lam, "temperature": 0.6, "epsilon": 1e-4}
    options |= {"tol": 0.0, "max_iter": 15}
    assert sensitivity(problem, **options) < 1e-5
    got = place.agrees(problem, **options)
    if lam == 0.0:
        assert margin(got).min() < 0.5


@cache
def like_features_of_images(scaling: str) -> tuple[Problem, Solution, float]:
    """What a network gives: non-negative, correlated, overlapping classes, many of them."""
    random = torch.Generator().manual_seed(2)
    mixing = torch.randn(40, 512, generator=random) / 40**0.5
    labels = torch.arange(800).remainder(160)
    present = torch.randint(5, (75,), generator=random)
    latent = torch.randn(160, 40, generator=random)[torch.cat([labels, present])]
    latent = latent + torch.randn(875, 40, generator=random)
    rows = torch.relu(latent @ mixing + torch.randn(875, 512, generator=random))
    problem = Problem(rows[:800], labels, rows[800:], 160)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 100}
    return problem, problem.truth(**options), sensitivity(problem, **options)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_like_features_of_images(place: Place, scaling: str) -> None:
    problem, truth, away_from_ties = like_features_of_images(scaling)
    assert away_from_ties < 1e-5
    assert_agrees(place.solve(problem, scaling=scaling, tol=0.0), truth)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("B", [0, 1, 3, 1000])
def test_batches(place: Place, B: int, scaling: str, shared: bool) -> None:
    problem = make_problem(B=B, Q=9, K=5, D=7, shared=shared, seed=B)
    got = place.agrees(problem, scaling=scaling, tol=0.0, max_iter=10)
    assert got.assignments.shape == (B, 9, 5)
    assert got.iterations.shape == got.criterion.shape == (B,)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_large_task(place: Place, scaling: str) -> None:
    # More queries than features pay for, and too many classes for one block.
    problem = make_problem(Q=700, K=300, D=64, shots=(1, 3), seed=3)
    place.agrees(problem, scaling=scaling, tol=0.0, max_iter=8)


def test_large_tasks_in_a_batch(place: Place) -> None:
    problem = make_problem(B=2, Q=400, K=120, D=32, shots=(1, 3), shared=True, seed=4)
    place.agrees(problem, tol=0.0, max_iter=8)


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


@pytest.mark.parametrize("shape", [(12, 4, 6), (75, 40, 33), (500, 40, 24)])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
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
    assert_same(
        replace_prototypes(got), place.solve(problem, **options | {"return_prototypes": False})
    )


def replace_prototypes(solution: Solution) -> Solution:
    return solution._replace(prototypes=None)


def test_hand_computed(place: Place) -> None:
    # The case of test_reference.py, where its numbers are derived.
    support, query = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.5]])
    problem = Problem(support, torch.tensor([0, 1]), query, 2)
    got = place.solve(problem, scaling="none", epsilon=0.5, max_iter=1, return_prototypes=True)
    close = {"abs": 1e-6 if place.dtype == torch.float32 else 1e-13}
    assert got.assignments.tolist() == [
        pytest.approx([0.731058578630005, 0.268941421369995], **close)
    ]
    assert got.dual.tolist() == pytest.approx([1.20787443228459, 0.737259512550511], **close)
    assert got.prototypes.flatten().tolist() == pytest.approx(
        [0.211159399125759, 1.68208766357437], **close
    )
    assert float(got.criterion) == pytest.approx(0.264535867775694, **close)
    assert got.labels.tolist() == [0]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaling_is_what_it_says(place: Place, scaling: str) -> None:
    problem = make_problem(Q=20, K=6, D=9, lead=5.0, seed=7)
    options = {"tol": 0.0, "max_iter": 10}
    got = place.solve(problem, scaling=scaling, **options)
    by_hand = naive_scaled(problem.to(place.dtype), scaling)
    assert_agrees(got, by_hand.truth(scaling="none", **options))


@pytest.mark.parametrize("K", [2, 3, 4, 5])
def test_auto_scaling_takes_the_upper_median(place: Place, K: int) -> None:
    problem = make_problem(Q=11, K=K, D=6, lead=3.0, seed=K)
    options = {"tol": 0.0, "max_iter": 3}
    by_hand = naive_scaled(problem.to(place.dtype), "auto")
    assert_agrees(place.solve(problem, **options), by_hand.truth(scaling="none", **options))


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
    want = problem.to(place.dtype).truth(scaling="none").assignments
    assert_on_simplex(got)

    def merged(u: torch.Tensor) -> torch.Tensor:
        return torch.stack([u[:, 0], u[:, 1] + u[:, 3], u[:, 2]], dim=1)

    u = got.assignments.cpu().double()
    assert largest(merged(u) - merged(want)) < TOLERANCE[place.dtype]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_one_point_many_times(place: Place, scaling: str) -> None:
    got = place.solve(all_equal(), scaling=scaling)
    assert largest(got.assignments.cpu().double() - 1 / 3) < TOLERANCE[place.dtype]


def test_auto_does_not_scale_up_rounding(place: Place) -> None:
    got = place.solve(one_direction(), scaling="auto")
    assert largest(got.assignments.cpu().double() - 0.5) < TOLERANCE[place.dtype]


@pytest.mark.parametrize("magnitude", [1e-38, 1e-30, 1e30, 1e37])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_extremes_of_float32(device: str, magnitude: float, scaling: str) -> None:
    problem = make_problem(Q=10, K=4, D=6).map(lambda x: (x / x.abs().max()) * magnitude)
    got = Place(device, torch.float32).solve(problem, scaling=scaling)
    assert_on_simplex(got)
    if scaling != "none":  # the others undo the scale
        assert torch.equal(got.labels.cpu(), problem.truth(scaling=scaling).labels)


# --- descent and stopping -----------------------------------------------------------------------


@hypothesis_settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    Q=st.integers(1, 9),
    K=st.integers(1, 6),
    D=st.integers(1, 5),
    lead=st.floats(0.1, 30),
    lam=st.sampled_from([None, 0.0, 0.5, 40.0]),
    temperature=st.floats(0.05, 5),
    epsilon=st.sampled_from([1e-6, 0.1]),
    scaling=st.sampled_from(SCALINGS),
)
def test_objective_never_increases(
    seed: int,
    Q: int,
    K: int,
    D: int,
    lead: float,
    lam: float | None,
    temperature: float,
    epsilon: float,
    scaling: str,
) -> None:
    problem = make_problem(Q=Q, K=K, D=D, lead=lead, seed=seed).to(torch.float64)
    problem = naive_scaled(problem, scaling)  # so that the prototypes are in these coordinates
    options = {"lam": lam, "temperature": temperature, "epsilon": epsilon, "scaling": "none"}
    weight = float(Q) if lam is None else lam
    previous = float("inf")
    for steps in range(1, 6):
        got = problem.solve(max_iter=steps, tol=0.0, return_prototypes=True, **options)
        state = (got.assignments, got.dual, got.prototypes)
        value = naive_objective(problem, *state, weight, temperature, epsilon)
        assert value <= previous + 1e-9 * (1 + abs(value))
        previous = value


def test_every_task_stops_by_itself(place: Place) -> None:
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
    got = place.solve(problem, tol=0.0, max_iter=37)
    assert got.iterations.tolist() == [37] * 3
    assert place.solve(problem, tol=1e30).iterations.tolist() == [1] * 3


# --- symmetry and reproducibility ---------------------------------------------------------------


@pytest.mark.parametrize("scaling", SCALINGS)
def test_permutations(place: Place, scaling: str) -> None:
    problem = make_problem(B=4, Q=30, K=7, D=9, lead=8.0, seed=9)
    options = {"scaling": scaling, "tol": 0.0, "max_iter": 10}
    random = torch.Generator().manual_seed(1)
    got = place.solve(problem, **options)
    u, tolerance = got.assignments.cpu(), TOLERANCE[place.dtype]

    queries = torch.randperm(30, generator=random)
    permuted = replace(problem, query=problem.query[:, queries])
    assert largest(place.solve(permuted, **options).assignments.cpu() - u[:, queries]) < tolerance

    classes = torch.randperm(7, generator=random)
    renamed = replace(problem, support_labels=classes[problem.support_labels])
    assert largest(place.solve(renamed, **options).assignments.cpu()[:, :, classes] - u) < tolerance

    rows = torch.randperm(problem.support.shape[1], generator=random)
    shuffled = replace(
        problem,
        support=problem.support[:, rows],
        support_labels=problem.support_labels[:, rows],
    )
    assert largest(place.solve(shuffled, **options).assignments.cpu() - u) < tolerance

    tasks = torch.randperm(4, generator=random)
    reordered = Problem(*(x[tasks] for x in problem.inputs()), 7)
    assert torch.equal(place.solve(reordered, **options).assignments.cpu(), u[tasks])


SHAPES = [(12, 4, 6), (75, 20, 33), (200, 30, 16)]  # small; Gram; direct


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_batch_does_not_matter(
    place: Place, shape: tuple[int, int, int], scaling: str, shared: bool
) -> None:
    Q, K, D = shape
    problem = make_problem(B=5, Q=Q, K=K, D=D, lead=5.0, shared=shared, seed=10)
    options = {"scaling": scaling, "return_prototypes": True}
    batch = place.solve(problem, **options)
    for b in range(5):
        task = replace(problem, query=problem.query[b : b + 1])
        if not shared:
            task = Problem(*(x[b : b + 1] for x in problem.inputs()), K)
            assert_same(place.solve(problem.task(b), **options), at(batch, b))
        assert_same(at(place.solve(task, **options), 0), at(batch, b))


def at(batch: Solution, b: int) -> Solution:
    """One task's part of a result."""
    return Solution(*(None if x is None else x[b] for x in batch))


@pytest.mark.parametrize("shape", SHAPES)
def test_two_runs_are_equal(place: Place, shape: tuple[int, int, int]) -> None:
    Q, K, D = shape
    problem = place.put(make_problem(B=7, Q=Q, K=K, D=D, lead=5.0, seed=11))
    first = problem.solve(return_prototypes=True)
    for _ in range(3):
        assert_same(problem.solve(return_prototypes=True), first)


@pytest.mark.parametrize("shape", [*SHAPES, (600, 100, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_do_not_matter(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    Q, K, D = shape
    problem = make_problem(B=5, Q=Q, K=K, D=D, lead=5.0, seed=12).to(dtype)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            results.append(problem.solve(return_prototypes=True, max_iter=20))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert_same(result, results[0])


def test_concurrent_callers(device: str) -> None:
    problems = [
        make_problem(B=4, Q=20 + 5 * i, K=3 + i, D=8 + i, lead=5.0, seed=i).to(device)
        for i in range(4)
    ]
    want = [problem.solve() for problem in problems]
    with ThreadPoolExecutor(8) as pool:
        jobs = [(i, pool.submit(problems[i].solve)) for _ in range(15) for i in range(4)]
        for i, job in jobs:
            assert_same(job.result(), want[i])


def test_seventy_thousand_tasks(place: Place) -> None:
    kinds, repeats = 7, 10_000
    problem = make_problem(B=kinds, Q=3, K=2, D=3, shots=(1, 1), seed=13)
    many = Problem(*(x.repeat(repeats, *(1,) * (x.dim() - 1)) for x in problem.inputs()), 2)
    got = place.solve(many)
    few = place.agrees(problem)
    for all_tasks, own in zip(got[:6], few[:6], strict=True):
        rows = all_tasks.view(repeats, kinds, *all_tasks.shape[1:])
        assert torch.equal(rows, own.expand_as(rows))


@pytest.mark.parametrize("level", _native.build_info()["simd_levels"])
def test_simd_levels(level: str) -> None:
    before = _native.build_info()["simd"]
    try:
        _native.set_simd_level(level)
        assert paddle_ext.build_info()["simd"] == level
        for dtype in (torch.float32, torch.float64):
            for Q, K, D in ((75, 20, 33), (130, 9, 512), (300, 50, 16)):
                problem = make_problem(B=2, Q=Q, K=K, D=D, seed=14).to(dtype)
                for scaling in SCALINGS:
                    options = {"scaling": scaling, "tol": 0.0, "max_iter": 8}
                    assert_agrees(problem.solve(**options), problem.truth(**options))
    finally:
        _native.set_simd_level(before)


def test_unknown_simd_level() -> None:
    with pytest.raises(ValueError, match="mmx"):
        _native.set_simd_level("mmx")


# --- forms of input -----------------------------------------------------------------------------


def test_shapes_dtypes_and_device(place: Place) -> None:
    problem = make_problem(Q=6, K=3, D=4)
    got = place.solve(problem, return_prototypes=True)
    assert [tuple(x.shape) for x in got[:7]] == [(6,), (6, 3), (3,), (3,), (), (), (3, 4)]
    kinds = [torch.int64, *[place.dtype] * 3, torch.int32, place.dtype, place.dtype]
    assert [x.dtype for x in got[:7]] == kinds
    assert {x.device.type for x in got[:7]} == {place.device}
    assert got.trace is None
    assert place.solve(problem).prototypes is None


def test_inputs_are_not_touched(place: Place) -> None:
    for shape in SHAPES:
        Q, K, D = shape
        problem = place.put(make_problem(B=2, Q=Q, K=K, D=D))
        copies = [x.clone() for x in problem.inputs()]
        for scaling in SCALINGS:
            problem.solve(scaling=scaling, return_prototypes=True)
        assert all(torch.equal(x, y) for x, y in zip(problem.inputs(), copies, strict=True))


def test_any_layout(place: Place) -> None:
    problem = place.put(make_problem(B=3, Q=10, K=4, D=7))
    want = problem.solve(return_prototypes=True)

    def transposed(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        # Contiguous, but its address is a multiple of an element's size only.
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)

    def strided(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(2, dim=-1)[..., ::2]

    for change in (transposed, shifted, strided):
        changed = Problem(*(change(x) for x in problem.inputs()), 4)
        assert_same(changed.solve(return_prototypes=True), want)


def test_expanded_batch(place: Place) -> None:
    problem = place.put(make_problem(Q=10, K=4, D=7))
    want = problem.solve()
    expanded = Problem(*(x.expand(3, *x.shape) for x in problem.inputs()), 4)
    got = expanded.solve()
    for b in range(3):
        assert_same(at(got, b), want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_any_integer_labels(device: str, dtype: torch.dtype) -> None:
    problem = make_problem(B=2, Q=10, K=4, D=7).to(device)
    labels = problem.support_labels.to(dtype)
    assert_same(replace(problem, support_labels=labels).solve(), problem.solve())


def test_shared_support_is_the_same_support(place: Place) -> None:
    for Q, K, D in SHAPES:
        problem = make_problem(B=3, Q=Q, K=K, D=D, shared=True, seed=15)
        repeated = replace(
            problem,
            support=problem.support.expand(3, -1, -1),
            support_labels=problem.support_labels.expand(3, -1),
        )
        for scaling in SCALINGS:
            options = {"scaling": scaling, "tol": 0.0, "max_iter": 8}
            one, other = place.solve(problem, **options), place.solve(repeated, **options)
            assert largest(one.assignments - other.assignments) < TOLERANCE[place.dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_half_precision(device: str, dtype: torch.dtype, scaling: str) -> None:
    for Q, K, D in SHAPES:
        problem = make_problem(B=2, Q=Q, K=K, D=D, seed=16).to(dtype)
        options = {"scaling": scaling, "tol": 0.0, "max_iter": 8, "return_prototypes": True}
        got = problem.to(device).solve(**options)
        assert got.assignments.dtype == got.criterion.dtype == torch.float32
        want = problem.truth(**options)
        assert_agrees(got, want)
        size = float(problem.query.abs().max())
        assert largest(got.prototypes.cpu().double() - want.prototypes) < 1e-4 * size


def test_no_gradient_flows(device: str) -> None:
    problem = make_problem(Q=6, K=3, D=4).to(device)
    want = problem.solve()
    problem.support.requires_grad_()
    problem.query.requires_grad_()
    got = problem.solve(return_prototypes=True)
    assert not any(x.requires_grad for x in got[:7])
    assert torch.equal(got.assignments, want.assignments)


def test_number_of_classes_by_default(device: str) -> None:
    problem = make_problem(B=2, Q=6, K=5, D=4).to(device)
    assert_same(paddle_ext.solve(*problem.inputs()), problem.solve())
    assert_same(problem.solve(validate=False), problem.solve())


def test_reference_backend(device: str) -> None:
    problem = make_problem(B=2, Q=6, K=5, D=4).to(device)
    options = {"lam": 3.0, "temperature": 0.9, "epsilon": 1e-5, "tol": 0.0, "max_iter": 7}
    options |= {"scaling": "minmax", "return_prototypes": True}
    got = problem.solve(backend="reference", **options)
    assert got.assignments.device.type == device
    native = problem.solve(backend="native", **options)
    assert largest(got.assignments - native.assignments) < 1e-4
    assert largest(got.prototypes - native.prototypes) < 1e-3


# --- rows of a bank -----------------------------------------------------------------------------


class Indexed(NamedTuple):
    bank: torch.Tensor
    support_index: torch.Tensor
    labels: torch.Tensor
    query_index: torch.Tensor
    num_classes: int

    def dense(self) -> Problem:
        support, query = self.bank[self.support_index], self.bank[self.query_index]
        return Problem(support, self.labels, query, self.num_classes)

    def solve(self, **options: Any) -> Solution:
        return paddle_ext.solve_indexed(*self[:4], num_classes=self.num_classes, **options)


def in_a_bank(problem: Problem, seed: int = 0) -> Indexed:
    """The rows of a problem shuffled into a bank, with others between them."""
    random = torch.Generator().manual_seed(seed)
    D = problem.query.shape[-1]
    rows = torch.cat([problem.support.reshape(-1, D), problem.query.reshape(-1, D)])
    used = len(rows)
    where = torch.randperm(used + 5, generator=random)
    bank = torch.full((used + 5, D), 123.0, dtype=rows.dtype, device=rows.device)
    where = where.to(rows.device)
    bank[where[:used]] = rows
    split = problem.support.shape[:-1].numel()
    support_index = where[:split].view(problem.support.shape[:-1])
    query_index = where[split:used].view(problem.query.shape[:-1])
    return Indexed(bank, support_index, problem.support_labels, query_index, problem.num_classes)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("form", ["one", "own", "shared"])
@pytest.mark.parametrize("shape", SHAPES)
def test_indexed_is_gathered(
    place: Place, shape: tuple[int, int, int], form: str, scaling: str
) -> None:
    Q, K, D = shape
    B = None if form == "one" else 3
    problem = make_problem(B=B, Q=Q, K=K, D=D, lead=5.0, shared=form == "shared", seed=17)
    tasks = in_a_bank(place.put(problem))
    options = {"scaling": scaling, "return_prototypes": True}
    assert_same(tasks.solve(**options), tasks.dense().solve(**options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_indexed_half_precision(device: str, dtype: torch.dtype) -> None:
    problem = make_problem(B=3, Q=20, K=5, D=12, seed=18).to(dtype).to(device)
    tasks = in_a_bank(problem)
    assert_same(tasks.solve(), tasks.dense().solve())


def test_indexed_forms_of_input(place: Place) -> None:
    tasks = in_a_bank(place.put(make_problem(B=3, Q=10, K=4, D=6)))
    want = tasks.solve()
    assert_same(paddle_ext.solve_indexed(*tasks[:4]), want)
    assert_same(tasks.solve(validate=False), want)
    short = Indexed(*(x.int() if x.dtype == torch.int64 else x for x in tasks[:4]), 4)
    assert_same(short.solve(), want)
    reference = short.solve(backend="reference", tol=0.0, max_iter=5)
    native = tasks.solve(tol=0.0, max_iter=5)
    assert largest(reference.assignments - native.assignments) < TOLERANCE[place.dtype]
    # Rows may be used more than once.
    same = replace_index(tasks, tasks.query_index[:1].expand(3, -1))
    assert same.solve().assignments.shape == (3, 10, 4)


def replace_index(tasks: Indexed, query_index: torch.Tensor) -> Indexed:
    return tasks._replace(query_index=query_index)


def test_indexed_empty_batch(place: Place) -> None:
    problem = place.put(make_problem(B=0, Q=4, K=3, D=2))
    index = torch.zeros(0, 6, dtype=torch.int64, device=place.device)
    bank = problem.query.new_zeros(5, 2)
    got = Indexed(bank, index, index, index[:, :4], 3).solve(return_prototypes=True)
    assert got.assignments.shape == (0, 4, 3)
    assert got.prototypes.shape == (0, 3, 2)


def test_empty_batch_without_number_of_classes(device: str) -> None:
    problem = make_problem(B=0, Q=4, K=3, D=2).to(device)
    for backend in ("native", "reference"):
        got = paddle_ext.solve(*problem.inputs(), backend=backend)
        assert got.assignments.shape == (0, 4, 0)
