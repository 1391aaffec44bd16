"""Real-world tables: ids, missing values, labels in any spelling, separators, encodings, .pt."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classify_data import refused, said, settings, write_table

from paddle_ext.app.classify import Report, classify
from paddle_ext.app.read.formats import sniffed_encoding, sniffed_separator

ROWS = ["0.1,2.5", "0.3,2.1", "2.2,0.4", "2.6,0.2", "0.2,2.4", "2.5,0.3"]
LABELS = ["owl", "owl", "cat", "cat", "", ""]


def run(folder: Path, text: str | bytes, **options: Any) -> Report:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return classify(path, None, folder, settings(**options))


def table(head: str, *more: list[str]) -> str:
    """Six rows of two features and a label, and other columns before them."""
    columns = [*more, ROWS, LABELS]
    lines = [",".join(cells) for cells in zip(*columns, strict=True)]
    return "\n".join([head, *lines, ""])


def answers(report: Report) -> list[str]:
    return [report.answers.class_names[k] for k in report.answers.labels]


def test_a_correction_outlives_another_fit_of_gaps_and_categories(tmp_path: Path) -> None:
    head, colours = "colour,a,b,label", ["red", "blue", "red", "blue", "", "red"]
    (tmp_path / "mine.csv").write_text("name,label\n4,cat\n5,owl\n")
    said_first = run(tmp_path, table(head, colours), corrected=tmp_path / "mine.csv")
    changed = table(head, colours) + "green,,9.5,cat\ngreen,3.5,,owl\n"
    again = run(tmp_path, changed)
    assert said_first.answers.corrected == again.answers.corrected == {0: "cat", 1: "owl"}


# --- which columns are features -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cells", "why"),
    [
        ("id", [9043, 2210, 7741, 5103, 6675, 1222], "its name is typical of an id column"),
        ("customer_id", [904, 221, 774, 510, 667, 122], "its name is typical of an id column"),
        ("sampleID", [904, 221, 774, 510, 667, 122], "its name is typical of an id column"),
        ("", [0, 1, 2, 3, 4, 5], "its name is typical of an id column"),
        ("photo", [101, 102, 103, 104, 105, 106], "it numbers the rows"),
        ("down", [6, 5, 4, 3, 2, 1], "it numbers the rows"),
        ("city", ["Rome", "Oslo", "Bern", "Bonn", "Kyiv", "Graz"], "it has 'Rome', which is no"),
        ("nothing", ["", "", "", "", "", ""], "it is empty"),
    ],
)
def test_columns_that_are_not_features(
    tmp_path: Path, name: str, cells: list[object], why: str
) -> None:
    """With ids among the features, all rows would have one label."""
    report = run(tmp_path, table(f"{name},a,b,label", [str(cell) for cell in cells]))
    assert answers(report) == ["owl", "cat"]
    assert report.notes[0] == "features: 2 columns, a to b"
    assert report.notes[1].startswith(f"columns not used: {name!r} ({why}")


def test_a_single_column_is_a_feature_whatever_its_name(tmp_path: Path) -> None:
    text = "id,label\n-2,x\n-3,x\n2,y\n3,y\n-2,\n2,\n"
    assert answers(run(tmp_path, text)) == ["x", "y"]
    text = "colour,label\nred,x\nred,x\nblue,y\nblue,y\nred,\nblue,\n"
    assert answers(run(tmp_path, text, save=tmp_path / "m.npz")) == ["x", "y"]


@pytest.mark.parametrize(
    ("cell", "row"),
    [
        ("", 1),
        (" ", 4),
        ("NA", 1),
        ("nan", 4),
        ("null", 1),
        ("-inf", 150),
        ("1e39", 150),
        ("x", 150),
    ],
)
def test_an_odd_cell_in_the_features_is_an_error(tmp_path: Path, cell: str, row: int) -> None:
    """A single empty cell must not drop its column."""
    lines = [f"{k % 7},{k % 5},{'xy'[k % 2]}" for k in range(151)]
    lines[row] = f"1.0,{cell},x"
    got = f"'{cell}'" if row == 150 else "an empty cell"
    rows = "auto" if row == 150 else "embeddings"  # a table may have gaps
    with pytest.raises(ValueError, match=f"got {got} in row {row}, column 'b': fill"):
        run(tmp_path, "\n".join(["a,b,label", *lines, ""]), rows=rows)


TABLE = "a,b,label\n1,2,x\n2,1,y\n1.1,2,\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,x\n", "", "--label must be a column of"),
        ("a,b,label\n1,2,x\n1,2\n", "", "3 cells in each row, got 2 in row 1"),
        ("a,b,label\n1,2,x\n2,1,y\n", "", "at least one sample to classify"),
        ("a,b,label\n1,2,\n2,1,\n", "", "rows with a label in column 'label', got none"),
        ("a,label\nhello,x\n", "", "--embedding must be numeric columns of"),
        (TABLE, "--label kind", "--label must be a column of"),
        (TABLE, "--label lable", "got 'lable' (did you mean 'label'?)"),
        (TABLE, "--embedding z", "--embedding must be numeric columns of"),
        (TABLE, "--features z", "(or pass --text)"),
        (TABLE, "--id who", "--id must be a column of"),
        (TABLE, "--truth real", "--truth must be a column of"),
        (TABLE, "--text words", "--text must be a column of"),
        (TABLE, "--batch 0", "--batch must be an integer"),
        (TABLE, "--device abacus", "--device must be the CPU or a CUDA device"),
        (TABLE, "--sep ab", "--sep must be one character such as ; or the word tab, got 'ab'"),
        (TABLE, "--encoding abc", "--encoding must be known to Python, such as utf-8"),
        (TABLE, "--encoding base64", "--encoding must be known to Python, such as utf-8"),
        (TABLE, "--encoding idna", "--encoding must be known to Python, such as utf-8"),
        (TABLE, "--encoder some", "--encoder must be omitted unless there are images, texts"),
        (TABLE, "--backbone some", "--backbone must be omitted unless there are images, and no en"),
        (TABLE, "--logit-scale 9", "--logit-scale must be omitted unless there are class names"),
        ("", "", "must begin with unique column names, got none"),
        ("a,b,a,label\n", "", "must begin with unique column names, got 'a' more than once"),
    ],
)
def test_messages(tmp_path: Path, text: str, options: str, message: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    assert message in refused(tmp_path / "table.csv", "--output", tmp_path, *options.split())
    assert not (tmp_path / "answers.csv").exists()


@pytest.mark.parametrize("word", ["?", "-", "k.A.", "n/a"])
def test_a_word_among_numbers_is_a_gap(tmp_path: Path, word: str) -> None:
    """The column stays one of numbers, as with an empty cell, and a note names the cell."""
    random = np.random.default_rng(0)
    numbers = {name: random.normal(size=20).round(3).astype(str).tolist() for name in "ab"}
    label = ["owl", "cat"] * 5 + [""] * 10
    found = {}
    for cell in ("", word):
        numbers["a"][3] = numbers["b"][15] = cell
        path = write_table(tmp_path / "table.csv", {**numbers, "label": label})
        report = classify(path, None, tmp_path / "out", settings())
        found[cell] = report.answers.probability
        assert "features: 2 columns, a to b" in report.notes
    assert found[""].tolist() == found[word].tolist()
    said = [note for note in report.notes if note.startswith("words among numbers count as gaps")]
    words = [
        f"{word!r} in row 3, column 'a' of {path}",
        f"{word!r} in row 15, column 'b' of {path}",
    ]
    quiet = word == "n/a"  # as programs write it
    assert said == ([] if quiet else [f"words among numbers count as gaps: {', '.join(words)}"])
    with pytest.raises(ValueError, match=r"feature, got .* in row 3, column 'a'"):
        classify(path, None, tmp_path / "out", settings(rows="embeddings"))


def test_gaps_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    rows: dict[str, list[object]] = {
        "id": [10, 11, 12, 13, 14, 15],
        "a": [0.1, 0.3, 2.2, 2.6, 0.2, None],
        "label": ["x", "x", "y", "y", None, None],
    }
    rows["b"] = [2.5, 2.1, 0.4, 0.2, 2.4, 0.3]
    write_table(path, rows)
    with pytest.raises(ValueError, match=r"got an empty cell in row 5, column 'a': fill"):
        classify(path, None, tmp_path, settings(rows="embeddings"))
    rows["a"][-1] = 2.4
    report = classify(write_table(path, rows), None, tmp_path, settings())
    assert answers(report) == ["x", "y"]
    assert report.notes[1] == "columns not used: 'id' (its name is typical of an id column)"


# --- one rule for no label ----------------------------------------------------------------------


@pytest.mark.parametrize("gap", ["", "-1", "NA"])
def test_no_label_in_every_format(tmp_path: Path, gap: str) -> None:
    """The same words mean a missing label in a table, an array and a file of labels."""
    labels = ["none", "none", "cat", "cat", gap, gap]
    features = np.array([row.split(",") for row in ROWS], np.float32)
    lines = [f"{row},{label}" for row, label in zip(ROWS, labels, strict=True)]
    report = run(tmp_path, "\n".join(["a,b,label", *lines, ""]))
    assert report.answers.class_names == ("cat", "none")
    assert answers(report) == ["none", "cat"]
    said = [note for note in report.notes if "missing label" in note]
    words = gap not in ("", "-1")
    assert said == (
        [f"{gap!r} in column 'label' counts as a missing label: 2 rows"] if words else []
    )

    new = tmp_path / "new.npy"
    np.save(new, features[4:])
    np.savez(tmp_path / "known.npz", features=features, labels=np.array(labels))
    assert answers(classify(tmp_path / "known.npz", new, tmp_path, settings())) == ["none", "cat"]
    np.savez(tmp_path / "known.npz", features=features, labels=np.array(labels, object))
    with pytest.raises(ValueError, match=r"got Python objects: save texts as array\.astype"):
        classify(tmp_path / "known.npz", new, tmp_path, settings())


def test_labels_that_count_nothing(tmp_path: Path) -> None:
    features = np.array([row.split(",") for row in ROWS], np.float32)
    np.save(tmp_path / "new.npy", features)
    for labels, message in (
        (np.array([0, 0, 1, 1, np.inf, 1]), "got inf"),
        (np.array([0, 0, 1, 1, 2**64 - 1, 1], np.uint64), "too large"),
        (np.array([0, 0, 1, 1, -2, 1]), "at least 0, or -1 for no label, got -2"),
        (np.array([0, 0, 1, 1, 0.5, 1]), "integers or names, got 0.5"),
    ):
        np.savez(tmp_path / "known.npz", features=features, labels=labels)
        with pytest.raises(ValueError, match=message):
            classify(tmp_path / "known.npz", tmp_path / "new.npy", tmp_path)


# --- separators and encodings -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("separator", "encoding"),
    [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "latin-1"), ("|", "cp1252"), (";", "utf-16")],
)
def test_separators_and_encodings(tmp_path: Path, separator: str, encoding: str) -> None:
    names = ["Käuzchen", "Käuzchen", "Müller’s" if encoding != "latin-1" else "Müller", "cat"]
    lines = [f"{row},{label}" for row, label in zip(ROWS, [*names, "", ""], strict=True)]
    text = "\n".join(["größe,b,label", *lines, ""]).replace(",", separator)
    report = run(tmp_path, text.encode(encoding))
    assert report.answers.class_names == tuple(sorted(set(names)))
    assert "features: 2 columns, größe to b" in report.notes
    guessed = encoding in ("latin-1", "cp1252")
    assert any("read as Windows western" in note for note in report.notes) == guessed
    assert answers(report)[0] == "Käuzchen"


@pytest.mark.parametrize("comma", [False, True])
def test_a_table_of_a_german_spreadsheet(tmp_path: Path, comma: bool) -> None:
    text = table("a,b,label").replace(",", ";").replace("\n", "\r\n")
    text = text.replace(".", ",") if comma else text
    assert answers(run(tmp_path, text.encode("latin-1"))) == ["owl", "cat"]


def test_thousands_are_not_decimal_commas(tmp_path: Path) -> None:
    """Where commas separate cells, "1,234" is not a number: its column is reported, not misread."""
    thousands = ['"1,234"', '"2,345"', '"3,456"', '"4,567"', '"5,678"', '"6,789"']
    report = run(tmp_path, table("n,a,b,label", thousands))
    assert report.notes[1] == "columns not used: 'n' (it has '1,234', which is not a number)"
    unclear = "'n' (it has '1,022', which may be 1022 or 1.022)"
    for cells, unused in (
        (["985", "1,022", "1,059", "940", "911", "970"], unclear),
        (["0", "1,022", "1,022", "0", "0", "0"], unclear),  # nor a category
        (["1,022", "1,059", "1,940", "1,1", "2", "3"], ""),  # decimal commas
        (["1,022", "1,059", "1,940", "1500", "2", "3"], ""),
        (["0_00", "1_01", "2_02", "0_03", "1_04", "2_05"], "'n' (it has '0_00', which"),
    ):
        notes = run(tmp_path, with_semicolons(cells)).notes
        assert any(unused in note for note in notes) if unused else "not used" not in str(notes)


def test_german_thousands_are_not_decimals(tmp_path: Path) -> None:
    """Where other numbers have decimal commas, 1.589 next to 732 is not one and a half."""
    unclear = "'n' (it has '1.589', which may be 1589 or 1.589)"
    for cells, unused in (
        (["732", "1.589", "1.022", "940", "911", "1.970"], unclear),
        (["1.589", "2.022", "1.022", "1.940", "1.911", "1.970"], unclear),
        (["732,5", "1.589", "1.022", "940", "911", "1.970"], unclear),
        (["732", "1.234.567", "940", "911", "812", "970"], "is 1234567 with separators"),
        (["0.732", "1.589", "1.022", "0.9", "1.91", "1.97"], ""),  # decimal points
        (["732", "1589", "1022", "940", "911", "1970"], ""),
    ):
        notes = str(run(tmp_path, with_semicolons(cells, decimal=",")).notes)
        assert unused in notes if unused else "not used" not in notes
    points = with_semicolons(["732", "1.589", "1.022", "940", "911", "1.970"])
    assert "not used" not in str(run(tmp_path, points).notes)  # all other points are decimal


def test_german_thousands_after_the_first_rows(tmp_path: Path) -> None:
    small = with_semicolons(["500", "511", "498", "533", "502", "517"], decimal=",")
    first, *rows = small.splitlines()
    (tmp_path / "known.csv").write_text("\n".join([first, *rows[:2], *rows[3:5], ""]))
    (tmp_path / "new.csv").write_text("\n".join([first, rows[2].replace("498", "1.498"), ""]))
    with pytest.raises(ValueError, match=r"column 'n', got '1\.498', which may be 1498 or 1\.498"):
        classify(tmp_path / "known.csv", tmp_path / "new.csv", output=tmp_path / "out")


@pytest.mark.parametrize("late", [False, True])
def test_thousands_after_the_first_rows(tmp_path: Path, late: bool) -> None:
    """Of the same file, or of the samples to classify."""
    small = with_semicolons(["500", "511", "498", "533", "502", "517"]).splitlines()
    thousand = [small[1].replace("500", "1,500")]
    more = small[1:] * 20 + thousand if late else thousand
    (tmp_path / "new.csv").write_text("\n".join([small[0], *more, ""]))
    (tmp_path / "known.csv").write_text("\n".join([*small[:3], *small[4:6], ""]))
    with pytest.raises(ValueError, match=r"column 'n', got '1,500', which may be 1500 or 1\.500"):
        classify(tmp_path / "known.csv", tmp_path / "new.csv", output=tmp_path / "out")


def with_semicolons(cells: list[str], decimal: str = ".") -> str:
    """The rows with a first column `n` of these cells, and this sign in the others."""
    lines = table("n,a,b,label", cells).splitlines()
    others = [row.replace(",", ";").replace(".", decimal) for row in ROWS]
    rows = [f"{cell};{row}" for cell, row in zip(cells, others, strict=True)]
    labels = [line.rpartition(",")[2] for line in lines[1:]]
    return "\n".join(["n;a;b;label", *map(";".join, zip(rows, labels, strict=True)), ""])


def test_texts_with_other_separators_in_them(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_table(path, {"text": ["a; b; c", "d | e;\nf"], "x": [1, 2], "label": ["u", "v"]})
    assert sniffed_separator(path, "utf-8") == ","
    path.write_text("a;b\n1;x, y, z\n2;x, y, z\n", encoding="utf-8")
    assert sniffed_separator(path, "utf-8") == ";"


def test_the_encoding_depends_on_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b\n" + b"1,2\n" * 50_000 + "é".encode("latin-1"))
    assert sniffed_encoding(path) == "cp1252"
    path.write_bytes(b"a,b\n" + b"1,2\n" * 50_000 + "é".encode())
    assert sniffed_encoding(path) == "utf-8"


def test_options_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(
        table("a,b,label").replace("owl", "Käuzchen").replace(",", "#").encode("cp437")
    )
    call = (path, "--output", tmp_path)
    assert "Käuzchen" in said(*call, "--sep", "#", "--encoding", "cp437")


def test_formulas_in_a_table_come_back_as_they_were(tmp_path: Path) -> None:
    """A cell escaped in answers.csv is the same class when it is read back."""
    lines = ["1,2,'=a", "1,2,=a", "2,1,b", "1.1,2,", ""]
    report = run(tmp_path, "\n".join(["x,y,label", *lines]))
    assert report.answers.class_names == ("=a", "b")


def test_a_table_that_is_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="must be a regular file"):
        classify(path, path, tmp_path, settings())
