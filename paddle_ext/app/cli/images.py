"""``paddle-ext train`` and ``paddle-ext extract``: from images to a feature bank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from . import options as o
from . import show

if TYPE_CHECKING:
    import torch

    from ...research.backbones import Epoch
    from ...research.data import FeatureBank
    from ...research.data.images import ImageSet


def train(
    root: o.Root = None,
    /,
    *,
    layout: o.Layout = "folder",
    arch: Annotated[str, o.about("resnet18, wrn28_10 or small.")] = "resnet18",
    recipe: Annotated[str | None, o.about("paper, strong or small; default: by --arch.")] = None,
    output: Annotated[Path | None, o.about("Folder of the run; default: runs/ARCH.")] = None,
    epochs: Annotated[int | None, o.about("Overrides the recipe.")] = None,
    batch_size: Annotated[int | None, o.about("Overrides the recipe.")] = None,
    base_split: Annotated[str, o.about("Split to train on.")] = "base",
    val_split: Annotated[str, o.about("Split that selects the best epoch.")] = "val",
    validation: Annotated[
        bool, o.about("Keep the best epoch, not the last.", negative="--no-validation")
    ] = True,
    validate_every: Annotated[int, o.about("Epochs between validations.")] = 1,
    size: o.Size = None,
    samples: o.Samples = 40,
    compiled: Annotated[bool, o.about("Use torch.compile.", name="--compile")] = False,
    deterministic: Annotated[
        bool, o.about("On CUDA: reproducible results, slower.", negative="--no-deterministic")
    ] = True,
    precision: o.Precision = "auto",
    device: o.Device = None,
    seed: Annotated[int, o.about("Random seed of weights, order and augmentation.")] = 0,
    fresh: o.Fresh = False,
) -> None:
    """Train a network on the base classes; after an interruption the same command resumes.

    Examples
    --------
    paddle-ext train data/mini --layout mini --arch resnet18 --output runs/mini
    paddle-ext train data/mini --layout mini --recipe strong --compile --output runs/a
    paddle-ext train --layout glyphs --arch small --output runs/glyphs
    """
    from ...research.backbones import recipe as named_recipe
    from ...research.backbones import train as run

    folder = output or Path("runs") / arch
    own: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size}
    chosen = replace(
        named_recipe(recipe or ("small" if arch == "small" else "paper"), arch),
        **{name: value for name, value in own.items() if value is not None},
    )
    base = open_split(layout, root, base_split, size, samples)
    val = open_split(layout, root, val_split, size, samples) if validation else None
    show.say(f"{len(base)} images of {len(base.class_names)} classes, {chosen.epochs} epochs")
    with show.on_interrupt("interrupted: the same command resumes after the last complete epoch"):
        trained = run(
            arch,
            base,
            val,
            recipe=chosen,
            output=folder,
            resume=not fresh,
            device=device,
            precision=precision,
            compiled=compiled,
            deterministic=deterministic,
            validate_every=validate_every,
            seed=seed,
        )
    show_training(trained.history, folder)


def open_split(
    layout: str, root: Path | None, split: str, size: int | None, samples: int
) -> ImageSet:
    from ...research.data import glyph_images, open_images

    if layout == "glyphs":
        if root is not None:
            raise o.UsageError(f"ROOT must not be given with --layout glyphs, got {root}")
        return glyph_images(split, samples=samples, size=32 if size is None else size)
    if root is None:
        raise o.UsageError(f"ROOT, the images, must be given with --layout {layout}")
    return open_images(layout, root, split, size=size)


def show_training(history: list[Epoch], folder: Path) -> None:
    judged = [epoch for epoch in history if epoch.validation is not None]
    best = max(judged, key=lambda epoch: epoch.validation or 0.0) if judged else history[-1]
    rows = [("best epoch", f"{best.number} of {len(history)}")]
    if best.validation is not None:
        rows.append(("validation, 5-way 5-shot", f"{100 * best.validation:.1f} %"))
    rows.append(("base accuracy, last epoch", f"{100 * history[-1].accuracy:.1f} %"))
    rows.append(("seconds", f"{sum(epoch.seconds for epoch in history):.1f}"))
    for name in ("best.safetensors", "last.safetensors", "state.pt"):
        size = (folder / name).stat().st_size / 2**20
        rows.append(("file", f"{folder / name} ({size:.1f} MiB)"))
    show.pairs(rows)


def extract(
    checkpoint: Annotated[Path, o.about("best.safetensors, or a public .pth.tar.")],
    root: o.Root = None,
    /,
    *,
    layout: o.Layout = "folder",
    split: Annotated[tuple[str, ...], o.LIST, o.about("One, or several: repr,query.")] = ("test",),
    output: Annotated[Path, o.about("The bank: .npz or .safetensors.")] = Path("bank.npz"),
    base_split: Annotated[
        str | None, o.about("Store this split's mean feature, for methods that centre.")
    ] = None,
    cache: Annotated[Path | None, o.about("Cache of features, indexed by content.")] = None,
    size: o.Size = None,
    samples: o.Samples = 40,
    batch_size: Annotated[int, o.about("Images per batch.")] = 256,
    precision: o.Precision = "float32",
    device: o.Device = None,
) -> None:
    """Compute the features of images and write a feature bank.

    Examples
    --------
    paddle-ext extract runs/mini/best.safetensors data/mini --layout mini
    paddle-ext extract runs/mini/best.safetensors data/mini --layout mini --base-split base
    paddle-ext extract model_best.pth.tar data/inat --layout inatural --split repr,query
    """
    from ...research.backbones import extract as extract_features
    from ...research.backbones import load_checkpoint

    if output.suffix not in (".npz", ".safetensors"):
        raise o.UsageError(f"--output must end in .npz or .safetensors, got {output}")
    if not split:
        raise o.UsageError("--split must be at least one, got none")
    network = load_checkpoint(checkpoint)
    sets = [open_split(layout, root, name, size, samples) for name in split]
    base = None if base_split is None else open_split(layout, root, base_split, size, samples)
    run = partial(
        extract_features,
        network,
        batch_size=batch_size,
        precision=precision,
        cache=cache,
        device=device,
        progress=True,
    )
    lost = "interrupted: the same command starts over"
    if cache is not None:
        lost += f", except for features cached in {cache}"
    with show.on_interrupt(lost):
        banks = [run(sets[0], base=base), *map(run, sets[1:])]
    bank = merge_banks(banks)
    output.parent.mkdir(parents=True, exist_ok=True)
    bank.save(output)
    show.say(f"{output}: {bank!r}")
    for shots in (1, 5):
        show.say(nearest_mean_line(bank, shots))


def merge_banks(banks: list[FeatureBank]) -> FeatureBank:
    """One bank of several splits; a class in two of them is one class."""
    import numpy as np
    import torch

    from ...research.data import FeatureBank

    names = list(dict.fromkeys(name for bank in banks for name in bank.class_names or ()))
    number = {name: label for label, name in enumerate(names)}

    def labels(bank: FeatureBank) -> torch.Tensor:
        own = torch.tensor([number[name] for name in bank.class_names or ()])
        return own[bank.labels]

    return FeatureBank(
        torch.cat([bank.features for bank in banks]),
        torch.cat([labels(bank) for bank in banks]),
        names,
        np.concatenate([bank.split for bank in banks if bank.split is not None]),
        banks[0].base_mean,
    )


def nearest_mean_line(bank: FeatureBank, shots: int, ways: int = 5) -> str:
    from ...research.backbones import nearest_mean_accuracy

    title = f"{ways}-way {shots}-shot by the nearest class mean"
    counts = bank.counts()
    counts = counts[counts > 0]
    if len(counts) < ways or int(counts.min()) <= shots:
        return f"{title}: not enough classes or images per class"
    accuracy = nearest_mean_accuracy(
        bank.features, bank.labels, num_classes=ways, shots=shots, centre=bank.base_mean
    )
    return f"{title}: {100 * accuracy:.1f} %"
