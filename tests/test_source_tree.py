"""A source tree without a native module, in which the installed package is used."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
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


def another_version(tree: Path) -> None:
    project = tree / "pyproject.toml"
    text = re.sub(r'^version = ".*?"', 'version = "9.9"', project.read_text(), flags=re.MULTILINE)
    project.write_text(text)


def other_sources(tree: Path) -> None:
    with (tree / "paddle_ext" / "_native.pyi").open("a") as stub:
        stub.write("def more() -> None: ...\n")


def no_native_module(tree: Path) -> None:
    (record,) = (tree.parent / "site").glob("*.dist-info/RECORD")
    record.write_text("")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_version, "hides the installed .* and not 9.9: run `pip install .` again"),
        (other_sources, "was built from other sources: run `pip install .` again"),
        (no_native_module, "the native module of paddle_ext is not built"),
    ],
)
def test_refused(tree: Path, change: Callable[[Path], None], message: str) -> None:
    change(tree)
    done = run(tree)
    assert done.returncode == 1
    assert re.search(f"ImportError: .*{message}", done.stderr)
