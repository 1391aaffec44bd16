"""A browser for the pages, and files to classify."""

from pathlib import Path

import pytest
from scripts import script


@pytest.fixture(scope="session")
def browser() -> str:
    found = script("docs/check_pages.py").find_browser()
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    from classify_data import embedding_files

    return embedding_files(tmp_path)


@pytest.fixture
def strange(tmp_path: Path) -> tuple[Path, Path]:
    from classify_data import strange_files

    return strange_files(tmp_path)


@pytest.fixture
def quick_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a network, which takes seconds to load."""
    from classify_data import small_network

    monkeypatch.setattr("paddle_ext.app.read.opening.open_network", lambda *_: small_network())
