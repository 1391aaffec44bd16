"""What has no native code on CUDA: found before any launch, and computed on the CPU."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import paddle_ext
from paddle_ext.native import call as calls
from paddle_ext.native import devices
from paddle_ext.native import load as native

T4, A100, L4, H100, THOR, B200, RTX_5090 = (7, 5), (8, 0), (8, 9), (9, 0), (11, 0), (10, 0), (12, 0)
RELEASE = "80;90-real;100-real;120"


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every GPU is a T4, and the build is that of a release."""
    info = {"cuda": True, "cuda_version": "12.9", "cuda_architectures": RELEASE}
    monkeypatch.setattr(devices, "capability", lambda _: T4)
    monkeypatch.setattr(devices, "driver_version", lambda: 13)
    monkeypatch.setattr(native.module, "build_info", lambda: info)
    monkeypatch.setattr(native, "has_cuda", lambda: True)
    forget()
    yield
    forget()


def forget() -> None:
    for cached in (devices.has_code_for, calls.make_target, devices.warn_once):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("architectures", "runs", "does_not"),
    [
        ("80-real;90", [A100, L4, H100, B200, RTX_5090], [T4]),
        ("90-real", [H100], [T4, A100, L4, B200, RTX_5090]),
        ("86-real", [L4], [A100, H100]),
        ("80-virtual", [A100, L4, H100, RTX_5090], [T4]),
        ("90a-real", [H100], [L4, B200]),
        ("90a", [H100], [B200]),
        ("100f", [B200, (10, 3)], [H100, RTX_5090]),
        ("120-real", [RTX_5090, (12, 1)], [H100, B200]),
        (RELEASE, [A100, L4, H100, B200, THOR, RTX_5090, (12, 1), (13, 0)], [T4]),
        ("", [], [T4, A100, H100]),
    ],
)
def test_what_architectures_run_on(
    architectures: str, runs: list[tuple[int, int]], does_not: list[tuple[int, int]]
) -> None:
    found = {gpu: devices.runs_on(architectures, gpu) for gpu in [*runs, *does_not]}
    assert found == {**dict.fromkeys(runs, True), **dict.fromkeys(does_not, False)}


@pytest.mark.usefixtures("old_gpu")
def test_a_gpu_without_code_is_refused_before_any_launch() -> None:
    with pytest.raises(ValueError, match=r"^the features must be on the CPU or a GPU") as caught:
        calls.make_target(True, 0, 0, 0)
    sentence = str(caught.value)
    assert sentence.endswith("got cuda:0 of compute capability 7.5")
    assert "80, 90-real, 100-real, 120" in sentence
    assert "rebuild" not in sentence  # there is no build for it
    assert "\n" not in sentence


@pytest.mark.usefixtures("old_gpu")
def test_a_newer_gpu_gets_build_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {**native.build_info(), "cuda_architectures": "90-real"}
    monkeypatch.setattr(native.module, "build_info", lambda: info)
    monkeypatch.setattr(devices, "capability", lambda _: L4)
    assert "PADDLE_EXT_CUDA_ARCHITECTURES=89" in devices.no_code_message(0)
    monkeypatch.setattr(native, "has_cuda", lambda: False)
    assert "PADDLE_EXT_CUDA=ON" in devices.no_code_message(0)
    assert devices.no_code_message(0).endswith("got cuda:0")


@pytest.mark.usefixtures("old_gpu")
def test_an_old_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "capability", lambda _: H100)
    assert devices.has_code_for(0)
    forget()
    monkeypatch.setattr(devices, "driver_version", lambda: 11)
    assert not devices.has_code_for(0)
    sentence = r"with driver 525, for CUDA 12, or newer; update .*; got cuda:0 with .* CUDA 11$"
    with pytest.raises(ValueError, match=sentence):
        calls.make_target(True, 0, 0, 0)


@pytest.mark.usefixtures("old_gpu")
def test_automatic_devices_avoid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert not devices.usable_gpu()
    monkeypatch.setattr(devices, "capability", lambda _: H100)
    forget()
    assert devices.usable_gpu()


# --- the CPU instead ----------------------------------------------------------------------------


def call_of(name: str, dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[Tensor, ...], Any]:
    torch.manual_seed(0)
    support, query, labels = torch.randn(20, 16), torch.randn(30, 16), torch.arange(20) % 5
    tensors: tuple[Tensor, ...] = support.to(dtype), labels, query.to(dtype)
    options: dict[str, Any] = {"num_classes": 5}
    if name == "solve_indexed":
        tensors = query.to(dtype), torch.arange(20), labels, torch.arange(30)
    elif name == "adapt":
        tensors, options = (query.to(dtype),), {}
    elif name == "sinkhorn":
        masses = torch.ones(30), torch.full((16,), 30 / 16)
        tensors, options = (query.to(dtype), *masses), {"reg": 1.0}
    return getattr(paddle_ext, name), tensors, options


NAMES = ["solve", "solve_indexed", "tim", "adapt", "sinkhorn", "adaptive"]


@pytest.mark.usefixtures("old_gpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_computes_on_the_cpu_and_warns_once(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: traced tensors, which only say they are there."""
    reason = "float64 on CUDA has no native code" if dtype is torch.float64 else "computing on the"
    function, tensors, options = call_of(name, dtype)
    with FakeTensorMode(), monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_compiling", lambda: True)
        there = [torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in tensors]
        with pytest.warns(UserWarning, match=reason):
            found = function(*there, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = function(*there, **options)
    expected = function(*tensors, **options)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, Tensor):
            assert (one.shape, one.dtype, one.is_cuda) == (other.shape, other.dtype, True)
    assert again[0].is_cuda


@pytest.mark.usefixtures("old_gpu")
@pytest.mark.filterwarnings("ignore:computing on the CPU:UserWarning")
def test_arguments_and_results_are_moved() -> None:
    @devices.on_cpu_without_gpu_code
    def shapes(x: Tensor, y: Tensor | None = None, *, factor: int) -> Any:
        assert x.is_cpu
        assert y is None or y.is_cpu
        return paddle_ext.TimSolution(x * factor, x, x, y)

    with FakeTensorMode():
        x = torch.ones(2, 3, device="cuda")
        for found in (shapes(x, x, factor=2), shapes(x=x, y=x, factor=2)):
            assert all(one.is_cuda for one in found)
        assert shapes(x, factor=2).losses is None


@pytest.mark.cuda
@pytest.mark.usefixtures("old_gpu")
@pytest.mark.filterwarnings("ignore:computing on the CPU:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_without_code_for_it(name: str, dtype: torch.dtype) -> None:
    function, tensors, options = call_of(name, dtype)
    found = function(*(x.cuda() for x in tensors), **options)
    expected = function(*tensors, **options)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, Tensor):
            assert one.is_cuda
            assert torch.equal(one.cpu(), other)
