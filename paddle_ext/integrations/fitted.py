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
from ..adaptive_rule.names import RowLogits, row_logits, solve_and_keep
from ..adaptive_rule.single_rows import after_batch, claimed_by_logits, expecting
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
# In what the likelihood of single rows differs from that of the labelled rows.
OF_SINGLE_ROWS = ("prototypes", "squares", "absorbed", "bias")
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
    sources: Tensor | None = None  # [S] int64: the group of each labelled row
    names: Tensor | None = None  # [K, D] embeddings of the class names
    inverse_regularisation: float = INVERSE_REGULARISATION  # of the correction for many labels

    def task(self, query: Tensor, measures: Tensor | None = None) -> Task:
        assert self.names is not None
        rows = self.support[None], self.labels[None], query[None]
        return Task(*rows, self.num_classes, prototypes=self.names[None], measures=measures)


# --- further rows -------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedAdaptive:
    """The likelihood of the labelled rows, and that of further single rows."""

    likelihood: Likelihood
    # The same metric, which is stored once, with the prototypes and proportions after the batch;
    # None before any.
    single: Likelihood | None = None

    def to(self, device: torch.device | str) -> FittedAdaptive:
        there = self.likelihood.to(device)
        if self.single is None or there is self.likelihood:
            return self if there is self.likelihood else FittedAdaptive(there)
        own: Any = {name: getattr(self.single, name) for name in OF_SINGLE_ROWS}
        own = {name: None if x is None else x.to(device) for name, x in own.items()}
        single = replace(there, **own)
        # What is computed once here is moved, instead of computed again on each move.
        vars(single)["weights"] = self.single.weights.to(device)
        if self.single.projection is not None:
            vars(single)["projection"] = tuple(x.to(device) for x in self.single.projection)
        return FittedAdaptive(there, single)

    def __getstate__(self) -> dict[str, Any]:
        # Without what a likelihood computes once, which is as large as all the rest.
        single = None if self.single is None else replace(self.single)
        return {"likelihood": replace(self.likelihood), "single": single}

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_rule("single" in state)
        vars(self).update(state)

    @property
    def claims(self) -> Tensor:
        """The labelled rows of each class [K], by which (16) lowers what logits claim."""
        return self.likelihood.shots[0]

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        single = self.to(rows.device).single
        assert single is not None
        for part in parts(len(rows), sum(single.weights.shape)):
            # Unit-norm first: float64 values may be too large for the dtype of the fit.
            yield single.logits(unit_rows(rows[part].double())).double()

    def solve(self, query: Tensor, options: dict[str, Any]) -> Solution:
        likelihood = self.likelihood.to(query.device)
        rows = directions(query, likelihood.bias.dtype)
        steps = batch_options(likelihood, rows, options)
        return without_one(classify(likelihood, rows[None], **steps).solution)


@dataclass(frozen=True)
class FittedNames:
    """The examples, and the logits of one more row by names, labelled rows and the batch."""

    examples: Examples
    row_logits: RowLogits | None = None  # None before any batch

    def __setstate__(self, state: dict[str, Any]) -> None:
        logits = state["row_logits"]
        check_rule(logits is None or "likelihood" in vars(logits))
        vars(self).update(state)

    def to(self, device: torch.device | str) -> FittedNames:
        row_logits = None if self.row_logits is None else self.row_logits.to(device)
        return FittedNames(moved(self.examples, device), row_logits)

    @property
    def claims(self) -> Tensor | None:
        """The same; None where names decide."""
        assert self.row_logits is not None
        likelihood = self.row_logits.likelihood
        return None if likelihood is None else likelihood.shots[0]

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        assert self.row_logits is not None
        row_logits = self.row_logits.to(rows.device)
        for part in parts(len(rows), sum(row_logits.names.shape)):
            yield row_logits(unit_rows(rows[part].double())).double()

    def solve(self, query: Tensor, options: dict[str, Any]) -> Solution:
        examples = moved(self.examples, query.device)
        rows = directions(query, examples.support.dtype)
        task = examples.task(rows, measures_in(options, examples.num_classes, rows))
        return without_one(solve_tasks(task, "auto", **of_names(options), **together(options)))


def check_rule(of_this_rule: bool) -> None:
    """Refuse what an older version saved, whose rule was another one."""
    if not of_this_rule:
        raise ValueError(
            "the model must be fitted again: it was saved by a version of paddle_ext with another "
            "rule, which this one does not compute"
        )


# `logits` of further rows, part by part, and `solve` for another batch [n, D].
Fitted: TypeAlias = FittedAdaptive | FittedNames


def probabilities(fitted: Fitted, rows: Tensor) -> Tensor:
    """Those of further rows, one by one, [n, K]."""
    parts_of = fitted.logits(rows)
    if fitted.claims is None:
        return torch.cat([logits.softmax(-1) for logits in parts_of])
    shots = fitted.claims.double().to(rows.device)
    return torch.cat([claimed_by_logits(logits, shots) for logits in parts_of])


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
        steps = batch_options(likelihood, query, options)
        classified = classify(likelihood, query[None], keep=True, **steps)
        found = without_one(classified.solution)
        fitted: Fitted = FittedAdaptive(likelihood, after_batch(classified, likelihood))
    else:
        task = examples.task(query, measures_in(options, examples.num_classes, query))
        found, row_logits = solve_and_keep(task, **of_names(options), **together(options))
        found, fitted = without_one(found), FittedNames(examples, row_logits)
    solution, by_group = found.over_all(), None if found.groups is None else found
    prototypes = means_of(examples, query, solution)
    return Fit(fitted.to("cpu"), prototypes, solution.proportions, solution, by_group)


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
        logits = row_logits(examples.task(support), known, options["logit_scale"])
        fitted: Fitted = FittedNames(examples, logits)
    else:
        likelihood = learned(examples, options)
        fitted = FittedAdaptive(likelihood, expecting(likelihood, log_shares))
    means = means_of(replace(examples, support=support.double()))
    return Fit(fitted.to("cpu"), means, proportions, None, prior=prior)


def counted_once(examples: Examples, tied: Groups | None, alone: bool = False) -> Examples:
    """One row for each labelled thing: the mean of its unit-norm rows or, if `alone`, the first."""
    if tied is None:
        return examples
    rows, labels, sure = examples.support, examples.labels[tied.first], examples.trusted
    rows = rows[tied.first] if alone else tied.means(unit_rows(rows))
    sure = None if sure is None else tied.sums(sure.double().unsqueeze(-1))[:, 0] > 0
    sources = None if examples.sources is None else examples.sources[tied.first]
    return replace(examples, support=rows, labels=labels, trusted=sure, sources=sources)


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
        groups=own.sources,
    )
    ties = None if tied is None else ties_of(examples.support, likelihood, tied)
    return replace(likelihood, ties=ties)


def of_names(options: dict[str, Any]) -> dict[str, Any]:
    """The options that apply to classes with names, whose labels are all trusted."""
    return {name: options[name] for name in ("max_iter", "tol", "logit_scale")}


def together(options: dict[str, Any]) -> dict[str, Any]:
    """The options of rows that belong together, as far as they are given."""
    return {name: options[name] for name in TOGETHER if name in options}


def without_one(solution: Solution) -> Solution:
    """The solution of one batch, without a batch dimension; of groups it has none."""
    return solution if solution.groups is not None else without_batch(solution)


def measures_in(options: dict[str, Any], num_classes: int, query: Tensor) -> Tensor | None:
    """The priors to choose from, made of the option `prior`; None without one."""
    prior, groups = options["prior"], options.get("groups")
    tasks = None if groups is None else len(groups.names)
    return None if prior is None else measures_of(prior, num_classes, tasks, query).values


def batch_options(likelihood: Likelihood, query: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """The options of `classify` for one batch [Q, D]; if large, it gets only the likeliest classes.

    The options may have checked `groups` and `same`, and `share`.
    """
    K = likelihood.bias.shape[-1]
    steps = {
        "measures": measures_in(options, K, query),
        "max_iter": options["max_iter"],
        "tol": options["tol"],
        "all_classes": returns_all(None, len(query), K),
    }
    return steps | together(options)


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
