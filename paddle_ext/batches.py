"""One batch after the other: by the solver, or by a careful estimate where the solver goes astray.

With few classes present soft assignments let a batch decide together; with many of them, or with
far more queries than labelled rows of a class, the same softness lets a few classes swallow the
others. An estimate whose prototypes stay at the class means cannot do that: class proportions of
maximum likelihood, by expectation maximisation, with probabilities that are calibrated on the
labelled rows. So for each batch:

- the estimate says how many classes are present. If they are more than half as many as a batch
  with all of them, equally likely, would show, the proportions are mostly chance, and the nearest
  class mean answers;
- otherwise the solver answers, if it shares nearly as many labels with the estimate as the truth
  would: nine tenths of the share that the estimate expects to have right, by its probabilities;
- otherwise the estimate answers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .ops import solve
from .rows import class_means, squared_distances, unit_rows
from .scaling import AUTO_GAP, AUTO_MIN_GAP
from .solution import Solution

TEMPERATURE = 1.0  # of the solver, where it is not given
AGREE = 0.9  # of the labels that the estimate expects to have right
MIXED = 0.5  # of the classes that a batch with all of them, equally likely, would show
ROUNDS, MORE_ROUNDS = 100, 10  # of expectation maximisation: on a sample, and then on all rows
MOST_QUERIES = 1000  # of the sample
MOST_ENTRIES = 4_000_000  # of a matrix of samples and classes
MOST_LABELLED = 2000  # to calibrate with
LEAST = 1e-30  # likelihood of a row
ENOUGH = 3  # rows of a class, to calibrate with
# The sharpness of the estimate where no class has enough rows, in units of the solver's own; one
# unit is the least it may have anywhere, for flat probabilities let a few classes win everything.
UNCALIBRATED = 2.0


class Answer(NamedTuple):
    """What `BatchSolver` found for a batch."""

    solution: Solution
    temperature: float | None  # of the solver; None: the estimate, whose prototypes are fixed
    sharpness: float  # of the estimate: its factor on half the squared distances of unit-norm rows


class Estimate(NamedTuple):
    """What fixed prototypes say about a sample of a batch."""

    sharpness: float
    proportions: Tensor  # [K]
    labels: Tensor  # [n]
    right: float  # the share of the labels that are expected to be so
    size: int  # n


class BatchSolver:
    """Solves batch after batch; what the labelled rows tell is computed once.

    Parameters
    ----------
    support : Tensor [S, D]
    labels : Tensor [S] int64
        Every class has a row.
    num_classes : int
    temperature : float or None
        Of the solver, which then answers for all batches; None: chosen for each batch, see above.
    lam, epsilon, scaling, max_iter, tol, return_prototypes
        As in `paddle_ext.solve`. With `lam` given the estimate has the same preference for classes
        that hold much of the batch, and no batch counts as mixed.

    Notes
    -----
    The estimate compares unit-norm rows, whatever the scaling.

    Examples
    --------
    >>> labels = torch.arange(30).repeat(5)
    >>> centres = torch.randn(30, 64, generator=torch.Generator().manual_seed(0))
    >>> solver = BatchSolver(centres[labels] + 0.1 * torch.randn(150, 64), labels, 30)
    >>> few = solver(centres[[3, 14]].repeat(20, 1) + 0.1 * torch.randn(40, 64))
    >>> few.solution.labels.unique(), few.temperature
    (tensor([ 3, 14]), 1.0)
    >>> solver(centres.repeat(3, 1)).temperature is None  # all classes are there
    True
    """

    def __init__(
        self,
        support: Tensor,
        labels: Tensor,
        num_classes: int,
        temperature: float | None = None,
        *,
        lam: float | None = None,
        epsilon: float = 1e-6,
        scaling: str = "auto",
        max_iter: int = 100,
        tol: float = 1e-6,
        return_prototypes: bool = False,
    ) -> None:
        self.support, self.labels, self.num_classes = support, labels, num_classes
        self.temperature, self.lam, self.epsilon = temperature, lam, epsilon
        self.options: dict[str, Any] = {
            "scaling": scaling,
            "max_iter": max_iter,
            "tol": tol,
            "return_prototypes": return_prototypes,
        }
        rows = unit_rows(support)
        self.shots = torch.bincount(labels, minlength=num_classes)
        self.means = class_means(rows, labels, num_classes)
        self.sharpness = self.calibrated(rows)

    def calibrated(self, rows: Tensor) -> float | None:
        """The factor on half the squared distances that makes the labels most likely."""
        usable = (self.shots[self.labels] >= ENOUGH).nonzero().squeeze(1)
        if len(usable) == 0:
            return None
        most = max(1, min(MOST_LABELLED, MOST_ENTRIES // self.num_classes))
        chosen = usable[spread(len(usable), most).to(usable.device)]
        labels = self.labels[chosen].unsqueeze(1)
        distance = squared_distances(rows[chosen], self.means)
        shots = self.shots[labels]
        # A row that is no part of its class mean is farther from it, on average by this factor.
        own = distance.gather(1, labels) * ((shots + 1) / (shots - 1))
        distance.scatter_(1, labels, own)
        factors: list[float] = torch.logspace(-1, 4, 61).tolist()
        losses: list[float] = [
            torch.nn.functional.cross_entropy(-0.5 * factor * distance, labels.squeeze(1)).item()
            for factor in factors
        ]
        return factors[losses.index(min(losses))]

    def __call__(self, query: Tensor) -> Answer:
        """Classify a batch [Q, D]."""
        if self.temperature is not None:
            return Answer(self.solve(query, self.temperature), self.temperature, math.nan)
        most = max(2, min(MOST_QUERIES, MOST_ENTRIES // self.num_classes))
        sample = spread(len(query), most).to(query.device)
        found = self.estimate(query[sample], self.weight(len(query)))
        if self.lam is None and self.is_mixed(found):
            return Answer(self.fixed(query, found, None), None, found.sharpness)
        solution = self.solve(query, TEMPERATURE)
        agreement = (solution.labels[sample] == found.labels).double().mean()
        if agreement >= AGREE * found.right:
            return Answer(solution, TEMPERATURE, found.sharpness)
        proportions = self.of_all(query, found)
        return Answer(self.fixed(query, found, proportions), None, found.sharpness)

    def weight(self, count: int) -> float:
        """Of the logarithm of the proportions, in a batch of so many rows."""
        return 1.0 if self.lam is None else self.lam / count

    def solve(self, query: Tensor, temperature: float) -> Solution:
        return solve(
            self.support,
            self.labels,
            query,
            num_classes=self.num_classes,
            temperature=temperature,
            lam=self.lam,
            epsilon=self.epsilon,
            **self.options,
        )

    # --- the estimate ---------------------------------------------------------------------------

    def estimate(self, query: Tensor, weight: float) -> Estimate:
        distance = squared_distances(unit_rows(query), self.means)
        nearest = distance.amin(1, keepdim=True)
        median = distance.kthvalue(self.num_classes // 2 + 1, dim=1).values
        gap = (median - nearest.squeeze(1)).mean().clamp(min=AUTO_MIN_GAP)
        own = AUTO_GAP / float(gap)  # the sharpness of the solver
        sharpness = UNCALIBRATED * own if self.sharpness is None else max(self.sharpness, own)
        likelihood = torch.exp(-0.5 * sharpness * (distance - nearest))
        even = likelihood.new_full((self.num_classes,), 1 / self.num_classes)
        found = maximised(likelihood, even, ROUNDS)
        joint = likelihood * (found + self.epsilon) ** weight
        most, labels = joint.max(1)
        right = float((most / joint.sum(1).clamp(min=LEAST)).mean())
        return Estimate(sharpness, found, labels, right, len(query))

    def is_mixed(self, found: Estimate) -> bool:
        """Whether nearly all classes may be there, so that proportions are mostly chance."""
        return effective(found.proportions) > MIXED * evenly(found.size, self.num_classes)

    def of_all(self, query: Tensor, found: Estimate) -> Tensor:
        """Proportions [K] of the whole batch, from those of its sample."""
        if found.size == len(query):
            return found.proportions
        # A class that the sample has missed must be able to come back.
        K = self.num_classes
        start = (found.size * found.proportions + 1) / (found.size + K)
        distance = squared_distances(unit_rows(query), self.means)
        distance -= distance.amin(1, keepdim=True)
        return maximised(torch.exp(-0.5 * found.sharpness * distance), start, MORE_ROUNDS)

    def fixed(self, query: Tensor, found: Estimate, proportions: Tensor | None) -> Solution:
        """The answer of fixed prototypes; proportions None: of the nearest class mean."""
        dual = self.means.new_zeros(self.num_classes)
        rounds = 1
        if proportions is not None:
            dual = 1 + torch.log(proportions + self.epsilon)
            rounds = ROUNDS
        distance = squared_distances(unit_rows(query), self.means)
        logits = self.weight(len(query)) * dual - 0.5 * found.sharpness * distance
        u = torch.softmax(logits, dim=1)
        return Solution(
            logits.argmax(1),
            u,
            u.mean(0),
            dual,
            torch.tensor(rounds, dtype=torch.int32, device=u.device),
            u.new_zeros(()),  # nothing has moved
            self.input_means() if self.options["return_prototypes"] else None,
            lam=self.lam,
            scaling=self.options["scaling"],
        )

    def input_means(self) -> Tensor:
        """The class means [K, D] in the coordinates of the inputs."""
        return class_means(self.support, self.labels, self.num_classes)


def maximised(likelihood: Tensor, proportions: Tensor, rounds: int) -> Tensor:
    """Expectation maximisation of the proportions [K] for likelihoods [n, K]."""
    for _ in range(rounds):
        # Two products, so that no matrix but the likelihood is needed; no row weighs infinitely.
        shares = 1 / (likelihood @ proportions).clamp(min=LEAST)
        proportions = proportions * (shares @ likelihood) / len(likelihood)
    return proportions


def effective(proportions: Tensor) -> float:
    """The number of equally large classes with the same entropy."""
    return float(torch.special.entr(proportions.double()).sum().exp())


def evenly(count: int, num_classes: int) -> float:
    """`effective` that so many draws from all classes, equally likely, have; of the mean entropy.

    Examples
    --------
    >>> round(evenly(1, 50), 3), round(evenly(100_000, 50), 1)  # one draw, and very many
    (1.0, 50.0)
    """
    n = torch.arange(1, count + 1, dtype=torch.float64)
    total = torch.tensor(float(count), dtype=torch.float64)
    choices = torch.lgamma(total + 1) - torch.lgamma(n + 1) - torch.lgamma(total - n + 1)
    chance = choices - n * math.log(num_classes) + (count - n) * math.log1p(-1 / num_classes)
    mean = num_classes * float((chance.exp() * n * n.log()).sum())
    return math.exp(math.log(count) - mean / count)


def spread(count: int, most: int) -> Tensor:
    """At most `most` of the numbers below `count`, evenly spread: [n] int64."""
    if count <= most:
        return torch.arange(count)
    return torch.from_numpy(np.linspace(0, count - 1, most).round().astype(np.int64))
