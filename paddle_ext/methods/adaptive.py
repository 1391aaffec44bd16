"""Adaptive: calibrated distances to class means, and class proportions learned from the batch."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .. import check
from ..adaptive_rule.label_noise import check_label_noise
from ..adaptive_rule.solve import check_metric, solve_tasks
from ..native.devices import needs_cpu
from ..rows import computing_dtype
from ..solution import Solution
from ..task import Task
from .base import Display, Method, Prediction, factor, option
from .registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Adaptive(Method):
    """`paddle_ext.adaptive`, for batches with any number of classes; also takes class names.

    Parameters
    ----------
    metric : {"auto", "diagonal"}
        "diagonal" weights every feature by its variance within the classes. "auto" also uses the
        covariance, in the share that classifies left-out labelled rows best, if any class has two.
    label_noise : float or "auto"
        The share of labels that are wrong, in [0, 1), or "auto" to estimate it; the weight of a
        labelled row is then the probability that its label is right. With 0.0, or with class names,
        all labels are trusted.
    max_iter : int
        Limit on iterations for the proportions, >= 1.
    tol : float
        A task stops when no class count changes by more than this many queries, >= 0; 0.0 runs all
        iterations.
    logit_scale : float
        Largest factor on cosines with `prototypes` in zero-shot logits, > 0; default: that of CLIP.
        A smaller one is used if it is too sharp for the spread of rows and prototypes.
    """

    name: ClassVar[str] = "adaptive"
    display: ClassVar[Display] = Display("Adaptive", 13, "#6a1fb0", "*")
    takes_prototypes: ClassVar[bool] = True

    metric: str = option("auto", check_metric)
    label_noise: float | str = option(0.0, check_label_noise)
    max_iter: int = option(100, check.integer)
    tol: float = option(1e-3, check.real)
    logit_scale: float = option(100.0, factor)

    def solve(self, task: Task) -> Tensor:
        return self.solution(task).probabilities

    def solution(self, task: Task) -> Solution:
        """The full solution of a batch of tasks, not only the probabilities."""
        return solve_tasks(
            task,
            self.metric,
            label_noise=self.label_noise,
            logit_scale=self.logit_scale,
            max_iter=self.max_iter,
            tol=self.tol,
        )

    def prediction(self, task: Task) -> Prediction:
        solution = self.solution(task)
        return Prediction(solution.labels, solution.probabilities)

    def checks_values_itself(self, support: Tensor, query: Tensor, num_classes: int | None) -> bool:
        """Whether the native code checks all rows: trusted labels, and more rows than classes."""
        return (
            self.label_noise == 0.0
            and num_classes is not None
            and query.shape[0] > 0
            and num_classes < support.shape[-2]
            and support.dtype is query.dtype is computing_dtype(query)
            and not needs_cpu(query)
        )
