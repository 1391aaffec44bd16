"""The call of native code: addresses and streams; the loading of the module; fuzzers."""

import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from in_memory import between_addresses
from problems import make_problem
from scripts import run_code
from torch import Tensor

import paddle_ext
from paddle_ext import check
from paddle_ext.native import call as calls
from paddle_ext.native import load as native
from paddle_ext.research import sampler
from paddle_ext.solvers.tim import SOLVERS

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "tests/fuzz"


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(3, 2),
        torch.ones(6),
        torch.ones(3, 2).T,
        torch.ones(2, 4)[:, :3],
        torch.ones(2, 3, device="meta"),
        between_addresses(torch.ones(2, 3)),
    ],
    ids=["dtype", "shape", "rank", "order", "stride", "device", "alignment"],
)
def test_native_code_gets_no_other_tensor(x: Tensor) -> None:
    assert calls.pointer(torch.ones(2, 3), torch.float32, (2, 3), calls.ON_CPU)
    with pytest.raises(AssertionError, match=r"expected a contiguous tensor of torch.float32"):
        calls.pointer(x, torch.float32, (2, 3), calls.ON_CPU)


def test_sleeping_class_with_a_large_logit(device: str) -> None:
    """If logits are far apart, a class that held nothing may be the nearest in the next step."""
    features = torch.tensor(
        [
            [-7392.1035, 11676.6475],
            [1273.5884, -5465.873],
            [4784.6987, 16390.2109],
            [-9736.6455, -2520.5024],
            [2840.9314, 724.7914],
        ]
    )
    rows = torch.tensor([0, 3, 3, 2]), torch.tensor([0, 1, 0, 1]), torch.tensor([4, 4, 0])
    options = {"num_classes": 2, "lam": 2.0, "scaling": "none", "temperature": 50.0, "tol": 0.0}
    for dtype in (torch.float32, torch.float64) if device == "cpu" else (torch.float32,):
        inputs = [x.to(device) for x in (features.to(dtype), *rows)]
        for max_iter in range(1, 12):
            found = paddle_ext.solve_indexed(*inputs, **options, max_iter=max_iter)
            assert torch.allclose(found.probabilities.sum(-1).cpu(), torch.ones(3, dtype=dtype))


@pytest.mark.cuda
def test_stream_is_the_current_one() -> None:
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            assert calls.target(torch.ones(1, device="cuda")).stream == stream.cuda_stream


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
    with pytest.raises(ImportError, match=r"pip install .*paddle_ext\.reference"):
        problem.solve()
    with pytest.raises(ImportError, match="pip install"):
        paddle_ext.build_info()
    assert paddle_ext.reference.solve(*problem.inputs()).labels.shape == (12,)
    method = paddle_ext.methods.create("simpleshot")  # in torch
    assert method.predict(*problem.inputs()).labels.shape == (12,)


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


def enumeration(name: str) -> list[str]:
    """The names of an enumeration in C++, in the order of their numbers, without their k."""
    header = (ROOT / "csrc/common/params.h").read_text()
    (body,) = re.findall(rf"enum class {name} : int {{(.+?)}};", header, re.DOTALL)
    entries = re.findall(r"k(\w+) = (\d+)", body)
    assert [int(number) for _, number in entries] == list(range(len(entries)))
    return [word.lower() for word, _ in entries]


@pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="needs the sources")
def test_numbers_are_those_of_the_native_code() -> None:
    assert enumeration("Scaling") == list(check.SCALINGS)
    assert enumeration("Prior") == list(check.PRIORS)
    assert enumeration("Sampling") == list(sampler.SAMPLINGS)
    assert enumeration("DType") == [check.plain(dtype) for dtype in calls.DTYPES]
    assert list(calls.DTYPES.values()) == [0, 1, 2, 3]
    assert (enumeration("TimSolver"), SOLVERS) == (["gradient", "alternating"], ("gd", "adm"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"K": None}, "mean_call() needs the argument 'K'"),
        ({"K": "x"}, "mean_call(): K must be int, got 'x'"),
        ({"steps": 2**40}, "mean_call(): steps must be int, got 1099511627776"),
        ({"target": 1}, "mean_call(): target must be Target, got 1"),
        ({"rows": 0}, "mean_call() got an unexpected argument 'rows'"),
    ],
)
def test_native_code_says_which_argument_is_wrong(changes: dict[str, Any], words: str) -> None:
    """One that is missing, of another type, too large, or unknown."""
    given = {"target": calls.target(torch.ones(1)), "K": 3, "steps": 2, **changes}
    with pytest.raises(TypeError, match=f"^{re.escape(words)}$"):
        native.module.mean_call(**{name: x for name, x in given.items() if x is not None})


def test_native_code_runs_with_all_its_pointers_only() -> None:
    call = native.module.mean_call(target=calls.target(torch.ones(1)), K=3, steps=2)
    with pytest.raises(TypeError, match=r"^run\(\) needs the argument 'measure'$"):
        call.run(held=torch.ones(3, dtype=torch.float64).data_ptr())


# --- fuzzers ------------------------------------------------------------------------------------


# One after the other: a process of its own for each would load torch again.
CODE = """
import runpy, sys
folder, seed, *counts = sys.argv[1:]
sys.path.insert(0, folder)
for count in counts:
    script, calls = count.split("=")
    sys.argv = [script, "--calls", calls, "--seed", seed]
    runpy.run_path(f"{folder}/{script}.py", run_name="__main__")
"""


def fuzz(folder: Path, seed: int, **counts: int) -> Counter[str]:
    """Outcomes of random calls, counted; the process that makes them must survive."""
    scripts = [f"{script}={count}" for script, count in counts.items()]
    timeout = 60 + sum(counts.values()) // 20
    told = run_code(
        CODE, FUZZ, seed, *scripts, cwd=folder, timeout=timeout, PYTHONWARNINGS="ignore"
    )
    outcomes = Counter[str]()  # of all scripts
    for number, outcome in (line.split(maxsplit=1) for line in told):
        outcomes[outcome] += int(number)
    return outcomes


def test_random_calls(tmp_path: Path) -> None:
    counts = fuzz(tmp_path, 0, functions=600, bindings=400, layouts=20)
    for name in ("adaptive", "solve", "solve_indexed", "tim", "sinkhorn"):
        assert counts[f"{name}: answered"] > 20
        assert counts[f"{name}: ValueError"] > 10
    assert counts["sampler: drawn"] > 3
    assert counts["sampler: ValueError"] > 5
    for name in ("adapt", "adaptive", "tim"):
        assert counts[f"{name}: tasks"] > 2
        assert counts[f"of them {name}: a task alone has another result"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_random_calls(tmp_path: Path, seed: int) -> None:
    fuzz(tmp_path, seed, layouts=1500, functions=20_000, bindings=5000)
