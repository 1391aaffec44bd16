"""Import optional libraries."""

import importlib
from typing import Any


def library(module: str, needed_by: str, packages: str) -> Any:
    """Import a library, or raise an error of one sentence: what needs it, and what to install."""
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except Exception as error:  # a library built for another torch raises anything
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise ImportError(
                f"{needed_by} needs {package}, which is not installed: pip install {packages}"
            ) from None
        raise ImportError(f"{needed_by} needs {module}, which is broken here: {error}") from error
