"""`classify --prior`: what is known of the class proportions."""

from pathlib import Path

import numpy as np
import pytest
from classify_data import settings, table

from paddle_ext.app.classify import classify
from paddle_ext.app.classify.streaming import check_settings

NAMES = ("oak", "elm", "newt", "frog")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Oaks and elms are hard to tell apart; the new samples are of three classes."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, 16))
    centres[1] = centres[0] + 0.4 * centres[1]
    labels = np.arange(4).repeat(6)
    rows = centres[labels] + 0.3 * random.normal(size=(24, 16))
    np.savez(tmp_path / "known.npz", features=rows, labels=np.array(NAMES)[labels])
    new = centres[np.arange(3).repeat([10, 10, 20])] + 0.3 * random.normal(size=(40, 16))
    np.savez(tmp_path / "new.npz", features=new)
    return tmp_path / "known.npz", tmp_path / "new.npz"


def labels_with(files: tuple[Path, Path], folder: Path, text: str | None) -> list[str]:
    prior = None
    if text is not None:
        prior = folder / "prior.csv"
        prior.write_text(text)
    report = classify(*files, folder / "out", settings(prior=prior))
    return [row["label"] for row in table(report.table)]


def test_impossible_classes_are_never_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert "elm" in labels_with(files, tmp_path, None)
    found = labels_with(files, tmp_path, "class,weight\noak,50\nelm,0\nnewt,50\nfrog,1\n")
    assert "elm" not in found
    assert set(found[:20]) == {"oak"}


def test_a_class_that_is_not_listed_is_possible(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Even if one of those in the table is impossible."""
    assert "newt" in labels_with(files, tmp_path, "class,weight\noak,1\nelm,0\n")


def test_missing_and_foreign_names_are_told(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "prior.csv").write_text("oak;9\nnewt;9\nbat;3\n")
    report = classify(*files, tmp_path / "out", settings(prior=tmp_path / "prior.csv"))
    page = report.page.read_text(encoding="utf-8")
    assert "2 classes not in" in page
    assert "got its smallest weight above 0, 9, such as elm" in page
    assert "1 of the names in" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oak,many\n", "weights of at least 0, got 'many' for 'oak'"),
        ("oak,-1\n", "weights of at least 0, got '-1' for 'oak'"),
        ("oak\n", "a class and its weight in every line, got .*line 1: oak"),
        ("bat,3\n", "a positive weight for one of 4 classes, got none"),
        ("oak,1\noak,2\n", "one weight for each class, got '1' and '2'"),
    ],
)
def test_bad_files(files: tuple[Path, Path], tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        labels_with(files, tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_streams_take_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="prior must be omitted"):
        check_settings(settings(prior=tmp_path / "prior.csv"), one_batch=False)


def test_shares_of_the_classes(files: tuple[Path, Path], tmp_path: Path) -> None:
    report = classify(*files, tmp_path / "out", settings())
    rows = table(tmp_path / "out" / "classes.csv")
    assert {row["class"] for row in rows} == set(NAMES)
    assert sum(int(row["samples"]) for row in rows) == 40
    assert abs(sum(float(row["share"]) for row in rows) - 1) < 1e-3
    assert all(float(row["low"]) <= float(row["share"]) <= float(row["high"]) for row in rows)
    newt = next(row for row in rows if row["class"] == "newt")
    assert float(newt["low"]) <= 0.5 <= float(newt["high"])
    assert "with 90 % confidence" in report.page.read_text(encoding="utf-8")
