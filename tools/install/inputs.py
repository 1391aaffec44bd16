"""Make small inputs with the names that the pages use, in the current folder.

Run by ``tools/install/pages.py`` with the Python of a page's environment, which has NumPy, and
Pillow and pyarrow where the page's extras bring them.
"""

import csv
import json
import pickle
from pathlib import Path

import numpy as np

random = np.random.default_rng(0)
D = 16
TREES = ["birch", "oak", "pine"]
SENTENCES = {
    "card lost": ["I lost my card", "my card is gone", "where is my card, I lost it"],
    "exchange rate": ["what is the exchange rate", "how many euros for a pound", "rate for yen"],
    "top up failed": ["my top up failed", "topping up did not work", "the top-up was rejected"],
}


def main() -> None:
    """Make everything this environment has the libraries for."""
    banks()
    tables()
    for make in (photos, parquet):
        try:
            make()
        except ImportError:
            continue  # no page with this environment needs them


def rows(labels: np.ndarray, noise: float = 0.5) -> np.ndarray:
    """Return features around a centre for each class."""
    centres = np.random.default_rng(1).normal(size=(40, D))
    features = centres[labels] + noise * random.normal(size=(len(labels), D))
    return features.astype(np.float32)


def banks() -> None:
    """Write features with labels: banks, labelled and unlabelled rows, class names."""
    many = np.arange(20).repeat(60)
    for name in ("features", "test", "mini-test", "tiered-test", "my-features"):
        np.savez(f"{name}.npz", features=rows(many, 1.5), labels=many)
    kinds = np.array([f"kind {k}" for k in range(20)])
    known, new = np.arange(20).repeat(4), random.choice([3, 14, 15], 100)
    Path("recordings").mkdir(exist_ok=True)
    for name in ("labelled", "known", "recordings/labelled"):
        np.savez(f"{name}.npz", features=rows(known), labels=kinds[known])
    for name in ("unlabelled", "new", "recordings/june"):
        np.savez(f"{name}.npz", features=rows(new), labels=kinds[new])
    Path("species-here.csv").write_text("class,weight\nkind 3,5\nkind 14,2\nkind 15,1\n")
    names = np.arange(20).astype(str)
    np.savez("text.npz", text=rows(np.arange(20), 0.1), class_names=names)
    Path("output.plk").write_bytes(pickle.dumps({k: list(rows(np.full(3, k))) for k in range(20)}))


def tables() -> None:
    """Write sentences with some labels missing, and class names."""
    for name in ("tickets.csv", "table.csv", "letters.csv"):
        with Path(name).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["sentence", "intent", "customer"])
            for intent, sentences in SENTENCES.items():
                table.writerows([sentence, intent, "7"] for sentence in sentences[:2])
                table.writerow([sentences[2], "", "8"])
    Path("intents.txt").write_text("\n".join(SENTENCES))
    for name in ("known", "visits"):
        with Path(f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["label", "place", "taken_at", *(f"x{i}" for i in range(D))])
            for k in np.arange(3).repeat(4):
                label, time = f"kind {k}" if name == "known" else "", f"2026-06-0{k + 1} 14:05"
                table.writerow([label, f"place {k}", time, *rows(k[None])[0]])


def photos() -> None:
    """Write images in folders, and the layout of mini-ImageNet."""
    from PIL import Image

    def write(path: Path, label: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pattern = np.random.default_rng(label).integers(0, 256, (24, 24, 3))
        noise = random.integers(-40, 40, pattern.shape)
        taken = Image.Exif()
        taken[0x0132] = "2026:06:30 14:05:00"  # when the photo was taken
        image = Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8))
        image.save(path, exif=taken)

    for label, tree in enumerate(TREES):
        for i in range(4):
            write(Path(f"photos/labelled/{tree}/{i}.png"), label)
            for folder in ("new", "june", "july", "sites/lake"):
                write(Path(f"photos/{folder}/{tree[0]}{i}.png"), label)
    Path("corrected.csv").write_text("name,label,data,digest\nb0.png,birch,new,\n")
    chosen = {"from_name": "label", "type": "choices", "value": {"choices": ["birch"]}}
    corrected = {"data": {"name": "b0.png"}, "annotations": [{"result": [chosen]}]}
    Path("project-7.json").write_text(json.dumps([corrected]))
    for split, classes, samples in (("train", 4, 8), ("val", 8, 30), ("test", 20, 60)):
        lines = ["filename,label"]
        for label in range(classes):
            for i in range(samples):
                name = f"{split}_{label}_{i}.png"
                write(Path("data/mini/images", name), label)
                lines.append(f"{name},{split}{label}")
        Path(f"data/mini/{split}.csv").write_text("\n".join(lines))


def parquet() -> None:
    """Write embeddings with a column of labels, of which some are missing."""
    import pyarrow as pa
    from pyarrow import parquet as files

    labels = random.integers(0, 20, 2000)
    kinds = [f"kind {k}" if i < 400 else None for i, k in enumerate(labels)]
    table = pa.table({"id": range(2000), "kind": kinds, "embedding": list(rows(labels))})
    files.write_table(table, "big.parquet")


if __name__ == "__main__":
    main()
