"""Text from files is shown without effect on a terminal or a spreadsheet."""

import pytest

from paddle_ext.text import encodable, plain_cell, printable, spreadsheet_cell


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
    ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1+1", "'=1", "''@x"],
)
def test_formulas_are_kept_from_spreadsheets(text: str) -> None:
    cell = spreadsheet_cell(text)
    assert cell == "'" + text
    assert plain_cell(cell) == text


@pytest.mark.parametrize("text", ["", "cat", "a=b", "-1", "+3", "-1.5e-7", "'tis", "1-2", " =1"])
def test_other_cells_stay(text: str) -> None:
    assert spreadsheet_cell(text) == text
    assert plain_cell(text) == text
