"""StatA's batches: class names and no labelled row, from one class present to all of them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from paddle_ext import Evaluation, FeatureBank, evaluate
from paddle_ext.research.figures import accuracy_against_k_eff
from paddle_ext.research.results import Result
from paddle_ext.research.tables import milliseconds_text, title_of

from . import paper
from .report import (
    MethodOptions,
    Report,
    Table,
    chosen_methods,
    evaluation_data,
    evaluation_summary,
    rows_for_queries,
)

METHODS = ("zero_shot", "em_dirichlet", "transclip", "stata", "adaptive")
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
    methods: str | Sequence[str] = METHODS,
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
    scaled = {name: {"logit_scale": logit_scale, **given.get(name, {})} for name in METHODS}
    chosen = chosen_methods(methods, METHODS, None, given | scaled, named=True)
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
    return Report(
        "stata",
        "StatA's batches: class names, and no labelled row",
        evaluation_summary(evaluation),
        tables(evaluation, columns),
        drawn,
        evaluation_data(evaluation),
    )


def selected(evaluation: Evaluation, method: str, batches: Batches) -> list[tuple[Result, int]]:
    """The results of a method for these batches, and how often each counts."""
    own = [r for r in evaluation.select(method) if r.n_query <= batches.n_query]
    return [
        (max((r for r in own if r.k_eff == k), key=lambda r: r.n_query), count)
        for k, count in sorted(batches.present.items())
    ]


def tables(evaluation: Evaluation, columns: dict[str, Batches]) -> list[Table]:
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
