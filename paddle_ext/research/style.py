"""The style of every figure: colours, sizes, panels, labels, and writing a file.

Docs, gallery, demo, reports and notebooks draw with it. The colour of a method is its own
(`Display` in `methods/base.py`); `colour` also knows those of what it is compared with. Figures are
narrow enough for a phone, and their paper is white: the site inverts it where pages are dark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..files import replacing
from ..libraries import library
from ..methods.registry import lookup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.4  # inches: on a phone, 360 pixels wide, 12 points are 9 pixels high
RESOLUTION = 160
SMALL, NORMAL, LARGE = 12.0, 12.5, 15.0  # points
INK, PALE, FRAME, GRID = "#222222", "#666666", "#b5b5b5", "#e8e8e8"
RIGHT, WRONG = "#00805a", "#d3302f"
# For classes, banks and other things that are no methods; distinct for colour-blind readers.
SEVERAL = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d31")
# What methods are compared with.
PEERS = {
    "nearest class mean": INK,
    "torch": "#0063a8",
    "logistic regression": "#0072b2",
    "EMQ": "#e69f00",
}
SUFFIXES = (".png", ".webp", ".svg", ".pdf")


class Label(NamedTuple):
    """A text at the right end of a curve."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False


def colour(name: str) -> str:
    """The colour of a method, by its name in the registry, or of what it is compared with."""
    return PEERS[name] if name in PEERS else lookup(name).display.colour


def paler(colour: str) -> str:
    """A colour mixed with white; not transparent, or the grid would show through."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.62 * (255 - part)):02x}" for part in parts)


def figure_class() -> type[Figure]:
    figure: type[Figure] = library("matplotlib.figure", "a figure", "'paddle_ext[cli]'").Figure
    return figure


def make_panels(count: int, *, height: float, share: bool = True) -> tuple[Figure, list[Axes]]:
    """Panels below one another, `height` inches high; `share` gives them the same y axis."""
    size = WIDTH, 0.9 + height * count
    figure = figure_class()(figsize=size, dpi=RESOLUTION, layout="constrained")
    leave_room(figure, wspace=0.05, hspace=0.05, w_pad=0.08, h_pad=0.08)
    panels = figure.subplots(count, 1, sharey=share, squeeze=False).ravel().tolist()
    for axes in panels:
        prepare(axes)
    return figure, panels


def leave_room(figure: Figure, **room: Any) -> None:
    """Options of the constrained layout."""
    engine: Any = figure.get_layout_engine()
    engine.set(**room)


def prepare(axes: Axes) -> None:
    """Light grid, two spines, sizes: set here instead of in matplotlib's global parameters."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FRAME)
    axes.grid(color=GRID, lw=0.9)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL, colors=PALE, labelcolor=INK, length=3)


def name_panel(axes: Axes, text: str, x: str = "", y: str = "") -> None:
    """The title of a panel, and the names of its axes; an empty text leaves what is there."""
    if text:
        axes.set_title(text, fontsize=NORMAL, color=INK, weight="bold", loc="left")
    if x:
        axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    if y:
        axes.set_ylabel(y, fontsize=NORMAL, color=INK)


def name_rows(axes: Axes, names: Sequence[str], strong: Sequence[str] = ()) -> None:
    """A name at the left of each row of a chart, from top to bottom, and no lines across."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    for text in axes.get_yticklabels():
        text.set(color=INK, weight="bold" if text.get_text() in strong else "normal")


def head(figure: Figure, title: str, below: str = "") -> None:
    """The title, and below it a smaller line; the panels get the rest."""
    width, height = figure.get_size_inches()
    titles = textwrap.wrap(title, int(72 * width / (0.6 * LARGE)))
    lines = textwrap.wrap(below, int(72 * width / (0.57 * SMALL)))
    first = 0.12  # inches from the top
    second = first + 1.45 * LARGE / 72 * len(titles)
    end = second + 1.4 * SMALL / 72 * len(lines) + 0.06
    place: dict[str, Any] = {"x": 0.1 / width, "ha": "left", "va": "top", "in_layout": False}
    named: dict[str, Any] = {"fontsize": LARGE, "weight": "bold", "color": INK}
    figure.text(y=1 - first / height, s="\n".join(titles), **named, **place)
    figure.text(y=1 - second / height, s="\n".join(lines), fontsize=SMALL, color=PALE, **place)
    leave_room(figure, rect=(0, 0, 1, 1 - end / height))


def label_ends(axes: Axes, labels: Sequence[Label]) -> None:
    """Names at the right of curves, moved apart; call it when the limits of the axes are final."""
    height = axes.bbox.height / axes.figure.dpi  # inches, before the layout
    ordered = sorted(labels, key=lambda label: label.y)
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [float(to_axes.transform((label.x, label.y))[1]) for label in ordered]
    for label, y in zip(ordered, moved_apart(ends, 1.35 * SMALL / 72 / height), strict=True):
        write_label(axes, label, (1.05, y), (0, 0.5), ha="left", va="center")


def label_tops(axes: Axes, labels: Sequence[Label]) -> None:
    """Names above marks, moved apart; call it when the limits of the axes are final."""
    width = 0.8 * axes.figure.bbox.width / axes.figure.dpi  # inches of the axes, about
    ordered = sorted(labels, key=lambda label: label.x)
    gap = (0.58 * max(len(label.text) for label in labels) + 1) * SMALL / 72 / width
    to_axes = axes.transData + axes.transAxes.inverted()
    marks = [float(to_axes.transform((label.x, label.y))[0]) for label in ordered]
    for label, x in zip(ordered, moved_apart(marks, gap), strict=True):
        write_label(axes, label, (x, 1.04), (0.5, 0), ha="center", va="bottom")


def write_label(
    axes: Axes, label: Label, place: tuple[float, float], start: tuple[float, float], **align: str
) -> None:
    """A text at a place, as shares of the axes, with a line from its side `start` to its point."""
    line = {"arrowstyle": "-", "color": label.colour, "lw": 0.8, "shrinkA": 1, "shrinkB": 0}
    axes.annotate(
        label.text, (label.x, label.y), place, textcoords="axes fraction", fontsize=SMALL,
        color=label.colour, weight="bold" if label.bold else "normal", annotation_clip=False,
        arrowprops={**line, "relpos": start}, **align,
    )  # fmt: skip


def moved_apart(values: Sequence[float], gap: float) -> list[float]:
    """Increasing values, moved as little as makes each `gap` larger than the one before.

    Examples
    --------
    >>> moved_apart([0.0, 0.5, 0.5], 0.25)
    [0.0, 0.375, 0.625]
    """
    groups: list[tuple[float, int]] = []  # centre, members
    for value in values:
        centre, members = value, 1
        while groups and groups[-1][0] + gap * (groups[-1][1] + members) / 2 > centre:
            before, others = groups.pop()
            centre = (before * others + centre * members) / (others + members)
            members += others
        groups.append((centre, members))
    return [
        centre + gap * (number - (members - 1) / 2)
        for centre, members in groups
        for number in range(members)
    ]


def label_point(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    colour: str = INK,
    *,
    bold: bool = False,
    place: str = "right",
) -> None:
    """A text at the right of a point or of the end of a bar, or above it on either side."""
    offset, ha, va = {
        "right": ((6, 0), "left", "center"),
        "above right": ((6, 3), "left", "bottom"),
        "above left": ((0, 7), "right", "bottom"),
    }[place]
    axes.annotate(
        text, (x, y), offset, textcoords="offset points", ha=ha, va=va, fontsize=SMALL,
        color=colour, weight="bold" if bold else "normal", annotation_clip=False,
    )  # fmt: skip


def finish(figure: Figure, path: str | Path | None) -> Figure:
    """Write the figure on request; an interrupted call keeps the old file."""
    if path is None:
        return figure
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path must end in one of {', '.join(SUFFIXES)}, got {str(path)!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=RESOLUTION, format=path.suffix[1:])
        if path.suffix == ".png":
            reduce_colours(temporary)
    return figure


def reduce_colours(path: Path) -> None:
    """Keep 200 colours of a PNG file, which makes it a third as large."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(200, dither=Image.Dither.NONE)
    few.save(path, format="png", optimize=True)
