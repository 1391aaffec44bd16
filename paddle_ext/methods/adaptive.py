"""Any batch: calibrated distances to class means, and class proportions that the batch chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import check
from ..ops.adapt import adapt
from ..solution import Solution
from .base import Method, register
from .calibration import (
    Likelihood,
    calibrated,
    column,
    has_gram,
    how_many_calibrate,
    takes_full_metric,
)
from .task import Task, how_many

METRICS = ("auto", "diagonal", "full")


@register
@dataclass(frozen=True, kw_only=True)
class Adaptive(Method):
    """Right whether one class is present or all: `paddle_ext.adapt` on calibrated distances.

    Labelled rows tell how features count, how sharp distances are, and which classes draw rows of
    others; the batch tells the proportions of its classes, under a Dirichlet prior that it learns.
    At the end prototypes take in the queries, once, each query judged without itself.

    Parameters
    ----------
    metric : {"auto", "diagonal", "full"}
        "diagonal" weighs every feature by its variance inside the classes, "full" also looks at
        their covariance, as far as labelled rows that are left out say that it helps. "auto" does
        so from four labelled rows a class on, or from eight where it costs much.
    max_iter : int
        At most this many iterations for the proportions, >= 1.
    tol : float
        A task stops when no class moves by more than this many queries, >= 0; 0.0 never stops
        earlier.
    """

    name: ClassVar[str] = "adaptive"

    metric: str = "auto"
    max_iter: int = 100
    tol: float = 1e-3

    def __post_init__(self) -> None:
        check.choice("metric", self.metric, METRICS)
        check.integer("max_iter", self.max_iter)
        check.real("tol", self.tol)

    def solve(self, task: Task) -> Tensor:
        return self.solution(task).probabilities

    def solution(self, task: Task) -> Solution:
        """All that is known of a batch of tasks, not only the probabilities."""
        step = how_many(bytes_per_task(task, self.metric), task.query.device)
        shared = self.likelihood(task) if len(task.support) == 1 else None
        found = []
        for start in range(0, len(task.query), step):
            part = task.part(slice(start, start + step))
            likelihood = self.likelihood(part) if shared is None else shared
            found.append(self.solve_batch(likelihood, part.query))
        return found[0] if len(found) == 1 else concatenated(found)

    def likelihood(self, task: Task) -> Likelihood:
        """What the labelled rows say, before any query is seen."""
        return calibrated(task.support, task.support_labels, task.num_classes, self.metric)

    def solve_batch(self, likelihood: Likelihood, query: Tensor) -> Solution:
        """Classify the queries [B, Q, D] of tasks whose likelihoods are known."""
        x = likelihood.coordinates(query)
        cross = likelihood.products(x)
        logits = torch.addcmul(likelihood.bias.unsqueeze(-2), cross, column(likelihood.sharpness))
        weight = 2 * likelihood.rows / (2 * likelihood.rows + query.shape[1])
        found = adapt(logits, weight=weight, max_iter=self.max_iter, tol=self.tol, validate=False)
        logits = moved_logits(likelihood, found, weight, x, cross)
        probabilities = torch.softmax(logits.mul_(likelihood.temper), dim=-1)
        return found._replace(labels=probabilities.argmax(-1), probabilities=probabilities)

    def solve_one(self, likelihood: Likelihood, query: Tensor) -> Solution:
        """Classify the queries [Q, D] of one task, whose solution has no batch dimension."""
        found = self.solve_batch(likelihood, query.unsqueeze(0))
        alone: dict[str, Any] = {
            name: x[0] for name, x in found._asdict().items() if isinstance(x, Tensor)
        }
        return found._replace(**alone)


def moved_logits(
    likelihood: Likelihood, found: Solution, weight: float, x: Tensor, cross: Tensor
) -> Tensor:
    """Logits [B, Q, K] of prototypes that have taken in the queries, each without itself.

    Query q has a weight of ``W_qk = u_qk^2 N_k / (N_k + a)`` in class k, beside the labelled rows.
    """
    u = found.probabilities
    Q, K = u.shape[-2:]
    assert found.concentration is not None
    a = found.concentration.unsqueeze(-1)
    trust = 1 - a / (found.proportions * (weight * Q + K * a))  # N / (N + a)
    W = u.square().mul_(trust.clamp(min=0).unsqueeze(-2))
    shots = likelihood.shots.unsqueeze(-2)
    labelled = shots * cross
    # With s the weighted sum of the rows of a class: products x.s, then s.s and the weights.
    inner, own = likelihood.weighted_products(x, W)
    inner = inner.add_(labelled)
    square = (W * labelled.add_(inner)).sum(-2, keepdim=True)
    square = square + shots.square() * likelihood.squares.unsqueeze(-2)
    mass = shots + W.sum(-2, keepdim=True)
    # The same without the query itself.
    mass = mass - W
    alone = torch.addcmul(inner, W, own, value=-1)
    square = torch.addcmul(square, W, inner.add_(alone), value=-1)
    half = alone.div_(mass).sub_(square.div_(mass.square_()).mul_(0.5))
    sharpness = likelihood.sharpness.unsqueeze(-1)
    constant = likelihood.bias + sharpness / 2 * likelihood.squares + found.dual
    return half.mul_(sharpness.unsqueeze(-1)).add_(constant.unsqueeze(-2))


def bytes_per_task(task: Task, metric: str) -> int:
    """What the temporary tensors of one task take."""
    (Q, D), K, S = task.query.shape[1:], task.num_classes, task.support.shape[1]
    numbers = Q * (4 * D + 8 * K + (Q if has_gram(Q, D, K) else 0))
    if len(task.support) > 1:
        R = how_many_calibrate(S, K)
        numbers += S * D + 3 * R * (D + 2 * K) + 3 * K * D
        if takes_full_metric(metric, S, K, D):
            numbers += 3 * max(S, D) * D + 3 * R * K
    return numbers * task.query.itemsize


def concatenated(parts: list[Solution]) -> Solution:
    """One solution of the tasks of many."""
    together: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name, x in parts[0]._asdict().items()
        if isinstance(x, Tensor)
    }
    return parts[0]._replace(**together)
