"""The rules that the panel compares, by name.

A rule need not make sense everywhere: there is no sum over groups without groups. So an entry is a
function that gets a cell, and returns the rule to use there, or None.
"""

from __future__ import annotations

from collections.abc import Callable

import adaptive_torch
import torch
from torch import Tensor

import paddle_ext

from . import gaussian
from .baselines import (
    BASELINES,
    adapted,
    device_of_paddle_ext,
    logistic_regression,
    summed_over_groups,
    tabpfn_v1,
)
from .protocols import Cell
from .tasks import Rule, Tasks

RuleOfCell = Callable[[Cell], Rule | None]

ADAPTIVE = "adaptive"
TORCH = "torch"  # the same rule in batched torch: a change of the rule begins there
REGRESSION = "logistic regression"
REGRESSION_ADAPTED = "regression, adapted"
REGRESSION_SUMMED = "regression, summed"
NEAREST_MEAN = "nearest mean"
ALPHA_TIM = "alpha-TIM"
GIBBS = "Gibbs sampler"
TABPFN = "TabPFN v1"


def one_batch(name: str) -> str:
    """The version of a rule that takes all groups as one batch."""
    return f"{name}, one batch"


def each_alone(name: str) -> str:
    """The version of a rule for which every group is a batch of its own."""
    return f"{name}, each alone"


# --- where a rule applies -------------------------------------------------------------------------


def everywhere(rule: Rule) -> RuleOfCell:
    return lambda _: rule


def with_groups(rule: Rule) -> RuleOfCell:
    """Only for cells whose queries have groups."""

    def of_cell(cell: Cell) -> Rule | None:
        grouped = all(tasks.query_groups is not None for tasks in cell.batches)
        return rule if grouped else None

    return of_cell


def tabpfn_of(cell: Cell) -> Rule | None:
    """Only for tables, of no more classes and features than TabPFN v1 can take."""
    tasks = cell.batches[0]
    fits = tasks.num_classes <= 10 and tasks.support.shape[-1] <= 100
    return tabpfn_v1() if cell.protocol == "tables" and fits else None


# --- the rule in torch ----------------------------------------------------------------------------


def in_torch(tasks: Tasks) -> Tensor:
    return adaptive_torch.classify(tasks)


def in_torch_one_batch(tasks: Tasks) -> Tensor:
    return adaptive_torch.classify(tasks, groups="ignored")


def in_torch_each_alone(tasks: Tasks) -> Tensor:
    return adaptive_torch.classify(tasks, groups="alone")


# --- the rule of the package ----------------------------------------------------------------------


def adaptive(tasks: Tasks) -> Tensor:
    """`paddle_ext.adaptive` as a user would call it: with groups and class names if there are any.

    Both are for one task at a time.
    """
    if tasks.names is not None:
        return task_by_task(adaptive_with_names, tasks)
    if tasks.query_groups is not None:
        return task_by_task(adaptive_with_groups, tasks)
    return adaptive_one_batch(tasks)


def adaptive_one_batch(tasks: Tasks) -> Tensor:
    """All queries of a task as one batch."""
    local = tasks.to(device_of_paddle_ext(tasks.support.device))
    solution = paddle_ext.adaptive(
        local.support,
        local.labels,
        local.query,
        num_classes=local.num_classes,
        return_assignments=True,
    )
    return solution.probabilities.to(tasks.support.device)


def adaptive_each_alone(tasks: Tasks) -> Tensor:
    """Every group of queries as a task of its own."""
    return task_by_task(lambda task: adaptive_with_groups(task, share=False), tasks)


def adaptive_with_groups(task: Tasks, *, share: bool = True) -> Tensor:
    """Probabilities [1, Q, K] of a single task."""
    local = task.to(device_of_paddle_ext(task.support.device))
    assert local.query_groups is not None
    solution = paddle_ext.adaptive(
        local.support[0],
        local.labels[0],
        local.query[0],
        num_classes=local.num_classes,
        groups=local.query_groups[0],
        share=share,
        support_groups=None if task.support_groups is None else task.support_groups[0],
        return_assignments=True,
    )
    return solution.probabilities.to(task.support.device)[None]


def adaptive_with_names(task: Tasks) -> Tensor:
    """Probabilities [1, Q, K] of a single task."""
    local = task.to(device_of_paddle_ext(task.support.device))
    assert local.names is not None
    prediction = paddle_ext.methods.create("adaptive").predict(
        local.support[0],
        local.labels[0],
        local.query[0],
        num_classes=local.num_classes,
        prototypes=local.names[0],
    )
    return prediction.probabilities.to(task.support.device)[None]


def task_by_task(rule: Rule, tasks: Tasks) -> Tensor:
    return torch.cat([rule(tasks.part(number, number + 1)) for number in range(len(tasks))])


# --- regression, and what is made of it -----------------------------------------------------------


class Regression:
    """Logistic regression, and two rules that begin with its probabilities.

    It keeps those of the last batch, so that they are computed once for the three rules. Their
    seconds count it for the first of them only.
    """

    def __init__(self) -> None:
        self.tasks: Tasks | None = None
        self.probabilities: Tensor | None = None

    def plain(self, tasks: Tasks) -> Tensor:
        """Rows are unit-norm, except those of tables, whose columns are standardised already."""
        if self.tasks is not tasks or self.probabilities is None:
            self.probabilities = logistic_regression(tasks, unit_rows=not tasks.table)
            self.tasks = tasks
        return self.probabilities

    def adapted(self, tasks: Tasks) -> Tensor:
        """Adapted to the class proportions of the batch, or of each group."""
        return adapted(self.plain(tasks), tasks.query_groups)

    def summed(self, tasks: Tasks) -> Tensor:
        """One class for each group."""
        assert tasks.query_groups is not None
        return summed_over_groups(self.plain(tasks), tasks.query_groups)


# --- all of them ----------------------------------------------------------------------------------

REGRESSIONS = Regression()

RULES: dict[str, RuleOfCell] = {
    ADAPTIVE: everywhere(adaptive),
    one_batch(ADAPTIVE): with_groups(adaptive_one_batch),
    each_alone(ADAPTIVE): with_groups(adaptive_each_alone),
    TORCH: everywhere(in_torch),
    one_batch(TORCH): with_groups(in_torch_one_batch),
    each_alone(TORCH): with_groups(in_torch_each_alone),
    **{name: everywhere(rule) for name, rule in BASELINES.items()},
    REGRESSION: everywhere(REGRESSIONS.plain),
    REGRESSION_ADAPTED: everywhere(REGRESSIONS.adapted),
    REGRESSION_SUMMED: with_groups(REGRESSIONS.summed),
    GIBBS: gaussian.sampler_of,
    TABPFN: tabpfn_of,
}

# It needs a package that pip cannot install: see baselines.py.
NOT_BY_DEFAULT = (TABPFN,)
