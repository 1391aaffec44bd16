"""`adaptive` with tensors of every layout, and with subnormal numbers, in both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import in_memory
import pytest
import torch
from named_tasks import Named, make_named, with_logits
from problems import largest, make_problem

import paddle_ext
from paddle_ext import methods
from paddle_ext.large import fixed

ENGINES = ("small", "large")
SHOTS = (1, 3, 5)  # five: the full metric


# Equal tasks are expanded; of the others, no layout changes a number.
LAYOUTS = {name: layout for name, layout in in_memory.LAYOUTS.items() if name != "expanded column"}


def assert_same_answers(got: Any, want: Any, tolerance: float = 1e-6) -> None:
    assert torch.equal(got.labels, want.labels)
    assert largest(got.probabilities - want.probabilities) < tolerance


def in_engine(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "LARGE", 0 if engine == "large" else 2**40)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_tensors_of_any_layout(
    device: str, dtype: torch.dtype, engine: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_engine(engine, monkeypatch)
    change = LAYOUTS[layout]
    for shots in SHOTS:
        problem = make_problem(B=3, Q=21, K=5, D=9, shots=(shots, shots), lead=3.0, seed=shots)
        inputs = [x.to(device) for x in problem.to(dtype).inputs()]
        if layout == "expanded":
            inputs = [x[:1].repeat(3, *[1] * (x.dim() - 1)) for x in inputs]
        wanted = {"num_classes": 5}, {"num_classes": 5, "return_assignments": False, "top": 5}
        for options in wanted:
            want = paddle_ext.adaptive(*inputs, **options)
            for changed in range(3):
                given = [change(x) if i == changed else x for i, x in enumerate(inputs)]
                assert torch.equal(given[changed], inputs[changed])
                assert_same_answers(paddle_ext.adaptive(*given, **options), want)
            assert_same_answers(paddle_ext.adaptive(*map(change, inputs), **options), want)
            shared = [x[0] for x in inputs[:2]]
            want = paddle_ext.adaptive(*shared, inputs[2], **options)
            if layout != "expanded":
                shared = [change(x) for x in shared]
            got = paddle_ext.adaptive(*shared, change(inputs[2]), **options)
            assert_same_answers(got, want)


def named_task(kind: str, shots: int) -> Named:
    """With prototypes of each task, or logits."""
    task = make_named(3, 15, 5, 8, shots=shots, seed=4)
    assert task.prototypes is not None
    if kind == "logits":
        return with_logits(task, 20.0)
    return replace(task, prototypes=task.prototypes.repeat(3, 1, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["prototypes", "logits"])
def test_names_of_any_layout(
    device: str, kind: str, engine: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_engine(engine, monkeypatch)
    method, change = methods.create("adaptive"), LAYOUTS[layout]
    for shots in (0, 1, 5):
        task = named_task(kind, shots).to(device)
        call = {name: x for name, x in task.call().items() if x is not None}
        if layout == "expanded":
            call = {k: x[:1].repeat(3, *[1] * (x.dim() - 1)) for k, x in call.items()}
        want = method.predict(**call, num_classes=5)
        for name, x in call.items():
            if x.numel():
                got = method.predict(**call | {name: change(x)}, num_classes=5)
                # A matrix product of torch sums in another order for another layout.
                assert_same_answers(got, want, 1e-5)


# --- subnormal numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shots", SHOTS)
@pytest.mark.parametrize("Q", [75, 512, 513])
def test_subnormal_features(
    device: str, Q: int, shots: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all rows, only directions count; in one column, they are as good as zeros."""
    in_engine(engine, monkeypatch)
    problem = make_problem(Q=Q, K=5, D=9, shots=(shots, shots), seed=7).to(device)
    for options in ({}, {"return_assignments": False, "top": 5}):
        want = paddle_ext.adaptive(*problem.inputs(), **options)
        tiny = problem.map(lambda x: x * 1e-39)
        assert 0 < largest(tiny.query) < torch.finfo(torch.float32).tiny
        got = paddle_ext.adaptive(*tiny.inputs(), **options)
        assert ((got.labels >= 0) & (got.labels < 5)).all()
        assert largest(got.probabilities.sum(-1) - 1) < 1e-5
        assert float((got.labels == want.labels).double().mean()) > 0.99
        found = []
        for value in (0.0, 1e-40):
            column = torch.tensor([value] + [1.0] * 8, device=device)
            given = problem.support * column, problem.support_labels, problem.query * column
            found.append(paddle_ext.adaptive(*given, **options))
        assert_same_answers(*found, 1e-5)
