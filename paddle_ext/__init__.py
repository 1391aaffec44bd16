"""Transductive few-shot classification with many candidate classes, few of them present.

`solve` runs PADDLE on tensors, one task or many, on the CPU or a GPU; `solve_indexed` the same on
rows of a feature bank; `reference` has the methods in plain torch.
"""

from . import reference
from .ops import build_info, solve, solve_indexed
from .ops.native import version
from .reference import Solution, Trace

__version__ = version()

__all__ = ["Solution", "Trace", "__version__", "build_info", "reference", "solve", "solve_indexed"]
