"""What a solution says about its batch: which classes are there, and which labels to look at.

Two questions about a single sample have two answers. `doubt` asks whether another candidate class
is as likely; it needs the solution alone. `novelty` asks whether the sample is of any candidate
class at all; it needs the features, for the assignments only compare classes with each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .coordinates import Coordinates, coordinates, counts, own_distances, prototypes
from .ops import check
from .reference import Solution

__all__ = ["doubt", "novelty", "present"]


def present(solution: Solution, threshold: float = 1.5) -> Tensor:
    """Which classes occur among the queries.

    A class counts as present if its assignments add up to at least `threshold` queries. The default
    asks for two samples: on real features, with five classes or fewer present, a class that held a
    single one was nearly always a wrong label. 0.5 lets one sample be enough, which is better where
    many classes have few samples each. `docs/presence.md` has the measurement.

    Parameters
    ----------
    solution : Solution
        Of one task or of many.
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
    >>> present(solution)
    tensor([False,  True, False])
    >>> present(solution, threshold=0.5)
    tensor([ True,  True, False])
    """
    threshold = check.real("threshold", threshold, positive=True)
    return solution.assignments.sum(-2, dtype=torch.float64) >= threshold


# Of the preference for classes that hold much of the batch, doubt takes off this share. With all of
# it taken off, labels are doubted that only the batch could tell; with none, those are trusted that
# a large class has swallowed. benchmarks/presence.py compares shares.
UNDONE = 2 / 3


def doubt(solution: Solution, lam: float | None = None) -> Tensor:
    """How doubtful each label is.

    What all other classes have of the sample when the solver's preference for classes that hold
    much of the batch, which is the dual, is weakened to a third. The assignments themselves are
    sure of a wrong label where such a class has swallowed the samples of another.

    Parameters
    ----------
    solution : Solution
        Of one task or of many.
    lam : float, optional
        As it was given to `solve`.

    Returns
    -------
    Tensor [.., Q]
        In [0, 1], of the dtype of the assignments.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> support = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> query = torch.tensor([[0.5, 0.0], [4.0, 0.5], [2.0, 0.0]])  # the last is between the two
    >>> solution = paddle_ext.solve(support, torch.tensor([0, 1]), query, scaling="none")
    >>> doubt(solution).argmax()
    tensor(2)
    """
    Q = solution.assignments.shape[-2]
    weight = 1.0 if lam is None else check.real("lam", lam) / Q
    return held_by_others(solution, UNDONE * weight)


def held_by_others(solution: Solution, weight: float) -> Tensor:
    """What the classes beside the label have of each query, [.., Q], less `weight` times the dual.

    The logits of the assignments have the dual inside, lam/Q times.
    """
    u = solution.assignments  # a 0 in it was too small for the dtype
    logits = u.clamp(min=torch.finfo(u.dtype).tiny).log() - weight * solution.dual.unsqueeze(-2)
    own = torch.softmax(logits, dim=-1).gather(-1, solution.labels.unsqueeze(-1)).squeeze(-1)
    return (1 - own).clamp(min=0)


def novelty(
    solution: Solution,
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    scaling: str = "auto",
) -> Tensor:
    """How unlike its class each query is: near 1 for a sample of none of the classes.

    The share of the labelled rows that lie nearer to their own prototype, themselves left out of
    it, than the query lies to the prototype of its label. Of samples like the labelled ones, at
    most about 5 in 100 exceed 0.95.

    Parameters
    ----------
    solution : Solution
        What `solve` gave for the following; one task.
    support, support_labels, query : Tensor [S, D], [S], [Q, D]
        At least one class must have two rows or more: a class with one says nothing about how far
        its samples lie apart.
    scaling : {"auto", "minmax", "none"}
        As it was given to `solve`.

    Returns
    -------
    Tensor [Q]
        In [0, 1], float64.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> labels = torch.arange(2).repeat(20)
    >>> support = 9 * torch.eye(2)[labels] + torch.randn(40, 2)
    >>> query = torch.tensor([[9.0, 0.0], [0.0, 9.0], [-9.0, -9.0]])  # the last is neither
    >>> solution = paddle_ext.solve(support, labels, query)
    >>> novelty(solution, support, labels, query).argmax()
    tensor(2)
    """
    check.choice("scaling", scaling, check.SCALING_NAMES)
    check.dense(support, support_labels, query)
    u = solution.assignments
    if u.dim() != 2 or u.shape[0] != len(query):
        raise ValueError(
            "solution must be that of the one task given, with assignments of shape "
            f"[{len(query)}, K], got {list(u.shape)}"
        )
    K = check.dense_values(support, support_labels, query, u.shape[-1])
    labels = support_labels.long()
    where = coordinates(support, labels, query, K, scaling)
    w = prototypes(where, support, labels, query, u)
    usual = usual_distances(where, support, labels, w, u.sum(0, dtype=torch.float64))
    if len(usual) == 0:
        raise ValueError("support_labels must have a class of two rows or more, got one of each")
    # A query is part of its prototype as well, with its assignment as the weight.
    mass = (counts(labels, K) + u.sum(0, dtype=torch.float64))[solution.labels]
    share = u.gather(-1, solution.labels.unsqueeze(-1)).squeeze(-1).double() / mass
    distances = own_distances(where, query, solution.labels, w) / (1 - share).square()
    return rank(usual, distances)


def usual_distances(
    where: Coordinates, support: Tensor, labels: Tensor, prototypes: Tensor, mass: Tensor
) -> Tensor:
    """Distances of the labelled rows to their prototypes, each row left out of its own; sorted.

    `mass` [K] is what the prototypes hold beside the support. Rows that are alone in their class
    are not in the result.
    """
    shots = counts(labels, len(mass))
    several = (shots > 1)[labels]
    support, labels = support[several], labels[several]
    if len(labels) == 0:
        return mass.new_zeros(0)
    share = 1 / (shots + mass)[labels]
    return (own_distances(where, support, labels, prototypes) / (1 - share).square()).sort().values


def rank(usual: Tensor, distances: Tensor) -> Tensor:
    """The share of the usual distances that are smaller than each distance."""
    return torch.searchsorted(usual, distances).double() / len(usual)
