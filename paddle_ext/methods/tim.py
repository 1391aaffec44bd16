"""TIM: prototypes that make the predictions of the queries confident and diverse overall."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from .. import check
from ..ops.tim import tim
from ..ops.tim_operators import triple
from ..task import Task
from .base import Method
from .registry import register

Triple = tuple[float, float, float]


def probabilities(task: Task, **options: Any) -> Tensor:
    """[B, Q, K], of a task that has been checked."""
    found = tim(*task.inputs(), num_classes=task.num_classes, validate=False, **options)
    return found.probabilities


@register
@dataclass(frozen=True, kw_only=True)
class Tim(Method):
    """Transductive information maximisation by gradient descent, TIM-GD; see `paddle_ext.tim`.

    From the means of the support as prototypes, Adam minimises ``weights[0]`` times the
    cross-entropy of the support, less ``weights[1]`` times the entropy of the mean prediction for
    the queries, plus ``weights[2]`` times the mean entropy of the predictions.

    Parameters
    ----------
    weights : three floats
        Of the support's cross-entropy, the marginal and the conditional entropy, >= 0.
    temperature : float
        Sharpness of the probabilities, > 0.
    learning_rate : float
        Of Adam, > 0.
    max_iter : int
        Steps of Adam.
    normalize : bool
        Make all rows unit-norm first.
    """

    name: ClassVar[str] = "tim"

    weights: Triple = (1.0, 0.3, 1.0)
    temperature: float = 15.0
    learning_rate: float = 1e-4
    max_iter: int = 2000
    normalize: bool = True

    def __post_init__(self) -> None:
        check_options(
            self.weights, self.temperature, self.learning_rate, self.max_iter, self.normalize
        )

    def solve(self, task: Task) -> Tensor:
        return probabilities(task, **asdict(self))


@register
@dataclass(frozen=True, kw_only=True)
class AlphaTim(Method):
    """TIM-GD with entropies of orders other than Shannon's, alpha-TIM; see `paddle_ext.tim`.

    A marginal entropy of a high order favours fewer classes, which suits queries that are not
    spread evenly over the classes.

    Parameters
    ----------
    weights : three floats
        Of the support's cross-entropy, the marginal and the conditional entropy, >= 0.
    alphas : three floats
        Orders of the same three, > 0; 1 is Shannon's.
    temperature : float
        Sharpness of the probabilities, > 0.
    learning_rate : float
        Of Adam, > 0.
    max_iter : int
        Steps of Adam.
    normalize : bool
        Make all rows unit-norm first.
    """

    name: ClassVar[str] = "alpha_tim"

    weights: Triple = (1.0, 1.0, 1.0)
    alphas: Triple = (1.0, 7.0, 5.0)
    temperature: float = 15.0
    learning_rate: float = 1e-4
    max_iter: int = 1000
    normalize: bool = True

    def __post_init__(self) -> None:
        check_options(
            self.weights, self.temperature, self.learning_rate, self.max_iter, self.normalize
        )
        triple("alphas", self.alphas, positive=True)

    def solve(self, task: Task) -> Tensor:
        return probabilities(task, **asdict(self))


@register
@dataclass(frozen=True, kw_only=True)
class TimAdm(Method):
    """TIM by alternating closed forms instead of gradients, TIM-ADM; see `paddle_ext.tim`.

    Parameters
    ----------
    weights : three floats
        Of the support's cross-entropy, the marginal and the conditional entropy, >= 0.
    temperature : float
        Sharpness of the probabilities, > 0.
    learning_rate : float
        Step fraction towards the closed form per iteration, > 0; 1.0 is a full step.
    max_iter : int
        Alternations.
    normalize : bool
        Make all rows unit-norm first.
    """

    name: ClassVar[str] = "tim_adm"

    weights: Triple = (0.1, 1.0, 0.1)
    temperature: float = 15.0
    learning_rate: float = 1.0
    max_iter: int = 150
    normalize: bool = True

    def __post_init__(self) -> None:
        check_options(
            self.weights, self.temperature, self.learning_rate, self.max_iter, self.normalize
        )

    def solve(self, task: Task) -> Tensor:
        return probabilities(task, solver="adm", **asdict(self))


def check_options(
    weights: Triple, temperature: float, learning_rate: float, max_iter: int, normalize: bool
) -> None:
    triple("weights", weights)
    check.real("temperature", temperature, positive=True)
    check.real("learning_rate", learning_rate, positive=True)
    check.integer("max_iter", max_iter)
    check.flag("normalize", normalize)
