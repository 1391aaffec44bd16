"""Draw the figures of one batch: ``python docs/make_method.py``.

That of docs/method.md shows a batch of drawn characters after several iterations, that of
docs/presence.md how much of a batch each class is. The network and the features are those of the
demo, from its cache or computed here.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paddle_ext import FeatureBank, TaskSampler, adaptive, solve
from paddle_ext.files import user_cache
from paddle_ext.research.data.glyphs import glyph_images
from paddle_ext.research.data.images import ImageArray
from paddle_ext.research.demo import FULL, features
from paddle_ext.research.style import (
    FRAME,
    INK,
    PALE,
    RESOLUTION,
    SEVERAL,
    SMALL,
    WIDTH,
    Label,
    colour,
    figure_class,
    finish,
    head,
    label_tops,
    make_panels,
    name_panel,
    paler,
)
from paddle_ext.rows import unit_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
CLASSES, PRESENT, SHOTS, QUERIES = 60, 4, 5, 75
TASK = 25
SHOWN = (0, 1, 100)  # iterations; the task has converged by the last
STYLES = tuple(zip(SEVERAL, "os^D", strict=False))


class Step(NamedTuple):
    """The state after some iterations."""

    number: int
    prototypes: Tensor  # [K, D] in scaled coordinates
    probabilities: Tensor | None  # [Q, K]; None before the first iteration


class Run(NamedTuple):
    """A batch and the iterations on it."""

    support: Tensor  # [K, H, W] uint8: one labelled image of each class
    images: Tensor  # [Q, H, W] uint8
    query: Tensor  # [Q, D] in scaled coordinates
    truth: Tensor  # [Q]
    steps: list[Step]

    @property
    def present(self) -> list[int]:
        return self.truth.unique().tolist()


def run_task(bank: FeatureBank, images: ImageArray, task: int, shown: tuple[int, ...]) -> Run:
    """Solve one task once for each number of iterations in `shown`."""
    sampler = TaskSampler(
        bank.labels, shots=SHOTS, n_query=QUERIES, k_eff=PRESENT, num_classes=CLASSES, seed=0
    )
    rows, labels, query_rows, truth = (x.squeeze(0) for x in sampler.batch(task, 1))
    support, query = bank.features[rows], bank.features[query_rows]
    # As `solve` scales them, up to one factor.
    x, z = (unit_rows(features.double()) for features in (support, query))
    own = torch.nn.functional.one_hot(labels, CLASSES).double()

    def prototypes(u: Tensor) -> Tensor:
        mass = own.sum(0) + u.double().sum(0)
        return (own.mT @ x + u.double().mT @ z) / mass.unsqueeze(-1)

    steps = [Step(0, prototypes(torch.zeros(QUERIES, CLASSES)), None)]
    for most in shown[1:]:
        solution = solve(support, labels, query, max_iter=most)
        u = solution.probabilities
        steps.append(Step(int(solution.iterations), prototypes(u), u))
    first = torch.stack([rows[labels == k][0] for k in range(CLASSES)])
    pixels = (images.read(chosen).squeeze(-1) for chosen in (first, query_rows))
    return Run(*pixels, z, truth, steps)


def plane(run: Run) -> Tensor:
    """The two directions in which the classes present lie furthest apart, [D, 2].

    Only the figure uses the true labels; the method does not.
    """
    means = torch.stack([run.query[run.truth == k].mean(0) for k in run.present])
    return torch.linalg.svd(means - means.mean(0), full_matrices=False).Vh[:2].mT


def colour_of(run: Run, k: int) -> tuple[str, str]:
    """Colour and marker of a class; all absent classes share one."""
    return STYLES[run.present.index(k)] if k in run.present else (PALE, "x")


def draw_images(axes: "Axes", images: Tensor, colours: list[str], columns: int) -> None:
    """Small images, dark on white, each in its colour."""
    from matplotlib.colors import to_rgb

    H, W = images.shape[-2:]
    lines = -(-len(images) // columns)
    paper = torch.ones(lines * H, columns * W, 3)
    for number, (image, shade) in enumerate(zip(images, colours, strict=True)):
        line, column = divmod(number, columns)
        ink = (image / 255).unsqueeze(-1)
        cell = 1 - ink * (1 - torch.tensor(to_rgb(shade)))
        paper[line * H : (line + 1) * H, column * W : (column + 1) * W] = cell
    axes.imshow(paper.numpy(), interpolation="antialiased")
    axes.set_axis_off()
    axes.set_anchor("NW")


def draw_batch(axes: "Axes", run: Run, step: Step, flat: Tensor) -> None:
    """The queries by predicted class, and the prototypes with their paths."""
    start, w, z = (x @ flat for x in (run.steps[0].prototypes, step.prototypes, run.query))
    others = [k for k in range(CLASSES) if k not in run.present]
    axes.plot(*w[others].mT, "+", color=FRAME, ms=6, mew=1.1, zorder=2)
    if step.probabilities is None:
        axes.plot(*z.mT, "o", color=FRAME, ms=4.5, mew=0, zorder=1)
    else:
        labels = step.probabilities.argmax(-1)
        for k in labels.unique().tolist():
            colour, marker = colour_of(run, k)
            own = z[labels == k]
            axes.plot(*own.mT, marker, color=colour, ms=5, mew=1.3 if marker == "x" else 0)
    for k in run.present:
        colour, _ = colour_of(run, k)
        axes.plot(*torch.stack([start[k], w[k]]).mT, color=INK, lw=1.4, zorder=4)
        axes.plot(*w[k], "*", color=colour, ms=15, mec=INK, mew=1.0, zorder=5)
    wide = torch.cat([z, start[run.present]])
    low, high = wide.amin(0), wide.amax(0)
    margin = 0.07 * (high - low)
    axes.set_xlim(*(low - margin)[[0]].tolist(), *(high + margin)[[0]].tolist())
    axes.set_ylim(*(low - margin)[[1]].tolist(), *(high + margin)[[1]].tolist())
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(FRAME)


def draw_proportions(axes: "Axes", run: Run, step: Step) -> str:
    """A bar for each candidate class; returns a summary."""
    true = torch.bincount(run.truth, minlength=CLASSES) / len(run.truth)
    found = true if step.probabilities is None else step.probabilities.mean(0)
    axes.set_ylim(0, 1.6 * float(true.max()))
    for k, share in enumerate(found.tolist()):
        axes.bar(k, share, width=1.6 if k in run.present else 1.0, color=colour_of(run, k)[0])
    for k in run.present:
        axes.plot([k - 1, k + 1], [float(true[k])] * 2, color=INK, lw=1.4)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FRAME)
    if step.probabilities is None:
        return "the truth (unknown)"
    labels = step.probabilities.argmax(-1)
    right = 100 * (labels == run.truth).float().mean()
    return f"{len(labels.unique())} classes\n{right:.0f} % correct"


def draw(run: Run, path: Path) -> None:
    """The batch at the start, after the first iteration and at the end."""
    figure = figure_class()(figsize=(WIDTH, 9.4), dpi=RESOLUTION, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.06, w_pad=0.04)
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    candidates, batch = top.subplots(2, 1, height_ratios=[4, 5])
    found = [colour_of(run, k)[0] if k in run.present else INK for k in range(CLASSES)]
    draw_images(candidates, run.support, found, columns=15)
    name_panel(candidates, f"{CLASSES} candidate classes, {SHOTS} labelled images of each")
    draw_images(batch, run.images, [INK] * len(run.images), columns=15)
    name_panel(batch, f"{QUERIES} unlabelled images: of which classes?")
    panels = bottom.subplots(2, len(run.steps), height_ratios=[1.7, 1])
    flat = plane(run)
    for (above, below), step in zip(panels.T, run.steps, strict=True):
        title = "start" if step.number == 0 else f"iteration {step.number}"
        draw_batch(above, run, step, flat)
        name_panel(above, title)
        text = draw_proportions(below, run, step)
        below.text(0.98, 0.98, text, ha="right", va="top", transform=below.transAxes,
                   fontsize=SMALL, color=INK)  # fmt: skip
    name_panel(panels[0, 0], "", y="images")
    name_panel(panels[1, 0], "", y="shares")
    head(
        figure,
        "What the iteration does to one batch",
        "points: images; stars: prototypes of the four classes present; black crosses: images "
        "given to absent classes; bars: the share of each class, lines: the true shares",
    )
    finish(figure, path)


def draw_prevalence(bank: FeatureBank, path: Path) -> None:
    """How much of a batch each class is: estimates with intervals, and the true shares."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randperm(bank.num_classes, generator=generator)[:CLASSES]
    parts = [
        rows[torch.randperm(len(rows), generator=generator)]
        for rows in ((bank.labels == k).nonzero().view(-1) for k in classes)
    ]
    counts = [45, 34, 28, 22, 17, 13, 10, 8, 6, 5, 3, 2] + [0] * (CLASSES - 12)
    support = bank.features[torch.cat([rows[:SHOTS] for rows in parts])]
    own = [rows[SHOTS : SHOTS + count] for rows, count in zip(parts, counts, strict=True)]
    labels = torch.arange(CLASSES).repeat_interleave(SHOTS)
    found = adaptive(support, labels, bank.features[torch.cat(own)]).prevalence()
    true = 100 * torch.tensor(counts) / sum(counts)
    estimate, low, high = (100 * part for part in found)
    shown = ((true > 0) | (estimate > 0.4)).nonzero().view(-1).tolist()
    ours = colour("adaptive")
    figure, (axes,) = make_panels(1, height=3.2)
    for place, k in enumerate(shown):
        axes.bar(place, float(estimate[k]), 0.7, color=paler(ours))
        axes.vlines(place, float(low[k]), float(high[k]), color=ours, lw=3)
        axes.plot([place - 0.35, place + 0.35], [float(true[k])] * 2, color=INK, lw=2)
    axes.set_xticks([])
    axes.set_ylim(0, None)
    name_panel(axes, "", f"classes, {CLASSES - len(shown)} others are at 0", "% of the batch")
    parts_of = {
        "truth": (0.3, float(true[shown[0]]), INK),
        "90 % interval": (1, float(high[shown[1]]), ours),
        "estimate": (2.2, float(estimate[shown[2]]), ours),
    }
    label_tops(axes, [Label(x, y, text, ink) for text, (x, y, ink) in parts_of.items()])
    below = (
        f"{sum(counts)} drawn characters, 12 of {CLASSES} classes, {SHOTS} labelled images of each"
    )
    head(figure, "How much of each class?", below)
    finish(figure, path)


def main() -> None:
    novel = glyph_images("test", samples=FULL.novel)
    bank = features(novel, FULL, user_cache("demo"))
    draw(run_task(bank, novel, TASK, SHOWN), HERE / "figures" / "method.webp")
    draw_prevalence(bank, HERE / "figures" / "prevalence.png")


if __name__ == "__main__":
    main()
