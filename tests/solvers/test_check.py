"""Invalid input: the right exception, before any work, in one sentence."""

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import paddle_ext
from paddle_ext import check
from paddle_ext.native import call as calls

B, Q, S, K, D, N = 2, 5, 6, 3, 4, 11
Change = dict[str, Any]


def dense(**changes: Any) -> Change:
    """A valid batched call, with changes."""
    random = torch.Generator().manual_seed(0)
    call = {
        "support": torch.randn(B, S, D, generator=random),
        "support_labels": torch.arange(S).remainder(K).repeat(B, 1),
        "query": torch.randn(B, Q, D, generator=random),
    }
    return call | changes


def indexed(**changes: Any) -> Change:
    call = {
        "features": torch.randn(N, D, generator=torch.Generator().manual_seed(0)),
        "support_index": torch.arange(B * S).remainder(N).view(B, S),
        "support_labels": torch.arange(S).remainder(K).repeat(B, 1),
        "query_index": torch.arange(B * Q).remainder(N).view(B, Q),
    }
    return call | changes


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Change]]] = {
    "solve": (paddle_ext.solve, dense),
    "solve_indexed": (paddle_ext.solve_indexed, indexed),
}


def with_value(x: torch.Tensor, value: float, *place: int) -> torch.Tensor:
    x = x.clone()
    x[place] = value
    return x


def on(device: str, call: Change) -> Change:
    return {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in call.items()}


def refused(name: str, call: Change, error: type[Exception], *words: str) -> None:
    """The call raises, in one sentence with these words."""
    with pytest.raises(error) as caught:
        CALLS[name][0](**call)
    message = str(caught.value)
    assert "\n" not in message
    assert ", got " in message, message
    for word in words:
        assert word in message, message


# --- shapes, options and devices ------------------------------------------------------------------

SHAPES: list[tuple[str, Change, list[str]]] = [
    ("solve", {"query": torch.zeros(Q)}, ["query", "[Q, D] or [B, Q, D]", "got [5]"]),
    ("solve", {"support": torch.zeros(S)}, ["support", "[S, D] or [B, S, D]", "[6]"]),
    ("solve", {"query": torch.zeros(Q, D)}, ["query", "batch dimension", "[5, 4]"]),
    ("solve", {"query": torch.zeros(3, Q, D)}, ["query", "as many tasks as support, 2", "got 3"]),
    ("solve", {"query": torch.zeros(B, Q, 9)}, ["query", "features as support, 4", "got 9"]),
    ("solve", {"query": torch.zeros(B, 0, D)}, ["query", "at least one row", "[2, 0, 4]"]),
    (
        "solve",
        {"support": torch.zeros(B, 0, D), "support_labels": torch.zeros(B, 0).long()},
        ["support", "at least one row", "[2, 0, 4]"],
    ),
    (
        "solve",
        {"support": torch.zeros(B, S, 0), "query": torch.zeros(B, Q, 0)},
        ["query", "at least one feature", "[2, 5, 0]"],
    ),
    (
        "solve",
        {"support_labels": torch.zeros(S).long()},
        ["support_labels", "one label for each row of support", "[2, 6]", "got [6]"],
    ),
    # Shared, with labels that are not.
    ("solve", {"support": torch.zeros(S, D)}, ["support_labels", "[6]", "got [2, 6]"]),
    ("solve", {"support": torch.zeros(B, S, D).double()}, ["query", "float64", "got float32"]),
    ("solve_indexed", {"features": torch.zeros(D)}, ["features", "[N, D]", "got [4]"]),
    ("solve_indexed", {"features": torch.zeros(N, 0)}, ["features", "at least 1", "[11, 0]"]),
    ("solve_indexed", {"query_index": torch.tensor(1)}, ["query_index", "[Q] or [B, Q]", "got []"]),
    ("solve_indexed", {"query_index": torch.zeros(3, Q).long()}, ["as many tasks", "got 3"]),
    ("solve_indexed", {"support_index": torch.zeros(B, 1, S).long()}, ["[S] or [B, S]"]),
    ("solve_indexed", {"support_labels": torch.zeros(S).long()}, ["support_index", "[6]"]),
]


@pytest.mark.parametrize(("name", "changes", "words"), SHAPES)
def test_shapes(name: str, changes: Change, words: list[str]) -> None:
    make = CALLS[name][1]
    refused(name, make(**changes), ValueError, *words)
    refused(name, make(**changes, validate=False, num_classes=K), ValueError, *words)


def test_choices_and_keywords() -> None:
    choices = "scaling must be one of 'none', 'minmax', 'auto', got 'minmix'"
    with pytest.raises(ValueError, match=re.escape(f"{choices} (did you mean 'minmax'?)")):
        paddle_ext.solve(**dense(scaling="minmix"))
    with pytest.raises(TypeError, match="positional"):
        paddle_ext.solve(*dense().values(), K)


def test_a_largest_value() -> None:
    assert check.real("rate", 1, most=1.0) == 1.0
    with pytest.raises(ValueError, match=re.escape("rate must be >= 0 and at most 1, got 1.5")):
        check.real("rate", 1.5, most=1.0)
    with pytest.raises(ValueError, match=re.escape("rate must be > 0 and at most 1, got nan")):
        check.real("rate", math.nan, positive=True, most=1.0)


def test_numbers_of_numpy_are_numbers() -> None:
    options = {"lam": np.float32(2), "temperature": np.float64(1), "tol": 0, "epsilon": 1}
    counts = {"max_iter": np.int64(3), "num_classes": np.int32(K)}
    want = paddle_ext.solve(**dense(), lam=2.0, tol=0.0, epsilon=1.0, max_iter=3)
    for validate in (True, False):
        got = paddle_ext.solve(**dense(), **options, **counts, validate=validate)
        assert torch.equal(got.probabilities, want.probabilities)
        assert type(got.lam) is float


@pytest.mark.parametrize("name", CALLS)
def test_devices(name: str) -> None:
    make = CALLS[name][1]
    everywhere = "the CPU or a CUDA device", "got meta"
    refused(name, on("meta", make()), ValueError, *everywhere)
    for argument in make():
        call = make()
        call[argument] = call[argument].to("meta")
        got = ", ".join(str(x.device) for x in call.values())
        refused(name, call, ValueError, *call, "one device", f"got {got}")
        if torch.cuda.is_available():
            call[argument] = make()[argument].cuda()
            refused(name, call, ValueError, "one device", "cuda:0", "cpu")


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("argument", ["support", "query"])
def test_not_finite(device: str, argument: str, dtype: torch.dtype) -> None:
    call = on(device, dense())
    call |= {key: call[key].to(dtype) for key in ("support", "query")}
    for value in (math.nan, math.inf, -math.inf):
        bad = call | {argument: with_value(call[argument], value, 1, 4, 2)}
        words = [f"{argument} must be finite", f"got {value}", "at [1, 4, 2]"]
        refused("solve", bad, ValueError, *words)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e30), (torch.float64, 1e290)])
def test_too_large_to_sum(dtype: torch.dtype, limit: float) -> None:
    call = dense()
    call |= {key: call[key].to(dtype) for key in ("support", "query")}
    for value in (limit / 2, -limit / 2):
        fits = call | {"query": with_value(call["query"], value, 0, 0, 0)}
        assert torch.isfinite(paddle_ext.solve(**fits).probabilities).all()
    large = call | {"query": with_value(call["query"], -2 * limit, 0, 0, 0)}
    words = [f"query must be at most {limit:g} in magnitude", f"got {-2 * limit:g} at [0, 0, 0]"]
    refused("solve", large, ValueError, *words)


@pytest.mark.parametrize("name", CALLS)
def test_labels(name: str, device: str) -> None:
    make = CALLS[name][1]
    labels = make()["support_labels"]
    for label in (-1, K, 10**6, -(10**12)):
        call = make(support_labels=with_value(labels, label, 1, 3), num_classes=K)
        words = "support_labels must be in [0, 3)", f"got {label}"
        refused(name, on(device, call), ValueError, *words)
    call = make(support_labels=with_value(labels, -7, 0, 0))
    refused(name, on(device, call), ValueError, "support_labels must be at least 0", "got -7")
    missing = torch.tensor([[0, 1, 2, 3, 4, 0], [0, 1, 1, 3, 4, 0]])
    for num_classes in (None, 5):
        call = make(support_labels=missing, num_classes=num_classes)
        words = "every class in [0, 5)", "got none of class 2 in task 1"
        refused(name, on(device, call), ValueError, *words)
    for num_classes in (4, 2**31 - 1):
        words = f"[0, {num_classes})", "class 3 in task 0"
        refused(name, make(num_classes=num_classes), ValueError, *words)
    huge = with_value(labels, 2**40, 1, 3)
    refused(name, make(support_labels=huge), ValueError, "class 3 in task 0")


def test_class_without_support_in_a_single_or_shared_task() -> None:
    call = dense(support=torch.zeros(S, D), support_labels=torch.tensor([0, 0, 2, 2, 3, 3]))
    refused("solve", call, ValueError, "got none of class 1")
    refused("solve", call | {"query": call["query"][0]}, ValueError, "got none of class 1")


def test_without_validation() -> None:
    for name, (_, make) in CALLS.items():
        words = "num_classes must be given with validate=False", "got None"
        refused(name, make(validate=False), ValueError, *words)


def test_nothing_runs_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(paddle_ext.solvers.paddle, "call_native", never)
    refused("solve", dense(tol=-1.0), ValueError, "tol")
    refused("solve", dense(num_classes=9), ValueError, "class")
    refused("solve_indexed", indexed(num_classes=9), ValueError, "class")


# --- the native pass over values ----------------------------------------------------------------


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """The same numbers, starting this many numbers after an aligned address."""
    memory = x.new_empty(x.numel() + by)
    return memory[by:].copy_(x.flatten()).view(x.shape)


def rows_of(device: str, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Labels, support, query; an odd width lets rows start anywhere."""
    shapes = (B, S, width), (B, Q, width)
    rows = (torch.randn(shape).to(device, dtype) for shape in shapes)
    return dense()["support_labels"].to(device), *rows


@pytest.mark.parametrize("width", [1, 7, 8, 1000])
@pytest.mark.parametrize("dtype", list(calls.DTYPES))
def test_valid_values(device: str, dtype: torch.dtype, width: int) -> None:
    labels, support, query = rows_of(device, width, dtype)
    for by in range(9):
        seen = labels, shifted(support, by), shifted(query, by + 1)
        assert check.classes_of_valid(*seen) == K
        assert check.classes_of_valid(*seen, query[0, 0]) == K
    for given in (None, K):
        assert check.dense_values(support, labels, query, given) == K
        assert check.dense_values(support[0], labels[0].to(torch.uint8), query, given) == K
        # Other layouts are left to torch.
        assert check.dense_values(support, labels, query.mT.contiguous().mT, given) == K


@pytest.mark.parametrize("dtype", list(calls.DTYPES))
def test_one_bad_number_anywhere(device: str, dtype: torch.dtype) -> None:
    labels, support, query = rows_of(device, 7, dtype)
    limit = check.LARGEST_FEATURE[dtype]
    values = [math.nan, -math.nan, math.inf, -math.inf]
    values += [] if dtype is torch.float16 else [2 * limit]
    for by in (0, 1, 3):
        seen = shifted(support, by), shifted(query, by)
        for x in seen:
            flat = x.view(-1)
            for at in {*range(20), 53, *range(len(flat) - 20, len(flat))}:
                before = flat[at].clone()
                for value in values:
                    flat[at] = value
                    assert check.classes_of_valid(labels, *seen) == 0, (at, value)
                flat[at] = before
    if dtype in (torch.float32, torch.float64):  # the limit is exact
        exact = torch.tensor(limit, dtype=dtype)
        for end in (0.0, math.inf):
            value = torch.nextafter(exact, torch.tensor(end, dtype=dtype))
            query[1, 4, 6] = -value
            valid = value.item() <= limit
            assert check.classes_of_valid(labels, support, query) == (K if valid else 0)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 2000, 65536, 65537])
def test_any_number_of_classes(device: str, count: int) -> None:
    x = torch.zeros(count, 1, device=device)
    by_torch = device == "cuda" and count > 65536
    for classes in {1, 2, 32, count // 2 + 1, count - 1, count} & set(range(1, count + 1)):
        labels = torch.arange(count).remainder(classes)[torch.randperm(count)].to(device)
        assert check.classes_of_valid(labels, x, x) == (0 if by_torch else classes)
        assert check.dense_values(x, labels, x, None) == classes


def test_one_bad_task_of_many(device: str) -> None:
    labels = torch.stack([torch.randperm(40) % 20 for _ in range(1500)]).to(device)
    support, query = torch.zeros(1500, 40, 3, device=device), torch.zeros(1500, 2, 3, device=device)
    assert check.classes_of_valid(labels, support, query) == 20
    for bad in (0, 777, 1499):
        changed = labels.clone()
        changed[bad][changed[bad] == 19] = 18  # every class of its own, but one fewer
        assert check.classes_of_valid(changed, support, query) == 0
        with pytest.raises(ValueError, match=f"got none of class 19 in task {bad}$"):
            check.dense_values(support, changed, query, None)


def test_one_bad_label_anywhere(device: str) -> None:
    labels, support, query = rows_of(device, 7, torch.float32)
    for label in (-1, K, S - 1, S, 2**31, 2**32, 2**40, -(2**63), 2**63 - 1):
        for place in ((0, 0), (1, 3), (B - 1, S - 1)):
            changed = with_value(labels, label, *place)
            assert check.classes_of_valid(changed, support, query) == 0


def test_values_of_no_task(device: str) -> None:
    labels, support, query = rows_of(device, 7, torch.float32)
    assert check.dense_values(support[:0], labels[:0], query[:0], None) == 0
    assert check.dense_values(support[:0], labels[:0], query[:0], 9) == 9
    assert check.dense_values(support[0], labels[0], query[:0], None) == K


def test_values_on_a_gpu_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods in torch need none, so that torch checks the values."""

    class OnGpu(torch.Tensor):
        is_cuda = True

    def unbuilt(_: int) -> bool:
        raise ImportError("the native module of paddle_ext is not built")

    monkeypatch.setattr(check, "has_code_for", unbuilt)
    assert check.classes_of_valid(torch.arange(3).as_subclass(OnGpu), torch.ones(3, 2)) == 0


@pytest.mark.cuda
@pytest.mark.parametrize("num_classes", [None, K])
@pytest.mark.parametrize("name", ["solve", "solve_indexed"])
def test_one_synchronisation(name: str, num_classes: int | None) -> None:
    make = {"solve": dense, "solve_indexed": indexed}[name]
    call = on("cuda", make(num_classes=num_classes))
    solve = getattr(paddle_ext, name)
    solve(**call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.cuda.set_sync_debug_mode("warn")
            solve(**call)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    assert len(waits) == 1


@pytest.mark.cuda
def test_in_the_current_stream() -> None:
    labels, support, query = rows_of("cuda", 7, torch.float32)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        query[1, 4, 6] = math.nan
        assert check.classes_of_valid(labels, support, query) == 0
