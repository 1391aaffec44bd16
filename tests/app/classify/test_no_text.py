"""Samples without a text: they are reported, they get no class, and they teach none."""

import json
from pathlib import Path

import pytest
from classify_data import said, table, write_table
from encoder_models import stand_in_sentences
from pages import probed

LINES = [
    *((f"aaa {'ab'[k % 2]}", "first") for k in range(4)),
    *((f"zzz {'yz'[k % 2]}", "second") for k in range(4)),
    ("  ", "second"),
    ("", ""),
    ("aaa a", ""),
    (" \n", ""),
    ("zzz z", ""),
]


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that a stand-in for sentence-transformers embeds: it counts letters."""
    return stand_in_sentences(monkeypatch, lambda text: [1 + text.count(x) for x in "abyz"])


def run(folder: Path, *more: object) -> str:
    texts, labels = zip(*LINES, strict=True)
    columns = {"who": [f"T{row}" for row in range(len(LINES))], "said": texts, "label": labels}
    path = write_table(folder / "table.csv", columns)
    return said(path, "--text", "said", "--id", "who", *more)


def test_they_get_no_class(tmp_path: Path, browser: str) -> None:
    out, final, tasks = tmp_path / "out", tmp_path / "all.csv", tmp_path / "tasks.json"
    more = ("--export", "label-studio", tasks, "--suggest", 1)
    told = run(tmp_path, "--output", out, "--final", final, *more)
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
    assert counts == {"first": "1", "second": "1"}  # too few labels to say more
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
    (shown,) = probed(browser, (out / "answers.html", script))
    assert shown == {"names": ["T9", "T11"], "why": ["no text"] * 2, "said": "no text"}


def test_they_can_be_corrected_but_teach_nothing(tmp_path: Path, seen: list[str]) -> None:
    (tmp_path / "a.csv").write_text("who,label\nT9,first\nT10,second\n")
    run(tmp_path, "--output", tmp_path / "out", "--corrected", tmp_path / "a.csv")
    rows = [(row["label"], row["check"]) for row in table(tmp_path / "out" / "answers.csv")]
    assert rows[:3] == [("first", ""), ("second", ""), ("unknown", "no text")]
    assert len(table(tmp_path / "out" / "labelled.csv")) == 9
    assert seen.count("aaa a") == 2  # as a labelled text and as one to classify


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_one_file(tmp_path: Path, suffix: str) -> None:
    told = run(tmp_path, "--output", tmp_path / f"answers{suffix}")
    assert "2 samples, 2 of 2 classes found" in told
    if suffix == ".csv":
        rows = [row for row in table(tmp_path / "answers.csv") if row["source"] == "predicted"]
        assert [row["label"] for row in rows] == ["unknown", "first", "unknown", "second"]
        assert [row["prediction"] for row in rows] == ["", "first", "", "second"]
        assert [bool(row["probability"]) for row in rows] == [False, True, False, True]


def test_one_that_is_corrected_to_a_new_class(tmp_path: Path) -> None:
    """It cannot teach the class, and counts as a sample of none that is known."""
    (tmp_path / "corrected.csv").write_text("name,label\nT9,third\n")
    told = run(tmp_path, "--output", tmp_path, "--corrected", tmp_path / "corrected.csv")
    assert "corrected labels: 1" in told
    assert {row["who"]: row for row in table(tmp_path / "answers.csv")}["T9"]["label"] == "third"
