"""TransCLIP: Gaussian classes, a graph of neighbours, and zero-shot probabilities as the prior.

StatA is its mixture, anchored at the class prototypes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..prevalence import counts_of
from ..rows import class_sums, products, squared_distances, unit_rows
from ..task import Task, in_chunks
from .base import Display, bounded, option
from .neighbour_graph import NeighbourGraph, assigned, nearest_queries, pull_of_labelled
from .registry import register
from .zero_shot import ZeroShot

TEMPERATURE = 50.0  # of the likelihood; also a factor on the weight of the labelled rows
GAMMAS = (0.002, 0.01, 0.02, 0.2)  # the authors' choices
LEAST_VARIANCE = 1e-8  # of unit-norm rows: avoids division by zero if all are equal


@register
@dataclass(frozen=True, kw_only=True)
class TransClip(ZeroShot):
    """A Gaussian per class, neighbouring queries pulled to one class, zero-shot as the prior.

    Zanella et al., *Boosting Vision-Language Models with Transduction*, NeurIPS 2024. With x the
    unit-norm queries, y the zero-shot probabilities, and W the cosines of each query with its `knn`
    nearest, from z = y every iteration does `inner_iter` sweeps of::

        z_q = softmax_k( lam ln y_q + ln N(x_q; mu_k, variance) / 50 + (W z + W^T z)_q / (2 knn) )

    and then sets mu_k to the unit-norm mean of class k by the weights z, and the variance, one per
    feature, to that around the means. Labelled rows weigh 50 gamma / S each, against 1 / Q for a
    query, and pull the queries nearest to them. The means start from the labelled rows or, for a
    class without any, from the `confident` most certain queries; the last z gives the
    probabilities. The method assumes that all classes are present. `logit_scale` is that of
    `ZeroShot`.

    Parameters
    ----------
    lam : float, optional
        Weight of the zero-shot probabilities, >= 0. By default 1 without labelled rows, else 0.5.
    gamma : float, optional
        Weight of the labelled rows, >= 0. Default: the one of 0.002, 0.01, 0.02 and 0.2 with which
        most labelled rows agree with their nearest query; of equals, the smallest.
    knn : int
        Neighbours of a query, >= 1; a task with fewer queries uses all of them.
    confident : int
        Queries from which a class without a labelled row starts, >= 1.
    max_iter : int
        Iterations, >= 1.
    inner_iter : int
        Sweeps of an iteration, >= 1.
    """

    name: ClassVar[str] = "transclip"
    display: ClassVar[Display] = Display("TransCLIP", 16, "#e69f00", "X")

    lam: float | None = option(None, bounded)
    gamma: float | None = option(None, bounded)
    knn: int = option(3, check.integer)
    confident: int = option(8, check.integer)
    max_iter: int = option(10, check.integer)
    inner_iter: int = option(5, check.integer)

    def solve(self, task: Task) -> Tensor:
        return in_chunks(self.solve_chunk, task, 10 * task.bytes)

    def solve_chunk(self, task: Task) -> Tensor:
        log_y = torch.log_softmax(self.logits(task), dim=-1)
        query, support = unit_rows(task.query), unit_rows(task.support)
        graph = NeighbourGraph.of(query, self.knn)
        S = support.shape[1]
        default = 0.5 if S else 1.0
        log_prior = (default if self.lam is None else self.lam) * log_y
        start = self.start(log_y, query, task, support)
        if S == 0:
            mixture = Mixture(query, support, task, 0.0)
            return self.iterate(log_prior, log_y, graph, 0.0, mixture, start)
        nearest = nearest_queries(support, query, self.knn)
        labelled = pull_of_labelled(query, nearest, support, task.support_labels, task.num_classes)
        gammas = GAMMAS if self.gamma is None else (self.gamma,)
        best, most = log_y, torch.full_like(log_y[:, :1, :1], -1)
        for gamma in gammas:
            mixture = Mixture(query, support, task, gamma)
            z = self.iterate(log_prior, log_y, graph, labelled, mixture, start)
            if len(gammas) == 1:
                return z
            agree = z.argmax(-1).gather(1, nearest[..., 0]) == task.support_labels
            right = agree.sum(-1).to(z.dtype).view(-1, 1, 1)
            best, most = torch.where(right > most, z, best), torch.maximum(right, most)
        return best

    def start(self, log_y: Tensor, query: Tensor, task: Task, support: Tensor) -> Tensor:
        """The first means, [B, K, D]."""
        # Rounding to float32 makes probabilities equal that differ by rounding only; of equals, the
        # first queries are taken.
        order = (1 - log_y).float().sort(dim=1, stable=True).indices
        certain = torch.zeros_like(log_y).scatter_(1, order[:, : self.confident], 1.0)
        weights = certain * (log_y - log_y.amax(1, keepdim=True)).exp()
        means = unit_rows(weights.mT @ query)
        if support.shape[1] == 0:
            return means
        sums, shots = class_sums(support, task.support_labels, task.num_classes)
        return torch.where(shots.unsqueeze(-1) > 0, unit_rows(sums), means)

    def iterate(
        self,
        log_prior: Tensor,
        log_y: Tensor,
        graph: NeighbourGraph,
        labelled: Tensor | float,
        mixture: Mixture,
        means: Tensor,
    ) -> Tensor:
        """z after all iterations, [B, Q, K]."""
        log_z = log_y
        variance = torch.full_like(means[:, :1], 1 / means.shape[-1])
        for i in range(self.max_iter + 1):
            fixed = log_prior + mixture.log_likelihood(means, variance)
            log_z = assigned(fixed, log_z.exp(), graph, labelled, self.knn, self.inner_iter)
            if i < self.max_iter:
                means = mixture.means(log_z)
                variance = mixture.variance(log_z, means)
        return log_z.exp()


class Mixture:
    """Fits means and variances to queries and labelled rows, centred to avoid cancellation."""

    def __init__(self, query: Tensor, support: Tensor, task: Task, gamma: float) -> None:
        S, K = support.shape[1], task.num_classes
        self.centre = query.mean(1, keepdim=True)  # [B, 1, D]
        self.query = query - self.centre
        self.labelled = TEMPERATURE * gamma if S else 0.0
        square = self.query.square().mean(1, keepdim=True)
        if self.labelled:
            rows = support - self.centre  # [B, S, D]
            labels = task.support_labels.expand(len(rows), -1)
            sums, shots = class_sums(rows, labels, K)
            self.sums, self.shots = sums / S, shots.to(query.dtype) / S  # [B, K, D], [B, K]
            square = square + self.labelled * rows.square().mean(1, keepdim=True)
        self.square = square  # [B, 1, D]

    def log_likelihood(self, means: Tensor, variance: Tensor) -> Tensor:
        """Log-likelihoods of the queries, up to a constant, [B, Q, K]."""
        scale = variance.rsqrt()
        far = squared_distances(self.query * scale, (means - self.centre) * scale)
        return far / (-2 * TEMPERATURE)

    def means(self, log_z: Tensor) -> Tensor:
        """Unit-norm means [B, K, D]; dividing by the largest weight of a class keeps tiny ones."""
        log_weight = log_z - math.log(log_z.shape[1])
        largest = log_weight.amax(1)  # [B, K]
        if self.labelled:
            log_labelled = torch.full_like(self.shots, math.log(self.labelled))
            log_labelled = log_labelled.masked_fill(self.shots == 0, -torch.inf)
            largest = torch.maximum(largest, log_labelled)
        weight = (log_weight - largest.unsqueeze(1)).exp()
        sums, mass = weight.mT @ self.query, weight.sum(1)
        if self.labelled:
            share = (log_labelled - largest).exp()
            sums = sums + share.unsqueeze(-1) * self.sums
            mass = mass + share * self.shots
        return unit_rows(sums + mass.unsqueeze(-1) * self.centre)

    def variance(self, log_z: Tensor, means: Tensor) -> Tensor:
        """The variance of each feature around the class means, [B, 1, D]."""
        z = log_z.exp() / log_z.shape[1]
        sums, mass = z.mT @ self.query, z.sum(1)
        if self.labelled:
            sums = sums + self.labelled * self.sums
            mass = mass + self.labelled * self.shots
        means = means - self.centre
        around = (mass.unsqueeze(-1) * means - 2 * sums) * means
        total = (self.square + around.sum(1, keepdim=True)) / (1 + self.labelled)
        return total.clamp(min=LEAST_VARIANCE)


@register
@dataclass(frozen=True, kw_only=True)
class StatA(ZeroShot):
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
    do not determine the anchors. `logit_scale` is that of `ZeroShot`.

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
    """

    name: ClassVar[str] = "stata"
    display: ClassVar[Display] = Display("StatA", 17, "#0063a8", "h")

    alpha: float = option(1.0, check.real)
    knn: int = option(3, check.integer)
    max_iter: int = option(10, check.integer)
    inner_iter: int = option(5, check.integer)

    def solve(self, task: Task) -> Tensor:
        if task.prototypes is None:
            raise check.ArgumentValueError(
                "prototypes", f"must be given with the method {self.name!r}, got logits alone"
            )
        own = task.num_classes * task.query.shape[-1] * task.query.itemsize
        return in_chunks(self.solve_chunk, task, 10 * task.bytes + 8 * own)

    def solve_chunk(self, task: Task) -> Tensor:
        assert task.prototypes is not None  # see `solve`
        log_y = torch.log_softmax(self.logits(task), dim=-1)
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
            fixed = log_y + log_likelihood(x, means, variances) / TEMPERATURE
            log_z = assigned(fixed, z, graph, 0.0, self.knn, self.inner_iter)
            z = log_z.exp()
            if i == self.max_iter:
                break
            count = counts_of(z.argmax(-1), torch.zeros_like(z[:, 0]))
            share = (count / (count + self.alpha).clamp(min=1e-30)).unsqueeze(-1)  # b_k
            sums, mass = z.mT @ x, z.sum(1).unsqueeze(-1)
            own = unit_rows(sums + mass * centre)
            means = unit_rows(share * own + (1 - share) * (anchors + centre)) - centre
            # A class that is no query's most probable one keeps its anchor.
            moments = (z.mT @ x.square() - 2 * sums * means) / mass.clamp(min=1e-30)
            around = torch.where(share > 0, moments + means.square(), 0)
            apart = first + (anchors - means).square()
            variances = (share * around + (1 - share) * apart).clamp(min=LEAST_VARIANCE)
        return z


def log_likelihood(x: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Log-likelihoods of rows [B, Q, D] by Gaussians [B, K, D], up to a constant, [B, Q, K]."""
    precisions = 1 / variances
    squares = products(x.square(), precisions) - 2 * products(x, means * precisions)
    constants = (means.square() * precisions + variances.log()).sum(-1)
    return -0.5 * (squares + constants.unsqueeze(1))
