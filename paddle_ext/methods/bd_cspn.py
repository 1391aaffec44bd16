"""BD-CSPN: prototypes rectified by the queries, after the query set is moved onto the support."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..rows import class_sums, power_of_two_above, products, squared_distances, unit_rows
from ..task import Task, in_chunks, scaled, softmin
from .base import Display, Grid, Method, Presets, one_of, option, positive
from .registry import register


@register
@dataclass(frozen=True, kw_only=True)
class BdCspn(Method):
    """The nearest prototype, rectified by the queries.

    Liu et al., *Prototype Rectification for Few-Shot Learning*, ECCV 2020. The rows x of a task are
    its scaled support, and its scaled queries z moved by mean(support) - mean(queries). From the
    class means w_k of the support::

        weight_nk = softmax_k( temperature cos(x_n, w_k) )
        w'_k      = mean of weight_nk x_n over the rows n that are nearest, by cosine, to w_k

    and a query z_q, not moved, belongs to the nearest w'; a class without a nearest row keeps its
    w_k. The means are not divided by the sum of the weights, as published, so that w' is shorter
    than w. The method ends with labels; the probabilities
    ``softmax_k( -temperature/2 ||z_q - w'_k||^2 / scale )`` are ours: for unit-norm rows scale = 1,
    and they are as sharp as the weights. Without scaling, scale is the mean squared norm of the
    task's support.

    Parameters
    ----------
    scaling : {"cl2n", "l2n", "none"}
        "cl2n" subtracts `base_mean`, or without one the mean of the task's support, and makes rows
        unit-norm; "l2n" makes them unit-norm. "none" leaves the features unchanged: the public code
        does so by mistake, and so do the published numbers.
    temperature : float
        Sharpness of the weights, > 0.
    """

    name: ClassVar[str] = "bd_cspn"
    display: ClassVar[Display] = Display("BD-CSPN", 4, "#44aa99", "^")
    tuning_grid: ClassVar[Grid] = {"temperature": (5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0)}
    presets: ClassVar[Presets] = {"tiered": {"temperature": 30.0}}

    scaling: str = option("cl2n", one_of("cl2n", "l2n", "none"))
    temperature: float = option(50.0, positive)

    def solve(self, task: Task) -> Tensor:
        return in_chunks(self.solve_chunk, task, 5 * task.bytes)

    def solve_chunk(self, task: Task) -> Tensor:
        support, query = scaled(task, self.scaling)
        # Scale numbers to about 1, so that no square overflows. A shared support has its own unit.
        support_unit = power_of_two_above(support)  # [B or 1, 1, 1]
        unit = torch.maximum(support_unit, power_of_two_above(query))  # [B, 1, 1]
        support, query = support / support_unit, query / unit
        means = task.means(support)
        directions = unit_rows(means)

        total, count = self.rectified(support, directions)
        ratio = support_unit / unit
        moved = query + support.mean(-2, keepdim=True) * ratio - query.mean(-2, keepdim=True)
        query_total, query_count = self.rectified(moved, directions)
        total = total * ratio + query_total
        count = (count + query_count).unsqueeze(-1)  # [B, K, 1]
        prototypes = torch.where(count == 0, means * ratio, total / count.clamp(min=1))

        scale = unit.square().reciprocal()
        if self.scaling == "none":
            norms = support.square().sum(-1).mean(-1).view(-1, 1, 1) * ratio.square()
            scale = torch.where(norms > 0, norms, 1)
        distances = squared_distances(query, prototypes)
        behind = distances - distances.amin(-1, keepdim=True)
        return softmin(behind / scale, self.temperature / 2)

    def rectified(self, rows: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sums and counts of the rows nearest to each class, [.., K, D] and [.., K]."""
        cosines = products(unit_rows(rows), directions)
        best, nearest = cosines.max(-1)
        weights = softmin(best.unsqueeze(-1) - cosines, self.temperature).amax(-1)
        return class_sums(rows, nearest, cosines.shape[-1], weights)
