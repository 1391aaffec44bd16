"""The command ``paddle-ext``; its parts import heavy libraries only when they run."""

import sys


def main() -> None:
    try:
        from .app import run

        sys.exit(run(sys.argv[1:]))
    except ModuleNotFoundError as error:
        if error.name not in ("cyclopts", "rich"):
            raise
        sys.exit(
            f"the command needs {error.name}, which is not installed: pip install 'paddle_ext[cli]'"
        )
    except KeyboardInterrupt:  # while the libraries are loaded
        sys.stderr.write("paddle-ext: interrupted\n")
        sys.exit(130)
