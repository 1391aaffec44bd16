"""One large task: in chunks, from any source, in any precision, without its full matrix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import (
    TOLERANCE,
    Place,
    Problem,
    assert_agrees,
    assert_clear_labels,
    largest,
    make_problem,
)
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, reference
from paddle_ext.large import passes


@pytest.fixture
def many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks so small that small tasks have many."""
    monkeypatch.setitem(passes.CHUNK_NUMBERS, "cpu", 2**12)
    monkeypatch.setitem(passes.CHUNK_NUMBERS, "cuda", 2**12)


def assert_same_but_for_rounding(got: Solution, want: Solution, slack: float) -> None:
    """`want` has all probabilities; `got` perhaps only the largest."""
    u = want.probabilities.double().cpu()
    if got.classes is not None:
        assert torch.equal(got.classes[..., 0], got.labels)
        assert largest(got.probabilities.cpu() - u.gather(-1, got.classes.cpu())) < slack
        assert (got.probabilities.diff(dim=-1) <= 0).all()
        assert torch.equal(got.present().cpu(), want.present().cpu())
    else:
        assert largest(got.probabilities.cpu() - u) < slack
    assert largest(got.proportions.cpu() - want.proportions.cpu()) < slack
    assert_clear_labels(got, want, 5e-4)


@pytest.mark.parametrize(
    "switch", [{}, {"scaling": "minmax"}, {"scaling": "none", "temperature": 0.1}], ids=str
)
@pytest.mark.usefixtures("many_chunks")
def test_chunks_agree_with_the_reference(place: Place, switch: dict[str, Any]) -> None:
    problem = make_problem(Q=1100, K=37, D=24, shots=(2, 4), seed=1)
    problem.support[3] = problem.query[7] = 0  # rows without a direction
    options = {**switch, "max_iter": 12, "tol": 0.0}
    got = place.solve(problem, return_prototypes=True, **options)
    want = problem.to(place.dtype).truth(return_prototypes=True, **options)
    assert_same_but_for_rounding(got, want, TOLERANCE[place.dtype])
    away = torch.linalg.vector_norm(got.prototypes.cpu().double() - want.prototypes, dim=-1)
    norms = torch.linalg.vector_norm(want.prototypes, dim=-1)
    assert largest(away / norms) < (1e-5 if place.dtype is torch.float32 else 1e-12)


@pytest.mark.parametrize("K", [3, 130, 1100, 2500])
@pytest.mark.usefixtures("many_chunks")
def test_few_classes_and_many(place: Place, K: int) -> None:
    """Numbers of classes that a kernel reads at once, four at a time or one by one, or not."""
    problem = make_problem(Q=600, K=K, D=40, shots=(1, 2), seed=2)
    options = {"max_iter": 4, "tol": 0.0}
    want = problem.to(place.dtype).truth(**options)
    got = place.solve(problem, return_assignments=False, top=3, **options)
    assert_same_but_for_rounding(got, want, 1e-4)
    assert got.probabilities.shape == (600, min(3, K))


@pytest.mark.parametrize("odd", [torch.nan, 1e31])
def test_a_file_with_an_odd_number_is_refused(tmp_path: Path, odd: float) -> None:
    problem = make_problem(Q=900, K=12, D=16, seed=3)
    problem.query[700, 3] = odd
    np.save(tmp_path / "query.npy", problem.query.numpy())
    for call in (paddle_ext.solve, paddle_ext.adaptive):
        with pytest.raises(ValueError, match="query must be finite"):
            call(problem.support, problem.support_labels, tmp_path / "query.npy")


@pytest.mark.usefixtures("many_chunks")
def test_a_batch_of_clear_and_unclear_tasks_is_its_tasks() -> None:
    """Whether few probabilities count in the sums of rows is decided for each task."""
    random, double = torch.Generator().manual_seed(1), {"dtype": torch.float64}
    support = 3 * torch.randn(31, 17, generator=random, **double)
    noise = torch.tensor([0.3, 3.0], **double).view(2, 1, 1)
    query = support[torch.randint(3, (2, 1023), generator=random)]
    query = query + noise * torch.randn(2, 1023, 17, generator=random, **double)
    support, labels = support.repeat(2, 1, 1), torch.arange(31).repeat(2, 1)
    options: dict[str, Any] = {"scaling": "none", "max_iter": 5, "tol": 0.0}
    both = paddle_ext.solve(support, labels, query, **options)
    for task in range(2):
        alone = paddle_ext.solve(support[task], labels[task], query[task], **options)
        assert torch.equal(alone.probabilities, both.probabilities[task])


@pytest.mark.usefixtures("many_chunks")
def test_rows_of_very_different_lengths(place: Place) -> None:
    """A ratio that half precision cannot represent."""
    problem = make_problem(Q=700, K=20, D=16, seed=4)
    lengths = torch.logspace(-3, 3, 700).unsqueeze(-1)
    problem = Problem(
        problem.support, problem.support_labels, problem.query * lengths, problem.num_classes
    )
    options = {"max_iter": 6, "tol": 0.0}
    assert_agrees(place.solve(problem, **options), problem.to(place.dtype).truth(**options))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("many_chunks")
def test_half_precision_features(dtype: torch.dtype) -> None:
    """Products of halves with sums in float32, of prototypes in two halves."""
    problem = make_problem(Q=2000, K=60, D=64, seed=5).to(dtype)
    options = {"max_iter": 8, "tol": 0.0}
    want = problem.truth(**options)
    got = problem.to("cuda").solve(**options)
    assert largest(got.probabilities.cpu() - want.probabilities) < 1e-4


@pytest.mark.cuda
def test_less_precision() -> None:
    problem = make_problem(Q=2000, K=60, D=64, seed=5)
    options = {"max_iter": 8, "tol": 0.0}
    got = problem.to("cuda").solve(precision="half", **options)
    assert_same_but_for_rounding(got, problem.truth(**options), 5e-3)


@pytest.mark.cuda
def test_a_graph_of_a_large_task() -> None:
    problem = make_problem(Q=1500, K=60, D=64, seed=6).to("cuda")
    options = {"num_classes": 60, "validate": False, "max_iter": 6}
    want = paddle_ext.solve(*problem.inputs(), **options)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        paddle_ext.solve(*problem.inputs(), **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = paddle_ext.solve(*problem.inputs(), **options)
    graph.replay()
    torch.cuda.synchronize()
    assert largest(got.probabilities.cpu() - want.probabilities.cpu()) < 1e-5


def make_logits(place: Place, sharpness: float) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(900, 25, generator=generator)
    logits[torch.arange(900), torch.randint(0, 4, (900,), generator=generator)] += 3
    return (sharpness * logits).to(place.device, place.dtype)


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "recomputed"])
@pytest.mark.usefixtures("many_chunks")
def test_adapt(place: Place, sharpness: float, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharp logits, where the batch prefers a class far below the largest of a row."""
    monkeypatch.setattr(passes, "MOST_STORED_LIKELIHOODS", 2**31 if kept else 0)
    logits = make_logits(place, sharpness)
    want = reference.adapt(logits.double().cpu(), tol=0.0, max_iter=40)
    got = paddle_ext.adapt(logits, tol=0.0, max_iter=40, return_assignments=False)
    assert_same_but_for_rounding(got, want, 1e-3 if kept and place.device == "cuda" else 1e-4)
    assert abs(float(got.bound) / float(want.bound) - 1) < 1e-4
    monkeypatch.setattr(passes, "MOST_IN_ONE_BLOCK", 0)
    whole = paddle_ext.adapt(logits, tol=0.0, max_iter=40)
    assert_same_but_for_rounding(whole, want, 1e-3 if kept and place.device == "cuda" else 1e-4)


def test_a_file_of_other_features_is_refused(tmp_path: Path) -> None:
    problem = make_problem(Q=9, K=3, D=4, seed=0)
    np.save(tmp_path / "wide.npy", np.zeros((5, 7), np.float32))
    with pytest.raises(ValueError, match="as many features as support, 4, got 7"):
        paddle_ext.solve(problem.support, problem.support_labels, tmp_path / "wide.npy")
