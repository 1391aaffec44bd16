"""The demo in a process of its own, as a newcomer starts it."""

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ext.demo import parse

SMALL = ["--tasks", "6", "--classes", "30", "--present", "3", "--shots", "3", "--queries", "24"]


def run_demo(
    folder: Path, *arguments: str, without: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run it in a folder; the modules in `without` behave as if they were not installed."""
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    code = f"import sys; {hide}from paddle_ext.demo import main; sys.exit(main(sys.argv[1:]))"
    start = ["-m", "paddle_ext.demo"] if not without else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def accuracy(output: str, method: str) -> float:
    found = re.search(rf"{method}\W+([0-9.]+) ± [0-9.]+", output)
    assert found, output
    return float(found[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(folder):
    """One run with rich and matplotlib, if they are installed."""
    return run_demo(folder, *SMALL, "--output", "new/folder/picture.png")


def test_compares_the_methods(done):
    assert done.returncode == 0, done.stderr
    assert "30 candidate classes" in done.stdout
    paddle = accuracy(done.stdout, "PADDLE")
    assert paddle > accuracy(done.stdout, "nearest prototype")
    assert paddle > accuracy(done.stdout, "soft K-means")
    assert re.search(r"^  truth +\d+: \d+ %  \d+: \d+ %  \d+: \d+ %$", done.stdout, re.MULTILINE)


def test_picture(done, folder):
    pytest.importorskip("matplotlib")
    assert done.returncode == 0, done.stderr
    picture = (folder / "new/folder/picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width >= 1000
    assert height >= 400
    assert len(picture) > 20_000  # more than empty axes


def test_without_rich_and_matplotlib(done, tmp_path):
    plain = run_demo(tmp_path, *SMALL, without=("rich", "matplotlib"))
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.count("pip install 'paddle_ext[demo]'") == 2
    assert not list(tmp_path.iterdir())
    # The same seed gives the same figures, whatever shows them.
    for method in ("nearest prototype", "soft K-means", "PADDLE"):
        assert accuracy(plain.stdout, method) == accuracy(done.stdout, method)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "0"], "--tasks must be at least 1, got 0"),
        (["--classes", "4", "--present", "5"], "--present must be at most --classes, got 5"),
    ],
)
def test_bad_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        parse(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as error:
        parse(["--help"])
    assert error.value.code == 0
    assert "python -m paddle_ext.demo --tasks 1000" in capsys.readouterr().out
