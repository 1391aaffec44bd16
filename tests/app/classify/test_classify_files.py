"""Files of every kind through the command: long texts, odd names, full disks, interruptions."""

import csv
import errno
import json
import os
import resource
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from classify_data import (
    NAMES,
    embeddings,
    picture_folders,
    refused,
    run,
    said,
    settings,
    table,
    table_with_gaps,
    write_table,
)
from scripts import ended, run_code

from paddle_ext.app.classify import classify

ESCAPE = "\x1b[31m"


# --- what is in the files -----------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_text_of_any_length(tmp_path: Path, separator: str) -> None:
    """Longer than the limit of Python's reader, and than the sample that shows the separator."""
    texts = [f"text, {row}" for row in range(64)]
    texts[2] = texts[60] = "long, " * 60_000
    before = csv.field_size_limit(131_072)
    source = table_with_gaps(tmp_path / "table.csv", separator, text=texts)
    said(source, "--text", "text", "--embedding", "f", "--output", tmp_path)
    csv.field_size_limit(max(before, 10**6))
    written = ";" if separator == ";" else ","
    assert len(table(tmp_path / "answers.csv", written)[36]["text"]) == 360_000


def test_ids_are_in_the_check_of_the_labels(tmp_path: Path) -> None:
    ids = [f"ticket-{row}" for row in range(64)]
    texts = [f"text {row}" for row in range(64)]
    source = table_with_gaps(tmp_path / "table.csv", key=ids, words=texts)
    options = ("--id", "key", "--text", "words", "--embedding", "f", "--output", tmp_path)
    said(source, *options)
    rows = table(tmp_path / "labelled.csv")
    assert list(rows[0]) == ["key", "text", "label", "doubt", "suggestion"]
    assert {row["key"]: row["text"] for row in rows} == {
        f"ticket-{row}": f"text {row}" for row in range(24)
    }
    # Two files: the ids of the labelled one.
    lines = source.read_text(encoding="utf-8").splitlines()
    for name, part in (("known.csv", lines[:25]), ("new.csv", [lines[0], *lines[25:]])):
        (tmp_path / name).write_text("\n".join(part), encoding="utf-8")
    said(tmp_path / "known.csv", tmp_path / "new.csv", *options)
    assert {row["key"] for row in table(tmp_path / "labelled.csv")} == set(ids[:24])


def test_names_with_spaces_and_labels_with_underscores(tmp_path: Path) -> None:
    support, labels, query, truth = embeddings()
    names = np.array(["polar bear", "red_fox", "cat", "sea  lion", "elk", "dog"])
    written = np.array(["polar_bear", "red fox", "cat", "sea_lion", "elk", "dog"])
    means = np.stack([support[labels == k].mean(0) for k in range(6)])
    np.savez(tmp_path / "names.npz", text=means, class_names=names)
    np.savez(tmp_path / "known.npz", features=support, labels=written[labels])
    np.savez(tmp_path / "new.npz", features=query, labels=written[truth])
    words = (tmp_path / "known.npz", tmp_path / "new.npz", "--names", tmp_path / "names.npz")
    told = said(*words, "--truth", "labels", "--output", tmp_path)
    assert "accuracy: 100.00 % of 40 samples with a true label" in told
    assert {row["label"] for row in table(tmp_path / "answers.csv")} == {"red_fox", "elk"}


def test_no_escape_bytes_in_the_output(tmp_path: Path) -> None:
    """A terminal would run them; names stay the same in every file, so corrections fit."""
    ids = [f"{row}{ESCAPE}" for row in range(64)]
    texts = [f"{ESCAPE} text {row}" for row in range(64)]
    _, labels, query, _ = embeddings()
    given = [f"{NAMES[k]}{ESCAPE}" for k in labels] + [""] * len(query)
    source = table_with_gaps(tmp_path / "table.csv", key=ids, words=texts, label=given)
    options = ("--id", "key", "--text", "words", "--embedding", "f", "--output", tmp_path)
    said(source, *options)
    for name in ("answers.csv", "answers.html", "labelled.csv", "classes.csv"):
        content = (tmp_path / name).read_bytes()
        assert b"\x1b" not in content, name
        assert b"\\x1b[31m" in content, name
    rows = table(tmp_path / "answers.csv")
    assert rows[0]["key"] == "24\\x1b[31m"
    corrected = tmp_path / "corrected.csv"
    corrected.write_text(f"key,label\n{rows[0]['key']},{rows[0]['label']}\n")
    said(source, *options, "--corrected", corrected)


@pytest.mark.usefixtures("quick_network")
def test_no_escape_bytes_of_image_names(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    (labelled / "discs").rename(labelled / f"di{ESCAPE}scs")
    (labelled / "chess" / "0.png").rename(labelled / "chess" / f"{ESCAPE}.png")
    (new / "deep" / "chess" / "0.jpg").rename(new / "deep" / "chess" / f"0{ESCAPE}.jpg")
    (new / f"{ESCAPE}.txt").write_text("no image")
    assert "\x1b" not in said(labelled, new, "--output", tmp_path)
    for name in ("answers.csv", "answers.html", "labelled.csv"):
        assert b"\x1b" not in (tmp_path / name).read_bytes(), name
    assert "deep/chess/0\\x1b[31m.jpg" in {row["file"] for row in table(tmp_path / "answers.csv")}


# --- what cannot be read or written -------------------------------------------------------------


@pytest.mark.parametrize("option", ["folder", "file", "excel", "save"])
def test_a_full_disk_is_reported_with_the_file(
    files: tuple[Path, Path], tmp_path: Path, option: str
) -> None:
    """With a limit on the size of files, which fails like a full disk."""
    words, name, largest = {
        "folder": (["--output", tmp_path], "answers.csv", 500),
        "file": (["--output", tmp_path / "all.csv"], "all.csv", 500),
        "excel": (["--output", tmp_path / "all.xlsx"], "all.xlsx", 500),
        "save": (["--output", tmp_path, "--save", tmp_path / "kept.npz"], "kept.npz", 3500),
    }[option]  # the last limit is more than answers.csv takes, and less than kept.npz
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        told = refused(*files, *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"error: {tmp_path / name}: {os.strerror(errno.EFBIG)}" in told
    assert not list(tmp_path.glob(".partial-*"))


@pytest.mark.parametrize("option", ["--output", "--save", "--final", "--export"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_is_not_writable_is_reported_before_any_work(
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    option: str,
) -> None:
    """The tests may run as root, who may write anywhere."""
    out = tmp_path / "there"
    out.mkdir()
    make = os.mkdir

    def refuse(path: Any, *rest: Any, **more: Any) -> None:
        if f"{out}/.partial-" in str(path):
            raise OSError(number, os.strerror(number), path)
        make(path, *rest, **more)

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr("paddle_ext.app.run.open_data", None)  # not even the data are opened
    file = [] if option == "--output" else ["--output", tmp_path]
    own = {"--save": ["m.npz"], "--final": ["f.csv"], "--export": ["label-studio", "t.json"]}
    *words, name = own.get(option, [""])
    told = refused(*files, *file, option, *words, out / name)
    assert told.endswith(f"error: {out}: {os.strerror(number)}")


# --- interruptions ------------------------------------------------------------------------------


def test_nothing_of_others_is_removed(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Whatever it is called: only what this run has made may go."""
    folder = tmp_path / "out"
    theirs = folder / ".partial-download" / "thesis" / "chapter.txt"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    said(*files, "--output", folder)
    assert theirs.exists()
    assert [path.name for path in folder.glob(".partial-*")] == [".partial-download"]


@pytest.mark.usefixtures("quick_network")
def test_an_interruption_says_that_features_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddle_ext.app.run.answer", Mock(side_effect=KeyboardInterrupt))
    words = (*picture_folders(tmp_path), "--output", tmp_path)
    for cache, message in (
        (("--cache", tmp_path / "cache"), "interrupted: run the same command to continue"),
        ((), "nothing was saved, the same command starts over"),
    ):
        done = run(*words, *cache)
        assert done.exit_code == 130
        assert message in done.output


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("library", ["cyclopts", "torch"])
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
    done = ended(code)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("paddle-ext: interrupted")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("option", ["--output", "--final"])
def test_a_pipe_is_not_replaced_by_a_file(
    files: tuple[Path, Path], tmp_path: Path, option: str
) -> None:
    """Its reader would wait for ever."""
    pipe = tmp_path / "answers.csv"
    os.mkfifo(pipe)
    told = refused(*files, option, pipe)
    assert f"{option} must be a regular file, got the pipe, socket or device {pipe}" in told
    if option == "--output":
        assert "must be a regular file" in refused(*files, "--output", tmp_path)
    assert pipe.is_fifo()


def test_a_locale_without_the_characters_of_a_name(files: tuple[Path, Path]) -> None:
    """Everything is written, and said in characters that the terminal has."""
    output = files[0].with_name("grün.csv")
    code = (
        "import sys\n"
        "from paddle_ext.app.cli.app import run\n"
        "sys.exit(run(['classify', '--device', 'cpu', '--no-cache', *sys.argv[1:]]))"
    )
    told = run_code(code, *files, "--output", output, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert told[-1].endswith("gr\\xfcn.csv")
    assert output.is_file()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".json", ".parquet"])
def test_names_of_files_in_upper_case(tmp_path: Path, suffix: str) -> None:
    """As some programs of Windows write them."""
    rows = {"f1": [1.5, 2, 7, 8, 8], "f2": [2, 1.5, 8, 7.5, 7], "label": ["a", "a", "b", "b", ""]}
    features = np.stack([rows["f1"], rows["f2"]], axis=1).astype(np.float32)
    known, new = tmp_path / f"known{suffix}", tmp_path / f"new{suffix}"
    if suffix == ".npz":
        np.savez(known, features=features[:4], labels=rows["label"][:4])
        np.savez(new, features=features[4:])
    elif suffix == ".safetensors":
        save_file = pytest.importorskip("safetensors.torch").save_file
        labels = torch.tensor([0, 0, 1, 1])
        save_file({"features": torch.from_numpy(features[:4]), "labels": labels}, known)
        save_file({"features": torch.from_numpy(features[4:])}, new)
    elif suffix == ".json":
        records = [
            dict(zip(rows, cells, strict=True)) for cells in zip(*rows.values(), strict=True)
        ]
        known.write_text(json.dumps(records[:4]))
        new.write_text(json.dumps(records[4:]))
    else:
        write_table(known, {name: cells[:4] for name, cells in rows.items()})
        write_table(new, {name: cells[4:] for name, cells in rows.items()})
    files = [path.rename(path.with_suffix(suffix.upper())) for path in (known, new)]
    report = classify(*files, tmp_path / "out", settings())
    assert len(report) == 1
    assert report.answers.prediction(0) in ("b", "1")
