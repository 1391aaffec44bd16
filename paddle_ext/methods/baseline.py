"""Baseline: prototypes fitted to the support alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from torch import Tensor

from .base import Display, Grid, Method
from .registry import register
from .task import Task
from .tim import check_descent, probabilities

FIT = (1.0, 0.0, 0.0)  # the weights of TIM without the queries


@register
@dataclass(frozen=True, kw_only=True)
class Baseline(Method):
    """Adam on the cross-entropy of the support, from its class means: TIM-GD without queries.

    Not transductive: each query is classified independently.

    Parameters
    ----------
    temperature : float
        Sharpness of the probabilities, > 0.
    learning_rate : float
        Of Adam, > 0.
    max_iter : int
        Steps of Adam.
    normalize : bool
        Make all rows unit-norm first.
    """

    name: ClassVar[str] = "baseline"
    display: ClassVar[Display] = Display("Baseline", 1, "#8a8a8a", "s")
    tuning_grid: ClassVar[Grid] = {
        "learning_rate": (1e-4, 1e-3, 1e-2),
        "max_iter": (50, 100, 300),
    }

    temperature: float = 15.0
    learning_rate: float = 1e-3
    max_iter: int = 100
    normalize: bool = True

    def __post_init__(self) -> None:
        check_descent(self.temperature, self.learning_rate, self.max_iter, self.normalize)

    def solve(self, task: Task) -> Tensor:
        return probabilities(task, weights=FIT, **asdict(self))
