"""Folders of images: labelled ones, one folder per class, and a folder of unlabelled ones.

    python examples/images.py                        characters, rendered on the spot
    python examples/images.py labelled/ new/         your own, with an ImageNet network
    python examples/images.py labelled/ new/ --backbone runs/mini/best.safetensors

Without folders a small network first learns other characters, which takes a few seconds.
``answers.html`` in the output folder shows the result; ``paddle-ext classify`` does the same on the
command line.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from paddle_ext.app.classify import Columns, Report, Settings, classify
from paddle_ext.research.backbones import recipe, train
from paddle_ext.research.data import ImageSet, glyph_images

CANDIDATES, SHOTS = 20, 5  # classes, labelled images of each
PRESENT, NEW = 3, 20  # classes in the batch, new images of each


def draw(folder: Path, samples: int) -> Path:
    """Write the two folders and a network trained on other characters; returns the network."""
    base = glyph_images("base", samples=samples)
    network = folder / f"network-{samples}"
    brief = replace(recipe("small"), epochs=2)
    train("small", base, recipe=brief, output=network, device="cpu", progress=False)
    novel = glyph_images("test", samples=SHOTS + NEW)
    classes = torch.randperm(len(novel.class_names))[:CANDIDATES].tolist()
    for place, k in enumerate(classes):
        rows = (novel.labels == k).nonzero().view(-1)
        name = novel.class_names[k]
        write(novel, rows[:SHOTS], folder / "labelled" / name)
        if place < PRESENT:
            write(novel, rows[SHOTS:], folder / "new" / name)  # folder name: the truth
    return network / "last.safetensors"


def write(images: ImageSet, rows: torch.Tensor, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for row, pixels in zip(rows.tolist(), images.read(rows), strict=True):
        Image.fromarray(pixels.squeeze(-1).numpy()).save(folder / f"{row}.png")


def show(report: Report) -> None:
    found = report.answers
    counts = found.counts()
    for k in (found.present & (counts > 0)).nonzero().view(-1).tolist():
        print(f"{counts[k]:4} x {found.class_names[k]}")
    doubtful = int(found.doubt.argmax())
    label = found.class_names[found.labels[doubtful]]
    print(f"the most doubtful: {found.names[doubtful]}, labelled {label}")
    accuracy = found.accuracy()
    if accuracy is not None:
        print(f"{100 * accuracy[0]:.0f} % of {accuracy[1]} right")
    print(f"look at {report.page}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("labelled", nargs="?", type=Path, help="a folder with one folder per class")
    parser.add_argument("new", nargs="?", type=Path, help="a folder of images to classify")
    parser.add_argument("--backbone", default="efficientnet_lite0", help="or a checkpoint")
    parser.add_argument("--output", type=Path, default=Path("runs/images"))
    parser.add_argument("--samples", type=int, default=20, help="training images per character")
    chosen = parser.parse_args(arguments)
    if chosen.labelled is not None and chosen.new is None:
        parser.error("two folders are needed, labelled and new images, got one")
    torch.manual_seed(0)
    labelled, new, backbone = chosen.labelled, chosen.new, chosen.backbone
    columns = Columns()
    if labelled is None:
        backbone = str(draw(chosen.output, chosen.samples))
        labelled, new = chosen.output / "labelled", chosen.output / "new"
        columns = Columns(truth="folder")
    settings = Settings(columns=columns, backbone=backbone, cache=None)
    show(classify(labelled, new, chosen.output, settings))


if __name__ == "__main__":
    main()
