"""Any batch: accuracy from one class present to all, compared with the nearest class mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .... import check
from .... import methods as registry
from ...data.bank import FeatureBank
from .. import figures as pictures
from .. import paper
from ..arguments import chosen_methods
from ..drawing import distinct, shots_title
from ..evaluate import evaluate_plan
from ..plan import TaskPlan, distinct_integers
from ..results import Evaluation, Result
from ..settings import RunSettings
from ..tables import MISSING, accuracy_text, milliseconds_text, title_of
from .base import EvaluationResult, Table, plan_experiment, save_on_first_rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPERIMENT = "any-batch"
NEAREST = "nearest class mean"  # of unit-norm rows: no method should be worse
# Methods that can be distinguished in one figure, without the slowest.
METHODS = (
    "baseline",
    "simpleshot",
    "bd_cspn",
    "pt_map",
    "laplacian_shot",
    "tim",
    "alpha_tim",
    "paddle",
    "adaptive",
)
COUNTS_PRESENT = (1, 2, 5, 10, 20)  # classes present, in addition to half and all


@dataclass(frozen=True, kw_only=True)
class AnyBatch(EvaluationResult):
    """An evaluation from one class present to all; `NEAREST` is the first of its methods."""

    experiment: str = EXPERIMENT

    @property
    def title(self) -> str:
        return "Any batch: accuracy from one class present to all of them"

    def tables(self) -> list[Table]:
        return [make(*part) for part in self.parts().items() for make in (overview, table)]

    def figures(self) -> dict[str, Figure]:
        found = {}
        for shots, part in self.parts().items():
            stem = EXPERIMENT if shots is None else f"{EXPERIMENT}-{shots}-shot"
            found[stem] = pictures.accuracy_against_k_eff(part, reference=NEAREST)
        return found


def overview(shots: int | None, evaluation: Evaluation) -> Table:
    """The mean over all K_eff, and where a method is worst compared with the nearest class mean."""
    nearest = evaluation.select(NEAREST)
    cells = []
    for method in evaluation.methods:
        own = evaluation.select(method)
        mean = sum(result.accuracy for result in own) / len(own)
        worst = [MISSING, MISSING] if method == NEAREST else worst_cells(own, nearest)
        cells.append([title_of(method), f"{mean:.1f}", *worst, milliseconds_text(own)])
    header = ["method", "mean", "worst against nearest mean", "at K_eff", "ms/task"]
    return Table(f"{shots_title(shots)}, over all K_eff", header, cells)


def worst_cells(own: Sequence[Result], nearest: Sequence[Result]) -> list[str]:
    """The smallest difference from the nearest class mean, and its K_eff."""
    pairs = zip(own, nearest, strict=True)
    value, k_eff = min((a.accuracy - b.accuracy, a.k_eff) for a, b in pairs)
    return [f"{round(value, 1) + 0.0:+.1f}", str(k_eff)]  # + 0.0: no -0.0


def table(shots: int | None, evaluation: Evaluation) -> Table:
    """Accuracies, with K_eff in columns; below them the numbers of queries, if they differ."""
    nearest = evaluation.select(NEAREST)
    cells = [
        [title_of(method), *map(accuracy_text, evaluation.select(method))]
        for method in evaluation.methods
    ]
    if len({result.n_query for result in nearest}) > 1:
        cells.append(["queries", *(str(result.n_query) for result in nearest)])
    header = ["K_eff", *(str(result.k_eff) for result in nearest)]
    return Table(f"{shots_title(shots)}, accuracy", header, cells)


def evaluate_any_batch(
    bank: FeatureBank,
    *,
    methods: str | Sequence[str] = METHODS,
    shots: int | Sequence[int] | None = 5,
    k_eff: int | Sequence[int] | None = None,
    n_tasks: int = 200,
    n_query: int = 75,
    support: str | None = None,
    query: str | None = None,
    options: Mapping[str, Mapping[str, object]] | None = None,
    **run: Any,
) -> AnyBatch:
    """Evaluate methods on any bank, from one class present to all of them.

    Parameters
    ----------
    bank : FeatureBank
        All its classes are candidates.
    methods : {"paper", "all"}, or names
        With their default options, which are not specific to a dataset. The nearest class mean of
        unit-norm rows is always included, as the baseline.
    shots, n_tasks
        As in `evaluate`. Each number of shots has a figure and a table.
    k_eff : int or sequence of int, optional
        Classes that the queries of a task come from. Default: 1, 2, 5, 10, 20, half and all of
        them, as far as available.
    n_query : int
        Queries per task; fewer if the smallest `k_eff` classes have fewer rows left after the
        support.
    support, query : str, optional
        Splits to draw from.
    options : mapping, optional
        From names to options of methods, such as `Tuning.options`.
    **run
        As in `accuracy.reproduce_table`.
    """
    settings = RunSettings(**run)
    tasks = {"n_tasks": n_tasks, "support": support, "query": query, "seed": settings.seed}
    plans = plans_by_queries(bank, shots, k_eff, check.integer("n_query", n_query), tasks)
    chosen = {NEAREST: registry.create("simpleshot", scaling="l2n")}
    chosen |= chosen_methods(methods, None, options, paper.methods("table1"))
    parts = [
        evaluate_plan(bank, chosen, plan, settings.in_subfolder(f"tasks-{count}"))
        for count, plan in sorted(plans.items(), reverse=True)
    ]
    results = [result for part in parts for result in part]
    results.sort(key=lambda result: (result.shots or 0, result.k_eff))  # methods keep their order
    found = AnyBatch(evaluation=replace(parts[0], results=tuple(results)))
    return save_on_first_rank(found, settings)


def plans_by_queries(
    bank: FeatureBank,
    shots: int | Sequence[int] | None,
    k_eff: int | Sequence[int] | None,
    n_query: int,
    tasks: Mapping[str, Any],
) -> dict[int, TaskPlan]:
    """The tasks of all settings, by number of queries: a journal has only one such number."""
    found: dict[int, TaskPlan] = {}
    for count in [None] if shots is None else distinct_integers("shots", shots):
        # The smallest possible tasks: if they cannot be drawn, others cannot either.
        least = plan_experiment(EXPERIMENT, bank, shots=count, k_eff=1, n_query=1, **tasks)
        room = rows_for_queries(least)
        K = least.samplers[0].num_classes
        every_k_eff = default_k_eff(K) if k_eff is None else distinct_integers("k_eff", k_eff)
        for effective in every_k_eff:
            queries = min(n_query, int(room[:effective].sum()))
            plan = plan_experiment(
                EXPERIMENT, bank, shots=count, k_eff=effective, n_query=queries, **tasks
            )
            before = found[queries].samplers if queries in found else ()
            found[queries] = replace(plan, samplers=(*before, *plan.samplers))
    return found


def default_k_eff(K: int) -> list[int]:
    """How many classes are present by default: some fixed counts, half of K, and K.

    Examples
    --------
    >>> default_k_eff(20), default_k_eff(37), default_k_eff(1)
    ([1, 2, 5, 10, 20], [1, 2, 5, 10, 18, 20, 37], [1])
    """
    return distinct(count for count in (*COUNTS_PRESENT, K // 2, K) if 1 <= count <= K)


def rows_for_queries(plan: TaskPlan) -> Tensor:
    """Rows of each class [K] left for the queries, in ascending order."""
    sampler, taken = plan.samplers[0], 0
    rows = torch.ones_like(plan.labels, dtype=torch.bool)
    if plan.query is not None:
        rows.zero_()[plan.query] = True
    elif plan.support is not None:
        rows[plan.support] = False
    else:
        taken = sampler.shots or 0
    labels = plan.labels[rows & (plan.labels >= 0)]
    return (torch.bincount(labels, minlength=sampler.num_classes) - taken).sort().values
