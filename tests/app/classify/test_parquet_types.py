"""Parquet files with columns that Python or Arrow cannot take: the other columns are read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from classify_data import NAMES, embeddings, settings

from paddle_ext.app.classify import Columns, classify, stream
from paddle_ext.app.write.tables import SUFFIXES

ROWS, LABELS, _, _ = embeddings(queries=1)
N = len(ROWS)
# A date of the year 287396, and one that Python's timedelta cannot hold either.
ODD: dict[str, Any] = {
    "on Mars": pa.array(np.arange(N), pa.timestamp("ns", "Mars/Phobos")),
    "far": pa.array([2**53, None] * (N // 2), pa.timestamp("ms")).slice(0, N),
    "farther": pa.array([2**31 - 1] * N, pa.date32()),
    "long": pa.array([2**62] * N, pa.duration("s")),
    "seen": pa.array([f"by {k % 3}" for k in range(N)], pa.string_view()),
    "bytes": pa.array([b"x"] * N, pa.binary_view()),
    "lists": pa.array([["a", "b"]] * N, pa.list_(pa.string_view())),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Every third row is to be labelled; the labels are views too."""
    names = np.where(np.arange(N) % 3 == 0, None, NAMES[LABELS])
    features = {f"f{k}": ROWS[:, k] for k in range(ROWS.shape[1])}
    table = pa.table(features | {"label": pa.array(names, pa.string_view())} | ODD)
    pq.write_table(table, tmp_path / "odd.parquet")
    return tmp_path / "odd.parquet"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_into_one_file(file: Path, suffix: str) -> None:
    output = file.with_name(f"answers{suffix}")
    report = stream(file, None, output, settings())
    assert len(report) == -(-N // 3)
    if suffix == ".parquet":
        found = pq.read_table(output)
        assert found["on Mars"].type == pa.timestamp("ns", "UTC")
        assert found["on Mars"].cast(pa.int64()).to_pylist() == list(range(0, N, 3))
        assert found["far"].type == ODD["far"].type
        assert found["seen"].to_pylist() == ODD["seen"].to_pylist()[::3]
    if suffix == ".csv":
        assert "1970-01-01 00:00:00+00:00" in output.read_text()
        assert "out of range: timestamp[ms]" in output.read_text()


def test_into_a_folder(file: Path) -> None:
    """In groups, which are views as well."""
    found = classify(file, None, file.parent / "results", settings(columns=Columns(group="seen")))
    assert len(found.answers.labels) == -(-N // 3)
