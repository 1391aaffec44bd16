"""Files of every kind through the command: long texts, odd names, full disks, interruptions."""

import csv
import errno
import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classify_data import NAMES, embeddings, picture_folders
from click.testing import Result
from typer.testing import CliRunner

from paddle_ext.app.cli.app import app

ESCAPE = "\x1b[31m"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["classify", *map(str, words), "--device", "cpu", "--no-cache"])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, separator: str = ",", **columns: list[Any]) -> Path:
    """A CSV of embeddings in f0 to f15, with missing labels, and other columns."""
    support, labels, query, _ = embeddings()
    features = np.concatenate([support, query])
    columns |= {f"f{i}": features[:, i].tolist() for i in range(features.shape[1])}
    columns.setdefault("label", [*NAMES[labels], *[""] * len(query)])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[Path, Path]:
    support, labels, query, _ = embeddings()
    np.savez(tmp_path / "known.npz", features=support, labels=NAMES[labels])
    np.savez(tmp_path / "new.npz", features=query)
    return tmp_path / "known.npz", tmp_path / "new.npz"


# --- what is in the files -----------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_text_of_any_length(tmp_path: Path, separator: str) -> None:
    """Longer than the limit of Python's reader, and than the sample that shows the separator."""
    texts = [f"text, {row}" for row in range(64)]
    texts[2] = texts[60] = "long, " * 60_000
    before = csv.field_size_limit(131_072)
    table = write_rows(tmp_path / "table.csv", separator, text=texts)
    done = run(table, "--text", "text", "--embedding", "f", "--output", tmp_path)
    assert done.exit_code == 0, done.output
    csv.field_size_limit(max(before, 10**6))
    assert len(rows_of(tmp_path / "answers.csv")[36]["text"]) == 360_000


def test_ids_are_in_the_check_of_the_labels(tmp_path: Path) -> None:
    ids = [f"ticket-{row}" for row in range(64)]
    table = write_rows(tmp_path / "table.csv", key=ids, said=[f"text {row}" for row in range(64)])
    options = ("--id", "key", "--text", "said", "--embedding", "f", "--output", tmp_path)
    assert run(table, *options).exit_code == 0
    rows = rows_of(tmp_path / "labelled.csv")
    assert list(rows[0]) == ["key", "text", "label", "doubt", "suggestion"]
    assert {row["key"]: row["text"] for row in rows} == {
        f"ticket-{row}": f"text {row}" for row in range(24)
    }
    # Two files: the ids of the labelled one.
    with table.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    for name, part in (("known.csv", lines[:25]), ("new.csv", [lines[0], *lines[25:]])):
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(part)
    assert run(tmp_path / "known.csv", tmp_path / "new.csv", *options).exit_code == 0
    assert {row["key"] for row in rows_of(tmp_path / "labelled.csv")} == set(ids[:24])


def test_names_with_spaces_and_labels_with_underscores(tmp_path: Path) -> None:
    support, labels, query, truth = embeddings()
    names = np.array(["polar bear", "red_fox", "cat", "sea  lion", "elk", "dog"])
    written = np.array(["polar_bear", "red fox", "cat", "sea_lion", "elk", "dog"])
    means = np.stack([support[labels == k].mean(0) for k in range(6)])
    np.savez(tmp_path / "names.npz", text=means, class_names=names)
    np.savez(tmp_path / "known.npz", features=support, labels=written[labels])
    np.savez(tmp_path / "new.npz", features=query, labels=written[truth])
    words = (tmp_path / "known.npz", tmp_path / "new.npz", "--names", tmp_path / "names.npz")
    done = run(*words, "--truth", "labels", "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert "accuracy: 100.00 % of 40 samples with a true label\n" in done.output
    assert {row["label"] for row in rows_of(tmp_path / "answers.csv")} == {"red_fox", "elk"}


def test_no_escape_bytes_in_the_output(tmp_path: Path) -> None:
    """A terminal would run them; names stay the same in every file, so corrections fit."""
    ids = [f"{row}{ESCAPE}" for row in range(64)]
    texts = [f"{ESCAPE} said {row}" for row in range(64)]
    _, labels, query, _ = embeddings()
    given = [f"{NAMES[k]}{ESCAPE}" for k in labels] + [""] * len(query)
    table = write_rows(tmp_path / "table.csv", key=ids, said=texts, label=given)
    options = ("--id", "key", "--text", "said", "--embedding", "f", "--output", tmp_path)
    assert run(table, *options).exit_code == 0
    for name in ("answers.csv", "answers.html", "labelled.csv", "classes.csv"):
        content = (tmp_path / name).read_bytes()
        assert b"\x1b" not in content, name
        assert b"\\x1b[31m" in content, name
    rows = rows_of(tmp_path / "answers.csv")
    assert rows[0]["key"] == "24\\x1b[31m"
    corrected = tmp_path / "corrected.csv"
    corrected.write_text(f"key,label\n{rows[0]['key']},{rows[0]['label']}\n")
    done = run(table, *options, "--corrected", corrected)
    assert done.exit_code == 0, done.output


def test_no_escape_bytes_of_image_names(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    (labelled / "discs").rename(labelled / f"di{ESCAPE}scs")
    (labelled / "chess" / "0.png").rename(labelled / "chess" / f"{ESCAPE}.png")
    (new / "deep" / "chess" / "0.jpg").rename(new / "deep" / "chess" / f"0{ESCAPE}.jpg")
    (new / f"{ESCAPE}.txt").write_text("no image")
    done = run(labelled, new, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    for name in ("answers.csv", "answers.html", "labelled.csv"):
        assert b"\x1b" not in (tmp_path / name).read_bytes(), name
    assert "deep/chess/0\\x1b[31m.jpg" in {row["file"] for row in rows_of(tmp_path / "answers.csv")}


# --- what cannot be read or written -------------------------------------------------------------


def test_a_model_that_does_not_exist(arrays: tuple[Path, Path], tmp_path: Path) -> None:
    done = run(arrays[1], "--model", tmp_path / "none.npz", "--output", tmp_path)
    assert done.exit_code == 1
    assert "none.npz, which does not exist" in done.output


@pytest.mark.parametrize("option", ["folder", "file", "save"])
def test_a_full_disk_is_reported_with_the_file(
    arrays: tuple[Path, Path], tmp_path: Path, option: str
) -> None:
    """With a limit on the size of files, which fails like a full disk."""
    words, name = {
        "folder": (["--output", tmp_path], "answers.csv"),
        "file": (["--output", tmp_path / "all.csv"], "all.csv"),
        "save": (["--output", tmp_path, "--save", tmp_path / "kept.npz"], "kept.npz"),
    }[option]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = {"folder": 500, "file": 500, "save": 2500}[option]
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        done = run(*arrays, *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.exit_code == 1
    assert f"error: {tmp_path / name}: {os.strerror(errno.EFBIG)}" in done.output
    assert not list(tmp_path.glob(".partial-*"))


def test_a_full_disk_and_excel(
    arrays: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is complete before it is written, as one that fails complains twice."""

    def full(path: Path, _: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    done = run(*arrays, "--output", tmp_path / "all.xlsx")
    assert done.exit_code == 1
    assert f"error: {tmp_path / 'all.xlsx'}: {os.strerror(errno.ENOSPC)}" in done.output


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_is_not_writable_is_reported_with_the_file(
    arrays: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The tests may run as root, who may write anywhere."""
    make = os.mkdir

    def refuse(path: Any, *rest: Any, **more: Any) -> None:
        if ".partial-" in str(path):
            raise OSError(number, os.strerror(number), path)
        make(path, *rest, **more)

    monkeypatch.setattr(os, "mkdir", refuse)
    done = run(*arrays, "--output", tmp_path)
    assert done.exit_code == 1
    assert f"error: {tmp_path / 'answers.csv'}: {os.strerror(number)}\n" in done.output


# --- interruptions ------------------------------------------------------------------------------


def test_the_next_run_removes_what_a_killed_one_left(
    arrays: tuple[Path, Path], tmp_path: Path
) -> None:
    """But not what another run is writing, nor what is not ours."""
    folder = tmp_path / "out"
    for name in (".partial-abandone", ".partial-theirown", ".partial-mine", ".partial-twofiles"):
        (folder / name).mkdir(parents=True)
        (folder / name / "answers.csv").touch()
    (folder / ".partial-twofiles" / "other").touch()
    descriptor = os.open(folder / ".partial-theirown", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert run(*arrays, "--output", folder).exit_code == 0
    finally:
        os.close(descriptor)
    assert sorted(path.name for path in folder.glob(".partial-*")) == [
        ".partial-mine",
        ".partial-theirown",
        ".partial-twofiles",
    ]


def test_an_interruption_says_that_features_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paddle_ext.app.classify.run.answer", stop)
    labelled, new = picture_folders(tmp_path)
    words = ["classify", str(labelled), str(new), "--device", "cpu", "--output", str(tmp_path)]
    cache = tmp_path / "cache"
    done = CliRunner().invoke(app, [*words, "--cache", str(cache)])
    assert done.exit_code == 130
    assert "interrupted: run the same command to continue" in done.output
    done = CliRunner().invoke(app, [*words, "--no-cache"])
    assert done.exit_code == 130
    assert "nothing was saved, the same command starts over" in done.output


@pytest.mark.parametrize("library", ["typer", "torch"])
def test_an_interruption_during_start_up(library: str) -> None:
    """While the libraries of the command line are loaded, and while torch is."""
    code = (
        "import os, signal, sys\n"
        "from paddle_ext.app.cli import main\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {library!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Stop())\n"
        "sys.argv[1:] = ['classify', 'nothing.npz', 'nothing.npz']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("paddle-ext: interrupted")
    assert len(done.stderr.splitlines()) == 1
