"""The experiments by name; `run` of each returns a result that can be saved."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import paper
from ..results import contents_of
from ..settings import RunSettings
from . import accuracy, any_batch, convergence, lambda_, stata
from .base import ExperimentResult, Table

__all__ = ["EXPERIMENTS", "Experiment", "ExperimentResult", "Table", "load"]


@dataclass(frozen=True)
class Experiment:
    """An experiment that can be run by name; the function of its module documents the arguments."""

    name: str
    description: str
    run: Callable[..., ExperimentResult]
    result: type[ExperimentResult]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments of `run`, including those of `RunSettings`."""
        own = inspect.signature(self.run).parameters.values()
        named = [each.name for each in own if each.kind is not each.VAR_KEYWORD]
        return (*named, *(field.name for field in dataclasses.fields(RunSettings)))


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table1",
            "all methods at 5, 10 and 20 shots, 5 classes present",
            partial(accuracy.reproduce_table, "table1"),
            accuracy.AccuracyTable,
        ),
        Experiment(
            "table2",
            "i-Nat: one support for all tasks, 5 classes present",
            partial(
                accuracy.reproduce_table,
                "table2",
                dataset="inat",
                shots=None,
                support="repr",
                query="query",
            ),
            accuracy.AccuracyTable,
        ),
        Experiment(
            "ablation",
            "PADDLE without and with the partition complexity",
            partial(accuracy.reproduce_table, "ablation"),
            accuracy.AccuracyTable,
        ),
        Experiment(
            "keff",
            "accuracy against the number of classes present, 2 to 10",
            partial(accuracy.reproduce_table, "keff", k_eff=paper.K_EFFS, n_tasks=1000),
            accuracy.AccuracyCurves,
        ),
        Experiment(
            "dirichlet",
            "5 or more ways, all present in proportions from Dirichlet(2), 1 to 20 shots",
            partial(
                accuracy.reproduce_table,
                "dirichlet",
                methods=("simpleshot", *paper.methods("table1"), "adaptive"),
                shots=paper.DIRICHLET_SHOTS,
                num_classes=5,
                k_eff=None,
                sampling="dirichlet",
                alpha=2.0,
            ),
            accuracy.AccuracyTable,
        ),
        Experiment(
            "stata",
            "class names, no labelled row: batches of 1 to 4 classes to whole datasets",
            stata.evaluate_stata_batches,
            stata.StatABatches,
        ),
        Experiment(
            "any-batch",
            "accuracy from one class present to all, compared with the nearest class mean",
            any_batch.evaluate_any_batch,
            any_batch.AnyBatch,
        ),
        Experiment(
            "convergence",
            "PADDLE against projected gradient descent on one task: criterion against seconds",
            convergence.measure_convergence,
            convergence.Convergence,
        ),
        Experiment(
            "lambda",
            "PADDLE's accuracy against lambda, and the best lambda against the number of queries",
            lambda_.evaluate_lambdas,
            lambda_.Lambda,
        ),
    )
}


def load(path: str | Path) -> ExperimentResult:
    """Read a saved result, to show or draw it again.

    Parameters
    ----------
    path : path
        The JSON file.

    Examples
    --------
    >>> print(load("results/table1/table1.json").markdown())  # doctest: +SKIP
    """
    with contents_of(Path(path), "the result of an experiment") as contents:
        return EXPERIMENTS[contents["experiment"]].result.from_data(contents)
