"""From one Parquet file to another, in batches of rows: the same labels as for the whole file."""

import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from classify_data import NAMES, embeddings, picture_folders, settings, table

from paddle_ext.app import stream as module
from paddle_ext.app.classify import Columns, classify, stream
from paddle_ext.app.read import tables
from paddle_ext.app.write import tables as written

QUERIES = 1000
ROWS, LABELS, NEW, TRUTH = embeddings(queries=QUERIES)


def lists(rows: np.ndarray) -> Any:
    return pa.array(list(rows), pa.list_(pa.float32()))


def write_new(path: Path, **columns: Any) -> Path:
    """Rows with ids, dates and lists, none of which is a feature."""
    table = {
        "id": np.arange(QUERIES) + 7,
        "taken": pa.array(np.arange(QUERIES), pa.timestamp("s")),
        "embedding": lists(NEW),
        "tags": pa.array([["a", "b"]] * QUERIES),
        "truth": NAMES[TRUTH],
    }
    pq.write_table(pa.table(table | columns), path, row_group_size=150)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    known = tmp_path / "known.parquet"
    pq.write_table(pa.table({"embedding": lists(ROWS), "label": NAMES[LABELS]}), known)
    return known, write_new(tmp_path / "new.parquet"), tmp_path / "answers.parquet"


def in_memory(known: Path, new: Path | None, folder: Path, **options: Any) -> tuple[Any, Any, Any]:
    """Labels, probabilities and doubts from the command that keeps everything in memory."""
    answers = classify(known, new, folder, settings(**options)).answers
    names = np.array(answers.class_names)[answers.labels.numpy()]
    return names, answers.probability.numpy(), answers.doubt.numpy()


def assert_equal(table: Any, expected: tuple[Any, Any, Any]) -> None:
    assert table["label"].to_pylist() == expected[0].tolist()
    np.testing.assert_allclose(table["probability"].to_numpy(), expected[1], atol=1e-6)
    np.testing.assert_allclose(table["doubt"].to_numpy(), expected[2], atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "at_once"), [(None, 1), (33, 250), (QUERIES, 2048), (10**6, 250)]
)
def test_the_same_predictions_as_in_memory(
    files: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch: int | None,
    at_once: int,
) -> None:
    """Wherever parts are cut."""
    known, new, output = files
    monkeypatch.setattr(tables, "READ_AT_ONCE", at_once)
    monkeypatch.setattr(written, "ROW_GROUP_BYTES", 64 * at_once)
    report = stream(known, new, output, settings(batch=batch, columns=Columns(truth="truth")))
    table = pq.read_table(output)
    assert_equal(table, in_memory(known, new, tmp_path / "folder", batch=batch))
    given = pq.read_table(new)
    for name in ("id", "taken", "tags", "truth"):
        assert table[name].equals(given[name]), name
    assert table.column_names == ["id", "taken", "tags", "truth", "label", "probability", "doubt"]
    right = np.array(table["label"]) == np.array(table["truth"])
    assert (report.right, report.judged) == (right.sum(), QUERIES)
    assert report.counts.sum() == QUERIES
    assert right.mean() > 0.9


def test_one_table_with_gaps(tmp_path: Path) -> None:
    """Labelled rows are anywhere in the file, and the rows without a label are classified."""
    rows = np.concatenate([NEW[:500], ROWS, NEW[500:]])
    labels = [None] * 500 + NAMES[LABELS].tolist() + ["NA"] + [""] * 499
    path = tmp_path / "one.parquet"
    table = {"key": np.arange(len(rows)), "kind": pa.array(labels), "embedding": lists(rows)}
    pq.write_table(pa.table(table), path, row_group_size=100)
    output = tmp_path / "answers.parquet"
    report = stream(path, None, output, settings(columns=Columns(label="kind")))
    answers = pq.read_table(output)
    gaps = [row for row, label in enumerate(labels) if label in (None, "", "NA")]
    assert answers["key"].to_pylist() == gaps
    assert answers.column_names == ["key", "label", "probability", "doubt"]
    assert_equal(answers, in_memory(path, None, tmp_path / "f", columns=Columns(label="kind")))
    assert any(
        "'NA' in column 'kind' counts as a missing label: 1 row" in note for note in report.notes
    )


def test_names_and_other_formats_of_labelled_rows(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, new, output = files
    centres = np.stack([ROWS[k == LABELS].mean(0) for k in range(len(NAMES))])
    np.savez(tmp_path / "text.npz", text=centres, class_names=NAMES)
    stream(new, None, output, settings(names=tmp_path / "text.npz"))
    assert np.mean(pq.read_table(output)["label"].to_numpy() == NAMES[TRUTH]) > 0.9
    np.savez(tmp_path / "known.npz", features=ROWS, labels=NAMES[LABELS])
    stream(tmp_path / "known.npz", new, output, settings())
    assert_equal(pq.read_table(output), in_memory(tmp_path / "known.npz", new, tmp_path / "folder"))


def test_columns_that_the_output_also_has(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    known, _, output = files
    new = write_new(tmp_path / "new.parquet", doubt=np.ones(QUERIES))
    report = stream(known, new, output, settings())
    assert pq.read_table(output)["doubt"].to_numpy().max() < 1
    assert [note for note in report.notes if "'doubt'" in note]
    table = pq.read_table(new).drop_columns(["truth", "doubt"])
    pq.write_table(table.append_column("label", pa.array(NAMES[TRUTH])), new)
    report = stream(known, new, output, settings(columns=Columns(truth="label")))
    answers = pq.read_table(output)
    assert answers["truth"].to_pylist() == NAMES[TRUTH].tolist()
    assert report.judged == QUERIES


# --- what is refused ----------------------------------------------------------------------------


def odd_lists(row: int) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        rows = [*NEW]
        rows[row] = rows[row][:-1]
        return write_new(path, embedding=pa.array(rows, pa.list_(pa.float32())))

    return write


def with_nan(path: Path) -> Path:
    rows = NEW.copy()
    rows[777, 3] = np.nan
    return write_new(path, embedding=lists(rows))


def cut(path: Path) -> Path:
    write_new(path)
    os.truncate(path, path.stat().st_size // 2)
    return path


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (odd_lists(900), "must have 16 numbers in each row, got 15 in row 900"),
        (with_nan, r"must have finite features, at most 1e\+30, got nan in row 777, feature 3"),
        (cut, r"must be a complete \.parquet file"),
        (lambda p: write_new(p, embedding=lists(NEW[:, :5])), "as many features as .*, 16, got 5"),
        (
            lambda p: write_new(p, embedding=["word"] * QUERIES),
            "got 'word' in row 0, column 'embedding'",
        ),
    ],
)
def test_bad_files_leave_nothing(
    files: tuple[Path, Path, Path],
    tmp_path: Path,
    write: Callable[[Path], Path],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if most of the output has been written."""
    monkeypatch.setattr(tables, "READ_AT_ONCE", 100)
    monkeypatch.setattr(written, "ROW_GROUP_BYTES", 1)
    known, new, output = files
    write(new)
    output.write_bytes(b"of before")
    with pytest.raises(ValueError, match=sentence):
        stream(known, new, output, settings(batch=100))
    assert output.read_bytes() == b"of before"
    assert sorted(tmp_path.iterdir()) == sorted([known, new, output])


@pytest.mark.usefixtures("quick_network")
def test_an_unreadable_image(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    (new / "deep" / "broken.jpg").write_bytes(b"no image")
    output = tmp_path / "answers.csv"
    report = stream(labelled, new, output, settings(cache=tmp_path / "cache"))
    assert list(report.unreadable) == [str(new / "deep" / "broken.jpg")]
    found = {row["file"]: row["label"] for row in table(output)}
    assert len(found) == 6
    assert all(Path(name).parent.name == label for name, label in found.items())


def test_bad_arguments(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    known, new, output = files
    with pytest.raises(ValueError, match="output must not replace an input file"):
        stream(known, new, new, settings())
    with pytest.raises(ValueError, match="but does not exist"):
        stream(known, tmp_path / "nothing.parquet", output, settings())
    with pytest.raises(ValueError, match="batch must be an integer"):
        stream(known, new, output, settings(batch=0))
    for name in module.ONLY_WITH_A_FOLDER:
        value = 3 if name == "suggest" else tmp_path / "x.npz"
        with pytest.raises(ValueError, match=f"{name} must be omitted unless the output is a f"):
            stream(known, new, output, settings(**{name: value}))
    pq.write_table(pq.read_table(new)[:0], new)
    with pytest.raises(ValueError, match="must have at least one sample to classify, got none"):
        stream(known, new, output, settings())
    assert not output.exists()


# --- interruptions ------------------------------------------------------------------------------


@pytest.mark.usefixtures("ctrl_c")
def test_interruption_leaves_no_half_file(
    files: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, new, output = files
    output.write_bytes(b"of before")
    once, calls = module.found_table, itertools.count()

    def interrupted(*given: Any, **more: Any) -> Any:
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return once(*given, **more)

    monkeypatch.setattr(tables, "READ_AT_ONCE", 1)
    monkeypatch.setattr(module, "found_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream(*files, settings(batch=10))
    assert next(calls) == 3
    assert not [thread for thread in threading.enumerate() if "ahead" in thread.name]
    assert output.read_bytes() == b"of before"
    assert sorted(tmp_path.iterdir()) == sorted([known, new, output])
