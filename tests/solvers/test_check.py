"""Invalid input: the right exception, before any work, in one sentence."""

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from problems import REFUSALS
from torch._subclasses.fake_tensor import FakeTensorMode

import paddle_ext
from paddle_ext import check
from paddle_ext.solvers import backend as choice
from paddle_ext.solvers import devices, native

B, Q, S, K, D, N = 2, 5, 6, 3, 4, 11


def dense(**changes: Any) -> dict[str, Any]:
    """A valid batched call, with changes."""
    random = torch.Generator().manual_seed(0)
    call = {
        "support": torch.randn(B, S, D, generator=random),
        "support_labels": torch.arange(S).remainder(K).repeat(B, 1),
        "query": torch.randn(B, Q, D, generator=random),
    }
    return call | changes


def indexed(**changes: Any) -> dict[str, Any]:
    call = {
        "features": torch.randn(N, D, generator=torch.Generator().manual_seed(0)),
        "support_index": torch.arange(B * S).remainder(N).view(B, S),
        "support_labels": torch.arange(S).remainder(K).repeat(B, 1),
        "query_index": torch.arange(B * Q).remainder(N).view(B, Q),
    }
    return call | changes


def with_value(x: torch.Tensor, value: float, *place: int) -> torch.Tensor:
    x = x.clone()
    x[place] = value
    return x


def refused(
    function: Callable[..., object], call: dict[str, Any], error: type[Exception], *words: str
) -> None:
    """The call raises, in one sentence with these words, with and without the native code."""
    backends = [call["backend"]] if "backend" in call else ["auto", "native", "reference"]
    for backend in backends:
        with pytest.raises(error) as caught:
            function(**call | {"backend": backend})
        message = str(caught.value)
        assert caught.type in REFUSALS[error]
        assert "\n" not in message
        assert ", got " in message, message
        for word in words:
            assert word in message, message


def test_good_calls_are_good() -> None:
    assert paddle_ext.solve(**dense()).labels.shape == (B, Q)
    assert paddle_ext.solve_indexed(**indexed()).labels.shape == (B, Q)


# --- types --------------------------------------------------------------------------------------

FEATURES = [
    ([[0.0, 1.0]], "list"),
    (np.zeros((B, S, D), np.complex64), "complex64"),
    (None, "None"),
    (torch.zeros(B, S, D, dtype=torch.int64), "int64"),
    (torch.zeros(B, S, D, dtype=torch.bool), "bool"),
    (torch.zeros(B, S, D, dtype=torch.complex64), "complex64"),
]
LABELS = [
    ([0, 1, 2], "list"),
    (np.zeros((B, S), np.str_), "<U1"),
    (torch.zeros(B, S), "float32"),
    (torch.zeros(B, S, dtype=torch.bool), "bool"),
]


@pytest.mark.parametrize(("value", "got"), FEATURES)
@pytest.mark.parametrize("name", ["support", "query"])
def test_type_of_features(name: str, value: object, got: str) -> None:
    refused(paddle_ext.solve, dense(**{name: value}), TypeError, name, got)


@pytest.mark.parametrize(("value", "got"), FEATURES)
def test_type_of_bank(value: object, got: str) -> None:
    refused(paddle_ext.solve_indexed, indexed(features=value), TypeError, "features", got)


@pytest.mark.parametrize(("value", "got"), LABELS)
def test_type_of_labels(value: object, got: str) -> None:
    name = "support_labels"
    refused(paddle_ext.solve, dense(**{name: value}), TypeError, name, got)
    for name in ("support_index", "support_labels", "query_index"):
        refused(paddle_ext.solve_indexed, indexed(**{name: value}), TypeError, name, got)


# --- shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": torch.zeros(Q)}, ["query", "[Q, D] or [B, Q, D]", "got [5]"]),
        ({"query": torch.zeros(1, B, Q, D)}, ["query", "[B, Q, D]", "[1, 2, 5, 4]"]),
        ({"query": torch.tensor(1.0)}, ["query", "[Q, D]", "got []"]),
        ({"support": torch.zeros(S)}, ["support", "[S, D] or [B, S, D]", "[6]"]),
        ({"query": torch.zeros(Q, D)}, ["query", "batch dimension", "[5, 4]"]),
        ({"query": torch.zeros(3, Q, D)}, ["query", "as many tasks as support, 2", "got 3"]),
        ({"query": torch.zeros(B, Q, 9)}, ["query", "as many features as support, 4", "got 9"]),
        ({"query": torch.zeros(B, 0, D)}, ["query", "at least one row", "[2, 0, 4]"]),
        (
            {"support": torch.zeros(B, 0, D), "support_labels": torch.zeros(B, 0).long()},
            ["support", "at least one row", "[2, 0, 4]"],
        ),
        (
            {"support": torch.zeros(B, S, 0), "query": torch.zeros(B, Q, 0)},
            ["query", "at least one feature", "[2, 5, 0]"],
        ),
        (
            {"support_labels": torch.zeros(S).long()},
            ["support_labels", "one label for each row of support", "[2, 6]", "got [6]"],
        ),
        ({"support_labels": torch.zeros(B, 5).long()}, ["support_labels", "[2, 6]", "[2, 5]"]),
        (
            {"support": torch.zeros(S, D)},  # shared, with labels that are not
            ["support_labels", "[6]", "got [2, 6]"],
        ),
        ({"support": torch.zeros(B, S, D).double()}, ["query", "dtype", "float64", "got float32"]),
    ],
)
def test_shapes(changes: dict[str, Any], words: list[str]) -> None:
    refused(paddle_ext.solve, dense(**changes), ValueError, *words)
    refused(paddle_ext.solve, dense(**changes, validate=False, num_classes=K), ValueError, *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": torch.zeros(D)}, ["features", "[N, D]", "got [4]"]),
        ({"features": torch.zeros(1, N, D)}, ["features", "[N, D]", "[1, 11, 4]"]),
        ({"features": torch.zeros(0, D)}, ["features", "at least 1", "[0, 4]"]),
        ({"features": torch.zeros(N, 0)}, ["features", "at least 1", "[11, 0]"]),
        ({"query_index": torch.tensor(1)}, ["query_index", "[Q] or [B, Q]", "got []"]),
        ({"query_index": torch.zeros(Q).long()}, ["query_index", "batch dimension", "[5]"]),
        ({"query_index": torch.zeros(3, Q).long()}, ["query_index", "as many tasks", "got 3"]),
        ({"query_index": torch.zeros(B, 0).long()}, ["query_index", "at least one row"]),
        ({"support_index": torch.zeros(B, 1, S).long()}, ["support_index", "[S] or [B, S]"]),
        ({"support_labels": torch.zeros(S).long()}, ["support_labels", "support_index", "[6]"]),
    ],
)
def test_shapes_of_indices(changes: dict[str, Any], words: list[str]) -> None:
    refused(paddle_ext.solve_indexed, indexed(**changes), ValueError, *words)


# --- values of tensors --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["support", "query"])
def test_not_finite(device: str, name: str, dtype: torch.dtype) -> None:
    call = {key: x.to(device) for key, x in dense().items()}
    call |= {key: call[key].to(dtype) for key in ("support", "query")}
    backend = "auto" if device == "cpu" or dtype != torch.float64 else "reference"
    for value in (math.nan, math.inf, -math.inf):
        bad = call | {name: with_value(call[name], value, 1, 4, 2), "backend": backend}
        words = [f"{name} must be finite", f"got {value}", "at [1, 4, 2]"]
        refused(paddle_ext.solve, bad, ValueError, *words)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e30), (torch.float64, 1e290)])
def test_too_large_to_sum(dtype: torch.dtype, limit: float) -> None:
    call = dense()
    call |= {key: call[key].to(dtype) for key in ("support", "query")}
    for value in (limit / 2, -limit / 2):
        fits = call | {"query": with_value(call["query"], value, 0, 0, 0)}
        assert torch.isfinite(paddle_ext.solve(**fits).probabilities).all()
    large = call | {"query": with_value(call["query"], -2 * limit, 0, 0, 0)}
    words = [f"query must be at most {limit:g} in magnitude", f"got {-2 * limit:g} at [0, 0, 0]"]
    refused(paddle_ext.solve, large, ValueError, *words)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e31])
def test_one_bad_number_among_many(value: float) -> None:
    call = dense()
    support, query = torch.randn(2, 6, 3000), torch.randn(2, 5, 3000)
    call |= {"support": support, "support_labels": torch.tensor([[0, 1, 2] * 2] * 2)}
    fine = torch.full_like(query, 1e20)  # squares overflow, sums do not
    assert torch.isfinite(paddle_ext.solve(**call | {"query": fine}).probabilities).all()
    bad = call | {"query": with_value(query, value, 1, 4, 2999)}
    refused(paddle_ext.solve, bad, ValueError, "query must be", f"got {value:g} at [1, 4, 2999]")


def test_largest_half_fits() -> None:
    call = {key: x.half() if x.is_floating_point() else x for key, x in dense().items()}
    call["query"] = with_value(call["query"], torch.finfo(torch.float16).max, 0, 0, 0)
    assert torch.isfinite(paddle_ext.solve(**call).probabilities).all()


def test_not_finite_in_a_bank(device: str) -> None:
    call = indexed()
    call["features"] = with_value(call["features"], math.nan, 10, 3)
    call = {key: x.to(device) for key, x in call.items()}
    refused(paddle_ext.solve_indexed, call, ValueError, "features must be finite", "nan", "[10, 3]")


@pytest.mark.parametrize("label", [-1, K, 10**6, -(10**12)])
def test_label_out_of_range(device: str, label: int) -> None:
    labels = with_value(dense()["support_labels"], label, 1, 3)
    words = ["support_labels must be in [0, 3)", f"got {label}"]
    for function, call in ((paddle_ext.solve, dense()), (paddle_ext.solve_indexed, indexed())):
        call = {key: x.to(device) for key, x in call.items()}
        call |= {"support_labels": labels.to(device), "num_classes": K}
        refused(function, call, ValueError, *words)


def test_negative_label_without_number_of_classes(device: str) -> None:
    call = dense(support_labels=with_value(dense()["support_labels"], -7, 0, 0))
    call = {key: x.to(device) for key, x in call.items()}
    refused(paddle_ext.solve, call, ValueError, "support_labels must be at least 0", "got -7")


@pytest.mark.parametrize("num_classes", [None, 5])
def test_class_without_support(device: str, num_classes: int | None) -> None:
    labels = torch.tensor([[0, 1, 2, 3, 4, 0], [0, 1, 1, 3, 4, 0]])
    call = {key: x.to(device) for key, x in dense(support_labels=labels).items()}
    call["num_classes"] = num_classes
    words = ["support_labels", "every class in [0, 5)", "got none of class 2 in task 1"]
    refused(paddle_ext.solve, call, ValueError, *words)


def test_class_without_support_in_a_single_or_shared_task() -> None:
    call = dense(support=torch.zeros(S, D), support_labels=torch.tensor([0, 0, 2, 2, 3, 3]))
    refused(paddle_ext.solve, call, ValueError, "got none of class 1")
    call["query"] = call["query"][0]
    refused(paddle_ext.solve, call, ValueError, "got none of class 1")


@pytest.mark.parametrize("num_classes", [4, 2**31 - 1])
def test_more_classes_than_labels(num_classes: int) -> None:
    words = [f"[0, {num_classes})", "class 3 in task 0"]
    refused(paddle_ext.solve, dense(num_classes=num_classes), ValueError, *words)


def test_one_huge_label() -> None:
    labels = with_value(dense()["support_labels"], 2**40, 1, 3)
    refused(paddle_ext.solve, dense(support_labels=labels), ValueError, "class 3 in task 0")


@pytest.mark.parametrize("index", [-1, N, 10**9])
@pytest.mark.parametrize("name", ["support_index", "query_index"])
def test_index_out_of_range(device: str, name: str, index: int) -> None:
    call = indexed()
    call[name] = with_value(call[name], index, 1, 2)
    call = {key: x.to(device) for key, x in call.items()}
    words = [f"{name} must be in [0, 11)", f"got {index}"]
    refused(paddle_ext.solve_indexed, call, ValueError, *words)
    refused(paddle_ext.solve_indexed, call | {"num_classes": K}, ValueError, *words)


def test_without_validation_values_are_not_read() -> None:
    call = dense(query=torch.full((B, Q, D), math.nan), num_classes=K, validate=False)
    assert paddle_ext.solve(**call).probabilities.shape == (B, Q, K)


def test_without_validation_bad_values_do_no_harm(device: str) -> None:
    # Undefined results, but no crash: labels and indices are not followed out of bounds.
    call = indexed(num_classes=K, validate=False)
    call["support_labels"] = with_value(call["support_labels"], 10**9, 0, 0)
    call["support_index"] = with_value(call["support_index"], -(10**9), 0, 1)
    call["query_index"] = with_value(call["query_index"], 10**9, 1, 1)
    call = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in call.items()}
    got = paddle_ext.solve_indexed(**call)
    assert got.labels.cpu().shape == (B, Q)


def test_without_validation_the_number_of_classes_must_be_given() -> None:
    words = ["num_classes must be given with validate=False", "got None"]
    refused(paddle_ext.solve, dense(validate=False), ValueError, *words)
    refused(paddle_ext.solve_indexed, indexed(validate=False), ValueError, *words)


# --- options ------------------------------------------------------------------------------------

NUMBERS = [
    ("lam", -1.0, ">= 0"),
    ("lam", math.inf, ">= 0"),
    ("lam", math.nan, ">= 0"),
    ("lam", 10**400, ">= 0"),
    ("temperature", 0.0, "> 0"),
    ("temperature", -2, "> 0"),
    ("temperature", math.nan, "> 0"),
    ("epsilon", 0, "> 0"),
    ("epsilon", -1e-9, "> 0"),
    ("epsilon", math.inf, "> 0"),
    ("tol", -1e-9, ">= 0"),
    ("tol", math.inf, ">= 0"),
    ("max_iter", 0, "[1, 2147483647]"),
    ("max_iter", -3, "[1, 2147483647]"),
    ("max_iter", 2**31, "[1, 2147483647]"),
    ("num_classes", 0, "[1, 2147483647]"),
    ("num_classes", -1, "[1, 2147483647]"),
]


@pytest.mark.parametrize(("name", "value", "expected"), NUMBERS)
def test_numbers_out_of_range(name: str, value: float, expected: str) -> None:
    words = [name, expected, f"got {value}"]
    refused(paddle_ext.solve, dense(**{name: value}), ValueError, *words)
    refused(paddle_ext.solve_indexed, indexed(**{name: value}), ValueError, *words)


@pytest.mark.parametrize("value", [True, "1", [1], torch.tensor(1.0), 1j])
@pytest.mark.parametrize(
    "name", ["lam", "temperature", "epsilon", "tol", "max_iter", "num_classes"]
)
def test_numbers_of_another_type(name: str, value: object) -> None:
    words = [f"{name} must be", f"got {type(value).__name__}"]
    refused(paddle_ext.solve, dense(**{name: value}), TypeError, *words)


@pytest.mark.parametrize("name", ["temperature", "epsilon", "max_iter"])
def test_none_is_no_number(name: str) -> None:
    refused(paddle_ext.solve, dense(**{name: None}), TypeError, name, "got None")


@pytest.mark.parametrize("name", ["max_iter", "num_classes"])
def test_a_float_is_not_a_count(name: str) -> None:
    refused(paddle_ext.solve, dense(**{name: 3.0}), TypeError, name, "an integer", "got float")


@pytest.mark.parametrize("name", ["validate", "return_prototypes"])
@pytest.mark.parametrize("value", [1, None, "yes"])
def test_flags(name: str, value: object) -> None:
    got = "None" if value is None else type(value).__name__
    refused(paddle_ext.solve, dense(**{name: value}), TypeError, name, "True or False", got)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("scaling", "'none', 'minmax', 'auto'"),
        ("backend", "'auto', 'native', 'reference'"),
    ],
)
def test_choices(name: str, choices: str) -> None:
    for function, call in ((paddle_ext.solve, dense()), (paddle_ext.solve_indexed, indexed())):
        refused(function, call | {name: "best"}, ValueError, name, choices, "got 'best'")
        refused(function, call | {name: None}, TypeError, name, "a string", "got None")
        refused(function, call | {name: ["auto"]}, TypeError, name, "a string", "got list")


def test_options_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        paddle_ext.solve(*dense().values(), K)


def test_numbers_of_numpy_are_numbers() -> None:
    options = {"lam": np.float32(2), "temperature": np.float64(1), "tol": 0, "epsilon": 1}
    counts = {"max_iter": np.int64(3), "num_classes": np.int32(K)}
    plain = {"lam": 2.0, "tol": 0.0, "epsilon": 1.0, "max_iter": 3}
    for backend in ("native", "reference"):
        got = paddle_ext.solve(**dense(), **options, **counts, backend=backend)
        want = paddle_ext.solve(**dense(), **plain, backend=backend)
        assert torch.equal(got.probabilities, want.probabilities)
        got = paddle_ext.solve(**dense(), **options, **counts, backend=backend, validate=False)
        assert torch.equal(got.probabilities, want.probabilities)


def test_a_largest_value() -> None:
    assert check.real("rate", 1, most=1.0) == 1.0
    with pytest.raises(ValueError, match=re.escape("rate must be >= 0 and at most 1, got 1.5")):
        check.real("rate", 1.5, most=1.0)
    with pytest.raises(ValueError, match=re.escape("rate must be > 0 and at most 1, got nan")):
        check.real("rate", math.nan, positive=True, most=1.0)


def test_a_choice_and_a_flag() -> None:
    assert check.choice("mode", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match="mode must be one of 'a', 'b', got 'c'"):
        check.choice("mode", "c", ("a", "b"))
    with pytest.raises(TypeError, match="mode must be a string, got list"):
        check.choice("mode", ["a"], ("a", "b"))
    assert check.flag("wanted", True) is True
    assert check.flag("wanted", False) is False
    with pytest.raises(TypeError, match="wanted must be True or False, got int"):
        check.flag("wanted", 1)


# --- devices ------------------------------------------------------------------------------------


def test_other_devices() -> None:
    call = {key: x.to("meta") for key, x in dense().items()}
    refused(paddle_ext.solve, call, ValueError, "the CPU or a CUDA device", "got meta")
    call = {key: x.to("meta") for key, x in indexed().items()}
    refused(paddle_ext.solve_indexed, call, ValueError, "the CPU or a CUDA device", "got meta")


@pytest.mark.parametrize("name", ["support", "support_labels", "query"])
def test_different_devices(name: str) -> None:
    call = dense()
    call[name] = call[name].to("meta")
    devices = ", ".join(str(x.device) for x in call.values())
    refused(paddle_ext.solve, call, ValueError, *call, "one device", f"got {devices}")


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["support", "support_labels", "query"])
def test_different_devices_with_cuda(name: str) -> None:
    call = dense()
    call[name] = call[name].cuda()
    refused(paddle_ext.solve, call, ValueError, "one device", "cuda:0", "cpu")


@pytest.mark.parametrize("name", ["features", "support_index", "support_labels", "query_index"])
def test_different_devices_with_indices(name: str) -> None:
    call = indexed()
    call[name] = call[name].to("meta")
    refused(paddle_ext.solve_indexed, call, ValueError, name, "one device", "meta")


def fake_cuda(dtype: torch.dtype) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(1, 1, dtype=dtype, device="cuda")


def test_cuda_tensor_and_a_build_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_code_for", lambda _: False)
    monkeypatch.setattr(native, "has_cuda", lambda: False)
    with pytest.raises(ValueError, match=re.escape("PADDLE_EXT_CUDA=ON")) as caught:
        choice.uses_reference("native", fake_cuda(torch.float32))
    assert "got cuda:0" in str(caught.value)
    assert not choice.uses_reference("auto", fake_cuda(torch.float32))
    assert choice.uses_reference("reference", fake_cuda(torch.float32))
    assert choice.uses_reference("auto", fake_cuda(torch.float64))


def test_double_precision_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_code_for", lambda _: True)
    for backend in ("auto", "native"):
        assert not choice.uses_reference(backend, fake_cuda(torch.float32))
    assert choice.uses_reference("auto", fake_cuda(torch.float64))
    with pytest.raises(ValueError, match="float64") as caught:
        choice.uses_reference("native", fake_cuda(torch.float64))
    for word in ("'auto'", "'reference'", "float32", "CPU", "got 'native'"):
        assert word in str(caught.value)


# --- nothing happens on error -------------------------------------------------------------------


def test_nothing_runs_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(paddle_ext.solvers.paddle, "solve_op", never)
    monkeypatch.setattr(paddle_ext.solvers.paddle, "solve_indexed_op", never)
    monkeypatch.setattr(paddle_ext.reference, "solve", never)
    refused(paddle_ext.solve, dense(tol=-1.0), ValueError, "tol")
    refused(paddle_ext.solve, dense(num_classes=9), ValueError, "class")
    refused(paddle_ext.solve_indexed, indexed(num_classes=9), ValueError, "class")


def test_checking_leaves_the_inputs_alone() -> None:
    call = dense()
    copies = {key: x.clone() for key, x in call.items()}
    check.dense_values(*call.values(), None)
    check.dense_values(*call.values(), K)
    assert all(torch.equal(call[key], copies[key]) for key in call)


def test_float64_on_cuda_is_said_once() -> None:
    """Without a GPU: a stand-in for the tensor."""

    class OnCuda:
        is_cuda, dtype, device = True, torch.float64, "cuda:0"

    choice.warn_of_the_reference.cache_clear()
    with pytest.warns(UserWarning, match="float64 on CUDA has no native code"):
        assert choice.uses_reference("auto", OnCuda())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choice.uses_reference("auto", OnCuda())
        assert choice.uses_reference("reference", OnCuda())
    with pytest.raises(ValueError, match="backend must be 'auto' or 'reference' for float64"):
        choice.uses_reference("native", OnCuda())
