"""What has a kernel, in readable, plain torch for any float dtype: its specification."""

from .adapt import adapt
from .adaptive import adaptive
from .names import names
from .paddle import solve
from .sinkhorn import sinkhorn
from .tim import tim

__all__ = ["adapt", "adaptive", "names", "sinkhorn", "solve", "tim"]
