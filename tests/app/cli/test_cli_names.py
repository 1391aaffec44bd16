"""``paddle-ext classify`` with names, through the command line."""

from pathlib import Path

import numpy as np
import pytest
from classify_data import NAMES, refused, said


def rows(folder: Path) -> tuple[Path, Path]:
    """Rows of two classes with their truth, and embeddings of the names of six."""
    random = np.random.default_rng(0)
    text = random.normal(size=(len(NAMES), 16)).astype(np.float32)
    truth = np.array([1, 4]).repeat(20)
    features = text[truth] + 0.2 * random.normal(size=(40, 16)).astype(np.float32)
    np.savez(folder / "rows.npz", features=features, labels=truth)
    np.savez(folder / "text.npz", text=text, class_names=NAMES)
    return folder / "rows.npz", folder / "text.npz"


def test_names(tmp_path: Path) -> None:
    features, text = rows(tmp_path)
    chosen = ("--names", text, "--truth", "labels", "--output", tmp_path / "out")
    shown = said(features, *chosen, "--logit-scale", "50")
    assert "40 samples, 2 of 6 classes found" in shown
    assert "accuracy: 100.00 % of 40 samples with a true label" in shown
    assert "birch" in (tmp_path / "out" / "answers.csv").read_text()
    assert "the names of 6 classes" in (tmp_path / "out" / "answers.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--names", "two.txt"], "--names must be a .npz or .safetensors with embeddings"),
        (["--names", "two.txt"], "got two.txt (or pass --encoder)"),
        (["--names", "same.txt"], "--names must be unique, got 'cat' in lines"),
        (["--names", "none.txt"], "--names must be a file, got none.txt, which is not one"),
        (["--names", "two.txt", "--template", "a"], "--template must have {} once, for the name"),
        (["--names", "text.npz", "--logit-scale", "0"], "--logit-scale must be finite and > 0"),
        (["--names", "two.txt", "--encoder", "none"], "--encoder must be an image-text model"),
        ([], "LABELLED must be a table (.csv, .tsv, .parquet, .xlsx,"),
        ([], "got rows.npz (or pass --names)"),
    ],
)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    rows(tmp_path)
    (tmp_path / "two.txt").write_text("cat\ndog\n")
    (tmp_path / "same.txt").write_text("cat\ndog\ncat\n")
    monkeypatch.chdir(tmp_path)
    assert message in refused("rows.npz", *options)
    assert not Path("answers.csv").exists()


def test_images_need_an_encoder(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    (tmp_path / "photos").mkdir()
    (tmp_path / "two.txt").write_text("cat\ndog\n")
    shown = refused(tmp_path / "photos", "--names", tmp_path / "two.txt")
    assert "--encoder must be an image-text model on disk to classify images by names" in shown
