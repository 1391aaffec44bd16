"""The review as a loop: corrections that accumulate, and tables that have every sample."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from classify_data import (
    NAMES,
    STRANGE,
    embeddings,
    feature_columns,
    picture_folders,
    refused,
    said,
    settings,
    strange_files,
    table,
    write_table,
)

from paddle_ext.app.classify import classify
from paddle_ext.app.corrections import read_corrections
from paddle_ext.app.read.table_files import open_table
from paddle_ext.app.write.sorting import folder_names, unused

# --- corrections accumulate -----------------------------------------------------------------------


def test_corrections_stay(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Two files are merged, later ones win, and the next run knows all of them by itself."""
    first, second, out = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "out"
    first.write_text("name,label\n3,ginkgo\n4,ginkgo\n7,birch\n")
    second.write_text("name,label\n4,fir\n9,unknown\n")
    told = said(*files, "--output", out, "--corrected", first, "--corrected", second)
    assert "corrected labels: 4 (1 as unknown): 3 from" in told
    assert "new class 'ginkgo', 1 corrected sample" in told
    again = said(*files, "--output", out)
    assert "corrected labels: 4 (1 as unknown): 4 from" in again
    rows = table(out / "answers.csv")
    assert [row["row"] for row in rows] == [str(row) for row in range(40)]
    labels = {row["row"]: row["label"] for row in rows if row["source"] == "corrected"}
    assert labels == {"3": "ginkgo", "4": "fir", "7": "birch", "9": "unknown"}
    third = tmp_path / "c.csv"
    third.write_text("name,label,data\n3,,new.npz\n5,birhc,new.npz\n")  # withdrawn, and a new one
    told = said(*files, "--output", out, "--corrected", third)
    assert "new class 'birhc', 1 corrected sample (did you mean 'birch'?)" in told
    kept = {key.name: label for key, label in read_corrections(out / "corrected.csv").items()}
    assert kept == {"4": "fir", "5": "birhc", "7": "birch", "9": "unknown"}


def test_predictions_beside_corrections(files: tuple[Path, Path], tmp_path: Path) -> None:
    """By the given labels alone: no correction predicts itself."""
    before = [row["label"] for row in table(classify(*files, tmp_path, settings()).table)]
    path = tmp_path / "a.csv"
    write_table(path, {"name": range(6), "label": ["ginkgo"] * 6})
    report = classify(*files, tmp_path / "out", settings(corrected=path))
    rows = table(report.table)[:6]
    assert [row["label"] for row in rows] == ["ginkgo"] * 6
    assert [row["prediction"] for row in rows] == before[:6]
    assert "ginkgo" in report.answers.class_names
    write_table(path, {"name": range(40), "label": ["elm"] * 40})  # every sample
    report = classify(*files, tmp_path / "all", settings(corrected=path))
    assert {row["label"] for row in table(report.table)} == {"elm"}
    for share in report.answers.prevalence:
        assert share.tolist() == [0, 0, 0, 0, 1, 0, 0]  # nothing is unsure, none is a stranger
    # With one sample left, at most that one is of no known class.
    write_table(path, {"name": range(39), "label": ["elm"] * 39})
    classify(*files, tmp_path / "rest", settings(corrected=path))
    assert float(table(tmp_path / "rest" / "classes.csv")[-1]["high"]) <= 1 / 40


def test_corrected_samples_are_predicted_one_by_one(tmp_path: Path) -> None:
    """They were corrected because they are odd, so they say nothing about one another."""
    files, path, found = strange_files(tmp_path), tmp_path / "a.csv", []
    for rows in (STRANGE[:1], [3, *STRANGE]):
        write_table(path, {"name": rows, "label": ["unknown"] * len(rows)})
        report = classify(*files, tmp_path / f"{len(rows)}", settings(corrected=path))
        found.append(table(report.table)[STRANGE[0]]["probability"])
    assert found[0] == found[1]


def test_unknown_is_no_class(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("name,label\n3,Unknown\n4,unknown\n")
    report = classify(*files, tmp_path / "out", settings(corrected=path))
    assert report.answers.class_names == tuple(NAMES)
    assert int(report.answers.counts().sum()) == 38
    assert len(report.outcome.source.labelled.labels) == 24
    rows = table(report.table)
    assert [rows[3]["label"], rows[4]["label"]] == ["unknown", "unknown"]
    shares = table(tmp_path / "out" / "classes.csv")
    assert sum(int(row["samples"]) for row in shares) == 40
    assert shares[-1]["class"] == "of no known class"
    assert shares[-1]["samples"] == "2"
    assert float(shares[-1]["low"]) >= 2 / 40
    told = said(*files, "--output", tmp_path / "out")
    assert "40 samples, 2 of 6 classes found, 2 labelled unknown" in told


def test_labelled_samples_are_corrected(files: tuple[Path, Path], tmp_path: Path) -> None:
    """A correction names a labelled sample by its data: it changes its label, or drops it."""
    path = tmp_path / "a.csv"
    path.write_text("name,label,data\n0,fir,known.npz\n1,unknown,known.npz\n0,elm,new.npz\n")
    told = said(*files, "--output", tmp_path, "--corrected", path, "--final", tmp_path / "all.csv")
    assert "corrected labels: 3 (2 of labelled samples, 1 as unknown)" in told
    rows = table(tmp_path / "all.csv")
    assert len(rows) == 24 + 40
    of = {"known.npz": [], "new.npz": []}
    for row in rows:
        of[row["data"]].append((row["label"], row["source"]))
    assert of["known.npz"][:2] == [("fir", "corrected"), ("unknown", "corrected")]
    assert of["known.npz"][2] == ("ash", "given")
    assert of["new.npz"][0] == ("elm", "corrected")
    assert of["new.npz"][1][1] == "predicted"
    labelled = table(tmp_path / "labelled.csv")
    assert len(labelled) == 24 - 1 + 1
    assert sum(row["label"] == "ash" for row in labelled) == 2


def test_all_rows_of_one_table(tmp_path: Path) -> None:
    """The final table has the rows of the table, in its order, and says where a label is from."""
    support, labels, query, _ = embeddings(features=3)
    order = np.random.default_rng(0).permutation(64)
    names = [f"r{row:02}" for row in range(64)]
    columns = feature_columns(np.concatenate([support, query])[order])
    columns |= {"label": np.array([*NAMES[labels], *[""] * 40])[order], "who": names}
    source = write_table(tmp_path / "table.csv", columns)
    given = {name for name, row in zip(names, order, strict=True) if row < 24}
    one, other = min(given), min(set(names) - given)
    (tmp_path / "a.csv").write_text(f"who,label\n{one},yew\n{other},fir\n")
    out, final = tmp_path / "out", tmp_path / "final" / "all.csv"
    options = ("--id", "who", "--corrected", tmp_path / "a.csv", "--final", final, "--output", out)
    said(source, *options)
    found = table(final)
    assert [row["who"] for row in found] == names
    corrected = {row["who"]: row["label"] for row in found if row["source"] == "corrected"}
    assert corrected == {one: "yew", other: "fir"}
    assert {row["who"] for row in found if row["source"] == "given"} == given - {one}
    numbered = tmp_path / "numbers.csv"
    said(source, "--embedding", "f", "--final", numbered, "--output", tmp_path / "other")
    assert [row["row"] for row in table(numbered)] == [str(row) for row in range(len(names))]
    assert "--final must not replace an input file" in refused(source, "--final", source)
    own = write_table(tmp_path / "labelled.csv", columns)  # as `classify` names a file
    before = own.read_bytes()
    assert "--output must not replace an input file" in refused(own, "--output", tmp_path)
    assert own.read_bytes() == before
    assert "--final must be a file ending in " in refused(source, "--final", tmp_path / "all.txt")


def test_the_final_table_with_ids_that_are_not_unique(tmp_path: Path) -> None:
    support, labels, query, _ = embeddings(features=3)
    order = np.random.default_rng(0).permutation(64)
    given = np.array([*NAMES[labels], *[""] * 40])[order]
    columns = feature_columns(np.concatenate([support, query])[order])
    columns |= {"label": given, "who": ["same", "other"] * 32}
    source, final = write_table(tmp_path / "table.csv", columns), tmp_path / "all.csv"
    said(source, "--id", "who", "--final", final, "--output", tmp_path / "out")
    found = table(final)
    assert [row["who"] for row in found] == columns["who"]
    own = [row["label"] if row["source"] == "given" else "" for row in found]
    assert own == given.tolist()


@pytest.mark.parametrize("suffix", [".xlsx", ".parquet"])
def test_the_final_table_in_other_formats(
    files: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"all{suffix}"
    said(*files, "--output", tmp_path, "--final", path)
    parts = list(open_table(path).parts(["data", "label", "probability"]))
    labels = [cell for part in parts for cell in part.cells("label")]
    assert len(labels) == 24 + 40
    answers = [row["label"] for row in table(tmp_path / "answers.csv")]
    assert labels[24:] == answers
    sure = [cell for part in parts for cell in part.cells("probability")]
    assert sure[:24] == [None] * 24
    assert 0 < float(sure[24]) <= 1


def test_files_without_digests(files: tuple[Path, Path], tmp_path: Path) -> None:
    """One of an older version is read if it is asked for, and a foreign one is left alone."""
    (tmp_path / "b.csv").write_text("name,label\n5,elm\n")
    old, mine, more = tmp_path / "old", tmp_path / "mine", ("--corrected", tmp_path / "b.csv")
    for folder, text in ((old, "name,label,data\n3,yew,new.npz\n4,elm,x\n"), (mine, "a,b,label\n")):
        folder.mkdir()
        (folder / "corrected.csv").write_text(text)
        assert "corrected.csv was not read" in said(*files, "--output", folder)
        assert "give that file as --corrected" in refused(*files, "--output", folder, *more)
        assert (folder / "corrected.csv").read_text() == text
    told = said(*files, "--output", old, "--corrected", old / "corrected.csv")
    assert "1 of them by name alone (1 more of samples that are not in these data)" in told
    assert [key[:2] for key in read_corrections(old / "corrected.csv")] == [("3", "new.npz")]
    moved = files[1].rename(tmp_path / "july.npz")  # the same samples in data of another name
    assert "corrected labels: 1: 1 from" in said(files[0], moved, "--output", old)


@pytest.mark.usefixtures("quick_network")
def test_photographs_of_one_name(tmp_path: Path) -> None:
    """A correction reaches no other photograph, of its name and in a folder of its name."""
    labelled, new = picture_folders(tmp_path)
    site2, (one, two) = tmp_path / "site2" / "new", ("deep/chess/1.jpg", "deep/chess/2.jpg")
    shutil.copytree(new, site2)
    shutil.copy(new / "deep/stripes/1.jpg", site2 / one)
    (tmp_path / "a.csv").write_text(f"file,label\n{one},moth\n{two},moth\n")
    said(labelled, new, "--output", tmp_path, "--corrected", tmp_path / "a.csv")
    for more in ((), ("--corrected", tmp_path / "corrected.csv")):
        assert "(1 more of samples that are" in said(labelled, site2, "--output", tmp_path, *more)
        sources = {row["file"]: row["source"] for row in table(tmp_path / "answers.csv")}
        assert (sources[one], sources[two]) == ("predicted", "corrected")
    assert "corrected labels: 2: 2 from" in said(labelled, new, "--output", tmp_path)


def test_corrections_are_not_taken_for_wrong_labels(tmp_path: Path) -> None:
    """Two of three are near copies, and there are wrong labels among the given ones."""
    random = np.random.default_rng(11)
    centres = random.normal(size=(6, 32))
    truth = np.r_[np.arange(5).repeat(8), np.arange(5).repeat(50), np.full(55, 5)]
    rows = (centres[truth] + 1.5 * random.normal(size=(len(truth), 32))).astype(np.float32)
    rows[-2] = rows[-1] + 0.02 * random.normal(size=32)
    labels = truth[:40].astype(str)
    labels[[3, 20]] = ["1", "4"]
    known, new, saved = (tmp_path / f"{name}.npz" for name in ("known", "new", "model"))
    np.savez(known, features=rows[:40], labels=labels)
    np.savez(new, features=rows[40:])
    (tmp_path / "a.csv").write_text("name,label\n302,5\n303,5\n304,5\n")
    more = settings(corrected=tmp_path / "a.csv", save=saved)
    for files, own in (((known, new), more), ((new, None), settings(model=saved))):
        answers = classify(*files, tmp_path / "out", own).answers
        assert (answers.labels[250:302] == 5).sum() >= 40


# --- files of corrections -------------------------------------------------------------------------


def test_an_unedited_answers_file_has_no_corrections(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    report = classify(*files, tmp_path / "a", settings())
    rows = table(report.table)[:5]
    write_table(tmp_path / "edited.csv", {name: [row[name] for row in rows] for name in rows[0]})
    with pytest.raises(ValueError, match=r"got only predictions in .*: change labels, or confirm"):
        classify(*files, tmp_path / "b", settings(corrected=[tmp_path / "edited.csv"]))


def edited(answers: Path, path: Path, labels: dict[int, str], **columns: dict[int, str]) -> Path:
    """The table of an earlier run, with other labels in some rows."""
    rows = table(answers)
    for name, cells in {"label": labels, **columns}.items():
        for row, cell in cells.items():
            rows[row][name] = cell
    return write_table(path, {name: [row[name] for row in rows] for name in rows[0]})


def test_predictions_in_an_edited_answers_file_are_no_truth(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Only changed labels are taken, and those that the source says a person gave."""
    first = classify(*files, tmp_path / "a", settings())
    path = edited(first.table, tmp_path / "a.csv", {3: "ginkgo"}, source={5: "me"})
    report = classify(*files, tmp_path / "b", settings(corrected=path))
    assert report.answers.corrected == {3: "ginkgo", 5: first.answers.prediction(5)}
    assert [row["name"] for row in table(tmp_path / "b" / "corrected.csv")] == ["3", "5"]
    said = [note for note in report.notes if note.startswith("corrected labels: 2: 2 from")]
    assert "(the 38 others are only predicted there, and not taken)" in said[0]
    # Given back whole, the new table says the same.
    again = classify(*files, tmp_path / "c", settings(corrected=report.table))
    assert again.answers.corrected == report.answers.corrected


def test_an_edited_answers_file_is_kept(files: tuple[Path, Path], tmp_path: Path) -> None:
    """The same command writes its own, and says where the edits are; also of corrected labels."""
    out, kept = tmp_path / "out", tmp_path / "out" / "answers-edited.csv"
    report = classify(*files, out, settings())
    assert "answers-edited.csv" not in said(*files, "--output", out)  # nothing was edited
    edited(report.table, report.table, {3: "ginkgo"})
    told = said(*files, "--output", out)
    assert "had 1 label changed by hand, and was replaced; the edited file is now" in told
    assert table(kept)[3]["label"] == "ginkgo"
    assert table(out / "answers.csv")[3]["source"] == "predicted"
    assert "corrected labels: 1: 1 from" in said(*files, "--output", out, "--corrected", kept)
    edited(report.table, report.table, {3: "elm"})
    assert "had 1 label changed by hand" in said(*files, "--output", out)
    assert table(out / "answers-edited-2.csv")[3]["label"] == "elm"
    edited(report.table, report.table, {7: "fir"})
    told = said(*files, "--output", out, "--corrected", report.table)  # so nothing is lost
    assert "changed by hand" not in told
    assert table(report.table)[7]["label"] == "fir"


def test_corrections_from_excel(files: tuple[Path, Path], tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for line in (["row", "label"], [3, "ginkgo"], [4.0, "fir"], [5, None]):
        book.active.append(line)
    book.save(tmp_path / "edited.xlsx")
    report = classify(*files, tmp_path, settings(corrected=tmp_path / "edited.xlsx"))
    assert report.answers.corrected == {3: "ginkgo", 4: "fir"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,lable\n3,elm\n", "then a column 'label', got .* with name, lable .did you mean"),
        ("", "got .* with no column"),
        ("name,label\n3,elm\n3,fir\n", "one label for each sample, got 'elm' and 'fir' for '3'"),
        ("name,label\n3\n", "a label in every line, got none in line 2"),
        ("name,label\n3,\n", "have a label, got none in"),
        ("name,label\n99,elm\n", "names of samples of .*, got '99'"),
        ("name,label\n033,elm\n", r"got '033' in .*, which is none \(did you mean '33'\?\)"),
    ],
)
def test_bad_corrections(files: tuple[Path, Path], tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "corrected.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^corrected must .*{message}"):
        classify(*files, tmp_path, settings(corrected=path))
    with pytest.raises(ValueError, match="which is not a file"):
        read_corrections(tmp_path / "nothing.csv")
    path.write_bytes(b"name,label\n3,\x81\n")  # a byte that no common encoding has
    with pytest.raises(ValueError, match=r"^corrected must be a CSV file, got .*cannot be read"):
        read_corrections(path)


def test_corrections_of_named_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "text.npz", text=np.eye(4)[:3], class_names=["a", "b", "c"])
    new, path = np.eye(4)[[0, 2, 2, 1]] + 0.1, tmp_path / "corrected.csv"
    files = [tmp_path / "new.npz", write_table(tmp_path / "new.csv", feature_columns(new))]
    np.savez(files[0], features=new)
    np.savez(tmp_path / "wide.npz", features=np.eye(3, 9))
    path.write_text("name,label\n0,b\n")
    options = settings(names=tmp_path / "text.npz", corrected=path)
    for file in files:
        answers = classify(file, None, tmp_path, options).answers
        assert (answers.corrected, len(answers)) == ({0: "b"}, 4)
    with pytest.raises(ValueError, match="must have as many features as"):
        classify(tmp_path / "wide.npz", None, tmp_path, options)
    path.write_text("name,label\n0,bb\n")
    with pytest.raises(ValueError, match=r"among the names of the classes, got 'bb'"):
        classify(files[0], None, tmp_path, options)


# --- photos ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_network")
def test_photos_are_sorted(tmp_path: Path) -> None:
    """Copies in class folders; nothing is moved or overwritten."""
    labelled, new = picture_folders(tmp_path)
    (tmp_path / "a.csv").write_text(
        "file,label\ndeep/chess/0.jpg,unknown\ndeep/chess/1.jpg,a/b\nstripes/0.png,unknown\n"
        "deep/chess/2.jpg,doubtful\n"
    )
    target, cache = tmp_path / "sorted", tmp_path / "cache"
    common = ("--output", tmp_path / "out", "--sort-into", target, "--cache", cache)
    told = said(labelled, new, *common, "--corrected", tmp_path / "a.csv")
    assert "sorted" in told
    copies = sorted(path.relative_to(target).as_posix() for path in target.rglob("*.jpg"))
    assert len(copies) == 6
    assert {"unknown/0.jpg", "a_b/1.jpg", "doubtful (class)/2.jpg"} <= set(copies)
    rows = {row["file"]: row for row in table(tmp_path / "out" / "answers.csv")}
    for name, row in rows.items():
        folder = row["label"].replace("/", "_").replace("doubtful", "doubtful (class)")
        if row["source"] == "predicted" and row["check"]:
            folder = row["check"]
        stem = Path(name).stem
        same = [path for path in (target / folder).iterdir() if path.stem.startswith(stem)]
        assert (new / name).read_bytes() in [path.read_bytes() for path in same]
    assert "must be a new or empty folder" in refused(labelled, new, *common)
    assert not list(target.glob(".partial-*"))
    inside = refused(labelled, new, "--sort-into", new / "sorted")
    assert "--sort-into must be outside" in inside
    np.savez(tmp_path / "rows.npz", features=np.eye(3), labels=list("abc"))
    rows_only = refused(*[tmp_path / "rows.npz"] * 2, "--sort-into", tmp_path / "other")
    assert "--sort-into must be omitted unless there are images, got" in rows_only
    # A folder that cannot be made is refused before the work.
    options = ("--output", tmp_path / "none", "--sort-into", tmp_path / "a.csv" / "sorted")
    assert "Not a directory" in refused(labelled, new, *options)
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("quick_network")
def test_no_two_classes_share_a_folder_of_photos(tmp_path: Path) -> None:
    """Also if they are called like the folder of doubtful ones, and like what that class gets."""
    labelled, new = picture_folders(tmp_path)
    lines = "deep/chess/0.jpg,doubtful\ndeep/chess/1.jpg,doubtful (class)\n"
    (tmp_path / "a.csv").write_text(f"file,label\n{lines}")
    options = ("--output", tmp_path / "out", "--corrected", tmp_path / "a.csv")
    said(labelled, new, *options, "--sort-into", tmp_path / "sorted")
    folders = {path.parent.name for path in (tmp_path / "sorted").rglob("[01].jpg")}
    assert {"doubtful (class)", "doubtful (class) (class)"} <= folders


def test_names_fit_file_systems(tmp_path: Path) -> None:
    """They count bytes, of which a letter may have four."""
    labels = ["漢" * 200, "漢" * 201, "e" * 300]
    for name in folder_names(labels).values():
        (tmp_path / name).mkdir()
    taken: set[str] = set()
    for _ in range(3):
        name = unused(f"{'漢' * 40}/{'é' * 124}", ".jpeg", taken).partition("/")[2]
        (tmp_path / name).touch(exist_ok=False)


@pytest.mark.usefixtures("quick_network")
def test_a_disk_that_is_full_while_photos_are_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left, so that the same command may be repeated; the error names the folder."""
    labelled, new = picture_folders(tmp_path)
    target, copied = tmp_path / "sorted", list[object]()
    arguments = (labelled, new, "--output", tmp_path, "--sort-into", target)
    copy = shutil.copy2

    def full(source: Path, copied_to: Path) -> None:
        copied.append(copy(source, copied_to))
        if len(copied) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, copied_to)

    monkeypatch.setattr(shutil, "copy2", full)
    assert f"error: {target}: {os.strerror(errno.ENOSPC)}" in refused(*arguments)
    assert list(target.iterdir()) == []
    said(*arguments)
    assert len(list(target.rglob("*.*"))) == 6
