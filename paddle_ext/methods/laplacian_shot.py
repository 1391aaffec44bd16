"""LaplacianShot: the nearest class mean, with neighbouring queries pulled to one class."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..rows import squared_distances
from ..task import Task, bounded, in_chunks, scaled
from .base import Display, Grid, Method, one_of, option
from .neighbour_graph import nearest_others
from .registry import register


@register
@dataclass(frozen=True, kw_only=True)
class LaplacianShot(Method):
    """The nearest class mean, with neighbouring queries pulled to one class.

    Ziko et al., *Laplacian Regularized Few-Shot Learning*, ICML 2020. With z the scaled features,
    w_k the mean of class k's support and a_qk = ||z_q - w_k||^2, from y = softmax_k(-a) every
    iteration does ``y_q = softmax_k( -a_q + lam sum_r y_r )`` with r the queries nearest to q: each
    step minimises an upper bound of the energy ``sum_q y_q . (ln y_q + a_q - lam sum_r y_r)``. A
    task stops when that changes by at most a share of `tol`, at the third iteration or later.
    Neighbours are compared by squared distance in single precision; of equals, the first count.

    Parameters
    ----------
    lam : float
        Weight of the neighbours, >= 0.
    knn : int
        Size of a neighbourhood including the query itself, >= 1, as in the public code: 3 means two
        neighbours. A task with fewer queries uses all of them.
    scaling : {"cl2n", "l2n"}
        "cl2n" subtracts `base_mean`, or without one the mean of the task's support, and makes rows
        unit-norm; "l2n" makes them unit-norm.
    max_iter : int
        At most this many iterations, >= 1.
    tol : float
        Relative change of the energy at which a task stops, >= 0.
    """

    name: ClassVar[str] = "laplacian_shot"
    display: ClassVar[Display] = Display("LaplacianShot", 6, "#e69f00", "X")
    tuning_grid: ClassVar[Grid] = {"lam": (0.1, 0.3, 0.7, 1.0), "knn": (3, 5)}

    lam: float = option(0.7, check.real)
    knn: int = option(3, check.integer)
    scaling: str = option("cl2n", one_of("cl2n", "l2n"))
    max_iter: int = option(20, check.integer)
    tol: float = option(1e-6, check.real)

    def solve(self, task: Task) -> Tensor:
        return in_chunks(self.solve_chunk, task, 5 * task.bytes)

    def solve_chunk(self, task: Task) -> Tensor:
        support, query = scaled(task, self.scaling)
        lam = bounded(self.lam)
        a = squared_distances(query, task.means(support))  # [B, Q, K]
        index = nearest_others(query, self.knn - 1)
        y = torch.softmax(-a, dim=-1)
        neighbours = sum_over(index, y)
        energy = torch.full_like(a[:, 0, 0], torch.inf, dtype=torch.float64)
        running = torch.ones_like(energy, dtype=torch.bool)
        for i in range(self.max_iter):
            y_next = torch.softmax(lam * neighbours - a, dim=-1)
            live = running.view(-1, 1, 1)  # stopped tasks keep their state
            y = torch.where(live, y_next, y)
            neighbours = sum_over(index, y)
            # In double: a change of 1e-6 is near the rounding of a sum in single precision.
            terms = torch.special.xlogy(y, y) + (a - lam * neighbours) * y
            before, energy = energy, terms.sum((-2, -1), dtype=torch.float64)
            if i > 1:
                running = running & ((energy - before).abs() > self.tol * before.abs())
                if not running.any():
                    break
        return y


def sum_over(index: Tensor, y: Tensor) -> Tensor:
    """Sum of y [B, Q, K] over the neighbours of each query, [B, Q, K]."""
    total = torch.zeros_like(y)
    for neighbour in index.unbind(-1):
        total += y.gather(1, neighbour.unsqueeze(-1).expand_as(y))
    return total
