"""Minimise many smooth convex functions at once, by conjugate gradients.

The functions form a batch of any shape, written [..] here; their arguments are matrices. Each has
its own step lengths and stops on its own: a finished one takes steps of length zero while others
continue, so its result does not depend on them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..task import bounded

FLAT = 0.25  # a line search ends where the slope is at most this share of the slope at its start
FARTHEST = 8.0  # limit on the first step; with a good preconditioner it is about 1
TRIALS = 20  # steps tried in a line search; any two of them at least halve the interval
FORCING = 0.01  # accuracy of a Newton step
STEPS = 100  # limit on conjugate gradient iterations in a Newton step
PATIENCE = 30  # stop after so many iterations without progress: only rounding is left


class Problem(Protocol):
    """A batch of convex functions and, for each, the current point, which is a matrix."""

    def gradient(self) -> tuple[Tensor, Tensor]:
        """The gradient at the point, and the preconditioned gradient; matrices."""

    def look_along(self, direction: Tensor) -> Tensor:
        """Set the search direction, a matrix; returns the second derivative along it, [..]."""

    def slope(self, step: Tensor) -> Tensor:
        """The derivative along the direction at point + step * direction, [..]."""

    def move(self, step: Tensor) -> None:
        """Make point + step * direction the point; `step` is that of the last call of `slope`."""


def minimise(problem: Problem, tol: float, max_iter: int) -> Tensor:
    """Move to the minimum by preconditioned Polak-Ribière steps; returns the iterations, [..].

    A function is done when the square root of (gradient . preconditioned gradient) is at most
    `tol`, when it makes no more progress, or after `max_iter` iterations.
    """
    gradient, scaled = problem.gradient()
    size = inner(gradient, scaled)
    best, waiting = size, torch.zeros_like(size)
    direction = -scaled
    running = larger(size, tol)
    iterations = torch.zeros_like(size, dtype=torch.int64)
    while bool(running.any()):
        search(problem, direction, inner(gradient, direction), running)
        old_gradient, old_size = gradient, size
        gradient, scaled = problem.gradient()
        size = inner(gradient, scaled)

        # The direction of a finished function is not used, but must not become NaN.
        share = (size - inner(old_gradient, scaled)) / torch.where(running, old_size, 1)
        direction = share.clamp(min=0)[..., None, None] * direction - scaled
        uphill = inner(gradient, direction) >= 0
        direction = torch.where(uphill[..., None, None], -scaled, direction)

        iterations += running
        progress = size < 0.9 * best
        best = torch.where(progress, size, best)
        waiting = torch.where(progress, 0, waiting + 1)
        running = running & larger(size, tol) & (waiting < PATIENCE) & (iterations < max_iter)
    return iterations


class CurvedProblem(Problem, Protocol):
    """A problem that also provides second derivatives at the point."""

    def hessian_product(self, x: Tensor) -> Tensor:
        """The Hessian, made positive definite, times a matrix x; a matrix."""

    def precondition(self, x: Tensor) -> Tensor:
        """Apply the preconditioner of `gradient` to x."""


def newton(problem: CurvedProblem, tol: float, max_iter: int) -> Tensor:
    """Like `minimise`, but by Newton steps, each solved by conjugate gradients.

    Faster for functions whose curvature jumps or almost vanishes: it needs fewer gradients, but
    several products with the Hessian for each.
    """
    gradient, scaled = problem.gradient()
    size = inner(gradient, scaled)
    running = larger(size, tol)
    iterations = torch.zeros_like(size, dtype=torch.int64)
    while bool(running.any()):
        direction = newton_step(problem, gradient, scaled, size, running)
        search(problem, direction, inner(gradient, direction), running)
        gradient, scaled = problem.gradient()
        size = inner(gradient, scaled)
        iterations += running
        running = running & larger(size, tol) & (iterations < max_iter)
    return iterations


def newton_step(
    problem: CurvedProblem, gradient: Tensor, scaled: Tensor, size: Tensor, running: Tensor
) -> Tensor:
    """Solve Hessian . step = -gradient approximately."""
    residual, direction = -gradient, -scaled
    step = torch.zeros_like(gradient)
    enough = FORCING**2 * size
    going = running
    for _ in range(STEPS):
        product = problem.hessian_product(direction)
        length = size / torch.where(going, inner(direction, product), 1)
        length = torch.where(going, length, 0)[..., None, None]
        step = step + length * direction
        residual = residual - length * product
        scaled = problem.precondition(residual)
        old_size, size = size, inner(residual, scaled)
        going = going & (size > enough)
        if not bool(going.any()):
            break
        share = torch.where(going, size / torch.where(going, old_size, 1), 0)[..., None, None]
        direction = scaled + share * direction
    return step


def search(problem: Problem, direction: Tensor, start: Tensor, running: Tensor) -> None:
    """Move along a direction of descent to where the slope, `start` [..] at first, is nearly 0.

    The slope increases with the step. After a first Newton step its zero is bracketed, and false
    position and bisection take turns.
    """
    curvature = problem.look_along(direction)
    smallest = torch.finfo(start.dtype).tiny
    step = (-start / curvature.clamp(min=smallest)).clamp(max=FARTHEST)
    step = torch.where(running, step, 0)
    low, low_slope = torch.zeros_like(step), start
    high, high_slope = torch.full_like(step, torch.inf), -start
    done = ~running
    for trial in range(TRIALS):
        slope = problem.slope(step)
        done = done | (slope.abs() <= FLAT * start.abs())
        if bool(done.all()):
            break
        below = slope < 0
        low, low_slope = torch.where(below, step, low), torch.where(below, slope, low_slope)
        high, high_slope = torch.where(below, high, step), torch.where(below, high_slope, slope)
        bracketed = torch.isfinite(high)
        end = torch.where(bracketed, high, low)
        share = 0.5 if trial % 2 else low_slope / (low_slope - high_slope)
        inside = low + share * (end - low)
        if trial < TRIALS - 1:
            step = torch.where(done, step, torch.where(bracketed, inside, FARTHEST * step))
    problem.move(step)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of matrices, [..]."""
    return (a * b).sum((-2, -1))


def larger(size: Tensor, tol: float) -> Tensor:
    """Whether the square root of a size exceeds the tolerance."""
    return size.clamp(min=0).sqrt() > bounded(tol)
