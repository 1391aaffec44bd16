"""Shared by the figures of evaluations: how methods, results and numbers of classes are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..style import INK, Label, label_point, name_panel, paler
from .results import Result
from .tables import base_name, display_of, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

K_EFF = r"$K_{\mathrm{eff}}$"
K_EFF_BOLD = r"$\mathbf{K_{eff}}$"

EMPHASISED = ("adaptive", "paddle")

T = TypeVar("T")


# --- methods ------------------------------------------------------------------------------------


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
        label_point(axes, end, place, f"{result.accuracy:.1f}", bold=strong)
    axes.set_yticks(range(len(ordered)), [title_of(result.method) for result in ordered])
    for text, result in zip(axes.get_yticklabels(), ordered, strict=True):
        text.set(color=INK, weight="bold" if emphasised(result.method) else "normal")
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    axes.set_xlim(0, 1.25 * reach)
    name_panel(axes, "", "accuracy (%)")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def method_label(label: str, x: float, y: float, *, dashed: bool = False) -> Label:
    """The name of a method at the end of its curve."""
    colour = line_style(label, dashed=dashed)["color"]
    return Label(x, y, title_of(label), colour, emphasised(label))


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


def published_line() -> dict[str, Any]:
    """The style of a published curve of PADDLE."""
    colour = display_of("paddle").colour
    return {"color": colour, "lw": 1.7, "ls": (0, (4, 2)), "alpha": 0.8, "zorder": 4}
