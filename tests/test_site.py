"""The hooks of the site (links, comments of fields, the gallery), and the check of its pages.

`make docs` builds it all.
"""

import re
from pathlib import Path

import pytest
from scripts import script

pytest.importorskip("mkdocs", reason="needs mkdocs")
pytest.importorskip("griffe", reason="needs griffe")

ROOT = Path(__file__).resolve().parents[1]

pages, gallery = script("docs/site_pages.py"), script("docs/site_gallery.py")
fields, check = script("docs/site_fields.py"), script("docs/check_pages.py")


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "target", "expected"),
    [
        ("index.md", "large.md", "large.md"),
        ("index.md", "../CONTRIBUTING.md", "contributing.md"),
        ("index.md", "../examples", "gallery/index.md"),
        ("large.md", "adaptive.md", "adaptive.md"),
        ("large.md", "../examples/stream.py", "gallery/stream.md"),
        ("large.md", "../benchmarks/README.md", "benchmarks.md"),
        ("tasks/photos.md", "../../examples/images.py", "../gallery/images.md"),
        ("tasks/photos.md", "../classify.md", "../classify.md"),
        ("contributing.md", "docs/api/README.md", "api/README.md"),
        ("gallery/quickstart.md", "../docs/presence.md", "../presence.md"),  # of the notebook
        ("large.md", "https://example.org/x.md", "https://example.org/x.md"),
        ("large.md", "no-such-page.md", "no-such-page.md"),  # mkdocs reports it
    ],
)
def test_links(page: str, target: str, expected: str) -> None:
    assert pages.moved(target, page) == expected


def test_links_to_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lead to the repository on the web; without one only their text is left."""
    found = pages.LINK.search("see [`math.h`](../csrc/common/math.h#L3)")
    monkeypatch.setattr(pages, "repository", lambda: "https://example.org/p")
    linked = "[`math.h`](https://example.org/p/blob/main/csrc/common/math.h#L3)"
    assert pages.link(found, "solver.md") == linked
    monkeypatch.setattr(pages, "repository", lambda: "")
    assert pages.link(found, "solver.md") == "`math.h`"


@pytest.mark.parametrize(
    ("page", "source", "expected"),
    [
        ("index.md", "figures/x.png", "figures/x.png"),
        ("contributing.md", "docs/figures/x.png", "../figures/x.png"),
    ],
)
def test_images_in_html(page: str, source: str, expected: str) -> None:
    found = pages.MARKUP.search(f'<img src="{source}" width="9">')
    assert pages.attribute(found, page) == f'src="{expected}"'


def test_lists_that_only_github_shows() -> None:
    assert pages.SHALLOW.findall("- one\n  - two\n") == ["\n  - two"]
    assert pages.SHALLOW.findall("- one\n\n  more\n") == ["\n\n  more"]
    assert not pages.SHALLOW.findall("- one that is\n  wrapped\n    - two\n\n    more\n")
    assert pages.swallowed("<p>As <b>here</b>:\n- one\n- two</p>") == ["- one"]
    assert not pages.swallowed("<p>In\n2021. Then</p>\n<ul>\n<li>- one</li>\n</ul>")


# --- docstrings -----------------------------------------------------------------------------------

SOURCE = """class Found:
    \"\"\"What was found.

    Notes
    -----
    It is small.
    \"\"\"

    labels: int  # [Q]: the classes
    # How sure,
    # from 0 to 1.
    doubt: float = 0.5
    split: float = (
        0.5  # between lines
    )
    name: str = "#"
    \"\"\"Its name.\"\"\"
    silent: int = 0
    shared: ClassVar[int] = 1  # by all

class Listed:
    \"\"\"Of one.

    Parameters
    ----------
    labels : int
        As it says.
    \"\"\"

    labels: int  # not this

def solve():
    \"\"\"Like ``paddle_ext.adapt``::

        code

    The end.
    \"\"\"
"""
FOUND = """What was found.

Attributes
----------
labels : int
    [Q]: the classes
doubt : float
    How sure, from 0 to 1.
split : float
    between lines
name : str
    Its name.
silent : int
    By default `0`.

Notes
-----
It is small."""


def test_docstrings(tmp_path: Path) -> None:
    griffe = pytest.importorskip("griffe")
    (tmp_path / "sample.py").write_text(SOURCE)
    extensions = griffe.load_extensions(fields.PlainDocstrings())
    module = griffe.load("sample", search_paths=[tmp_path], extensions=extensions)
    assert module["Found"].docstring.value == FOUND
    assert module["Found"]["name"].docstring is None
    assert "not this" not in module["Listed"].docstring.value
    text = module["solve"].docstring.value
    link = '<autoref identifier="paddle_ext.adapt" optional><code>paddle_ext.adapt</code></autoref>'
    assert text == f"Like {link}:\n\n    code\n\nThe end."


# --- the gallery ----------------------------------------------------------------------------------


def test_every_example_is_in_the_gallery() -> None:
    """And in the navigation, which mkdocs does not check for pages that a hook makes."""
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.suffix != ".md"}
    names -= {"__pycache__"}
    assert {*gallery.NOTEBOOKS, *gallery.PROGRAMS} == names
    shown = re.findall(r"gallery/(\w+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert {*shown} == {*names, "index"}


def test_program_with_its_output() -> None:
    example = gallery.program("text")
    assert example.title == "Sentences"
    assert example.printed.endswith("15 of 15 right\n")
    assert "$ python examples/text.py --hashing\nintents present: " in example.text
    assert "## examples/text.py" in example.text
    assert "\n    ```text\n    intents present" in gallery.card(example)


def test_programs_that_are_not_run() -> None:
    example = gallery.program("large_ray")
    assert "It needs Ray. So this page shows only its source." in example.text
    assert "```console" not in example.text


def test_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed, shown and worth of the last line; an error of a cell is one of the build."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="needs matplotlib")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with gallery.captured() as (printed, figures):
        gallery.run_cell("print('first')\nx = 3\nx + 1", names)
        gallery.run_cell("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()", names)
        Path("written").touch()
    assert printed.getvalue() == "first\n4\n"
    assert [figure[1:4] for figure in figures] == [b"PNG"]
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError), gallery.captured():
        gallery.run_cell("1 / 0", names)
    assert pyplot.get_fignums() == []
    assert Path.cwd() == tmp_path


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No address of a font, a script or a style is in the settings of the site."""
    settings = (ROOT / "mkdocs.yml").read_text() + (ROOT / "docs/assets/site.css").read_text()
    assert "font: false" in settings
    assert "http" not in settings


# --- pages in a browser ---------------------------------------------------------------------------

ICON = "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='9'/>"
WRONG = {
    "fine": ("<img src='wide.svg'>", []),
    "small": ("<img src='small.svg'>", [390, 390, 1440, 1440]),
    "missing": ("<img src='none.svg'>", [390, 390, 1440, 1440]),
    "wide": ("<p style='width: 600px'>text</p>", [390, 390]),
}


def test_what_is_wrong_with_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = check.find_browser()
    if browser is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    monkeypatch.setattr(check, "SITE", tmp_path)
    (tmp_path / "wide.svg").write_text(ICON.format(300))
    (tmp_path / "small.svg").write_text(ICON.format(90))
    for name, (body, _) in WRONG.items():
        text = f"<!doctype html><body style='margin: 0'><article>{body}</article></body>"
        (tmp_path / f"{name}.html").write_text(text)
    wrong = check.look(browser, [tmp_path / f"{name}.html" for name in WRONG])
    expected = [f"/{name}.html, {width}" for name, (_, widths) in WRONG.items() for width in widths]
    assert [line.partition(" pixels")[0] for line in wrong] == expected
