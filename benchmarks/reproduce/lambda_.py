"""PADDLE's only parameter, lambda: its effect on accuracy, and the best value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle_ext import FeatureBank, check, evaluate, methods
from paddle_ext.research.evaluate import distinct_integers
from paddle_ext.research.figures import distinct, draw_line, interval
from paddle_ext.research.results import Result
from paddle_ext.research.style import INK, head, make_panels, name_panel
from paddle_ext.research.tables import accuracy_text, display_of, settings_line, shots_title

from .report import Report, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = tuple(i / 5 for i in range(16))  # lambda as multiples of the number of queries
QUERIES = (25, 50, 75, 100, 125, 150, 175, 200)
NEARLY_BEST = 1.0  # points of accuracy below the best
K_EFF = r"$\mathbf{K_{eff}}$"


def evaluate_lambdas(
    bank: FeatureBank,
    *,
    output: Path,
    shots: int = 20,
    k_eff: int | Sequence[int] = (2, 5, 10),
    n_query: int = 75,
    queries: Sequence[int] = QUERIES,
    factors: Sequence[float] = FACTORS,
    scaling: str = "minmax",
    n_tasks: int = 1000,
    **run: Any,
) -> Report:
    """Evaluate PADDLE with several values of lambda, for several numbers of queries.

    `n_query` queries are for accuracy against lambda, `queries` for the best lambda; those for
    which the bank has too few rows are left out, and the summary says so. `factors` are the values
    of lambda, divided by the number of queries. `run` goes to `evaluate`.
    """
    evaluations, left_out = {}, []
    for count in dict.fromkeys([n_query, *distinct_integers("queries", queries)]):
        values = sorted({round(factor * count, 6) for factor in factors})
        grid = {
            f"paddle, λ = {value:g}": methods.create("paddle", lam=value, scaling=scaling)
            for value in values
        }
        tasks = {"shots": shots, "k_eff": k_eff, "n_query": count, "n_tasks": n_tasks}
        try:
            evaluations[count] = evaluate(
                bank, grid, **tasks, output=output / f"tasks-{count}", **run
            )
        except check.ArgumentValueError as error:
            if count == n_query or error.argument != "n_query":
                raise
            left_out.append(count)
    ordered = [evaluations[count] for count in sorted(evaluations)]
    results = [result for evaluation in ordered for result in evaluation]
    summary = f"{settings_line(results, ordered[0].bank)}, {shots_title(shots)}, scaling {scaling}"
    summary += "; ± is half the 95 % confidence interval."
    if left_out:
        counts = ", ".join(map(str, left_out))
        summary += f" The bank has too few rows for these numbers of queries: {counts}."
    curves = list(evaluations[n_query])
    return Report(
        "lambda",
        "The parameter lambda",
        summary,
        [accuracy_table(curves), best_table(results)],
        {
            "lambda": accuracy_against_lambda(curves),
            "lambda-best": best_lambda_against_queries(results),
        },
        {"evaluations": [evaluation.as_fields() for evaluation in ordered]},
    )


def lambda_of(result: Result) -> float:
    value = result.options["lam"]
    assert isinstance(value, int | float)
    return float(value)


def best_of(results: Sequence[Result]) -> Result:
    """The most accurate result; of equals, the one with lambda nearest the number of queries."""
    return max(results, key=lambda r: (r.accuracy, -abs(lambda_of(r) - r.n_query)))


def nearly_best_lambdas(results: Sequence[Result]) -> list[float]:
    """Values of lambda that lose at most `NEARLY_BEST` points against the best."""
    least = best_of(results).accuracy - NEARLY_BEST
    return [lambda_of(result) for result in results if result.accuracy >= least]


def accuracy_table(curves: Sequence[Result]) -> Table:
    every_k_eff = distinct(result.k_eff for result in curves)
    rows = []
    for value in distinct(map(lambda_of, curves)):
        own = {result.k_eff: result for result in curves if lambda_of(result) == value}
        rows.append([f"{value:g}", *(accuracy_text(own[k]) for k in every_k_eff)])
    header = ["λ", *(f"K_eff {k}" for k in every_k_eff)]
    return Table(f"Accuracy against λ, {curves[0].n_query} queries", header, rows)


def best_table(results: Sequence[Result]) -> Table:
    every_k_eff = distinct(result.k_eff for result in results)
    rows = []
    for count in distinct(result.n_query for result in results):
        of_count = [result for result in results if result.n_query == count]
        cells = [best_text([r for r in of_count if r.k_eff == k]) for k in every_k_eff]
        rows.append([str(count), *cells])
    title = "Best λ, the range that loses at most one point, and what λ = |Q| loses"
    return Table(title, ["queries", *(f"K_eff {k}" for k in every_k_eff)], rows)


def best_text(results: Sequence[Result]) -> str:
    """The best lambda of one setting, as a cell; + marks the largest value tried."""
    top, near = best_of(results), nearly_best_lambdas(results)
    end = "+" if lambda_of(top) == max(map(lambda_of, results)) else ""
    theory = [result for result in results if lambda_of(result) == result.n_query]
    loss = f", loses {top.accuracy - theory[0].accuracy:.1f}" if theory else ""
    return f"{lambda_of(top):g}{end} ({min(near):g} to {max(near):g}{loss})"


def accuracy_against_lambda(results: Sequence[Result]) -> Figure:
    """One panel per K_eff; dotted at the best lambda, dashed at the number of queries."""
    every_k_eff = distinct(result.k_eff for result in results)
    figure, panels = make_panels(len(every_k_eff), height=2.7, share=False)
    for axes, k_eff in zip(panels, every_k_eff, strict=True):
        own = [result for result in results if result.k_eff == k_eff]
        best = lambda_of(best_of(own))
        draw_line(axes, "paddle", sorted((lambda_of(r), r.accuracy, interval(r)) for r in own))
        axes.axvline(results[0].n_query, color=INK, lw=1.4, ls="--", zorder=1)
        axes.axvline(best, color=display_of("alpha_tim").colour, lw=2.2, ls=":", zorder=1)
        name_panel(axes, f"{K_EFF} = {k_eff}: best at {best:g}", y="accuracy (%)")
    name_panel(panels[-1], "", "λ")
    below = f"{settings_line(list(results))}, {shots_title(results[0].shots)}; "
    head(figure, "PADDLE's accuracy against λ", f"{below}dashed: λ = |Q|, dotted: the best λ")
    return figure


def best_lambda_against_queries(results: Sequence[Result]) -> Figure:
    """One panel per K_eff; the band has the values whose accuracy is within a point of the best."""
    every_k_eff = distinct(result.k_eff for result in results)
    figure, panels = make_panels(len(every_k_eff), height=2.7)
    shown = display_of("paddle")
    for axes, k_eff in zip(panels, every_k_eff, strict=True):
        own = [result for result in results if result.k_eff == k_eff]
        queries = distinct(result.n_query for result in own)
        groups = [[r for r in own if r.n_query == count] for count in queries]
        near = [nearly_best_lambdas(group) for group in groups]
        low, high = [min(values) for values in near], [max(values) for values in near]
        axes.fill_between(queries, low, high, color=shown.colour, alpha=0.15, lw=0)
        end = max(queries)
        axes.plot([0, end], [0, end], color=INK, lw=1.4, ls="--")
        best = [lambda_of(best_of(group)) for group in groups]
        axes.plot(queries, best, color=shown.colour, marker=shown.marker, lw=2.4, ms=7)
        name_panel(axes, f"{K_EFF} = {k_eff}", y="best λ")
        axes.set_xlim(0, 1.05 * end)
        axes.set_ylim(bottom=0)
    name_panel(panels[-1], "", "queries |Q|")
    below = f"{settings_line(list(results))}, {shots_title(results[0].shots)}; band: within "
    below += f"{NEARLY_BEST:g} point of the best accuracy, dashed: λ = |Q|"
    head(figure, "The best λ by the number of queries", below)
    return figure
