"""`paddle_ext.adaptive`: the method as a function, small and large, from memory and from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from problems import largest, make_problem

import paddle_ext
from paddle_ext import FileRows, methods
from paddle_ext.ops.large import fixed, queries


@pytest.mark.parametrize("shots", [1, 3, 8])
@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_one_rule(shots: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method, the function, and the function on a large task or a file agree."""
    problem = make_problem(Q=400, K=14, D=20, shots=(shots, shots), seed=shots).to(where)
    inputs = problem.inputs()
    want = methods.create("adaptive").predict(*inputs).probabilities
    small = paddle_ext.adaptive(*inputs)
    assert largest(small.probabilities - want) < 1e-6
    np.save(tmp_path / "query.npy", problem.query.cpu().numpy())
    monkeypatch.setattr(queries, "CPU_NUMBERS", 2**11)
    monkeypatch.setattr(queries, "CUDA_NUMBERS", 2**11)
    top = paddle_ext.adaptive(*inputs, return_assignments=False, top=2)
    assert largest(top.probabilities - want.topk(2).values) < 1e-4
    assert torch.equal(top.labels, top.classes[:, 0])
    assert top.held is not None
    assert largest(top.held - small.probabilities.sum(0)) < 1e-2
    rows = FileRows(tmp_path / "query.npy", device=where)
    file = paddle_ext.adaptive(*inputs[:2], rows)
    assert largest(file.probabilities - want) < 1e-4
    monkeypatch.setattr(fixed, "LARGE", 0)
    assert largest(methods.create("adaptive").predict(*inputs).probabilities - want) < 1e-4
    assert largest(paddle_ext.adaptive(*inputs).probabilities - want) < 1e-4


def test_batches_of_tasks() -> None:
    problem = make_problem(B=3, Q=50, K=6, D=8, shots=(2, 4), seed=1)
    all_classes = paddle_ext.adaptive(*problem.inputs())
    top = paddle_ext.adaptive(*problem.inputs(), return_assignments=False)
    assert top.probabilities.shape == (3, 50, 5)
    assert largest(top.probabilities - all_classes.probabilities.topk(5).values) < 1e-5
    assert torch.equal(top.labels, all_classes.labels)


@pytest.mark.parametrize("metric", ["diagonal", "full"])
@pytest.mark.parametrize("shared", [False, True])
def test_no_tasks(shared: bool, metric: str) -> None:
    """A result for no task has the form of one for some."""
    problem = make_problem(B=2, Q=5, K=3, D=4, shots=(2, 2), seed=1)
    support, labels, query = problem.inputs()
    known = (support[0], labels[0]) if shared else (support[:0], labels[:0])
    for options in ({}, {"return_assignments": False, "top": 2}):
        some = paddle_ext.adaptive(support, labels, query, metric=metric, **options)
        none = paddle_ext.adaptive(*known, query[:0], num_classes=3, metric=metric, **options)
        for name, x in some._asdict().items():
            if isinstance(x, torch.Tensor):
                found = getattr(none, name)
                assert found.shape == (0, *x.shape[1:])
                assert found.dtype is x.dtype
    assert paddle_ext.adaptive(support[:0], labels[:0], query[:0]).probabilities.shape == (0, 5, 0)


def test_bad_arguments() -> None:
    problem = make_problem(Q=9, K=3, D=4, seed=0)
    with pytest.raises(ValueError, match="metric must be one of"):
        paddle_ext.adaptive(*problem.inputs(), metric="round")
    with pytest.raises(ValueError, match="tol must be"):
        paddle_ext.adaptive(*problem.inputs(), tol=-1.0)
    with pytest.raises(TypeError, match="support_labels must be"):
        paddle_ext.adaptive(problem.support, problem.support, problem.query)
