"""The native module, loaded on first use, so that importing the package never fails."""

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import _native

    module = _native  # so that calls are checked against _native.pyi
else:

    class Module:
        """Stands in for the native module; the first use of a function loads it."""

        def __getattr__(self, name: str) -> object:
            function = getattr(load(), name)
            setattr(self, name, function)
            return function

    module = Module()

NAME = "paddle_ext._native"
DRIVERS = {"12": "525", "13": "580"}  # the oldest, by the version of CUDA, on Linux
PACKAGE = Path(__file__).parents[1]


@cache
def version() -> str:
    """The version in the metadata of the installed package."""
    try:
        return importlib.metadata.version("paddle_ext")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"  # used from a source tree


@cache
def load() -> ModuleType:
    """Return the native module, or raise a one-sentence error that says what to do.

    In a source tree, which hides the installed package behind it, this is the installed module.
    """
    hidden = None if importlib.util.find_spec(NAME) else installed_file()
    if hidden is not None:
        check_same(hidden)
        sys.modules["paddle_ext"].__path__.append(str(hidden.parent))
    try:
        return importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        raise ImportError(
            "the native module of paddle_ext is not built: run `pip install .` in its source tree, "
            "or use paddle_ext.reference"
        ) from error
    except ImportError as error:
        raise ImportError(
            f"the native module of paddle_ext cannot be loaded ({error}): rebuild it on this "
            "machine with `pip install .`, or use paddle_ext.reference"
        ) from error
    finally:
        if hidden is not None:  # nothing else is to come from there
            sys.modules["paddle_ext"].__path__.pop()


def installed_file() -> Path | None:
    """The native module of an installed package that these sources hide."""
    try:
        files = importlib.metadata.files("paddle_ext") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [
        Path(str(file.locate()))
        for file in files
        if re.fullmatch(r"_native\..*(so|pyd)", file.name)
    ]
    return next((path for path in paths if path.parent != PACKAGE and path.is_file()), None)


def check_same(installed: Path) -> None:
    """Raise an error unless an installed native module is of these sources."""
    project = PACKAGE.parent / "pyproject.toml"
    text = project.read_text() if project.exists() else ""
    own = re.search(r'^version = "(.+?)"', text, re.MULTILINE)
    stubs = [folder / "_native.pyi" for folder in (PACKAGE, installed.parent)]
    if own is None or own[1] != version():
        differs = f"is of version {version()}, and not {own[1] if own else 'known here'}"
    elif len({path.read_text() if path.exists() else "" for path in stubs}) > 1:
        differs = "was built from other sources"
    else:
        return
    raise ImportError(
        f"{PACKAGE.parent} hides the installed paddle_ext, whose native module in "
        f"{installed.parent} {differs}: run `pip install .` again, or leave the source tree"
    )


@cache
def has_cuda() -> bool:
    """Return whether the native module has CUDA kernels; does not touch CUDA."""
    return bool(module.build_info()["cuda"])


def build_info() -> dict[str, Any]:
    """Return the properties of this build of paddle_ext.

    They are ``version``; ``cuda`` (bool), ``cuda_version``, ``cuda_architectures`` and ``driver``,
    the oldest that runs this code (empty without CUDA); ``simd`` (the level in use) and
    ``simd_levels`` (those this machine can use); ``compiler``.

    Examples
    --------
    >>> import paddle_ext
    >>> paddle_ext.build_info()["version"] == paddle_ext.__version__
    True
    """
    info = module.build_info()
    driver = DRIVERS.get(info["cuda_version"].partition(".")[0], "")
    return {"version": version(), **info, "driver": driver}
