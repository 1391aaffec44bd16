"""The torch operators called directly, without the checks of the public functions."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rounds
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from paddle_ext import check
from paddle_ext.research import sampler
from paddle_ext.solvers.paddle_operators import solve_indexed_op, solve_op
from paddle_ext.solvers.sinkhorn_operators import sinkhorn_op
from paddle_ext.solvers.tim_operators import SOLVERS, tim_op

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "tests/fuzz"
BAD_VALUES = (-1, 4, 2**31, 2**32, 2**62, -(2**63))

OPTIONS = {
    "lam": 2.0,
    "scaling": 1,
    "temperature": 1.0,
    "epsilon": 1e-6,
    "max_iter": 7,
    "tol": 1e-6,
    "prototypes": False,
}


def solve_call(device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    labels = torch.arange(4, device=device).expand(3, 4)
    return {
        "support": torch.randn(3, 4, 5, device=device),
        "support_labels": labels,
        "query": torch.randn(3, 6, 5, device=device),
        "num_classes": 4,
        **OPTIONS,
    }


def indexed_call(device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    labels = torch.arange(4, device=device).expand(3, 4)
    return {
        "features": torch.randn(10, 5, device=device),
        "support_index": labels.clone(),
        "support_labels": labels,
        "query_index": torch.randint(10, (3, 6)).to(device),
        "num_classes": 4,
        **OPTIONS,
    }


def tim_call(device: str) -> dict[str, Any]:
    call = solve_call(device)
    for name in OPTIONS:
        del call[name]
    return call | {
        "solver": 0,
        "normalize": True,
        "temperature": 15.0,
        "weights": [1.0, 0.3, 1.0],
        "alphas": [1.0, 1.0, 1.0],
        "learning_rate": 1e-4,
        "max_iter": 5,
        "losses": False,
    }


def sinkhorn_call(device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "cost": torch.rand(3, 6, 4, device=device),
        "row_mass": torch.full((6,), 2.0, device=device),
        "col_mass": torch.full((3, 4), 3.0, device=device),
        "reg": 0.1,
        "max_iter": 5,
        "tol": 1e-6,
    }


CALLS = {
    "solve": (solve_op, solve_call),
    "solve_indexed": (solve_indexed_op, indexed_call),
    "tim": (tim_op, tim_call),
    "sinkhorn": (sinkhorn_op, sinkhorn_call),
}


def refused(name: str, device: str, **changes: Any) -> str:
    """The operator rejects the changed call in one sentence, and so does its fake kernel."""
    operator, make = CALLS[name]
    call = make(device) | changes
    with pytest.raises((TypeError, ValueError)) as caught:
        operator(*call.values())
    sentence = str(caught.value)
    assert "\n" not in sentence
    tensors = [x for x in call.values() if isinstance(x, Tensor)]
    if not any(x.is_meta for x in tensors):
        with FakeTensorMode() as mode, pytest.raises((TypeError, ValueError)) as caught:
            operator(*(mode.from_tensor(x) if isinstance(x, Tensor) else x for x in call.values()))
        assert str(caught.value) == sentence
    return sentence


@pytest.mark.parametrize("name", CALLS)
def test_sound_calls(name: str, device: str) -> None:
    operator, make = CALLS[name]
    first, second = operator(*make(device).values()), operator(*make(device).values())
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert one is not other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_no_result_is_shared(name: str, dtype: torch.dtype) -> None:
    operator, make = CALLS[name]
    call = {
        k: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
        for k, x in make("cpu").items()
    }
    results = [*operator(*call.values()), *operator(*call.values())]
    assert len({id(x) for x in results}) == len(results)
    held = [x.untyped_storage().data_ptr() for x in results if x.numel()]
    assert len(set(held)) == len(held)
    for x in results:
        x.fill_(0)  # belongs to the caller


@pytest.mark.parametrize("name", ["solve", "tim"])
def test_sizes_of_dense_tasks(name: str, device: str) -> None:
    support, query = torch.ones(3, 4, 5, device=device), torch.ones(3, 6, 5, device=device)
    labels = torch.zeros(3, 4, dtype=torch.int64, device=device)
    for changes, words in (
        ({"query": query[:, :0]}, "query must have at least one row"),
        (
            {"support": support[:, :0], "support_labels": labels[:, :0]},
            "support must have",
        ),
        ({"support": support[..., :0], "query": query[..., :0]}, "at least one feature"),
        ({"support": support[..., :3]}, "as many features as support"),
        ({"support_labels": labels[:, :3]}, "one label for each row"),
        ({"support": support[:2], "support_labels": labels[:2]}, "as many tasks as support"),
        ({"query": query[0]}, "query must have a batch dimension"),
        ({"query": query[None]}, "query must have shape"),
        ({"query": query[0, 0]}, "query must have shape"),
        ({"support": support[None]}, "support must have shape"),
        ({"num_classes": 0}, "num_classes must be"),
        ({"num_classes": -1}, "num_classes must be"),
        ({"num_classes": 2**31}, "num_classes must be"),
    ):
        assert words in refused(name, device, **changes)


def test_sizes_of_indexed_tasks(device: str) -> None:
    rows, bank = (
        torch.zeros(3, 4, dtype=torch.int64, device=device),
        torch.ones(9, 5, device=device),
    )
    for changes, words in (
        ({"features": bank[:0]}, "features must have shape [N, D]"),
        ({"features": bank[:, :0]}, "features must have shape [N, D]"),
        ({"features": bank[0]}, "features must have shape [N, D]"),
        ({"query_index": rows[:, :0]}, "query_index must have at least one row"),
        ({"support_index": rows[:2]}, "support_labels must have one label for each row"),
        ({"support_index": rows[:2], "support_labels": rows[:2]}, "as many tasks"),
        ({"support_labels": rows[:, :3]}, "one label for each row"),
        ({"query_index": rows.float()}, "query_index must be a tensor of integers"),
        ({"num_classes": 0}, "num_classes must be"),
    ):
        assert words in refused("solve_indexed", device, **changes)


def test_sizes_of_transport(device: str) -> None:
    cost = torch.ones(3, 6, 4, device=device)
    for changes, words in (
        ({"cost": cost[:, :0]}, "cost must have shape"),
        ({"cost": cost[..., :0]}, "cost must have shape"),
        ({"cost": cost[None]}, "cost must have shape"),
        ({"cost": cost[0, 0]}, "cost must have shape"),
        ({"row_mass": torch.ones(5, device=device)}, "row_mass must have shape [6] or [3, 6]"),
        ({"row_mass": torch.ones(2, 6, device=device)}, "row_mass must have shape"),
        ({"col_mass": torch.ones(6, device=device)}, "col_mass must have shape [4] or [3, 4]"),
        (
            {"col_mass": torch.ones(3, 4, dtype=torch.int64, device=device)},
            "col_mass must be float",
        ),
    ):
        assert words in refused("sinkhorn", device, **changes)


def test_dtypes(device: str) -> None:
    call = solve_call(device)
    for name in ("solve", "tim"):
        assert "dtype of support, float32, got float64" in refused(
            name, device, query=call["query"].double()
        )
        assert "dtype of support, float64, got float32" in refused(
            name, device, support=call["support"].double()
        )
        assert "must be float16" in refused(name, device, support=call["support_labels"])
        assert "tensor of integers" in refused(
            name, device, support_labels=call["support_labels"].float()
        )


@pytest.mark.parametrize("name", CALLS)
def test_devices(name: str) -> None:
    for argument, x in CALLS[name][1]("cpu").items():
        if isinstance(x, Tensor):
            assert "must be on one device" in refused(name, "cpu", **{argument: x.to("meta")})


@pytest.mark.parametrize(
    ("name", "argument", "values"),
    [
        ("solve", "lam", (-1.0, float("nan"), float("inf"))),
        ("solve", "scaling", (-1, 3, 2**40)),
        ("solve", "temperature", (0.0, -1.0, float("nan"), float("inf"))),
        ("solve", "epsilon", (0.0, -1e-6, float("nan"))),
        ("solve", "max_iter", (0, -1, 2**31, 2**62)),
        ("solve", "tol", (-1e-6, float("nan"))),
        ("solve_indexed", "scaling", (-1, 3)),
        ("solve_indexed", "max_iter", (0, 2**31)),
        ("sinkhorn", "reg", (0.0, -1.0, float("nan"), float("inf"))),
        ("sinkhorn", "max_iter", (0, 2**31)),
        ("sinkhorn", "tol", (-1.0, float("nan"))),
        ("tim", "solver", (-1, 2)),
        ("tim", "temperature", (0.0, float("nan"))),
        ("tim", "weights", ([], [1.0], [1.0] * 4, [1.0, -1.0, 1.0], [float("nan")] * 3)),
        ("tim", "alphas", ([], [1.0] * 4, [0.0, 1.0, 1.0])),
        ("tim", "learning_rate", (0.0, float("inf"))),
        ("tim", "max_iter", (0, 2**31)),
    ],
)
def test_options(name: str, argument: str, values: tuple[Any, ...]) -> None:
    for value in values:
        assert refused(name, "cpu", **{argument: value}).startswith(f"{argument}")


@pytest.mark.parametrize("bad", BAD_VALUES)
@pytest.mark.parametrize("name", [name for name in CALLS if name != "sinkhorn"])
def test_labels_and_indices_out_of_range(name: str, bad: int, device: str) -> None:
    """The public functions reject them; here they must only not become addresses."""
    operator, make = CALLS[name]
    for argument in ("support_labels", "support_index", "query_index"):
        call = make(device)
        if argument not in call:
            continue
        call[argument] = call[argument].clone()
        call[argument][1, 2] = bad
        labels, probabilities, *_ = operator(*call.values())
        assert bool(((labels >= 0) & (labels < 4)).all())
        assert bool(probabilities.isfinite().all())
        assert torch.allclose(probabilities.sum(-1), torch.ones(3, 6, device=device), atol=1e-3)
        sound = operator(*make(device).values())
        for task in (0, 2):
            assert torch.equal(probabilities[task], sound[1][task])


def test_no_tasks(device: str) -> None:
    for operator, make in CALLS.values():
        call = make(device)
        for name, x in call.items():
            if isinstance(x, Tensor) and name != "features" and x.shape[0] == 3:
                call[name] = x[:0]
        if "num_classes" in call:
            call["num_classes"] = 0
        assert all(0 in x.shape for x in operator(*call.values()))


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
    index = torch.tensor([0, 3, 3, 2])
    labels, query = torch.tensor([0, 1, 0, 1]), torch.tensor([4, 4, 0])
    for dtype in (torch.float32, torch.float64) if device == "cpu" else (torch.float32,):
        inputs = (x.to(device) for x in (features.to(dtype), index, labels, query))
        bank, *rows = inputs
        for max_iter in range(1, 12):
            out = solve_indexed_op(bank, *rows, 2, 2.0, 0, 50.0, 1e-6, max_iter, 0.0, False)
            assert torch.allclose(out[1].sum(-1).cpu(), torch.ones(3, dtype=dtype))


def enumeration(name: str) -> list[str]:
    """The names of an enumeration in C++, in the order of their numbers, without their k."""
    header = (ROOT / "csrc/common/params.h").read_text()
    (body,) = re.findall(rf"enum class {name} : int {{(.+?)}};", header, re.DOTALL)
    found = re.findall(r"k(\w+) = (\d+)", body)
    assert [int(number) for _, number in found] == list(range(len(found)))
    return [word.lower() for word, _ in found]


@pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="needs the sources")
def test_numbers_are_those_of_the_native_code() -> None:
    assert enumeration("Scaling") == list(check.SCALINGS)
    assert enumeration("Prior") == list(check.PRIORS)
    assert enumeration("Sampling") == list(sampler.SAMPLINGS)
    assert enumeration("DType") == [check.plain(dtype) for dtype in check.DTYPES]
    assert list(check.DTYPES.values()) == [0, 1, 2, 3]
    assert (enumeration("TimSolver"), SOLVERS) == (["gradient", "alternating"], ("gd", "adm"))


def fuzz(folder: Path, script: str, calls: int, seed: int) -> dict[str, int]:
    """Outcomes of random calls, counted; the process that makes them must survive."""
    numbers = ["--calls", str(calls), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", FUZZ / script, *numbers],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60 + calls // 20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return {outcome: int(count) for count, outcome in lines}


def test_random_calls(tmp_path: Path) -> None:
    counts = fuzz(tmp_path, "operators.py", 3000, 0)
    assert sum(counts.values()) == 3000
    for name in ("adaptive", "solve", "solve_indexed", "tim", "sinkhorn"):
        assert counts[f"{name}: answered"] > 100
        assert counts[f"{name}: ValueError"] > 50


def test_random_calls_of_the_bindings(tmp_path: Path) -> None:
    counts = fuzz(tmp_path, "bindings.py", 2000, 0)
    assert sum(counts.values()) == 2000
    assert counts["sampler: drawn"] > 20
    assert counts["sampler: ValueError"] > 20


def test_random_layouts(tmp_path: Path) -> None:
    counts = fuzz(tmp_path, "layouts.py", 30, 0)
    for name in ("adapt", "adaptive", "tim"):
        assert counts[f"{name}: tasks"] > 2
        assert counts[f"of them {name}: a task alone has another result"] == 0


def test_calls_count_at_once_if_time_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    def calls() -> Iterator[Counter[str]]:
        yield Counter(["solve: answered"])
        yield Counter(["tim: answered"])
        raise AssertionError("a call that fails")

    assert rounds.counted(calls(), 0.0) == {"solve: answered": 1}
    with pytest.raises(AssertionError, match="a call that fails"):
        rounds.counted(calls(), 1e9)
    lines = capsys.readouterr().out.splitlines()
    counts = [line for line in lines if not line.startswith("first call after ")]
    assert counts == [f"      1 {name}: answered" for name in ("solve", "solve", "tim")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_random_calls(tmp_path: Path, seed: int) -> None:
    fuzz(tmp_path, "layouts.py", 1500, seed)
    fuzz(tmp_path, "operators.py", 20_000, seed)
    fuzz(tmp_path, "bindings.py", 5000, seed)
