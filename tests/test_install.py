"""What installing promises: extras, one version, and the plan of `make test-install`."""

import importlib.metadata
import re
from types import ModuleType

import pytest
from scripts import ROOT, script


@pytest.fixture(scope="module")
def plan() -> ModuleType:
    """The script that runs the commands of the pages."""
    return script("tools/install/pages.py")


def extras() -> set[str]:
    """Of pyproject.toml, without a parser, which Python 3.10 does not have."""
    text = (ROOT / "pyproject.toml").read_text()
    (section,) = re.findall(
        r"^\[project\.optional-dependencies\]\n(.*?)^\[", text, re.MULTILINE | re.DOTALL
    )
    return set(re.findall(r"^([\w-]+) = ", section, re.MULTILINE))


def test_extras_that_pages_name_exist() -> None:
    known = extras()
    assert {"cli", "classify", "text", "sklearn"} <= known
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for named in re.findall(r"(?:paddle_ext|\.)\[([\w,-]+)\]'", page.read_text()):
            assert set(named.split(",")) <= known, f"{page.name}: {named}"


def test_extras_of_the_installation_are_those_of_the_sources() -> None:
    assert set(importlib.metadata.metadata("paddle_ext").get_all("Provides-Extra")) == {
        name.replace("_", "-") for name in extras()
    }


def test_every_command_says_what_to_install(plan: ModuleType) -> None:
    """The command itself needs the extra cli: a page that shows one names an extra before it."""
    known = 0
    for page in plan.pages():
        for part in plan.parts(page):
            commands = [line for line in part.commands if line.startswith("paddle-ext")]
            assert part.extras or not commands, f"{page.name}: {commands}"
            known += len(commands)
    assert known > 25


def test_version_is_in_one_place() -> None:
    """The sources say it once; the changelog and the citation must not need a change with it."""
    (version,) = re.findall(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert version == importlib.metadata.version("paddle_ext")
    sources = [*ROOT.glob("paddle_ext/**/*.py"), *ROOT.glob("csrc/**/*.*"), ROOT / "CMakeLists.txt"]
    assert not [path for path in sources if f'"{version}"' in path.read_text()]
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")
