"""Fit to a batch or to labelled rows alone, and keep what classifies further rows.

What is kept lies on the CPU, so that any machine can load it. Further rows are classified one by
one, in parts, so any number of them fits in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.classify import classify
from ..adaptive_rule.correction import INVERSE_REGULARISATION, corrected_likelihood
from ..adaptive_rule.groups import ties_of
from ..adaptive_rule.likelihood import Likelihood
from ..adaptive_rule.names import RowLogits, row_logits
from ..adaptive_rule.solve import solve_tasks
from ..groups import Groups
from ..native import devices
from ..native.graphs import with_tensors
from ..prior import measures_of
from ..rows import class_sums, directions, parts, power_of_two, unit_rows
from ..solution import Solution, most_probable, returns_all
from ..task import Task, without_batch
from .columns import Array, Columns, columns_for

Kept = TypeVar("Kept")

TOGETHER = ("groups", "share", "same")  # the options of rows that belong together
LARGEST_OF_ROW = 5  # probabilities kept of a row, if all would be too many


def chosen_device(device: str | torch.device) -> torch.device:
    """The device that "auto" means in this process, or the device itself."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if devices.usable_gpu() else "cpu")
    return check.device(device)


def array(x: Tensor) -> Array:
    result: Array = x.detach().cpu().numpy()
    return result


def to_tensor(x: Array, device: torch.device) -> Tensor:
    # torch warns about read-only arrays, such as those memory-mapped by joblib
    return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(device)


def moved(kept: Kept, device: torch.device | str) -> Kept:
    """A dataclass with its tensors on a device."""
    return cast(Kept, with_tensors(kept, lambda x: x.to(device)))


@dataclass(frozen=True)
class Examples:
    """What is known about the classes: labelled rows, and embeddings of names."""

    support: Tensor  # [S, D]
    labels: Tensor  # [S] int64
    num_classes: int
    weights: Tensor | None = None  # [S] > 0: of the labelled rows
    trusted: Tensor | None = None  # [S] bool: the label is right
    names: Tensor | None = None  # [K, D] embeddings of the class names
    inverse_regularisation: float = INVERSE_REGULARISATION  # of the correction for many labels

    def task(self, query: Tensor, measures: Tensor | None = None) -> Task:
        assert self.names is not None
        rows = self.support[None], self.labels[None], query[None]
        return Task(*rows, self.num_classes, prototypes=self.names[None], measures=measures)


# --- further rows -------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedAdaptive:
    """The likelihood of the labelled rows, and the mean log proportions of the unlabelled ones."""

    likelihood: Likelihood
    dual: Tensor  # [K] float64: mean log proportions

    def to(self, device: torch.device | str) -> FittedAdaptive:
        there = self.likelihood.to(device)
        vars(there)["weights"] = self.likelihood.weights.to(device)  # so that they are made once
        return FittedAdaptive(there, self.dual.double().to(device))

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        here = self.to(rows.device)
        likelihood = here.likelihood
        for part in parts(len(rows), sum(likelihood.weights.shape)):
            # Unit-norm first: float64 values may be too large for the dtype of the fit.
            logits = likelihood.logits(unit_rows(rows[part].double()))
            yield (logits.double() + here.dual) * likelihood.temper

    def solve(self, query: Tensor, options: dict[str, Any]) -> Solution:
        likelihood = self.to(query.device).likelihood
        return solve_batch(likelihood, directions(query, likelihood.weights.dtype), options)


@dataclass(frozen=True)
class FittedNames:
    """The examples, and the logits of one more row by names, labelled rows and the batch."""

    examples: Examples
    row_logits: RowLogits | None = None  # None before any batch

    def to(self, device: torch.device | str) -> FittedNames:
        row_logits = None if self.row_logits is None else moved(self.row_logits, device)
        return FittedNames(moved(self.examples, device), row_logits)

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        assert self.row_logits is not None
        row_logits = moved(self.row_logits, rows.device)
        for part in parts(len(rows), sum(row_logits.weights.shape)):
            yield row_logits(unit_rows(rows[part].double())).double()

    def solve(self, query: Tensor, options: dict[str, Any]) -> Solution:
        examples = moved(self.examples, query.device)
        return solve_names(examples, directions(query, examples.support.dtype), options)


# `logits` of further rows, part by part, and `solve` for another batch [n, D].
Fitted: TypeAlias = FittedAdaptive | FittedNames


# --- fitting ------------------------------------------------------------------------------------


class Fit(NamedTuple):
    fitted: Fitted
    prototypes: Tensor  # [K, D]
    proportions: Tensor  # [K]
    solution: Solution | None  # of the unlabelled rows, with groups of all of them
    by_group: Solution | None = None  # the same of each group
    prior: Tensor | None = None  # [K] shares that further rows are expected in, if not these


def in_columns(
    examples: Examples, query: Tensor | None, *, rows: str = "auto", made_of: Tensor | None = None
) -> tuple[Columns, Examples, Tensor | None]:
    """Prepare columns, with the options of `columns_for`; rows that have names are embeddings.

    The labelled rows alone decide whether rows are a table, so that the same ones always decide
    alike: the unlabelled rows of one batch are not there in another. In a table they still help to
    say how much each column varies.
    """
    if examples.names is not None:
        return Columns(), examples, query
    labelled = examples.support, examples.labels, examples.num_classes
    columns = columns_for(*labelled, rows=rows, made_of=made_of)
    if query is not None and columns.rows == "table":
        columns = columns_for(*labelled, query, rows="table", made_of=made_of)
    examples = replace(
        examples,
        support=columns.applied_to(examples.support),
        inverse_regularisation=columns.inverse_regularisation,
    )
    return columns, examples, None if query is None else columns.applied_to(query)


def fit_batch(examples: Examples, query: Tensor, options: dict[str, Any]) -> Fit:
    if examples.names is None:
        likelihood = learned(examples, options)
        found = solve_batch(likelihood, query, options)
        solution = found.over_all()
        fitted: Fitted = FittedAdaptive(likelihood, solution.dual)
    else:
        found = solve_names(examples, query, options)
        solution = found.over_all()
        logits = row_logits(examples.task(query), solution, **of_names(options))
        fitted = FittedNames(examples, logits)
    by_group = None if found.groups is None else found
    prototypes = means_of(examples, query, solution)
    return Fit(fitted.to("cpu"), prototypes, solution.proportions, solution, by_group)


def solve_names(examples: Examples, query: Tensor, options: dict[str, Any]) -> Solution:
    """Classify one batch [Q, D] by names; the options are those of `solve_batch`."""
    task = examples.task(query, measures_in(options, examples.num_classes, query))
    asked = {name: options[name] for name in TOGETHER if name in options}
    solution = solve_tasks(task, "auto", **of_names(options), **asked)
    return solution if solution.groups is not None else without_batch(solution)


def fit_labelled(examples: Examples, options: dict[str, Any]) -> Fit:
    """Fit to labelled rows alone: class means, and the proportions of the labels."""
    support, labels, K = examples.support, examples.labels, examples.num_classes
    shots = labels.bincount(examples.weights, minlength=K).double()
    proportions, prior = shots / shots.sum(), None
    if options["prior"] is not None:
        prior = torch.from_numpy(options["prior"] / options["prior"].max()).to(shots)
        prior /= prior.sum()
    log_shares = torch.log(proportions if prior is None else prior)
    if examples.names is not None:
        known = None if prior is None else log_shares.to(support)
        logits = row_logits(examples.task(support), None, known, **of_names(options))
        fitted: Fitted = FittedNames(examples, logits)
    else:
        fitted = FittedAdaptive(learned(examples, options), log_shares)
    means = means_of(replace(examples, support=support.double()))
    return Fit(fitted.to("cpu"), means, proportions, None, prior=prior)


def counted_once(examples: Examples, tied: Groups | None, alone: bool = False) -> Examples:
    """One row for each labelled thing: the mean of its unit-norm rows or, if `alone`, the first."""
    if tied is None:
        return examples
    rows, labels, sure = examples.support, examples.labels[tied.first], examples.trusted
    rows = rows[tied.first] if alone else tied.means(unit_rows(rows))
    sure = None if sure is None else tied.sums(sure.double().unsqueeze(-1))[:, 0] > 0
    return replace(examples, support=rows, labels=labels, trusted=sure)


def learned(examples: Examples, options: dict[str, Any]) -> Likelihood:
    """The likelihood of labelled rows without names; those that are `tied` count as one."""
    tied = options.get("tied")
    own = counted_once(examples, tied)
    likelihood = corrected_likelihood(
        own.support,
        own.labels,
        examples.num_classes,
        examples.weights,
        options["label_noise"],
        own.trusted,
        inverse_regularisation=examples.inverse_regularisation,
    )
    ties = None if tied is None else ties_of(examples.support, likelihood, tied)
    return replace(likelihood, ties=ties)


def of_names(options: dict[str, Any]) -> dict[str, Any]:
    """The options that apply to classes with names, whose labels are all trusted."""
    return {name: options[name] for name in ("max_iter", "tol", "logit_scale")}


def measures_in(options: dict[str, Any], num_classes: int, query: Tensor) -> Tensor | None:
    """The priors to choose from, made of the option `prior`; None without one."""
    prior, groups = options["prior"], options.get("groups")
    tasks = None if groups is None else len(groups.names)
    return None if prior is None else measures_of(prior, num_classes, tasks, query).values


def solve_batch(likelihood: Likelihood, query: Tensor, options: dict[str, Any]) -> Solution:
    """Classify one batch [Q, D]; if large, with only the largest probabilities of each row.

    The options may have checked `groups` and `same`, and `share`.
    """
    K = likelihood.bias.shape[-1]
    asked = ("max_iter", "tol", *TOGETHER)
    solution = classify(
        likelihood,
        query[None],
        measures=measures_in(options, K, query),
        all_classes=returns_all(None, len(query), K),
        **{name: options[name] for name in asked if name in options},
    ).solution
    return solution if solution.groups is not None else without_batch(solution)


def means_of(
    examples: Examples, query: Tensor | None = None, solution: Solution | None = None
) -> Tensor:
    """Class means of labelled rows, and of queries by their probabilities; zeros if empty."""
    support, labels, K = examples.support, examples.labels, examples.num_classes
    sums = support.new_zeros(K, support.shape[1])
    weights, query_weight = examples.weights, support.new_ones(K)
    if weights is not None:  # divided by a power of two, so that no sum of their rows overflows
        largest = power_of_two(weights.new_ones(K).scatter_reduce(0, labels, weights, "amax"))
        weights, query_weight = (weights / largest[labels]).to(sums), (1 / largest).to(sums)
    mass = labels.bincount(weights, minlength=K).to(support.dtype)
    if len(support):
        sums, _ = class_sums(support, labels, K, weights)
    if query is not None and solution is not None:
        u = solution.probabilities
        if solution.classes is None:
            u = u if weights is None else u * query_weight
            sums, mass = sums + u.mT @ query, mass + u.sum(0)
        else:  # only the largest of each row
            for rank, classes in enumerate(solution.classes.unbind(-1)):
                of_rank = u[:, rank] * query_weight[classes]
                sums = sums + class_sums(query, classes, K, of_rank)[0]
                mass = mass.index_add(0, classes, of_rank)
    return sums / mass.clamp(min=torch.finfo(mass.dtype).tiny).unsqueeze(-1)


def label_distributions(
    place: Array,
    has_label: npt.NDArray[np.bool_],
    num_classes: int,
    solution: Solution | None,
    dtype: torch.dtype,
) -> Any:
    """The probabilities [n, K], 1 for a label; if all are too many, the largest, as a csr_array."""
    shape = len(place), num_classes
    none = torch.zeros(0, num_classes, dtype=dtype, device="cpu")
    predicted = none if solution is None else solution.probabilities
    if returns_all(None, *shape):
        probabilities: Array = np.zeros(shape, array(predicted).dtype)
        probabilities[has_label, place[has_label]] = 1
        probabilities[~has_label] = array(predicted)
        return probabilities
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    if solution is None:
        likely = none.long()
    elif solution.classes is not None:
        likely = solution.classes
    else:
        likely = most_probable(predicted, solution.labels, LARGEST_OF_ROW)
        predicted = predicted.gather(-1, likely)
    values, classes = array(predicted), array(likely)
    known = np.flatnonzero(has_label)
    rows = np.concatenate([known, np.flatnonzero(~has_label).repeat(values.shape[1])])
    index = np.concatenate([place[known], classes.ravel()])
    data = np.concatenate([np.ones(len(known), values.dtype), values.ravel()])
    return csr_array((data, (rows, index)), shape=shape)
