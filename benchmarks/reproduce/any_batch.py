"""Any batch: accuracy from one class present to all, compared with the nearest class mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddle_ext import Evaluation, FeatureBank, evaluate
from paddle_ext import methods as registry
from paddle_ext.research.evaluate import distinct_integers
from paddle_ext.research.figures import accuracy_against_k_eff, distinct
from paddle_ext.research.results import Result
from paddle_ext.research.tables import (
    MISSING,
    accuracy_text,
    milliseconds_text,
    shots_title,
    title_of,
)

from . import paper
from .report import (
    MethodOptions,
    Report,
    Table,
    by_shots,
    chosen_methods,
    evaluation_data,
    evaluation_summary,
    rows_for_queries,
)

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


def evaluate_any_batch(
    bank: FeatureBank,
    *,
    output: Path,
    methods: str | Sequence[str] = METHODS,
    shots: int | Sequence[int] | None = 5,
    k_eff: int | Sequence[int] | None = None,
    n_tasks: int = 200,
    n_query: int = 75,
    support: str | None = None,
    query: str | None = None,
    options: MethodOptions | None = None,
    **run: Any,
) -> Report:
    """Evaluate methods with their default options on any bank, from one class present to all.

    The nearest class mean of unit-norm rows is always included. `k_eff` is by default 1, 2, 5, 10,
    20, half and all of the classes. There are fewer queries if the smallest `k_eff` classes have
    fewer rows left after the support. `run` goes to `evaluate`.
    """
    chosen = {NEAREST: registry.create("simpleshot", scaling="l2n")}
    chosen |= chosen_methods(methods, paper.methods("table1"), None, options)
    parts = []
    for count in [None] if shots is None else distinct_integers("shots", shots):
        room = rows_for_queries(bank, count, support, query)
        present = default_k_eff(len(room)) if k_eff is None else distinct_integers("k_eff", k_eff)
        queries = {k: max(1, min(n_query, sum(room[:k]))) for k in present}
        for number in distinct(queries.values())[::-1]:
            part = evaluate(
                bank,
                chosen,
                shots=count,
                k_eff=[k for k in present if queries[k] == number],
                n_tasks=n_tasks,
                n_query=number,
                support=support,
                query=query,
                output=output / f"tasks-{count}-shot-{number}",
                **run,
            )
            parts.append(part)
    results = [result for part in parts for result in part]
    results.sort(key=lambda result: (result.shots or 0, result.k_eff))  # methods keep their order
    evaluation = replace(parts[0], results=tuple(results))
    by_number = by_shots(evaluation)
    return Report(
        "any-batch",
        "Any batch: accuracy from one class present to all of them",
        evaluation_summary(evaluation),
        [make(*part) for part in by_number.items() for make in (overview, accuracies)],
        {
            "any-batch" if number is None else f"any-batch-{number}-shot": accuracy_against_k_eff(
                part, reference=NEAREST
            )
            for number, part in by_number.items()
        },
        evaluation_data(evaluation),
    )


def default_k_eff(K: int) -> list[int]:
    """How many classes are present by default: some fixed counts, half of K, and K."""
    return distinct(count for count in (*COUNTS_PRESENT, K // 2, K) if 1 <= count <= K)


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


def accuracies(shots: int | None, evaluation: Evaluation) -> Table:
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
