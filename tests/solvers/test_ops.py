"""The torch operators: registration, fake kernels, torch.compile; and the loading of the module."""

import doctest
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import Problem, assert_same, make_problem
from scripts import run_code

import paddle_ext
from paddle_ext import Solution
from paddle_ext.native import load as native

OPTIONS = (2.0, 1, 1.0, 1e-6, 7, 1e-6)  # lam, scaling, temperature, epsilon, max_iter, tol


def problem_of(form: str) -> Problem:
    B = None if form == "one" else 3
    return make_problem(B=B, Q=6, K=4, D=5, shared=form == "shared")


def bank_of(problem: Problem) -> tuple[torch.Tensor, ...]:
    """The problem as rows of a bank: the arguments of solve_indexed."""
    D = problem.query.shape[-1]
    bank = torch.cat([problem.support.reshape(-1, D), problem.query.reshape(-1, D)])
    rows = torch.arange(len(bank))
    split = problem.support.shape[:-1].numel()
    support = rows[:split].view(problem.support.shape[:-1])
    query = rows[split:].view(problem.query.shape[:-1])
    return bank, support, problem.support_labels, query


@pytest.mark.parametrize("prototypes", [False, True])
@pytest.mark.parametrize("form", ["one", "own", "shared"])
def test_opcheck(form: str, prototypes: bool, device: str) -> None:
    problem = problem_of(form).to(device)
    for lam in (None, 2.0):
        tail = (4, lam, *OPTIONS[1:], prototypes)
        torch.library.opcheck(torch.ops.paddle_ext.solve.default, (*problem.inputs(), *tail))
    arguments = [x.to(device) for x in bank_of(problem_of(form))]
    torch.library.opcheck(torch.ops.paddle_ext.solve_indexed.default, (*arguments, *tail))


def test_opcheck_with_gradients_asked_for() -> None:
    problem = problem_of("own")
    problem.support.requires_grad_()
    problem.query.requires_grad_()
    torch.library.opcheck(
        torch.ops.paddle_ext.solve.default, (*problem.inputs(), 4, *OPTIONS, False)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("prototypes", [False, True])
@pytest.mark.parametrize("form", ["one", "own", "shared"])
def test_fake_results_are_like_the_real_ones(
    form: str, prototypes: bool, dtype: torch.dtype
) -> None:
    problem = problem_of(form).to(dtype)
    indexed = [x.to(dtype) if x.is_floating_point() else x for x in bank_of(problem)]
    for op, arguments in (
        (torch.ops.paddle_ext.solve, problem.inputs()),
        (torch.ops.paddle_ext.solve_indexed, indexed),
    ):
        tail = (4, *OPTIONS, prototypes)
        real = op(*arguments, *tail)
        with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
            fake = op(*(mode.from_tensor(x) for x in arguments), *tail)
        for one, other in zip(real, fake, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            assert one.stride() == other.stride()
            assert one.device == other.device


def call(*inputs: torch.Tensor, **options: Any) -> Solution:
    return paddle_ext.solve(*inputs, num_classes=4, validate=False, tol=0.0, max_iter=5, **options)


def call_indexed(*inputs: torch.Tensor) -> Solution:
    return paddle_ext.solve_indexed(*inputs, num_classes=4, validate=False, return_prototypes=True)


@pytest.mark.parametrize("form", ["one", "own", "shared"])
def test_compile(form: str, device: str) -> None:
    torch._dynamo.reset()
    problem = problem_of(form).to(device)

    def around(support: torch.Tensor, labels: torch.Tensor, query: torch.Tensor) -> Solution:
        return call(2 * support, labels, 2 * query, scaling="none", return_prototypes=True)

    compiled = torch.compile(around, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*problem.inputs()), around(*problem.inputs()))
    arguments = [x.to(device) for x in bank_of(problem_of(form))]
    compiled = torch.compile(call_indexed, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*arguments), call_indexed(*arguments))


def test_compile_with_changing_sizes() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for B, Q in ((3, 6), (5, 9), (2, 7)):
        problem = make_problem(B=B, Q=Q, K=4, D=5, seed=Q)
        assert_same(compiled(*problem.inputs()), call(*problem.inputs()))


def test_compile_with_gradients_asked_for() -> None:
    torch._dynamo.reset()
    problem = problem_of("own")
    weight = torch.ones(5, requires_grad=True)

    def weighted(weight: torch.Tensor) -> Solution:
        support, labels, query = problem.inputs()
        return call(weight * support, labels, weight * query)

    got = torch.compile(weighted, fullgraph=True, backend="aot_eager")(weight)
    assert not got.probabilities.requires_grad
    assert_same(got, weighted(weight))


def test_export() -> None:
    problem = problem_of("own")

    class Module(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return call(*inputs).probabilities

    program = torch.export.export(Module(), problem.inputs())
    assert torch.equal(program.module()(*problem.inputs()), call(*problem.inputs()).probabilities)


# --- the native module --------------------------------------------------------------------------


@pytest.fixture
def unloaded() -> Iterator[None]:
    """The native module before its first use."""

    def forget() -> None:
        native.load.cache_clear()
        vars(native.module).clear()

    forget()
    yield
    forget()


@pytest.mark.usefixtures("unloaded")
def test_missing_module_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, native.NAME, None)
    monkeypatch.setattr(native, "installed_file", lambda: None)
    problem = make_problem()
    with pytest.raises(ImportError, match="pip install") as caught:
        problem.solve()
    assert "backend='reference'" in str(caught.value)
    with pytest.raises(ImportError, match="pip install"):
        paddle_ext.build_info()
    assert problem.solve(backend="reference").labels.shape == (12,)


@pytest.mark.usefixtures("unloaded")
def test_broken_module_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("libnothing.so: not found")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ImportError, match=r"libnothing\.so: not found"):
        native.load()


def test_version_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    native.version.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", none)
    try:
        assert native.version() == "0+unknown"
    finally:
        native.version.cache_clear()


def test_fork_in_the_middle_of_work(tmp_path: Path) -> None:
    # A child gets the parent's memory but none of its threads.
    code = """
import os, sys, torch, paddle_ext
torch.set_num_threads(3)
torch.manual_seed(0)
support, query = torch.randn(9, 20, 16), torch.randn(9, 75, 16)
labels = torch.arange(20).remainder(5).expand(9, 20)
want = paddle_ext.solve(support, labels, query)
child = os.fork()
if not child:
    got = paddle_ext.solve(support, labels, query)
    os._exit(0 if torch.equal(got.probabilities, want.probabilities) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    run_code(code, cwd=tmp_path)


def test_examples() -> None:
    for name in ("paddle_ext.solvers.paddle", "paddle_ext.native.load"):
        result = doctest.testmod(sys.modules[name])
        assert result.attempted
        assert not result.failed
