"""Soft K-means with a support: PADDLE without its penalty, the first ablation of the paper."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from torch import Tensor

from .. import check
from ..ops.paddle import solve, solve_indexed
from ..task import IndexedTask, Task
from .base import Method, Presets
from .registry import register


@register
@dataclass(frozen=True, kw_only=True)
class SoftKMeans(Method):
    """Clusters around prototypes, any number of which are used: `paddle_ext.solve` with lam = 0.

    Parameters
    ----------
    scaling : {"auto", "minmax", "none"}
        As for the method "paddle".
    temperature : float
        Factor on the squared distances, > 0.
    max_iter : int
        At most this many iterations, >= 1.
    tol : float
        A task stops when its prototypes move by at most this on average, >= 0; 0.0 runs all
        iterations, like the public code.
    """

    name: ClassVar[str] = "soft_kmeans"
    presets: ClassVar[Presets] = {"paper": {"scaling": "minmax"}}

    scaling: str = "auto"
    temperature: float = 1.0
    max_iter: int = 100
    tol: float = 1e-6

    def __post_init__(self) -> None:
        check.choice("scaling", self.scaling, check.SCALING_NAMES)
        check.real("temperature", self.temperature, positive=True)
        check.integer("max_iter", self.max_iter)
        check.real("tol", self.tol)

    def solve(self, task: Task) -> Tensor:
        options = asdict(self)
        return solve(
            *task.inputs(), num_classes=task.num_classes, lam=0.0, validate=False, **options
        ).probabilities

    def solve_indexed(self, task: IndexedTask) -> Tensor:
        options = asdict(self)
        return solve_indexed(
            *task.inputs(), num_classes=task.num_classes, lam=0.0, validate=False, **options
        ).probabilities
