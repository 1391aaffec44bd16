"""``paddle-ext classify --suggest N``: which samples to label next."""

from pathlib import Path

import numpy as np
import pytest
import torch
from classify_data import NAMES, embeddings, refused, said, settings, table

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
    out = tmp_path / "out"
    told = said(*files, "--output", out, "--suggest", 8)
    rows = table(out / "suggestions.csv")
    assert list(rows[0]) == ["row", "label", "probability", "reason"]
    answers = {row["row"]: row for row in table(out / "answers.csv")}
    names = [row["row"] for row in rows]
    assert len(set(names)) == 8
    for row in rows:
        for column in ("label", "probability"):
            assert row[column] == answers[row["row"]][column]
    strange = next(row for row in rows if row["row"] in {"40", "41", "42", "43"})
    assert strange["reason"] == "possibly of an unknown class, like 3 others"
    assert f"label next: {', '.join(names[:5])} and 3 others" in told
    assert "suggestions.csv" in told
    again = said(*files, "--output", out)
    assert "suggestions.csv is of an earlier run" in again
    assert "label next" not in again
    assert table(out / "suggestions.csv") == rows
    assert "--suggest must be an integer in [1," in refused(*files, "--suggest", 0)


@pytest.mark.parametrize("batch", [None, 7])
def test_the_order_is_that_of_the_function(
    files: tuple[Path, Path], tmp_path: Path, batch: int | None
) -> None:
    options = settings(suggest=6, batch=batch, rows="embeddings")
    report = classify(*files, tmp_path / "out", options)
    known, new = (torch.from_numpy(np.load(path)["features"]) for path in files)
    want = presence.suggest(known, new, 6).queries
    assert [row["row"] for row in table(report.table.with_name("suggestions.csv"))] == [
        report.answers.names[row] for row in want.tolist()
    ]


def test_corrected_samples_are_not_suggested(files: tuple[Path, Path], tmp_path: Path) -> None:
    options = settings(suggest=1)
    outcome = classify(*files, tmp_path, options).outcome
    (first,) = (outcome.answers.names[row] for row in outcome.suggested or ())
    (tmp_path / "corrected.csv").write_text(f"row,label\n{first},elm\n")
    options = settings(suggest=100, corrected=tmp_path / "corrected.csv")
    outcome = classify(*files, tmp_path, options).outcome
    again = [outcome.answers.names[row] for row in outcome.suggested or ()]
    assert len(again) == 43
    assert first not in again
