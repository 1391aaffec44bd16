"""The demo: every step from images to a table, on characters drawn on the fly.

A small network learns 480 characters. Tasks use 240 others: 60 candidate classes with five labelled
images each, and a batch of 75 unlabelled images of only five of these classes. Every method
classifies the same batches. ``paddle-ext demo`` runs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..files import cache_or_temporary
from ..methods import Method, create
from ..version import version
from .backbones import Recipe, extract, recipe, train
from .backbones.training import FORMAT
from .data.bank import FeatureBank
from .data.glyphs import glyph_images
from .data.images import ImageArray
from .evaluation import Evaluation, RunSettings, evaluate
from .evaluation.arguments import all_methods
from .tasks import TaskSampler

N_QUERY = 75
NAME = "drawn characters"
AUTO = "paddle (auto)"
# On a CPU these take 10 to 2000 times as long per task as the others, so they get only one in this
# many tasks.
ONE_IN = {"baseline": 5, "tim_adm": 5, "ici": 5, "alpha_tim": 5, "tim": 12, "paddle_pgd": 75}
LEAST_TASKS = 3
# Options with which a quick demo shortens the slowest methods.
FEWER = {
    "ici": {"max_iter": 5},
    "tim": {"max_iter": 100},
    "alpha_tim": {"max_iter": 100},
    "paddle_pgd": {"max_iter": 20},
}


@dataclass(frozen=True)
class Scale:
    """The amount of drawing and training."""

    recipe: Recipe
    base: int  # images per class
    val: int
    novel: int


FULL = Scale(replace(recipe("small"), epochs=3), base=30, val=20, novel=60)
QUICK = Scale(replace(recipe("small"), epochs=1), base=4, val=6, novel=30)


class Batch(NamedTuple):
    """One task for display, and the predictions of two methods."""

    support: Tensor  # [K, H, W] uint8: one labelled image of each candidate class
    query: Tensor  # [Q, H, W] uint8
    truth: Tensor  # [Q]
    labels: Tensor  # [Q]: predicted by `adaptive`, for any batch
    nearest: Tensor  # [Q]: SimpleShot's
    names: tuple[str, ...]  # [K]: of the candidate classes


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    bank: FeatureBank  # features of the novel characters
    evaluation: Evaluation
    batch: Batch


def run_demo(
    *,
    n_tasks: int = 300,
    num_classes: int = 60,
    k_eff: int = 5,
    shots: int = 5,
    seed: int = 0,
    quick: bool = False,
    cache: str | Path | None = None,
    fresh: bool = False,
    device: str | torch.device | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Demo:
    """Draw the images, train the network, extract features and evaluate the methods.

    Parameters
    ----------
    n_tasks : int
        Tasks for the fast methods; slow ones get fewer, see `task_counts`.
    num_classes, k_eff, shots : int
        Candidate classes per task, classes present in its queries, labelled images per class.
    seed : int
        Of the drawings, the network and the tasks.
    quick : bool
        A short run, to check that everything works.
    cache : path, optional
        Folder for the network and the features; default: a folder in the user's cache.
    fresh : bool
        Train again, even if the cache has the network.
    device : device, optional
    progress : bool
        Show progress on stderr.
    say : function of str
        Called with messages about the current step.
    """
    settings = RunSettings(seed=seed, name=NAME, device=device, progress=progress)
    check.integer("n_tasks", n_tasks)
    folder = cache_or_temporary("demo") if cache is None else Path(cache)
    scale = QUICK if quick else FULL
    novel = glyph_images("test", samples=scale.novel, seed=seed)
    # Made here, so that invalid options are rejected before the training.
    sampler = TaskSampler(
        novel.labels, shots=shots, n_query=N_QUERY, k_eff=k_eff, num_classes=num_classes, seed=seed
    )
    bank = features(novel, scale, folder, fresh, settings, say)
    say(
        f"{n_tasks} tasks: {num_classes} candidate classes with {shots} labelled images each, "
        f"{N_QUERY} queries from only {k_eff} of them"
    )
    evaluation = compare(bank, sampler, n_tasks, quick, settings)
    return Demo(bank, evaluation, one_batch(bank, novel, sampler))


# --- features -----------------------------------------------------------------------------------


def features(
    novel: ImageArray,
    scale: Scale,
    folder: Path,
    fresh: bool,
    settings: RunSettings,
    say: Callable[[str], None],
) -> FeatureBank:
    """Features of the novel characters, by a network trained on others."""
    seed, device, progress = settings.seed, settings.device, settings.progress
    base = glyph_images("base", samples=scale.base, seed=seed)
    val = glyph_images("val", samples=scale.val, seed=seed)
    made_by = repr((version(), FORMAT, scale, seed)).encode()
    key = hashlib.blake2b(made_by, digest_size=10).hexdigest()
    output = folder / f"network-{key}"
    known = (output / "last.safetensors").is_file() and not fresh
    learnt = f"{len(base.class_names)} characters ({len(base)} images)"
    say(f"a small network that knows {learnt}: {output if known else 'training'}")
    trained = train(
        "small",
        base,
        val,
        recipe=scale.recipe,
        output=output,
        resume=not fresh,
        device=device,
        seed=seed,
        progress=progress,
    )
    say(f"its features of {len(novel.class_names)} other characters ({len(novel)} images)")
    kept = folder / "features"
    return extract(
        trained.checkpoint, novel, base=base, cache=kept, device=device, progress=progress
    )


# --- methods ------------------------------------------------------------------------------------


def contenders(quick: bool = False) -> dict[str, Method]:
    """All methods as in the paper, in its order; PADDLE also with the scaling "auto"."""
    fewer = FEWER if quick else {}
    found: dict[str, Method] = {}
    for name in all_methods():
        found[name] = create(name, "paper", **fewer.get(name, {}))
        if name == "paddle":
            found[AUTO] = create("paddle")
    return found


def task_counts(n_tasks: int) -> dict[str, int]:
    """How many of the tasks each method gets, from the first.

    Examples
    --------
    >>> counts = task_counts(300)
    >>> counts["paddle"], counts["tim_adm"], counts["tim"], counts["paddle_pgd"]
    (300, 60, 25, 4)
    """
    least = min(n_tasks, LEAST_TASKS)
    return {name: max(least, n_tasks // ONE_IN.get(name, 1)) for name in contenders()}


def compare(
    bank: FeatureBank, sampler: TaskSampler, n_tasks: int, quick: bool, settings: RunSettings
) -> Evaluation:
    """Evaluate all methods on the same tasks; slow methods only on the first ones."""
    chosen, counts = contenders(quick), task_counts(n_tasks)
    parts = [
        evaluate(
            bank,
            {name: method for name, method in chosen.items() if counts[name] == count},
            shots=sampler.shots,
            k_eff=sampler.k_eff,
            n_tasks=count,
            n_query=sampler.n_query,
            num_classes=sampler.num_classes,
            **vars(settings),
        )
        for count in sorted(set(counts.values()), reverse=True)
    ]
    results = {result.method: result for part in parts for result in part}
    return replace(parts[0], results=tuple(results[name] for name in chosen))


def one_batch(bank: FeatureBank, images: ImageArray, sampler: TaskSampler) -> Batch:
    """The first task, with its images."""
    support, labels, query, truth = (x.squeeze(0) for x in sampler.batch(0, 1))
    K = sampler.num_classes
    tensors = bank.features, support, labels, query
    adaptive = create("adaptive").predict_indexed(*tensors, num_classes=K)
    nearest = create("simpleshot").predict_indexed(
        *tensors, num_classes=K, base_mean=bank.base_mean
    )
    shown = torch.stack([support[labels == k][0] for k in range(K)])
    return Batch(
        support=images.read(shown).squeeze(-1),
        query=images.read(query).squeeze(-1),
        truth=truth,
        labels=adaptive.labels,
        nearest=nearest.labels,
        names=tuple(images.class_names[int(images.labels[row])] for row in shown),
    )


# --- the figure ---------------------------------------------------------------------------------

GAP = 4  # pixels between thumbnails
COLUMNS = 20
MOST_GROUPS = 9
GREEN, RED, GREY = (0.0, 0.55, 0.35), (0.84, 0.1, 0.1), (0.78, 0.78, 0.78)


def draw(found: Demo, path: str | Path) -> None:
    """Write the figure: one batch and its predictions, and below them the accuracies."""
    from .evaluation import figures
    from .evaluation.drawing import settings_line
    from .style import (
        RESOLUTION,
        WIDTH,
        figure_class,
        finish,
        head,
        name_panel,
        plain,
        prepare,
    )

    batch, evaluation = found.batch, found.evaluation
    K, Q, present = len(batch.support), len(batch.truth), len(torch.unique(batch.truth))
    sheets = {f"{K} candidate classes; {present} are present": candidate_sheet(batch)}
    found_by = {f"{Q} images by Adaptive": batch.labels, "by SimpleShot": batch.nearest}
    for name, labels in found_by.items():
        sheets[f"{name}: {grouping_text(batch, labels)}"] = group_sheet(batch, labels)
    heights = [WIDTH * len(each) / each.shape[1] + 0.35 for each in sheets.values()]  # inches
    heights.append(0.9 + 0.3 * len(evaluation.methods))
    size = (WIDTH, sum(heights) + 1.2)
    figure = figure_class()(figsize=size, dpi=RESOLUTION, layout="constrained")
    ratios = [sum(heights[:-1]), heights[-1]]
    top, bottom = figure.subfigures(2, 1, height_ratios=ratios, squeeze=False).ravel()
    panels, bars = top.subplots(len(sheets), 1, height_ratios=heights[:-1]), bottom.subplots()
    for axes, (text, each) in zip(panels, sheets.items(), strict=True):
        axes.imshow(each.numpy())
        plain(axes)
        name_panel(axes, text)
    prepare(bars)
    figures.accuracy_bars(evaluation, axes=bars)
    fewer = len({result.n_tasks for result in evaluation}) > 1
    name_panel(bars, f"Accuracy of all methods{', slow ones on few tasks' if fewer else ''}")
    below = f"{settings_line(evaluation, evaluation.bank)}; first column: a labelled image of the "
    head(
        figure,
        "Many candidate classes, few of them present",
        f"{below}class, green if it is present; red: a wrong class",
    )
    finish(figure, path)


def grouping_text(batch: Batch, labels: Tensor) -> str:
    """The predictions for a batch, in words."""
    right = 100 * (labels == batch.truth).double().mean()
    return f"{len(torch.unique(labels))} classes, {right:.0f} % correct"


def candidate_sheet(batch: Batch) -> Tensor:
    """One image of each candidate class, those present framed: [H, W, 3]."""
    present = set(batch.truth.tolist())
    frames = [GREEN if k in present else None for k in range(len(batch.support))]
    return sheet([list(zip(batch.support, frames, strict=True))])


def group_sheet(batch: Batch, labels: Tensor) -> Tensor:
    """The queries of the largest predicted classes, next to a labelled image: [H, W, 3]."""
    classes, sizes = torch.unique(labels, return_counts=True)
    order = sizes.argsort(descending=True, stable=True)[:MOST_GROUPS]
    lines = []
    for k in classes[order].tolist():
        own = (labels == k).nonzero().flatten()
        own = own[(batch.truth[own] != k).int().argsort(stable=True)]  # wrong ones last
        frames = [None if batch.truth[i] == k else RED for i in own]
        mine = list(zip(batch.query[own], frames, strict=True))
        first = (batch.support[k], GREEN if k in batch.truth else GREY)
        for start in range(0, len(mine), COLUMNS - 1):
            lines.append([first, *mine[start : start + COLUMNS - 1]])
    return sheet(lines)


Thumbnail = tuple[Tensor, tuple[float, float, float] | None]  # [H, W] uint8, colour of a frame


def sheet(lines: list[list[Thumbnail]]) -> Tensor:
    """Thumbnails, dark on white, each line wrapped: [H, W, 3] in [0, 1]."""
    wrapped = [
        line[start : start + COLUMNS] for line in lines for start in range(0, len(line), COLUMNS)
    ]
    step = lines[0][0][0].shape[0] + 2 * GAP
    paper = torch.ones(step * len(wrapped), step * COLUMNS, 3)
    for row, line in enumerate(wrapped):
        for column, (image, frame) in enumerate(line):
            cell = paper[row * step : (row + 1) * step, column * step : (column + 1) * step]
            if frame is not None:
                cell[1:-1, 1:-1] = torch.tensor(frame)
            cell[GAP:-GAP, GAP:-GAP] = (1 - image / 255).unsqueeze(-1)
    return paper
