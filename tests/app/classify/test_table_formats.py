"""Tables of every format in, and one file of any format out, through the command."""

import datetime as dt
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow.parquet as pq
import pytest
from classify_data import (
    NAMES,
    embedding_files,
    embeddings,
    feature_columns,
    picture_folders,
    refused,
    said,
    table,
    write_table,
)

from paddle_ext.app.read.formats import excel_rows, table_rows

SUPPORT, LABELS, QUERY, TRUTH = embeddings()
DAY = dt.datetime(2026, 5, 17)
# Ids with leading zeros, dates, a text that would be a formula, and numbers among texts.
COLUMNS: dict[str, list[Any]] = {
    "id": [f"00{row}" for row in range(64)],
    "day": [DAY] * 64,
    "note": [None if row % 3 else f"=1+{row}" for row in range(64)],
    "mixed": [row if row % 2 else f"{row} apples" for row in range(64)],
    **feature_columns(np.concatenate([SUPPORT, QUERY])),
    "label": [*NAMES[LABELS].tolist(), *[None] * 40],
}
KEPT = ["id", "day", "note", "mixed", "label", "probability", "doubt"]
WHOLE = [*COLUMNS, "row", "source", "prediction", "probability", "doubt"]


def write(path: Path, columns: dict[str, list[Any]] = COLUMNS) -> Path:
    lines = list(zip(*columns.values(), strict=True))
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for line in (list(columns), *lines):
            book.active.append(line)
            for cell in book.active[book.active.max_row]:
                cell.data_type = "s" if isinstance(cell.value, str) else cell.data_type
        book.create_sheet("other").append(["something", "else"])
        book.save(path)
    elif path.suffix == ".csv":
        write_table(path, columns)
    else:
        records = [dict(zip(columns, line, strict=True)) for line in lines]
        if path.suffix == ".jsonl":
            text = "\n\n".join(json.dumps(record, default=str) for record in records)
        else:
            text = json.dumps(records, default=str, indent=1)
        path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".csv":
        return table(path)
    lines = list(openpyxl.load_workbook(path).active.iter_rows(values_only=True))
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def column(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".jsonl", ".json"])
def test_every_format_is_read(tmp_path: Path, suffix: str) -> None:
    told = said(write(tmp_path / f"table{suffix}"), "--id", "id", "--output", tmp_path)
    rows = read(tmp_path / "answers.csv")
    assert column(rows, "id") == COLUMNS["id"][24:]
    assert column(rows, "label") == NAMES[TRUTH].tolist()
    assert ("the sheet 'Sheet' of" in told) == ("was read, one of 2" in told) == (suffix == ".xlsx")
    lists = {"embedding": np.concatenate([SUPPORT, QUERY]).tolist(), "label": COLUMNS["label"]}
    if suffix.startswith(".json"):
        said(write(tmp_path / f"lists{suffix}", lists), "--output", tmp_path)
        assert column(read(tmp_path / "answers.csv"), "label") == NAMES[TRUTH].tolist()


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".jsonl"])
@pytest.mark.parametrize("target", ["all.csv", "all.xlsx", "all.parquet"])
def test_one_file_of_every_format_is_written(tmp_path: Path, suffix: str, target: str) -> None:
    """As the table that was read; Parquet without features and labelled rows."""
    output = tmp_path / target
    assert f"written: {output}" in said(write(tmp_path / f"table{suffix}"), "--output", output)
    rows, names = read(output), KEPT if output.suffix == ".parquet" else WHOLE
    assert list(rows[0]) == names
    if names == WHOLE:
        assert len(rows) == 64
        assert column(rows, "label")[:24] == COLUMNS["label"][:24]
        assert set(column(rows[:24], "source")) == {"given"}
        assert set(column(rows[24:], "source")) == {"predicted"}
        assert [int(row) for row in column(rows, "row")] == list(range(64))
        assert [float(x) for x in column(rows, "f3")] == pytest.approx(COLUMNS["f3"])
        rows = rows[24:]
    assert column(rows, "label") == NAMES[TRUTH].tolist()
    assert column(rows, "id") == COLUMNS["id"][24:]
    days = {str(day)[:10] for day in column(rows, "day")}
    assert days == {"2026-05-17"}
    formula = "'=1+24" if output.suffix == ".csv" else "=1+24"
    assert rows[0]["note"] == formula
    assert [str(cell) for cell in column(rows, "mixed")] == list(map(str, COLUMNS["mixed"][24:]))
    if output.suffix != ".csv":
        # Numbers, not text; openpyxl reads 1.0 as an integer.
        assert {type(x) for x in column(rows, "probability")} <= {int, float}
    if output.suffix == ".xlsx":
        assert openpyxl.load_workbook(output).active["C2"].data_type == "s"  # not a formula
        found, lines, _ = excel_rows(output)
        assert (found, lines[24][2]) == (names, "=1+24")
        assert isinstance(rows[0]["f3"], float)
    assert not (tmp_path / "answers.html").exists()


@pytest.mark.usefixtures("quick_network")
def test_images_and_arrays_into_one_file(tmp_path: Path) -> None:
    said(*picture_folders(tmp_path), "--output", tmp_path / "photos.xlsx")
    rows = read(tmp_path / "photos.xlsx")
    assert list(rows[0]) == ["file", "label", "probability", "doubt"]
    assert {row["file"].split("/")[1] for row in rows} == {"stripes", "chess"}
    said(*embedding_files(tmp_path), "--output", tmp_path / "all.csv")
    assert column(read(tmp_path / "all.csv"), "label") == NAMES[TRUTH].tolist()
    assert column(read(tmp_path / "all.csv"), "row") == list(map(str, range(40)))


def test_numbers_in_excel_are_those_of_the_table(tmp_path: Path) -> None:
    tiny, exact = [1e-9 * row for row in range(64)], [52.35526986960387, math.inf] * 32
    columns = COLUMNS | {"p": tiny, "lat": exact}
    path = write(tmp_path / "table.csv", columns)
    said(path, "--embedding", "f", "--output", tmp_path / "all.xlsx")
    found = read(tmp_path / "all.xlsx")
    assert [float(x) for x in column(found, "p")] == tiny
    assert [float(x) for x in column(found, "lat")] == exact


def test_a_text_too_long_for_excel_is_cut_with_a_note(tmp_path: Path) -> None:
    columns = COLUMNS | {"note": ["x" * 40_000] * 64}
    told = said(write(tmp_path / "table.csv", columns), "--output", tmp_path / "all.xlsx")
    assert "64 texts were cut to 32,767 characters, the limit of Excel" in told
    assert len(read(tmp_path / "all.xlsx")[0]["note"]) == 32_767


def workbook(path: Path, **sheets: list[list[Any]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, lines in sheets.items():
        sheet = book.create_sheet(title)
        for line in lines:
            sheet.append(line)
    book.save(path)
    return path


PLANTS = [
    ["x", "y", "Art"],
    [1.5, 2, "ash"],
    [1, 2.5, "ash"],
    [7, 9.5, "elm"],
    [8, 9, "elm"],
    [8, 8],
]
NOTHING = [["Read me"], ["This file has plants."]]


def test_the_sheet_with_the_columns_is_read(tmp_path: Path) -> None:
    """Not a first one of remarks; --sheet reads another."""
    animals = [
        [*PLANTS[0]],
        *([x, y, {"ash": "owl", "elm": "cat"}[name]] for x, y, name in PLANTS[1:5]),
        [7, 7],
    ]
    path = workbook(tmp_path / "a.XLSX", Info=NOTHING, Plants=PLANTS, Animals=animals)
    words = (path, "--label", "Art", "--output", tmp_path)
    assert "the sheet 'Plants' of" in said(*words)
    assert column(read(tmp_path / "answers.csv"), "label") == ["elm"]
    said(*words, "--sheet", "Animals")
    assert column(read(tmp_path / "answers.csv"), "label") == ["cat"]
    told = refused(*words, "--sheet", "Animal")
    assert "--sheet must be a sheet of" in told
    assert "('Info', 'Plants', 'Animals'), got 'Animal' (did you mean 'Animals'?)" in told
    (tmp_path / "b.csv").write_text("x,y,label\n1,2,a\n7,8,b\n7,7,\n")
    told = refused(tmp_path / "b.csv", "--sheet", "Animals")
    assert "--sheet must be omitted unless there is a workbook of Excel" in told


@pytest.mark.parametrize("name", ["a.xlsx", "a.csv", "b.CSV", "short.csv"])
def test_titles_above_the_columns(tmp_path: Path, name: str) -> None:
    """Rows count from the first below the names; a line of a single cell has no separators."""
    titles, path = [["Plants, 2026", None, None], [None, "by me", None]], tmp_path / name
    lines = [*titles, *PLANTS[:-1], [8, 8, None]]
    if name == "a.xlsx":
        workbook(path, Plants=lines)
    else:
        cells = [["" if cell is None else str(cell) for cell in line] for line in lines]
        text = "\n".join(";".join(line) for line in cells) + "\n"
        path.write_text(
            text.replace("Plants, 2026;;\n;by me;\n", "Plants\n\n") if "short" in name else text
        )
    told = said(path, "--label", "Art", "--output", tmp_path)
    assert f"the first 2 rows of {path}, above the names of the columns, were left out" in told
    assert "features: 2 columns, x to y" in told
    header, cells = table_rows(tmp_path / "answers.csv")
    row = dict(zip(header, cells, strict=True))
    assert (row["row"], row["label"]) == ("4", "elm")


def test_an_odd_row_below_titles_is_named_as_rows_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Plants;;\n;;\nx;y;label\n1;2;a\n3;4;b\n5;6\n")
    assert "got 2 in row 2" in refused(tmp_path / "a.csv", "--sep", ";")


def test_a_column_without_a_name_is_no_title(tmp_path: Path) -> None:
    """As pandas writes row numbers; also where a cell is called like a column."""
    path = tmp_path / "a.csv"
    path.write_text(",x,y,label\n0,1,2,label\n1,7,8,class\n2,7,7,\n")
    assert "were left out" not in said(path, "--output", tmp_path)


def test_other_spreadsheets_get_advice(tmp_path: Path) -> None:
    (tmp_path / "a.XLS").write_bytes(b"old")
    told = refused(tmp_path / "a.XLS", "--label", "Art")
    assert "must end in one of" in told
    assert "save it as .xlsx" in told


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{}", "must have objects with the columns as keys"),
        ("a.json", b"[1]", "must have objects with the columns as keys"),
        ("a.json", b"[{]", "must be JSON, got one that cannot be read"),
        ("a.jsonl", b'{"a": 1}\n{"a"', "with an object in line 2, got one that cannot be read"),
        ("a.xlsx", b"PK nothing", "must be a workbook of Excel, got one that cannot be read"),
        ("a.jsonl", b"", "must begin with unique column names, got none"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refused(tmp_path / name, "--output", tmp_path)


DEEP = {  # files, and how deep they are
    "lists.jsonl": ('{"a": 1}\n{"a": ' + 900 * "[" + 900 * "]" + "}", 901),
    "objects.json": ('[{"a": ' + 900 * '{"]": [' + 900 * "]}" + "}]", 1802),
    "without-an-end.json": (20_000 * "[", 20_000),
}


@pytest.mark.parametrize("name", DEEP)
def test_deeply_nested_json(tmp_path: Path, name: str) -> None:
    """Refused before Arrow takes gigabytes for it."""
    text, depth = DEEP[name]
    (tmp_path / name).write_text(text)
    told = refused(tmp_path / name, "--output", tmp_path)
    assert (
        f"{name} must have lists and objects at most 64 deep inside each other, got {depth}" in told
    )


def test_brackets_in_texts_do_not_nest(tmp_path: Path) -> None:
    """Neither those after an escaped quotation mark, nor in a text without an end, at once."""
    rows = [{"a": k % 3, "b": k / 9, "note": 99 * '\\"[{'} for k in range(9)]
    rows = [row | {"label": "xyz"[row["a"]] if k < 6 else None} for k, row in enumerate(rows)]
    (tmp_path / "texts.json").write_text(json.dumps(rows))
    said(tmp_path / "texts.json", "--output", tmp_path / "answers.csv")
    (tmp_path / "open.json").write_text('[{"a": "' + 100_000 * '\\"[' + "\\")
    assert "must be JSON, got one that cannot be read" in refused(tmp_path / "open.json")


def test_excel_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    for words in (["table.xlsx"], ["table.csv", "--output", "all.xlsx"]):
        (tmp_path / words[0]).write_text("a,label\n1,x\n2,y\n3,\n")
        monkeypatch.chdir(tmp_path)
        told = refused(*words)
        assert "an .xlsx file needs openpyxl, which is not installed: pip install" in told
        assert "paddle_ext[excel]" in told
