"""Checked torch functions on top of the native code."""

from ..native.load import build_info
from .adapt import adapt
from .paddle import solve, solve_indexed
from .sinkhorn import sinkhorn
from .tim import tim

__all__ = ["adapt", "build_info", "sinkhorn", "solve", "solve_indexed", "tim"]
