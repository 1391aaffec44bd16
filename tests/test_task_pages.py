"""The commands of pages by task do what the pages say, with the files that the pages ask for."""

import re
import shlex
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from classify_data import table
from encoder_models import stand_in_sentences
from toy_images import pattern_images

ROOT = Path(__file__).resolve().parents[1]
# Commands that need a model or data of the reader, and where they are tested.
ELSEWHERE = {
    "paddle-ext classify photos/new --names": "tests/app/classify/test_classify_names.py",
}
SENTENCES = {
    "delivery": ["Where is my parcel?", "The parcel is late", "When does the parcel arrive?"],
    "refund": ["I want my money back", "Please refund my money", "When is my money back?"],
    "login": ["I forgot my password", "My password does not work", "Reset the password please"],
}


def commands(page: str) -> list[list[str]]:
    """Those of a page that are run here, as words after `paddle-ext`."""
    text = (ROOT / "docs" / "tasks" / f"{page}.md").read_text()
    shown = re.findall(r"^paddle-ext .*$", text, re.MULTILINE)
    return [shlex.split(line)[1:] for line in shown if not line.startswith(tuple(ELSEWHERE))]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], str]:
    """Run a command in an empty folder; returns what it prints."""
    pytest.importorskip("cyclopts", reason="needs cyclopts")
    from commands import run_command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(words: list[str]) -> str:
        result = run_command(*words)
        assert result.exit_code == 0, result.output
        return result.output

    return run


Run = Callable[[list[str]], str]


# --- photos and texts -----------------------------------------------------------------------------


def write_photos() -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    drawn = pattern_images(3, 8, size=32, channels=3, own=0.15)
    images = drawn.read(torch.arange(len(drawn)))
    for row, (label, pixels) in enumerate(zip(drawn.labels, images, strict=True)):
        site = f"sites/{'lake' if label else 'wood'}"
        for folder in ("new", "july", site) if row % 8 > 2 else (f"labelled/kind {int(label)}",):
            path = Path("photos") / folder / f"{int(label)}-{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            taken = image.Exif()
            taken[0x0132] = f"2026:06:0{int(label) + 1} 23:{row:02}:00"
            image.fromarray(pixels.numpy()).save(path, exif=taken)


def test_photos(run: Run) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs a network")
    first, corrected, model, by_night = commands("photos")
    write_photos()
    run(first)
    found = table(Path("results/answers.csv"))
    assert len(found) == 3 * 5
    assert all(f"kind {Path(row['file']).name[0]}" == row["label"] for row in found)
    assert Path("results/answers.html").is_file()
    Path("corrected.csv").write_text(f"file,label\n{found[0]['file']},kind 9\n")
    assert "corrected" in run(corrected)
    answers = table(Path("results/answers.csv"))
    assert len(answers) == 3 * 5
    assert (answers[0]["label"], answers[0]["source"]) == ("kind 9", "corrected")
    run(model)
    assert len(table(Path("july/answers.csv"))) == 3 * 5
    run(by_night)
    found = [row for row in table(Path("nights/groups.csv")) if row["samples"] == "5"]
    nights = {"lake, 2026-06-02": "kind 1", "lake, 2026-06-03": "kind 2"}
    nights["wood, 2026-06-01"] = "kind 0"
    assert {row["group"][:16]: row["class"] for row in found} == nights


def counts_of_words(text: str) -> list[float]:
    places = [zlib.crc32(word.encode()) % 256 for word in re.findall(r"\w+", text.lower())]
    return np.bincount(places, minlength=256).tolist()


def test_texts(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in_sentences(monkeypatch, counts_of_words)
    by_labels, again, by_customer, by_names = commands("texts")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("none")
    lines = ["sentence,intent"]
    for intent, (*known, last) in SENTENCES.items():
        lines += [*(f"{text},{intent}" for text in known), f"{last},"]
    Path("tickets.csv").write_text("\n".join(lines) + "\n")
    encoder = ["--encoder", str(tmp_path / "model")]  # so that no model is looked for
    run([*by_labels, *encoder])
    found = table(Path("results/answers.csv"))
    assert {row["text"]: row["label"] for row in found} == {
        texts[-1]: intent for intent, texts in SENTENCES.items()
    }
    Path("corrected.csv").write_text(f"row,label\n{found[0]['row']},refund\n")
    assert "corrected" in run([*again, *encoder])
    letters = [f"{line},{row // 3}" for row, line in enumerate(lines[1:])]
    Path("letters.csv").write_text("\n".join(["sentence,intent,customer", *letters]) + "\n")
    run([*by_customer, *encoder])
    groups = table(Path("customers/groups.csv"))
    assert [(row["group"], row["class"]) for row in groups if row["samples"] == "1"] == [
        (str(customer), intent) for customer, intent in enumerate(SENTENCES)
    ]
    names = ["delivery\twhere is the parcel", "refund\tmoney back", "login\tpassword"]
    Path("intents.txt").write_text("\n".join(names) + "\n")
    Path("tickets.csv").write_text("\n".join(line.partition(",")[0] for line in lines) + "\n")
    run([*by_names, *encoder])
    found = table(Path("results/answers.csv"))
    right = [row["text"] in SENTENCES[row["label"]] for row in found]
    assert len(right) == 9
    assert sum(right) >= 8


# --- features -------------------------------------------------------------------------------------


def test_compare(run: Run) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    labels = np.arange(20).repeat(90)
    rows = np.random.default_rng(0).normal(size=(20, 16))[labels]
    np.savez("features.npz", features=rows, labels=labels)
    evaluate, against = commands("../evaluation")
    printed = run(evaluate)
    assert "SimpleShot" in printed
    assert "Adaptive" in printed
    printed = run([*against, "--n-tasks", "20"])
    assert "Adaptive - PADDLE" in printed
    assert r"\begin{tabular}" in Path("results.tex").read_text()


def test_large(run: Run) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    torch.manual_seed(0)
    centres, known = torch.randn(10, 16), torch.arange(10).repeat(3)
    truth = torch.tensor([2, 7]).repeat(200)
    support = (centres[known] + 0.3 * torch.randn(30, 16)).numpy()
    rows = (centres[truth] + 0.3 * torch.randn(400, 16)).numpy()
    np.savez("known.npz", features=support, labels=known.numpy())
    pq.write_table(pa.table({"embedding": list(rows)}), "big.parquet")
    run(commands("../large")[0])
    found = pq.read_table(Path("answers.parquet"))["label"].to_pylist()
    assert [int(label) for label in found] == truth.tolist()
