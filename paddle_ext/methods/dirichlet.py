"""Dirichlet distributions of many classes at once: likelihoods, and the fit by majorisation.

In double precision throughout: a log-likelihood is a small difference of large numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOOK = 50  # iterations of the fit between convergence checks
CONVERGED = 1e-11  # squared change, relative to the squared parameters


def log_density(log_x: Tensor, alpha: Tensor) -> Tensor:
    """ln Dir(x_q; alpha_k) for log_x [B, Q, C] and alpha [B, K, C], [B, Q, K]."""
    constant = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    return constant.unsqueeze(1) + log_x @ (alpha - 1).mT


def fitted(alpha: Tensor, mean_log: Tensor, max_iter: int) -> Tensor:
    """Parameters of largest likelihood for the mean of ln x, from a start; rows [R, C].

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
        if i and i % LOOK == 0:
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
