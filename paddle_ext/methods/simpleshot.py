"""SimpleShot: the nearest class mean, after centring and normalising the features."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..rows import squared_distances
from ..task import Task, in_chunks, scaled, softmin
from .base import Display, Method, one_of, option, positive
from .registry import register


@register
@dataclass(frozen=True, kw_only=True)
class SimpleShot(Method):
    """The nearest class mean, for each query independently: the non-transductive baseline.

    With z the scaled features and w_k the mean of class k's support,
    ``probabilities_qk = softmax_k( -temperature/2 ||z_q - w_k||^2 )``.

    Parameters
    ----------
    scaling : {"cl2n", "l2n"}
        "cl2n" subtracts `base_mean`, or without one the mean of the task's support, and makes rows
        unit-norm; "l2n" makes them unit-norm.
    temperature : float
        Sharpness of the probabilities, > 0. The labels do not depend on it. The published method
        has no temperature; 15 is TIM's.
    """

    name: ClassVar[str] = "simpleshot"
    display: ClassVar[Display] = Display("SimpleShot", 2, "#3d3d3d", "P")

    scaling: str = option("cl2n", one_of("cl2n", "l2n"))
    temperature: float = option(15.0, positive)

    def solve(self, task: Task) -> Tensor:
        return in_chunks(self.solve_chunk, task, 3 * task.bytes)

    def solve_chunk(self, task: Task) -> Tensor:
        support, query = scaled(task, self.scaling)
        means = task.means(support)
        return softmin(squared_distances(query, means), self.temperature / 2)
