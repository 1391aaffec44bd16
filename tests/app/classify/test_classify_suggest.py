"""``paddle-ext classify --suggest N``: which samples to label next."""

from pathlib import Path

import numpy as np
import pytest
import torch
from classify_data import NAMES, embeddings, settings, table
from commands import run_command

from paddle_ext import presence
from paddle_ext.app.classify import classify


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Samples of two classes, and four that are alike and of none."""
    support, labels, query, _ = embeddings()
    strange = np.random.default_rng(3).normal(size=16) + 0.05 * np.arange(4)[:, None]
    np.savez(tmp_path / "known.npz", features=support, labels=NAMES[labels])
    features = np.concatenate([query, 2 * strange]).astype(np.float32)
    np.savez(tmp_path / "new.npz", features=features)
    return tmp_path / "known.npz", tmp_path / "new.npz"


def test_command(files: tuple[Path, Path], tmp_path: Path) -> None:
    known, new = map(str, files)
    common = ["classify", known, new, "--device", "cpu", "--no-cache", "--output"]
    result = run_command(*common, tmp_path / "out", "--suggest", 8)
    assert result.exit_code == 0, result.output
    rows = table(tmp_path / "out" / "suggestions.csv")
    assert list(rows[0]) == ["row", "label", "probability", "reason"]
    answers = {row["row"]: row for row in table(tmp_path / "out" / "answers.csv")}
    names = [row["row"] for row in rows]
    assert len(set(names)) == 8
    for row in rows:
        for column in ("label", "probability"):
            assert row[column] == answers[row["row"]][column]
    strange = next(row for row in rows if row["row"] in {"40", "41", "42", "43"})
    assert strange["reason"] == "possibly of an unknown class, like 3 others"
    assert f"label next: {', '.join(names[:5])} and 3 others" in " ".join(result.output.split())
    assert "suggestions.csv" in result.output
    result = run_command(*common, tmp_path / "out")
    assert "suggestions.csv is of an earlier run" in " ".join(result.output.split())
    assert table(tmp_path / "out" / "suggestions.csv") == rows
    result = run_command(*common, tmp_path / "other")
    assert result.exit_code == 0, result.output
    assert "label next" not in result.output
    assert not (tmp_path / "other" / "suggestions.csv").exists()


@pytest.mark.parametrize("batch", [None, 7])
def test_the_order_is_that_of_the_function(
    files: tuple[Path, Path], tmp_path: Path, batch: int | None
) -> None:
    options = settings(suggest=6, batch=batch)
    report = classify(*files, tmp_path / "out", options)
    known, new = (torch.from_numpy(np.load(path)["features"]) for path in files)
    want = presence.suggest(known, new, 6).queries
    assert report.suggestions is not None
    assert [row["row"] for row in table(report.suggestions)] == [
        report.answers.names[row] for row in want.tolist()
    ]


def test_corrected_samples_are_not_suggested(files: tuple[Path, Path], tmp_path: Path) -> None:
    options = settings(suggest=1)
    suggested = classify(*files, tmp_path, options).suggested
    assert suggested is not None
    (first,) = suggested.names()
    (tmp_path / "corrected.csv").write_text(f"row,label\n{first},elm\n")
    options = settings(suggest=100, corrected=tmp_path / "corrected.csv")
    again = classify(*files, tmp_path, options).suggested
    assert again is not None
    assert len(again.names()) == 43
    assert first not in again.names()


def test_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    known, new = map(str, files)
    result = run_command("classify", known, new, "--suggest", 0)
    assert result.exit_code != 0
    assert "--suggest must be an integer in [1," in " ".join(result.output.split())
    output = str(tmp_path / "answers.parquet")
    result = run_command("classify", known, new, "--output", output, "--suggest", 3)
    assert result.exit_code != 0
    assert "--suggest must be omitted unless the output is a folder" in " ".join(
        result.output.split()
    )
