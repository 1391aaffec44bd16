"""Groups of rows that share what they know, in plain torch, group by group: the specification.

Letters: Q rows, G groups of n rows, K classes, S labelled rows. Numbers in parentheses are the
equations of docs/adaptive.md.

Each group has class proportions of its own, which are Dirichlet(a m_1, ..., a m_K) a priori, with
the measure m of mean 1. It is even, or that of a prior of the caller. A row alone has the
probabilities t = softmax(l + ln m), and its group moves it from there. Two rows of a group are one
draw with the chance c = 1 / (1 + K a), else two draws from m / K, which makes the pair
c sum_k t_k t'_k K / m_k + 1 - c times as likely as rows of different groups.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..solution import Solution
from .adapt import IMPOSSIBLE, LEAST, LOWEST, bound, measures
from .rule import (
    ROUNDS,
    TINY,
    Known,
    absorbed_logits,
    absorbed_weights,
    centred,
    claimed,
    class_shares,
    mean_log_proportions,
)

SET_CLASSES = 8  # the likeliest classes of a group, whose sets are compared
CHANCES = [math.sin(i * math.pi / 32) ** 2 for i in range(17)]  # that two rows are one draw
MIXTURE_STEPS = 20
LEAST_SHARE = 1e-100  # of a case in a mixture


@dataclass(frozen=True)
class Members:
    """The rows of G groups, in ascending order of their numbers."""

    of_row: Tensor  # [Q] the place of a row's group
    rows: list[Tensor]  # of each group

    @staticmethod
    def of(groups: Tensor) -> Members:
        of_row = torch.unique(groups, return_inverse=True)[1]
        rows = of_row.argsort(stable=True).split(of_row.bincount().tolist())
        return Members(of_row, [*rows])

    @property
    def sizes(self) -> Tensor:
        """n, [G]."""
        return self.of_row.bincount().double()

    def counts(self, u: Tensor, weights: Tensor) -> Tensor:
        """N, [G, K], of rows with probabilities u [Q, K] that weigh so much in each group [G]."""
        sums = torch.stack([u[rows].sum(0) for rows in self.rows])
        return weights.unsqueeze(1) * sums


# --- mixtures of groups ---------------------------------------------------------------------------


def mixture_posterior(evidence: Tensor) -> Tensor:
    """Chances [G, C] of the cases of each group, by their log evidence [G, C].

    The cases have the shares, the same for all groups, that make the groups most likely.
    """
    likely = (evidence - evidence.amax(-1, keepdim=True)).exp()
    shares = torch.full_like(likely[0], 1 / likely.shape[1])
    for _ in range(MIXTURE_STEPS):
        own = likely * shares
        shares = (own / own.sum(-1, keepdim=True)).mean(0).clamp(min=LEAST_SHARE)
    own = likely * shares
    return own / own.sum(-1, keepdim=True)


def pair_evidence(t: Tensor, m: Tensor) -> Tensor:
    """(13) The log evidence of each chance, [17], from the rows t [n, K] of one group under m [K].

    Here all pairs are compared. Of more than 1024 rows, the package compares those among 1024.
    """
    n, K = t.shape
    together = (t * K / m.clamp(min=TINY)) @ t.mT
    ratios = together[~torch.eye(n, dtype=torch.bool)]
    of_chances = [(1 - c + c * ratios).clamp(min=TINY).log().sum() for c in CHANCES]
    return torch.stack(of_chances) / (2 * max(n - 1, 1))


def concentrations_by_pairs(t: Tensor, members: Members, measure: Tensor) -> Tensor:
    """(13) a_g of each group, [G], from the probabilities t [Q, K] of rows alone."""
    K = t.shape[1]
    evidence = [pair_evidence(t[rows], measure[g]) for g, rows in enumerate(members.rows)]
    chances = mixture_posterior(torch.stack(evidence)) @ torch.tensor(CHANCES, dtype=torch.float64)
    chances = chances.clamp(LEAST, 1 - LEAST)
    return (1 - chances) / (chances * K)


# --- proportions of groups ------------------------------------------------------------------------


@dataclass(frozen=True)
class Groups:
    """What groups are a priori."""

    members: Members
    measure: Tensor  # [G, K] m, of mean 1
    concentration: Tensor  # [G] a

    @property
    def pseudocounts(self) -> Tensor:
        """a m, [G, K]."""
        return self.concentration.unsqueeze(1) * self.measure

    def alone(self, logits: Tensor) -> Tensor:
        """ln t, [Q, K]: log probabilities of rows without their groups."""
        return log_alone(logits, self.members, self.measure)

    def probabilities(
        self,
        logits: Tensor,
        weights: Tensor,
        likeness: float = 0.0,
        before: Tensor | None = None,
    ) -> Tensor:
        """(12) Three times, from u [Q, K] or rows alone; rows of a group weigh rho [G].

        What the group adds to a row alone counts 1 - r.
        """
        alone, possible = self.alone(logits), self.measure > 0
        u = alone.exp() if before is None else before.clone()
        for g, rows in enumerate(self.members.rows):
            rho, prior = weights[g], self.pseudocounts[g]
            for _ in range(ROUNDS):
                counts = rho * u[rows].sum(0)
                others = (counts - rho * u[rows]).clamp(min=0) + prior
                others = others * (counts + prior + 0.5) / (counts + prior + 1)
                added = torch.where(possible[g], (others / self.measure[g]).log(), 0)
                u[rows] = (alone[rows] + (1 - likeness) * added).softmax(-1)
        return u

    def bounds(self, logits: Tensor, u: Tensor, weights: Tensor) -> Tensor:
        """Bounds of the log evidence of the proportions after u [Q, K], [G]."""
        counts = self.members.counts(u, weights)
        dual = mean_log_proportions(counts, self.pseudocounts)
        found = []
        for g, rows in enumerate(self.members.rows):
            one = slice(g, g + 1)
            a = self.concentration[one].unsqueeze(1)
            task = logits[rows].unsqueeze(0), dual[one], a, self.measure[one]
            found.append(bound(*task, float(weights[g]), counts[one]))
        return torch.cat(found)


def log_alone(logits: Tensor, members: Members, measure: Tensor) -> Tensor:
    """ln t, [Q, K], under the measure [G, K] of each row's group."""
    m = measure[members.of_row]
    return torch.where(m > 0, logits + m.log(), LOWEST).log_softmax(-1)


@dataclass(frozen=True)
class Start:
    groups: Groups
    bounds: Tensor  # [G] of the evidence under the measure
    prior_used: Tensor | None  # [G] whether the prior makes the group likelier


def start_of(logits: Tensor, members: Members, weights: Tensor, prior: Tensor | None) -> Start:
    """Each group with the even measure, or that of its prior where the bound is larger.

    Logits are the first, and rows of a group weigh [G].
    """
    G, K = len(members.rows), logits.shape[1]
    even, own = measures(torch.ones(K) if prior is None else prior, G)

    def under(measure: Tensor) -> Start:
        t = log_alone(logits, members, measure).exp()
        groups = Groups(members, measure, concentrations_by_pairs(t, members, measure))
        u = groups.probabilities(logits, weights)
        return Start(groups, groups.bounds(logits, u, weights), None)

    start = under(even)
    if prior is None:
        return start
    other = under(own)
    used = other.bounds > start.bounds
    measure = torch.where(used.unsqueeze(1), own, even)
    concentration = torch.where(used, other.groups.concentration, start.groups.concentration)
    groups = Groups(members, measure, concentration)
    return Start(groups, torch.where(used, other.bounds, start.bounds), used)


# --- few classes ----------------------------------------------------------------------------------


class Sets:
    """(15) Sets of the likeliest classes of one group, as models in which these are equally common.

    Likelihoods of a row are divided by their mean under m, that of all classes together.
    """

    def __init__(self, relative: Tensor, m: Tensor, mass: Tensor, weight: float) -> None:
        """Log-likelihoods [n, K]; sums [K] of u choose the classes; a row weighs `weight`."""
        K = len(m)
        most = min(SET_CLASSES, K)
        self.classes = mass.argsort(descending=True, stable=True)[:most]
        chosen = [one for one in itertools.product((0.0, 1.0), repeat=most) if any(one)]
        self.members = torch.tensor(chosen).double()  # [2^most - 1, most]
        self.sizes = self.members.sum(-1)

        self.likelihood = relative[:, self.classes].exp()
        self.sums = (self.likelihood @ self.members.mT).clamp(min=TINY)  # [n, 2^most - 1]
        log_m = m[self.classes].log().clamp(min=IMPOSSIBLE)
        evidence = weight * (self.sums / self.sizes).log().sum(0) + self.members @ log_m
        self.of_sets = evidence.clamp(min=IMPOSSIBLE)

        # All sets of s classes have the weight of the elementary symmetric polynomial of m.
        symmetric = torch.zeros(most + 1).double()
        symmetric[0] = 1
        for x in m:
            symmetric[1:] += symmetric[:-1].clone() * x
        of_sizes = []
        for s in range(1, most + 1):
            found = self.of_sets[self.sizes == s].logsumexp(0) - symmetric[s].log()
            of_sizes.append(found if symmetric[s] > 0 else found.new_tensor(IMPOSSIBLE))
        self.evidence = torch.stack(of_sizes)  # [most] of 1, 2, .. classes

    def mixed(self, u: Tensor, chances: Tensor) -> Tensor:
        """Probabilities of rows [n, K], from u in any proportions and the chances [most + 1]."""
        weights = torch.zeros_like(self.sizes)
        for s, chance in enumerate(chances[:-1], 1):
            own = self.sizes == s
            weights[own] = chance * self.of_sets[own].softmax(0)
        u = chances[-1] * u
        u[:, self.classes] += (weights / self.sums) @ self.members * self.likelihood
        return u / u.sum(-1, keepdim=True).clamp(min=TINY)


def few_classes(groups: Groups, logits: Tensor, u: Tensor, weights: Tensor) -> Tensor:
    """(15) Averaged over what a group may hold: any proportions, or 1, 2, .. classes, equally many.

    u [Q, K] are the probabilities under any proportions; a row of a group weighs [G].
    """
    K = logits.shape[1]
    members, measure = groups.members, groups.measure
    m = measure[members.of_row]
    relative = torch.where(m > 0, groups.alone(logits) - m.log() + math.log(K), LOWEST)
    sets = [
        Sets(relative[rows], measure[g], u[rows].sum(0), float(weights[g]))
        for g, rows in enumerate(members.rows)
    ]
    proportions = groups.bounds(relative, u, weights).clamp(min=0)
    evidence = torch.stack([one.evidence for one in sets])
    chances = mixture_posterior(torch.cat([evidence, proportions.unsqueeze(1)], 1))
    mixed = torch.zeros_like(u)
    for g, rows in enumerate(members.rows):
        mixed[rows] = sets[g].mixed(u[rows], chances[g])
    return mixed


# --- without features -----------------------------------------------------------------------------


def solution_of(
    start: Start, weights: Tensor, u: Tensor, before_claims: Tensor, proportions: Tensor
) -> Solution:
    """Of probabilities u [Q, K], and those that the counts of the groups are made of."""
    groups = start.groups
    counts = groups.members.counts(before_claims, weights)
    zeros = torch.zeros_like(groups.concentration)
    return Solution(
        labels=u.argmax(-1),
        probabilities=u,
        proportions=proportions,
        dual=mean_log_proportions(counts, groups.pseudocounts),
        iterations=zeros.int(),
        criterion=zeros,
        concentration=groups.concentration,
        bound=start.bounds,
        prior_used=start.prior_used,
    )


def adapt_groups(
    logits: Tensor,
    groups: Tensor,
    *,
    weight: float = 1.0,
    prior: Tensor | None = None,
) -> Solution:
    """`paddle_ext.adapt` with groups that share, in float64.

    The same without features: rows of a group are as different as any, r = 0, and logits stay. Sets
    of classes (15) are not compared: it is not known how sharp the logits are, and of soft ones too
    many classes seem likely.
    """
    members = Members.of(groups)
    weights = torch.full_like(members.sizes, weight)
    given = logits.double().clamp(min=LOWEST)
    start = start_of(given, members, weights, prior)
    u = start.groups.probabilities(given, weights)
    own = members.counts(u, weights) + start.groups.pseudocounts
    return solution_of(start, weights, u, u, own / own.sum(-1, keepdim=True))


# --- with features --------------------------------------------------------------------------------


def likeness_in_groups(known: Known, x: Tensor, members: Members, u: Tensor) -> float:
    """(14) r: how alike rows of a class are if they share their group, 0 as any, 1 copies."""
    prototypes = known.prototypes.rows
    Q, K = u.shape
    same = members.of_row.unsqueeze(1) == members.of_row
    different = ~torch.eye(Q, dtype=torch.bool)
    usual = 0.0
    products, weights = u.new_zeros(2), u.new_zeros(2)  # within groups, and across
    for k in range(K):
        away = x - prototypes[k]
        product = away @ known.metric @ away.mT
        weight = torch.outer(u[:, k], u[:, k])
        usual += float((u[:, k] * product.diagonal()).sum()) / Q
        for i, pairs in enumerate((same & different, ~same)):
            products[i] += (weight * product)[pairs].sum()
            weights[i] += weight[pairs].sum()
    if float(weights.min()) <= 1e-6:
        return 0.0
    within, across = (float(product) for product in products / weights)
    if usual - across <= 1e-9:
        return 0.0
    return min(max((within - across) / (usual - across), 0.0), 1.0)


def rounds_of_groups(
    known: Known, x: Tensor, start: Start, weights: Tensor, added: float | Tensor
) -> Tensor:
    """(12) to (15) Probabilities [Q, K] before (16), of queries [Q, D] in the coordinates."""
    groups, members = start.groups, start.groups.members
    possible = groups.measure[members.of_row] > 0
    logits = known.logits(x) + added
    u = groups.alone(logits).exp()
    for turn in range(ROUNDS):
        r = likeness_in_groups(known, x, members, u)
        worth = 1 / (1 + (members.sizes - 1) * r)  # h, [G]
        if turn > 0:
            of_rows = worth[members.of_row].unsqueeze(1)
            logits = absorbed_logits(known, x, of_rows * absorbed_weights(known, u)) + added

        u = groups.probabilities(logits, weights, r, before=u)
        u = few_classes(groups, logits, u, weights * worth)
        u = r * groups.alone(logits) + (1 - r) * u.clamp(min=TINY).log()
        u = torch.where(possible, u, LOWEST).softmax(-1)
    return u


def posterior_of_groups(
    known: Known,
    query: Tensor,
    groups: Tensor,
    *,
    prior: Tensor | None = None,
    added: float | Tensor = 0.0,
) -> Solution:
    """`paddle_ext.adaptive` with groups that share, from labelled rows; `added` are logits."""
    members = Members.of(groups)
    x = centred(query.double(), known.centre)
    weights = known.rows / (known.rows + members.sizes)  # rho
    start = start_of(known.logits(x) + added, members, weights, prior)
    before_claims = rounds_of_groups(known, x, start, weights, added)
    u = claimed(before_claims, known.counts)
    labels = u.argmax(-1)
    shares = [class_shares(labels[rows], u[rows]) for rows in members.rows]
    found = solution_of(start, weights, u, before_claims, torch.stack(shares))
    return found._replace(shots=known.counts, variance=u.new_tensor(known.model.variance))
