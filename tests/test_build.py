"""The built and installed package: what it links, what importing it touches."""

import importlib.metadata
import importlib.resources
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from scripts import run_code

import paddle_ext
from paddle_ext import _native

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

PRELUDE = """
import os, sys, traceback
import torch

def solve(device="cpu"):
    support = torch.eye(3, device=device).repeat(8, 1, 1)
    labels = torch.arange(3, device=device).repeat(8, 1)
    solution = paddle_ext.solve(support, labels, support)
    assert solution.labels.tolist() == labels.tolist()

def fork(work):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""


def run(tmp_path: Path, code: str) -> None:
    """Run Python code on its own, away from the checkout."""
    run_code(PRELUDE + code, cwd=tmp_path)


def needed_libraries() -> list[str]:
    """Return the names of the libraries the native module is linked with."""
    for tool, pattern in (
        (["readelf", "-d"], r"\(NEEDED\).*\[(.+)\]"),
        (["ldd"], r"^\s*(\S+)"),
        (["otool", "-L"], r"^\s+(\S+)"),
    ):
        if shutil.which(tool[0]):
            command = [*tool, _native.__file__]
            listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            return re.findall(pattern, listing, re.MULTILINE)
    pytest.skip("needs readelf, ldd or otool")


def test_version_is_the_one_of_the_metadata() -> None:
    assert paddle_ext.__version__ == importlib.metadata.version("paddle_ext")
    assert paddle_ext.build_info()["version"] == paddle_ext.__version__


def test_build_info() -> None:
    info = paddle_ext.build_info()
    assert isinstance(info["cuda"], bool)
    for key in ("cuda_version", "cuda_architectures", "simd", "compiler"):
        assert isinstance(info[key], str), key
    assert info["compiler"]
    if info["cuda"]:
        assert re.fullmatch(r"\d+\.\d+", info["cuda_version"])
        assert re.fullmatch(r"[0-9a-z]+(-real|-virtual)?", info["cuda_architectures"].split(";")[0])
    else:
        assert info["cuda_version"] == info["cuda_architectures"] == info["driver"] == ""
    assert info["simd"] in info["simd_levels"]
    assert info["simd_levels"][0] in ("neon", "sse2")
    assert set(info["simd_levels"][1:]) <= {"avx2", "avx512"}
    info["simd_levels"].clear()
    assert paddle_ext.build_info()["simd_levels"]


def test_links_neither_torch_nor_the_cuda_runtime() -> None:
    libraries = needed_libraries()
    assert libraries
    assert not [name for name in libraries if re.search(r"torch|c10|cudart|libcuda|gomp|omp", name)]


@pytest.mark.parametrize("name", ["py.typed", "_native.pyi"])
def test_package_is_typed(name: str) -> None:
    assert (importlib.resources.files("paddle_ext") / name).is_file()


@needs_fork
@pytest.mark.cuda
def test_fork_after_import_leaves_cuda_to_the_child(tmp_path: Path) -> None:
    """Neither the import nor `build_info` touches CUDA. Children on the CPU: test_threads.py."""
    use = "import paddle_ext; paddle_ext.build_info(); assert not torch.cuda.is_initialized()"
    run(tmp_path, f"{use}; fork(lambda: solve('cuda'))")
