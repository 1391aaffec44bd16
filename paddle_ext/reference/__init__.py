"""The methods in plain torch: readable, batched, any float dtype. The native code must agree."""

from .paddle import Solution, Trace, solve
from .pgd import pgd

__all__ = ["Solution", "Trace", "pgd", "solve"]
