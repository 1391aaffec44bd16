"""Scripts outside the package, loaded as modules; and code in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def script(path: str) -> ModuleType:
    """The script at a path of the repository, such as docs/check_words.py, without running it."""
    name = f"script_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def ended(
    code: str, *arguments: object, cwd: Path | None = None, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A process that ran Python code."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_code(code: str, *arguments: object, **options: Any) -> list[str]:
    """The lines that Python code prints; it must succeed."""
    done = ended(code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
