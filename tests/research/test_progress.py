"""Progress of long jobs: silent, plain lines, or a bar of rich on a terminal."""

import io
import sys

import pytest

from paddle_ext import progress as module
from paddle_ext.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(show: bool = True) -> None:
    with Progress("counting", 4, show=show) as progress:
        for number in range(4):
            progress.advance(note=f"step {number}")
        progress.line("all [bold] done")


def test_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    work()
    assert capsys.readouterr().err == "all [bold] done\n"  # the rest was too quick
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    work()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "counting 1/4 step 0"
    assert lines[3:] == ["counting 4/4 step 3", "all [bold] done"]


def test_silent(capsys: pytest.CaptureFixture[str]) -> None:
    work(show=False)
    assert capsys.readouterr() == ("", "")


def test_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="needs rich")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    work()
    written = sys.stderr.getvalue()
    assert "counting" in written
    assert "4/4" in written
    assert "all [bold] done" in written


def test_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    work()
    assert sys.stderr.getvalue() == "all [bold] done\n"
