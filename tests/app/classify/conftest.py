"""A browser for the pages, and files to classify."""

from pathlib import Path

import pytest
from classify_data import embedding_files, small_network, strange_files
from scripts import script


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
