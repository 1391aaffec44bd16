"""Promises of the solver besides correct numbers: descent, symmetry, forms of input."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from places import at_places
from problems import (
    SCALINGS,
    SHAPES,
    TOLERANCE,
    Place,
    Problem,
    assert_agrees,
    assert_same,
    each_tensor,
    largest,
    make_problem,
    naive_objective,
    naive_scaled,
)

import paddle_ext
from paddle_ext import Solution

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
        state = (got.probabilities, got.dual, got.prototypes)
        value = naive_objective(problem, *state, weight, temperature, epsilon)
        assert value <= previous + 1e-9 * (1 + abs(value))
        previous = value


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
    u, tolerance = got.probabilities.cpu(), TOLERANCE[place.dtype]

    queries = torch.randperm(30, generator=random)
    permuted = replace(problem, query=problem.query[:, queries])
    assert largest(place.solve(permuted, **options).probabilities.cpu() - u[:, queries]) < tolerance

    classes = torch.randperm(7, generator=random)
    renamed = replace(problem, support_labels=classes[problem.support_labels])
    assert (
        largest(place.solve(renamed, **options).probabilities.cpu()[:, :, classes] - u) < tolerance
    )

    rows = torch.randperm(problem.support.shape[1], generator=random)
    shuffled = replace(
        problem,
        support=problem.support[:, rows],
        support_labels=problem.support_labels[:, rows],
    )
    assert largest(place.solve(shuffled, **options).probabilities.cpu() - u) < tolerance

    tasks = torch.randperm(4, generator=random)
    reordered = Problem(*(x[tasks] for x in problem.inputs()), 7)
    assert torch.equal(place.solve(reordered, **options).probabilities.cpu(), u[tasks])


# All pairs of a shape and a scaling, half of them with a shared support.
BATCHES = [
    (shape, scaling, (i + j) % 2 == 1)
    for i, shape in enumerate(SHAPES)
    for j, scaling in enumerate(SCALINGS)
]


@at_places(
    "shape, scaling, shared",
    everywhere=BATCHES,
    cpu_only=[(shape, scaling, not shared) for shape, scaling, shared in BATCHES],
)
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
    return each_tensor(batch, lambda x: x[b])


@pytest.mark.parametrize("shape", SHAPES)
def test_two_runs_are_equal(place: Place, shape: tuple[int, int, int]) -> None:
    Q, K, D = shape
    problem = place.put(make_problem(B=7, Q=Q, K=K, D=D, lead=5.0, seed=11))
    first = problem.solve(return_prototypes=True)
    for _ in range(3):
        assert_same(problem.solve(return_prototypes=True), first)


@pytest.mark.parametrize("shape", [*SHAPES, (500, 100, 40)])
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
            assert largest(one.probabilities - other.probabilities) < TOLERANCE[place.dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_half_precision(device: str, dtype: torch.dtype, scaling: str) -> None:
    for Q, K, D in SHAPES:
        problem = make_problem(B=2, Q=Q, K=K, D=D, seed=16).to(dtype)
        options = {"scaling": scaling, "tol": 0.0, "max_iter": 8, "return_prototypes": True}
        got = problem.to(device).solve(**options)
        assert got.probabilities.dtype == got.criterion.dtype == torch.float32
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
    assert torch.equal(got.probabilities, want.probabilities)


def test_number_of_classes_by_default(device: str) -> None:
    problem = make_problem(B=2, Q=6, K=5, D=4).to(device)
    assert_same(paddle_ext.solve(*problem.inputs()), problem.solve())
    assert_same(problem.solve(validate=False), problem.solve())


def test_the_reference_takes_the_same_options(device: str) -> None:
    problem = make_problem(B=2, Q=6, K=5, D=4).to(device)
    options = {"lam": 3.0, "temperature": 0.9, "epsilon": 1e-5, "tol": 0.0, "max_iter": 7}
    options |= {"scaling": "minmax", "return_prototypes": True}
    got = paddle_ext.reference.solve(*problem.inputs(), **options)
    assert got.probabilities.device.type == device
    native = problem.solve(**options)
    assert largest(got.probabilities - native.probabilities) < 1e-4
    assert largest(got.prototypes - native.prototypes) < 1e-3
