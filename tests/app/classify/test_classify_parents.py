"""`classify --parents`: unsure samples get a parent of their class."""

from pathlib import Path

import numpy as np
import pytest
from classify_data import settings, table

from paddle_ext.app.classify import classify
from paddle_ext.app.classify.class_tables import read_pairs
from paddle_ext.app.classify.streaming import check_settings

NAMES = ("oak", "elm", "newt")
TREE = "class,parent\noak,tree\nelm,tree\nnewt,animal\ntree,alive\nanimal,alive\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Oaks and elms are hard to tell apart; newts are easy."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 16))
    centres[1] = centres[0] + 0.05 * centres[1]
    labels = np.arange(3).repeat(6)
    rows = centres[labels] + 0.2 * random.normal(size=(18, 16))
    np.savez(tmp_path / "known.npz", features=rows, labels=np.array(NAMES)[labels])
    new = centres[labels] + 0.2 * random.normal(size=(18, 16))
    np.savez(tmp_path / "new.npz", features=new)
    return tmp_path / "known.npz", tmp_path / "new.npz"


def test_unsure_samples_get_a_parent(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "tree.csv").write_text(TREE)
    report = classify(*files, tmp_path / "out", settings(parents=tmp_path / "tree.csv"))
    rows = table(report.table)
    assert {row["node"] for row in rows[:12]} >= {"tree"}
    assert {row["node"] for row in rows[12:]} == {"newt"}
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


def test_without_parents_there_is_no_column(files: tuple[Path, Path], tmp_path: Path) -> None:
    report = classify(*files, tmp_path / "out", settings())
    assert "node" not in report.table.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oak,tree\nelm,tree\n", "got none for 'newt', in .*tree.csv"),
        ("oak\n", "a class and its parent in every line, got .*line 1: oak"),
        ("oak,tree\noak,animal\n", "one parent for each class, got 'tree' and 'animal'"),
        (TREE + "alive,oak\n", "cycle"),
        (TREE + "oka,tree\n", "'oka', which is no class and no parent"),
    ],
)
def test_bad_parents(files: tuple[Path, Path], tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tree.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        classify(*files, tmp_path / "out", settings(parents=tmp_path / "tree.csv"))
    assert not (tmp_path / "out").exists()


def test_parents_need_a_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="which is not a file"):
        read_pairs(tmp_path / "none.csv", "parents", "parent")
    with pytest.raises(ValueError, match="parents must be omitted unless the output is a folder"):
        check_settings(settings(parents=tmp_path / "tree.csv"), one_batch=False)
