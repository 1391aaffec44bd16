"""How the scikit-learn classifier is fitted: to a batch, or to labelled rows alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..adaptive_rule.classify import classify
from ..adaptive_rule.correction import corrected_likelihood
from ..adaptive_rule.likelihood import Likelihood
from ..adaptive_rule.names import row_logits
from ..adaptive_rule.solve import solve_tasks
from ..large.arguments import returns_all
from ..prior import measures_of
from ..rows import class_means, unit_rows
from ..scaling import row_scaling
from ..solution import Solution
from ..solvers import solve
from ..task import Task, without_batch
from .columns import Columns, columns_for
from .fitted import (
    Array,
    Fitted,
    FittedAdaptive,
    FittedNames,
    FittedPaddle,
    array,
    means_of,
    to_tensor,
)

SAME = 1e-6  # smaller differences of unit-norm rows are rounding


class Known(NamedTuple):
    """What is known about the classes: labelled rows, and embeddings of names."""

    support: Tensor  # [S, D]
    labels: Tensor  # [S] int64
    num_classes: int
    counts: Tensor | None  # [S] > 0: weight of each labelled row
    names: Tensor | None  # [K, D] embeddings of the class names


@dataclass(frozen=True)
class FittedRows:
    """The labelled rows, stored by fits that need them to classify another batch."""

    support: Array
    labels: Array
    num_classes: int
    names: Array | None

    @classmethod
    def of(cls, known: Known) -> FittedRows:
        names = None if known.names is None else array(known.names)
        return cls(array(known.support), array(known.labels), known.num_classes, names)

    def solved(self, query: Tensor, method: str, options: dict[str, Any]) -> Solution:
        """Classify another batch [n, D]."""
        support, labels = (
            to_tensor(self.support, query.device),
            to_tensor(self.labels, query.device),
        )
        names = None if self.names is None else to_tensor(self.names, query.device)
        known = Known(support, labels, self.num_classes, None, names)
        solution = fit_batch(known, query.to(support.dtype), method, options).solution
        assert solution is not None
        return solution


class Fit(NamedTuple):
    """The stored and reported results of a fit."""

    fitted: Fitted
    prototypes: Tensor  # [K, D]
    proportions: Tensor  # [K]
    solution: Solution | None  # of the unlabelled rows


def in_columns(
    known: Known, query: Tensor | None, method: str
) -> tuple[Columns, Known, Tensor | None]:
    """Standardise the columns of labelled and unlabelled rows [Q, D] if they are a table.

    PADDLE has its own `scaling`, and rows with names are embeddings: both stay as they are.
    """
    if method != "adaptive" or known.names is not None:
        return Columns(), known, query
    columns = columns_for(known.support, known.labels, known.num_classes, query)
    known = known._replace(support=columns.of(known.support))
    return columns, known, None if query is None else columns.of(query)


def fit_batch(known: Known, query: Tensor, method: str, options: dict[str, Any]) -> Fit:
    """Classify unlabelled rows [Q, D]; `options` are those of the method."""
    if method == "paddle":
        return fit_paddle(known, query, options)
    support, labels, K, counts, names = known
    if names is None:
        likelihood = corrected_likelihood(support, labels, K, counts, options["label_noise"])
        solution = classified(likelihood, query, options)
        fitted: Fitted = FittedAdaptive.of(likelihood, solution.dual)
    else:
        rows, measures = (support[None], labels[None], query[None]), measures_in(options, K, query)
        task = Task(*rows, K, prototypes=names[None], measures=measures)
        options = of_names(options)
        found = solve_tasks(task, "auto", **options)
        fitted = FittedNames.of(row_logits(task, found, **options))
        solution = without_batch(found)
    prototypes = means_of(support, labels, K, query, solution, counts)
    return Fit(fitted, prototypes, solution.proportions, solution)


def of_names(options: dict[str, Any]) -> dict[str, Any]:
    """The options that apply to classes with names, whose labels are all trusted."""
    return {name: options[name] for name in ("max_iter", "tol", "logit_scale")}


def measures_in(options: dict[str, Any], num_classes: int, query: Tensor) -> Tensor | None:
    """The priors to choose from, made of the option `prior`; None without one."""
    prior = options["prior"]
    return None if prior is None else measures_of(prior, num_classes, None, query).values


def classified(likelihood: Likelihood, query: Tensor, options: dict[str, Any]) -> Solution:
    """Classify one batch [Q, D]; if large, with only the largest probabilities of each row."""
    chosen: Any = {name: options[name] for name in ("max_iter", "tol")}
    K = likelihood.bias.shape[-1]
    all_classes, measures = returns_all(None, len(query), K), measures_in(options, K, query)
    found, _ = classify(
        likelihood, query[None], measures=measures, **chosen, all_classes=all_classes
    )
    return without_batch(found)


def warn_of_lost_length(support: Tensor, scaling: str) -> None:
    """Warn if rows [S, D], such as those of a single column, differ only in length."""
    if scaling != "auto":
        return
    unit = unit_rows(support)
    if (unit - unit[0]).abs().amax() < SAME and (support != support[0]).any():
        warnings.warn(
            "the labelled rows of X differ in length alone, which scaling='auto' ignores: use "
            "method='adaptive', scaling='minmax' or scaling='none'",
            stacklevel=4,
        )


def fit_paddle(known: Known, query: Tensor, options: dict[str, Any]) -> Fit:
    support, labels, K = known[:3]
    warn_of_lost_length(support, options["scaling"])
    solution = solve(support, labels, query, num_classes=K, return_prototypes=True, **options)
    assert solution.prototypes is not None
    space = row_scaling(support, labels, query, K, options["scaling"])
    w = space.prototypes(support, labels, query, solution.probabilities)
    preference = dual_weight(options, len(query)) * solution.dual.double()
    fitted = FittedPaddle.of(space, w, preference, options["temperature"])
    return Fit(fitted, solution.prototypes, solution.proportions, solution)


def fit_labelled(known: Known, method: str, options: dict[str, Any]) -> Fit:
    """Fit to labelled rows alone: class means, and the proportions of the labels."""
    support, labels, K, counts, names = known
    shots = labels.bincount(counts, minlength=K).double()
    proportions = shots / shots.sum()
    if names is not None:
        task = Task(support[None], labels[None], support[None], K, prototypes=names[None])
        fitted: Fitted = FittedNames.of(row_logits(task, None, **of_names(options)))
    elif method == "adaptive":
        likelihood = corrected_likelihood(support, labels, K, counts, options["label_noise"])
        prior = options["prior"]
        known_shares = proportions if prior is None else torch.from_numpy(prior / prior.sum())
        fitted = FittedAdaptive.of(likelihood, torch.log(known_shares))
    else:
        warn_of_lost_length(support, options["scaling"])
        space = row_scaling(support, labels, support, K, options["scaling"])
        w = class_means(space.apply(support), labels, K)
        preference = 1 + torch.log(proportions + options["epsilon"])
        preference = dual_weight(options, len(labels)) * preference
        fitted = FittedPaddle.of(space, w, preference, options["temperature"])
    prototypes = means_of(support.double(), labels, K, counts=counts)
    return Fit(fitted, prototypes, proportions, None)


def dual_weight(options: dict[str, Any], count: int) -> float:
    return 1.0 if options["lam"] is None else options["lam"] / count
