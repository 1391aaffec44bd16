"""LR + ICI: logistic regression that absorbs queries by the credibility of their pseudo-labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import check
from ..rows import unit_rows
from ..rule import logistic
from ..task import Task, in_chunks
from .base import Method, Presets
from .ici_path import PENALTIES, first_zeros
from .registry import register

LEAST_SPREAD = 1e-6  # a principal axis with less, as a share of the rows' norm 1, is rounding
# Outside these bounds the penalty or the data is below single-precision rounding.
REGULARISATION = (1e-6, 1e6)


@register
@dataclass(frozen=True, kw_only=True)
class Ici(Method):
    """Logistic regression that absorbs the queries, the most credible pseudo-labels first.

    Wang et al., *Instance Credibility Inference for Few-Shot Learning*, CVPR 2020. Rows are made
    unit-norm. A multinomial logistic regression is fitted to the support, and then in every round:

    1. The model labels all queries, including those absorbed before.
    2. The one-hot labels of all rows are regressed on their first principal components. Each row
       has an incidental parameter, a vector, which absorbs what the regression does not explain,
       under a penalty on its norm. The smaller the penalty at which it is zero, the more credible
       the label. 100 penalties are tried, spaced geometrically, from the largest, at which all are
       zero, to a thousandth of it.
    3. The `step` most credible remaining queries of each class are absorbed; of equals, the first.
    4. The model is fitted again to the support and all absorbed queries.

    A task stops when all its queries are absorbed. The probabilities are those of its last model.

    Parameters
    ----------
    step : int
        Limit on queries absorbed per class and round, >= 1.
    max_iter : int
        Limit on rounds, >= 1.
    dimension : int
        Principal components that the labels are regressed on, >= 1. Fewer are used if rows have
        fewer directions.
    inverse_regularisation : float
        C, in [1e-6, 1e6]: the model minimises 1/2 ||W||^2 + C * cross-entropy, summed over rows;
        intercepts are not penalised. With two classes it has one logit, as in scikit-learn, and W
        is its weight vector.
    tol : float
        Accuracy of the fits, >= 0: the error of the logits is about this, or C times this for C <
        1, and usually much less.
    """

    name: ClassVar[str] = "ici"
    presets: ClassVar[Presets] = {
        "tiered": {"dimension": 5},
        "inat": {"dimension": 5},
    }

    step: int = 5
    max_iter: int = 100
    dimension: int = 2
    inverse_regularisation: float = 10.0
    tol: float = 0.01

    def __post_init__(self) -> None:
        check.integer("step", self.step)
        check.integer("max_iter", self.max_iter)
        check.integer("dimension", self.dimension)
        C = check.real("inverse_regularisation", self.inverse_regularisation, positive=True)
        if not REGULARISATION[0] <= C <= REGULARISATION[1]:
            raise ValueError(f"inverse_regularisation must be in [1e-06, 1e+06], got {C}")
        check.real("tol", self.tol)

    def solve(self, task: Task) -> Tensor:
        N, D = task.support.shape[-2] + task.query.shape[-2], task.query.shape[-1]
        K, d = task.num_classes, min(self.dimension, N, D)
        fits = 8 * (N + D) * K * task.query.itemsize
        return in_chunks(self.solve_chunk, task, fits + 8 * N * (4 * D + 2 * K + 16 * d + d * d))

    def solve_chunk(self, task: Task) -> Tensor:
        B, Q, _ = task.query.shape
        S, K = task.support.shape[-2], task.num_classes
        support = unit_rows(task.support).expand(B, -1, -1)
        features, axes = principal_components(
            torch.cat([support, unit_rows(task.query)], dim=1), self.dimension
        )
        support_labels = task.support_labels.expand(B, -1)
        labels = torch.nn.functional.pad(support_labels, (0, Q))
        included = (torch.arange(S + Q, device=labels.device) < S).expand(B, -1)
        model = self.fit(features, labels, included, K, None)

        probabilities = task.query.new_empty(B, Q, K)
        tasks = torch.arange(B, device=labels.device)  # those still running
        path = Path(axes, K)
        for _ in range(self.max_iter):
            labels = torch.cat([support_labels, model.logits[:, S:].argmax(-1)], dim=1)
            included = included | self.most_credible(path, labels, included, K)
            model = self.fit(features, labels, included, K, model)
            probabilities[tasks] = torch.softmax(model.logits[:, S:], dim=-1)

            left = ~included.all(-1)
            if not bool(left.any()):
                break
            if not bool(left.all()):
                tasks, features, included = tasks[left], features[left], included[left]
                support_labels = support_labels[left]
                model = logistic.Fit(*(x[left] for x in model))
                path.keep(left)
        return probabilities

    def fit(
        self,
        features: Tensor,
        labels: Tensor,
        included: Tensor,
        num_classes: int,
        start: logistic.Fit | None,
    ) -> logistic.Fit:
        # One logit, of weights w, is two of weights w/2 and -w/2: half of the penalty on w.
        C = self.inverse_regularisation / (2 if num_classes == 2 else 1)
        return logistic.fit(
            features,
            labels,
            included,
            num_classes,
            inverse_regularisation=C,
            tol=self.tol,
            start=start,
        )

    def most_credible(
        self, path: Path, labels: Tensor, included: Tensor, num_classes: int
    ) -> Tensor:
        """The rows to absorb next, [B, N] bool; `included` are already absorbed."""
        classes = torch.where(included, num_classes, labels)
        counts = torch.zeros_like(classes[:, :1]).repeat(1, num_classes + 1)
        counts.scatter_add_(1, classes, torch.ones_like(classes))
        # If no class has more rows than may be absorbed, credibility does not matter.
        contested = (counts[:, :num_classes] > self.step).any(-1)
        order = path.first_zeros(labels, contested)
        return (place_in_class(classes, order) < self.step) & ~included


class Path:
    """The order in which rows become credible, recomputed only where labels have changed."""

    def __init__(self, axes: Tensor, num_classes: int) -> None:
        self.axes = axes  # [B, N, d] float64
        self.num_classes = num_classes
        self.labels = torch.full(axes.shape[:2], -1, device=axes.device)
        self.order = torch.zeros_like(self.labels)

    def keep(self, tasks: Tensor) -> None:
        """Keep only the tasks of a mask [B]."""
        self.axes, self.labels, self.order = self.axes[tasks], self.labels[tasks], self.order[tasks]

    def first_zeros(self, labels: Tensor, needed: Tensor) -> Tensor:
        """Like `ici_path.first_zeros`, for the tasks of a mask [B]; others may be stale."""
        new = needed & (labels != self.labels).any(-1)
        if bool(new.any()):
            self.labels[new] = labels[new]
            self.order[new] = first_zeros(self.axes[new], labels[new], self.num_classes)
        return self.order


def place_in_class(classes: Tensor, order: Tensor) -> Tensor:
    """The number of rows of its class before each row, by `order`, then by index, [B, N]."""
    sorted_keys, rows = (classes * PENALTIES + order).sort(dim=-1, stable=True)
    sorted_classes = sorted_keys // PENALTIES
    start = torch.searchsorted(sorted_classes, sorted_classes)
    place = torch.arange(classes.shape[-1], device=classes.device) - start
    return torch.empty_like(place).scatter_(-1, rows, place)


def principal_components(rows: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Coordinates of unit-norm rows [B, N, D] along all their principal axes, and a basis.

    The coordinates [B, N, min(N, D)], in the dtype of the rows, are a rotation of the centred rows:
    a model with an intercept and a penalty on the norm of its weights is the same on both. The
    basis [B, N, d], float64, spans the first d = `dimension` coordinates; d is smaller if there
    are fewer, and a column is zero where a task has no spread in that direction.
    """
    N, D = rows.shape[1:]
    dimension = min(dimension, N, D)
    centred = rows.double()
    centred = centred - centred.mean(1, keepdim=True)
    if N <= D:
        squares, left = torch.linalg.eigh(centred @ centred.mT)
        coordinates = left * squares.clamp(min=0).sqrt().unsqueeze(1)
    else:
        squares, right = torch.linalg.eigh(centred.mT @ centred)
        coordinates = centred @ right
    basis = coordinates[..., -dimension:]  # the largest are last
    norms = torch.linalg.vector_norm(basis, dim=1, keepdim=True)
    spread = norms > LEAST_SPREAD * N**0.5
    return coordinates.to(rows.dtype), torch.where(spread, basis / torch.where(spread, norms, 1), 0)
