"""What all tests share: the marker ``cuda``, places to run at, number of threads."""

import contextlib
import importlib.util
import os
import signal
import sys
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from problems import Place

ROOT = Path(__file__).resolve().parents[1]

# Before torch is imported. The tensors are small: threads, and those of several workers all the
# more, would mostly wait for each other.
WORKER = "PYTEST_XDIST_WORKER" in os.environ
os.environ.setdefault("OMP_NUM_THREADS", "1" if WORKER else str(min(2, os.cpu_count() or 1)))

# `python -m pytest` puts the checkout on the path, where it hides an installed package behind a
# source tree that has no native module.
if not any((ROOT / "paddle_ext").glob("_native.*.so")):
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


@cache
def why_no_cuda() -> str:
    """Say why CUDA tests cannot run here; empty if they can."""
    import torch

    import paddle_ext

    if not paddle_ext.build_info()["cuda"]:
        return "paddle_ext was built without CUDA (PADDLE_EXT_CUDA)"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built for the CPU alone"
    with warnings.catch_warnings(record=True) as caught:  # an old driver causes a warning
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        return " ".join(["torch finds no usable GPU", *(str(w.message) for w in caught)])
    return ""


def required() -> bool:
    """Tell whether a missing GPU is a failure: where one is expected, no test may skip unseen."""
    return os.environ.get("PADDLE_EXT_REQUIRE_CUDA", "") not in ("", "0")


def pytest_report_header() -> list[str]:
    """Print what is being tested."""
    import torch

    import paddle_ext

    cuda = why_no_cuda()
    if cuda:
        cuda = f"{'FAILED' if required() else 'skipped'}: {cuda}"
    return [
        f"paddle_ext: {Path(paddle_ext.__file__).parent} {paddle_ext.build_info()}",
        f"torch: {torch.__version__}, {torch.get_num_threads()} threads",
        f"cuda tests: {cuda or torch.cuda.get_device_name()}",
    ]


# Of the extra `test`. A file of tests that imports one of them is skipped where it is missing.
OPTIONAL = {"PIL", "cyclopts", "easyfsl", "matplotlib", "openpyxl", "pandas", "pyarrow", "rich"}
OPTIONAL |= {"safetensors", "scipy", "sklearn"}


class File(pytest.Module):
    def collect(self) -> "Iterable[pytest.Item | pytest.Collector]":
        try:
            return super().collect()
        except self.CollectError as error:
            cause: BaseException | None = error
            while (cause := cause.__cause__ or cause.__context__) is not None:
                if isinstance(cause, ModuleNotFoundError) and cause.name in OPTIONAL:
                    pytest.skip(f"needs {cause.name}")
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return File.from_parent(parent, path=module_path)


# One skip from one place, and not marks: pytest then folds all of them into one line.
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail where CUDA is required, the tests marked ``cuda`` without CUDA."""
    if item.get_closest_marker("cuda") is None:
        return
    reason = why_no_cuda()
    if reason and required():
        pytest.fail(f"PADDLE_EXT_REQUIRE_CUDA is set, but {reason}", pytrace=False)
    if reason:
        pytest.skip(f"needs CUDA: {reason}")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    """Run the test once on each device."""
    return request.param


@pytest.fixture(
    params=["cpu-float32", "cpu-float64", pytest.param("cuda-float32", marks=pytest.mark.cuda)]
)
def place(request: pytest.FixtureRequest) -> "Place":
    """Run the test once on each device and in each precision of the native code."""
    import torch
    from problems import Place

    device, dtype = request.param.split("-")
    return Place(device, getattr(torch, dtype))


@pytest.fixture
def one_thread() -> "Iterator[None]":
    """For small tensors, where more threads would mostly wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ctrl_c() -> "Iterator[None]":
    """Children heed Ctrl-C, even if this process ignores it, as background jobs of a shell do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def torchvision_operators() -> "Iterator[None]":
    """What torchvision looks for when it is imported, and a CPU build of torch may not have."""
    import torch

    declared = torch.library.Library("torchvision", "FRAGMENT")
    own = importlib.util.find_spec("torchvision")
    if own is not None and own.origin is not None:
        for compiled in Path(own.origin).parent.glob("_C*.so"):
            with contextlib.suppress(OSError):  # made for another build of torch
                torch.ops.load_library(str(compiled))
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield
    del declared


@pytest.fixture(scope="session")
def easyfsl(torchvision_operators: None) -> ModuleType:
    """Its methods, which ours are compared with."""
    return pytest.importorskip("easyfsl.methods", reason="needs easyfsl")


@pytest.fixture(autouse=True)
def methods_as_before() -> "Iterator[None]":
    """What a test or an example registers is forgotten."""
    base = sys.modules.get("paddle_ext.methods.base")
    before = None if base is None else dict(base.known_methods)
    yield
    if base is not None and before is not None:
        for name in base.known_methods.keys() - before.keys():
            del base.known_methods[name]
