"""TIM: prototypes for which the predictions of queries are confident, and diverse as a whole.

Without its terms for the queries it is the baseline: prototypes fitted to the support alone.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from .. import check
from ..solvers.tim import tim
from ..task import Task
from .base import Display, Grid, Method, option, positive
from .registry import register


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
    tuning_grid: ClassVar[Grid] = {"learning_rate": (1e-4, 1e-3, 1e-2), "max_iter": (50, 100, 300)}
    solver: ClassVar[str] = "gd"

    temperature: float = option(15.0, positive)
    learning_rate: float = option(1e-3, positive)
    max_iter: int = option(100, check.integer)
    normalize: bool = option(True, check.flag)

    def solve(self, task: Task) -> Tensor:
        options: dict[str, Any] = {"weights": (1.0, 0.0, 0.0)} | asdict(self)
        options |= {"num_classes": task.num_classes, "solver": self.solver, "validate": False}
        return tim(*task.inputs(), **options).probabilities


@register
@dataclass(frozen=True, kw_only=True)
class Tim(Baseline):
    """Transductive information maximisation by gradient descent, TIM-GD; see `paddle_ext.tim`.

    From the means of the support as prototypes, Adam minimises ``weights[0]`` times the
    cross-entropy of the support, less ``weights[1]`` times the entropy of the mean prediction for
    the queries, plus ``weights[2]`` times the mean entropy of the predictions.
    The other options are those of `Baseline`.

    Parameters
    ----------
    weights : three floats
        Weights of the support's cross-entropy, the marginal and the conditional entropy, >= 0.
    """

    name: ClassVar[str] = "tim"
    display: ClassVar[Display] = Display("TIM", 7, "#56b4e9", "<")
    tuning_grid: ClassVar[Grid] = {
        "weights": tuple((1.0, m, c) for m in (0.1, 0.3, 1.0) for c in (0.1, 0.3, 1.0))
    }

    weights: tuple[float, float, float] = option((1.0, 0.3, 1.0), check.triple)
    learning_rate: float = option(1e-4, positive)
    max_iter: int = option(2000, check.integer)


@register
@dataclass(frozen=True, kw_only=True)
class AlphaTim(Tim):
    """TIM-GD with entropies of orders other than Shannon's, alpha-TIM; see `paddle_ext.tim`.

    A marginal entropy of a high order favours fewer classes, which suits queries that are not
    spread evenly over the classes. The other options are those of `Tim`.

    Parameters
    ----------
    alphas : three floats
        Orders of the three entropies that `weights` weighs, > 0; 1 is Shannon's.
    """

    name: ClassVar[str] = "alpha_tim"
    display: ClassVar[Display] = Display("α-TIM", 9, "#0063a8", "h")
    tuning_grid: ClassVar[Grid] = {
        "alphas": tuple((1.0, a, b) for a, b in ((2, 2), (3, 3), (5, 5), (7, 5), (7, 7))),
        "weights": ((1.0, 0.5, 1.0), (1.0, 1.0, 1.0)),
    }

    weights: tuple[float, float, float] = option((1.0, 1.0, 1.0), check.triple)
    max_iter: int = option(1000, check.integer)
    alphas: tuple[float, float, float] = option(
        (1.0, 7.0, 5.0), partial(check.triple, positive=True)
    )


@register
@dataclass(frozen=True, kw_only=True)
class TimAdm(Tim):
    """TIM by alternating closed forms instead of gradients, TIM-ADM; see `paddle_ext.tim`.

    The other options are those of `Tim`.

    Parameters
    ----------
    learning_rate : float
        Step fraction towards the closed form per iteration, > 0; 1.0 is a full step.
    max_iter : int
        Alternations.
    """

    name: ClassVar[str] = "tim_adm"
    display: ClassVar[Display] = Display("TIM-ADM", 8, "#7b6fd0", ">")
    tuning_grid: ClassVar[Grid] = {
        "weights": tuple((0.1, m, c) for m in (0.3, 1.0, 3.0) for c in (0.03, 0.1, 0.3))
    }
    solver: ClassVar[str] = "adm"

    weights: tuple[float, float, float] = option((0.1, 1.0, 0.1), check.triple)
    learning_rate: float = option(1.0, positive)
    max_iter: int = option(150, check.integer)
