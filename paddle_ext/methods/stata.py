"""StatA: TransCLIP's mixture, anchored at the class prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..rows import products, unit_rows
from ..task import Task, in_chunks
from .base import Display, Method, option, positive
from .neighbour_graph import NeighbourGraph, assigned
from .registry import register
from .transclip import LEAST_VARIANCE, TEMPERATURE
from .zero_shot import zero_shot_logits


@register
@dataclass(frozen=True, kw_only=True)
class StatA(Method):
    """A Gaussian per class, anchored at the class prototype with the weight of `alpha` queries.

    Zanella et al., *Realistic Test-Time Adaptation of Vision-Language Models*, CVPR 2025. Like
    TransCLIP, with a variance per class and feature, and with means and variances that stay near
    their start for a class with few queries. With n_k the queries whose largest z is that of class
    k, b_k = n_k / (n_k + alpha), t_k its prototype and v the variance of the queries around the
    prototypes by their zero-shot probabilities y, every iteration does `inner_iter` sweeps of::

        z_q = softmax_k( ln y_q + ln N(x_q; mu_k, variance_k) / 50 + (W z + W^T z)_q / (2 knn) )

    and then::

        mu_k       = unit( b_k unit(mean of the queries by z_k) + (1 - b_k) t_k )
        variance_k = b_k (that of the queries around mu_k by z_k) + (1 - b_k) (v + (t_k - mu_k)^2)

    Labelled rows are not used: the method uses names only. It needs `prototypes`; zero-shot logits
    do not determine the anchors.

    Parameters
    ----------
    alpha : float
        Weight of the prototypes, in queries, >= 0.
    knn : int
        Neighbours of a query, >= 1; a task with fewer queries uses all of them.
    max_iter : int
        Iterations, >= 1.
    inner_iter : int
        Sweeps of an iteration, >= 1.
    logit_scale : float
        Factor on the cosines of queries and prototypes, > 0; CLIP learned 100.
    """

    name: ClassVar[str] = "stata"
    display: ClassVar[Display] = Display("StatA", 17, "#0063a8", "h")
    takes_prototypes: ClassVar[bool] = True
    needs_prototypes: ClassVar[bool] = True

    alpha: float = option(1.0, check.real)
    knn: int = option(3, check.integer)
    max_iter: int = option(10, check.integer)
    inner_iter: int = option(5, check.integer)
    logit_scale: float = option(100.0, positive)

    def solve(self, task: Task) -> Tensor:
        if task.prototypes is None:
            raise check.ArgumentValueError(
                "prototypes", f"must be given with the method {self.name!r}, got logits alone"
            )
        own = task.num_classes * task.query.shape[-1] * task.query.itemsize
        return in_chunks(self.solve_chunk, task, 10 * task.bytes + 8 * own)

    def solve_chunk(self, task: Task) -> Tensor:
        assert task.prototypes is not None  # see `solve`
        log_y = torch.log_softmax(zero_shot_logits(task, self.logit_scale), dim=-1)
        query, anchors = unit_rows(task.query), unit_rows(task.prototypes)
        graph = NeighbourGraph.of(query, self.knn)
        # Centred at the mean query, to avoid cancellation in products.
        centre = query.mean(1, keepdim=True)
        z, x, anchors = log_y.exp(), query - centre, anchors - centre
        log_z, means = log_y, anchors
        sums, mass = z.mT @ x, z.sum(1).unsqueeze(-1)
        spread = x.square().sum(1) + ((mass * anchors - 2 * sums) * anchors).sum(1)
        first = (spread / x.shape[1]).clamp(min=LEAST_VARIANCE).unsqueeze(1)  # [B, 1, D]
        variances = first.expand_as(means)
        for i in range(self.max_iter + 1):
            likelihood = log_likelihood(x, means, variances) / TEMPERATURE
            log_z = assigned(log_y, likelihood, z, graph, 0.0, self.knn, self.inner_iter)
            z = log_z.exp()
            if i == self.max_iter:
                break
            share = self.own_share(z)
            sums, mass = z.mT @ x, z.sum(1).unsqueeze(-1)
            own = unit_rows(sums + mass * centre)
            means = unit_rows(share * own + (1 - share) * (anchors + centre)) - centre
            # A class that is no query's most probable one keeps its anchor.
            moments = (z.mT @ x.square() - 2 * sums * means) / mass.clamp(min=1e-30)
            around = torch.where(share > 0, moments + means.square(), 0)
            apart = first + (anchors - means).square()
            variances = (share * around + (1 - share) * apart).clamp(min=LEAST_VARIANCE)
        return z

    def own_share(self, z: Tensor) -> Tensor:
        """b_k, the weight of a class's queries next to its anchor, [B, K, 1]."""
        classes = torch.arange(z.shape[-1], device=z.device)
        count = (z.argmax(-1, keepdim=True) == classes).sum(1).to(z.dtype)
        return (count / (count + self.alpha).clamp(min=1e-30)).unsqueeze(-1)


def log_likelihood(x: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Log-likelihoods of rows [B, Q, D] by Gaussians [B, K, D], up to a constant, [B, Q, K]."""
    precisions = 1 / variances
    squares = products(x.square(), precisions) - 2 * products(x, means * precisions)
    constants = (means.square() * precisions + variances.log()).sum(-1)
    return -0.5 * (squares + constants.unsqueeze(1))
