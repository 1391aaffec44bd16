"""GPUs that the build has no code for: detected before any launch, with a fallback."""

import pickle
import warnings
from collections.abc import Iterator

import pytest
import torch
from paddle_ext.solvers.paddle_operators import solve_kernel

import paddle_ext
from paddle_ext.solvers import devices, native, operators

T4, A100, L4, H100, THOR, B200, RTX_5090 = (7, 5), (8, 0), (8, 9), (9, 0), (11, 0), (10, 0), (12, 0)
RELEASE = "80;90-real;100-real;120"


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every GPU is a T4, and the build is that of a release."""
    info = {"cuda": True, "cuda_version": "13.0", "cuda_architectures": RELEASE}
    monkeypatch.setattr(devices, "capability", lambda _: T4)
    monkeypatch.setattr(devices, "driver_version", lambda: 13)
    monkeypatch.setattr(native, "build_info", lambda: info)
    monkeypatch.setattr(native, "has_cuda", lambda: True)
    forget()
    yield
    forget()


def forget() -> None:
    for cached in (devices.has_code_for, operators.make_target, operators.warn_of_the_cpu):
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
        operators.make_target(True, 0, 0, 0)
    sentence = str(caught.value)
    assert sentence.endswith("got cuda:0 of compute capability 7.5")
    assert "80, 90-real, 100-real, 120" in sentence
    assert "rebuild" not in sentence  # there is no build for it
    assert "\n" not in sentence
    assert str(pickle.loads(pickle.dumps(caught.value))) == sentence


@pytest.mark.usefixtures("old_gpu")
def test_a_newer_gpu_gets_build_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {**native.build_info(), "cuda_architectures": "90-real"}
    monkeypatch.setattr(native, "build_info", lambda: info)
    monkeypatch.setattr(devices, "capability", lambda _: L4)
    with pytest.raises(ValueError, match="PADDLE_EXT_CUDA_ARCHITECTURES=89"):
        operators.make_target(True, 0, 0, 0)


@pytest.mark.usefixtures("old_gpu")
def test_an_old_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "capability", lambda _: H100)
    assert devices.has_code_for(0)
    forget()
    monkeypatch.setattr(devices, "driver_version", lambda: 12)
    assert not devices.has_code_for(0)
    with pytest.raises(ValueError, match=r"update the driver.*; got cuda:0 with .* CUDA 12$"):
        operators.make_target(True, 0, 0, 0)


@pytest.mark.usefixtures("old_gpu")
def test_falls_back_to_the_cpu_and_warns_once() -> None:
    """The operator as on CUDA: the first attempt finds no code, the second runs on the CPU."""
    attempts = []

    def kernel(*arguments: object) -> object:
        attempts.append(arguments)
        if len(attempts) % 2:
            operators.make_target(True, 0, 0, 0)
        return solve_kernel(*arguments)

    rows, labels = torch.eye(3), torch.arange(3)
    call = rows, labels, rows, 3, None, 0, 1.0, 1e-6, 10, 0.0, False
    on_cuda = operators.or_on_the_cpu(kernel)
    with pytest.warns(UserWarning, match="computing on the CPU, which is slower: the features"):
        found = on_cuda(*call)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_cuda(*call)
    assert len(attempts) == 4
    assert found[0].tolist() == [0, 1, 2]


@pytest.mark.usefixtures("old_gpu")
def test_automatic_devices_avoid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert not devices.usable_gpu()
    monkeypatch.setattr(devices, "capability", lambda _: H100)
    forget()
    assert devices.usable_gpu()


@pytest.mark.cuda
@pytest.mark.usefixtures("old_gpu")
@pytest.mark.filterwarnings("ignore:computing on the CPU:UserWarning")
@pytest.mark.parametrize("name", ["solve", "adaptive"])
def test_a_call_on_a_gpu_without_code(name: str) -> None:
    torch.manual_seed(0)
    support, query, labels = torch.randn(20, 16), torch.randn(30, 16), torch.arange(20) % 5
    function = getattr(paddle_ext, name)
    found = function(support.cuda(), labels.cuda(), query.cuda())
    expected = function(support, labels, query)
    assert found.labels.is_cuda
    assert torch.equal(found.labels.cpu(), expected.labels)


@pytest.mark.cuda
@pytest.mark.usefixtures("old_gpu")
def test_native_is_refused_on_a_gpu_without_code() -> None:
    rows, labels = torch.eye(3).cuda(), torch.arange(3).cuda()
    with pytest.raises(ValueError, match=r"compute capability 7\.5"):
        paddle_ext.solve(rows, labels, rows, backend="native")
