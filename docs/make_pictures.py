"""Draw the picture of docs/method.md: ``python docs/make_pictures.py``.

One real batch of drawn characters, iteration after iteration. The network and the features are
those of the demo, from its cache or made on the spot.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from paddle_ext.coordinates import class_sums, coordinates, counts, prototypes
from torch import Tensor

from paddle_ext import FeatureBank, TaskSampler, solve
from paddle_ext.research.data.glyphs import glyph_images
from paddle_ext.research.data.images import ImageArray
from paddle_ext.research.demo import FULL, features
from paddle_ext.research.evaluation import RunSettings
from paddle_ext.research.evaluation.drawing import (
    INK,
    SMALL,
    figure_class,
    finish,
    head,
    name_panel,
)
from paddle_ext.research.files import user_cache

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
CLASSES, PRESENT, SHOTS, QUERIES = 60, 4, 5, 75
TASK = 4
SHOWN = (0, 1, 3, 10, 100)  # iterations; by the last one the task has stopped
# Hues and markers that colour-blind people tell apart.
STYLES = (("#0072b2", "o"), ("#e69f00", "s"), ("#009e73", "^"), ("#cc79a7", "D"))
ABSENT = "#4d4d4d"


class Step(NamedTuple):
    """One moment of the iteration."""

    number: int
    prototypes: Tensor  # [K, D] in scaled coordinates
    probabilities: Tensor | None  # [Q, K]; None before the first iteration


class Story(NamedTuple):
    """A batch, and what the iteration does to it."""

    support: Tensor  # [K, H, W] uint8: one labelled image of each class
    images: Tensor  # [Q, H, W] uint8
    query: Tensor  # [Q, D] in scaled coordinates
    truth: Tensor  # [Q]
    steps: list[Step]

    @property
    def present(self) -> list[int]:
        return self.truth.unique().tolist()


def tell(bank: FeatureBank, images: ImageArray, task: int, shown: tuple[int, ...]) -> Story:
    """Solve one task, stopped after each number of iterations that is to be seen."""
    sampler = TaskSampler(
        bank.labels, shots=SHOTS, n_query=QUERIES, k_eff=PRESENT, num_classes=CLASSES, seed=0
    )
    rows, labels, query_rows, truth = (x.squeeze(0) for x in sampler.batch(task, 1))
    support, query = bank.features[rows], bank.features[query_rows]
    where = coordinates(support, labels, query, CLASSES, "auto")
    means = class_sums(where.of(support), labels, CLASSES) / counts(labels, CLASSES).unsqueeze(-1)
    steps = [Step(0, means, None)]
    for most in shown[1:]:
        solution = solve(support, labels, query, max_iter=most)
        u = solution.probabilities
        w = prototypes(where, support, labels, query, u)
        steps.append(Step(int(solution.iterations), w, u))
    first = torch.stack([rows[labels == k][0] for k in range(CLASSES)])
    pixels = (images.read(chosen).squeeze(-1) for chosen in (first, query_rows))
    return Story(*pixels, where.of(query), truth, steps)


def plane(story: Story) -> Tensor:
    """The two directions in which the classes present lie furthest apart, [D, 2].

    Only the picture knows the truth: the method does not.
    """
    means = torch.stack([story.query[story.truth == k].mean(0) for k in story.present])
    return torch.linalg.svd(means - means.mean(0), full_matrices=False).Vh[:2].mT


def colour_of(story: Story, k: int) -> tuple[str, str]:
    """Colour and marker of a class; one for all that are not present."""
    return STYLES[story.present.index(k)] if k in story.present else (ABSENT, "x")


def draw_images(axes: "Axes", images: Tensor, colours: list[str], columns: int) -> None:
    """Small images, dark on white, each in its colour."""
    from matplotlib.colors import to_rgb

    H, W = images.shape[-2:]
    lines = -(-len(images) // columns)
    paper = torch.ones(lines * H, columns * W, 3)
    for number, (image, colour) in enumerate(zip(images, colours, strict=True)):
        line, column = divmod(number, columns)
        ink = (image / 255).unsqueeze(-1)
        cell = 1 - ink * (1 - torch.tensor(to_rgb(colour)))
        paper[line * H : (line + 1) * H, column * W : (column + 1) * W] = cell
    axes.imshow(paper.numpy(), interpolation="antialiased")
    axes.set_axis_off()
    axes.set_anchor("NW")


def draw_batch(axes: "Axes", story: Story, step: Step, flat: Tensor) -> None:
    """The queries as they are assigned, and the prototypes with the way they came."""
    start, w, z = (x @ flat for x in (story.steps[0].prototypes, step.prototypes, story.query))
    others = [k for k in range(CLASSES) if k not in story.present]
    axes.plot(*w[others].mT, "+", color="#9a9a9a", ms=6, mew=1.1, zorder=2)
    if step.probabilities is None:
        axes.plot(*z.mT, "o", color="#c9c9c9", ms=4.5, mew=0, zorder=1)
    else:
        labels = step.probabilities.argmax(-1)
        for k in labels.unique().tolist():
            colour, marker = colour_of(story, k)
            own = z[labels == k]
            axes.plot(*own.mT, marker, color=colour, ms=5, mew=1.3 if marker == "x" else 0)
    for k in story.present:
        colour, _ = colour_of(story, k)
        axes.plot(*torch.stack([start[k], w[k]]).mT, color=INK, lw=1.4, zorder=4)
        axes.plot(*w[k], "*", color=colour, ms=15, mec=INK, mew=1.0, zorder=5)
    wide = torch.cat([z, start[story.present]])
    low, high = wide.amin(0), wide.amax(0)
    margin = 0.07 * (high - low)
    axes.set_xlim(*(low - margin)[[0]].tolist(), *(high + margin)[[0]].tolist())
    axes.set_ylim(*(low - margin)[[1]].tolist(), *(high + margin)[[1]].tolist())
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#b5b5b5")


def draw_proportions(axes: "Axes", story: Story, step: Step) -> str:
    """A bar for each candidate class; returns what is to be read from them."""
    true = torch.bincount(story.truth, minlength=CLASSES) / len(story.truth)
    found = true if step.probabilities is None else step.probabilities.mean(0)
    axes.set_ylim(0, 1.6 * float(true.max()))
    for k, share in enumerate(found.tolist()):
        axes.bar(k, share, width=1.6 if k in story.present else 1.0, color=colour_of(story, k)[0])
    for k in story.present:
        axes.plot([k - 1, k + 1], [float(true[k])] * 2, color=INK, lw=1.4)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#b5b5b5")
    if step.probabilities is None:
        return "the truth, unknown"
    labels = step.probabilities.argmax(-1)
    right = 100 * (labels == story.truth).float().mean()
    return f"{len(labels.unique())} classes\n{right:.0f} % right"


def draw(story: Story, path: Path) -> None:
    """The whole picture."""
    figure = figure_class()(figsize=(10, 7.2), dpi=160, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.06, w_pad=0.04)
    top, middle = figure.subfigures(2, 1, height_ratios=[1, 2])
    candidates, batch = top.subplots(1, 2)
    found = [colour_of(story, k)[0] if k in story.present else INK for k in range(CLASSES)]
    draw_images(candidates, story.support, found, columns=15)
    name_panel(candidates, f"{CLASSES} candidate classes, {SHOTS} labelled images of each")
    draw_images(batch, story.images, [INK] * len(story.images), columns=15)
    name_panel(batch, f"{QUERIES} unlabelled images: of which classes?")
    panels = middle.subplots(2, len(story.steps), height_ratios=[1.7, 1])
    flat = plane(story)
    for (above, below), step in zip(panels.T, story.steps, strict=True):
        last = step is story.steps[-1]
        title = "start" if step.number == 0 else f"iteration {step.number}" + ", end" * last
        draw_batch(above, story, step, flat)
        name_panel(above, title)
        text = draw_proportions(below, story, step)
        below.text(0.98, 0.98, text, ha="right", va="top", transform=below.transAxes,
                   fontsize=SMALL, color=INK)  # fmt: skip
    panels[0, 0].set_ylabel("images (points),\nprototypes (stars)", fontsize=SMALL, color=INK)
    panels[1, 0].set_ylabel("share of\neach class", fontsize=SMALL, color=INK)
    head(
        figure,
        "What the iteration does to one batch",
        "colours: the four classes present; black crosses: images given to a class that is not; "
        "grey plus signs: prototypes of classes that are not; lines below: true shares",
    )
    finish(figure, path)
    reduce_colours(path)


def reduce_colours(path: Path) -> None:
    """Keep fewer colours: the noise of the images would make the file more than twice as large."""
    from PIL import Image

    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main() -> None:
    novel = glyph_images("test", samples=FULL.novel)
    bank = features(novel, FULL, user_cache("demo"), False, RunSettings(), lambda text: None)
    draw(tell(bank, novel, TASK, SHOWN), HERE / "pictures" / "method.png")


if __name__ == "__main__":
    main()
