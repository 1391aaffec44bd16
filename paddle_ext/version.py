"""The version of the installed package."""

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """The version in the metadata of the installed package."""
    try:
        return importlib.metadata.version("paddle_ext")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"  # used from a source tree
