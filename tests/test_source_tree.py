"""A source tree without a native module, in which the installed package is used."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ext import _native

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import torch, paddle_ext
x = torch.eye(3)
print(paddle_ext.__file__)
print(paddle_ext.solve(x, torch.arange(3), x).labels.tolist())
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources in `tree`, and in `site` what `pip install .` writes."""
    sources = tmp_path / "tree"
    leave_out = shutil.ignore_patterns("_native.*.so", "__pycache__")
    shutil.copytree(ROOT / "paddle_ext", sources / "paddle_ext", ignore=leave_out)
    shutil.copy(ROOT / "pyproject.toml", sources)
    site = tmp_path / "site"
    shutil.copytree(sources / "paddle_ext", site / "paddle_ext")
    native = Path(_native.__file__)
    (site / "paddle_ext" / native.name).symlink_to(native)
    version = importlib.metadata.version("paddle_ext")
    about = site / f"paddle_ext-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: paddle_ext\nVersion: {version}\n"
    )
    (about / "RECORD").write_text(f"paddle_ext/{native.name},,\n")
    return sources


LOAD = "import paddle_ext; paddle_ext.build_info()"


def run(tree: Path, code: str = LOAD) -> subprocess.CompletedProcess[str]:
    """In the source tree, with what is installed after it; -S: not an editable install."""
    here = [entry for entry in sys.path if entry and Path(entry).resolve() != ROOT]
    path = os.pathsep.join([str(tree.parent / "site"), *here])
    return subprocess.run(
        [sys.executable, "-S", "-W", "ignore", "-c", code],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_installed_native_module_is_used(tree: Path) -> None:
    done = run(tree, CODE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tree / "paddle_ext" / "__init__.py"), "[0, 1, 2]"]


def test_another_version_is_refused(tree: Path) -> None:
    project = tree / "pyproject.toml"
    text = project.read_text()
    project.write_text(re.sub(r'^version = ".*?"', 'version = "9.9"', text, flags=re.MULTILINE))
    done = run(tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tree} hides the installed")
    assert "and not 9.9: run `pip install .` again" in done.stderr


def test_other_sources_are_refused(tree: Path) -> None:
    with (tree / "paddle_ext" / "_native.pyi").open("a") as stub:
        stub.write("def more() -> None: ...\n")
    done = run(tree)
    assert done.returncode == 1
    assert "was built from other sources: run `pip install .` again" in done.stderr


def test_no_native_module_is_installed(tree: Path) -> None:
    (record,) = (tree.parent / "site").glob("*.dist-info/RECORD")
    record.write_text("")
    done = run(tree)
    assert done.returncode == 1
    assert "ImportError: the native module of paddle_ext is not built" in done.stderr
