"""The check of the input: one table before the work, and nothing else with ``--check``."""

import csv
import doctest
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from classify_data import NAMES, embeddings, picture_folders
from click.testing import Result
from typer.testing import CliRunner

from paddle_ext.app.classify import input_check
from paddle_ext.app.cli import show
from paddle_ext.app.cli.app import app

SENTENCES = [f"please tell me about {word}" for word in ("cards", "cash", "rates", "fees", "loans")]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the table on one line."""
    monkeypatch.setattr(show, "PLAIN_WIDTH", 500)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["classify", *map(str, words), "--device", "cpu", "--no-cache"])


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
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["message", "label", *more])
        writer.writerows(
            (*row, *(cells[number] for cells in more.values())) for number, row in enumerate(rows)
        )
    return path


def texts(path: Path, labels: list[str]) -> Path:
    return table(path, [(f"message number {n}", label) for n, label in enumerate(labels)])


def test_examples() -> None:
    assert doctest.testmod(input_check).failed == 0


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
    said = rows["labels like missing values"]
    assert "4: 'n/a' (1), 'unknown' (1), '?' (1) and 1 other they count as no label" in said
    assert "1: 'none' (2) they are classes" in said


def test_missing_values_are_no_classes_of_the_answers(tmp_path: Path) -> None:
    support, labels, query, _ = embeddings()
    rows = [",".join(map(str, row)) for row in np.concatenate([support, query])]
    names = [*NAMES[labels], *["n/a", "unknown", "?", "-"] * 10]
    lines = [f"{row},{name}" for row, name in zip(rows, names, strict=True)]
    head = ",".join(f"f{k}" for k in range(16)) + ",label"
    (tmp_path / "na.csv").write_text("\n".join([head, *lines]))
    done = run(tmp_path / "na.csv", "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert "2 of 6 classes found" in done.output
    assert "'n/a' in column 'label' counts as a missing label: 10 rows" in done.output


def test_class_names_that_are_alike(tmp_path: Path) -> None:
    labels = ["Cat", "cat", "sea lion", "sea_lion", "giraffe", "girafe", "type 1", "type 2", "owl "]
    labels = labels * 2 + ["owl"]
    rows = checked(texts(tmp_path / "a.csv", labels), "--text", "message")
    case = rows["classes that differ by case or white space"]
    assert case.startswith("2: 'Cat' (2) and 'cat' (2), 'sea lion' (2) and 'sea_lion' (2)")
    letter = rows["classes that differ by a letter"]
    assert letter.startswith("1: 'girafe' (2) and 'giraffe' (2)")
    assert rows["white space around labels"] == "1: 'owl ' (2) it is ignored"
    assert rows["labelled"] == "19 samples of 9 classes"


def test_classes_with_one_example(tmp_path: Path) -> None:
    labels = ["cat", "cat", "dog", "owl", ""]
    rows = checked(texts(tmp_path / "a.csv", labels), "--text", "message")
    assert rows["classes with one example"].startswith("2: 'dog', 'owl'")


def test_empty_texts_and_equal_ones(tmp_path: Path) -> None:
    lines = [("my card", "card"), ("my card ", "cash"), ("my cash", "cash"), (" ", "card")]
    lines += [("", ""), ("what", ""), ("your card", "card")]
    path = table(tmp_path / "a.csv", lines, key=[f"K{n}" for n in range(7)])
    rows = checked(path, "--text", "message", "--id", "key")
    assert rows["empty labelled texts"].startswith("1: K3")
    assert rows["empty texts to classify"].startswith("1: K4")
    equal = rows["equal samples with different labels"]
    assert equal.startswith("1: 'card' (K0) and 'cash' (K1)")
    new = table(tmp_path / "b.csv", [("", ""), ("x", "")])
    rows = checked(path, new, "--text", "message")
    assert rows["empty texts to classify"].startswith("1: row 0")


def test_names_of_several_samples(tmp_path: Path) -> None:
    """A correction would mean all of them: the check says so, and so does the report."""
    lines = [(text, label) for text, label in zip(SENTENCES, ["a", "a", "b", "b", ""], strict=True)]
    more = {"key": ["K1", "K2", "K3", "K4", "K2"], "f1": list("31425"), "f2": list("24135")}
    path = table(tmp_path / "a.csv", lines, **more)
    options = (path, "--embedding", "f1,f2", "--id", "key", "--output", tmp_path)
    assert checked(*options)["names of several samples"].startswith("1: 'K2' a correction counts")
    done = run(*options)
    assert done.exit_code == 0, done.output
    assert "names in column 'key' that several samples have: 1, such as 'K2'" in done.output


@pytest.mark.parametrize("name", ["Label", "CLASS"])
def test_missing_numbers_of_rows_to_classify(tmp_path: Path, name: str) -> None:
    """The check finds them, and how many; a column of labels may begin with a capital letter."""
    rows = ["1,2,x", "2,1,x", "8,9,y", "9,8,y", "1,,", "2,2,", ",,"]
    (tmp_path / "a.csv").write_text("\n".join([f"f1,f2,{name}", *rows, ""]))
    done = run(tmp_path / "a.csv", "--check")
    assert done.exit_code == 1
    assert "an empty cell in row 4, column 'f2', and in 1 row after it: fill in" in done.output


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
    path = tmp_path / f"tickets{suffix}"
    columns = {
        "message": SENTENCES,
        "priority": [1, 2, 1, 2, 1],
        "label": ["a", "a", "b", "b", ""],
    }
    if suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)
    else:
        lines = list(zip(columns["message"], columns["label"], strict=True))
        table(path, lines, priority=[str(cell) for cell in columns["priority"]])
    done = run(path, "--output", tmp_path)
    assert done.exit_code == 1
    assert "the column 'message' of" in done.output
    assert "looks like text: add --text message (or pass --embedding)" in done.output
    assert not (tmp_path / "answers.csv").exists()
    assert run(path, "--output", tmp_path, "--embedding", "priority").exit_code == 0


def test_the_table_comes_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise ValueError("the work began")

    monkeypatch.setattr("paddle_ext.app.classify.run.open_source", stop)
    support, labels, query, _ = embeddings()
    np.savez(tmp_path / "known.npz", features=support[:-1], labels=NAMES[labels[:-1]])
    np.savez(tmp_path / "new.npz", features=query)
    done = run(tmp_path / "known.npz", tmp_path / "new.npz", "--output", tmp_path)
    assert done.output.index("23 samples of 6 classes") < done.output.index("the work began")
    assert run(tmp_path / "known.npz", tmp_path / "new.npz", "--check").exit_code == 0


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
    support, labels, query, _ = embeddings()
    support[1], names = support[0], NAMES[labels].copy()
    names[1] = NAMES[3]
    np.savez(tmp_path / "known.npz", features=support, labels=names)
    np.savez(tmp_path / "new.npz", features=query)
    rows = checked(tmp_path / "known.npz", tmp_path / "new.npz")
    equal = rows["equal samples with different labels"]
    assert equal.startswith("1: 'ash' (row 0) and 'date palm' (row 1)")


def test_many_classes_are_compared_quickly() -> None:
    names = [f"{word} {number}" for word in ("kind", "sort", "type") for number in range(5000)]
    assert input_check.alike([*names, "kid 7", "soort 8"]) == {"a letter": [("soort 8", "sort 8")]}
