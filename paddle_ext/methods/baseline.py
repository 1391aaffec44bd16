"""Baseline: prototypes fitted to the support alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from torch import Tensor

from .. import check
from ..task import Task
from .base import Display, Grid, Method
from .options import option, positive
from .registry import register
from .tim import probabilities

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

    temperature: float = option(15.0, positive)
    learning_rate: float = option(1e-3, positive)
    max_iter: int = option(100, check.integer)
    normalize: bool = option(True, check.flag)

    def solve(self, task: Task) -> Tensor:
        return probabilities(task, weights=FIT, **asdict(self))
