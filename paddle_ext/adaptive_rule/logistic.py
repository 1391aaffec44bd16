"""Multinomial logistic regression for many tasks at once.

A task minimises over W [F, K] and the intercept b [K], which is not penalised,

    1/2 ||W||^2 + C sum of -ln softmax(x_n W + b)[y_n] over the rows n that are included.

One iteration costs two products with the features, one for the direction and one for the gradient:
the line search works on the logits, which are linear in the step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .conjugate import inner, minimise

MAX_ITER = 1000
FIRST_ITER = 3  # iterations with the preconditioner for zero weights, before it is updated
LEAST_CURVATURE = 1e-3  # on the diagonal, for C >= 1: an intercept may have almost none


class Fit(NamedTuple):
    """A fitted model of each task."""

    weights: Tensor  # [B, F + 1, K]: the last row is the intercept, which sums to 0
    logits: Tensor  # [B, N, K]: of all rows, included or not
    iterations: Tensor  # [B] int64


def fit(
    features: Tensor,
    labels: Tensor,
    included: Tensor,
    num_classes: int,
    *,
    inverse_regularisation: float,
    tol: float,
    start: Fit | None = None,
) -> Fit:
    """Fit a model to the included rows of each task.

    Any features work; convergence is fastest if their columns have mean 0 and are uncorrelated over
    the rows of a task, like principal components.

    Parameters
    ----------
    features : Tensor [B, N, F]
    labels : Tensor [B, N] int64
        Labels of rows that are not included may be any class.
    included : Tensor [B, N]
        Which rows count, or their weights.
    num_classes : int
        K.
    inverse_regularisation : float
        C.
    tol : float
        Stop a task when the gradient, in the norm of the inverse of an approximate Hessian, is at
        most this, or C times this for C < 1, where weights are about C times as small. The Hessian
        is at least 1, so the error of the logits of a unit-norm row is about this, usually less.
    start : Fit, optional
        A model of the same features to start from; default: zero weights. It affects the time and,
        within `tol`, the result.

    Returns
    -------
    Fit
    """
    problem = Logistic(features, labels, included, num_classes, inverse_regularisation, start)
    iterations = torch.zeros_like(labels[:, 0])
    tol = tol * min(1.0, inverse_regularisation)
    if start is None:
        iterations += minimise(problem, tol, FIRST_ITER)
        problem.precondition()  # the Hessian at zero weights is far from that at the minimum
    iterations += minimise(problem, tol, MAX_ITER)
    weights = problem.weights
    shift = weights[:, -1:].mean(-1, keepdim=True)
    weights = torch.cat([weights[:, :-1], weights[:, -1:] - shift], dim=1)
    return Fit(weights, problem.logits - shift, iterations)


class Logistic:
    """The objective as a `conjugate.Problem` with points [B, F + 1, K]."""

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        included: Tensor,
        num_classes: int,
        inverse_regularisation: float,
        start: Fit | None,
    ) -> None:
        B, N, F = features.shape
        self.features = torch.cat([features, features.new_ones(B, N, 1)], -1)  # [B, N, F + 1]
        self.labels = labels.unsqueeze(-1)  # [B, N, 1]
        self.least_curvature = LEAST_CURVATURE * min(1.0, inverse_regularisation)
        self.row_weights = inverse_regularisation * included.to(features.dtype).unsqueeze(-1)
        self.penalty = features.new_ones(F + 1, 1)
        self.penalty[-1] = 0
        if start is None:
            self.weights = features.new_zeros(B, F + 1, num_classes)
            self.logits = features.new_zeros(B, N, num_classes)
        else:
            self.weights, self.logits = start.weights, start.logits
        self.probabilities = torch.softmax(self.logits, -1)
        self.precondition()

    def precondition(self) -> None:
        """Approximate the Hessian at the point by a diagonal and a rank-one term for each class.

        The rows of class k contribute most curvature to the weights of class k. Their mean gives
        the rank-one term; all other rows contribute to the diagonal, as if equally uncertain.
        """
        p = self.probabilities
        own_p = p.gather(-1, self.labels)
        uncertainty = torch.zeros_like(p)
        uncertainty.scatter_(-1, self.labels, self.row_weights * own_p * (1 - own_p))
        sums = self.features.mT @ uncertainty  # [B, F + 1, K]
        own = sums[:, -1:]  # the last feature is 1, [B, 1, K]
        others = self.row_weights.mT @ (p * (1 - p)) - own
        energy = self.row_weights.mT @ self.features.square()  # [B, 1, F + 1]
        shared = energy.mT * others / self.row_weights.sum(-2, keepdim=True)
        self.diagonal = (self.penalty + shared).clamp(min=self.least_curvature)
        means = sums / own.clamp(min=torch.finfo(own.dtype).tiny)
        self.scaled_means = means / self.diagonal
        self.factor = own / (1 + own * (means * self.scaled_means).sum(-2, keepdim=True))

    def gradient(self) -> tuple[Tensor, Tensor]:
        residual = self.row_weights * self.probabilities
        residual.scatter_add_(-1, self.labels, -self.row_weights)
        gradient = self.features.mT @ residual + self.penalty * self.weights
        along_means = self.factor * (self.scaled_means * gradient).sum(-2, keepdim=True)
        return gradient, gradient / self.diagonal - along_means * self.scaled_means

    def look_along(self, direction: Tensor) -> Tensor:
        self.direction = direction
        self.change = self.features @ direction  # [B, N, K]: of the logits
        self.own_change = self.change.gather(-1, self.labels)  # [B, N, 1]
        penalised = self.penalty * direction
        self.penalty_slope = inner(penalised, self.weights)
        self.penalty_curvature = inner(penalised, direction)
        moved = self.probabilities * self.change
        spread = (moved * self.change).sum(-1, keepdim=True) - moved.sum(-1, keepdim=True).square()
        return inner(self.row_weights, spread) + self.penalty_curvature

    def slope(self, step: Tensor) -> Tensor:
        self.probabilities = torch.softmax(self.logits + step[..., None, None] * self.change, -1)
        mean_change = (self.probabilities * self.change).sum(-1, keepdim=True)
        along_data = inner(self.row_weights, mean_change - self.own_change)
        return along_data + self.penalty_slope + step * self.penalty_curvature

    def move(self, step: Tensor) -> None:
        length = step[..., None, None]
        self.weights = self.weights + length * self.direction
        self.logits = self.logits + length * self.change
