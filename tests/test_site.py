"""The site shows every example, and loads nothing from elsewhere; `make docs` builds it all."""

import re

import pytest
from scripts import ROOT, script


def test_every_example_is_in_the_gallery() -> None:
    """And in the navigation, which mkdocs does not check for pages that a hook makes."""
    pytest.importorskip("mkdocs", reason="needs mkdocs")
    gallery = script("docs/site_gallery.py")
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.suffix != ".md"}
    names -= {"__pycache__"}
    assert {*gallery.NOTEBOOKS, *gallery.PROGRAMS} == names
    shown = re.findall(r"gallery/(\w+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert {*shown} == {*gallery.RUN, "index"}


def test_few_pages() -> None:
    """One for each question: those of the navigation, API and gallery included."""
    assert len(re.findall(r"\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)) <= 50


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No address of a font, a script or a style is in the settings of the site."""
    settings = (ROOT / "mkdocs.yml").read_text() + (ROOT / "docs/assets/site.css").read_text()
    assert "font: false" in settings
    assert "http" not in settings


def test_scripts_of_figures_find_what_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are run by hand only."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    for library in ("matplotlib", "PIL"):
        pytest.importorskip(library, reason=f"needs {library}")
    for path in (ROOT / "docs").glob("make_*.py"):
        script(f"docs/{path.name}")
