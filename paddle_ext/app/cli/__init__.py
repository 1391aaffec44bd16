"""The command ``paddle-ext``: `main` runs it.

Each command has a module; all of them import what is heavy only when they run.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command with the arguments of the process."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"the command needs {error.name}, which is not installed: pip install 'paddle_ext[cli]'"
        )
    app(prog_name="paddle-ext")
