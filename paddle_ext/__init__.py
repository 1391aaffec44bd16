"""Transductive few-shot classification with many candidate classes, few of them present.

`solve` runs PADDLE on tensors, one task or many, on the CPU or a GPU; `solve_indexed` the same on
rows of a feature bank; `tim` and `sinkhorn` are the inner loops of TIM and PT-MAP. `methods` has
every method of the paper behind one protocol, and `reference` the same in plain torch.
`TaskSampler` draws tasks from a `FeatureBank`.
"""

from . import methods, reference
from .data import FeatureBank
from .ops import build_info, sinkhorn, solve, solve_indexed, tim
from .ops.native import version
from .reference import Solution, TimSolution, Trace, Transport
from .tasks import TaskBatch, TaskSampler

__version__ = version()

__all__ = [
    "FeatureBank",
    "Solution",
    "TaskBatch",
    "TaskSampler",
    "TimSolution",
    "Trace",
    "Transport",
    "__version__",
    "build_info",
    "methods",
    "reference",
    "sinkhorn",
    "solve",
    "solve_indexed",
    "tim",
]
