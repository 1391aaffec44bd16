"""`classify --parents` and `--prior`: tables of what is known of the classes."""

from pathlib import Path

import numpy as np
import pytest
from classify_data import said, settings, table, write_table

from paddle_ext.app.classify import classify, stream
from paddle_ext.app.cli import show
from paddle_ext.app.read.names import read_pairs

NAMES = ("oak", "elm", "newt", "frog")
TREE = "class,parent\noak,tree\nelm,tree\nnewt,animal\nfrog,animal\ntree,alive\nanimal,alive\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Oaks and elms are hard to tell apart; the new samples are of three classes."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, 16))
    centres[1] = centres[0] + 0.35 * centres[1]
    labels = np.arange(4).repeat(6)
    rows = centres[labels] + 0.3 * random.normal(size=(24, 16))
    np.savez(tmp_path / "known.npz", features=rows, labels=np.array(NAMES)[labels])
    new = centres[np.arange(3).repeat([10, 10, 20])] + 0.3 * random.normal(size=(40, 16))
    np.savez(tmp_path / "new.npz", features=new)
    return tmp_path / "known.npz", tmp_path / "new.npz"


# --- parents --------------------------------------------------------------------------------------


def test_unsure_samples_get_a_parent(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "tree.csv").write_text(TREE)
    report = classify(*files, tmp_path / "out", settings(parents=tmp_path / "tree.csv"))
    rows = table(report.table)
    assert {row["node"] for row in rows[:20]} >= {"tree"}
    assert {row["node"] for row in rows[20:]} == {"newt"}
    for row in rows:
        assert float(row["node_probability"]) >= 0.9
        assert (row["node"] == row["label"]) == (float(row["probability"]) >= 0.9)
    assert ">tree: 100 %<" in report.page.read_text(encoding="utf-8")


def test_a_corrected_class_may_lack_a_parent(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "tree.csv").write_text(TREE)
    (tmp_path / "corrected.csv").write_text("name,label\n0,yew\n1,oak\n")
    options = {"parents": tmp_path / "tree.csv", "corrected": tmp_path / "corrected.csv"}
    report = classify(*files, tmp_path / "out", settings(**options))
    assert any("new class 'yew' has no parent in " in note for note in report.notes)
    rows = table(report.table)
    assert [row["node"] for row in rows[:2]] == ["", ""]  # their class is certain
    assert {row["node"] for row in rows[2:]} <= {*NAMES, "tree", "alive", "yew", ""}
    assert all((row["node"] == "") == (row["node_probability"] == "") for row in rows)


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("parents", "oak,tree\nelm,tree\nfrog,animal\n", "got none for 'newt', in .*table.csv"),
        ("parents", "oak\n", "a class and its parent in every line, got .*line 1: oak"),
        ("parents", "oak,tree\noak,animal\n", "one parent for each class, got 'tree' and 'animal'"),
        ("parents", TREE + "alive,oak\n", "cycle"),
        ("parents", TREE + "oka,tree\n", "'oka', which is no class and no parent"),
        ("prior", "oak,many\n", "weights of at least 0, got 'many' for 'oak'"),
        ("prior", "oak,-1\n", "weights of at least 0, got '-1' for 'oak'"),
        ("prior", "oak\n", "a class and its weight in every line, got .*line 1: oak"),
        ("prior", "", "a class and its weight in every line, got none in "),
        ("prior", "class,weight\n", "a class and its weight in every line, got none in "),
        ("prior", "bat,3\n", "a positive weight for one of 4 classes, got none"),
        ("prior", "oak,1\noak,2\n", "one weight for each class, got '1' and '2'"),
    ],
)
def test_bad_tables(
    files: tuple[Path, Path], tmp_path: Path, option: str, text: str, message: str
) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        classify(*files, tmp_path / "out", settings(**{option: tmp_path / "table.csv"}))
    assert not (tmp_path / "out").exists()


def test_tables_need_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="which is not a file"):
        read_pairs(tmp_path / "none.csv", "parents", "parent")


# --- a prior --------------------------------------------------------------------------------------


def test_a_prior(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Impossible classes are never named; missing and foreign names are reported."""
    labels, notes = [], []
    for text in (
        "oak,1\nelm,1\n",
        "class,weight\noak,50\nelm,0\nnewt,50\nfrog,1\n",
        "oak;9\nelm;0\nbat;3\n",
    ):
        (tmp_path / "prior.csv").write_text(text)
        report = classify(*files, tmp_path / "out", settings(prior=tmp_path / "prior.csv"))
        labels.append([row["label"] for row in table(report.table)])
        notes.append(report.page.read_text(encoding="utf-8"))
    assert "elm" in labels[0]
    assert "elm" not in labels[1] + labels[2]
    assert set(labels[1][:20]) == {"oak"}
    assert "newt" in labels[2]  # possible, although it is not listed
    assert "2 classes not in" in notes[2]
    assert "got its smallest weight above 0, 9, such as frog" in notes[2]
    assert "no classes here were ignored: &#x27;bat&#x27;" in notes[2].replace("&#39;", "&#x27;")


@pytest.mark.parametrize("option", ["parents", "prior", "rename", "names"])
def test_a_table_of_classes_is_not_replaced(
    files: tuple[Path, Path], tmp_path: Path, option: str
) -> None:
    own = tmp_path / "classes.csv"  # as `classify` names a file
    own.write_text("oak,1\nelm,1\n")
    with pytest.raises(ValueError, match=r"output must not replace an input file, got .*classes"):
        classify(*files, tmp_path, settings(**{option: own}))
    own.rename(tmp_path / "own.csv")
    for name in ("save", "final"):
        paths = {option: tmp_path / "own.csv", name: tmp_path / "own.csv"}
        with pytest.raises(ValueError, match=f"{name} must not replace an input file"):
            classify(*files, tmp_path, settings(**paths))
    assert (tmp_path / "own.csv").read_text() == "oak,1\nelm,1\n"


def test_files_to_write_are_apart(files: tuple[Path, Path], tmp_path: Path) -> None:
    """From one another, and from the corrections that are kept or given."""
    corrected, out = tmp_path / "mine.csv", tmp_path / "out"
    corrected.write_text("name,label\n3,ash\n")
    classify(*files, out, settings(corrected=corrected))
    before = (out / "corrected.csv").read_bytes()
    for options in (
        {"final": out / "corrected.csv"},
        {"final": str(out / "answers.csv")},
        {"final": corrected, "corrected": corrected},
        {"save": out / "all.npz", "label_studio": out / "all.npz"},
        {"final": out / "all.csv", "label_studio": out / "all.csv"},
    ):
        with pytest.raises(ValueError, match=r"must not (be a file of|replace an input)"):
            classify(*files, out, settings(**options))
    with pytest.raises(ValueError, match="output must not replace an input file"):
        stream(*files, out / "corrected.csv", settings())
    assert (out / "corrected.csv").read_bytes() == before
    assert corrected.read_text() == "name,label\n3,ash\n"
    assert stream(*files, out / "all.csv", settings(corrected=[])).output.is_file()


@pytest.mark.parametrize("name", ["", "unknown", "nan", "-1"])
def test_names_that_mean_no_label(files: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    random, path = np.random.default_rng(0), tmp_path / "text.npz"
    np.savez(path, text=random.normal(size=(3, 16)), class_names=["fox", name, "elm"])
    with pytest.raises(ValueError, match=f"names must be names of classes, got '{name}'"):
        classify(*files, tmp_path, settings(names=path))
    if name:
        (tmp_path / "names.txt").write_text(f"fox\n{name}\n")
        with pytest.raises(ValueError, match=f"names must be names of classes, got '{name}'"):
            classify(*files, tmp_path, settings(names=tmp_path / "names.txt"))
        (tmp_path / "rename.csv").write_text(f"ash,{name}\n")
        with pytest.raises(ValueError, match=f"rename must be names of classes, got '{name}'"):
            classify(*files, tmp_path, settings(rename=str(tmp_path / "rename.csv")))


def test_corrections_without_a_label(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Cells that other programs write for no label correct nothing; unknown is said by a person."""
    path = tmp_path / "mine.csv"
    path.write_text("name,label\n3,NA\n4,-\n5,unknown\n6,elm\n")
    answers = classify(*files, tmp_path, settings(corrected=path)).answers
    assert answers.corrected == {5: "unknown", 6: "elm"}
    assert "NA" not in answers.class_names


# --- names ----------------------------------------------------------------------------------------


def test_classes_that_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check offers the line, and with it the classes are one, in the truth as well."""
    monkeypatch.setattr(show, "PLAIN_WIDTH", 500)  # each finding on one line
    names = ["logon problem", "login problem", "Login problem", "caf\u00e9", "cafe\u0301", "late"]
    labels = [*np.repeat(names, [2, 6, 1, 3, 4, 6]), *[""] * 6]
    truth = [*[""] * 22, *names]
    places = [(label or true)[:2].lower() for label, true in zip(labels, truth, strict=True)]
    centres = np.eye(3)[[["lo", "ca", "la"].index(place) for place in places]]
    rows = centres + 0.05 * np.random.default_rng(0).normal(size=centres.shape)
    columns = {f"f{k}": rows[:, k] for k in range(3)}
    path = write_table(tmp_path / "a.csv", {**columns, "label": labels, "truth": truth})
    told = said(path, "--truth", "truth", "--check")
    for line in ("Login problem,login problem", "logon problem,login problem", "caf\u00e9,cafe"):
        assert f"--rename FILE with a line {line}" in told
    lines = "class,name", "logon problem,login problem", "Login problem,login problem", "lat,late"
    (tmp_path / "one.csv").write_text("\n".join([*lines, "caf\u00e9,caf\u00e9"]), "utf-8")
    chosen = ("--truth", "truth", "--rename", tmp_path / "one.csv", "--output", tmp_path / "out")
    told = said(path, *chosen)
    assert "accuracy: 100.00 % of 6 samples" in told
    assert "that are no classes here were ignored: 'lat' (did you mean 'late'?)" in told
    found = {row["label"] for row in table(tmp_path / "out" / "answers.csv")}
    assert found == {"login problem", "caf\u00e9", "late"}
    (tmp_path / "corrected.csv").write_text("row,label\n22,Login problem\n23,bug\n")
    told = said(path, *chosen, "--corrected", tmp_path / "corrected.csv")
    found = {row["label"] for row in table(tmp_path / "out" / "answers.csv")}
    assert found == {"login problem", "caf\u00e9", "late", "bug"}
    with pytest.raises(ValueError, match=r"rename must be omitted with a model"):
        classify(path, None, tmp_path, settings(model=path, rename=tmp_path / "one.csv"))
