"""A browser for the pages."""

import pytest
from scripts import script


@pytest.fixture(scope="session")
def browser() -> str:
    found = script("docs/check_pages.py").find_browser()
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found
