"""The native module, loaded on first use, so that importing the package never fails."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..version import version

if TYPE_CHECKING:
    from .. import _native

    module = _native  # so that calls are checked against _native.pyi
else:

    class Module:
        """Stands in for the native module; the first use of a function loads it."""

        def __getattr__(self, name: str) -> object:
            found = getattr(load(), name)
            setattr(self, name, found)
            return found

    module = Module()

NAME = "paddle_ext._native"


@cache
def load() -> ModuleType:
    """Return the native module, or raise a one-sentence error that says what to do."""
    try:
        return importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        raise ImportError(
            "the native module of paddle_ext is not built: run `pip install .` in its source tree, "
            "or pass backend='reference'"
        ) from error
    except ImportError as error:
        raise ImportError(
            f"the native module of paddle_ext cannot be loaded ({error}): rebuild it on this "
            "machine with `pip install .`, or pass backend='reference'"
        ) from error


@cache
def has_cuda() -> bool:
    """Return whether the native module has CUDA kernels; does not touch CUDA."""
    return bool(module.build_info()["cuda"])


def build_info() -> dict[str, Any]:
    """Return the properties of this build of paddle_ext.

    Returns
    -------
    dict
        ``version``; ``cuda`` (bool), ``cuda_version`` and ``cuda_architectures`` (empty without
        CUDA); ``simd`` (the level in use) and ``simd_levels`` (those this machine can use);
        ``compiler``.

    Examples
    --------
    >>> import paddle_ext
    >>> sorted(paddle_ext.build_info())
    ['compiler', 'cuda', 'cuda_architectures', 'cuda_version', 'simd', 'simd_levels', 'version']
    """
    return {"version": version(), **module.build_info()}
