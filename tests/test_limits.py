"""The limits of `conftest.py` on the tests themselves: time, threads, signals."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = """
import ctypes, os, signal, subprocess, sys, time
import pytest

def test_short():
    assert os.environ["OMP_NUM_THREADS"] in ("1", "2")

@pytest.mark.usefixtures("ctrl_c")
def test_signal():
    code = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "KeyboardInterrupt" in done.stderr

def test_endless():
    ctypes.PyDLL(None).sleep(100)  # with the GIL, as in native code that hangs
"""


IGNORING_CTRL_C = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")


def test_a_hanging_test_ends(tmp_path: Path) -> None:
    """In a process that ignores Ctrl-C."""
    (tmp_path / "conftest.py").write_text("from conftest_of_tests import *\n")
    (tmp_path / "conftest_of_tests.py").symlink_to(HERE / "conftest.py")
    (tmp_path / "test_some.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [*IGNORING_CTRL_C, sys.executable, "-m", "pytest", "-v", "--limit", "3", "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.count("PASSED") == 2, done.stdout + done.stderr
    assert done.returncode == 1
    assert "Timeout (0:00:03)!" in done.stderr
    assert "in test_endless" in done.stderr
