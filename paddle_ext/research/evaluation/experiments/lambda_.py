"""PADDLE's only parameter, lambda: its effect on accuracy, and the best value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .... import check, methods
from ....methods.base import DATA_SETS
from ...data.bank import FeatureBank
from .. import figures as pictures
from ..drawing import distinct, settings_line, shots_title
from ..evaluate import evaluate_plan
from ..plan import distinct_integers
from ..results import Evaluation, Result, best_of, lambda_of, nearly_best_lambdas
from ..settings import RunSettings
from ..tables import accuracy_text
from .base import (
    ExperimentResult,
    Table,
    check_data_set,
    features_title,
    plan_experiment,
    save_on_first_rank,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Self

# Values of lambda, as multiples of the number of queries.
FACTORS = tuple(i / 5 for i in range(16))  # 0 to 3
QUERIES = (25, 50, 75, 100, 125, 150, 175, 200)


@dataclass(frozen=True, kw_only=True)
class Lambda(ExperimentResult):
    """An evaluation for each number of queries; its methods are PADDLE with one lambda each."""

    experiment: str = "lambda"
    evaluations: tuple[Evaluation, ...]
    n_query: int  # of the curves against lambda
    left_out: tuple[int, ...]  # numbers of queries that the bank could not serve

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        evaluations = tuple(Evaluation.from_fields(each) for each in data["evaluations"])
        left_out = tuple(data["left_out"])
        return cls(**{**data, "evaluations": evaluations, "left_out": left_out})

    @property
    def title(self) -> str:
        return "The parameter lambda"

    def results(self, n_query: int | None = None) -> list[Result]:
        return [
            result
            for evaluation in self.evaluations
            for result in evaluation
            if n_query is None or result.n_query == n_query
        ]

    def summary(self) -> str:
        results = self.results()
        text = settings_line(results, self.evaluations[0].bank)
        text += f", {shots_title(results[0].shots)}, scaling {results[0].options['scaling']}"
        text += "; ± is half the 95 % confidence interval."
        if self.left_out:
            counts = ", ".join(map(str, self.left_out))
            text += f" The bank has too few rows for these numbers of queries: {counts}."
        return text

    def tables(self) -> list[Table]:
        curves = self.results(self.n_query)
        every_k_eff = distinct(result.k_eff for result in curves)
        header = ["λ", *(f"K_eff {k}" for k in every_k_eff)]
        rows = []
        for value in distinct(map(lambda_of, curves)):
            own = {result.k_eff: result for result in curves if lambda_of(result) == value}
            rows.append([f"{value:g}", *(accuracy_text(own[k]) for k in every_k_eff)])
        first = Table(f"Accuracy against λ, {self.n_query} queries", header, rows)

        header = ["queries", *(f"K_eff {k}" for k in every_k_eff)]
        rows = []
        for count in distinct(result.n_query for result in self.results()):
            cells = [
                best_text([r for r in self.results(count) if r.k_eff == k]) for k in every_k_eff
            ]
            rows.append([str(count), *cells])
        title = "Best λ, the range that loses at most one point, and what λ = |Q| loses"
        return [first, Table(title, header, rows)]

    def figures(self) -> dict[str, Figure]:
        curves = pictures.accuracy_against_lambda(self.results(self.n_query))
        best = pictures.best_lambda_against_queries(self.results())
        return {"lambda": curves, "lambda-best": best}


def best_text(results: list[Result]) -> str:
    """The best lambda of one setting, as a cell; + marks the largest value tried."""
    top, near = best_of(results), nearly_best_lambdas(results)
    end = "+" if lambda_of(top) == max(map(lambda_of, results)) else ""
    theory = [result for result in results if lambda_of(result) == result.n_query]
    loss = f", loses {top.accuracy - theory[0].accuracy:.1f}" if theory else ""
    return f"{lambda_of(top):g}{end} ({min(near):g} to {max(near):g}{loss})"


def evaluate_lambdas(
    bank: FeatureBank,
    *,
    dataset: str | None = "mini",
    backbone: str = "resnet18",
    shots: int = 20,
    k_eff: int | Sequence[int] = (2, 5, 10),
    n_query: int = 75,
    queries: Sequence[int] = QUERIES,
    factors: Sequence[float] = FACTORS,
    scaling: str = "minmax",
    n_tasks: int = 1000,
    **run: Any,
) -> Lambda:
    """Evaluate PADDLE with several values of lambda, for several numbers of queries.

    Parameters
    ----------
    bank : FeatureBank
    k_eff : sequence of int
        One panel of the figures for each.
    n_query : int
        Queries for accuracy against lambda.
    queries : sequence of int
        Numbers of queries for the best lambda. Those for which the bank has too few rows are
        skipped, and the result says so.
    factors : sequence of float
        Values of lambda, divided by the number of queries.
    scaling : {"minmax", "auto", "none"}
        Of the features; the paper's is "minmax".
    dataset, backbone, **run
        As in `accuracy.reproduce_table`; the paper shows these curves only as figures.
    shots, n_tasks
        As in `evaluate`.
    """
    settings = RunSettings(**run)
    check_data_set(dataset, backbone, DATA_SETS)
    check.choice("scaling", scaling, check.SCALING_NAMES)
    factors = [check.real("factors", factor) for factor in factors]
    if len(set(factors)) < 2:
        raise check.ArgumentValueError(
            "factors", f"must have at least two different values, got {factors}"
        )
    check.integer("shots", shots)
    plans, left_out = {}, []
    for count in dict.fromkeys([n_query, *distinct_integers("queries", queries)]):
        try:
            plans[count] = plan_experiment(
                "lambda",
                bank,
                shots=shots,
                k_eff=k_eff,
                n_query=count,
                n_tasks=n_tasks,
                seed=settings.seed,
            )
        except ValueError:
            if count == n_query:
                raise
            left_out.append(count)
    named = replace(settings, name=features_title(settings.name, dataset, backbone))
    evaluations = []
    for count, plan in sorted(plans.items()):
        values = sorted({round(factor * count, 6) for factor in factors})
        grid = {
            f"paddle, λ = {value:g}": methods.create("paddle", lam=value, scaling=scaling)
            for value in values
        }
        evaluations.append(evaluate_plan(bank, grid, plan, named.in_subfolder(f"tasks-{count}")))
    result = Lambda(evaluations=tuple(evaluations), n_query=n_query, left_out=tuple(left_out))
    return save_on_first_rank(result, settings)
