"""Transductive few-shot classification with many candidate classes, few of them present.

`solve` runs PADDLE on tensors, one task or many, on the CPU or a GPU; `solve_indexed` the same on
rows of a feature bank; `tim` and `sinkhorn` are the inner loops of TIM and PT-MAP. `methods` has
every method of the paper behind one protocol, and `reference` the same in plain torch.
`TaskSampler` draws tasks from a `FeatureBank`; `evaluate` and `tune` run methods on them.
`presence` tells which classes are in a batch; `PaddleClassifier` is for scikit-learn.
"""

from typing import TYPE_CHECKING, Any

from . import methods, presence, reference
from .data import FeatureBank
from .evaluation import Evaluation, evaluate, tune
from .ops import build_info, sinkhorn, solve, solve_indexed, tim
from .ops.native import version
from .reference import Solution, TimSolution, Trace, Transport
from .tasks import TaskBatch, TaskSampler

if TYPE_CHECKING:
    from .estimator import PaddleClassifier as PaddleClassifier

__version__ = version()

__all__ = [
    "Evaluation",
    "FeatureBank",
    "Solution",
    "TaskBatch",
    "TaskSampler",
    "TimSolution",
    "Trace",
    "Transport",
    "__version__",
    "build_info",
    "evaluate",
    "methods",
    "presence",
    "reference",
    "sinkhorn",
    "solve",
    "solve_indexed",
    "tim",
    "tune",
]


# Only when it is asked for, and not in __all__: everything else needs no scikit-learn.
def __getattr__(name: str) -> Any:
    if name == "PaddleClassifier":
        from .estimator import PaddleClassifier

        return PaddleClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "PaddleClassifier"]
