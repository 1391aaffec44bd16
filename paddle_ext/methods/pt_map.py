"""PT-MAP: a power transform, then optimal transport to centroids that move with the plan."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..rows import class_sums, products, unit_rows
from ..solvers.sinkhorn import sinkhorn
from ..task import Task, in_chunks
from .base import Display, Grid, Method, option, positive
from .registry import register

AT_THE_MEAN = 1e-5  # a unit-norm row closer than this to the mean of its set has no direction


@register
@dataclass(frozen=True, kw_only=True)
class PtMap(Method):
    """Optimal transport of the queries to the classes, whose centroids follow the plan.

    Hu et al., *Leveraging the Feature Distribution in Transfer-based Few-Shot Learning*, ICANN
    2021. Features are raised to a power and made unit-norm; support and query, each minus its own
    mean, are made unit-norm again. With z the queries and mu_k, at first, the means of the support,
    every epoch transports a mass of 1 from each query, and Q/K to each class, at the cost
    ``||z_q - mu_k||^2``, and moves the centroids with the plan p::

        mu_k += step ( (sum of class k's support + sum_q p_qk z_q) / (shots + sum_q p_qk) - mu_k )

    The plan at the last centroids gives the probabilities. The method assumes that all classes are
    about equally frequent among the queries.

    Parameters
    ----------
    power : float, optional
        Exponent of the features, after 1e-6 is added, > 0; they must be at least 0. 1.0 leaves them
        unchanged, of any sign. By default 0.5, and 1.0 for a task with a negative feature.
    reg : float
        Weight of the entropy in the transport, > 0: the smaller, the sharper the plan.
    step : float
        Step fraction of the centroids towards their new position per epoch, at most 1. The public
        code has 0.01 for a wide network on mini.
    epochs : int
        Moves of the centroids, >= 1.
    max_iter : int
        Limit on Sinkhorn iterations per epoch, >= 1.
    tol : float
        A task's iteration stops when no query's mass is off by more than this, >= 0.
    """

    name: ClassVar[str] = "pt_map"
    display: ClassVar[Display] = Display("PT-MAP", 5, "#cc79a7", "v")
    tuning_grid: ClassVar[Grid] = {"step": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)}

    power: float | None = option(None, positive)
    reg: float = option(0.1, positive)
    step: float = option(0.02, partial(check.real, most=1.0))
    epochs: int = option(20, check.integer)
    max_iter: int = option(1000, check.integer)
    tol: float = option(1e-6, check.real)

    def solve(self, task: Task) -> Tensor:
        Q, K = task.query.shape[1], task.num_classes
        for name, x in (("support", task.support), ("query", task.query)):
            if self.power not in (None, 1) and (least := float(x.min())) < 0:
                raise check.ArgumentValueError(
                    name,
                    f"must be at least 0 for power={self.power:g} (as features after a ReLU are), "
                    f"got {least:g}",
                    or_pass="power=1.0",
                )
        small = (Q * Q + 8 * Q * K) * task.query.itemsize  # of an epoch
        return in_chunks(self.solve_chunk, task, 4 * task.bytes + small)

    def powers(self, task: Task) -> Tensor:
        """The exponents [B, 1, 1], or one for all tasks."""
        if self.power is not None:
            return task.query.new_tensor(self.power)
        least = [x.amin((-2, -1), keepdim=True) for x in (task.support, task.query)]
        exponents = torch.where(torch.minimum(*least) < 0, 1.0, 0.5).to(task.query)
        return exponents[0] if bool((exponents == exponents[0]).all()) else exponents

    # The public code first maps a task, by QR, to as many coordinates as it has rows. That is an
    # isometry of the span of its features: all norms, means and distances are the same without it.
    #
    # Centroids mu are combinations of the task's features, and the cost needs only their products
    # with the queries z and with themselves. So these products are updated instead: with s the sum
    # of a class's support, n = shots + sum_q p_q and e = (s + sum_q p_q z_q) / n where a centroid
    # is to go, z.e, s.e, mu.e and e.e follow from z.z, z.s, s.s, z.mu and s.mu. An epoch then costs
    # the same for any number of features.
    def solve_chunk(self, task: Task) -> Tensor:
        powers = self.powers(task)
        z, support = prepared(task.query, powers), prepared(task.support, powers)
        labels = task.support_labels.expand(len(support), -1)
        sums, shots = class_sums(support, labels, task.num_classes)
        shots = shots.to(z.dtype).unsqueeze(-2)  # [B or 1, 1, K]
        zz = z @ z.mT  # [B, Q, Q]
        zs = products(z, sums)  # [B, Q, K]
        ss = sums.square().sum(-1).unsqueeze(-2)  # [B or 1, 1, K]
        z_squared = z.square().sum(-1, keepdim=True)  # [B, Q, 1]
        z_mu, s_mu, mu_mu = zs / shots, ss / shots, ss / shots.square()

        Q, K, step = *zs.shape[1:], self.step
        row_mass, col_mass = z.new_ones(Q), z.new_full((K,), Q / K)
        plan = zs
        for epoch in range(self.epochs + 1):
            plan = sinkhorn(
                (z_squared + mu_mu - 2 * z_mu).clamp(min=0),
                row_mass,
                col_mass,
                reg=self.reg,
                max_iter=self.max_iter,
                tol=self.tol,
                validate=False,
            ).plan
            if epoch == self.epochs:
                break
            n = shots + plan.sum(-2, keepdim=True)
            pz = zz @ plan  # [B, Q, K]: z.(sum_q p_q z_q)
            s_e = (ss + (plan * zs).sum(-2, keepdim=True)) / n
            mu_e = (s_mu + (plan * z_mu).sum(-2, keepdim=True)) / n
            e_e = (ss + (plan * (2 * zs + pz)).sum(-2, keepdim=True)) / n.square()
            mu_mu = (1 - step) ** 2 * mu_mu + 2 * step * (1 - step) * mu_e + step**2 * e_e
            s_mu = s_mu + step * (s_e - s_mu)
            z_mu = z_mu + step * ((zs + pz) / n - z_mu)
        return plan / plan.sum(-1, keepdim=True)


def prepared(x: Tensor, powers: Tensor) -> Tensor:
    """Features in the coordinates of the method, [.., N, D]; a row at the mean becomes zero."""
    above = x + 1e-6
    # Rows become unit-norm below, so they may be scaled to at most 1: no power overflows.
    x = torch.where(powers == 1, x, (above / above.amax(-1, keepdim=True)).pow(powers))
    x = unit_rows(x)
    x = x - x.mean(-2, keepdim=True)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm > AT_THE_MEAN, x / norm, 0)
