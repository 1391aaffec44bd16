"""Any batch: calibrated distances to class means, and class proportions learned from the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import check
from ..ops.adapt import adapt
from ..ops.backend import takes_reference
from ..ops.large.fixed import is_large
from ..ops.large.sources import TensorRows
from ..ops.posterior import posterior
from ..rows import computing_dtype
from ..solution import Solution
from .adaptive_large import solve_large, with_batch
from .base import Display, Method, Prediction
from .calibration import (
    Likelihood,
    calibrated,
    column,
    has_gram,
    how_many_calibrate,
)
from .caution import cautious, is_cautious
from .late_step import late_step
from .metrics import takes_full_metric
from .names import solution as solution_by_names
from .registry import register
from .task import Task, how_many, merged

METRICS = ("auto", "diagonal", "full")


@register
@dataclass(frozen=True, kw_only=True)
class Adaptive(Method):
    """For any batch, whether one class is present or all: `paddle_ext.adapt` on calibrated
    distances.

    The labelled rows determine feature weights, the sharpness of distances, and which classes
    attract rows of others; the batch determines its class proportions, under a Dirichlet prior that
    is learned too. At the end prototypes absorb the queries, once, and each query is classified
    without itself. Where a large batch promises little over the nearest class mean, that keeps more
    of its labels.

    Parameters
    ----------
    metric : {"auto", "diagonal", "full"}
        "diagonal" weights every feature by its variance within the classes; "full" also uses their
        covariance, as far as left-out labelled rows say that it helps. "auto" uses "full" from four
        labelled rows per class, or from eight if it is expensive.
    max_iter : int
        Limit on iterations for the proportions, >= 1.
    tol : float
        A task stops when no class count changes by more than this many queries, >= 0; 0.0 runs all
        iterations.
    logit_scale : float
        Largest factor from cosines with `prototypes` to zero-shot logits, > 0; default: that of
        CLIP. It is reduced if too sharp for the spread of rows and prototypes.
    """

    name: ClassVar[str] = "adaptive"
    display: ClassVar[Display] = Display("Adaptive", 13, "#6a1fb0", "*")
    takes_prototypes: ClassVar[bool] = True

    metric: str = "auto"
    max_iter: int = 100
    tol: float = 1e-3
    logit_scale: float = 100.0

    def __post_init__(self) -> None:
        check.choice("metric", self.metric, METRICS)
        check.integer("max_iter", self.max_iter)
        check.real("tol", self.tol)
        check.real("logit_scale", self.logit_scale, positive=True)

    def solve(self, task: Task) -> Tensor:
        return self.solution(task).probabilities

    def solution(self, task: Task) -> Solution:
        """The full solution of a batch of tasks, not only the probabilities."""
        if task.prototypes is not None or task.logits is not None:
            return solution_by_names(
                task, self.proportions, metric=self.metric, logit_scale=self.logit_scale
            )
        if is_large(task.query.shape[1], task.num_classes):
            return self.solve_large(task)
        found, sound = self.solve_parts(task)
        if task.check_values is not None and not bool(torch.cat(sound).all()):
            task.check_values()
        return found[0] if len(found) == 1 else merged(found)

    def solve_parts(self, task: Task) -> tuple[list[Solution], list[Tensor]]:
        """Solutions of as many tasks at a time as fit, and whether all rows are plainly finite.

        The likelihoods are released before the caller waits for these flags.
        """
        B = task.query.shape[0]
        step = how_many(bytes_per_task(task, self.metric), task.query)
        plain = is_cautious(task.query.shape[1], task.support.shape[1], task.num_classes)
        shared = self.likelihood(task, plain=plain) if task.support.shape[0] == 1 else None
        found, sound = [], []
        for start in range(0, B, step):
            part = task if step >= B else task.part(slice(start, start + step))
            likelihood = self.likelihood(part, plain=plain) if shared is None else shared
            solution, finite = self.solve_part(likelihood, part.query)
            found.append(solution)
            sound += [x for x in (likelihood.sound, finite) if x is not None]
        return found, sound

    def solve_large(self, task: Task) -> Solution:
        """One large task after the other."""
        plain = is_cautious(task.query.shape[1], task.support.shape[1], task.num_classes)
        found = []
        for number, query in enumerate(task.query):
            likelihood = self.likelihood(task.part(slice(number, number + 1)), plain=plain)
            one = solve_large(
                likelihood,
                TensorRows(query),
                max_iter=self.max_iter,
                tol=self.tol,
                all_classes=True,
                validate=task.check_values is not None,
            )
            if task.check_values is not None and likelihood.sound is not None:
                sound = bool(likelihood.sound.all())
                if not sound:
                    task.check_values()
            found.append(with_batch(one))
        return merged(found)

    def finds_bad_values(
        self,
        support: Tensor,
        support_labels: Tensor,
        query: Tensor,
        num_classes: int | None,
        base_mean: Tensor | None,
    ) -> bool:
        """Whether a native pass checks all rows: with several shots, in the feature scale."""
        S, D = support.shape[-2:]
        return (
            num_classes is not None
            and base_mean is None
            and query.shape[0] > 0
            and num_classes < S
            and support.dtype is query.dtype is computing_dtype(query)
            and not takes_full_metric(self.metric, S, num_classes, D)
            and (query.is_cpu or has_gram(query.shape[-2], D, num_classes))
            and not takes_reference("auto", query)
        )

    def prediction(self, task: Task) -> Prediction:
        found = self.solution(task)
        return Prediction(found.labels, found.probabilities)

    def proportions(self, logits: Tensor, weight: float, most: int | None = None) -> Solution:
        """The solutions of logits [B, Q, K], after at most `most` iterations."""
        max_iter = self.max_iter if most is None else min(most, self.max_iter)
        return adapt(logits, weight=weight, max_iter=max_iter, tol=self.tol, validate=False)

    def likelihood(self, task: Task, *, plain: bool = True) -> Likelihood:
        """The likelihoods from the labelled rows, before any query is seen.

        `plain`: with what large batches need for caution.
        """
        rows, labels = task.support, task.support_labels
        return calibrated(rows, labels, task.num_classes, self.metric, plain=plain)

    def solve_batch(self, likelihood: Likelihood, query: Tensor) -> Solution:
        """Classify the queries [B, Q, D] of tasks whose likelihoods are known."""
        return self.solve_part(likelihood, query)[0]

    def solve_part(self, likelihood: Likelihood, query: Tensor) -> tuple[Solution, Tensor | None]:
        """The same, and whether the queries of each task are plainly finite, if checked, [B]."""
        _, Q, D = query.shape
        K = likelihood.weights.shape[1]
        weight = likelihood.weight_of(Q)
        one_call = query.is_cpu or has_gram(Q, D, K)
        careful = likelihood.plain is not None and is_cautious(Q, likelihood.rows, K)
        if likelihood.projection is None and one_call and not takes_reference("auto", query):
            found, finite = posterior(
                query,
                likelihood.centre,
                likelihood.weights,
                likelihood.scale,
                likelihood.squares,
                likelihood.bias,
                likelihood.shots,
                likelihood.sharpness,
                likelihood.lengths,
                weight=weight,
                max_iter=self.max_iter,
                tol=self.tol,
            )
            if careful:
                found = cautious(likelihood, found, *likelihood.coordinates_and_lengths(query))
            return found, finite
        x, lengths = likelihood.coordinates_and_lengths(query)
        cross = likelihood.products(x)
        logits = torch.addcmul(likelihood.bias.unsqueeze(-2), cross, column(likelihood.sharpness))
        found = self.proportions(logits, weight)
        found = late_step(likelihood, found, weight, x, lengths, cross)
        return cautious(likelihood, found, x, lengths) if careful else found, None

    def solve_one(self, likelihood: Likelihood, query: Tensor) -> Solution:
        """Classify the queries [Q, D] of one task, whose solution has no batch dimension."""
        found = self.solve_batch(likelihood, query.unsqueeze(0))
        alone: dict[str, Any] = {
            name: x[0] for name, x in found._asdict().items() if isinstance(x, Tensor)
        }
        return found._replace(**alone)


def bytes_per_task(task: Task, metric: str) -> int:
    """Memory of the temporary tensors of one task."""
    (_, Q, D), (supports, S, _), K = task.query.shape, task.support.shape, task.num_classes
    numbers = Q * (2 * D + 6 * K + (Q if has_gram(Q, D, K) else D))
    if supports > 1:
        full = takes_full_metric(metric, S, K, D)
        R = how_many_calibrate(S, K, full)
        numbers += R * (D + 2 * K) + 2 * K * D
        if full:
            numbers += 3 * max(S, D) * D + 4 * R * K
    return numbers * task.query.itemsize
