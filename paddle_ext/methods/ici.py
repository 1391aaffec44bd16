"""LR + ICI: logistic regression that absorbs queries by the credibility of their pseudo-labels.

The path of the incidental parameters is computed for all tasks of a batch at once. With U
[N, d] an orthonormal basis, P = I - U U^T and one-hot labels Y [N, K], ICI asks at which of 100
penalties a row of the multi-task lasso

    min over G [N, K] of  1/2 ||P Y - P G||^2 + penalty sum_n ||G_n||

is zero. P removes the best fit in the span of U, so this is also

    min over G and W [d, K] of  1/2 ||Y - U W - G||^2 + penalty sum_n ||G_n||,

where G can be eliminated row by row. That leaves a Huber loss of the norms of the residuals:

    min over W of  sum_n huber( ||y_n - u_n W|| ),      G_n = 0  <=>  ||y_n - u_n W|| <= penalty.

Labels are one-hot, so ||y_n - u_n W||^2 = 1 - 2 u_n . w_class(n) + u_n W W^T u_n^T, and no residual
[N, K] is ever formed: an iteration costs N d K, where a sweep of coordinate descent on G costs
N^2 K. If several W are minimal, as with one class, the search from least squares picks one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..adaptive_rule import logistic
from ..adaptive_rule.conjugate import newton
from ..rows import unit_rows
from ..task import Task, in_chunks
from .base import Display, Grid, Method, Presets
from .options import option
from .registry import register

LEAST_SPREAD = 1e-6  # of unit-norm rows along a principal axis; less is rounding
# Outside these bounds, single-precision rounding hides either the penalty or the data.
REGULARISATION = (1e-6, 1e6)
PENALTIES = 100
SMALLEST = 1e-3  # the smallest penalty, as a share of the largest
AT_ONCE = 8  # penalties solved at once: small tensors take as long as larger ones
TOL = 1e-10  # of the residual norms, roughly
MAX_ITER = 100
LEAST_CURVATURE = 1e-9  # as a share of the preconditioner's
TINY = torch.finfo(torch.float64).tiny


def check_regularisation(name: str, value: object) -> None:
    C = check.real(name, value, positive=True)
    if not REGULARISATION[0] <= C <= REGULARISATION[1]:
        raise ValueError(f"{name} must be in [1e-06, 1e+06], got {C}")


@register
@dataclass(frozen=True, kw_only=True)
class Ici(Method):
    """Logistic regression that absorbs the queries, the most credible pseudo-labels first.

    Wang et al., *Instance Credibility Inference for Few-Shot Learning*, CVPR 2020. Rows are made
    unit-norm. A multinomial logistic regression is fitted to the support, and then in every round:

    1. The model labels all queries, including those absorbed before.
    2. The one-hot labels of all rows are regressed on their first principal components. Each row
       has an incidental parameter, a vector, which absorbs what the regression does not explain,
       under a penalty on its norm. The smaller the penalty at which it is zero, the more credible
       the label. 100 penalties are tried, spaced geometrically, from the largest, at which all are
       zero, to a thousandth of it.
    3. The `step` most credible remaining queries of each class are absorbed; of equals, the first.
    4. The model is fitted again to the support and all absorbed queries.

    A task stops when all its queries are absorbed. The probabilities are those of its last model.

    Parameters
    ----------
    step : int
        Limit on queries absorbed per class and round, >= 1.
    max_iter : int
        Limit on rounds, >= 1.
    dimension : int
        Principal components that the labels are regressed on, >= 1. Fewer are used if rows have
        fewer directions.
    inverse_regularisation : float
        C, in [1e-6, 1e6]: the model minimises 1/2 ||W||^2 + C * cross-entropy, summed over rows;
        intercepts are not penalised. With two classes it has one logit, as in scikit-learn, and W
        is its weight vector.
    tol : float
        Accuracy of the fits, >= 0: the error of the logits is about this, or C times this for C <
        1, and usually much less.
    """

    name: ClassVar[str] = "ici"
    display: ClassVar[Display] = Display("LR+ICI", 3, "#8c6d31", "D")
    tuning_grid: ClassVar[Grid] = {"dimension": (2, 5, 10), "step": (3, 5, 10)}
    presets: ClassVar[Presets] = {"tiered": {"dimension": 5}, "inat": {"dimension": 5}}

    step: int = option(5, check.integer)
    max_iter: int = option(100, check.integer)
    dimension: int = option(2, check.integer)
    inverse_regularisation: float = option(10.0, check_regularisation)
    tol: float = option(0.01, check.real)

    def solve(self, task: Task) -> Tensor:
        N, D = task.support.shape[-2] + task.query.shape[-2], task.query.shape[-1]
        K, d = task.num_classes, min(self.dimension, N, D)
        fits = 8 * (N + D) * K * task.query.itemsize
        return in_chunks(self.solve_chunk, task, fits + 8 * N * (4 * D + 2 * K + 16 * d + d * d))

    def solve_chunk(self, task: Task) -> Tensor:
        B, Q, _ = task.query.shape
        S, K = task.support.shape[-2], task.num_classes
        support = unit_rows(task.support).expand(B, -1, -1)
        features, axes = principal_components(
            torch.cat([support, unit_rows(task.query)], dim=1), self.dimension
        )
        support_labels = task.support_labels.expand(B, -1)
        labels = torch.nn.functional.pad(support_labels, (0, Q))
        included = (torch.arange(S + Q, device=labels.device) < S).expand(B, -1)
        # With two classes, one logit of weights w is two of weights w/2 and -w/2: half of the
        # penalty on w.
        C = self.inverse_regularisation / (2 if K == 2 else 1)
        fit = partial(logistic.fit, num_classes=K, inverse_regularisation=C, tol=self.tol)
        model = fit(features, labels, included)

        probabilities = task.query.new_empty(B, Q, K)
        tasks = torch.arange(B, device=labels.device)  # those still running
        credibility = CredibilityOrder(axes, K)
        for _ in range(self.max_iter):
            labels = torch.cat([support_labels, model.logits[:, S:].argmax(-1)], dim=1)
            included = included | self.most_credible(credibility, labels, included, K)
            model = fit(features, labels, included, start=model)
            probabilities[tasks] = torch.softmax(model.logits[:, S:], dim=-1)

            left = ~included.all(-1)
            if not bool(left.any()):
                break
            if not bool(left.all()):
                tasks, features, included = tasks[left], features[left], included[left]
                support_labels = support_labels[left]
                model = logistic.Fit(*(x[left] for x in model))
                credibility.keep(left)
        return probabilities

    def most_credible(
        self, credibility: CredibilityOrder, labels: Tensor, included: Tensor, num_classes: int
    ) -> Tensor:
        """The rows to absorb next, [B, N] bool; `included` are already absorbed."""
        classes = torch.where(included, num_classes, labels)
        counts = torch.zeros_like(classes[:, :1]).repeat(1, num_classes + 1)
        counts.scatter_add_(1, classes, torch.ones_like(classes))
        # If no class has more rows than may be absorbed, credibility does not matter.
        contested = (counts[:, :num_classes] > self.step).any(-1)
        order = credibility.first_zeros(labels, contested)
        return (place_in_class(classes, order) < self.step) & ~included


class CredibilityOrder:
    """The order in which rows become credible; recomputed only for tasks whose labels changed."""

    def __init__(self, axes: Tensor, num_classes: int) -> None:
        self.axes = axes  # [B, N, d] float64
        self.num_classes = num_classes
        self.labels = torch.full(axes.shape[:2], -1, device=axes.device)
        self.order = torch.zeros_like(self.labels)

    def keep(self, tasks: Tensor) -> None:
        """Keep only the tasks of a mask [B]."""
        self.axes, self.labels, self.order = self.axes[tasks], self.labels[tasks], self.order[tasks]

    def first_zeros(self, labels: Tensor, needed: Tensor) -> Tensor:
        """The function `first_zeros` for the tasks of a mask [B]; others may have stale results."""
        new = needed & (labels != self.labels).any(-1)
        if bool(new.any()):
            self.labels[new] = labels[new]
            self.order[new] = first_zeros(self.axes[new], labels[new], self.num_classes)
        return self.order


def place_in_class(classes: Tensor, order: Tensor) -> Tensor:
    """The place of each row in its class when sorted by `order`, then by index, [B, N]."""
    sorted_keys, rows = (classes * PENALTIES + order).sort(dim=-1, stable=True)
    sorted_classes = sorted_keys // PENALTIES
    start = torch.searchsorted(sorted_classes, sorted_classes)
    place = torch.arange(classes.shape[-1], device=classes.device) - start
    return torch.empty_like(place).scatter_(-1, rows, place)


def principal_components(rows: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Coordinates of unit-norm rows [B, N, D] along all their principal axes, and a basis.

    The coordinates [B, N, min(N, D)], in the dtype of the rows, are a rotation of the centred rows:
    a model with an intercept and a penalty on the norm of its weights is the same on both. The
    basis [B, N, d], float64, spans the first d = `dimension` coordinates; d is smaller if there
    are fewer, and a column is zero where a task has no spread in that direction.
    """
    N, D = rows.shape[1:]
    dimension = min(dimension, N, D)
    centred = rows.double()
    centred = centred - centred.mean(1, keepdim=True)
    if N <= D:
        squares, left = torch.linalg.eigh(centred @ centred.mT)
        coordinates = left * squares.clamp(min=0).sqrt().unsqueeze(1)
    else:
        squares, right = torch.linalg.eigh(centred.mT @ centred)
        coordinates = centred @ right
    basis = coordinates[..., -dimension:]  # the largest are last
    norms = torch.linalg.vector_norm(basis, dim=1, keepdim=True)
    spread = norms > LEAST_SPREAD * N**0.5
    return coordinates.to(rows.dtype), torch.where(spread, basis / torch.where(spread, norms, 1), 0)


def first_zeros(axes: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """For each row, the number of the smallest penalty at which it is zero, [B, N] int64.

    Penalties are numbered from the smallest, 0, and spaced by equal factors. The largest, 99, is
    the least one at which all rows are zero. Going down from it, a task is finished once no row is
    zero: what is then minimised, the sum of the residual norms, does not depend on the penalty, so
    no row is zero at any smaller one. The columns of `axes`, U [B, N, d], are orthonormal, or zero.
    """
    fit = RobustFit(axes, labels, num_classes)
    largest = fit.squares.amax(-1).sqrt()  # [B, 1]
    first = torch.full_like(labels, PENALTIES - 1)
    tasks = torch.arange(len(labels), device=labels.device)
    for top in range(PENALTIES - 2, -1, -AT_ONCE):
        numbers = torch.arange(top, max(top - AT_ONCE, -1), -1, device=labels.device)
        shares = SMALLEST ** (1 - numbers.to(axes.dtype) / (PENALTIES - 1))
        fit.set_penalties(largest[tasks] * shares)
        newton(fit, TOL, MAX_ITER)
        zero = fit.squares.sqrt() <= fit.penalties  # [B, L, N]
        smallest = torch.where(zero, numbers.view(-1, 1), PENALTIES).amin(1)
        first[tasks] = torch.minimum(first[tasks], smallest)
        unfinished = zero.any(-1).all(-1)
        if not bool(unfinished.any()):
            break
        tasks = tasks[unfinished]
        fit.keep(unfinished)
    return first


class RobustFit:
    """The Huber losses divided by their penalties, as a `conjugate.CurvedProblem`.

    The batch is B tasks times L penalties, the points are W [B, L, d, K]. Thanks to the division
    the weight of a row is 1/||residual|| or 1/penalty, whichever is less, and the scale of the
    problem is the same for all penalties.
    """

    def __init__(self, axes: Tensor, labels: Tensor, num_classes: int) -> None:
        B, N, d = axes.shape
        classes = torch.arange(num_classes, device=axes.device)
        self.axes = axes.mT.contiguous()  # [B, d, N]
        self.products = (axes.unsqueeze(-1) * axes.unsqueeze(-2)).view(B, N, d * d)
        self.unused = torch.diag_embed((axes == 0).all(-2).to(axes.dtype)).unsqueeze(1)
        self.labels = labels  # [B, N]
        self.one_hot = (labels.unsqueeze(-1) == classes).to(axes.dtype)  # [B, N, K]
        self.point = (self.axes @ self.one_hot).unsqueeze(1)  # least squares
        self.penalties = axes.new_zeros(B, 1, 1)  # [B, L, 1]
        self.squares = self.squared_residuals()  # [B, L, N]

    def keep(self, tasks: Tensor) -> None:
        """Keep only the tasks of a mask [B]."""
        for name in ("axes", "products", "unused", "labels", "one_hot", "point"):
            setattr(self, name, getattr(self, name)[tasks])

    def set_penalties(self, penalties: Tensor) -> None:
        """Set decreasing penalties [B, L]; all start from the last point."""
        self.penalties = penalties.unsqueeze(-1)
        self.point = self.point[:, -1:].expand(-1, penalties.shape[1], -1, -1)
        self.squares = self.squared_residuals()

    def squared_residuals(self) -> Tensor:
        explained = self.quadratic(self.point @ self.point.mT)
        return (1 - 2 * self.own(self.point) + explained).clamp(min=0)

    def own(self, x: Tensor) -> Tensor:
        """u_n . x_class(n) for x [B, L, d, K], [B, L, N]."""
        index = self.labels[:, None, None].expand(*x.shape[:-1], -1)
        return (x.gather(-1, index) * self.axes.unsqueeze(1)).sum(-2)

    def quadratic(self, x: Tensor) -> Tensor:
        """u_n x u_n^T for x [B, L, d, d], [B, L, N]."""
        return x.flatten(-2) @ self.products.mT

    def row_weights(self, squares: Tensor) -> Tensor:
        return 1 / torch.maximum(squares.sqrt(), self.penalties)

    def weighted_products(self, x: Tensor) -> Tensor:
        """Sum of x_n u_n^T u_n over all rows, for x [B, L, N]; [B, L, d, d]."""
        d = self.axes.shape[1]
        return (x @ self.products).view(*x.shape[:2], d, d)

    def class_sums(self, x: Tensor) -> Tensor:
        """Sum of x_n u_n^T over the rows of each class, for x [B, L, N]; [B, L, d, K]."""
        rows = x.unsqueeze(-2) * self.axes.unsqueeze(1)  # [B, L, d, N]
        return (rows.flatten(1, 2) @ self.one_hot).view(*rows.shape[:3], -1)

    def gradient(self) -> tuple[Tensor, Tensor]:
        self.weights = self.row_weights(self.squares)
        self.normal = self.weighted_products(self.weights)
        # A residual larger than the penalty has no curvature along its own direction.
        outside = self.squares > self.penalties.square()
        self.radial = torch.where(outside, self.weights / self.squares.clamp(min=TINY), 0)
        self.inverse, _ = torch.linalg.inv_ex(self.normal + self.unused)
        gradient = self.normal @ self.point - self.class_sums(self.weights)
        return gradient, self.precondition(gradient)

    def precondition(self, x: Tensor) -> Tensor:
        product: Tensor = self.inverse @ x
        return product

    def along(self, x: Tensor) -> Tensor:
        """Residuals . (change of the fit if the point changes by x), [B, L, N]."""
        return self.own(x) - self.quadratic(self.point @ x.mT)

    def hessian_product(self, x: Tensor) -> Tensor:
        radial = self.radial * self.along(x)
        taken_off = self.class_sums(radial) - self.weighted_products(radial) @ self.point
        return (1 + LEAST_CURVATURE) * (self.normal @ x) - taken_off

    def look_along(self, direction: Tensor) -> Tensor:
        self.direction = direction
        # Residual . change of the fit, and ||change||^2, of each row.
        self.first = self.along(direction)
        self.second = self.quadratic(direction @ direction.mT)
        return (self.weights * self.second - self.radial * self.first.square()).sum(-1)

    def slope(self, step: Tensor) -> Tensor:
        t = step.unsqueeze(-1)
        self.ahead = (self.squares - 2 * t * self.first + t.square() * self.second).clamp(min=0)
        return (self.row_weights(self.ahead) * (t * self.second - self.first)).sum(-1)

    def move(self, step: Tensor) -> None:
        self.point = self.point + step[..., None, None] * self.direction
        self.squares = self.ahead
