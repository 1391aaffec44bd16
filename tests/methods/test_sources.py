"""Methods of one's own: a changed source changes the digest, and an unknown one has none."""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from banks import Spy
from torch import Tensor

from paddle_ext import methods
from paddle_ext.methods.registry import as_method
from paddle_ext.methods.sources import source_digest

MINE = """
from dataclasses import dataclass
from math import sqrt

import torch
from digested_helpers.distances import nearest

@dataclass(frozen=True)
class Mine:
    power: float = 1.0

    def predict(self, support, support_labels, query):
        from digested_helpers import late
        return support_labels[nearest(query, support)]
"""
FILES = {
    "digested_method.py": MINE,
    "digested_helpers/__init__.py": "",
    "digested_helpers/distances.py": "from . import constants\n\ndef nearest(a, b): return 0\n",
    "digested_helpers/constants.py": "SCALE = 1\n",
    "digested_helpers/late.py": "RAISED = 1 / 0\n",  # not to be run by reading it
    "digested_helpers/unused.py": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        write(tmp_path / name, text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    """A file of yesterday."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (path.stat().st_mtime - 86_400,) * 2)


def digest() -> str | None:
    """As in a new process."""
    for name in [name for name in sys.modules if name.startswith("digested_")]:
        del sys.modules[name]
    return source_digest(as_method(import_module("digested_method").Mine()))


@pytest.mark.parametrize("name", [name for name in FILES if "unused" not in name])
def test_an_edited_file_changes_the_digest(folder: Path, name: str) -> None:
    """That of the class, and those it imports, in a function too."""
    before = digest()
    assert before
    assert digest() == before
    write(folder / name, FILES[name] + "\n# edited\n")
    assert digest() not in (before, None)


def test_other_files_do_not(folder: Path) -> None:
    before = digest()
    write(folder / "digested_helpers/unused.py", "SCALE = 2\n")
    assert digest() == before


def test_a_file_edited_since_the_program_began_has_none(folder: Path) -> None:
    (folder / "digested_helpers/constants.py").write_text("SCALE = 2\n")
    assert digest() is None


def test_built_in_methods_have_a_version_instead() -> None:
    assert {source_digest(methods.create(name)) for name in methods.available()} == {""}


class WithState:
    def __init__(self, power: float) -> None:
        self.power = power

    def predict(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        return support_labels[torch.cdist(query, support).argmin(1)]


class WithSlots(WithState):
    __slots__ = ("power",)


@dataclass(frozen=True)
class Subclass(methods.SimpleShot):
    name = "subclass"


def test_attributes_that_are_no_options_have_none() -> None:
    assert source_digest(Spy())
    assert source_digest(Subclass())
    assert source_digest(as_method(WithState(2.0))) is None
    assert source_digest(as_method(WithSlots(2.0))) is None


def test_classes_without_a_file_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook; a function, whose arguments its class may use."""
    notebook = ModuleType("digested_notebook")
    exec(MINE.replace("from digested_helpers.distances import nearest", ""), vars(notebook))  # noqa: S102
    monkeypatch.setitem(sys.modules, "digested_notebook", notebook)
    assert notebook.Mine.__module__ == "digested_notebook"
    assert source_digest(as_method(notebook.Mine())) is None

    @dataclass(frozen=True)
    class Local(Spy):
        pass

    assert source_digest(Local()) is None
