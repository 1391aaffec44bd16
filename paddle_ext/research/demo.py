"""The demo: every step from images to a table, on characters drawn on the fly.

A small network learns 480 characters. Tasks use 240 others: 60 candidate classes with five labelled
images each, and a batch of 75 unlabelled images of only five of these classes. Every method
classifies the same batches. Then come images of many places, with and without saying which belong
together. ``paddle-ext demo`` runs it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.solve import adaptive
from ..files import cache_or_temporary
from ..methods import Method, create
from ..native.load import version
from . import style
from .backbones import extract, recipe, train
from .backbones.training import FORMAT
from .data.bank import FeatureBank
from .data.glyphs import glyph_images
from .data.images import ImageArray
from .evaluate import all_methods, evaluate
from .figures import accuracy_bars
from .results import Evaluation
from .sampler import TaskBatch, TaskSampler
from .tables import settings_line

N_QUERY = 75
PLACES, OF_A_PLACE, KINDS = 100, 4, 2  # images of a place, and of how many classes they are
AUTO = "paddle (auto)"
# On a CPU these take 10 to 2000 times as long per task as the others, so they get only one in this
# many tasks, and at least three.
ONE_IN = {"baseline": 5, "tim_adm": 5, "ici": 20, "alpha_tim": 5, "tim": 12, "paddle_pgd": 75}
# Iterations of the slowest methods in a quick demo.
QUICK_ITERATIONS = {"ici": 5, "tim": 100, "alpha_tim": 100, "paddle_pgd": 20}


class Scale(NamedTuple):
    """The amount of training and drawing."""

    epochs: int
    base: int  # images per class
    val: int
    novel: int


FULL, QUICK = Scale(3, base=30, val=20, novel=60), Scale(1, base=4, val=6, novel=30)


Ways = dict[str, Callable[..., Any]]  # functions of support, labels and queries, by their name


class Batch(NamedTuple):
    """Images, and what was predicted in several ways."""

    support: Tensor  # [K, H, W] uint8: one labelled image of each candidate class
    query: Tensor  # [Q, H, W] uint8
    truth: Tensor  # [Q]
    found: dict[str, Tensor]  # the labels [Q] that each way predicts


class Demo(NamedTuple):
    bank: FeatureBank  # features of the novel characters
    evaluation: Evaluation
    batch: Batch
    places: Batch  # images of many places, one place after the other


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

    The seed is that of the drawings, the network and the tasks. Network and features are kept in
    `cache`, by default a folder of the user; `fresh` trains again.
    """
    check.integer("n_tasks", n_tasks)
    check.device(device)
    scale = QUICK if quick else FULL
    novel = glyph_images("test", samples=scale.novel, seed=seed)
    tasks: dict[str, Any] = {"shots": shots, "k_eff": k_eff, "num_classes": num_classes}
    tasks |= {"n_query": N_QUERY, "seed": seed}
    sampler = TaskSampler(novel.labels, **tasks)  # rejects invalid options before the training
    places = draw_places(novel.labels, num_classes, shots, seed)
    folder = cache_or_temporary("demo") if cache is None else Path(cache)
    run: dict[str, Any] = {"device": device, "progress": progress}
    bank = features(novel, scale, folder, seed=seed, fresh=fresh, say=say, **run)
    say(
        f"{n_tasks} tasks: {num_classes} candidate classes with {shots} labelled images each, "
        f"{N_QUERY} queries from only {k_eff} of them"
    )
    methods = contenders(quick)
    counts = {name: task_count(name, n_tasks) for name in methods}
    parts = []
    for count in sorted(set(counts.values()), reverse=True):
        own = {name: method for name, method in methods.items() if counts[name] == count}
        parts.append(evaluate(bank, own, n_tasks=count, name="drawn characters", **tasks, **run))
    results = {result.method: result for part in parts for result in part}
    evaluation = replace(parts[0], results=tuple(results[name] for name in methods))
    nearest = partial(create("simpleshot").predict, base_mean=bank.base_mean)
    groups = partial(adaptive, groups=torch.arange(PLACES).repeat_interleave(OF_A_PLACE))
    ways: Ways = {f"{N_QUERY} images by Adaptive": adaptive, "by SimpleShot": nearest}
    batch = solved(bank, novel, sampler.batch(0, 1), ways)
    ways = {f"{OF_A_PLACE} images of each of {PLACES} places": adaptive, "with groups": groups}
    return Demo(bank, evaluation, batch, solved(bank, novel, places, ways))


def features(
    novel: ImageArray,
    scale: Scale,
    folder: Path,
    *,
    seed: int = 0,
    fresh: bool = False,
    say: Callable[[str], None] = lambda text: None,
    **run: Any,
) -> FeatureBank:
    """Features of the novel characters, by a network trained on others; `run`: where and how."""
    base = glyph_images("base", samples=scale.base, seed=seed)
    val = glyph_images("val", samples=scale.val, seed=seed)
    small = replace(recipe("small"), epochs=scale.epochs)
    made_by = repr((version(), FORMAT, small, scale, seed)).encode()
    output = folder / f"network-{hashlib.blake2b(made_by, digest_size=10).hexdigest()}"
    is_trained = (output / "last.safetensors").is_file() and not fresh
    learnt = f"{len(base.class_names)} characters ({len(base)} images)"
    say(f"a small network that knows {learnt}: {output if is_trained else 'training'}")
    saved: Any = {"output": output, "resume": not fresh}
    trained = train("small", base, val, recipe=small, seed=seed, **saved, **run)
    say(f"its features of {len(novel.class_names)} other characters ({len(novel)} images)")
    return extract(trained.checkpoint, novel, base=base, cache=folder / "features", **run)


def contenders(quick: bool = False) -> dict[str, Method]:
    """All methods as in the paper, in its order; PADDLE also with the scaling "auto"."""
    methods: dict[str, Method] = {}
    for name in all_methods():
        fewer = {"max_iter": QUICK_ITERATIONS[name]} if quick and name in QUICK_ITERATIONS else {}
        methods[name] = create(name, "paper", **fewer)
        if name == "paddle":
            methods[AUTO] = create("paddle")
    return methods


def task_count(name: str, n_tasks: int) -> int:
    """How many of the tasks a method gets, from the first."""
    return max(min(n_tasks, 3), n_tasks // ONE_IN.get(name, 1))


def draw_places(labels: Tensor, num_classes: int, shots: int, seed: int) -> TaskBatch:
    """A task for each place, with the first classes as candidates and one support for all."""
    labels = labels.where(labels < num_classes, -1)
    support = torch.cat([(labels == k).nonzero()[:shots, 0] for k in range(num_classes)])
    rest = (labels >= 0).index_fill(0, support, False).nonzero().flatten()
    few: dict[str, Any] = {"n_query": OF_A_PLACE, "k_eff": min(KINDS, num_classes), "seed": seed}
    return TaskSampler(labels, shots=None, support=support, query=rest, **few).batch(0, PLACES)


def solved(bank: FeatureBank, images: ImageArray, tasks: TaskBatch, ways: Ways) -> Batch:
    """Predictions for the images of a task, or of several that share their support."""
    support, labels, query, truth = (x.flatten() for x in tasks)
    rows = bank.features[support], labels, bank.features[query]
    found = {name: solve(*rows).labels for name, solve in ways.items()}
    shown = torch.stack([support[labels == k][0] for k in range(int(labels.max()) + 1)])
    return Batch(images.read(shown).squeeze(-1), images.read(query).squeeze(-1), truth, found)


# --- the figure ---------------------------------------------------------------------------------

GAP = 4  # pixels between thumbnails
COLUMNS = 20
MOST_GROUPS, SHOWN_PLACES = 9, 20
GREEN, RED, GREY = (0.0, 0.55, 0.35), (0.84, 0.1, 0.1), (0.78, 0.78, 0.78)
Thumbnail = tuple[Tensor, tuple[float, float, float] | None]  # [H, W] uint8, colour of a frame


def draw(demo: Demo, path: str | Path) -> list[str]:
    """Write the figure: batches, their predictions, and the accuracies; returns what it says."""
    batch, evaluation = demo.batch, demo.evaluation
    K, present = len(batch.support), len(torch.unique(batch.truth))
    frames = [GREEN if k in batch.truth else None for k in range(K)]
    candidates = sheet([list(zip(batch.support, frames, strict=True))])
    sheets = {f"{K} candidate classes; {present} are present": candidates}
    for shown, make_sheet in ((batch, group_sheet), (demo.places, place_sheet)):
        for name, labels in shown.found.items():
            right = 100 * (labels == shown.truth).double().mean()
            text = f"{name}: {len(torch.unique(labels))} classes, {right:.0f} % correct"
            sheets[text] = make_sheet(shown, labels)
    heights = [style.WIDTH * len(one) / one.shape[1] + 0.35 for one in sheets.values()]  # inches
    bars_height = 0.9 + 0.3 * len(evaluation.methods)
    size = (style.WIDTH, sum(heights) + bars_height + 1.2)
    figure = style.figure_class()(figsize=size, dpi=style.RESOLUTION, layout="constrained")
    ratios = [sum(heights), bars_height]
    top, bottom = figure.subfigures(2, 1, height_ratios=ratios, squeeze=False).ravel()
    panels, bars = top.subplots(len(sheets), 1, height_ratios=heights), bottom.subplots()
    for axes, (text, one) in zip(panels, sheets.items(), strict=True):
        axes.imshow(one.numpy())
        axes.set_axis_off()
        axes.set_anchor("NW")
        style.name_panel(axes, text)
    style.prepare(bars)
    accuracy_bars(evaluation, axes=bars)
    fewer = len({result.n_tasks for result in evaluation}) > 1
    style.name_panel(bars, f"Accuracy of all methods{', slow ones on few tasks' if fewer else ''}")
    below = f"{settings_line(evaluation, evaluation.bank)}; first column: a labelled image of the "
    below += "class, green if it is present; red: a wrong class"
    style.head(figure, "Many candidate classes, few of them present", below)
    style.finish(figure, path)
    return list(sheets)


def place_sheet(places: Batch, labels: Tensor) -> Tensor:
    """The images of the first places, with a gap after each place: [H, W, 3]."""
    colours = [None if correct else RED for correct in labels == places.truth]
    line = list(zip(places.query, colours, strict=True))
    gap = (torch.zeros_like(places.query[0]), None)
    starts = range(0, SHOWN_PLACES * OF_A_PLACE, OF_A_PLACE)
    return sheet([[one for at in starts for one in (*line[at : at + OF_A_PLACE], gap)]])


def group_sheet(batch: Batch, labels: Tensor) -> Tensor:
    """The queries of the largest predicted classes, next to a labelled image: [H, W, 3]."""
    classes, sizes = torch.unique(labels, return_counts=True)
    lines = []
    for k in classes[sizes.argsort(descending=True, stable=True)[:MOST_GROUPS]].tolist():
        own = (labels == k).nonzero().flatten()
        own = own[(batch.truth[own] != k).int().argsort(stable=True)]  # wrong ones last
        queries = [(batch.query[i], None if batch.truth[i] == k else RED) for i in own]
        first = (batch.support[k], GREEN if k in batch.truth else GREY)
        for start in range(0, len(queries), COLUMNS - 1):
            lines.append([first, *queries[start : start + COLUMNS - 1]])
    return sheet(lines)


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
