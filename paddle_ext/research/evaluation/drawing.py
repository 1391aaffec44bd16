"""Shared by all figures: colours, markers, panels, titles, legends, and saving."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..files import replacing
from .results import Result
from .tables import base_name, display_of, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 10.0  # inches: shown 800 pixels wide, 11 points are 12 pixels high
RESOLUTION = 160
SMALL, NORMAL, LARGE = 10.5, 11.5, 14.0  # points
INK, PALE, GRID = "#222222", "#6b6b6b", "#e8e8e8"
K_EFF = r"$K_{\mathrm{eff}}$"
K_EFF_BOLD = r"$\mathbf{K_{eff}}$"
SUFFIXES = (".png", ".svg", ".pdf")

EMPHASISED = ("adaptive", "paddle")

T = TypeVar("T")


# --- methods ------------------------------------------------------------------------------------


def paler(colour: str) -> str:
    """A colour mixed with white; not transparent, or the grid would show through."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.62 * (255 - part)):02x}" for part in parts)


def emphasised(label: str) -> bool:
    return base_name(label) in EMPHASISED


def line_style(label: str, *, dashed: bool = False) -> dict[str, Any]:
    """The style of a method's curve; dashed and without markers for a reference."""
    if dashed:
        return {"color": INK, "lw": 2.2, "ls": (0, (4, 1.6)), "zorder": 4}
    shown = display_of(label)
    # Line width, marker size (a star looks smaller than it is), and stacking order.
    width, size, order = {"adaptive": (3.8, 13.0, 6), "paddle": (3.0, 7.5, 5)}.get(
        base_name(label), (1.7, 6.0, 3)
    )
    return {
        "color": shown.colour,
        "marker": shown.marker,
        "lw": width,
        "ms": size,
        "mec": "white",
        "mew": 0.6,
        "zorder": order,
    }


def shots_title(shots: int | None) -> str:
    if shots is None:
        return "one support for all tasks"
    if shots == 0:
        return "no labelled row"
    return "1 shot" if shots == 1 else f"{shots} shots"


def tolerance_text(tol: float) -> str:
    """A tolerance in common notation: 1e-6, not 1e-06."""
    return f"{tol:g}".replace("e-0", "e-")


def duration_text(seconds: float) -> str:
    """A time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


# --- results ------------------------------------------------------------------------------------


def at_least_one(results: Iterable[Result]) -> list[Result]:
    found = list(results)
    if not found:
        raise ValueError("a figure needs at least one result, got none")
    return found


def distinct(values: Iterable[T]) -> list[T]:
    """Each value once, in increasing order; None first."""
    return sorted(set(values), key=lambda value: (value is not None, value))


def settings_line(results: Iterable[Result], bank: str = "") -> str:
    """The settings of an evaluation, for the line below a title."""
    results = list(results)

    def listed(values: Iterable[int]) -> str:
        low, *_, high = [*distinct(values)] * 2
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    parts = [bank] if bank else []
    parts.append(f"{listed(r.num_classes for r in results)} candidate classes")
    if len({r.k_eff for r in results}) == 1:
        parts.append(f"{results[0].k_eff} present")
    parts.append(f"{listed(r.n_query for r in results)} queries")
    parts.append(f"{listed(r.n_tasks for r in results)} tasks")
    return ", ".join(parts)


def interval(result: Result) -> float:
    """Half the confidence interval; 0 if there is none to draw."""
    return result.interval if math.isfinite(result.interval) else 0.0


# --- marks --------------------------------------------------------------------------------------


def draw_line(
    axes: Axes, label: str, points: Sequence[tuple[float, float, float]], *, dashed: bool = False
) -> None:
    """A line through (x, y, half the height of the band)."""
    if not points:
        return
    x, y, half = zip(*points, strict=True)
    drawn = line_style(label, dashed=dashed)
    low = [a - b for a, b in zip(y, half, strict=True)]
    high = [a + b for a, b in zip(y, half, strict=True)]
    axes.fill_between(x, low, high, color=drawn["color"], alpha=0.18, lw=0, zorder=2)
    axes.plot(x, y, **drawn)


def draw_bars(
    axes: Axes,
    results: Sequence[Result],
    published: Mapping[str, Mapping[int | None, float]] | None,
) -> None:
    """Horizontal bars, the best at the top; published accuracies as ticks."""
    ordered = sorted(results, key=lambda result: result.accuracy)
    known = published or {}
    ticks = [known.get(result.method, {}).get(result.shots) for result in ordered]
    reach = max([result.accuracy + interval(result) for result in ordered])
    reach = max([reach, *(tick for tick in ticks if tick is not None)])
    for place, (result, tick) in enumerate(zip(ordered, ticks, strict=True)):
        colour = display_of(result.method).colour
        strong = emphasised(result.method)
        axes.barh(place, result.accuracy, 0.7, color=colour if strong else paler(colour))
        axes.errorbar(
            result.accuracy, place, xerr=interval(result), color=INK, lw=1.3, capsize=3, zorder=4
        )
        if tick is not None:
            axes.plot([tick] * 2, [place - 0.42, place + 0.42], color=INK, lw=2.4, zorder=5)
        end = max(result.accuracy + interval(result), 0 if tick is None else tick)
        axes.annotate(
            f"{result.accuracy:.1f}",
            (end, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            color=INK,
            weight="bold" if strong else "normal",
        )
    axes.set_yticks(range(len(ordered)), [title_of(result.method) for result in ordered])
    for text, result in zip(axes.get_yticklabels(), ordered, strict=True):
        text.set(color=INK, weight="bold" if emphasised(result.method) else "normal")
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    axes.set_xlim(0, 1.25 * reach)
    name_panel(axes, "", "accuracy (%)")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


# --- the figure ---------------------------------------------------------------------------------


def figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "figures need matplotlib, which is not installed: pip install 'paddle_ext[cli]'"
        ) from None
    return Figure


def make_panels(
    count: int, *, height: float, width: float = WIDTH, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side; `share` gives them one y axis."""
    figure = figure_class()(figsize=(width, height), dpi=RESOLUTION, layout="constrained")
    leave_room(figure, wspace=0.05, w_pad=0.08, h_pad=0.06)
    panels = figure.subplots(1, count, sharey=share, squeeze=False)[0].tolist()
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
    axes.spines[["left", "bottom"]].set_color("#b5b5b5")
    axes.grid(color=GRID, lw=0.9)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL, colors=PALE, labelcolor=INK, length=3)


def name_panel(axes: Axes, text: str, x: str = "", y: str = "") -> None:
    if text:
        axes.set_title(text, fontsize=NORMAL, color=INK, weight="bold", loc="left")
    if x:
        axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    if y:
        axes.set_ylabel(y, fontsize=NORMAL, color=INK)


def mark_counts(axes: Axes, counts: Sequence[int]) -> None:
    """A tick at each count, or of many at 1, 2, 5, 10, 20 and so on; on a log scale if small ones
    would overlap.
    """
    if len(counts) > 12:
        counts = [count for count in counts if str(count).rstrip("0") in ("1", "2", "5")]
    if max(counts) > 10 * min(counts):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(counts, [str(count) for count in counts])


def head(figure: Figure, title: str, below: str = "") -> None:
    """The title, and below it a smaller line; the panels get the rest."""
    width, height = figure.get_size_inches()
    letters = int(72 * width / (0.56 * SMALL))  # that fit into one line
    lines = textwrap.wrap(below, letters)
    first = 0.12  # inches from the top
    second = first + 1.45 * LARGE / 72
    end = second + 1.4 * SMALL / 72 * len(lines) + 0.06
    place: dict[str, Any] = {"x": 0.1 / width, "ha": "left", "va": "top", "in_layout": False}
    figure.text(y=1 - first / height, s=title, fontsize=LARGE, weight="bold", color=INK, **place)
    figure.text(y=1 - second / height, s="\n".join(lines), fontsize=SMALL, color=PALE, **place)
    leave_room(figure, rect=(0, 0, 1, 1 - end / height))


def legend_below(figure: Figure, handles: list[Any], labels: list[str], columns: int = 0) -> None:
    made = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns or min(len(labels), 5),
        frameon=False,
        fontsize=SMALL,
        labelcolor=INK,
        handlelength=2.4,
        columnspacing=1.6,
    )
    for text in made.get_texts():
        if text.get_text() in map(title_of, EMPHASISED):
            text.set_fontweight("bold")


def method_legend(
    figure: Figure, methods: Sequence[str], published: bool, reference: str | None = None
) -> None:
    """An entry for each method, the emphasised ones first, and one for the published curve."""
    from matplotlib.lines import Line2D

    order = [*EMPHASISED, reference]
    entries: dict[str, Any] = {}
    for label in sorted(methods, key=lambda label: place_in(order, base_name(label) or label)):
        entries[title_of(label)] = Line2D([], [], **line_style(label, dashed=label == reference))
        if published and label == "paddle":
            entries[f"{title_of('paddle')}, published"] = Line2D([], [], **published_line())
    legend_below(figure, list(entries.values()), list(entries))


def place_in(order: Sequence[object], item: object) -> int:
    """The position of an item; the end for missing ones."""
    return order.index(item) if item in order else len(order)


def published_line() -> dict[str, Any]:
    """The style of a published curve of PADDLE."""
    colour = display_of("paddle").colour
    return {"color": colour, "lw": 1.7, "ls": (0, (4, 2)), "alpha": 0.8, "zorder": 4}


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
    return figure
