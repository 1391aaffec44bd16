"""One rule, two engines: a task that changes engine keeps its labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from named_tasks import make_named, with_logits
from problems import Problem, largest, make_problem
from torch import Tensor

import paddle_ext
from paddle_ext import FileRows, methods
from paddle_ext.adaptive_rule import batch, rounds
from paddle_ext.large import passes

SHOTS = (1, 3, 8)  # eight: the full metric


def hard(Q: int, K: int, shots: int, *, D: int = 20, B: int | None = None) -> Problem:
    """Classes that overlap, so that few probabilities are 0 or 1; half of them are present."""
    random = torch.Generator().manual_seed(shots)
    centres = torch.randn(K, D, generator=random)
    batch = [] if B is None else [B]
    labels = torch.arange(K).repeat(shots).expand(*batch, -1).contiguous()
    truth = torch.randint(K // 2, (*batch, Q), generator=random)
    rows = (centres[y] + 1.5 * torch.randn(*y.shape, D, generator=random) for y in (labels, truth))
    support, query = rows
    return Problem(support, labels, query, K)


def assert_same(labels: Tensor, probabilities: Tensor, want: Tensor) -> None:
    """Probabilities [.., K] within 1e-4, and labels except near ties."""
    assert largest(probabilities.double() - want.double()) < 1e-4
    best = want.topk(2, dim=-1).values
    clear = best[..., 0] - best[..., 1] > 2e-4
    assert clear.double().mean() > 0.9
    assert torch.equal(labels[clear], want.argmax(-1)[clear])


def all_of(found: paddle_ext.Solution) -> Tensor:
    """The probabilities of all classes, from the largest of each query."""
    return torch.zeros_like(found.probabilities).scatter(-1, found.classes, found.probabilities)


@pytest.mark.parametrize("shots", SHOTS)
def test_one_rule(device: str, shots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method, the function, and the function on a large task or a file agree."""
    problem = hard(400, 14, shots).to(device)
    inputs = problem.inputs()
    small = paddle_ext.adaptive(*inputs)
    want = small.probabilities
    assert largest(methods.create("adaptive").predict(*inputs).probabilities - want) < 1e-6
    monkeypatch.setitem(passes.CHUNK_NUMBERS, "cpu", 2**11)
    monkeypatch.setitem(passes.CHUNK_NUMBERS, "cuda", 2**11)
    monkeypatch.setattr(batch, "MOST_IN_ONE_BLOCK", 0)
    top = paddle_ext.adaptive(*inputs, return_assignments=False, top=14)
    assert_same(top.labels, all_of(top), want)
    assert torch.equal(top.labels, top.classes[:, 0])
    assert largest(top.held - want.sum(0)) < 1e-2
    np.save(tmp_path / "query.npy", problem.query.cpu().numpy())
    file = paddle_ext.adaptive(*inputs[:2], FileRows(tmp_path / "query.npy", device=device))
    assert_same(file.labels, file.probabilities, want)


@pytest.mark.parametrize("shots", SHOTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_around_the_switch(shots: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many probabilities as the small engine takes, and with one query more."""
    monkeypatch.setattr(batch, "MOST_IN_ONE_BLOCK", 100 * 14)
    problem = hard(101, 14, shots, B=2).to(dtype)
    for Q in (100, 101):
        inputs = problem.support, problem.support_labels, problem.query[:, :Q]
        found = paddle_ext.adaptive(*inputs)
        other = paddle_ext.adaptive(*inputs, return_assignments=False, top=14)
        assert_same(found.labels, found.probabilities, all_of(other))
        with monkeypatch.context() as patched:
            patched.setattr(batch, "MOST_IN_ONE_BLOCK", 2**22)
            small = paddle_ext.adaptive(*inputs)
        assert_same(found.labels, found.probabilities, small.probabilities)
        # A task of this size is solved by the small engine to the last bit, a larger one is not.
        assert torch.equal(found.probabilities, small.probabilities) == (Q == 100)


@pytest.mark.parametrize("shots", SHOTS)
def test_likelihoods_that_are_not_stored(shots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a task that is too large for that are computed again in every pass."""
    inputs = hard(700, 14, shots).inputs()
    given: dict[str, Any] = {"return_assignments": False, "top": 14}
    given["prior"] = torch.linspace(0, 1, 14)  # the first class is impossible
    monkeypatch.setitem(passes.CHUNK_NUMBERS, "cpu", 2**11)
    monkeypatch.setattr(batch, "MOST_IN_ONE_BLOCK", 0)
    stored = paddle_ext.adaptive(*inputs, **given)
    monkeypatch.setattr(passes, "MOST_STORED_LIKELIHOODS", 0)
    monkeypatch.setattr(rounds, "MOST_STORED_LIKELIHOODS", 0)
    found = paddle_ext.adaptive(*inputs, **given)
    assert_same(found.labels, all_of(found), all_of(stored))


# --- the callers ----------------------------------------------------------------------------------


def in_both_engines(
    predict: Callable[[], tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels and probabilities of a caller, in the small engine and in the large one."""
    want = torch.as_tensor(predict()[1])
    for module in (batch, passes):
        monkeypatch.setattr(module, "MOST_IN_ONE_BLOCK", 0)
    labels, probabilities = (torch.as_tensor(x) for x in predict())
    assert_same(labels, probabilities, want)
    assert not torch.equal(probabilities, want)  # it was the other engine


@pytest.mark.parametrize("shots", [1, 2, 6])
@pytest.mark.parametrize("kind", ["prototypes", "logits", "shared"])
def test_names(shots: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With labelled rows of each task, or shared by all."""
    task = make_named(2, 60, 7, 12, shots=shots, noise=1.5, seed=shots)
    call = (with_logits(task, 20.0) if kind == "logits" else task).call()
    if kind == "shared":
        call |= {name: call[name][0] for name in ("support", "support_labels")}
    in_both_engines(lambda: tuple(methods.create("adaptive").predict(**call)), monkeypatch)


CORRECTED = 20  # shots that are enough for a logistic correction


@pytest.mark.parametrize("shots", [1, 5, CORRECTED])
@pytest.mark.parametrize("named", [False, True])
def test_estimator(shots: int, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    problem = hard(80, 6, shots)
    X = torch.cat([problem.support, problem.query]).numpy()
    y = torch.cat([problem.support_labels, torch.full((80,), -1)]).numpy()
    names = {"prototypes": problem.support[:6].numpy()} if named else {}

    def fitted() -> tuple[Any, Any]:
        model = paddle_ext.PaddleClassifier(device="cpu").fit(X, y, **names)
        return model.transduction_[len(problem.support) :], model.label_distributions_[-80:]

    in_both_engines(fitted, monkeypatch)


def test_the_full_metric_is_auto() -> None:
    inputs = make_problem(Q=9, K=3, D=4, seed=0).inputs()
    message = "metric must be 'auto', which means the same, got 'full'"
    with pytest.raises(ValueError, match=message):
        paddle_ext.adaptive(*inputs, metric="full")
    with pytest.raises(ValueError, match=message):
        methods.create("adaptive", metric="full")
