"""PADDLE's objective minimised by projected gradient descent, the second ablation of the paper."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..rows import class_means, class_sums, power_of_two_above, squared_distances, unit_rows
from ..task import Task, bounded, in_chunks
from .base import Display, Method, option, positive
from .paddle import Paddle
from .registry import register

AUTO_GAP = 13.0  # "auto" scales the mean lead of the nearest class to this, in squared distance
AUTO_MIN_GAP = 1e-12  # a smaller lead counts as zero,
AUTO_MIN_SHARE = 1e-5  # and so does one below this share of the distance to the median class
HUGE = 1e37  # limit on factors, so that they fit in single precision
STEEP = 1e18  # limit on gradients, so that their squares fit; Adam's step does not depend on it


@register
@dataclass(frozen=True, kw_only=True)
class PaddlePgd(Paddle):
    """PADDLE's objective, minimised by Adam with projections onto the simplex.

    With p the mean of the probabilities u over the queries, and w the prototypes, it minimises::

        temperature/2 sum_nk u_nk ||z_n - w_k||^2 - lam sum_k (p_k + epsilon) ln(p_k + epsilon)

    which is PADDLE's objective at its optimal dual, without the barrier. The public code maximises
    the entropy that it should minimise, and stops updating the probabilities after one iteration;
    this method follows the paper. The other options are those of `Paddle`.

    Parameters
    ----------
    learning_rate : float
        Of Adam, > 0 and at most 1, because probabilities cannot move further. The default is the
        public code's; the paper's text has 1e-3.
    """

    name: ClassVar[str] = "paddle_pgd"
    display: ClassVar[Display] = Display("PADDLE-PGD", 11, "#6a1b4d", "p")

    learning_rate: float = option(1e-4, partial(positive, most=1.0))
    max_iter: int = option(1000, check.integer)

    def solve(self, task: Task) -> Tensor:
        return in_chunks(self.solve_chunk, task, 8 * task.bytes)

    solve_indexed = Method.solve_indexed  # on gathered rows

    def solve_chunk(self, task: Task) -> Tensor:
        ((u, _),) = deque(self.steps(task), maxlen=1)  # the last one
        return u

    def steps(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        """The probabilities [B, Q, K] after each iteration, and the criterion of each task, [B]."""
        dtype, Q = task.query.dtype, task.query.shape[1]
        query, means = scaled_tasks(task, self.scaling)
        # In units of at least 1, so that squares fit the dtype.
        unit = torch.maximum(power_of_two_above(query), power_of_two_above(means)).clamp(min=1)
        z, means = (query / unit).to(dtype), (means / unit).to(dtype)
        _, counts = class_sums(task.support, task.support_labels, task.num_classes)
        shots = counts.to(dtype).unsqueeze(-1)  # [B or 1, K, 1]
        pull = bounded(self.temperature) * unit
        u_pull, w_pull = (x.clamp(max=HUGE).to(dtype) for x in (pull * unit / 2, pull))
        push = bounded((Q if self.lam is None else self.lam) / Q)

        w = means.clone()
        distances = squared_distances(z, w)
        u = torch.softmax(-u_pull * (distances - distances.amin(-1, keepdim=True)), dim=-1)
        u_adam, w_adam = Adam(u), Adam(w)
        w_rate = (self.learning_rate / unit).to(dtype)
        running = torch.ones(len(u), dtype=torch.bool, device=u.device)
        for i in range(self.max_iter):
            p = u.mean(-2, keepdim=True) + bounded(self.epsilon)
            v = 1 + torch.log(p.clamp(min=torch.finfo(dtype).tiny))
            u_gradient = (u_pull * squared_distances(z, w)).clamp(max=STEEP) - push * v
            w_gradient = shots * (w - means) + u.sum(-2).unsqueeze(-1) * w - u.mT @ z
            u_next = u - self.learning_rate * u_adam.step(u_gradient, i)
            w_next = w - w_rate * w_adam.step((w_pull * w_gradient).clamp(-STEEP, STEEP), i)
            # Subtracting a constant does not change the projection; the maximum is the safest.
            u_next = simplex_project(u_next - u_next.amax(-1, keepdim=True))

            # The probabilities of a stopped task do not change.
            u = torch.where(running.view(-1, 1, 1), u_next, u)
            moved = torch.linalg.vector_norm(w_next - w, dim=-1).mean(-1) * unit.view(-1)
            yield u, moved
            if self.tol > 0:
                running = running & (moved > self.tol)
                if not running.any():
                    break
            w = w_next


def scaled_tasks(task: Task, scaling: str) -> tuple[Tensor, Tensor]:
    """Queries [B, Q, D] and class means [B, K, D], scaled and centred at the queries; float64."""
    support, query = task.support.double(), task.query.double()
    if scaling == "auto":
        support, query = unit_rows(support), unit_rows(query)
    means = class_means(support, task.support_labels, task.num_classes)
    if scaling == "minmax":
        width = query.amax(-2, keepdim=True) - query.amin(-2, keepdim=True)
        width = torch.where(width > 0, width, 1)
        query, means = query / width, means / width
    centre = query.mean(-2, keepdim=True)
    query, means = query - centre, means - centre
    if scaling == "auto":
        distance = squared_distances(query, means)
        median = distance.kthvalue(means.shape[-2] // 2 + 1, dim=-1).values
        gap = (median - distance.amin(-1)).mean(-1)
        least = (AUTO_MIN_SHARE * median.mean(-1)).clamp(min=AUTO_MIN_GAP)
        factor = torch.where(gap > least, (AUTO_GAP / gap).sqrt(), 1).view(-1, 1, 1)
        query, means = query * factor, means * factor
    return query, means


def simplex_project(x: Tensor) -> Tensor:
    """Euclidean projection of rows [.., K] onto the simplex: max(x - t, 0), of sum 1."""
    ordered = x.sort(-1, descending=True).values
    thresholds = (ordered.cumsum(-1) - 1) / torch.arange(
        1, x.shape[-1] + 1, dtype=x.dtype, device=x.device
    )
    kept = (ordered > thresholds).sum(-1, keepdim=True)
    return (x - thresholds.gather(-1, kept - 1)).clamp(min=0)


class Adam:
    """Adam for one tensor, with the constants of its paper."""

    def __init__(self, x: Tensor) -> None:
        self.mean, self.square = torch.zeros_like(x), torch.zeros_like(x)

    def step(self, gradient: Tensor, i: int) -> Tensor:
        """The direction of step i, counted from 0; about 1 in every entry."""
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (self.square / (1 - 0.999 ** (i + 1))).sqrt_().add_(1e-8)
        return self.mean / root / (1 - 0.9 ** (i + 1))
