"""Figures of evaluations: each method has the same colour and marker in all of them.

A function returns a matplotlib figure and, with `path`, also writes it in the format of the suffix
(``.png``, ``.webp``, ``.svg``, ``.pdf``). No window opens and pyplot's state is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import style
from .results import Evaluation, Result
from .tables import base_name, display_of, emphasised, settings_line, shots_title, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")


def accuracy_against_k_eff(
    evaluation: Evaluation,
    published: Mapping[int | None, Mapping[int, float]] | None = None,
    path: str | Path | None = None,
    reference: str | None = None,
) -> Figure:
    """Draw accuracy against the number of effective classes, one panel per number of shots.

    Bands are 95 % confidence intervals. `published` maps shots to K_eff to the published accuracy
    of PADDLE, drawn dashed, and so is `reference`, the method that the others are compared with.
    """
    results = at_least_one(evaluation)
    every_shots = distinct(result.shots for result in results)
    figure, panels = style.make_panels(len(every_shots), height=3.8)
    for axes, shots in zip(panels, every_shots, strict=True):
        ends = []
        for method in evaluation.methods:
            own = [r for r in evaluation.select(method) if r.shots == shots]
            points = sorted((r.k_eff, r.accuracy, interval(r)) for r in own)
            if points:
                draw_line(axes, method, points, dashed=method == reference)
                ends.append(method_label(method, *points[-1][:2], dashed=method == reference))
        curve = (published or {}).get(shots, {})
        if curve:
            drawn: dict[str, Any] = {"color": display_of("paddle").colour, "ls": (0, (4, 2))}
            axes.plot(list(curve), list(curve.values()), **drawn, lw=1.7, alpha=0.8, zorder=4)
            ends.append(style.Label(*list(curve.items())[-1], "published", drawn["color"]))
        style.name_panel(axes, shots_title(shots), y="accuracy (%)")
        mark_counts(axes, distinct(result.k_eff for result in results))
        style.label_ends(axes, ends)
    style.name_panel(panels[-1], "", r"classes present, $K_{\mathrm{eff}}$")
    below = settings_line(results, evaluation.bank)
    if any((published or {}).values()):
        below += "; dashed: PADDLE as published"
    style.head(figure, "Accuracy by the number of classes present", below)
    return style.finish(figure, path)


def accuracy_bars(
    evaluation: Evaluation,
    published: Mapping[str, Mapping[int | None, float]] | None = None,
    path: str | Path | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the accuracies of all methods as bars, the best at the top.

    The evaluation is of one `k_eff`, with a panel for each number of shots. Whiskers are 95 %
    confidence intervals. `published` maps methods to shots to accuracies, drawn as ticks. With
    `axes`, of your own figure, the only number of shots is drawn into them.
    """
    results = at_least_one(evaluation)
    if len({r.k_eff for r in results}) > 1:
        raise ValueError("evaluation must have one k_eff for bars, got several")
    every_shots = distinct(r.shots for r in results)
    if axes is not None:
        if len(every_shots) > 1:
            raise ValueError(
                f"evaluation must have one number of shots for axes, got {every_shots}"
            )
        draw_bars(axes, results, published or {})
        return style.finish(axes.figure, path)  # type: ignore[arg-type]
    height = 0.9 + 0.3 * len({r.method for r in results})
    figure, panels = style.make_panels(len(every_shots), height=height, share=False)
    for panel, own in zip(panels, every_shots, strict=True):
        draw_bars(panel, [r for r in results if r.shots == own], published or {})
        style.name_panel(panel, shots_title(own))
    below = settings_line(results, evaluation.bank) + ("; ticks: published" if published else "")
    style.head(figure, "Accuracy of the methods", below)
    return style.finish(figure, path)


def at_least_one(results: Iterable[Result]) -> list[Result]:
    listed = list(results)
    if not listed:
        raise ValueError("a figure needs at least one result, got none")
    return listed


def distinct(values: Iterable[T]) -> list[T]:
    """Each value once, in increasing order; None first."""
    return sorted(set(values), key=lambda value: (value is not None, value))


def interval(result: Result) -> float:
    """Half the confidence interval; 0 if there is none to draw."""
    return result.interval if math.isfinite(result.interval) else 0.0


def line_style(label: str, *, dashed: bool = False) -> dict[str, Any]:
    """The style of a method's curve; dashed and without markers for a reference."""
    if dashed:
        return {"color": style.INK, "lw": 2.2, "ls": (0, (4, 1.6)), "zorder": 4}
    shown = display_of(label)
    # Line width, marker size (a star looks smaller than it is), and stacking order.
    width, size, order = {"adaptive": (3.8, 13.0, 6), "paddle": (3.0, 7.5, 5)}.get(
        base_name(label), (1.7, 6.0, 3)
    )
    line = {"color": shown.colour, "marker": shown.marker, "lw": width, "ms": size}
    return {**line, "mec": "white", "mew": 0.6, "zorder": order}


def draw_line(
    axes: Axes, label: str, points: Sequence[tuple[float, float, float]], *, dashed: bool = False
) -> None:
    """A line through (x, y, half the height of the band)."""
    drawn = line_style(label, dashed=dashed)
    x, low, high = zip(*((x, y - half, y + half) for x, y, half in points), strict=True)
    axes.fill_between(x, low, high, color=drawn["color"], alpha=0.18, lw=0, zorder=2)
    axes.plot(x, [y for _, y, _ in points], **drawn)


def method_label(label: str, x: float, y: float, *, dashed: bool = False) -> style.Label:
    """The name of a method at the end of its curve."""
    colour = line_style(label, dashed=dashed)["color"]
    return style.Label(x, y, title_of(label), colour, emphasised(label))


def mark_counts(axes: Axes, counts: Sequence[int]) -> None:
    """A tick at each count, or of many at 1, 2, 5, 10 and so on; far apart on a log scale."""
    if len(counts) > 12:
        counts = [count for count in counts if str(count).rstrip("0") in ("1", "2", "5")]
    if max(counts) > 10 * min(counts):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(counts, [str(count) for count in counts])


def draw_bars(
    axes: Axes, results: Sequence[Result], published: Mapping[str, Mapping[int | None, float]]
) -> None:
    """Horizontal bars, the best at the top; published accuracies as ticks."""
    ordered = sorted(results, key=lambda result: result.accuracy)[::-1]
    ends = []
    for place, result in enumerate(ordered):
        colour, strong = display_of(result.method).colour, emphasised(result.method)
        axes.barh(place, result.accuracy, 0.7, color=colour if strong else style.paler(colour))
        half = interval(result)
        axes.errorbar(
            result.accuracy, place, xerr=half, color=style.INK, lw=1.3, capsize=3, zorder=4
        )
        ends.append(result.accuracy + half)
        tick = published.get(result.method, {}).get(result.shots)
        if tick is not None:
            axes.plot([tick] * 2, [place - 0.42, place + 0.42], color=style.INK, lw=2.4, zorder=5)
            ends[-1] = max(ends[-1], tick)
        style.label_point(axes, ends[-1], place, f"{result.accuracy:.1f}", bold=strong)
    strong_titles = [title_of(r.method) for r in ordered if emphasised(r.method)]
    style.name_rows(axes, [title_of(result.method) for result in ordered], strong_titles)
    axes.set_xlim(0, 1.25 * max(ends))
    style.name_panel(axes, "", "accuracy (%)")
