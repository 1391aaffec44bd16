"""Which queries are of no class at all.

The probabilities of a solution only compare classes with each other, so this needs the features.
Which classes are present, and which labels are doubtful, a `Solution` tells by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import check
from .methods import Prediction
from .methods.calibration import Likelihood, calibrated
from .ops.paddle_sharpness import sharpness_of
from .rows import computing_dtype, parts
from .scaling import Coordinates, coordinates
from .solution import Solution

__all__ = ["novelty"]

ALONE = "support_labels must have a class of two rows or more, got one of each"


def novelty(
    solution: Solution | Prediction, support: Tensor, support_labels: Tensor, query: Tensor
) -> Tensor:
    """How unlike its class each query is: near 1 for a sample of none of the classes.

    The share of the labelled rows that lie nearer to their own prototype, themselves left out of
    it, than the query lies to the prototype of its label. Of samples like the labelled ones, at
    most about 5 in 100 exceed 0.95. For a solution of `solve`, prototypes and coordinates are those
    that it was solved with; for any other, they are those of the method `adaptive`: class means of
    the labelled rows, in the metric that these speak for.

    Parameters
    ----------
    solution : Solution or Prediction
        What `solve`, or a method's `predict`, gave for the following; one task.
    support, support_labels, query : Tensor [S, D], [S], [Q, D]
        At least one class must have two rows or more: a class with one says nothing about how far
        its samples lie apart.

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
    >>> found = paddle_ext.methods.create("adaptive").predict(support, labels, query)
    >>> novelty(found, support, labels, query).argmax()
    tensor(2)
    """
    check.dense(support, support_labels, query)
    u = solution.probabilities
    if u.dim() != 2 or u.shape[0] != len(query):
        raise ValueError(
            "solution must be that of the one task given, with probabilities of shape "
            f"[{len(query)}, K], got {list(u.shape)}"
        )
    K = check.dense_values(support, support_labels, query, u.shape[-1])
    labels = support_labels.long()
    if isinstance(solution, Prediction) or solution.of_adapt:
        known = support.detach().to(computing_dtype(query)).unsqueeze(0)
        likelihood = calibrated(known, labels.unsqueeze(0), K)
        usual = usual_distances_of(likelihood)
        if len(usual) == 0:
            raise ValueError(ALONE)
        return rank(usual, distances_to_own(likelihood, query.detach(), solution.labels))
    sharpness = sharpness_of(support, labels, K) if solution.scaling == "calibrated" else None
    space = coordinates(support, labels, query, K, solution.scaling, sharpness)
    moved = solution.update_prototypes is not False
    part = slice(None) if moved else slice(0)  # of the queries, which prototypes took in
    held = u[part].sum(0, dtype=torch.float64)
    prototypes = space.prototypes(support, labels, query[part], u[part])
    usual = usual_distances(space, support, labels, prototypes, held)
    if len(usual) == 0:
        raise ValueError(ALONE)
    distances = space.distances_to_own(query, solution.labels, prototypes)
    if not moved:
        return rank(usual, distances)
    # A query is part of its prototype as well, with its probability as the weight.
    mass = (labels.bincount(minlength=K) + held)[solution.labels]
    share = u.gather(-1, solution.labels.unsqueeze(-1)).squeeze(-1).double() / mass
    return rank(usual, distances / (1 - share).square())


def usual_distances(
    space: Coordinates, support: Tensor, labels: Tensor, prototypes: Tensor, mass: Tensor
) -> Tensor:
    """Distances of the labelled rows to their prototypes, each row left out of its own; sorted.

    `mass` [K] is what the prototypes hold alongside the support. Rows that are alone in their class
    are not in the result.
    """
    shots = labels.bincount(minlength=len(mass))
    with_company = (shots > 1)[labels]
    support, labels = support[with_company], labels[with_company]
    if len(labels) == 0:
        return mass.new_zeros(0)
    share = 1 / (shots + mass)[labels]
    distances = space.distances_to_own(support, labels, prototypes)
    return (distances / (1 - share).square()).sort().values


def usual_distances_of(likelihood: Likelihood) -> Tensor:
    """The same in the metric of a likelihood of one task, of the rows that calibrated it."""
    usual = likelihood.usual[0].double()
    return usual[~usual.isnan()].sort().values


def distances_to_own(likelihood: Likelihood, rows: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of each row [n, D] to the class mean of its label, [n] float64."""
    pieces = []
    for part in parts(len(rows), 3 * rows.shape[-1]):
        x = likelihood.coordinates(rows[part].to(likelihood.weights.dtype).unsqueeze(0))
        pieces.append(likelihood.distances_to_own(x, labels[part].unsqueeze(0))[0])
    return torch.cat(pieces).double()


def rank(usual: Tensor, distances: Tensor) -> Tensor:
    """The share of the usual distances that are smaller than each distance."""
    return torch.searchsorted(usual, distances).double() / len(usual)
