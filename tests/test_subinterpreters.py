"""In a subinterpreter, where torch never finishes loading, importing the package is an error."""

import importlib.util
import subprocess
import sys

import pytest

# Python 3.13 and later have the first of these modules, earlier ones the second.
MODULES = ("_interpreters", "_xxsubinterpreters")
PROGRAM = """
import sys
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
print_error = f"try: {sys.argv[1]}\\nexcept ImportError as error: print(error, flush=True)"
run(interpreters.create(), print_error)
import paddle_ext
print("and the main one:", paddle_ext.__name__)
"""
SENTENCE = (
    "paddle_ext needs torch, which cannot be loaded in a subinterpreter of Python: import it "
    "in the main one; with mod_wsgi, set WSGIApplicationGroup %{GLOBAL}"
)


@pytest.mark.skipif(
    not any(map(importlib.util.find_spec, MODULES)), reason="needs a Python with subinterpreters"
)
@pytest.mark.parametrize("imported", ["paddle_ext", "paddle_ext._native", "paddle_ext.solvers"])
def test_an_import_is_an_error(imported: str) -> None:
    """At once, in one sentence; the main interpreter is not disturbed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"import {imported}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == [SENTENCE, "and the main one: paddle_ext"], done.stderr
