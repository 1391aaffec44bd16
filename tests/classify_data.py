"""Small datasets for the tests of ``paddle-ext classify``."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Result, run_command
from PIL import Image

from paddle_ext.app.classify import Report, Settings, classify
from paddle_ext.app.read.encoders import Network, Preparation, network_of

NAMES = np.array(["ash", "birch", "cedar", "date palm", "elm", "fir"])
PRESENT = (1, 4)
STRANGE = [40, 41, 42, 43, 44]  # rows of `strange_files`


def embeddings(
    shots: int = 4, queries: int = 40, features: int = 16
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Labelled rows, their classes, rows of two classes only, their classes."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(len(NAMES), features))
    labels = np.arange(len(NAMES)).repeat(shots)
    truth = np.array(PRESENT).repeat(queries // 2)
    random.shuffle(truth)
    rows = [centres[k] + 0.3 * random.normal(size=(len(k), features)) for k in (labels, truth)]
    return rows[0].astype(np.float32), labels, rows[1].astype(np.float32), truth


def settings(**options: Any) -> Settings:
    return Settings(**{"device": "cpu", "cache": None} | options)


def classified(labelled: Path, unlabelled: Path | None, output: Path, **options: Any) -> Report:
    """The function, on the CPU and without a cache, unless they are named."""
    return classify(labelled, unlabelled, output, settings(**options))


def run(*words: object) -> Result:
    """The command, on the CPU and without a cache, unless they are named."""
    cache = () if "--cache" in words else ("--no-cache",)
    device = () if "--device" in words else ("--device", "cpu")
    return run_command("classify", *device, *cache, *words)


def said(*words: object) -> str:
    """The output of the command, on one line; it must succeed."""
    done = run(*words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def refused(*words: object) -> str:
    """The output of the command, on one line; it must fail with an error."""
    done = run(*words)
    assert done.exit_code == 1, done.output
    return " ".join(done.output.split())


def table(path: Path, separator: str = ",") -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file, delimiter=separator))


def column(path: Path, name: str) -> list[str]:
    return [row[name] for row in table(path)]


def write_table(path: Path, columns: dict[str, Any], separator: str = ",") -> Path:
    """A CSV, TSV or Parquet file."""
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def feature_columns(rows: np.ndarray) -> dict[str, list[float]]:
    return {f"f{i}": column.tolist() for i, column in enumerate(rows.T)}


def table_with_gaps(path: Path, separator: str = ",", **columns: list[Any]) -> Path:
    """Other columns, embeddings in f0 to f15, and labels, which rows after the 24th lack."""
    support, labels, query, _ = embeddings()
    columns |= feature_columns(np.concatenate([support, query]))
    columns.setdefault("label", [*NAMES[labels], *[""] * len(query)])
    return write_table(path, columns, separator)


def embedding_files(folder: Path) -> tuple[Path, Path]:
    """Labelled embeddings, and others with their true classes."""
    support, labels, query, truth = embeddings()
    np.savez(folder / "known.npz", features=support, labels=NAMES[labels])
    np.savez(folder / "new.npz", features=query, labels=NAMES[truth])
    return folder / "known.npz", folder / "new.npz"


def strange_files(folder: Path) -> tuple[Path, Path]:
    """Labelled rows, one with a wrong label; rows of two classes, and five alike of no class."""
    support, labels, query, _ = embeddings()
    labels[5] = (labels[5] + 2) % len(NAMES)
    np.savez(folder / "known.npz", features=support, labels=NAMES[labels])
    noise = 0.3 * np.random.default_rng(1).normal(size=(len(STRANGE), query.shape[1]))
    rows = np.concatenate([query, noise - 10 * query[:3].mean(0)])
    np.savez(folder / "new.npz", features=rows.astype(np.float32))
    return folder / "known.npz", folder / "new.npz"


def pattern(kind: int, seed: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    """Stripes, discs or a chessboard in a fixed colour, each image slightly different."""
    random = np.random.default_rng(seed)
    width, height = size
    y, x = np.mgrid[:height, :width]
    step = 10 + random.integers(3)
    shape = [
        (x // step) % 2 == 0,
        ((x - width / 2) ** 2 + (y - height / 2) ** 2) < (height / 3) ** 2,
        (x // step + y // step) % 2 == 0,
    ][kind]
    colours = np.array([[200, 40, 40], [40, 180, 60], [60, 70, 210]])
    pixels = np.where(shape[..., None], colours[kind], 235) + random.normal(
        0, 8, (height, width, 3)
    )
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def picture_folders(root: Path) -> tuple[Path, Path]:
    """Three classes of four images, and six images of two of them in a tree."""
    labelled, new = root / "labelled", root / "new"
    for kind, name in enumerate(("stripes", "discs", "chess")):
        (labelled / name).mkdir(parents=True)
        for seed in range(4):
            pattern(kind, seed).save(labelled / name / f"{seed}.png")
    for kind, name in ((0, "stripes"), (2, "chess")):
        (new / "deep" / name).mkdir(parents=True)
        for seed in range(3):
            pattern(kind, 10 + seed, (90, 70)).save(new / "deep" / name / f"{seed}.jpg")
    return labelled, new


class Colours(torch.nn.Module):
    """Features without training: the mean colour and texture of each quarter, times a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        across, down = x.diff(dim=-1).abs().mean((2, 3)), x.diff(dim=-2).abs().mean((2, 3))
        return self.weight * torch.cat([means, across, down], dim=1)


def small_network(weight: float = 1.0) -> Network:
    preparation = Preparation(32, 0.94, (127 / 255,) * 3, (128 / 255,) * 3)
    return network_of(Colours(weight), preparation, torch.device("cpu"), "colours")


def labels_of_files(folder: Path) -> dict[str, str]:
    """The labels of images in the output of the command."""
    return {row["file"]: row["label"] for row in table(folder / "answers.csv")}
