"""PADDLE, with the defaults of `paddle_ext.solve`, and without its penalty: soft K-means."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from .. import check
from ..solution import Solution
from ..solvers.paddle import solve, solve_indexed
from ..task import IndexedTask, Task
from .base import Display, Method, Presets, one_of, option, positive
from .registry import register


@register
@dataclass(frozen=True, kw_only=True)
class SoftKMeans(Method):
    """Clusters around prototypes, any number of which are used: `paddle_ext.solve` with lam = 0.

    The first ablation of the paper: PADDLE without its penalty.

    Parameters
    ----------
    scaling : {"auto", "minmax", "none"}
        "auto" suits any embedding: unit-norm rows, and one factor that makes the nearest class lead
        the median one by 13 in squared distance. "minmax" divides each feature by its range over
        the task's queries, as in the tables of the paper. "none" leaves the features unchanged.
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

    scaling: str = option("auto", one_of(*check.SCALINGS))
    temperature: float = option(1.0, positive)
    max_iter: int = option(100, check.integer)
    tol: float = option(1e-6, check.real)

    def solve(self, task: Task) -> Tensor:
        return self.probabilities(solve, task)

    def solve_indexed(self, task: IndexedTask) -> Tensor:
        return self.probabilities(solve_indexed, task)

    def probabilities(self, solver: Callable[..., Solution], task: Task | IndexedTask) -> Tensor:
        options: dict[str, Any] = {"lam": 0.0} | asdict(self)
        options |= {"num_classes": task.num_classes, "validate": False}
        return solver(*task.inputs(), **options).probabilities


@register
@dataclass(frozen=True, kw_only=True)
class Paddle(SoftKMeans):
    """Clusters around prototypes, few of which are used: `paddle_ext.solve`.

    The other options are those of `SoftKMeans`.

    Parameters
    ----------
    lam : float, optional
        Weight of the penalty on the number of classes present, >= 0; default: the number of
        queries, which makes the method parameter-free. The public code has 75, its number of
        queries.
    epsilon : float
        Added to the proportions inside the logarithm, > 0.
    """

    name: ClassVar[str] = "paddle"
    display: ClassVar[Display] = Display("PADDLE", 12, "#c8102e", "o")

    lam: float | None = option(None, check.real)
    epsilon: float = option(1e-6, positive)
