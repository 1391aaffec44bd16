"""What the documents show works: their Python code runs, their links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

from paddle_ext import methods

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md"])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def run_code_of(page: str) -> dict[str, object]:
    """Run the one block of Python code of a page; returns its names."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - our own pages
    return names


def test_code_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_code_of("README.md")
    assert capsys.readouterr().out.startswith("tensor([ 3, 14, 15])")
    solution = names["solution"]
    assert solution.labels.tolist() == [3, 14, 15] * 25


def test_code_of_the_methods(capsys: pytest.CaptureFixture[str]) -> None:
    run_code_of("docs/methods.md")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["simpleshot", "bd_cspn", "paddle"]
    simpleshot, _, paddle = (float(line[3]) for line in lines)
    assert 70 < simpleshot < paddle


def test_code_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    run_code_of("docs/data.md")
    assert 0.5 < float(re.findall(r"tensor\((0\.\d+|1\.)", capsys.readouterr().out)[0]) <= 1


@pytest.mark.parametrize("name", methods.available())
def test_table_of_the_methods(name: str) -> None:
    """Each method has a row, with all its options and, for numbers, their defaults."""
    page = (ROOT / "docs" / "methods.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
    for option in methods.describe(name):
        found = re.search(rf"`{option.name}` \(([^)]*)\)", row)
        assert found, option.name
        if isinstance(option.default, int | float) and not isinstance(option.default, bool):
            assert float(found[1].split(",")[0]) == option.default, option
    preset = type(methods.create(name)).presets["tiered"]
    assert all(f"`{key}` {value:g}" in row for key, value in preset.items())
