"""StatA's batches: class names and no labelled row, from one class present to all of them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ...data.bank import FeatureBank
from .. import figures as pictures
from .. import paper
from ..arguments import chosen_methods
from ..evaluate import evaluate_plan
from ..results import Result
from ..settings import RunSettings
from ..tables import milliseconds_text, title_of
from .any_batch import rows_for_queries
from .base import EvaluationResult, Table, plan_experiment, save_on_first_rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPERIMENT = "stata"
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

    Examples
    --------
    >>> list(batches_of(19))
    ['64: 1-4', '64: 2-10', '64: 5-25', '1000: 5-25', 'all rows']
    >>> batches_of(7)["64: 5-25"].present
    Counter({7: 19, 5: 1, 6: 1})
    """
    found = {
        f"{n_query}: {fewest}-{most}": Batches(
            n_query, Counter(min(k, K) for k in range(fewest, most + 1))
        )
        for n_query, fewest, most in SIZES
        if fewest <= K
    }
    return found | {"all rows": Batches(sys.maxsize, Counter([K]))}


@dataclass(frozen=True, kw_only=True)
class StatABatches(EvaluationResult):
    """An evaluation of each number of classes present, shown as means over ranges of them."""

    experiment: str = EXPERIMENT

    @property
    def title(self) -> str:
        return "StatA's batches: class names, and no labelled row"

    @property
    def columns(self) -> dict[str, Batches]:
        return batches_of(self.evaluation.results[0].num_classes)

    def select(self, method: str, batches: Batches) -> list[tuple[Result, int]]:
        """The results of a method for these batches, and how often each counts."""
        own = [r for r in self.evaluation.select(method) if r.n_query <= batches.n_query]
        return [
            (max((r for r in own if r.k_eff == k), key=lambda r: r.n_query), count)
            for k, count in sorted(batches.present.items())
        ]

    def tables(self) -> list[Table]:
        header = ["method", *self.columns]
        ours = [
            [
                title_of(method),
                *(mean_text(self.select(method, one)) for one in self.columns.values()),
                milliseconds_text(self.evaluation.select(method)),
            ]
            for method in self.evaluation.methods
        ]
        theirs = [
            [title_of(method), *(f"{row[column]:.1f}" for column in self.columns)]
            for method, row in published().items()
        ]
        return [
            Table("Accuracy, by queries and classes present", [*header, "ms/batch"], ours),
            Table("Published: mean of 11 other data sets, CLIP ViT-B/16", header, theirs),
        ]

    def figures(self) -> dict[str, Figure]:
        """Accuracy against the number of classes present, for each number of queries."""
        present: dict[int, Counter[int]] = {}
        for batches in list(self.columns.values())[:-1]:
            present.setdefault(batches.n_query, Counter()).update(batches.present)
        found = {}
        for n_query, counts in present.items():
            results = tuple(
                result
                for method in self.evaluation.methods
                for result, _ in self.select(method, Batches(n_query, counts))
            )
            part = replace(self.evaluation, results=results)
            found[f"{EXPERIMENT}-{n_query}"] = pictures.accuracy_against_k_eff(
                part, reference="zero_shot"
            )
        return found


def published() -> dict[str, dict[str, float]]:
    """The accuracies of the paper, by method and title of the batches."""
    titles = batches_of(sys.maxsize)
    return {name: dict(zip(titles, row, strict=True)) for name, row in paper.stata().items()}


def mean_text(results: Sequence[tuple[Result, int]]) -> str:
    """The mean accuracy of results, weighted by their counts, ± half its 95 % confidence interval.

    The whole bank is a single task and adds nothing to the interval.
    """
    total = sum(count for _, count in results)
    mean = sum(result.accuracy * count for result, count in results) / total
    halves = [result.interval * count for result, count in results if result.n_tasks > 1]
    return f"{mean:.1f} ± {math.hypot(*halves) / total:.1f}" if halves else f"{mean:.1f}"


def evaluate_stata_batches(
    bank: FeatureBank,
    *,
    prototypes: Tensor,
    logit_scale: float = 100.0,
    methods: str | Sequence[str] = METHODS,
    n_tasks: int = 40,
    options: Mapping[str, Mapping[str, object]] | None = None,
    **run: Any,
) -> StatABatches:
    """Evaluate methods that know the classes by their names, on the batches of StatA's paper.

    Batches have 64 queries of 1 to 4, 2 to 10 and 5 to 25 classes, 1000 queries of 5 to 25, 25 to
    50 and 50 to 100 classes, and all rows of the bank. Each number of classes in a range is
    evaluated on equally many tasks. If the smallest classes of that number have fewer rows, there
    are as many queries as rows.

    Parameters
    ----------
    bank : FeatureBank
        All its classes that have rows are candidates.
    prototypes : Tensor [K, D]
        The embedding of each class name, by the text tower of the network.
    logit_scale : float
        Of the methods: the factor from cosines to logits.
    methods : {"paper", "all"}, or names
        "paper" and the default are those that the paper compares, and `adaptive`.
    n_tasks : int
        Tasks for each number of classes present; the whole bank is one task.
    options : mapping, optional
        From names to options of methods.
    **run
        As in `accuracy.reproduce_table`.
    """
    settings = RunSettings(**run)
    tasks: dict[str, Any] = {"shots": 0, "prototypes": prototypes, "seed": settings.seed}
    least = plan_experiment(EXPERIMENT, bank, k_eff=1, n_query=1, n_tasks=n_tasks, **tasks)
    room = rows_for_queries(least).cumsum(0).tolist()  # of the smallest 1, 2, ... classes
    cells = {
        (min(batches.n_query, room[k - 1]), k)
        for batches in batches_of(len(room)).values()
        for k in batches.present
    }
    given = dict(options or {})
    scaled = {name: {"logit_scale": logit_scale, **given.get(name, {})} for name in METHODS}
    chosen = chosen_methods(methods, None, given | scaled, METHODS, named=True)
    parts = []
    for queries in sorted({queries for queries, _ in cells}):
        plan = plan_experiment(
            EXPERIMENT,
            bank,
            k_eff=sorted(k for count, k in cells if count == queries),
            n_query=queries,
            n_tasks=1 if queries == room[-1] else n_tasks,
            **tasks,
        )
        folder = settings.in_subfolder(f"tasks-{queries}")
        parts.append(evaluate_plan(bank, chosen, plan, folder))
    results = tuple(result for part in parts for result in part)
    return save_on_first_rank(StatABatches(evaluation=replace(parts[0], results=results)), settings)
