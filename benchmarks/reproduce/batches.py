"""Batches with any number of classes present: `any-batch`, and `stata` with class names.

`any-batch` compares with the nearest class mean. `stata` has StatA's batches: class names and no
labelled row, from one class present to all of them.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    evaluation_report,
)

NEAREST = "nearest class mean"  # of unit-norm rows: no method should be worse
# Methods that can be distinguished in one figure, without the slowest.
ANY_BATCH_METHODS = (
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
    methods: str | Sequence[str] = ANY_BATCH_METHODS,
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
    return evaluation_report(
        "any-batch",
        "Any batch: accuracy from one class present to all of them",
        evaluation,
        [make(*part) for part in by_number.items() for make in (overview, accuracies)],
        {
            "any-batch" if number is None else f"any-batch-{number}-shot": accuracy_against_k_eff(
                part, reference=NEAREST
            )
            for number, part in by_number.items()
        },
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
        pairs = zip(own, nearest, strict=True)
        worst, k_eff = min((a.accuracy - b.accuracy, a.k_eff) for a, b in pairs)
        where = [f"{round(worst, 1) + 0.0:+.1f}", str(k_eff)]  # + 0.0: no -0.0
        where = [MISSING, MISSING] if method == NEAREST else where
        cells.append([title_of(method), f"{mean:.1f}", *where, milliseconds_text(own)])
    header = ["method", "mean", "worst against nearest mean", "at K_eff", "ms/task"]
    return Table(f"{shots_title(shots)}, over all K_eff", header, cells)


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


# --- StatA's batches ------------------------------------------------------------------------------

NAMED_METHODS = ("zero_shot", "em_dirichlet", "transclip", "stata", "adaptive")
# Queries, and the fewest and the most classes present, each number in between equally likely.
SIZES = ((64, 1, 4), (64, 2, 10), (64, 5, 25), (1000, 5, 25), (1000, 25, 50), (1000, 50, 100))


class Batches(NamedTuple):
    """The batches of a column of the table."""

    n_query: int  # limit on queries: if the classes present have fewer rows, these are all used
    present: Counter[int]  # how often each number of classes is present


def batches_of(K: int) -> dict[str, Batches]:
    """The batches that K classes allow, by title; the last one is the whole dataset.

    A bank with fewer classes than `most` has all of them instead, as in the public code.
    """
    batches = {
        f"{n_query}: {fewest}-{most}": Batches(
            n_query, Counter(min(k, K) for k in range(fewest, most + 1))
        )
        for n_query, fewest, most in SIZES
        if fewest <= K
    }
    return batches | {"all rows": Batches(sys.maxsize, Counter([K]))}


def evaluate_stata_batches(
    bank: FeatureBank,
    *,
    output: Path,
    prototypes: Tensor,
    logit_scale: float = 100.0,
    methods: str | Sequence[str] = NAMED_METHODS,
    n_tasks: int = 40,
    options: MethodOptions | None = None,
    **run: Any,
) -> Report:
    """Evaluate methods that know the classes by their names, on the batches of StatA's paper.

    Each number of classes in a range is evaluated on `n_tasks` tasks, the whole bank is one. If the
    smallest classes of that number have fewer rows, there are as many queries as rows.
    `prototypes` [K, D] are the embeddings of the class names by the text tower of the network, and
    `logit_scale` its factor from cosines to logits. `run` goes to `evaluate`.
    """
    room = rows_for_queries(bank, 0)
    cells = {
        (min(batches.n_query, sum(room[:k])), k)
        for batches in batches_of(len(room)).values()
        for k in batches.present
    }
    given = dict(options or {})
    scaled = {name: {"logit_scale": logit_scale, **given.get(name, {})} for name in NAMED_METHODS}
    chosen = chosen_methods(methods, NAMED_METHODS, None, given | scaled, named=True)
    parts = [
        evaluate(
            bank,
            chosen,
            shots=0,
            prototypes=prototypes,
            k_eff=sorted(k for count, k in cells if count == queries),
            n_query=queries,
            n_tasks=1 if queries == sum(room) else n_tasks,
            output=output / f"tasks-{queries}",
            **run,
        )
        for queries in sorted({queries for queries, _ in cells})
    ]
    evaluation = replace(parts[0], results=tuple(result for part in parts for result in part))
    columns = batches_of(len(room))
    present: dict[int, Counter[int]] = {}
    for batches in list(columns.values())[:-1]:
        present.setdefault(batches.n_query, Counter()).update(batches.present)
    drawn = {}
    for n_query, counts in present.items():
        results = [
            result
            for method in evaluation.methods
            for result, _ in selected(evaluation, method, Batches(n_query, counts))
        ]
        part = replace(evaluation, results=tuple(results))
        drawn[f"stata-{n_query}"] = accuracy_against_k_eff(part, reference="zero_shot")
    title = "StatA's batches: class names, and no labelled row"
    tables = stata_tables(evaluation, columns)
    return evaluation_report("stata", title, evaluation, tables, drawn)


def selected(evaluation: Evaluation, method: str, batches: Batches) -> list[tuple[Result, int]]:
    """The results of a method for these batches, and how often each counts."""
    own = [r for r in evaluation.select(method) if r.n_query <= batches.n_query]
    return [
        (max((r for r in own if r.k_eff == k), key=lambda r: r.n_query), count)
        for k, count in sorted(batches.present.items())
    ]


def stata_tables(evaluation: Evaluation, columns: dict[str, Batches]) -> list[Table]:
    header = ["method", *columns]
    ours = []
    for method in evaluation.methods:
        means = [mean_text(selected(evaluation, method, one)) for one in columns.values()]
        ours.append([title_of(method), *means, milliseconds_text(evaluation.select(method))])
    theirs = []
    for method, row in paper.NUMBERS["stata"].items():
        by_title = dict(zip(batches_of(sys.maxsize), row, strict=True))
        theirs.append([title_of(method), *(f"{by_title[title]:.1f}" for title in columns)])
    return [
        Table("Accuracy, by queries and classes present", [*header, "ms/batch"], ours),
        Table("Published: mean of 11 other data sets, CLIP ViT-B/16", header, theirs),
    ]


def mean_text(results: Sequence[tuple[Result, int]]) -> str:
    """The mean accuracy of results, weighted by their counts, ± half its 95 % confidence interval.

    The whole bank is a single task and adds nothing to the interval.
    """
    total = sum(count for _, count in results)
    mean = sum(result.accuracy * count for result, count in results) / total
    halves = [result.interval * count for result, count in results if result.n_tasks > 1]
    return f"{mean:.1f} ± {math.hypot(*halves) / total:.1f}" if halves else f"{mean:.1f}"


def rows_for_queries(
    bank: FeatureBank, shots: int | None, support: str | None = None, query: str | None = None
) -> list[int]:
    """Rows of each class left for the queries, in ascending order."""
    rows = bank.labels.cpu() >= 0
    there = bank.labels.cpu()[rows].unique()
    if query is not None:
        rows &= torch.isin(torch.arange(len(bank)), bank.rows(query))
    elif support is not None:
        rows &= ~torch.isin(torch.arange(len(bank)), bank.rows(support))
    taken = 0 if support or query else shots or 0
    counts = torch.bincount(bank.labels.cpu()[rows], minlength=bank.num_classes)[there]
    return sorted((counts - taken).tolist())
