"""Groups of rows that share what they know, in plain torch, group by group: the specification.

Letters: Q rows, G groups of n rows, K classes. The equations are in docs/groups.md. Proportions of
a group are Dirichlet(a m_1, ..., a m_K), with the measure m of mean 1, and rows count w each.

Two rows of a group are one draw with the chance c = 1 / (1 + K a), else two draws from m / K. With
t the probabilities of a row alone under m, that makes a pair c sum_k t_k t'_k K / m_k + 1 - c times
as likely as rows of different groups. All groups choose the mixture of 17 chances under which their
pairs are likeliest; a group has the mean of its posterior.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..solution import Solution
from .adapt import IMPOSSIBLE, LEAST, MOST, bound, measures, next_concentration
from .adaptive import FEW, SOFTER, Likelihood, centred, moved_distances

PARTNERS = 16
CHANCES = [math.sin(i * math.pi / 32) ** 2 for i in range(17)]
SET_CLASSES = 8


class Members(NamedTuple):
    """The rows of G groups, in ascending order of their numbers."""

    of_row: Tensor  # [Q] the place of a row's group
    sizes: Tensor  # [G] float64
    rows: list[Tensor]  # of each group

    @staticmethod
    def of(groups: Tensor) -> "Members":
        of_row = torch.unique(groups, return_inverse=True)[1]
        sizes = of_row.bincount()
        rows = of_row.argsort(stable=True).split(sizes.tolist())
        return Members(of_row, sizes.double(), [*rows])


def pair_evidence(t: Tensor, m: Tensor) -> Tensor:
    """The log evidence of each chance, [17], from the rows [n, K] of one group under m [K]."""
    n, K = t.shape
    count = min(n - 1, PARTNERS)
    together = (t * K / m.clamp(min=1e-300)) @ t.mT
    pairs = [t.new_ones(0)]
    for j in range(count):
        shift = j + 1 if n - 1 <= PARTNERS else 1 + j * (n - 1) // PARTNERS
        pairs.append(together.roll(-shift, 1).diagonal())
    ratios = torch.cat(pairs).clamp(min=1e-30).unsqueeze(-1)
    return torch.log1p(t.new_tensor(CHANCES) * (ratios - 1)).sum(0) / (2 * max(count, 1))


def mixed_chances(evidence: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """The mean chance of each group, [G], under the likeliest mixture, and its shares [17]."""
    likely = (evidence - evidence.amax(-1, keepdim=True)).exp()
    shares = mixture_shares(likely, shares.clamp(min=torch.finfo(shares.dtype).tiny))
    own = likely * shares / (likely * shares).sum(-1, keepdim=True)
    return (own * likely.new_tensor(CHANCES)).sum(-1), shares


def mixture_shares(likely: Tensor, shares: Tensor) -> Tensor:
    """The shares [C] of a mixture under which the groups [G, C] are likeliest, from these."""
    for _ in range(20):
        own = likely * shares
        shares = (own / own.sum(-1, keepdim=True)).mean(0)
    return shares


def proportions_of(
    t: Tensor, m: Tensor, prior: Tensor, weight: float, max_iter: int, tol: float
) -> tuple[Tensor, Tensor]:
    """The probabilities [n, K] and counts [K] of a group; prior [K] is a m."""
    u, likelihood = t, t / m.clamp(min=1e-300)
    counts = weight * u.sum(0)
    for _ in range(min(max_iter, len(t) - 1)):
        total = counts + prior
        others = torch.maximum(total - weight * u, prior)
        u = likelihood * others * (total + 0.5) / (total + 1)
        u = u / u.sum(-1, keepdim=True)
        before, counts = counts, weight * u.sum(0)
        if tol > 0 and float((counts - before).abs().max()) <= tol:
            break
    return u, counts


class Fit:
    """The groups under Dirichlet priors with the measure m [G, K]."""

    def __init__(
        self,
        logits: Tensor,
        groups: Members,
        weight: Tensor,
        m: Tensor,
        shares: Tensor,
        max_iter: int,
        tol: float,
        least: Tensor | None = None,
    ) -> None:
        K = logits.shape[1]
        alone = [
            (logits[rows] + m[g].log().clamp(min=IMPOSSIBLE)).softmax(-1)
            for g, rows in enumerate(groups.rows)
        ]
        evidence = torch.stack([pair_evidence(t, m[g]) for g, t in enumerate(alone)])
        chance, self.shares = mixed_chances(evidence, shares)
        self.a = ((1 - chance) / (K * chance)).clamp(LEAST, MOST)
        if least is not None:
            self.a = torch.maximum(self.a, least)
        self.prior = self.a.unsqueeze(-1) * m
        self.u, self.counts = torch.empty_like(logits), torch.empty_like(m)
        bounds = []
        for g, rows in enumerate(groups.rows):
            w = float(weight[g])
            u, self.counts[g] = proportions_of(alone[g], m[g], self.prior[g], w, max_iter, tol)
            self.u[rows] = u
            own = self.counts[g] + self.prior[g]
            e = torch.digamma(torch.where(m[g] > 0, own, 1)) - torch.digamma(own.sum())
            e = torch.where(m[g] > 0, e, IMPOSSIBLE)
            task = logits[rows].unsqueeze(0), e.unsqueeze(0), self.a[g].view(1, 1)
            bounds.append(bound(*task, m[g].unsqueeze(0), w))
        self.bound = torch.cat(bounds)


def shared(
    logits: Tensor,
    groups: Members,
    weight: Tensor,
    labelled_rows: float,
    prior: Tensor | None,
    max_iter: int,
    tol: float,
) -> tuple[Fit, Tensor | None]:
    """The groups under their mean proportions, or their prior [G, K] where that is likelier."""
    G, K = len(groups.rows), logits.shape[1]
    even, given = (x.double() for x in measures(torch.ones(K) if prior is None else prior, G))
    m, shares = even, torch.full((len(CHANCES),), 1 / len(CHANCES)).double()
    for _ in range(2):
        fit = Fit(logits, groups, weight, m, shares, max_iter, tol)
        shares = fit.shares
        draws = K * fit.a
        total = weight * groups.sizes
        draws = draws * (torch.digamma(draws + total) - torch.digamma(draws))
        held = (fit.counts * (draws / total).unsqueeze(-1)).sum(0, keepdim=True)
        if math.isfinite(labelled_rows):
            held = held * 2 * labelled_rows / (2 * labelled_rows + held.sum())
        b, one, low = torch.ones(1, 1).double(), torch.ones(1, K).double(), torch.tensor(LEAST)
        for _ in range(12):
            b = next_concentration(b, held, float(held.sum()), one, low.double())
        m = even * (held + b)
        m = m * K / m.sum(-1, keepdim=True)
    fit = Fit(logits, groups, weight, m, shares, max_iter, tol)
    if prior is None:
        return fit, None
    other = Fit(logits, groups, weight, given, fit.shares, max_iter, tol, least=fit.a)
    used = other.bound > fit.bound
    fit.u = torch.where(used[groups.of_row].unsqueeze(-1), other.u, fit.u)
    for name in ("a", "prior", "counts", "bound"):
        x, y = getattr(fit, name), getattr(other, name)
        setattr(fit, name, torch.where(used.view(-1, *[1] * (x.dim() - 1)), y, x))
    return fit, used


class Sets:
    """Sets of the likeliest classes of one group, as models in which these are equally common."""

    def __init__(self, logits: Tensor, m: Tensor, counts: Tensor, weight: float) -> None:
        """Logits [n, K] of the rows, the measure m [K], and counts [K] that choose the classes."""
        K = len(m)
        self.classes = counts.argsort(descending=True, stable=True)[:SET_CLASSES]
        log_m, every = m.log().clamp(min=IMPOSSIBLE), range(2 ** len(self.classes))
        self.members = torch.tensor(
            [[n >> j & 1 for j in range(len(self.classes))] for n in every[1:]]
        ).double()
        self.sizes = self.members.sum(-1)
        usual = (logits + log_m).logsumexp(-1, keepdim=True) - math.log(K)
        self.usual = weight * usual.sum()
        ratios = (logits[:, self.classes] - usual).exp()
        self.ratios = torch.where(m[self.classes] > 0, ratios, 0)
        self.sums = (self.ratios @ self.members.mT).clamp(min=1e-30)
        evidence = weight * (self.sums / self.sizes).log().sum(0)
        self.of_sets = (evidence + self.members @ log_m[self.classes]).clamp(min=IMPOSSIBLE)

        symmetric = torch.zeros(SET_CLASSES + 1).double()
        symmetric[0] = 1
        for x in m:
            symmetric[1:] += symmetric[:-1].clone() * x
        evidence = torch.full((SET_CLASSES,), IMPOSSIBLE, dtype=torch.float64)
        for s in range(1, len(self.classes) + 1):
            found = self.of_sets[self.sizes == s].logsumexp(0)
            if symmetric[s] > 0:
                evidence[s - 1] = found - symmetric[s].log()
        self.evidence = evidence

    def mixed(self, u: Tensor, chances: Tensor) -> Tensor:
        """Probabilities of rows [n, K], from those in any proportions and the chances [9]."""
        weights = torch.zeros_like(self.sizes)
        for s in range(1, len(self.classes) + 1):
            own = self.sizes == s
            weights[own] = chances[s - 1] * self.of_sets[own].softmax(0)
        u = u * chances[-1]
        u[:, self.classes] += (weights / self.sums) @ self.members * self.ratios
        return u / u.sum(-1, keepdim=True)


def chances_of_sets(sets: list[Sets], fit: Fit, sizes: Tensor, shots: float) -> Tensor:
    """How likely it is that each group has 1, 2, .. classes, or any proportions, [G, 9]."""
    proportions = (fit.bound - torch.stack([one.usual for one in sets])).clamp(min=0)
    evidence = torch.stack([one.evidence for one in sets])
    evidence = torch.cat([evidence, proportions.unsqueeze(-1)], -1)
    evidence = evidence * ((1 + shots) / (sizes + shots)).unsqueeze(-1)
    likely = (evidence - evidence.amax(-1, keepdim=True)).exp()
    own = likely * mixture_shares(likely, torch.full_like(likely[0], 1 / len(likely[0])))
    return own / own.sum(-1, keepdim=True)


def solution(fit: Fit, u: Tensor, shares: Tensor, used: Tensor | None) -> Solution:
    own = fit.counts + fit.prior
    dual = torch.digamma(torch.where(own > 0, own, 1)) - torch.digamma(own.sum(-1, keepdim=True))
    zeros = torch.zeros_like(fit.a)
    return Solution(
        u.argmax(-1),
        u,
        shares,
        torch.where(own > 0, dual, IMPOSSIBLE),
        zeros.int(),
        zeros,
        concentration=fit.a,
        bound=fit.bound,
        prior_used=used,
    )


def adapt_groups(
    logits: Tensor,
    groups: Tensor,
    *,
    weight: float = 1.0,
    prior: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Solution:
    """`paddle_ext.adapt` with groups that share, in float64."""
    known = Members.of(groups)
    weights = torch.full_like(known.sizes, weight, dtype=torch.float64)
    given = logits.double().clamp(min=-1.7e308)
    fit, used = shared(given, known, weights, math.inf, prior, max_iter, tol)
    own = fit.counts + fit.prior
    return solution(fit, fit.u, own / own.sum(-1, keepdim=True), used)


def posterior_of_groups(
    known: Likelihood,
    query: Tensor,
    groups: Tensor,
    *,
    prior: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
    added: float | Tensor = 0.0,
) -> Solution:
    """`paddle_ext.adaptive` with groups that share, from labelled rows; `added` are logits."""
    found = Members.of(groups)
    Q, K, S, n = len(query), len(known.shots), known.rows, found.sizes
    z = centred(query, known.centre)
    weight = 2 * S / (2 * S + n)
    logits = known.logits(known.distances(z)) + added
    fit, used = shared(logits, found, weight, S, prior, max_iter, tol)
    a, rows, m = fit.a, found.of_row, fit.prior / fit.a.unsqueeze(-1)

    def sets_of(logits: Tensor, counts: Tensor) -> list[Sets]:
        each = enumerate(found.rows)
        return [Sets(logits[own], m[g], counts[g], float(weight[g])) for g, own in each]

    def mixed(u: Tensor, sets: list[Sets], chances: Tensor) -> Tensor:
        u = u.clone()
        for own, one, chance in zip(found.rows, sets, chances, strict=True):
            u[own] = one.mixed(u[own], chance)
        return u

    likeliest, sets = fit.counts, sets_of(logits, fit.counts)
    chances = chances_of_sets(sets, fit, n, S / K)
    u = mixed(fit.u, sets, chances)
    fit.counts = torch.stack([weight[g] * u[own].sum(0) for g, own in enumerate(found.rows)])
    W = u.square() * Q / (Q + K)
    moved = moved_distances(z, known.means, known.shots, W, known.metric)
    moved = moved + known.excess() - known.excess(W.sum(0))
    share = 1 - SOFTER / (1 + a / FEW) * (n - 1) / n
    two_classes = ((K - 1) * a / (1 + K * a)).unsqueeze(-1)
    counts = fit.counts.sum(0)
    kept = 1 - two_classes * counts / (counts + known.shots)
    after = known.logits(moved) + added
    logits = after * share[rows].unsqueeze(-1)

    def log_others(counts: Tensor, u: Tensor) -> Tensor:
        left = (counts[rows] - weight[rows].unsqueeze(-1) * u).clamp(min=0)
        return torch.log(kept[rows] * left + fit.prior[rows]).clamp(min=IMPOSSIBLE)

    power = ((n - 2) / n).clamp(min=0)[rows].unsqueeze(-1)
    log_prior = fit.prior[rows].log().clamp(min=IMPOSSIBLE)
    u = (logits + power * log_others(fit.counts, u) + (1 - power) * log_prior).softmax(-1)
    counts = torch.stack([weight[g] * u[own].sum(0) for g, own in enumerate(found.rows)])
    u = torch.softmax(known.temper * (logits + log_others(counts, u)), dim=-1)
    u = (u + mixed(u, sets_of(known.temper * after, likeliest), chances)) / 2
    labels, shares = u.argmax(-1), []
    for g, own_rows in enumerate(found.rows):
        counted = torch.bincount(labels[own_rows], minlength=K)
        labelled_share = int((counted > 0).sum()) / K
        own = u[own_rows].mean(0)
        shares.append((1 - labelled_share) * counted / n[g] + labelled_share * own)
    return solution(fit, u, torch.stack(shares), used)
