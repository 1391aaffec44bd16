"""`classify --group` and `--group-gap`: samples that belong together, and what is where."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classify_data import (
    NAMES,
    feature_columns,
    pattern,
    picture_folders,
    refused,
    said,
    table,
    write_table,
)

import paddle_ext

VISIT = np.random.default_rng(3).permutation(np.arange(12).repeat(4))  # in mixed order
TRUTH = NAMES[VISIT % len(NAMES)]  # one class each


def rows_of_visits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy labelled rows, their classes, and the rows of the visits."""
    random, labels = np.random.default_rng(4), np.arange(len(NAMES)).repeat(6)
    centres = random.normal(size=(len(NAMES), 16))
    rows = [centres[k] + 1.5 * random.normal(size=(len(k), 16)) for k in (labels, VISIT % 6)]
    return rows[0].astype(np.float32), labels, rows[1].astype(np.float32)


def visits(folder: Path, **changed: Any) -> tuple[Path, Path]:
    """A table of labelled rows, and one of visits to two places, each on a day of its own."""
    support, labels, query = rows_of_visits()
    known = {"label": NAMES[labels].tolist(), **feature_columns(support)}
    new = {"visit": [f"v{k}" for k in VISIT], "truth": TRUTH.tolist()}
    new |= {"time": [f"2026-06-{k // 2 + 1:02d} 10:00" for k in VISIT]}
    new |= {"place": ["north" if k % 2 else "south" for k in VISIT], **changed}
    new |= feature_columns(query)
    return write_table(folder / "known.csv", known), write_table(folder / "new.csv", new)


def test_each_group_is_a_batch_as_in_python(tmp_path: Path) -> None:
    support, labels, query = rows_of_visits()
    options = ("--rows", "embeddings", "--label-noise", 0, "--truth", "truth")
    said(*visits(tmp_path), *options, "--group", "visit", "--output", tmp_path)
    rows = table(tmp_path / "answers.csv")
    found = paddle_ext.adaptive(support, torch.from_numpy(labels), query, groups=VISIT)
    assert [row["label"] for row in rows] == NAMES[found.labels].tolist()
    probabilities = found.probabilities.amax(1).tolist()
    assert [float(row["probability"]) for row in rows] == pytest.approx(probabilities, abs=1e-3)
    assert [row["group"] for row in rows] == [f"v{k}" for k in VISIT]


def test_what_is_where(tmp_path: Path) -> None:
    files = visits(tmp_path)
    (tmp_path / "corrected.csv").write_text("name,label\n0,yew\n1,unknown\n")
    options = ("--group", "visit", "--corrected", tmp_path / "corrected.csv")
    written = said(*files, *options, "--output", tmp_path / "out")
    assert "note: groups: 12, each classified as one batch" in written
    assert "groups.csv" in written
    rows = table(tmp_path / "out" / "groups.csv")
    answers = table(tmp_path / "out" / "answers.csv")
    assert sum(int(row["samples"]) for row in rows) == len(answers) == 48
    own = [row for row in rows if row["group"] == f"v{VISIT[0]}"]
    assert next(x for x in own if x["class"] == "yew")["present"] == "yes"
    for row in rows:
        assert 0 <= float(row["low"]) <= float(row["share"]) <= float(row["high"]) <= 1
    for visit in set(VISIT):
        shares = [float(row["share"]) for row in rows if row["group"] == f"v{visit}"]
        assert sum(shares) > 0.8
    page = (tmp_path / "out" / "answers.html").read_text(encoding="utf-8")
    assert "<h2>What is where</h2>" in page
    assert f"<li><b>v{VISIT[0]}</b>: 4 samples, " in page


def test_gaps_between_times(tmp_path: Path) -> None:
    """The visits to a place are on different days, so they are the groups."""
    files = visits(tmp_path)
    times = ("--group", "place", "--time", "time", "--group-gap", "2h")
    said(*files, *times, "--output", tmp_path / "times")
    said(*files, "--group", "visit", "--output", tmp_path / "visits")
    said(*files, *times, "--output", tmp_path / "stream.csv")
    paths = ("times/answers.csv", "visits/answers.csv", "stream.csv")
    rows, same, streamed = (table(tmp_path / path) for path in paths)
    assert "south, 2026-06-01 10:00:00" in {row["group"] for row in rows}
    assert len({row["group"] for row in rows}) == 12
    labels = [row["label"] for row in rows]
    assert labels == [row["label"] for row in same] == [row["label"] for row in streamed]
    said(*files, "--time", "time", "--group-gap", "1d", "--output", tmp_path / "all")
    groups = {row["group"] for row in table(tmp_path / "all" / "answers.csv")}
    assert groups == {"2026-06-01 10:00:00"}  # a gap of a day is not longer


def test_groups_of_arrays(tmp_path: Path) -> None:
    support, labels, query = rows_of_visits()
    np.savez(tmp_path / "known.npz", features=support, labels=NAMES[labels])
    np.savez(tmp_path / "new.npz", features=query, visit=VISIT, time=86400.0 * VISIT)
    files = tmp_path / "known.npz", tmp_path / "new.npz"
    said(*files, "--group", "visit", "--output", tmp_path / "visits")
    said(*files, "--time", "time", "--group-gap", "1h", "--output", tmp_path / "times")
    found, same = (table(tmp_path / name / "answers.csv") for name in ("visits", "times"))
    assert [row["group"] for row in found] == [str(k) for k in VISIT]
    assert [row["label"] for row in found] == [row["label"] for row in same]
    assert "must have 'vist', got 'features', 'visit', 'time'" in refused(*files, "--group", "vist")


def test_folders_and_times_of_photos(tmp_path: Path, quick_network: None) -> None:
    labelled, new = picture_folders(tmp_path)
    said(labelled, new, "--group", "folder", "--output", tmp_path / "folders")
    groups = [row["group"] for row in table(tmp_path / "folders" / "answers.csv")]
    assert groups == ["deep/chess"] * 3 + ["deep/stripes"] * 3
    gap = (labelled, new, "--group-gap", "30min", "--output", tmp_path / "times")
    assert "--group-gap must be omitted unless all images have EXIF times" in refused(*gap)
    for number, path in enumerate(sorted(new.rglob("*.jpg"))):
        photo = pattern(2 * (number // 3), number)
        exif = photo.getexif()
        exif.get_ifd(0x8769)[0x9003] = f"2026:06:30 14:{20 * (number % 3):02d}:00"
        photo.save(path, exif=exif)
    (new / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    said(*gap)
    rows = table(tmp_path / "times" / "answers.csv")
    assert {row["group"] for row in rows} == {"2026-06-30 14:00:00"}
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--group", "vist"), "--group must be a column of .*got 'vist' .did you mean 'visit'"),
        (("--group", "visit", "--batch", "9"), "--batch must be omitted with groups.* got 9"),
        (("--time", "time"), "--group-gap must be given with the times 'time', got none"),
        (("--group-gap", "1h"), "--time must be a column of times, got none"),
        (("--time", "time", "--group-gap", "half"), "--group-gap must be a time such as .*'half'"),
        (
            ("--time", "place", "--group-gap", "1h"),
            "--time must be times .*'\\w+' for row 0 and 47",
        ),
        (("--time", "odd", "--group-gap", "1h"), "--time must be times .* got 'nan' for row 1"),
        (("--group", "gap"), "--group must be a value for each sample, got nothing for row 2"),
    ],
)
def test_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    odd, gap = ["5"] * 48, ["x"] * 48
    odd[1], gap[2] = "nan", ""
    files = visits(tmp_path, odd=odd, gap=gap)
    assert re.search(message, refused(*files, *words, "--output", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
