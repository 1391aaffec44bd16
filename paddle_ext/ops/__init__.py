"""Checked torch functions over the native code."""

from .native import build_info
from .paddle import solve, solve_indexed

__all__ = ["build_info", "solve", "solve_indexed"]
