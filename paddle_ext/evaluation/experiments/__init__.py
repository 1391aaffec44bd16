"""The paper's experiments, one module each: a function `run`, and a result that can be saved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..results import contents_of
from . import ablation, convergence, keff, label_cost, lambda_, table1, table2
from .base import FORMAT, ExperimentResult, Table

__all__ = ["EXPERIMENTS", "Experiment", "ExperimentResult", "Table", "load"]


@dataclass(frozen=True)
class Experiment:
    """An experiment that can be run by its name."""

    name: str
    description: str
    run: Callable[..., ExperimentResult]
    result: type[ExperimentResult]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of what `run` takes; ``"bank"`` comes first where it is needed."""
        return tuple(inspect.signature(self.run).parameters)

    @property
    def needs_bank(self) -> bool:
        return "bank" in self.parameters


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table1",
            "all methods at 5, 10 and 20 shots, 5 classes present",
            table1.run,
            table1.Table1,
        ),
        Experiment(
            "table2",
            "i-Nat: one support for all tasks, 5 classes present",
            table2.run,
            table2.Table2,
        ),
        Experiment(
            "ablation",
            "PADDLE without and with the partition complexity",
            ablation.run,
            ablation.Ablation,
        ),
        Experiment(
            "keff", "accuracy against the number of classes present, 2 to 10", keff.run, keff.KEff
        ),
        Experiment(
            "convergence",
            "PADDLE against projected gradient descent on one task: criterion against seconds",
            convergence.run,
            convergence.Convergence,
        ),
        Experiment(
            "lambda",
            "PADDLE's accuracy against lambda, and the best lambda against the number of queries",
            lambda_.run,
            lambda_.Lambda,
        ),
        Experiment(
            "label-cost",
            "the label cost and its relaxation for two classes; needs no bank",
            label_cost.run,
            label_cost.LabelCost,
        ),
    )
}


def load(path: str | Path) -> ExperimentResult:
    """Read a result that was saved, to show or draw it again.

    Parameters
    ----------
    path : path
        The JSON file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = EXPERIMENTS["label-cost"].run(output=folder)
    ...     load(f"{folder}/label-cost.json") == written
    True
    """
    with contents_of(Path(path), "the result of an experiment", FORMAT) as contents:
        return EXPERIMENTS[contents.pop("experiment")].result.from_data(contents)
