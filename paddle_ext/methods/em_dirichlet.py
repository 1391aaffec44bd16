"""EM-Dirichlet: a Dirichlet distribution of each class over zero-shot probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..rows import class_sums, products, unit_rows
from ..task import Task, in_chunks
from .base import Method
from .dirichlet import fitted, log_density
from .matching import matched
from .registry import register
from .zero_shot import named

EPSILON = 1e-15  # added to probabilities before their logarithm; a class with less has no query
ITERATIONS = {"soft": 20, "hard": 10}

Schedule = tuple[tuple[float, float], ...]


@register
@dataclass(frozen=True, kw_only=True)
class EmDirichlet(Method):
    """A Dirichlet distribution per class over zero-shot probabilities, with few classes used.

    Martin et al., *Transductive Zero-Shot and Few-Shot CLIP*, CVPR 2024. A row becomes the point
    ``x = softmax_k( temperature cos(row, t_k) )`` of the simplex, with t_k the prototypes. From
    u = x, every iteration fits the parameters alpha_k to the queries by their weights u_k and to
    the labelled rows of class k, and then does::

        v_k  = 1 + ln( mean_q u_qk + 1e-15 )
        u_qk = softmax_k( ln Dir(x_q; alpha_k) + (lam/Q) v_k )

    Without labelled rows the classes are unnamed clusters: at the end each cluster that is the most
    probable one of some query is matched to a class, one to one, so that the sum of the cluster
    means at their classes is largest. Computed in double precision.

    Parameters
    ----------
    assignment : {"soft", "hard"}
        "hard" gives each query to one class at the end of an iteration.
    lam : float, optional
        Weight of the penalty for many classes, >= 0. By default K // k_eff times Q, as published.
    k_eff : int
        Number of classes among the queries assumed by the default of `lam`, >= 1.
    temperature : float
        Factor on the cosines of rows and prototypes, > 0.
    schedule : pairs of floats, optional
        lam / Q and a temperature for each iteration, instead of `lam` and `max_iter`; the argument
        of the softmax is divided by the temperature. UNEM learns them from other tasks.
    max_iter : int, optional
        Iterations, >= 1; by default 20, and 10 for "hard".
    fit_iter : int
        At most this many steps of the fit in an iteration, >= 1.
    logit_scale : float
        Factor on the cosines in external zero-shot logits, > 0; CLIP learned 100.
    """

    name: ClassVar[str] = "em_dirichlet"
    takes_prototypes: ClassVar[bool] = True
    needs_prototypes: ClassVar[bool] = True

    assignment: str = "soft"
    lam: float | None = None
    k_eff: int = 5
    temperature: float = 30.0
    schedule: Schedule | None = None
    max_iter: int | None = None
    fit_iter: int = 1000
    logit_scale: float = 100.0

    def __post_init__(self) -> None:
        check.choice("assignment", self.assignment, tuple(ITERATIONS))
        if self.lam is not None:
            check.real("lam", self.lam)
        check.integer("k_eff", self.k_eff)
        check.real("temperature", self.temperature, positive=True)
        if self.schedule is not None:
            check_schedule(self.schedule)
        if self.max_iter is not None:
            check.integer("max_iter", self.max_iter)
        check.integer("fit_iter", self.fit_iter)
        check.real("logit_scale", self.logit_scale, positive=True)

    def solve(self, task: Task) -> Tensor:
        named(task, self.name)
        if task.prototypes is None and task.support.shape[1]:
            raise check.ArgumentValueError(
                "prototypes",
                f"must be given with the method {self.name!r} and labelled rows, got logits alone",
            )
        (Q, K), S = (task.query.shape[1], task.num_classes), task.support.shape[1]
        return in_chunks(self.solve_chunk, task, 8 * (12 * K * K + 8 * (Q + S) * K) + task.bytes)

    def steps(self, Q: int, K: int) -> Schedule:
        """lam / Q and the temperature of each iteration."""
        if self.schedule is not None:
            return self.schedule
        weight = K // self.k_eff if self.lam is None else self.lam / Q
        return ((weight, 1.0),) * (self.max_iter or ITERATIONS[self.assignment])

    def solve_chunk(self, task: Task) -> Tensor:
        x = self.points(task, task.query)
        log_x = (x + EPSILON).log()
        (B, Q, K), few = x.shape, task.support.shape[1] > 0
        sums, shots = x.new_zeros(1, K, K), x.new_zeros(1, K)
        if few:
            log_s = (self.points(task, task.support) + EPSILON).log()
            labels = task.support_labels.expand(len(log_s), -1)
            sums, counts = class_sums(log_s, labels, K)
            shots = counts.to(x.dtype)
        u = soft = x
        alpha = x.new_ones(B, K, K)
        for weight, temperature in self.steps(Q, K):
            mass = u.sum(1) + shots
            target = (u.mT @ log_x + sums) / mass.clamp(min=EPSILON).unsqueeze(-1)
            held = mass > EPSILON
            alpha[held] = fitted(alpha[held], target[held], self.fit_iter)
            v = (u.mean(1) + EPSILON).log() + 1
            logits = log_density(log_x, alpha) + weight * v.unsqueeze(1)
            u = soft = torch.softmax(logits / temperature, dim=-1)
            if self.assignment == "hard":
                u = one_hot(u.argmax(-1), u)
        if not few:
            soft = renamed(soft, x)
        return soft.to(task.query.dtype)

    def points(self, task: Task, rows: Tensor) -> Tensor:
        """Rows as points of the simplex, [B or 1, N, K], in double precision."""
        if task.logits is not None:
            logits = task.logits.double() / self.logit_scale
        else:
            assert task.prototypes is not None  # see `solve`
            logits = products(unit_rows(rows.double()), unit_rows(task.prototypes.double()))
        return torch.softmax(self.temperature * logits, dim=-1)


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    classes = torch.arange(like.shape[-1], device=like.device)
    return (labels.unsqueeze(-1) == classes).to(like.dtype)


def renamed(u: Tensor, x: Tensor) -> Tensor:
    """u [B, Q, K] with clusters reordered to their classes."""
    members = one_hot(u.argmax(-1), u)
    count = members.sum(1)
    means = members.mT @ x / count.clamp(min=1).unsqueeze(-1)
    match = matched(-means, count > 0)  # [B, K]
    return torch.zeros_like(u).scatter_(2, match.unsqueeze(1).expand_as(u), u)


def check_schedule(schedule: object) -> None:
    """At least one pair of a weight >= 0 and a temperature > 0."""
    if isinstance(schedule, str) or not isinstance(schedule, Sequence):
        raise check.ArgumentTypeError(
            "schedule", f"must be a sequence of pairs, got {check.kind(schedule)}"
        )
    if not schedule:
        raise check.ArgumentValueError("schedule", "must have at least one pair, got none")
    for pair in schedule:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise check.ArgumentTypeError(
                "schedule", f"must be a sequence of pairs of numbers, got the item {pair!r}"
            )
        check.real("schedule", pair[0])
        check.real("schedule", pair[1], positive=True)
