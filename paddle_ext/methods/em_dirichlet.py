"""EM-Dirichlet: each class is a Dirichlet distribution over zero-shot probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import check
from ..libraries import library
from ..rows import class_sums, products, unit_rows
from ..task import Task, in_chunks
from .base import Display, Method, bounded, factor, one_of, option, positive
from .registry import register

EPSILON = 1e-15  # added to probabilities in logarithms; a class with less mass has no query
CHECK_EVERY = 50  # iterations of the fit between convergence checks
CONVERGED = 1e-11  # squared change, relative to the squared parameters
ITERATIONS = {"soft": 20, "hard": 10}


def check_schedule(name: str, schedule: object) -> None:
    """Accept one or more pairs of a weight >= 0 and a temperature > 0."""
    pairs: Any = schedule if isinstance(schedule, Sequence) else ()
    bad = [pair for pair in pairs if not isinstance(pair, Sequence) or len(pair) != 2]
    if bad or not pairs:
        got = f"the item {bad[0]!r}" if bad else check.kind(schedule)
        raise check.ArgumentTypeError(name, f"must be pairs of numbers, got {got}")
    for weight, temperature in pairs:
        bounded(name, weight)
        factor(name, temperature)


@register
@dataclass(frozen=True, kw_only=True)
class EmDirichlet(Method):
    """Each class is a Dirichlet distribution over zero-shot probabilities; favours few classes.

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
    display: ClassVar[Display] = Display("EM-Dirichlet", 15, "#44aa99", "^")
    takes_prototypes: ClassVar[bool] = True
    needs_prototypes: ClassVar[bool] = True

    assignment: str = option("soft", one_of(*ITERATIONS))
    lam: float | None = option(None, check.real)
    k_eff: int = option(5, check.integer)
    temperature: float = option(30.0, positive)
    schedule: tuple[tuple[float, float], ...] | None = option(None, check_schedule)
    max_iter: int | None = option(None, check.integer)
    fit_iter: int = option(1000, check.integer)
    logit_scale: float = option(100.0, factor)

    def solve(self, task: Task) -> Tensor:
        if task.prototypes is None and task.support.shape[1]:
            raise check.ArgumentValueError(
                "prototypes",
                f"must be given with the method {self.name!r} and labelled rows, got logits alone",
            )
        (Q, K), S = (task.query.shape[1], task.num_classes), task.support.shape[1]
        if S == 0:
            scipy_optimize()  # an error before the work
        return in_chunks(self.solve_chunk, task, 8 * (12 * K * K + 8 * (Q + S) * K) + task.bytes)

    def steps(self, Q: int, K: int) -> Sequence[tuple[float, float]]:
        """lam / Q and the temperature of each iteration."""
        if self.schedule is not None:
            return self.schedule
        weight = K // self.k_eff if self.lam is None else self.lam / Q
        return ((weight, 1.0),) * (self.max_iter or ITERATIONS[self.assignment])

    def solve_chunk(self, task: Task) -> Tensor:
        x = self.points(task, task.query)
        log_x = (x + EPSILON).log()
        (B, Q, K), has_support = x.shape, task.support.shape[1] > 0
        sums, shots = x.new_zeros(1, K, K), x.new_zeros(1, K)
        if has_support:
            log_s = (self.points(task, task.support) + EPSILON).log()
            labels = task.support_labels.expand(len(log_s), -1)
            sums, counts = class_sums(log_s, labels, K)
            shots = counts.to(x.dtype)
        u = soft = x
        alpha = x.new_ones(B, K, K)
        for weight, temperature in self.steps(Q, K):
            mass = u.sum(1) + shots
            target = (u.mT @ log_x + sums) / mass.clamp(min=EPSILON).unsqueeze(-1)
            used = mass > EPSILON
            alpha[used] = fitted(alpha[used], target[used], self.fit_iter)
            v = (u.mean(1) + EPSILON).log() + 1
            constant = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
            log_density = constant.unsqueeze(1) + log_x @ (alpha - 1).mT  # ln Dir(x_q; alpha_k)
            logits = log_density + weight * v.unsqueeze(1)
            u = soft = torch.softmax(logits / temperature, dim=-1)
            if self.assignment == "hard":
                u = torch.zeros_like(u).scatter_(-1, u.argmax(-1, keepdim=True), 1.0)
        if not has_support:
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


def scipy_optimize() -> Any:
    return library("scipy.optimize", "em_dirichlet without labelled rows", "scipy")


def renamed(u: Tensor, x: Tensor) -> Tensor:
    """u [B, Q, K] with each cluster moved to the class that it matches."""
    members = torch.zeros_like(u).scatter_(-1, u.argmax(-1, keepdim=True), 1.0)
    count = members.sum(1)
    means = members.mT @ x / count.clamp(min=1).unsqueeze(-1)
    match = matched(-means, count > 0)  # [B, K]
    return torch.zeros_like(u).scatter_(2, match.unsqueeze(1).expand_as(u), u)


def fitted(alpha: Tensor, mean_log: Tensor, max_iter: int) -> Tensor:
    """The most likely Dirichlet parameters for given means of ln x, both [R, C], from a start.

    Each step maximises a lower bound: with ``a`` the curvature of a parabola that touches
    ln Gamma(alpha + 1) from above and b its slope minus that of the rest of the bound, alpha is the
    positive root of ``a alpha^2 + b alpha = 1``. Rows stop independently. If all x are equal, the
    likelihood has no maximum; alpha then grows by a constant per step. It stays above 1/60 for mean
    logarithms above ln 1e-15, so that nothing is lost to rounding.
    """
    alpha = alpha.clone()
    rows = torch.arange(len(alpha), device=alpha.device)
    current, target = alpha, mean_log
    for i in range(max_iter):
        digamma = torch.digamma(current + 1)
        a = 2 * (digamma * current - torch.lgamma(current + 1)) / current.square()
        slope = torch.digamma(current.sum(-1, keepdim=True))
        b = digamma - slope - a * current - target
        following = ((b.square() + 4 * a).sqrt() - b) / (2 * a)
        if i and i % CHECK_EVERY == 0:
            moved = (following - current).square().sum(-1)
            going = moved >= CONVERGED * current.square().sum(-1)
            alpha[rows] = following
            rows, current, target = rows[going], following[going], target[going]
            if len(rows) == 0:
                break
        else:
            current = following
    alpha[rows] = current
    return alpha


def matched(cost: Tensor, wanted: Tensor) -> Tensor:
    """The class of each cluster, [B, K]: a permutation of the classes in each task.

    The `wanted` clusters [B, K] have the least total cost [B, K, K]; the others get what is left.
    """
    best = cost.argmin(-1)
    # Usually every cluster has a nearest class of its own, and that is the solution.
    chosen = torch.zeros_like(best).scatter_add_(1, best, wanted.long())
    for b in (chosen > 1).any(-1).nonzero().flatten().tolist():
        own = cost[b, wanted[b]].double().cpu().numpy()
        _, classes = scipy_optimize().linear_sum_assignment(own)
        best[b, wanted[b]] = torch.from_numpy(classes).to(best)
    taken = torch.zeros_like(best).scatter_add_(1, best, wanted.long())
    others = wanted.long().argsort(dim=-1, stable=True)  # unwanted clusters first
    left = taken.argsort(dim=-1, stable=True)  # free classes first
    filled = torch.zeros_like(best).scatter_(1, others, left)
    return torch.where(wanted, best, filled)
