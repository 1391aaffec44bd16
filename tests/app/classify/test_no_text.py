"""Samples without a text: they are reported, they get no class, and they teach none."""

import csv
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from classify_data import table
from pages import probed
from typer.testing import CliRunner

from paddle_ext.app.cli.app import app

LINES = [
    *((f"aaa {'ab'[k % 2]}", "first") for k in range(4)),
    *((f"zzz {'yz'[k % 2]}", "second") for k in range(4)),
    ("  ", "second"),
    ("", ""),
    ("aaa a", ""),
    (" \n", ""),
    ("zzz z", ""),
]

SEEN: list[str] = []  # texts that were embedded


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of texts, and a stand-in for sentence-transformers that counts letters."""

    class SentenceTransformer:
        def __init__(self, *_: object, **__: object) -> None: ...

        def encode(self, texts: list[str], **_: bool) -> torch.Tensor:
            SEEN.extend(texts)
            return torch.tensor([[1.0 + text.count(letter) for letter in "abyz"] for text in texts])

    stand_in = ModuleType("sentence_transformers")
    stand_in.SentenceTransformer = SentenceTransformer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", stand_in)
    SEEN.clear()
    source = tmp_path / "table.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        rows = [(f"T{number}", *line) for number, line in enumerate(LINES)]
        csv.writer(file).writerows([("who", "said", "label"), *rows])
    return source


def run(path: Path, *more: object) -> str:
    words = ["classify", path, "--text", "said", "--id", "who", "--device", "cpu", "--no-cache"]
    done = CliRunner().invoke(app, [str(word) for word in (*words, *more)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_they_get_no_class(path: Path, tmp_path: Path, browser: str) -> None:
    out, final, tasks = tmp_path / "out", tmp_path / "all.csv", tmp_path / "tasks.json"
    more = ("--export", "label-studio", tasks, "--suggest", 1)
    told = run(path, "--output", out, "--final", final, *more)
    assert "4 samples, 2 of 2 classes found" in told
    assert "to check: 2 samples, see the page: 2 without a text" in told
    assert "1 labelled sample has no text and cannot be used, such as 'T8'" in told
    rows = {row["who"]: row for row in table(out / "answers.csv")}
    assert [rows[who]["label"] for who in ("T9", "T10", "T11", "T12")] == [
        "unknown",
        "first",
        "unknown",
        "second",
    ]
    for who in ("T9", "T11"):
        row = rows[who]
        assert (row["check"], row["source"], row["prediction"]) == ("no text", "predicted", "")
        assert row["probability"] == row["second"] == row["doubt"] == ""
    counts = {row["class"]: row["samples"] for row in table(out / "classes.csv")}
    assert counts == {"first": "1", "second": "1"}
    assert len(table(out / "labelled.csv")) == 8
    labels = [(row["who"], row["label"], row["source"]) for row in table(final)]
    assert len(labels) == len(LINES)
    assert labels[8:10] == [("T8", "second", "given"), ("T9", "unknown", "predicted")]
    assert ["predictions" in task for task in json.loads(tasks.read_text())] == [0, 1, 0, 1]
    assert {row["who"] for row in table(out / "suggestions.csv")} <= {"T10", "T12"}
    script = """
    const silent = [...document.querySelectorAll("#review .sample")];
    report.names = silent.map((one) => one.dataset.name);
    report.why = silent.map((one) => one.querySelector(".why").textContent);
    silent[0].click();
    report.said = at("look-said").textContent;
    """
    shown = probed(browser, out / "answers.html", script)
    assert shown == {"names": ["T9", "T11"], "why": ["no text"] * 2, "said": "no text"}


def test_they_can_be_corrected_but_teach_nothing(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,label\nT9,first\nT10,second\n")
    run(path, "--output", tmp_path / "out", "--corrected", tmp_path / "a.csv")
    rows = [(row["label"], row["check"]) for row in table(tmp_path / "out" / "answers.csv")]
    assert rows[:3] == [("first", ""), ("second", ""), ("unknown", "no text")]
    assert len(table(tmp_path / "out" / "labelled.csv")) == 9
    assert SEEN.count("aaa a") == 2  # as a labelled text and as one to classify


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_one_file(path: Path, tmp_path: Path, suffix: str) -> None:
    told = run(path, "--output", tmp_path / f"answers{suffix}")
    assert "2 samples, 2 of 2 classes found" in told
    if suffix == ".csv":
        rows = table(tmp_path / "answers.csv")
        assert [row["label"] for row in rows] == ["unknown", "first", "unknown", "second"]
        assert [bool(row["probability"]) for row in rows] == [False, True, False, True]
