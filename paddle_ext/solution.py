"""Results of the solvers, and what a solution says about its batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import check

# Of the preference for classes that hold much of the batch, doubt takes off this share. With all of
# it taken off, labels are doubted that only the batch could tell; with none, those are trusted that
# a large class has swallowed. benchmarks/presence.py compares shares.
DUAL_SHARE = 2 / 3

# A batch looks mixed if so many classes would have a label without PADDLE's preference for those
# that hold much, and with it either so many have one, or more than such a share of the queries has
# another one than without. docs/solver.md has the measurement.
MIXED_CLASSES, MIXED_LABELS, MIXED_SHARE = 10, 8, 0.5
MIXED_HINT = "many classes seem present: consider methods.create('adaptive')"


class Trace(NamedTuple):
    """What happened in each iteration; the rows of a task that has stopped repeat its last one."""

    objective: Tensor  # [iterations] or [iterations, B], float64
    criterion: Tensor  # [iterations] or [iterations, B]
    seconds: Tensor  # [iterations], float64: since the start of the call, tracing not counted


class Solution(NamedTuple):
    """Result of a solver, and how it was asked for; without a batch of queries there is none here.

    `present` tells which classes are in the batch, `doubt` which labels to look at, and
    `paddle_ext.presence.novelty` which queries are of no class. `repr` is a summary, which says so
    if a batch of PADDLE looks mixed.
    """

    labels: Tensor  # [.., Q] int64: argmax of the probabilities
    # [.., Q, K]: soft assignments, rows on the simplex; beside `classes` the largest of each row
    probabilities: Tensor
    proportions: Tensor  # [.., K] of the classes in the batch
    dual: Tensor  # [.., K]: preference for each class; if Dirichlet, the mean log proportions
    iterations: Tensor  # [..] int32
    criterion: Tensor  # [..]: how far prototypes, or if they stay counts, moved in the last one
    prototypes: Tensor | None = None  # [.., K, D] in the coordinates of the inputs
    trace: Trace | None = None
    lam: float | None = None  # None: Q
    scaling: str = "auto"
    temperature: float = 1.0
    concentration: Tensor | None = None  # [..] of Dirichlet proportions: small for few classes
    bound: Tensor | None = None  # [..] of `adapt`: of the logarithm of the evidence
    update_prototypes: bool | None = None  # of `solve`; others have none
    # Where only the largest probabilities of a row are kept, first the largest:
    classes: Tensor | None = None  # [.., Q, top] whose they are
    held: Tensor | None = None  # [.., K] sums of all probabilities over the queries

    def __repr__(self) -> str:
        return summary(self)

    @property
    def of_adapt(self) -> bool:
        """Whether it is one of `adapt`, which knows no features."""
        return self.concentration is not None and self.update_prototypes is None

    @property
    def calibrated(self) -> bool:
        """Whether probabilities may be taken at their word.

        Those of `adapt` are as good as its logits, those of the method `adaptive` are calibrated
        by labelled rows, and so are those of `solve` with Dirichlet proportions and calibrated
        scaling. PADDLE's are far too sure: an order in which to look, and no more.
        """
        return self.of_adapt or (self.concentration is not None and self.scaling == "calibrated")

    @property
    def dual_weight(self) -> float:
        """What the dual is multiplied by in the logits, lam / Q."""
        return 1.0 if self.lam is None else self.lam / self.labels.shape[-1]

    def present(self, threshold: float = 1.5) -> Tensor:
        """Which classes occur among the queries.

        A class counts as present if its probabilities add up to at least `threshold` queries. The
        default asks for two samples: on real features, with five classes or fewer present, a class
        that held a single one was nearly always a wrong label. 0.5 lets one sample be enough, which
        is better where many classes have few samples each. `docs/presence.md` has the measurement.

        Parameters
        ----------
        threshold : float
            Queries, > 0.

        Returns
        -------
        Tensor [.., K] bool

        Examples
        --------
        >>> import torch, paddle_ext
        >>> support = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> query = torch.tensor([[0.5, 0.0], [3.5, 0.5], [4.0, 0.5]])
        >>> solution = paddle_ext.solve(support, torch.tensor([0, 1, 2]), query, scaling="none")
        >>> solution.present()
        tensor([False,  True, False])
        >>> solution.present(threshold=0.5)
        tensor([ True,  True, False])
        """
        if self.held is not None:
            return self.held >= check.real("threshold", threshold, positive=True)
        return classes_present(self.probabilities, threshold)

    def doubt(self) -> Tensor:
        """How doubtful each label is.

        The probability of all other classes. That of PADDLE is sure of a wrong label where a large
        class has swallowed the samples of another, so there the solver's preference for classes
        that hold much of the batch, which is the dual, is first weakened to a third; but not where
        only the largest probabilities are kept.

        Returns
        -------
        Tensor [.., Q]
            In [0, 1], of the dtype of the probabilities.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> support = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
        >>> query = torch.tensor([[0.5, 0.0], [4.0, 0.5], [2.0, 0.0]])  # the last is between both
        >>> solution = paddle_ext.solve(support, torch.tensor([0, 1]), query, scaling="none")
        >>> solution.doubt().argmax()
        tensor(2)
        """
        return self.held_by_others(DUAL_SHARE if self.concentration is None else 0.0)

    def held_by_others(self, dual_share: float) -> Tensor:
        """What the classes other than the label have of each query, [.., Q].

        `dual_share` is the share of the dual that is taken off the logits first.
        """
        if self.classes is not None:
            return (1 - self.probabilities[..., 0]).clamp(min=0)
        own = self.logits_without(dual_share).softmax(-1)
        own = own.gather(-1, self.labels.unsqueeze(-1)).squeeze(-1)
        return (1 - own).clamp(min=0)

    def logits_without(self, dual_share: float) -> Tensor:
        """Logits, up to a constant of each query, less this share of the dual; [.., Q, K]."""
        u = self.probabilities  # a 0 in it was too small for the dtype
        preference = dual_share * self.dual_weight * self.dual.unsqueeze(-2)
        return u.clamp(min=torch.finfo(u.dtype).tiny).log() - preference

    def looks_mixed(self) -> Tensor:
        """Whether more classes seem to be in a batch than PADDLE is made for.

        At least ten classes would have a label if classes that hold much of the batch were not
        preferred; and eight of them have one, or more than half of the queries have another one.
        Always False for Dirichlet proportions, which are for any number of classes. Where only the
        largest probabilities are kept, ten classes with a label are enough.

        Returns
        -------
        Tensor [..] bool
        """
        if self.concentration is not None:
            return torch.zeros_like(self.iterations, dtype=torch.bool)
        K = self.proportions.shape[-1]
        if self.classes is not None:
            return distinct(self.labels, K) >= MIXED_CLASSES
        nearest = self.logits_without(1.0).argmax(-1)
        many = distinct(self.labels, K) >= MIXED_LABELS
        swallowed = (nearest != self.labels).double().mean(-1) > MIXED_SHARE
        return (distinct(nearest, K) >= MIXED_CLASSES) & (many | swallowed)


def distinct(labels: Tensor, num_classes: int) -> Tensor:
    """How many classes have a label, [.., Q] -> [..]."""
    seen = torch.zeros(*labels.shape[:-1], num_classes, dtype=torch.bool, device=labels.device)
    return seen.scatter_(-1, labels, True).sum(-1)


def summary(solution: Solution) -> str:
    """What a person wants to see first; a batch is told by its extremes."""
    (*batch, Q), K = solution.labels.shape, solution.proportions.shape[-1]
    words = [*(f"{B} tasks" for B in batch), f"{Q} queries", f"{K} classes"]
    plain = type(solution.labels) is Tensor and solution.labels.device.type in ("cpu", "cuda")
    if plain and solution.labels.numel():  # a tensor of torch.compile has no values
        present = solution.present().sum(-1)
        words += [f"{extremes(present)} present", f"{extremes(solution.iterations)} iterations"]
        if solution.concentration is not None:
            words.append(f"concentration {extremes(solution.concentration, '.2g')}")
        if not solution.calibrated:
            words.append("probabilities not calibrated")
        mixed = int(solution.looks_mixed().sum())
        if mixed:
            words.append((f"in {mixed} tasks " if batch else "") + MIXED_HINT)
    return f"Solution({', '.join(words)})"


def extremes(x: Tensor, form: str = "d") -> str:
    low, high = (format(extreme.item(), form) for extreme in torch.aminmax(x))
    return low if low == high else f"{low} to {high}"


def classes_present(probabilities: Tensor, threshold: float) -> Tensor:
    """Which classes hold so many queries of [.., Q, K] together, [.., K] bool."""
    threshold = check.real("threshold", threshold, positive=True)
    return probabilities.sum(-2, dtype=torch.float64) >= threshold


class TimSolution(NamedTuple):
    """Result of TIM; without a batch dimension in the query there is none here."""

    labels: Tensor  # [.., Q] int64: argmax of the logits
    probabilities: Tensor  # [.., Q, K]: rows on the simplex
    prototypes: Tensor  # [.., K, D] in the coordinates of the (normalised) features
    losses: Tensor | None = None  # [max_iter, ..]: before each step


class Transport(NamedTuple):
    """Result of `sinkhorn`; without a batch dimension in the cost there is none here."""

    plan: Tensor  # [.., Q, K]
    iterations: Tensor  # [..] int32
    residual: Tensor  # [..]: largest error of a row sum after the last column step
