"""`_native.pyi`, against which mypy checks the callers, matches the native module."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import paddle_ext
from paddle_ext import _native

pytest.importorskip("mypy")


def stubtest(folder: Path, stub: str) -> subprocess.CompletedProcess[str]:
    """Compare the module with a stub, both away from the rest of the package."""
    library = Path(_native.__file__)
    shutil.copy(library, folder / library.name)
    (folder / "_native.pyi").write_text(stub)
    (folder / "allowed").write_text("_native.Target  # its metaclass is pybind11's\n")
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


def test_stub_is_exact(tmp_path: Path, stub: str) -> None:
    done = stubtest(tmp_path, stub)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_stub_is_found(tmp_path: Path, stub: str) -> None:
    wrong = stub.replace("row_mass: int", "row_masses: int").replace("def threads_made", "def made")
    done = stubtest(tmp_path, wrong)
    assert done.returncode != 0
    for words in (
        "_native.SinkhornCall.solve",
        '"row_mass"',
        "_native.made",
        "_native.threads_made",
    ):
        assert words in done.stdout
