"""Soft K-means with a support: PADDLE without its penalty, the first ablation of the paper."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from torch import Tensor

from .. import check
from ..task import IndexedTask, Task
from .base import Display, Method, Presets
from .options import one_of, option, positive
from .paddle import probabilities
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
    display: ClassVar[Display] = Display("Soft K-means", 10, "#117733", "d")
    presets: ClassVar[Presets] = {"paper": {"scaling": "minmax"}}

    scaling: str = option("auto", one_of(*check.SCALING_NAMES))
    temperature: float = option(1.0, positive)
    max_iter: int = option(100, check.integer)
    tol: float = option(1e-6, check.real)

    def solve(self, task: Task) -> Tensor:
        return probabilities(task, lam=0.0, **asdict(self))

    def solve_indexed(self, task: IndexedTask) -> Tensor:
        return probabilities(task, lam=0.0, **asdict(self))
