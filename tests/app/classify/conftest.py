"""A browser for the pages, and files to classify."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from classify_data import embedding_files, small_network, strange_files
from jinja2 import Environment, FileSystemBytecodeCache
from scripts import script

from paddle_ext.app.write import page


@pytest.fixture(scope="session", autouse=True)
def template_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """It takes as long as the rest of a small run."""
    cache = FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "Environment", partial(Environment, bytecode_cache=cache))
        yield


@pytest.fixture(scope="session")
def browser() -> str:
    found = script("docs/check_pages.py").find_browser()
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return embedding_files(tmp_path)


@pytest.fixture
def strange(tmp_path: Path) -> tuple[Path, Path]:
    return strange_files(tmp_path)


@pytest.fixture
def quick_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a network, which takes seconds to load."""
    monkeypatch.setattr("paddle_ext.app.read.opening.open_network", lambda *_: small_network())
