"""Class proportions of a batch with a learned Dirichlet prior, in plain torch: the specification.

Letters: B tasks, Q queries, K classes. The proportions of a batch are drawn from Dirichlet(a m_1,
..., a m_K), and query q has class k with probability pi_k; l_qk is its log-likelihood, up to a
constant per query. The measure m has the mean 1. Mean-field inference alternates

    u_qk = softmax_k( l_qk + e_k )
    N_k  = w sum_q u_qk                                       w: weight of a query in the counts
    a   <- a exp(step)                                        one Newton step in ln a, at most 1
    e_k  = digamma(N_k + a m_k) - digamma(w Q + K a)          the mean of ln pi_k

from e = ln m and a = 1. No step lowers the bound of the evidence

    w sum_q ( ln sum_k exp(l_qk + e_k) - sum_k u_qk e_k )
      + ln G(K a) - ln G(w Q + K a) + sum_k ( ln G(N_k + a m_k) - ln G(a m_k) ).

Without a prior m = 1: if all classes are present, a grows and the proportions hardly matter; if few
are, a shrinks and absent classes vanish. With a prior p the iteration is run again with m = K p,
and this result is used if its bound is larger. Its a starts at the largest value, where e = ln m,
and may not get smaller than that of the first run, or any prior would win where few classes are
present. Impossible classes have m = 0 in both runs. The second run ends early if it is out of
reach: after 2, 4, 8, .. iterations, if its bound would stay below that of the first even if as many
iterations again added as much as the last ones, on average.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..solution import Solution

FIRST, LEAST, MOST = 1.0, 1e-4, 1e4  # the concentration: first, smallest and largest
LOWEST = -1.7e308  # stands for minus infinity in logits
IMPOSSIBLE = -1e30  # stands for minus infinity in the dual
LEAST_WEIGHT = 1e-8  # smallest weight of a possible class in a prior, relative to the mean weight


def trigamma(x: Tensor) -> Tensor:
    """The trigamma function for x > 0.

    Torch's is accurate to only 5e-10 for small x, so x is first shifted up by the recurrence.
    """
    lower = torch.zeros_like(x)
    for _ in range(20):
        lower = lower + x.square().reciprocal()
        x = x + 1
    return lower + torch.special.polygamma(1, x)  # type: ignore[no-any-return]


class Iterated(NamedTuple):
    """The state after the iterations under one measure."""

    dual: Tensor  # [B, K] e
    concentration: Tensor  # [B, 1] a
    measure: Tensor  # [B, K] m
    iterations: Tensor  # [B] int32
    criterion: Tensor  # [B]
    bound: Tensor  # [B]


def measures(prior: Tensor, B: int) -> tuple[Tensor, Tensor]:
    """Two measures [B, K] of a prior [K] or [B, K]: even over possible classes, and the prior's."""
    p = torch.as_tensor(prior).detach().double()
    p = (p / p.amax(-1, True)).expand(B, -1)
    K, possible = p.shape[-1], p > 0
    even = possible * (K / possible.double().sum(-1, True))
    return even, (K * p / p.sum(-1, True)).clamp(min=LEAST_WEIGHT) * possible


def next_concentration(a: Tensor, counts: Tensor, total: float, m: Tensor, least: Tensor) -> Tensor:
    """A Newton step in ln a towards the maximum of the bound, [B, 1]; counts, m [B, K]."""
    K, psi = counts.shape[-1], torch.special.digamma
    own = torch.where(m > 0, a * m, 1)
    slope = K * (psi(K * a) - psi(total + K * a))
    slope = slope + (m * (psi(counts + own) - psi(own))).sum(-1, True)
    curvature = K**2 * (trigamma(K * a) - trigamma(total + K * a))
    curvature = curvature + (m.square() * (trigamma(counts + own) - trigamma(own))).sum(-1, True)
    first, second = a * slope, a * slope + a.square() * curvature  # in ln a
    step = torch.where(second < 0, -first / second, first.sign()).clamp(-1, 1)
    return torch.maximum((a * step.exp()).clamp(max=MOST), least)


def bound(
    logits: Tensor,
    e: Tensor,
    a: Tensor,
    m: Tensor,
    weight: float,
    counts: Tensor | None = None,
) -> Tensor:
    """Lower bound of the log evidence, [B], with u optimal for e.

    The proportions are the best for these u, or for the counts [B, K] that e is made of.
    """
    Q, K = logits.shape[-2:]
    z = logits + e.unsqueeze(-2)
    if counts is None:
        counts = weight * z.softmax(-1).sum(-2)
    queries = weight * z.logsumexp(-1).sum(-1) - (counts * e).sum(-1)
    own = torch.where(m > 0, a * m, 1)
    prior = (torch.lgamma(K * a) - torch.lgamma(weight * Q + K * a)).squeeze(-1)
    return queries + prior + (torch.lgamma(counts + own) - torch.lgamma(own)).sum(-1)


def iterate(
    logits: Tensor,
    m: Tensor,
    least: Tensor,
    weight: float,
    max_iter: int,
    tol: float,
    first: float = FIRST,
    rival: Tensor | None = None,
) -> Iterated:
    """Iterate under m, from a = `first`; a task ends if its bound will not reach `rival` [B]."""
    B, Q, K = logits.shape
    e, a = m.log().clamp(min=IMPOSSIBLE), least.clamp(min=first)
    counts, criterion = torch.zeros_like(m), torch.zeros_like(m[:, 0])
    iterations = torch.zeros(B, dtype=torch.int32, device=m.device)
    running = torch.ones(B, dtype=torch.bool, device=m.device)
    earlier = torch.zeros_like(criterion)
    for done in range(max_iter):
        if rival is not None and done > 0 and done & (done - 1) == 0:
            now = bound(logits, e, a, m, weight)
            if done > 1:  # half of them added now - earlier
                running = running & ((now >= rival) | (now + 2 * (now - earlier) >= rival))
            earlier = now
        if not running.any():
            break
        counts_next = weight * (logits + e.unsqueeze(-2)).softmax(-1).sum(-2)
        a_next = next_concentration(a, counts_next, weight * Q, m, least)
        e_next = torch.special.digamma(torch.where(m > 0, counts_next + a_next * m, 1))
        e_next = e_next - torch.special.digamma(weight * Q + K * a_next)
        e_next = torch.where(m > 0, e_next, IMPOSSIBLE)
        moved = (counts_next - counts).abs().amax(-1)

        live = running.unsqueeze(-1)  # stopped tasks keep their state
        counts, a = torch.where(live, counts_next, counts), torch.where(live, a_next, a)
        e = torch.where(live, e_next, e)
        criterion = torch.where(running, moved, criterion)
        iterations += running.int()
        if tol > 0:
            running = running & (criterion > tol)
    return Iterated(e, a, m, iterations, criterion, bound(logits, e, a, m, weight))


def adapt(
    logits: Tensor,
    *,
    weight: float = 1.0,
    prior: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Solution:
    """Adapt log-likelihoods to the class proportions of their batch; see `paddle_ext.adapt`.

    Always computed in float64; the result is in float64 for float64 logits, else in float32.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    *batch, Q, K = logits.shape
    given = logits.detach().double().reshape(-1, Q, K).clamp(min=LOWEST)
    B = len(given)
    even, own = (x.to(given.device) for x in measures(torch.ones(K) if prior is None else prior, B))
    least = given.new_full((B, 1), LEAST)
    state, used = iterate(given, even, least, weight, max_iter, tol), None
    if prior is not None:
        least = state.concentration
        other = iterate(given, own, least, weight, max_iter, tol, MOST, state.bound)
        used = other.bound > state.bound
        both = zip(state, other, strict=True)
        state = Iterated(*(torch.where(used.view(-1, *[1] * (x.dim() - 1)), y, x) for x, y in both))
    e, a = state.dual, state.concentration
    u = (given + e.unsqueeze(-2)).softmax(-1)
    proportions = (weight * u.sum(-2) + a * state.measure) / (weight * Q + K * a)
    return Solution(
        labels=u.argmax(-1).reshape(*batch, Q),
        probabilities=u.to(dtype).reshape(*batch, Q, K),
        proportions=proportions.to(dtype).reshape(*batch, K),
        dual=e.to(dtype).reshape(*batch, K),
        iterations=state.iterations.reshape(batch),
        criterion=state.criterion.to(dtype).reshape(batch),
        concentration=a.squeeze(-1).to(dtype).reshape(batch),
        bound=state.bound.to(dtype).reshape(batch),
        prior_used=None if used is None else used.reshape(batch),
    )
