"""What the documents show works: code runs, commands and links exist, API pages are not stale."""

import dataclasses
import doctest
import importlib
import pickle
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scripts import ROOT, script

from paddle_ext import FeatureBank, methods

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"])
# What a page needs besides torch and NumPy.
NEEDS = {
    "docs/estimator.md": ["sklearn"],
    "docs/prior.md": ["sklearn"],
    "docs/quickstart.md": ["sklearn"],
    "docs/suggest.md": ["sklearn"],
    "docs/training.md": ["PIL", "matplotlib", "safetensors"],
}
# Code that would take long here runs with smaller sizes. Each text must be on the page, once; what
# replaces it may use `dataclasses`.
SMALLER = {
    "docs/training.md": {
        'recipe=recipe("small")': 'recipe=dataclasses.replace(recipe("small"), epochs=1)',
        '"base", samples=40': '"base", samples=2',
        '"val", samples=30': '"val", samples=6',
        '"test", samples=60': '"test", samples=6',
    }
}


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: str, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


CODE = [named(page) for page in PAGES if blocks(named(page), "python")]


# --- links ----------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as Markdown viewers make them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{plain}-{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links(page: Path) -> None:
    for target, place in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        # An image may be for light or dark pages only.
        anchor = "" if place in ("only-light", "only-dark") else place
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


# --- code -----------------------------------------------------------------------------------------


@pytest.fixture
def run_code_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, object]]:
    """Run the Python code of a page, its blocks in their order; returns its names."""

    def run(page: str) -> dict[str, object]:
        for library in NEEDS.get(page, []):
            pytest.importorskip(library, reason=f"{page} needs {library}")
        code = "\n".join(blocks(page, "python"))
        for shown, small in SMALLER.get(page, {}).items():
            assert code.count(shown) == 1, shown
            code = code.replace(shown, small)
        monkeypatch.chdir(tmp_path)  # where pages may write
        torch.manual_seed(0)
        names: dict[str, object] = {"__name__": "page", "dataclasses": dataclasses}
        exec(code, names)  # noqa: S102 - our own pages
        return names

    return run


Run = Callable[[str], dict[str, object]]


def said(page: str) -> list[str]:
    """What the comments next to the calls of print say, up to a colon."""
    code = "\n".join(blocks(page, "python"))
    return re.findall(r"^ *print\(.*  # ([^:\n]+)", code, re.MULTILINE)


# Each call of print on these pages is followed by a comment with what it prints.
COMMENTED = ("docs/index.md", "docs/estimator.md")
# Pages with a test of their own below are not run twice.
OWN = {
    *COMMENTED,
    "README.md",
    "docs/classify.md",
    "docs/methods.md",
    "docs/data.md",
    "docs/evaluation.md",
    "docs/quickstart.md",
}


@pytest.mark.parametrize("page", [page for page in CODE if page not in OWN])
def test_code(page: str, run_code_of: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "docs/training.md":  # characters to draw
        glyphs = importlib.import_module("paddle_ext.research.data.glyphs")
        monkeypatch.setattr(glyphs, "CLASSES", {"base": 60, "val": 10, "test": 60})
    assert run_code_of(page)


def test_code_of_the_readme(run_code_of: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_code_of("README.md")
    assert capsys.readouterr().out == "tensor([ 3, 14, 15])\n"
    assert names["found"].labels.tolist() == [3, 14, 15] * 25
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


@pytest.mark.parametrize("page", COMMENTED)
def test_comments(page: str, run_code_of: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run_code_of(page)
    assert capsys.readouterr().out.splitlines() == said(page)


def test_code_of_classify(run_code_of: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_code_of("docs/classify.md")
    assert capsys.readouterr().out == "['kind 14', 'kind 15', 'kind 3']\n"
    labels = np.array(names["found"].class_names)[names["found"].labels]
    assert (labels == names["names"][names["new"]]).mean() > 0.98


def test_code_of_the_methods(run_code_of: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run_code_of("docs/methods.md")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[:3]] == ["simpleshot", "bd_cspn", "paddle"]
    simpleshot, _, paddle = (float(line[3]) for line in lines[:3])
    assert 70 < simpleshot < paddle
    named = {line[0]: float(line[1]) for line in lines[3:]}
    assert set(named) == {"zero_shot", "transclip", "stata", "adaptive"}
    assert named["transclip"] < min(named["zero_shot"], named["adaptive"])


def test_code_of_the_data(
    run_code_of: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    together = {"concat_features": x, "concat_labels": [5, 5, 2, 2]}
    for cached in ({5: [x[0], x[1]], 2: [x[2], x[3]]}, together):
        (tmp_path / "output.plk").write_bytes(pickle.dumps(cached))
        run_code_of("docs/data.md")
        bank = FeatureBank.load(tmp_path / "bank.npz")
        assert np.array_equal(bank.features.numpy(), x)
        assert bank.labels.tolist() == [5, 5, 2, 2]
    assert float(re.findall(r"tensor\((0\.\d+|1\.)", capsys.readouterr().out)[0]) > 0.9


def test_code_of_the_evaluation(run_code_of: Run) -> None:
    found = run_code_of("docs/evaluation.md")["evaluation"]
    paddle, simpleshot = (found.select(name, shots=5)[0] for name in ("paddle", "simpleshot"))
    assert paddle.accuracy > simpleshot.accuracy


def test_code_of_the_quickstart(run_code_of: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line prints what the comment next to it says; the files are those of the command."""
    names = run_code_of("docs/quickstart.md")
    printed = capsys.readouterr().out.splitlines()
    exact = [line for line in said("docs/quickstart.md") if line.startswith(("1.0", "["))]
    assert len(exact) == 3
    assert [line for line in printed if line in exact] == exact
    assert names["model"].transduction_[200:].tolist() == [
        names["names"][k] for k in names["truth"]
    ]
    assert Path("labelled.npz").is_file()
    assert Path("new.npz").is_file()


# --- commands -------------------------------------------------------------------------------------


def test_commands_exist() -> None:
    """Every `paddle-ext COMMAND --option` that a page shows is one."""
    pytest.importorskip("cyclopts", reason="needs cyclopts")
    from paddle_ext.app.cli.app import COMMANDS, app

    seen: dict[str, set[str]] = {}
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # which names commands of the past
            continue
        for shown in re.findall(
            r"(?:^|`) *(paddle-ext [a-z][^`\n]*)", page.read_text(), re.MULTILINE
        ):
            name, *words = shlex.split(shown, comments=True)[1:]
            if name not in seen:
                arguments = app[name].assemble_argument_collection()
                seen[name] = {"--help", *(each for one in arguments for each in one.names)}
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert options <= seen[name], f"{named(page)}: {shown}"
    # One of them is shown in a table only.
    assert seen.keys() | {"info"} == {command.__name__ for command in COMMANDS}


def test_scripts_exist() -> None:
    """So is every `python FOLDER/SCRIPT.py`, and every `make TARGET`."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for path in re.findall(r"\bpython ((?:\w+/)+\w+\.py)", page.read_text()):
            assert (ROOT / path).is_file(), f"{named(page)}: {path}"
        for target in re.findall(r"^make ([a-z]+)", page.read_text(), re.MULTILINE):
            assert target in targets, f"{named(page)}: make {target}"


# --- tables, pages and figures that follow the code -----------------------------------------------


TABLE_OF_METHODS = dict(
    re.findall(r"^\| (?=`(\w+)` \|)(.*)$", (ROOT / "docs/methods.md").read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("name", TABLE_OF_METHODS)
def test_table_of_the_methods(name: str) -> None:
    """A row has all options of its method and, for numbers, their defaults."""
    row = TABLE_OF_METHODS[name]
    for option in methods.describe(name):
        found = re.search(rf"`{option.name}` \(([^)]*)\)", row)
        assert found, option.name
        if isinstance(option.default, int | float) and not isinstance(option.default, bool):
            assert float(found[1].split(",")[0]) == option.default, option
    preset = type(methods.create(name)).presets.get("tiered", {})
    assert all(f"`{key}` {value:g}" in row for key, value in preset.items())


# Where public names are: those of `__all__`, or those given.
PUBLIC: dict[str, list[str]] = {
    "paddle_ext": [],
    "paddle_ext.methods": [],
    "paddle_ext.presence": [],
    "paddle_ext.prevalence": ["Prevalence", "from_sums"],
    "paddle_ext.reference": [],
    "paddle_ext.app.classify": [],
    "paddle_ext.integrations.easyfsl": [],
    "paddle_ext.integrations.model_selection": [],
    "paddle_ext.integrations.sklearn": ["PaddleClassifier"],
    "paddle_ext.research.backbones": [],
    "paddle_ext.research.data": [],
    "paddle_ext.research.tune": ["Tuning"],
}


def resolved(path: str) -> object:
    """The object that a page of the API names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def api_entries() -> list[str]:
    """What the pages of the API show, `::: path` each; the site reads it from the sources."""
    texts = [page.read_text() for page in sorted(ROOT.glob("docs/api/*.md"))]
    return [path for text in texts for path in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)]


@pytest.fixture
def sklearn() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")


@pytest.mark.usefixtures("easyfsl", "sklearn")
def test_api_pages_name_what_there_is() -> None:
    """Each entry is an object with a docstring, or a constant, and no entry comes twice."""
    entries = api_entries()
    assert len(set(entries)) == len(entries) > 80
    for path in entries:
        found = resolved(path)
        if callable(found):
            assert (found.__doc__ or "").strip(), path
        else:
            assert path.rpartition(".")[2].isupper(), path


@pytest.mark.usefixtures("easyfsl", "sklearn")
@pytest.mark.parametrize("module", PUBLIC)
def test_api_pages_have_everything(module: str) -> None:
    """Every public name of the package is on a page, by the name of this package or another."""
    shown = {id(resolved(path)) for path in api_entries()}
    package = importlib.import_module(module)
    for name in PUBLIC[module] or package.__all__:
        value = getattr(package, name)
        if name != "__version__" and not isinstance(value, ModuleType):
            assert id(value) in shown, f"{module}.{name}"


def test_packages_with_public_names() -> None:
    """Each package that lists its names is looked at above, except those that are inside only."""
    listing = {
        named(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in (ROOT / "paddle_ext").rglob("*.py")
        if re.search(r"^__all__ = ", path.read_text(), re.MULTILINE)
    }
    assert listing - {"paddle_ext.solvers", "paddle_ext.app.read"} <= set(PUBLIC)


def test_figure_of_the_architecture() -> None:
    drawing = script("docs/make_architecture.py")
    stale = "stale; run: python docs/make_architecture.py"
    assert drawing.FIGURE.read_text() == drawing.figure(), stale
    for name in drawing.LAYERS["native", "#e9e6f4"]:
        assert (ROOT / name).exists(), name


def test_figure_of_the_idea() -> None:
    drawing = script("docs/make_idea.py")
    assert drawing.FIGURE.read_text() == drawing.figure(), "stale; run: python docs/make_idea.py"


def test_figures_of_tables() -> None:
    """Each is drawn from the table of its page, and shown on a page."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    drawing = script("docs/make_figures.py")
    assert drawing.numbers("74.6 / -0.2 (0.45)") == [74.6, -0.2, 0.45]
    shown = "".join(page.read_text() for page in PAGES)
    for name, draw in drawing.FIGURES.items():
        assert f"figures/{name}.png" in shown, name
        assert draw().axes, name
    with pytest.raises(ValueError, match="no table with the columns"):
        drawing.table("prior.md", "no such column")


def test_every_figure_is_shown() -> None:
    shown = "".join(page.read_text() for page in PAGES)
    for path in (ROOT / "docs" / "figures").iterdir():
        assert f"figures/{path.name}" in shown, path.name


def test_paths_of_the_architecture() -> None:
    """Each file that the page names is there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:\w+/)+[a-z_]+\.(?:py|pyi|cpp|cu|h|inl|md))`", text)
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists() or (ROOT / "paddle_ext" / path).exists(), path


# --- examples of the docstrings, which the API pages show -----------------------------------------

EXAMPLES = sorted(
    named(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path in (ROOT / "paddle_ext").rglob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings(name: str, request: pytest.FixtureRequest) -> None:
    if name == "paddle_ext.integrations.easyfsl":
        request.getfixturevalue("easyfsl")
    if name == "paddle_ext.integrations.sklearn":
        pytest.importorskip("sklearn", reason="needs scikit-learn")
    torch.manual_seed(0)
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
