"""The way back to the user's own spreadsheet, from one file and from `--final`."""

import codecs
import datetime as dt
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from classify_data import NAMES, embeddings, picture_folders, said, table, write_table

SUPPORT, LABELS, QUERY, TRUTH = embeddings(features=4)
ROWS = 64
RESULTS = ["row", "source", "prediction", "probability", "doubt"]


def own_table(comma: bool) -> dict[str, list[Any]]:
    """Labelled rows between the others, and columns that no method uses."""
    numbers = [*SUPPORT.tolist(), *QUERY.tolist()]
    labels = [*NAMES[LABELS].tolist(), *[""] * len(QUERY)]
    order = sorted(range(ROWS), key=lambda row: (7 * row) % ROWS)

    def cell(number: float) -> str:
        return f"{number:.3f}".replace(".", "," if comma else ".")

    return {
        "Ticket No": [f"00{row}" for row in range(ROWS)],
        "Größe": [cell(numbers[row][0]) for row in order],
        "Topic": [labels[row] for row in order],
        "b": [cell(numbers[row][1]) for row in order],
        "c": [cell(numbers[row][2]) for row in order],
        "d": [cell(numbers[row][3]) for row in order],
        "Opened by": [f"=cmd{row}" if row % 9 == 0 else f"Brücke {row}" for row in range(ROWS)],
    }


def workbook(path: Path, columns: dict[str, list[Any]]) -> Path:
    book = openpyxl.Workbook()
    for line in (list(columns), *zip(*columns.values(), strict=True)):
        book.active.append([None if cell == "" else cell for cell in line])
    book.save(path)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    header, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize("option", ["--output", "--final"])
@pytest.mark.parametrize("separator", [";", ","])
def test_the_users_csv_comes_back(tmp_path: Path, option: str, separator: str) -> None:
    """All columns and rows in their order, the label column filled in, the results after them."""
    columns = own_table(comma=separator == ";")
    source, back = tmp_path / "tickets.csv", tmp_path / "back.csv"
    write_table(source, columns, separator)
    folder = () if option == "--output" else ("--output", tmp_path / "out")
    said(source, "--label", "Topic", "--embedding", "Größe,b,c,d", option, back, *folder)
    rows = table(back, separator)
    assert list(rows[0]) == [*columns, *RESULTS]
    for name in columns:
        if name != "Topic":
            quoted = name == "Opened by"  # a formula; no number is one
            cells = [row[name].removeprefix("'") if quoted else row[name] for row in rows]
            assert cells == columns[name], name
    for row, given in zip(rows, columns["Topic"], strict=True):
        assert (row["source"] == "given") == bool(given)
        assert row["Topic"] == given or row["source"] == "predicted"
        assert row["prediction"] == ("" if given else row["Topic"])
    assert {row["Topic"] for row in rows} <= {*NAMES}
    assert [row["row"] for row in rows] == list(map(str, range(ROWS)))
    point = "," if separator == ";" else "."
    assert {row["probability"][1:2] for row in rows if row["source"] == "predicted"} == {point}
    assert back.read_bytes().startswith(codecs.BOM_UTF8)


def test_all_tables_are_for_the_spreadsheet_that_made_the_file(tmp_path: Path) -> None:
    """Semicolons and decimal commas in, semicolons and decimal commas out; marked as UTF-8."""
    source = write_table(tmp_path / "tickets.csv", own_table(comma=True), ";")
    out = tmp_path / "out"
    said(source, "--label", "Topic", "--embedding", "Größe,b,c,d", "--suggest", 3, "--output", out)
    for name in ("answers.csv", "classes.csv", "labelled.csv", "suggestions.csv"):
        assert (out / name).read_bytes().startswith(codecs.BOM_UTF8), name
        assert len(table(out / name, ";")[0]) > 3, name
    assert table(out / "answers.csv", ";")[0]["doubt"][1] == ","
    plain = write_table(tmp_path / "plain.csv", own_table(comma=False), ";")
    said(plain, "--label", "Topic", "--embedding", "Größe,b,c,d", "--output", out)
    assert table(out / "answers.csv", ";")[0]["doubt"][1] == "."


@pytest.mark.usefixtures("quick_network")
def test_excel_knows_the_encoding_of_a_table_of_images(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    (new / "deep").rename(new / "Brücke")
    said(labelled, new, "--output", tmp_path / "out")
    assert "Brücke" in (tmp_path / "out" / "answers.csv").read_bytes().decode("utf-8-sig")
    assert (tmp_path / "out" / "answers.csv").read_bytes().startswith(codecs.BOM_UTF8)


@pytest.mark.parametrize("option", ["--output", "--final"])
def test_the_users_workbook_keeps_its_types(tmp_path: Path, option: str) -> None:
    """Numbers and dates stay what they are, and so do labels that are numbers."""
    columns = own_table(comma=False)
    columns |= {name: [float(x) for x in columns[name]] for name in ("Größe", "b", "c", "d")}
    columns["Topic"] = [10 + list(NAMES).index(name) if name else "" for name in columns["Topic"]]
    columns["Day"] = [dt.datetime(2026, 10, 1 + row % 30) for row in range(ROWS)]
    columns["Opened by"] = [f"Brücke {row}" for row in range(ROWS)]
    source, back = workbook(tmp_path / "tickets.xlsx", columns), tmp_path / "back.xlsx"
    folder = () if option == "--output" else ("--output", tmp_path / "out")
    said(source, "--label", "Topic", "--embedding", "Größe,b,c,d", option, back, *folder)
    rows = lines(back)
    assert list(rows[0]) == [*columns, *RESULTS]
    for name in columns:
        if name != "Topic":
            assert [row[name] for row in rows] == columns[name], name
    assert {type(row["Topic"]) for row in rows} == {int}
    days = next(openpyxl.load_workbook(back).active.iter_cols(8, 8, 2))
    assert {cell.number_format for cell in days} == {"yyyy-mm-dd"}  # without a time
    assert all(row["Topic"] == x for row, x in zip(rows, columns["Topic"], strict=True) if x != "")


def test_titles_of_the_user_stay(tmp_path: Path) -> None:
    """Columns of the result with the same titles get others."""
    columns = own_table(comma=False)
    columns["doubt"] = [f"none {row}" for row in range(ROWS)]
    source = write_table(tmp_path / "tickets.csv", columns)
    options = ("--label", "Topic", "--embedding", "Größe,b,c,d")
    said(source, *options, "--output", tmp_path / "back.csv")
    rows = table(tmp_path / "back.csv")
    assert list(rows[0]) == [*columns, *RESULTS[:-1], "doubt (2)"]
    assert [row["doubt"] for row in rows] == columns["doubt"]
    assert all(row["doubt (2)"].startswith("0.") for row in rows if row["source"] == "predicted")


def test_two_tables(tmp_path: Path) -> None:
    """The new one is filled in; the final table has both, and what the user wrote stays."""
    columns = own_table(comma=False)
    there = [bool(name) for name in columns["Topic"]]

    def rows_of(labelled: bool) -> dict[str, list[Any]]:
        return {
            name: [x for x, own in zip(cells, there, strict=True) if own == labelled]
            for name, cells in columns.items()
        }

    known, new = rows_of(labelled=True), rows_of(labelled=False)
    del known["Opened by"]
    new["Topic"][2] = "mine"
    files = write_table(tmp_path / "known.csv", known), write_table(tmp_path / "new.csv", new)
    options = ("--label", "Topic", "--embedding", "Größe,b,c,d")
    said(*files, *options, "--output", tmp_path / "back.csv")
    rows = table(tmp_path / "back.csv")
    assert list(rows[0]) == [*new, *RESULTS]
    assert (rows[2]["Topic"], rows[2]["source"]) == ("mine", "given")
    assert rows[2]["prediction"] in NAMES
    assert {row["source"] for row in rows[3:]} == {"predicted"}
    (tmp_path / "c.csv").write_text("name,label,data\n1,yew,known.csv\n2,elm,new.csv\n")
    more = ("--corrected", tmp_path / "c.csv", "--final", tmp_path / "all.csv")
    said(*files, *options, *more, "--output", tmp_path / "out")
    rows = table(tmp_path / "all.csv")
    assert list(rows[0]) == ["data", *known, "Opened by", *RESULTS]
    assert [bool(row["probability"]) for row in rows] == [False] * 24 + [True] * 40
    assert [row["data"] for row in rows] == ["known.csv"] * 24 + ["new.csv"] * 40
    assert (rows[1]["Topic"], rows[1]["source"]) == ("yew", "corrected")
    assert (rows[26]["Topic"], rows[26]["source"]) == ("elm", "corrected")
    assert [row["Opened by"].removeprefix("'") for row in rows[24:]] == new["Opened by"]


def test_a_table_and_labelled_arrays(tmp_path: Path) -> None:
    """Labelled samples without a table come first; labels get a column of their own."""
    import numpy as np

    np.savez(tmp_path / "known.npz", features=SUPPORT, labels=NAMES[LABELS])
    columns = {f"f{k}": QUERY[:, k].tolist() for k in range(4)} | {"who": list("ab") * 20}
    new = write_table(tmp_path / "new.csv", columns)
    more = ("--embedding", "f", "--final", tmp_path / "all.csv", "--output", tmp_path / "out")
    said(tmp_path / "known.npz", new, *more)
    rows = table(tmp_path / "all.csv")
    assert len(rows) == ROWS
    assert [row["label"] for row in rows[:24]] == NAMES[LABELS].tolist()
    assert [row["who"] for row in rows] == [""] * 24 + columns["who"]
    assert {row["source"] for row in rows[24:]} == {"predicted"}


def test_a_saved_model_fills_the_column_that_is_named(tmp_path: Path) -> None:
    columns = own_table(comma=False)
    source, back = write_table(tmp_path / "tickets.csv", columns), tmp_path / "back.csv"
    options = ("--label", "Topic", "--embedding", "Größe,b,c,d")
    said(source, *options, "--save", tmp_path / "m.npz", "--output", tmp_path / "out")
    said(source, "--model", tmp_path / "m.npz", "--label", "Topic", "--output", back)
    rows = table(back)
    assert list(rows[0]) == [*columns, *RESULTS]
    given = [row["Topic"] for row in rows if row["source"] == "given"]
    assert given == [name for name in columns["Topic"] if name]
    assert {row["Topic"] for row in rows} <= {*NAMES}
