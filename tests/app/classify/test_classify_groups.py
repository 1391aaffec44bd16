"""`classify --group` and `--group-gap`: samples that belong together, and what is where."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classify_data import (
    NAMES,
    column,
    feature_columns,
    pattern,
    picture_folders,
    refused,
    said,
    table,
)
from classify_data import write_table as written

import paddle_ext

VISIT = np.random.default_rng(3).permutation(np.arange(12).repeat(4))  # in mixed order
RANDOM, LABELS = np.random.default_rng(4), np.arange(6).repeat(6)
CENTRES = RANDOM.normal(size=(6, 16))
KNOWN, NEW = (
    (CENTRES[k % 6] + 1.5 * RANDOM.normal(size=(len(k), 16))).astype(np.float32)
    for k in (LABELS, VISIT)  # visits of one class each
)
TIMES = ("--time", "time", "--group-gap")


@pytest.fixture
def visits(tmp_path: Path) -> tuple[Path, Path]:
    """A table of labelled rows, and one of visits to two places, each there on another day."""
    known = {"label": NAMES[LABELS].tolist(), **feature_columns(KNOWN)}
    new = {
        "visit": [f"v{k}" for k in VISIT],
        "place": ["north" if k % 2 else "south" for k in VISIT],
    }
    new |= {"time": [f"2026-06-{k // 2 + 1:02d} 10:00" for k in VISIT]}
    new |= {"nan": ["1782828300", "nan", *["1782828301"] * 46], "gap": ["x", "x", "", *["x"] * 45]}
    new |= {"none": [""] * 48}
    new |= feature_columns(NEW)
    return written(tmp_path / "known.csv", known), written(tmp_path / "new.csv", new)


def test_each_group_is_a_batch_as_in_python(visits: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--rows", "embeddings", "--label-noise", 0, "--group", "visit")
    said(*visits, *options, "--output", tmp_path)
    found = paddle_ext.adaptive(KNOWN, torch.from_numpy(LABELS), NEW, groups=VISIT)
    answers = tmp_path / "answers.csv"
    assert column(answers, "label") == NAMES[found.labels].tolist()
    own = [float(cell) for cell in column(answers, "probability")]
    assert own == pytest.approx(found.probabilities.amax(1).tolist(), abs=1e-3)
    assert column(answers, "group") == [f"v{k}" for k in VISIT]


def test_what_is_where(visits: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("name,label\n0,yew\n1,unknown\n")
    options = ("--group", "visit", "--corrected", tmp_path / "mine.csv")
    words = said(*visits, *options, "--output", tmp_path / "out")
    assert "note: groups: 12, each classified as one batch" in words
    assert "/out/groups.csv" in words
    rows = table(tmp_path / "out" / "groups.csv")
    assert sum(int(row["samples"]) for row in rows) == len(VISIT)
    yew = next(row for row in rows if row["class"] == "yew")
    assert (yew["group"], yew["samples"]) == (f"v{VISIT[0]}", "1")
    for row in rows:
        assert 0 <= float(row["low"]) <= float(row["share"]) <= float(row["high"]) <= 1
    page = (tmp_path / "out" / "answers.html").read_text(encoding="utf-8")
    assert "<h2>What is where</h2>" in page
    assert f"<li><b>v{VISIT[0]}</b>: 4 samples, " in page
    again = said(*visits, "--output", tmp_path / "out")
    assert "/out/groups.csv is of an earlier run, and was not written now" in again
    assert "What is where" not in (tmp_path / "out" / "answers.html").read_text(encoding="utf-8")
    assert table(tmp_path / "out" / "groups.csv") == rows


def test_things_and_a_prior_for_each_group(visits: tuple[Path, Path], tmp_path: Path) -> None:
    prior = np.random.default_rng(5).uniform(0.1, 1, size=(2, 6)).round(3)
    cells = zip(["north"] * 6 + ["south"] * 6, [*NAMES[:6]] * 2, prior.flatten(), strict=True)
    table = tmp_path / "prior.csv"
    table.write_text("group,class,weight\n" + "".join(f"{a},{b},{c}\n" for a, b, c in cells))
    both = ("--rows", "embeddings", "--label-noise", 0, "--output", tmp_path / "out")
    options = (*both, "--group", "place", "--same", "visit", "--no-share", "--prior", table)
    assert "things: 12, each with one label" in said(*visits, *options)
    known: Any = KNOWN, torch.from_numpy(LABELS), NEW
    more: Any = {"groups": np.array(["south", "north"])[VISIT % 2], "same": VISIT, "share": False}
    found = paddle_ext.adaptive(*known, prior=prior, **more)
    answers = tmp_path / "out" / "answers.csv"
    assert column(answers, "label") == NAMES[found.labels].tolist()
    for wrong, message in (
        (("--same", "place", "--group", "visit"), "must have the rows of a thing in one group"),
        (("--no-share",), "--no-share must be given with groups, got none"),
        (("--prior", table), "--prior must have only groups that samples have, got 'north'"),
    ):
        assert message in refused(*visits, *wrong, "--output", tmp_path / "out")


def test_labelled_things(visits: tuple[Path, Path], tmp_path: Path) -> None:
    """Labelled rows of a thing count once: of two tables, of a model, and of one table."""
    pair, new, model = LABELS * 3 + np.arange(36) % 6 // 2, visits[1], tmp_path / "model.npz"
    cells: Any = {"visit": [f"p{k}" for k in pair], "label": NAMES[LABELS].tolist()}
    known = written(tmp_path / "pairs.csv", cells | feature_columns(KNOWN))
    cells["visit"] += [f"v{k}" for k in VISIT]
    cells["label"] += [""] * 48
    cells |= feature_columns(np.concatenate([KNOWN, NEW]))
    one = written(tmp_path / "one.csv", cells)
    found = paddle_ext.adaptive(KNOWN, torch.from_numpy(LABELS), NEW, same=VISIT, support_same=pair)
    options = ("--features", "f", "--rows", "embeddings", "--label-noise", 0, "--output", tmp_path)
    for data in ((known, new, "--save", model), ("--model", model, new), (one,)):
        said(*data, *options, "--same", "visit")
        own = [float(cell) for cell in column(tmp_path / "answers.csv", "probability")]
        assert own == pytest.approx(found.probabilities.amax(1).tolist(), abs=1e-3)
    (tmp_path / "mine.csv").write_text("name,label\n0,yew\n")
    said("--model", model, new, *options, "--corrected", tmp_path / "mine.csv")  # it is not tied
    assert "labelled things: 18 in 36 labelled samples" in said(one, *options, "--same", "visit")
    cells["label"][1] = " yew"  # one of each class; counted once, though the table is read twice
    told = said(written(one, cells), *options, "--same", "visit")
    assert "labelled things: 19 in 36 labelled samples" in told
    assert "' yew' (1)" in told


def test_groups_of_labelled_rows(visits: tuple[Path, Path], tmp_path: Path) -> None:
    """With the same column they calibrate without their own group, and so does a saved model."""
    patients = np.arange(36) % 5
    cells = [f"p{k}" for k in patients]
    known = {"label": NAMES[LABELS].tolist(), "visit": cells, **feature_columns(KNOWN)}
    labelled = written(tmp_path / "with-groups.csv", known)
    alone = ("--rows", "embeddings", "--group", "visit", "--no-share")
    kept = ("--output", tmp_path / "a", "--save", tmp_path / "m.npz")
    told = said(labelled, visits[1], *alone, *kept)
    assert "note: labelled groups: 5, left out whole to calibrate the probabilities" in told

    given: Any = {"groups": VISIT, "share": False, "support_groups": patients}
    found = paddle_ext.adaptive(KNOWN, torch.from_numpy(LABELS), NEW, **given)
    own = [float(cell) for cell in column(tmp_path / "a" / "answers.csv", "probability")]
    assert own == pytest.approx(found.probabilities.amax(1).tolist(), abs=1e-3)

    new = {"visit": [f"v{k}" for k in VISIT], **feature_columns(NEW)}
    rest = written(tmp_path / "rest.csv", new)
    said(rest, "--model", tmp_path / "m.npz", *alone[2:], "--output", tmp_path / "b")
    again = column(tmp_path / "b" / "answers.csv", "probability")
    assert again == column(tmp_path / "a" / "answers.csv", "probability")

    told = refused(labelled, visits[1], *alone, "--label-noise", 0.1)
    assert "--label-noise must be 0.0 or 'auto' with groups of labelled rows, got 0.1" in told


def test_gaps_between_times(visits: tuple[Path, Path], tmp_path: Path) -> None:
    """The visits to a place are on different days, so they are the groups; in any output."""
    said(*visits, "--group", "place", *TIMES, "2h", "--output", tmp_path / "times")
    said(*visits, "--group", "visit", "--output", tmp_path / "visits.csv")
    groups = column(tmp_path / "times" / "answers.csv", "group")
    assert len({*groups}) == 12
    assert "south, 2026-06-01 10:00:00" in groups
    labels = column(tmp_path / "times" / "answers.csv", "label")
    assert labels == column(tmp_path / "visits.csv", "label")
    said(*visits, *TIMES, "1d", "--output", tmp_path / "all")  # a gap of a day is not longer
    assert {*column(tmp_path / "all" / "answers.csv", "group")} == {"2026-06-01 10:00:00"}


@pytest.mark.parametrize(
    "cell",
    ["2026", "202606301405", "9999-12-31T23:59:59-05:00", "0001-01-01T00:00+14:00"],
)
def test_what_is_no_time(visits: tuple[Path, Path], tmp_path: Path, cell: str) -> None:
    """A few such samples are a group of their own, and listed; not if they are most."""
    cells: Any = {"time": ["1782828300", cell, *["1782828301"] * 46], **feature_columns(NEW)}
    new = written(tmp_path / "odd.csv", cells)
    told = said(visits[0], new, *TIMES, "2h", "--output", tmp_path)
    assert "no time could be read for 1 of 48 samples, which are the group 'no time': row 1" in told
    groups = column(tmp_path / "answers.csv", "group")
    assert groups[1] == "no time"
    assert {*groups} == {"2026-06-30 14:05:00", "no time"}
    cells["time"][3:] = [cell] * 45
    told = refused(visits[0], written(new, cells), *TIMES, "2h", "--output", tmp_path)
    assert "(in the years 1990 to 2099), or EXIF, got" in told
    assert f"{cell!r} for row 1 and 45 others" in told


@pytest.mark.parametrize(
    ("form", "others"),
    [
        ("%d.%m.%Y %H:%M", []),
        ("%d.%m.%y", []),
        ("%d.%m.%Y, %H:%M:%S Uhr", []),
        ("%d/%m/%Y %H:%M", ["30/06/2026"]),
        ("%d-%m-%Y", ["30-06-2026"]),
        ("%m/%d/%Y %I:%M %p", ["06/30/2026"]),
        ("%m/%d/%y", ["06/30/26"]),
    ],
)
def test_dates_as_people_write_them(
    visits: tuple[Path, Path], tmp_path: Path, form: str, others: list[str]
) -> None:
    """With slashes another date of the column tells where the day is."""
    days = [datetime(2026, 6, k // 2 + 1, 10) for k in VISIT]  # 1 to 6 June
    cells: Any = {"time": [day.strftime(form) for day in days], **feature_columns(NEW)}
    cells["time"][0] = (others or cells["time"])[0]
    said(visits[0], written(tmp_path / "a.csv", cells), *TIMES, "2h", "--output", tmp_path)
    groups = column(tmp_path / "answers.csv", "group")
    hour = "10:00:00" if "%H" in form or "%I" in form else "00:00:00"
    assert groups[1:] == [f"{day:%Y-%m-%d} {hour}" for day in days[1:]]
    assert groups[0] == ("2026-06-30 00:00:00" if others else f"{days[0]:%Y-%m-%d} {hour}")


def test_dates_that_do_not_tell_the_day(visits: tuple[Path, Path], tmp_path: Path) -> None:
    cells: Any = {"time": ["01/10/2026", *["02/10/2026 14:05"] * 47], **feature_columns(NEW)}
    words = (visits[0], tmp_path / "a.csv", *TIMES, "2h", "--output", tmp_path)
    written(tmp_path / "a.csv", cells)
    told = refused(*words)
    assert "--time must say which number is the day, got '01/10/2026', and no other date" in told
    cells["time"][1:3] = ["13/10/2026", "10/13/2026"]
    written(tmp_path / "a.csv", cells)
    told = refused(*words)
    assert "all have the day first, or all the month, got '13/10/2026' and '10/13/2026'" in told


def test_all_corrected(visits: tuple[Path, Path], tmp_path: Path) -> None:
    lines = [f"{row},{'unknown' if k else 'ash'}\n" for row, k in enumerate(VISIT)]
    (tmp_path / "mine.csv").write_text("name,label\n" + "".join(lines))
    corrected = ("--corrected", tmp_path / "mine.csv", "--output", tmp_path)
    said(*visits, "--group", "visit", *corrected)
    shares = column(tmp_path / "groups.csv", "class"), column(tmp_path / "groups.csv", "share")
    assert shares == (["ash", *["of no known class"] * 11], ["1.0000"] * 12)


def test_groups_of_names_and_of_arrays(visits: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", features=NEW, visit=VISIT)
    told = refused(visits[0], tmp_path / "new.npz", "--group", "visit")
    assert "--group must be omitted unless there is a table or a folder of images" in told
    told = refused(visits[0], tmp_path / "new.npz", "--group-gap", "2h")
    assert "--group-gap must be omitted unless there is a table or a folder of images" in told
    np.savez(tmp_path / "names.npz", text=KNOWN[:6], class_names=NAMES)
    names = ("--group", "visit", "--names", tmp_path / "names.npz", "--output", tmp_path)
    assert "note: groups: 12, each classified as one batch" in said(*visits, *names)
    assert column(tmp_path / "answers.csv", "group") == [f"v{k}" for k in VISIT]


def test_folders_and_times_of_photos(tmp_path: Path, quick_network: None) -> None:
    labelled, new = picture_folders(tmp_path)
    (labelled / "chess" / "burst").mkdir()
    for path in [*(labelled / "chess").glob("*.png")][:2]:  # the others are of no burst
        path.rename(path.parent / "burst" / path.name)
    told = said(labelled, new, "--group", "folder", "--same", "folder", "--output", tmp_path)
    assert "labelled things: 11 in 12 labelled samples, each counted once" in told
    groups = column(tmp_path / "answers.csv", "group")
    assert groups == ["deep/chess"] * 3 + ["deep/stripes"] * 3
    gap = (labelled, new, "--group-gap", "30min", "--output", tmp_path)
    assert "--group-gap must be omitted unless most samples have a time: 2026" in refused(*gap)
    for number, path in enumerate(sorted(new.rglob("*.jpg"))):
        photo = pattern(2 * (number // 3), number)
        exif = photo.getexif()
        exif.get_ifd(0x8769)[0x9003] = f"2026:06:30 {number // 5:02d}:{20 * (number % 3):02d}:00"
        photo.save(path, exif=exif)
    pattern(0, 9).save(new / "z.jpg")  # a time is missing
    (new / "broken.jpg").write_bytes(b"\xff\xd8\xff")  # it has no time, and no group
    told = said(*gap)
    groups = column(tmp_path / "answers.csv", "group")
    assert groups == ["no time", *["2026-06-30 00:00:00"] * 5, "2026-06-30 01:40:00"]
    assert f"no time could be read for 1 of 8 samples, which are the group 'no time': {new}" in told


def take(path: Path, kind: int, time: str) -> None:
    """A photo of this kind, taken at this time of a day."""
    photo = pattern(kind, len(path.as_posix()))
    exif = photo.getexif()
    exif.get_ifd(0x8769)[0x9003] = f"2026:06:30 {time}"
    photo.save(path, exif=exif)


def test_bursts_of_photos(tmp_path: Path, quick_network: None) -> None:
    """Photos of a folder within seconds of each other are one thing, also labelled ones."""
    labelled, new = picture_folders(tmp_path)
    for name, times in {"chess": ("08:00:00", "08:00:04"), "stripes": ("08:00:02",)}.items():
        for number, time in enumerate(times):
            (labelled / name / f"{number}.png").unlink()
            take(labelled / name / f"{number}.jpg", 0, time)
    times = {"chess/0": "10:00:00", "chess/1": "10:00:08", "stripes/0": "10:00:04"}
    times |= {"chess/2": "10:00:30", "stripes/1": "10:00:13"}
    for name, time in times.items():
        take(new / "deep" / f"{name}.jpg", 0, time)
    bursts = ("--same-gap", "10s", "--output", tmp_path)
    told = said(labelled, new, *bursts)
    # chess/0 and 1; chess/2; stripes/0 and 1; and one without a time.
    assert "note: things: 4, each with one label, and counted once" in told
    assert "note: labelled things: 11 in 12 labelled samples, each counted once" in told
    rows = {row["file"]: row for row in table(tmp_path / "answers.csv")}
    one, other = (rows[f"deep/chess/{number}.jpg"] for number in (0, 1))
    assert (one["label"], one["probability"]) == (other["label"], other["probability"])
    assert "note: things: 4," in said(labelled, new, "--group", "folder", *bursts)
    assert "--same-gap must be a time such as 30s" in refused(labelled, new, "--same-gap", "soon")


def test_bursts_of_rows(visits: tuple[Path, Path], tmp_path: Path) -> None:
    """By a column of times, within each value of --same, or each group."""
    gap = ("--same-gap", "1h", "--output", tmp_path)
    assert "note: things: 6, each" in said(*visits, "--time", "time", *gap)  # a day each
    assert "things: 12, each" in said(*visits, "--time", "time", "--group", "place", *gap)
    assert "things: 12, each" in said(*visits, "--time", "time", "--same", "visit", *gap)
    assert "--time must be a column of times, got none" in refused(*visits, *gap)


def test_empty_cells_of_groups_are_a_group(visits: tuple[Path, Path], tmp_path: Path) -> None:
    told = said(
        *visits, "--group", "gap", "--time", "nan", "--group-gap", "1h", "--output", tmp_path
    )
    assert (
        "no group could be read for 1 of 48 samples, which are the group 'no group': row 2" in told
    )
    groups = column(tmp_path / "answers.csv", "group")
    assert groups[:4] == [
        "x, 2026-06-30 14:05:00",
        "x, no time",
        "no group, 2026-06-30 14:05:01",
        "x, 2026-06-30 14:05:00",
    ]
    bursts = ("--group", "gap", "--time", "time", "--same-gap", "1h", "--output", tmp_path)
    assert "samples, which are the group 'no group': row 2" in said(*visits, *bursts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--group vist", "--group must be a column of .*got 'vist' .did you mean 'visit'"),
        ("--group visit --batch 9", "--batch must be omitted with groups.* got 9"),
        ("--time time", "--group-gap must be given with the times 'time', got none"),
        ("--group-gap 1h", "--time must be a column of times, got none"),
        ("--time time --group-gap half", "--group-gap must be a time such as .*'half'"),
        ("--time place --group-gap 1h", "--group-gap must be .*'\\w+' for row 0 and 47 others"),
        ("--same gap", "--same must be a value for each sample, got nothing for row 2"),
        ("--group none", "--group must be a value for .*, got nothing for row 0 and 47 others"),
    ],
)
def test_refused(visits: tuple[Path, Path], tmp_path: Path, words: str, message: str) -> None:
    out = tmp_path / "out.csv"
    assert re.search(message, refused(*visits, *words.split(), "--output", out))
    assert not out.exists()
