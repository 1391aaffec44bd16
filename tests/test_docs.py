"""What the documents show works: their Python code runs, their links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md"])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_code_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - our own README
    assert capsys.readouterr().out.startswith("tensor([ 3, 14, 15])")
    solution = names["solution"]
    assert solution.labels.tolist() == [3, 14, 15] * 25
