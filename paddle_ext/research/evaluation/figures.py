"""Figures of evaluations: each method has the same colour and marker in all of them.

Every function returns a matplotlib figure and, with `path`, also writes it in the format of the
suffix (``.png``, ``.webp``, ``.svg``, ``.pdf``). No window opens and pyplot's state is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..style import (
    INK,
    PALE,
    Label,
    finish,
    head,
    label_ends,
    label_point,
    make_panels,
    name_panel,
)
from .drawing import (
    K_EFF,
    K_EFF_BOLD,
    at_least_one,
    distinct,
    draw_bars,
    draw_line,
    duration_text,
    interval,
    mark_counts,
    method_label,
    published_line,
    settings_line,
    shots_title,
    tolerance_text,
)
from .results import (
    NEARLY_BEST,
    Evaluation,
    Result,
    best_of,
    lambda_of,
    nearly_best_lambdas,
)
from .tables import display_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """The criterion of one solver on one task over time."""

    method: str  # its name in the registry, which sets the colour
    title: str  # its name in the figure and the table
    iterations: tuple[int, ...]
    seconds: tuple[float, ...]  # since the start, at each of them
    criterion: tuple[float, ...]
    accuracy: float  # of the final labels, in percent
    reached: float | None  # seconds until the criterion was at most the tolerance


# --- accuracies ---------------------------------------------------------------------------------


def accuracy_against_k_eff(
    evaluation: Evaluation,
    published: Mapping[int | None, Mapping[int, float]] | None = None,
    path: str | Path | None = None,
    reference: str | None = None,
) -> Figure:
    """Draw accuracy against the number of effective classes, one panel per number of shots.

    Parameters
    ----------
    evaluation : Evaluation
        With several values of `k_eff`. Bands are 95 % confidence intervals.
    published : mapping, optional
        From shots to K_eff to the published accuracy of PADDLE, drawn dashed.
    path : path, optional
    reference : str, optional
        The method that the others are compared with, drawn as a dashed line.

    Examples
    --------
    >>> from paddle_ext.research.evaluation import Evaluation
    >>> evaluation = Evaluation.load("keff/evaluation.json")  # doctest: +SKIP
    >>> accuracy_against_k_eff(evaluation, path="keff.png")  # doctest: +SKIP
    """
    results = at_least_one(evaluation)
    every_shots = distinct(result.shots for result in results)
    every_k_eff = distinct(result.k_eff for result in results)
    figure, panels = make_panels(len(every_shots), height=3.8)
    for axes, shots in zip(panels, every_shots, strict=True):
        ends = []
        for method in evaluation.methods:
            own = [r for r in evaluation.select(method) if r.shots == shots]
            points = sorted((r.k_eff, r.accuracy, interval(r)) for r in own)
            is_reference = method == reference
            draw_line(axes, method, points, dashed=is_reference)
            if points:
                ends.append(method_label(method, *points[-1][:2], dashed=is_reference))
        dashed = (published or {}).get(shots, {})
        if dashed:
            axes.plot(list(dashed), list(dashed.values()), **published_line())
            x, y = list(dashed.items())[-1]
            ends.append(Label(x, y, "published", published_line()["color"]))
        name_panel(axes, shots_title(shots), y="accuracy (%)")
        mark_counts(axes, every_k_eff)
        label_ends(axes, ends)
    name_panel(panels[-1], "", f"classes present, {K_EFF}")
    below = settings_line(results, evaluation.bank)
    if any((published or {}).values()):
        below += "; dashed: PADDLE as published"
    head(figure, "Accuracy by the number of classes present", below)
    return finish(figure, path)


def accuracy_bars(
    evaluation: Evaluation,
    shots: int | None = None,
    published: Mapping[str, Mapping[int | None, float]] | None = None,
    path: str | Path | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the accuracies of all methods as bars, the best at the top.

    Parameters
    ----------
    evaluation : Evaluation
        Of one `k_eff`. Whiskers are 95 % confidence intervals.
    shots : int, optional
        Draw only this number of shots. Default: a panel for each.
    published : mapping, optional
        From methods to shots to published accuracies, drawn as ticks; `paper.accuracies` has them.
    path : path, optional
    axes : matplotlib Axes, optional
        Draw one number of shots into these, which belong to your own figure.

    Examples
    --------
    >>> from paddle_ext.research.evaluation import paper
    >>> published = paper.accuracies("table1", "mini")
    >>> accuracy_bars(evaluation, 5, published, "bars.png")  # doctest: +SKIP
    """
    results = [r for r in at_least_one(evaluation) if shots is None or r.shots == shots]
    if not results:
        there = ", ".join(str(own) for own in distinct(r.shots for r in evaluation))
        raise ValueError(f"shots must be one of those evaluated, {there}, got {shots}")
    if len({r.k_eff for r in results}) > 1:
        raise ValueError("evaluation must have one k_eff for bars, got several")
    every_shots = distinct(r.shots for r in results)
    if axes is not None:
        if len(every_shots) > 1:
            raise ValueError(f"shots must be given with axes, got None for {every_shots}")
        draw_bars(axes, results, published)
        return finish(axes.figure, path)  # type: ignore[arg-type]
    height = 0.9 + 0.3 * len({r.method for r in results})
    figure, panels = make_panels(len(every_shots), height=height, share=False)
    for panel, own in zip(panels, every_shots, strict=True):
        draw_bars(panel, [r for r in results if r.shots == own], published)
        name_panel(panel, shots_title(own))
    below = settings_line(results, evaluation.bank) + ("; ticks: published" if published else "")
    head(figure, "Accuracy of the methods", below)
    return finish(figure, path)


# --- lambda -------------------------------------------------------------------------------------


def accuracy_against_lambda(results: Iterable[Result], path: str | Path | None = None) -> Figure:
    """Draw PADDLE's accuracy against lambda, one panel per K_eff, at one number of queries.

    The dotted line is at the best lambda, the dashed one at the number of queries.

    Parameters
    ----------
    results : iterable of Result
        An `Evaluation` of PADDLE with several values of `lam`.
    path : path, optional

    Examples
    --------
    >>> accuracy_against_lambda(evaluation, "lambda.png")  # doctest: +SKIP
    """
    results = at_least_one(results)
    queries = distinct(result.n_query for result in results)
    if len(queries) > 1:
        raise ValueError(f"results must have one number of queries, got {queries}")
    every_k_eff = distinct(result.k_eff for result in results)
    figure, panels = make_panels(len(every_k_eff), height=2.7, share=False)
    contrast = display_of("alpha_tim").colour
    for axes, k_eff in zip(panels, every_k_eff, strict=True):
        own = [result for result in results if result.k_eff == k_eff]
        best = lambda_of(best_of(own))
        draw_line(axes, "paddle", sorted((lambda_of(r), r.accuracy, interval(r)) for r in own))
        axes.axvline(queries[0], color=INK, lw=1.4, ls="--", zorder=1)
        axes.axvline(best, color=contrast, lw=2.2, ls=":", zorder=1)
        name_panel(axes, f"{K_EFF_BOLD} = {k_eff}: best at {best:g}", y="accuracy (%)")
    name_panel(panels[-1], "", "λ")
    below = f"{settings_line(results)}, {shots_title(results[0].shots)}; "
    head(figure, "PADDLE's accuracy against λ", f"{below}dashed: λ = |Q|, dotted: the best λ")
    return finish(figure, path)


def best_lambda_against_queries(
    results: Iterable[Result], path: str | Path | None = None
) -> Figure:
    """Draw the lambda of the best accuracy against the number of queries, one panel per K_eff.

    The band spans the values of lambda whose accuracy is within one point of the best.

    Parameters
    ----------
    results : iterable of Result
        Of PADDLE, with several values of `lam` for each number of queries.
    path : path, optional

    Examples
    --------
    >>> best_lambda_against_queries([*results_25, *results_75], "best.png")  # doctest: +SKIP
    """
    results = at_least_one(results)
    every_k_eff = distinct(result.k_eff for result in results)
    figure, panels = make_panels(len(every_k_eff), height=2.7)
    shown = display_of("paddle")
    for axes, k_eff in zip(panels, every_k_eff, strict=True):
        own = [result for result in results if result.k_eff == k_eff]
        queries = distinct(result.n_query for result in own)
        groups = [[r for r in own if r.n_query == count] for count in queries]
        near = [nearly_best_lambdas(group) for group in groups]
        axes.fill_between(
            queries,
            [min(values) for values in near],
            [max(values) for values in near],
            color=shown.colour,
            alpha=0.15,
            lw=0,
        )
        end = max(queries)
        axes.plot([0, end], [0, end], color=INK, lw=1.4, ls="--")
        best = [lambda_of(best_of(group)) for group in groups]
        axes.plot(queries, best, color=shown.colour, marker=shown.marker, lw=2.4, ms=7)
        name_panel(axes, f"{K_EFF_BOLD} = {k_eff}", y="best λ")
        axes.set_xlim(0, 1.05 * end)
        axes.set_ylim(bottom=0)
    name_panel(panels[-1], "", "queries |Q|")
    below = f"{settings_line(results)}, {shots_title(results[0].shots)}; band: within "
    below += f"{NEARLY_BEST:g} point of the best accuracy, dashed: λ = |Q|"
    head(figure, "The best λ by the number of queries", below)
    return finish(figure, path)


# --- convergence --------------------------------------------------------------------------------


def criterion_against_time(
    curves: Sequence[Curve], tol: float = 1e-6, path: str | Path | None = None
) -> Figure:
    """Draw the remaining movement of the prototypes against elapsed seconds, on log scales.

    Parameters
    ----------
    curves : sequence of Curve
        Those with more than 200 points have a marker every 100 iterations.
    tol : float
        The target of the criterion, a dashed line.
    path : path, optional

    Examples
    --------
    >>> curve = Curve("paddle", "PADDLE", (1, 2), (1e-3, 2e-3), (0.1, 1e-7), 90.0, 2e-3)
    >>> figure = criterion_against_time([curve])
    """
    figure, (axes,) = make_panels(1, height=4.2)
    seen: set[str] = set()
    for curve in curves:
        points = [p for p in zip(curve.seconds, curve.criterion, strict=True) if min(p) > 0]
        if not points:
            raise ValueError(f"curves must have a criterion above 0, got none for {curve.title!r}")
        shown = display_of(curve.method)
        done = "not reached" if curve.reached is None else duration_text(curve.reached)
        axes.plot(
            *zip(*points, strict=True),
            color=shown.colour,
            marker=shown.marker,
            ms=6.5,
            mec="white",
            mew=0.6,
            lw=1.2 if len(points) > 200 else 2.0,
            ls=(0, (4, 1.5)) if curve.method in seen else "-",  # another implementation
            markevery=100 if len(points) > 200 else 1 + len(points) // 30,
        )
        place = "above left" if curve.reached is None else "above right"
        label_point(axes, *points[-1], f"{curve.title}:\n{done}", shown.colour, place=place)
        seen.add(curve.method)
    axes.axhline(tol, color=PALE, lw=1.2, ls="--", zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], tol / 1e3))
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.15)  # room for the names
    name_panel(axes, "", "elapsed time (s)", "mean shift of a prototype")
    below = f"time until they move by at most {tolerance_text(tol)}; "
    below += "long runs have a marker every 100 iterations"
    head(figure, "Convergence of the prototypes on one task", below)
    return finish(figure, path)
