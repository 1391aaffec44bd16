"""The source files of a method of one's own, by which results of an edited one are recognised."""

import ast
import hashlib
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path

from .base import Method, attributes_of, fields_of

PACKAGE = __name__.partition(".")[0]
INSTALLED = {"site-packages", "dist-packages"}  # folders of what pip installs
STARTED = time.time()


def source_digest(method: Method) -> str | None:
    """A digest of the source of a method; "" for one of this package, which has a version.

    It covers the whole files of the classes of the method, and the files that these import, except
    for installed libraries. None where files do not say everything: a class of a notebook or of a
    function, an object with attributes that are no options, a file edited since the program began,
    whose old code may still run.
    """
    classes = type(method).__mro__
    own = classes[0].__module__.partition(".")[0]
    if own == PACKAGE:
        return ""
    options = {field.name for field in fields_of(method)}
    if attributes_of(method) - options or any("<locals>" in x.__qualname__ for x in classes):
        return None
    sources: dict[str, bytes] = {}
    modules = [cls.__module__ for cls in classes]
    while modules:
        name = modules.pop()
        if name in sources or not is_own(name, own):
            continue
        file = file_of(name)
        if file is None and name in sys.modules and not hasattr(sys.modules[name], "__path__"):
            return None  # a notebook
        if file is None:  # a folder of modules, or the name of something in a module
            continue
        if file.stat().st_mtime > STARTED:
            return None
        sources[name] = file.read_bytes()
        modules += imported(sources[name], name)
    result = hashlib.blake2b(digest_size=10)
    for name, source in sorted(sources.items()):
        result.update(f"{name} {len(source)} ".encode() + source)
    return result.hexdigest()


def is_own(module: str, own: str) -> bool:
    """Whether a module belongs to the package `own`, or to no installed library."""
    top = module.partition(".")[0]
    if top == own:
        return True
    if top == PACKAGE or top in sys.stdlib_module_names:
        return False
    file = file_of(top)
    return file is None or INSTALLED.isdisjoint(file.parts)


def file_of(module: str) -> Path | None:
    """The file of a module; one that is not loaded is found without loading it."""
    if module in sys.modules:
        place = getattr(sys.modules[module], "__file__", None)
    else:
        spec = spec_of(module)
        place = spec.origin if spec is not None and spec.has_location else None
    return Path(place) if place is not None and Path(place).is_file() else None


def spec_of(module: str) -> ModuleSpec | None:
    """Where a module would be loaded from."""
    package = module.rpartition(".")[0]
    if not package:
        return PathFinder.find_spec(module)
    around = spec_of(package)
    folders = None if around is None else around.submodule_search_locations
    return None if folders is None else PathFinder.find_spec(module, folders)


def imported(source: bytes, module: str) -> Iterator[str]:
    """The modules that a source may import: both a and a.b of ``from a import b``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a compiled module
        return
    package = getattr(sys.modules.get(module), "__package__", None) or module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            try:
                name = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # beyond the top, or of no package
                continue
            yield from with_packages(name)
            yield from (f"{name}.{alias.name}" for alias in node.names)


def with_packages(module: str) -> Iterator[str]:
    """A module, and the packages around it, which are loaded first."""
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))
