"""The structure of the package: three layers, imports that go down, lazy loading."""

import ast
import importlib.util
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from scripts import ROOT, run_code, script

import paddle_ext

PACKAGE = ROOT / "paddle_ext"
LAYERS = ("core", "research", "app")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports(name: str) -> set[str]:
    """The modules of this package that a module imports, wherever in its code."""
    path = SOURCES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            base = importlib.util.resolve_name("." * node.level + base, package)
        inner = {f"{base}.{alias.name}" for alias in node.names}
        found |= {one if one in SOURCES else base for one in inner}
    return {one for one in found if one in SOURCES} - {name, "paddle_ext"}


@cache
def graph() -> dict[str, set[str]]:
    """The package itself loads public names from anywhere, on first use."""
    return {name: imports(name) for name in SOURCES if name != "paddle_ext"}


def layer(name: str) -> int:
    first = name.split(".")[1:2]
    return LAYERS.index(first[0]) if first and first[0] in LAYERS else 0


def test_layers_import_downwards() -> None:
    for name, others in graph().items():
        if name == "paddle_ext.__main__":  # the command itself
            continue
        for other in others:
            assert layer(name) >= layer(other), f"{name} imports {other}"


def test_no_import_cycles() -> None:
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")


def test_the_reference_is_an_oracle() -> None:
    """Nothing in the package uses it, and it shares no arithmetic with the code it checks."""
    inside = {name for name in SOURCES if name.startswith("paddle_ext.reference")}
    users = {name for name, others in graph().items() if others & inside} - inside
    assert users == set()
    for name in inside:
        assert graph()[name] - inside <= {"paddle_ext.solution"}, name


def private_names_of_torch(path: Path) -> set[str]:
    """Such as `torch._C`, as it is used in a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        dotted = []
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            dotted = [ast.unparse(node)]
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name for name in dotted if re.match(r"torch\b.*\._(?!_)", name)}
    return found


def test_only_the_public_functions_of_torch_are_used() -> None:
    """Others change from version to version."""
    found = {name: private_names_of_torch(path) for name, path in SOURCES.items()}
    assert {name: used for name, used in found.items() if used} == {}


def test_layers_of_the_figure() -> None:
    """Imports go down, and the figure shows every part."""
    names = [
        name for parts in script("docs/make_architecture.py").LAYERS.values() for name in parts
    ]
    places = {
        name.removesuffix(".py").replace("/", "."): place
        for place, name in enumerate(names)
        if not name.startswith("csrc")
    }

    def part(name: str) -> str:
        words = name.split(".")[1:]
        return ".".join(words[:2] if words[0] in LAYERS else words[:1])

    drawn = {part(name) for name in graph()} - {"research", "app", "__main__"}
    assert drawn == set(places)
    for name, others in graph().items():
        for other in others:
            if part(name) in places and part(other) != part(name):
                assert places[part(name)] < places[part(other)], f"{name} imports {other}"


def test_importing_the_package_does_not_import_torch() -> None:
    """Nor does it need the native module."""
    use = "import sys; sys.modules['paddle_ext._native'] = None; "
    use += "import paddle_ext; paddle_ext.__version__; dir(paddle_ext)"
    (loaded,) = run_code(f"{use}; print(sorted(sys.modules))")
    assert "'torch'" not in loaded
    assert "'numpy'" not in loaded


def test_first_use_in_several_threads_and_without_optional_libraries() -> None:
    """What needs one says so in a sentence."""
    use = """
import importlib, sys, threading
for name in ("pandas", "pyarrow", "sklearn", "easyfsl", "ray", "pyspark"):
    sys.modules[name] = None
import paddle_ext
names = ["adapt", "tim", "adaptive", "solve", "sinkhorn", "methods", "BatchClassifier", "FileRows"]
barrier, found = threading.Barrier(len(names)), []

def load(name):
    barrier.wait()
    found.append(getattr(paddle_ext, name))

threads = [threading.Thread(target=load, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == len(names)
from paddle_ext import *
BatchClassifier([[0.0, 1], [1, 0]], [0, 1])({"embedding": [[0.0, 1]]})
for module in ("sklearn", "easyfsl"):
    try:
        importlib.import_module(f"paddle_ext.integrations.{module}")
    except ImportError as error:
        print(error)
"""
    sklearn, easyfsl = run_code(use)
    assert "needs scikit-learn" in sklearn
    assert "pip install easyfsl" in easyfsl


def test_help_does_not_import_torch() -> None:
    pytest.importorskip("cyclopts", reason="needs cyclopts")
    code = """
import sys
from paddle_ext.app.cli import main
for words in (["--help"], ["classify", "--help"]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit:
        pass
    assert "torch" not in sys.modules
"""
    assert "".join(run_code(code)).count("Usage") == 2


def test_public_names() -> None:
    """All are there and listed, and type checkers see the right modules."""
    for name in (*paddle_ext.__all__, "PaddleClassifier", "research", "integrations"):
        assert name in dir(paddle_ext)
        if name != "PaddleClassifier":
            assert getattr(paddle_ext, name) is not None
    declared = {}
    for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            declared |= {alias.name: node.module or "" for alias in node.names}
    for name, module in paddle_ext._MODULES.items():
        assert module == declared[name], name
    with pytest.raises(AttributeError, match="has no attribute 'slove'"):
        paddle_ext.slove  # noqa: B018
