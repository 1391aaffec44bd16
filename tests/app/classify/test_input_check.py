"""The check of the input: one table before the work, and nothing else with ``--check``."""

import re
import sys
import time
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from classify_data import (
    NAMES,
    embedding_files,
    embeddings,
    picture_folders,
    refused,
    run,
    said,
    settings,
    write_table,
)

from paddle_ext.app.cli import show
from paddle_ext.app.read import input_check
from paddle_ext.app.read.opening import open_data
from paddle_ext.app.read.table_files import open_table
from paddle_ext.app.read.tables import TableSamples
from paddle_ext.app.settings import Columns

SENTENCES = [f"please tell me about {word}" for word in ("cards", "cash", "rates", "fees", "loans")]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the table on one line."""
    monkeypatch.setattr(show, "PLAIN_WIDTH", 500)


def checked(*words: object) -> dict[str, str]:
    """The rows of the table; texts need no model for it."""
    done = run(*words, "--check")
    assert done.exit_code == 0, done.output
    rows: dict[str, str] = {}
    for line in done.output.splitlines():
        name, *cells = re.split(r"\s{2,}", line.strip())
        if cells:
            rows[name] = f"{rows.get(name, '')} {' '.join(cells)}".strip()
    return rows


def table(path: Path, rows: list[tuple[str, str]], **more: list[str]) -> Path:
    messages, labels = zip(*rows, strict=True)
    return write_table(path, {"message": messages, "label": labels, **more})


def texts(path: Path, labels: list[str]) -> Path:
    return table(path, [(f"message number {n}", label) for n, label in enumerate(labels)])


def test_nothing_odd(tmp_path: Path) -> None:
    path = texts(tmp_path / "a.csv", ["cat", "cat", "dog", "dog", ""])
    rows = checked(path, "--text", "message")
    assert list(rows) == ["input", "labelled", "texts", "to classify"]
    assert rows["labelled"] == "4 samples of 2 classes"
    assert rows["to classify"] == "1 text"
    assert list(tmp_path.iterdir()) == [path]  # nothing was written


def test_labels_that_look_like_missing_values(tmp_path: Path) -> None:
    """Three of them are missing; 'none' may be a class, and stays one."""
    labels = ["cat", "cat", "dog", "dog", "n/a", "unknown", "?", "-", "none", "none"]
    rows = checked(texts(tmp_path / "a.csv", labels), "--text", "message")
    assert rows["labelled"] == "6 samples of 3 classes"
    assert rows["to classify"] == "4 texts"
    told = rows["labels like missing values"]
    assert "4: 'n/a' (1), 'unknown' (1), '?' (1) and 1 other they count as no label" in told
    assert "1: 'none' (2) they are classes" in told


def test_labels_with_a_quote_before_a_formula(tmp_path: Path) -> None:
    """It is what protects formulas in a table of ours, so '=c and =c are one class."""
    rows = checked(
        texts(tmp_path / "a.csv", ["'=c", "'=c", "=c", "owl", "owl", ""]), "--text=message"
    )
    assert rows["labels with a quote before a formula"] == """1: "'=c" (2) the quote is ignored"""
    assert rows["labelled"] == "5 samples of 2 classes"


def test_class_names_that_are_alike(tmp_path: Path) -> None:
    labels = ["Cat", "cat", "sea lion", "sea_lion", "giraffe", "girafe", "type 1", "type 2", "owl "]
    labels = labels * 2 + ["owl", "newt", "frog", ""]
    rows = checked(texts(tmp_path / "a.csv", labels), "--text", "message")
    case = rows["classes that differ by case or white space"]
    assert case.startswith("2: 'Cat' (2) and 'cat' (2), 'sea lion' (2) and 'sea_lion' (2)")
    letter = rows["classes that differ by a letter"]
    assert letter.startswith("1: 'girafe' (2) and 'giraffe' (2)")
    assert rows["white space around labels"] == "1: 'owl ' (2) it is ignored"
    assert rows["classes with one example"].startswith("2: 'newt', 'frog'")
    assert rows["labelled"] == "21 samples of 11 classes"


def test_empty_texts_and_equal_ones(tmp_path: Path) -> None:
    lines = [("my card", "card"), ("my card ", "cash"), ("my cash", "cash"), (" ", "card")]
    lines += [("", ""), ("what", ""), ("your card", "card"), ("your card", "card")]
    path = table(tmp_path / "a.csv", lines, key=[f"K{n}" for n in range(8)])
    rows = checked(path, "--text", "message", "--id", "key")
    assert rows["empty labelled texts"].startswith("1: K3")
    assert rows["empty texts to classify"].startswith("1: K4")
    equal = rows["equal samples with different labels"]
    assert equal.startswith("1: 'card' (K0) and 'cash' (K1)")
    assert rows["equal samples with the same label"].startswith("1: K7 leave them out")
    new = table(tmp_path / "b.csv", [("", ""), ("x", "")])
    rows = checked(path, new, "--text", "message")
    assert rows["empty texts to classify"].startswith("1: row 0")


@pytest.mark.parametrize("texts", [True, False])
def test_copies_to_classify(tmp_path: Path, texts: bool) -> None:
    lines = [("one", "a"), ("two", "b"), ("three", ""), ("four", ""), ("three", ""), ("", "")]
    numbers = {"f1": list("123435"), "f2": list("543212"), "burst": list("xyzwzv")}
    numbers["f1"][4], numbers["f2"][4] = "3", "3"
    path = table(tmp_path / "a.csv", lines, **numbers)
    what = ("--text", "message") if texts else ("--embedding", "f1,f2")
    found = checked(path, *what)["equal samples to classify"]
    assert found == (
        "1: row 4 if they are copies of one thing, say so by --same: they confirm each other"
    )
    assert "equal samples to classify" not in checked(path, *what, "--same", "burst")


def test_names_of_several_samples(tmp_path: Path) -> None:
    """A correction without a digest means all of them."""
    lines = [(text, label) for text, label in zip(SENTENCES, ["a", "a", "b", "b", ""], strict=True)]
    more = {"key": ["K1", "K2", "K3", "K4", "K2"], "f1": list("31425"), "f2": list("24135")}
    path = table(tmp_path / "a.csv", lines, **more)
    options = (path, "--embedding", "f1,f2", "--id", "key", "--output", tmp_path)
    assert checked(*options)["names of several samples"].startswith("1: 'K2' a correction by name")


@pytest.mark.parametrize("name", ["Label", "CLASS"])
def test_missing_numbers_of_rows_to_classify(tmp_path: Path, name: str) -> None:
    """The check finds them, and how many; a column of labels may begin with a capital letter."""
    rows = ["1,2,x", "2,1,x", "8,9,y", "9,8,y", "1,,", "2,2,", ",,"]
    (tmp_path / "a.csv").write_text("\n".join([f"f1,f2,{name}", *rows, ""]))
    told = refused(tmp_path / "a.csv", "--check", "--rows", "embeddings")
    assert "an empty cell in row 4, column 'f2', and in 1 row after it: fill in" in told
    assert "--rows table" in told
    (tmp_path / "b.csv").write_text("\n".join([f"f1,f2,{name}", *rows[:4], "1,inf,", ""]))
    told = refused(tmp_path / "b.csv", "--check", "--rows", "table")
    assert "got 'inf' in row 4" in told
    assert "add --rows table" not in told


def test_the_check_makes_all_checks(tmp_path: Path) -> None:
    files = embedding_files(tmp_path)
    for words in ("--prior none.csv", "--parents none.csv", "--corrected none.csv", "--batch 0"):
        assert "none.csv" in refused(*files, *words.split(), "--check") or "batch" in words
    labelled = table(tmp_path / "a.csv", [("one text", "a"), ("another", "b")])
    told = refused(labelled, "--text", "message", "--check")
    assert "to classify 0 texts there must be at least one" in told
    other = labelled.rename(tmp_path / "a.ods")
    assert "must end in one of .npz" in refused(other, "--check")


def test_the_check_refuses_what_a_run_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same sentence, and before the work; a correction may add a second class."""
    monkeypatch.setattr("paddle_ext.app.run.encode", Mock(side_effect=ValueError("work began")))
    one = texts(tmp_path / "one.csv", ["cat", "cat", "", ""])
    full = texts(tmp_path / "full.csv", ["cat", "owl"])
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    odd = texts(tmp_path / "odd.csv", ["cat", "dgo", ""])
    few = "must have labelled samples of at least two classes, got only 'cat'"
    none = "must have at least one sample to classify, got none"
    unknown = "must have labels among the 2 names of"
    names = ("--names", tmp_path / "names.txt")
    for words, sentence in (((one,), few), ((full,), none), ((odd, *names), unknown)):
        for more in (("--check",), ("--output", tmp_path), ("--output", tmp_path / "x.csv")):
            assert sentence in refused(*words, "--text", "message", *more)
    assert "got 'dgo' (did you mean 'dog'?)" in refused(odd, *names, "--text", "message", "--check")
    (tmp_path / "c.csv").write_text("name,label\n3,owl\n")
    checked(one, "--text", "message", "--corrected", tmp_path / "c.csv")


def test_unused_columns(tmp_path: Path) -> None:
    lines = [(text, label) for text, label in zip(SENTENCES, ["a", "a", "b", "b", ""], strict=True)]
    more = {"city": ["Rome"] * 5, "f1": list("31425"), "f2": list("24135"), "f3": list("91735")}
    path = table(tmp_path / "a.csv", lines, **more)
    rows = checked(path, "--text", "message")
    assert rows["columns not used"] == "4: 'city', 'f1', 'f2' and 1 other"
    rows = checked(path, "--embedding", "f1,f2")
    assert rows["columns not used"] == "3: 'message', 'city', 'f3'"
    # Three numeric columns may well be what to classify.
    rows = checked(path)
    assert "'city' (it has 'Rome', which is not a number)" in rows["columns not used"]
    assert rows["texts"] == "column 'message' looks like text add --text message"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_forgotten_option_for_texts(tmp_path: Path, suffix: str) -> None:
    """One numeric column next to texts would put all of them into one class."""
    columns = {"message": SENTENCES, "priority": [1, 2, 1, 2, 1], "label": ["a", "a", "b", "b", ""]}
    path = write_table(tmp_path / f"tickets{suffix}", columns)
    told = refused(path, "--output", tmp_path)
    assert "the column 'message' of" in told
    assert "looks like text: add --text message (or pass --embedding)" in told
    assert not (tmp_path / "answers.csv").exists()
    said(path, "--output", tmp_path, "--embedding", "priority")


def test_the_table_comes_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = Mock(side_effect=ValueError("the work began"))
    monkeypatch.setattr("paddle_ext.app.run.encode", began)
    files = embedding_files(tmp_path)
    told = refused(*files, "--output", tmp_path)
    assert told.index("24 samples of 6 classes") < told.index("the work began")
    said(*files, "--check")


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only names and files are looked at."""
    labelled, new = picture_folders(tmp_path)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    for folder in ("unknown", "draughts"):
        (labelled / folder).mkdir()
        (labelled / folder / "copy.png").write_bytes((labelled / "chess" / "0.png").read_bytes())
    rows = checked(labelled, new)
    assert rows["labelled"] == "13 samples of 4 classes"
    assert rows["to classify"] == "6 files"
    assert rows["labels like missing values"].startswith("1: 'unknown' (1) they count as no label")
    equal = rows["equal samples with different labels"]
    assert equal.startswith("1: 'chess' (chess/0.png) and 'draughts' (draughts/copy.png)")


def test_arrays_and_equal_rows(tmp_path: Path) -> None:
    support, labels, _, _ = embeddings()
    support[1], labels[1] = support[0], 3
    known, new = embedding_files(tmp_path)
    np.savez(known, features=support, labels=NAMES[labels])
    rows = checked(known, new)
    equal = rows["equal samples with different labels"]
    assert equal.startswith("1: 'ash' (row 0) and 'date palm' (row 1)")
    assert "equal samples with the same label" not in rows


def test_many_classes_are_compared_quickly() -> None:
    names = [f"{word} {number}" for word in ("kind", "sort", "type") for number in range(5000)]
    assert input_check.alike([*names, "kid 7", "soort 8"]) == {"a letter": [("soort 8", "sort 8")]}


def test_a_label_of_many_letters_takes_little_memory(tmp_path: Path) -> None:
    """Its neighbours of one letter less would be half a gigabyte of text."""
    long = "".join(np.random.default_rng(0).choice(list("abcdefgh"), 20_000).tolist())
    path = texts(tmp_path / "a.csv", ["lion", "lions", long, long, ""])
    opened = open_data(path, None, settings(columns=Columns(text="message")))
    tracemalloc.start()
    rows = {one.what: one.found for one in input_check.check_input(opened)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6
    assert rows["labelled"] == "4 samples of 3 classes"
    assert rows["classes that differ by a letter"] == "1: 'lion' (1) and 'lions' (1)"


def test_many_names_that_differ_by_one_letter_are_compared_quickly() -> None:
    """Each is paired with the first; all pairs would be 200 million."""
    names = [f"kind{chr(0x4E00 + number)}" for number in range(20_000)]
    pairs = input_check.alike(names)["a letter"]
    assert len(pairs) == 19_999
    assert {first for first, _ in pairs} == {names[0]}


def test_a_table_of_as_many_columns_as_excel_has_is_checked_quickly(tmp_path: Path) -> None:
    """Minutes if each column were looked for among all others."""
    names = [f"f{place}" for place in range(16_384)]
    columns = {"label": ["a"], **{name: ["0.5"] for name in names}}
    wide = open_table(write_table(tmp_path / "wide.csv", columns))
    began, asked = time.process_time(), Columns()
    samples = TableSamples(wide, asked, wide.feature_columns(None, {"label"}, "auto"), "all")
    assert [one.what for one in input_check.about_columns(samples, asked)] == [
        "features",
        "columns not used",
    ]
    assert samples.features == names
    assert time.process_time() - began < 10


def test_units_and_dates_get_advice(tmp_path: Path) -> None:
    """Whether they repeat, and are categories, or not."""
    columns = {
        "mass": ["3750 g", "3800 g", "3250 g", "3450 g", "3650 g", "3625 g"],
        "share": ["12,0 %", "12,0 %", "12,0 %", "9,5 %", "9,5 %", "9,5 %"],
        "seen": ["01.10.2026", "02.10.2026", "03.10.2026", "04.10.2026", "", "2026-10-06"],
        "rank": ["1st", "1st", "2nd", "2nd", "3rd", "3rd"],
        "flat": ["12a", "12a", "7b", "7b", "3c", "3c"],
        "size": ["1.5", "2.5", "2", "1", "3", "4"],
        "label": ["a", "a", "b", "b", "", ""],
    }
    rows = checked(write_table(tmp_path / "a.csv", columns))
    assert rows["numbers with a unit"] == (
        "2: column 'mass', such as '3750 g', column 'share', such as '12,0 %' "
        "write the unit in the name of the column, so that its cells are numbers"
    )
    assert rows["dates"].startswith("1: column 'seen', such as '01.10.2026' write them as numbers")
    assert "'mass' (it has numbers with a unit, such as '3750 g')" in rows["columns not used"]
    assert "'seen' (it has dates, such as '01.10.2026')" in rows["columns not used"]


def test_words_among_numbers_are_found(tmp_path: Path) -> None:
    columns = {
        "f1": ["1", "2", "?", "4", "-"],
        "f2": list("53142"),
        "label": ["a", "a", "b", "b", ""],
    }
    rows = checked(write_table(tmp_path / "a.csv", columns))
    assert rows["words among numbers"].startswith("1: '?' in row 2, column 'f1' of")
