"""Progress of long jobs, and text from files without effect on a terminal or a spreadsheet."""

import io
import sys

import pytest

from paddle_ext import progress as module
from paddle_ext.progress import Progress
from paddle_ext.text import encodable, plain_cell, printable, spreadsheet_cell


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


# --- text -----------------------------------------------------------------------------------------


def test_nothing_reaches_a_terminal_that_it_could_obey() -> None:
    every = "".join(map(chr, range(0x100))) + "\u202e\u2066\ud800\udce9"
    shown = printable(every)
    kept = {chr(code) for code in range(0x20, 0x7F)} | {"\n", "\t"}
    assert set(shown) - kept == {chr(code) for code in range(0xA0, 0x100)}
    shown.encode("utf-8")
    assert printable("Grüße 漢字 \U0001f600") == "Grüße 漢字 \U0001f600"


@pytest.mark.parametrize("text", ["\ud800", "a\udcff", "\ud83d\ude00"])
def test_anything_can_be_written_in_utf_8(text: str) -> None:
    encodable(text).encode("utf-8")


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "＝1+1", "'=1", "''@x"],
)
def test_formulas_are_kept_from_spreadsheets(text: str) -> None:
    cell = spreadsheet_cell(text)
    assert cell == "'" + text
    assert plain_cell(cell) == text


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("hello;=1+1", "hello;'=1+1"),
        ("a\n=1\r\n@b;;-c", "a\n'=1\r\n'@b;;'-c"),
        ("\r=1", "'\r'=1"),
        ("a;'=1;''+", "a;''=1;'''+"),
        ("a;' =1; =1;x", "a;' =1; =1;x"),
    ],
)
def test_formulas_within_a_cell(text: str, cell: str) -> None:
    """Where semicolons separate cells, or a line break ends one, they would begin another."""
    assert spreadsheet_cell(text) == cell
    assert plain_cell(cell) == text


@pytest.mark.parametrize(
    "text", ["", "cat", "a=b", "-1", "+3", "-1.5e-7", "-1.234,5", "'tis", "1-2", " =1"]
)
def test_other_cells_stay(text: str) -> None:
    assert spreadsheet_cell(text) == text
    assert plain_cell(text) == text
