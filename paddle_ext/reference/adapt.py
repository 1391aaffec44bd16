"""Class proportions of a batch with a learned Dirichlet prior, in plain torch: the specification.

Letters: B tasks, Q queries, K classes. The proportions of a batch are drawn from Dirichlet(a, ...,
a), and query q has class k with probability pi_k; l_qk is its log-likelihood, up to a constant per
query. Mean-field inference alternates

    u_qk = softmax_k( l_qk + e_k )
    N_k  = w sum_q u_qk                                       w: weight of a query in the counts
    a   <- a exp(step)                                        one Newton step in ln a, at most 1
    e_k  = digamma(N_k + a) - digamma(w Q + K a)              the mean of ln pi_k

from e = 0 and a = 1. No step lowers the bound of the evidence

    w sum_q ( ln sum_k exp(l_qk + e_k) - sum_k u_qk e_k )
      + ln G(K a) - K ln G(a) - ln G(w Q + K a) + sum_k ln G(N_k + a).

If all classes are present, a grows and the proportions hardly matter; if few are, a shrinks and
absent classes vanish.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..solution import Solution

FIRST, LEAST, MOST = 1.0, 1e-4, 1e4  # concentrations
LOWEST = -1.7e308  # stands for minus infinity


def trigamma(x: Tensor) -> Tensor:
    """For x > 0. Torch is accurate to only 5e-10 for small x, so x is first shifted up."""
    lower = torch.zeros_like(x)
    for _ in range(20):
        lower = lower + x.square().reciprocal()
        x = x + 1
    found: Tensor = lower + torch.special.polygamma(1, x)
    return found


def next_concentration(a: Tensor, counts: Tensor, total: float) -> Tensor:
    """A Newton step in ln a towards the maximum of the bound, [B, 1]; counts [B, K]."""
    K = counts.shape[-1]
    psi = torch.special.digamma
    slope = K * (psi(K * a) - psi(total + K * a)) + (psi(counts + a) - psi(a)).sum(-1, True)
    curvature = K**2 * (trigamma(K * a) - trigamma(total + K * a))
    curvature = curvature + (trigamma(counts + a) - trigamma(a)).sum(-1, True)
    first, second = a * slope, a * slope + a.square() * curvature  # in ln a
    step = torch.where(second < 0, -first / second, first.sign()).clamp(-1, 1)
    return (a * step.exp()).clamp(LEAST, MOST)


def bound(logits: Tensor, e: Tensor, a: Tensor, weight: float) -> Tensor:
    """Bound of the evidence, [B], with u optimal for e; logits [B, Q, K], e [B, K], a [B, 1]."""
    Q, K = logits.shape[-2:]
    z = logits + e.unsqueeze(-2)
    counts = weight * z.softmax(-1).sum(-2)
    queries = weight * z.logsumexp(-1).sum(-1) - (counts * e).sum(-1)
    lgamma = torch.lgamma
    prior = lgamma(K * a) - K * lgamma(a) - lgamma(weight * Q + K * a)
    return queries + prior.squeeze(-1) + lgamma(counts + a).sum(-1)


def adapt(
    logits: Tensor, *, weight: float = 1.0, max_iter: int = 100, tol: float = 1e-3
) -> Solution:
    """Adapt log-likelihoods to the class proportions of their batch; see `paddle_ext.adapt`.

    Always computed in float64.

    Returns
    -------
    Solution
        In float64 for float64 logits, else in float32.

    Examples
    --------
    >>> import torch
    >>> logits = torch.tensor([[3.0, 0.0, 0.0]] * 6 + [[0.4, 0.5, 0.0]])
    >>> adapt(logits).labels
    tensor([0, 0, 0, 0, 0, 0, 0])
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    *batch, Q, K = logits.shape
    given = logits.detach().double().reshape(-1, Q, K).clamp(min=LOWEST)
    B = len(given)
    e, a = given.new_zeros(B, K), given.new_full((B, 1), FIRST)
    counts, criterion = given.new_zeros(B, K), given.new_zeros(B)
    iterations = torch.zeros(B, dtype=torch.int32, device=given.device)
    running = torch.ones(B, dtype=torch.bool, device=given.device)
    for _ in range(max_iter):
        if not running.any():
            break
        counts_next = weight * (given + e.unsqueeze(-2)).softmax(-1).sum(-2)
        a_next = next_concentration(a, counts_next, weight * Q)
        e_next = torch.special.digamma(counts_next + a_next)
        e_next = e_next - torch.special.digamma(weight * Q + K * a_next)
        moved = (counts_next - counts).abs().amax(-1)

        live = running.unsqueeze(-1)  # stopped tasks keep their state
        counts, a = torch.where(live, counts_next, counts), torch.where(live, a_next, a)
        e = torch.where(live, e_next, e)
        criterion = torch.where(running, moved, criterion)
        iterations += running.int()
        if tol > 0:
            running = running & (criterion > tol)

    u = (given + e.unsqueeze(-2)).softmax(-1)
    proportions = (weight * u.sum(-2) + a) / (weight * Q + K * a)
    return Solution(
        labels=u.argmax(-1).reshape(*batch, Q),
        probabilities=u.to(dtype).reshape(*batch, Q, K),
        proportions=proportions.to(dtype).reshape(*batch, K),
        dual=e.to(dtype).reshape(*batch, K),
        iterations=iterations.reshape(batch),
        criterion=criterion.to(dtype).reshape(batch),
        concentration=a.squeeze(-1).to(dtype).reshape(batch),
        bound=bound(given, e, a, weight).to(dtype).reshape(batch),
    )
