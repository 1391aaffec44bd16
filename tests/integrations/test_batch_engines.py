"""The examples for large data on the engines themselves, with the same results."""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZE = 1000
ADDED = ["label", "probability", "doubt", "novelty", "strangers", "alarm"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled.parquet, new.parquet and the results of the plain loop."""
    folder = tmp_path_factory.mktemp("files")
    names = [str(folder / f"{name}.parquet") for name in ("labelled", "new", "answers")]
    main = runpy.run_path(str(EXAMPLES / "large_parquet.py"))["main"]
    main(["--made-up", *names, "--size", str(SIZE)])
    return folder


def columns(path: Path) -> dict[str, np.ndarray]:
    """Of a file or a folder of them, in the order of id."""
    table = pq.read_table(path).sort_by("id")
    return {name: table[name].to_numpy() for name in table.schema.names}


# In the checkout, where the sources hide the installed package from workers too, and elsewhere.
PLACES = pytest.mark.parametrize("place", ["checkout", "elsewhere"])


def run_example(
    name: str, *arguments: Any, place: str, folder: Path, needs: str, **environment: str
) -> None:
    """In its own process: engines change much of theirs."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    if place == "checkout":
        environment["PYTHONPATH"] = str(EXAMPLES.parent)
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        cwd=EXAMPLES.parent if place == "checkout" else folder,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def assert_same(found: dict[str, np.ndarray], files: Path) -> None:
    usual = columns(files / "answers.parquet")
    for name in ("id", "label", "alarm"):
        assert np.array_equal(found[name], usual[name]), name
    for name in ("probability", "doubt", "novelty", "strangers"):
        np.testing.assert_allclose(found[name], usual[name], atol=1e-5)


def test_plain_loop(files: Path) -> None:
    answers = columns(files / "answers.parquet")
    assert list(answers) == ["id", "truth", *ADDED]
    assert answers["id"].tolist() == list(range(6000))
    assert np.mean(answers["label"] == answers["truth"]) > 0.95


def test_batches_of_the_loop(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files without the truth, and a last batch that is smaller."""
    table = pq.read_table(files / "new.parquet", columns=["id", "embedding"])
    pq.write_table(table[:1030], files / "some.parquet")
    names = [str(files / f"{name}.parquet") for name in ("labelled", "some", "few")]
    runpy.run_path(str(EXAMPLES / "large_parquet.py"))["main"]([*names, "--size", "500"])
    assert capsys.readouterr().out.splitlines()[-1] == f"1030 rows in {names[-1]}"
    assert list(columns(files / "few.parquet")) == ["id", *ADDED]


@pytest.fixture
def short_folder() -> Iterator[str]:
    """For sockets, the paths of which must be short."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield folder


@PLACES
def test_ray(place: str, files: Path, tmp_path: Path, short_folder: str) -> None:
    run_example(
        "large_ray",
        *(files / "labelled.parquet", files / "new.parquet", tmp_path / "answers"),
        *("--size", str(SIZE)),
        place=place,
        folder=tmp_path,
        needs="ray",
        HOME=str(tmp_path),  # where it writes a token
        RAY_TMPDIR=short_folder,
        RAY_USAGE_STATS_ENABLED="0",
    )
    found = columns(tmp_path / "answers")
    assert list(found) == ["id", "truth", *ADDED]
    assert_same(found, files)


@PLACES
@pytest.mark.parametrize("options", [(), ("--udf",)])
def test_spark(options: tuple[str, ...], place: str, files: Path, tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("needs Java")
    run_example(
        "large_spark",
        *(files / "labelled.parquet", files / "new.parquet", tmp_path / "answers"),
        *("--size", str(SIZE), *options),
        place=place,
        folder=tmp_path,
        needs="pyspark",
        PYSPARK_PYTHON=sys.executable,
    )
    found = columns(tmp_path / "answers")
    assert list(found) == ["id", *ADDED]
    assert_same(found, files)


def test_spark_with_groups(files: Path, tmp_path: Path) -> None:
    """Text names the groups, which are spread over the file and cut by Spark's batches."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("needs Java")
    new = pq.read_table(files / "new.parquet")
    truth = new["truth"].to_numpy()
    places = [f"{name} {number % 5}" for number, name in enumerate(truth)]  # each of one class
    pq.write_table(new.append_column("place", [places]), tmp_path / "new.parquet")
    run_example(
        "large_spark",
        *(files / "labelled.parquet", tmp_path / "new.parquet", tmp_path / "answers"),
        *("--size", "70", "--group", "place"),
        place="checkout",
        folder=tmp_path,
        needs="pyspark",
        PYSPARK_PYTHON=sys.executable,
    )
    found = columns(tmp_path / "answers")
    assert list(found) == ["id", "place", *ADDED]
    assert found["place"].tolist() == places
    for place in set(places):
        assert len({*found["label"][found["place"] == place]}) == 1
    assert (found["label"] == truth).mean() > 0.99
