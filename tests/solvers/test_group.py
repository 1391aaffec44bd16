"""Several processes share one task; each gets the labels of its own queries."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import Problem, largest, make_problem
from torch import Tensor

import paddle_ext

WORKER = Path(__file__).with_name("group_worker.py")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run(size: int, folder: Path, mode: str) -> list[subprocess.CompletedProcess[str]]:
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), str(size), port, folder, mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    ended = []
    for process in started:
        out, errors = process.communicate(timeout=120)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, errors))
    return ended


def stored(folder: Path, shots: tuple[int, int]) -> Problem:
    made = make_problem(Q=1101, K=12, D=16, shots=shots, seed=8)
    names = ("support", "labels", "query")
    torch.save(dict(zip(names, made.inputs(), strict=True)), folder / "task.pt")
    return made


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return stored(tmp_path, (3, 5))


def together(size: int, folder: Path, name: str) -> Tensor:
    parts = [torch.load(folder / f"found{rank}.pt", weights_only=True) for rank in range(size)]
    return torch.cat([part[name] for part in parts])


def assert_as_alone(problem: Problem, size: int, folder: Path) -> None:
    alone = problem.solve(return_prototypes=True)
    assert torch.equal(together(size, folder, "labels"), alone.labels)
    assert largest(together(size, folder, "probabilities") - alone.probabilities) < 1e-5
    first = torch.load(folder / "found0.pt", weights_only=True)
    assert largest(first["prototypes"] - alone.prototypes) < 1e-5 * float(alone.prototypes.norm())
    assert int(first["iterations"]) == int(alone.iterations)
    alone = paddle_ext.adaptive(*problem.inputs())
    assert torch.equal(together(size, folder, "adaptive"), alone.labels)
    assert largest(together(size, folder, "adaptive_probabilities") - alone.probabilities) < 1e-5


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_number_of_processes(size: int, problem: Problem, tmp_path: Path) -> None:
    for ended in run(size, tmp_path, "gloo"):
        assert ended.returncode == 0, ended.stderr
    assert_as_alone(problem, size, tmp_path)


@pytest.mark.parametrize("shots", [1, 2])
def test_few_shots(shots: int, tmp_path: Path) -> None:
    """Other metrics than that of many shots."""
    problem = stored(tmp_path, (shots, shots))
    for ended in run(2, tmp_path, "gloo"):
        assert ended.returncode == 0, ended.stderr
    assert_as_alone(problem, 2, tmp_path)


def test_a_process_that_dies_ends_the_others(problem: Problem, tmp_path: Path) -> None:
    del problem
    first, second = run(2, tmp_path, "dies")
    assert second.returncode == 1
    assert first.returncode == 1
    assert "a process of the group has ended" in first.stderr


@pytest.mark.cuda
def test_nccl(problem: Problem, tmp_path: Path) -> None:
    (ended,) = run(1, tmp_path, "nccl")
    assert ended.returncode == 0, ended.stderr
    assert_as_alone(problem, 1, tmp_path)
