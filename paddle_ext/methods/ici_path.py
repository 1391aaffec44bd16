"""The incidental-parameter path of ICI, for all tasks of a batch at once.

With U [N, d] an orthonormal basis, P = I - U U^T and one-hot labels Y [N, K], ICI asks at which of
100 penalties a row of the multi-task lasso

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

import torch
from torch import Tensor

from ..rule.conjugate import newton

PENALTIES = 100
SMALLEST = 1e-3  # penalty, as a share of the largest
AT_ONCE = 8  # penalties: a task needs few, and small tensors take as long as larger ones
TOL = 1e-10  # of the residual norms, roughly
MAX_ITER = 100
LEAST_CURVATURE = 1e-9  # as a share of the preconditioner's
TINY = torch.finfo(torch.float64).tiny


def first_zeros(axes: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The smallest penalty at which each row is zero, by its number, [B, N] int64.

    Penalties are numbered from the smallest, 0, and spaced by equal factors. The largest, 99, is
    the least one at which all rows are zero. Going down from it, a task is finished once no row is
    zero: what is then minimised, the sum of the residual norms, does not depend on the penalty, so
    no row is zero at any smaller one.

    Parameters
    ----------
    axes : Tensor [B, N, d] float64
        U: orthonormal columns, or zero ones.
    labels : Tensor [B, N] int64
    num_classes : int
        K.
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
    """The Huber losses divided by their penalties; a `conjugate.CurvedProblem`.

    The batch is B tasks times L penalties, the points are W [B, L, d, K]. So divided, the weight of
    a row is 1/||residual|| or 1/penalty, whichever is less, and the scale of the problem does not
    change along the path.
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
        # Outside the penalty a residual has no curvature along itself.
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
