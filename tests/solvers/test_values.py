"""The native pass over labels and features: what it accepts, and that torch says what is wrong."""

import math
import warnings

import pytest
import torch
from places import on_devices
from torch import Tensor

import paddle_ext
from paddle_ext import check
from paddle_ext.native.values import classes_of_valid, dense_values

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
B, S, Q, K = 3, 8, 5, 4


def task(device: str, D: int = 7, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Labels, support, query; D is odd, so that rows start anywhere."""
    labels = torch.arange(S).remainder(K).repeat(B, 1)
    return [
        labels.to(device),
        torch.randn(B, S, D).to(device, dtype),
        torch.randn(B, Q, D).to(device, dtype),
    ]


def same_sentence(labels: Tensor, support: Tensor, query: Tensor, K: int | None) -> str:
    """The message of torch, which is that of the native pass too."""
    found = []
    for function in (check.dense_values, dense_values):
        with pytest.raises(ValueError, match=", got ") as caught:
            function(support, labels, query, K)
        found.append(str(caught.value))
    assert found[0] == found[1]
    return found[0]


def shifted(x: Tensor, by: int) -> Tensor:
    """The same numbers, starting this many numbers after an aligned address."""
    memory = x.new_empty(x.numel() + by)
    return memory[by:].copy_(x.flatten()).view(x.shape)


# --- valid values -------------------------------------------------------------------------------


@on_devices("dtype, D", [(dtype, D) for dtype in DTYPES for D in (1, 7, 8, 1000)])
def test_valid_values(device: str, dtype: torch.dtype, D: int) -> None:
    labels, support, query = task(device, D, dtype)
    for by in range(9):
        seen = labels, shifted(support, by), shifted(query, by + 1)
        assert classes_of_valid(*seen) == K
        assert classes_of_valid(*seen, query[0, 0]) == K
    assert dense_values(support, labels, query, None) == K
    assert dense_values(support[0], labels[0], query, K) == K
    assert dense_values(support, labels.to(torch.uint8), query, K) == K


@on_devices("dtype, most", [(torch.float16, 65504.0), (torch.bfloat16, 9.9e29)], ())
def test_the_largest_valid_half(device: str, dtype: torch.dtype, most: float) -> None:
    labels, support, query = task(device, dtype=dtype)
    query[0, 0, 0], query[1, 2, 3] = most, -most
    assert classes_of_valid(labels, support, query) == K


@on_devices("dtype", [torch.float32, torch.float64])
def test_the_limit_is_exact(device: str, dtype: torch.dtype) -> None:
    labels, support, query = task(device, dtype=dtype)
    limit = torch.tensor(check.SUMMABLE[dtype], dtype=dtype)
    for step in range(-2, 3):
        value = limit
        for _ in range(abs(step)):
            value = torch.nextafter(value, limit * (2 if step > 0 else 0))
        query[2, 4, 6] = -value
        valid = value.item() <= check.SUMMABLE[dtype]
        assert classes_of_valid(labels, support, query) == (K if valid else 0)


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 2000, 65536, 65537])
@pytest.mark.parametrize("shuffled", [False, True])
def test_any_number_of_classes(device: str, rows: int, shuffled: bool) -> None:
    x = torch.zeros(rows, 1, device=device)
    by_torch = device == "cuda" and rows > 65536
    for classes in {1, 2, 32, rows // 2 + 1, rows - 1, rows} & set(range(1, rows + 1)):
        labels = torch.arange(rows).remainder(classes)
        labels = (labels[torch.randperm(rows)] if shuffled else labels).to(device)
        assert classes_of_valid(labels, x, x) == (0 if by_torch else classes)
        assert dense_values(x, labels, x, None) == classes


def test_many_tasks(device: str) -> None:
    labels = torch.stack([torch.randperm(40) % 20 for _ in range(1500)]).to(device)
    support, query = torch.zeros(1500, 40, 3, device=device), torch.zeros(1500, 2, 3, device=device)
    assert classes_of_valid(labels, support, query) == 20
    for bad in (0, 777, 1499):
        changed = labels.clone()
        changed[bad][changed[bad] == 19] = 18  # every class of its own, but one fewer
        assert classes_of_valid(changed, support, query) == 0
        message = same_sentence(changed, support, query, None)
        assert message.endswith(f"got none of class 19 in task {bad}")


def test_no_task(device: str) -> None:
    labels, support, query = (x[:0] for x in task(device))
    assert dense_values(support, labels, query, None) == 0
    assert dense_values(support, labels, query, 9) == 9
    labels, support, _ = task(device)
    assert dense_values(support[0], labels[0], query, None) == K


def test_other_layouts_are_left_to_torch(device: str) -> None:
    labels, support, query = task(device)
    for seen in (query.mT.contiguous().mT, query[:, ::2], query[:, :, 1:]):
        rows = support[..., : seen.shape[-1]].contiguous()
        assert classes_of_valid(labels, rows, seen) == 0
        assert dense_values(rows, labels, seen, K) == K
    assert classes_of_valid(labels.T.contiguous().T, support, query) == K
    assert classes_of_valid(labels, support, query, query[0, 0].double()) == 0
    mean = query[0, 0].double()
    assert dense_values(support, labels, query, None, mean) == K


# --- invalid values -----------------------------------------------------------------------------


@on_devices("dtype", DTYPES)
@pytest.mark.parametrize("name", ["support", "query"])
def test_one_bad_number_anywhere(device: str, dtype: torch.dtype, name: str) -> None:
    labels, support, query = task(device, dtype=dtype)
    values = [math.nan, -math.nan, math.inf, -math.inf]
    values += [] if dtype is torch.float16 else [2 * check.SUMMABLE[dtype]]
    for by in (0, 1, 3):
        seen = {"support": shifted(support, by), "query": shifted(query, by)}
        flat = seen[name].view(-1)
        for at in {*range(20), 53, *range(len(flat) - 20, len(flat))}:
            before = flat[at].clone()
            for value in values:
                flat[at] = value
                assert classes_of_valid(labels, *seen.values()) == 0, (at, value)
            flat[at] = before
        flat[-1] = values[-1]
        assert f"{name} must be" in same_sentence(labels, *seen.values(), K)


def test_one_bad_number_among_many(device: str) -> None:
    labels, support, query = task(device, 100_003)
    for x in (support, query):
        flat = x.view(-1)
        for at in torch.randint(len(flat), (20,)).tolist():
            before = flat[at].clone()
            flat[at] = math.nan
            assert classes_of_valid(labels, support, query) == 0, at
            flat[at] = before
    assert classes_of_valid(labels, support, query) == K


def test_a_bad_base_mean(device: str) -> None:
    labels, support, query = task(device)
    mean = query[0, 0].clone()
    mean[-1] = math.inf
    assert classes_of_valid(labels, support, query, mean) == 0
    with pytest.raises(ValueError, match=r"base_mean must be finite, got inf at \[6\]"):
        dense_values(support, labels, query, K, mean)


@pytest.mark.parametrize(
    "label", [-1, K, S - 1, S, 2**31, 2**32, 2**40, -(2**40), -(2**63), 2**63 - 1]
)
def test_a_bad_label(device: str, label: int) -> None:
    labels, support, query = task(device)
    for place in ((0, 0), (1, 3), (B - 1, S - 1)):
        changed = labels.clone()
        changed[place] = label
        assert classes_of_valid(changed, support, query) == 0
        for classes in (None, K):
            assert "support_labels must" in same_sentence(changed, support, query, classes)


def test_another_number_of_classes(device: str) -> None:
    labels, support, query = task(device)
    assert "got none of class 4 in task 0" in same_sentence(labels, support, query, K + 1)
    assert "must be in [0, 3), got 3" in same_sentence(labels, support, query, K - 1)
    labels[1][labels[1] == 2] = 1
    for classes in (None, K):
        message = same_sentence(labels, support, query, classes)
        assert message.endswith("got none of class 2 in task 1")


# --- on CUDA ------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("num_classes", [None, K])
def test_one_synchronisation(num_classes: int | None) -> None:
    labels, support, query = task("cuda")
    paddle_ext.solve(support, labels, query, num_classes=num_classes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.cuda.set_sync_debug_mode("warn")
            paddle_ext.solve(support, labels, query, num_classes=num_classes)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    assert len(waits) == 1


@pytest.mark.cuda
def test_in_the_current_stream() -> None:
    labels, support, query = task("cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        query[2, 4, 6] = math.nan
        assert classes_of_valid(labels, support, query) == 0
