"""Promises of TIM besides correct numbers: forms of input, independence, errors, the operator."""

import doctest
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import Place, Problem, largest, make_problem, nothing_waits
from tim_tasks import (
    ADM,
    PROTOTYPES,
    VARIANTS,
    agrees,
    assert_agrees,
    assert_same,
    overlapping,
    run,
    solve,
    truth,
)

import paddle_ext.solvers  # where the operators are registered
from paddle_ext import TimSolution, reference

# --- forms of input -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_shared_support(place: Place, variant: str) -> None:
    problem = overlapping(B=3, shared=True, seed=1)
    options = {"max_iter": 15} | VARIANTS[variant]
    shared = agrees(place, problem, **options)
    support, labels = problem.support.expand(3, -1, -1), problem.support_labels.expand(3, -1)
    repeated = solve(place, replace(problem, support=support, support_labels=labels), **options)
    assert largest(repeated.prototypes - shared.prototypes) < PROTOTYPES[place.dtype]


def test_shared_support_far_from_the_queries_of_a_task(place: Place) -> None:
    problem = overlapping(B=3, shared=True, seed=2)
    moved = problem.query * torch.tensor([1.0, 1e-3, 8.0]).view(3, 1, 1)
    moved = moved + torch.tensor([0.0, 50.0, -3.0]).view(3, 1, 1)
    agrees(place, replace(problem, query=moved), max_iter=10, normalize=False, temperature=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision(device: str, dtype: torch.dtype, variant: str) -> None:
    problem = overlapping(B=2, seed=3).to(dtype)
    options = {"max_iter": 15, "return_losses": True} | VARIANTS[variant]
    got = run(problem.to(device), **options)
    assert got.probabilities.dtype == got.prototypes.dtype == torch.float32
    assert_agrees(got, truth(problem, **options))


@pytest.mark.cuda
def test_float64_on_cuda() -> None:
    problem = overlapping(seed=5).to(torch.float64)
    got = run(problem.to("cuda"), max_iter=5)
    assert_agrees(got, truth(problem, max_iter=5))


def test_integer_labels_and_strides(place: Place) -> None:
    problem = place.put(overlapping(B=2, seed=6))
    want = run(problem, max_iter=5)
    support = problem.support.mT.contiguous().mT
    query = problem.query.repeat_interleave(2, -1)[..., ::2]
    strided = Problem(support, problem.support_labels.to(torch.int16), query, 5)
    assert not support.is_contiguous()
    assert not query.is_contiguous()
    assert_same(run(strided, max_iter=5), want)


def test_inputs_are_not_modified_and_nothing_is_recorded(place: Place) -> None:
    problem = place.put(overlapping(B=2, seed=7))
    copies = [x.clone() for x in problem.inputs()]
    problem.support.requires_grad_()
    problem.query.requires_grad_()
    got = run(problem, max_iter=3, return_losses=True)
    assert not any(x.requires_grad for x in got)
    for x, copy in zip(problem.inputs(), copies, strict=True):
        assert torch.equal(x, copy)


def test_no_tasks(device: str) -> None:
    for shared in (False, True):
        problem = make_problem(B=0, Q=4, K=3, D=5, shared=shared).to(device)
        got = run(problem, max_iter=7, return_losses=True)
        shapes = [list(x.shape) for x in got if x is not None]
        assert shapes == [[0, 4], [0, 4, 3], [0, 3, 5], [7, 0]]
    empty = paddle_ext.tim(*make_problem(B=0, Q=4, K=3, D=5).to(device).inputs(), max_iter=2)
    assert empty.probabilities.shape == (0, 4, 0)


def test_losses_only_on_demand(place: Place) -> None:
    problem = overlapping(B=2, seed=8)
    plain = solve(place, problem, max_iter=9)
    assert plain.losses is None
    traced = solve(place, problem, max_iter=9, return_losses=True)
    assert traced.losses is not None
    assert traced.losses.shape == (9, 2)
    assert_same(traced._replace(losses=None), plain)
    one = solve(place, problem.task(0), max_iter=9, return_losses=True)
    assert one.losses is not None
    assert torch.equal(one.losses, traced.losses[:, 0])


# --- independence -------------------------------------------------------------------------------


def at(batch: TimSolution, b: int) -> TimSolution:
    """One task's part of a result."""
    losses = None if batch.losses is None else batch.losses[:, b]
    return TimSolution(batch.labels[b], batch.probabilities[b], batch.prototypes[b], losses)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_batch_does_not_matter(place: Place, variant: str, shared: bool) -> None:
    problem = overlapping(B=5, Q=17, K=11, D=33, shared=shared, seed=9)
    options = {"max_iter": 8, "return_losses": True} | VARIANTS[variant]
    batch = solve(place, problem, **options)
    for b in range(5):
        task = replace(problem, query=problem.query[b : b + 1])
        if not shared:
            task = Problem(*(x[b : b + 1] for x in problem.inputs()), 11)
            assert_same(solve(place, problem.task(b), **options), at(batch, b))
        assert_same(at(solve(place, task, **options), 0), at(batch, b))
    assert_same(solve(place, problem, **options), batch)


@pytest.mark.parametrize("B", [1, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_do_not_matter(variant: str, B: int) -> None:
    # One task is large enough for threads inside it, which must not show either.
    problem = overlapping(B=B, Q=80, K=41, D=512 if B == 1 else 8, shots=(5, 5), seed=10)
    options = {"max_iter": 3, "return_losses": True} | VARIANTS[variant]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found.append(run(problem, **options))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert_same(other, found[0])


def test_order_of_rows_and_classes(place: Place) -> None:
    problem, options = overlapping(Q=15, K=6, seed=12), {"max_iter": 20}
    random = torch.Generator().manual_seed(1)
    w, tolerance = solve(place, problem, **options).prototypes, PROTOTYPES[place.dtype]
    rows = torch.randperm(len(problem.support), generator=random)
    shuffled = Problem(
        problem.support[rows], problem.support_labels[rows], problem.query.flip(0), 6
    )
    assert largest(solve(place, shuffled, **options).prototypes - w) < tolerance
    classes = torch.randperm(6, generator=random)
    renamed = replace(problem, support_labels=classes[problem.support_labels])
    assert largest(solve(place, renamed, **options).prototypes[classes] - w) < tolerance


def test_equal_classes_go_to_the_smaller(place: Place) -> None:
    support = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    problem = Problem(support, torch.tensor([2, 1, 0]), torch.tensor([[2.0, 1.0]]), 3)
    weights = (0.0, 0.0, 0.0)
    for options in ({"weights": weights}, ADM | {"weights": weights}):
        assert solve(place, problem, max_iter=1, **options).labels.tolist() == [1]


@pytest.mark.cuda
def test_no_synchronisation_and_graphs() -> None:
    problem = overlapping(B=3, seed=13).to("cuda")
    options = {"max_iter": 5, "validate": False, "return_losses": True}
    want = run(problem, **options)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(problem, **options)
    torch.cuda.current_stream().wait_stream(stream)
    with nothing_waits():
        run(problem, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(problem, **options)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(captured, want)


# --- errors -------------------------------------------------------------------------------------


def call(**changes: Any) -> dict[str, Any]:
    """A valid call, with changes."""
    problem = make_problem(B=2, Q=5, K=3, D=4)
    good = dict(zip(("support", "support_labels", "query"), problem.inputs(), strict=True))
    return good | {"max_iter": 2} | changes


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"solver": "sgd"}, ValueError, "solver must be one of 'gd', 'adm', got 'sgd'"),
    ({"solver": 1}, TypeError, "solver must be a string, got int"),
    ({"weights": 1.0}, TypeError, "weights must be three numbers, got float"),
    ({"weights": "abc"}, TypeError, "weights must be three numbers, got str"),
    ({"weights": (1.0, 1.0)}, ValueError, "weights must be three numbers, got 2"),
    ({"weights": (1.0, -1.0, 1.0)}, ValueError, "weights[1] must be finite and >= 0, got -1.0"),
    ({"weights": (1.0, 1.0, "x")}, TypeError, "weights[2] must be a number, got str"),
    ({"alphas": None}, TypeError, "alphas must be three numbers, got None"),
    ({"alphas": (1.0, 1.0, 0.0)}, ValueError, "alphas[2] must be finite and > 0, got 0.0"),
    (
        {"alphas": (float("nan"), 1.0, 1.0)},
        ValueError,
        "alphas[0] must be finite and > 0, got nan",
    ),
    ({"alphas": (1, 7, 5), "solver": "adm"}, ValueError, "alphas must be (1.0, 1.0, 1.0)"),
    ({"temperature": 0.0}, ValueError, "temperature must be finite and > 0, got 0.0"),
    ({"temperature": "hot"}, TypeError, "temperature must be a number, got str"),
    ({"learning_rate": 0}, ValueError, "learning_rate must be finite and > 0, got 0"),
    (
        {"learning_rate": float("inf")},
        ValueError,
        "learning_rate must be finite and > 0, got inf",
    ),
    ({"max_iter": 0}, ValueError, "max_iter must be an integer in [1, 2147483647], got 0"),
    ({"max_iter": 2.0}, TypeError, "max_iter must be an integer, got float"),
    ({"normalize": 1}, TypeError, "normalize must be True or False, got int"),
    ({"return_losses": None}, TypeError, "return_losses must be True or False, got None"),
    ({"validate": "no"}, TypeError, "validate must be True or False, got str"),
    ({"validate": False}, ValueError, "num_classes must be given with validate=False"),
    ({"num_classes": 4}, ValueError, "support_labels must have every class in [0, 4)"),
    ({"num_classes": 2}, ValueError, "support_labels must be in [0, 2), got 2"),
    ({"support": [1.0]}, TypeError, "support must be a torch.Tensor, got list"),
    ({"query": torch.zeros(2, 5, 4).double()}, ValueError, "query must have the dtype of support"),
    ({"query": torch.zeros(2, 5, 3)}, ValueError, "query must have as many features as support"),
    ({"query": torch.full((2, 5, 4), torch.nan)}, ValueError, "query must be finite, got nan"),
    ({"support_labels": torch.zeros(2, 5)}, TypeError, "support_labels must be a tensor of int"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_bad_input(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        paddle_ext.tim(**call(**changes))
    assert message in str(caught.value)
    assert "got " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_out_of_range_without_validation(place: Place) -> None:
    # Undefined, but inside its memory.
    problem = place.put(overlapping(seed=14))
    for label in (-1, 5, 2**40):
        labels = problem.support_labels.clone()
        labels[0] = label
        bad = replace(problem, support_labels=labels)
        run(bad, max_iter=2, validate=False)


def test_examples() -> None:
    for name in ("paddle_ext.solvers.tim", "paddle_ext.reference.tim"):
        result = doctest.testmod(sys.modules[name])
        assert result.attempted
        assert not result.failed


def test_reference_does_not_depend_on_the_batch() -> None:
    problem = overlapping(B=3, seed=21).to(torch.float64)
    batch = reference.tim(*problem.inputs(), num_classes=5, max_iter=10)
    for b in range(3):
        alone = reference.tim(*problem.task(b).inputs(), num_classes=5, max_iter=10)
        assert largest(alone.prototypes - batch.prototypes[b]) < 1e-12
