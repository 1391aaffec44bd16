"""`_native.pyi`, against which mypy checks the callers, is what tools/make_stub.py writes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import make_stub
import pytest

import paddle_ext
from paddle_ext import _native


def stubtest(folder: Path, stub: str) -> subprocess.CompletedProcess[str]:
    """Compare the module with a stub, both away from the rest of the package."""
    pytest.importorskip("mypy")
    library = Path(_native.__file__)
    shutil.copy(library, folder / library.name)
    (folder / "_native.pyi").write_text(stub)
    (folder / "allowed").write_text(r"_native\.(Target|\w+Call(\.__init__)?)  # pybind11's" "\n")
    return subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--allowlist", "allowed", "_native"],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(folder), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def stub() -> str:
    return (Path(paddle_ext.__file__).parent / "_native.pyi").read_text()


def test_stub_is_up_to_date(stub: str) -> None:
    assert stub == make_stub.stub(), "run python tools/make_stub.py"


@pytest.mark.slow
def test_stub_is_exact(tmp_path: Path, stub: str) -> None:
    done = stubtest(tmp_path, stub)
    assert done.returncode == 0, done.stdout + done.stderr
