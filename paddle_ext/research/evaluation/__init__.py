"""From a feature bank to tables: evaluation, tuning, and the paper's experiments."""

from .evaluate import evaluate
from .results import Evaluation, Result
from .settings import RunSettings
from .tuning import Tuning, tune

__all__ = ["Evaluation", "Result", "RunSettings", "Tuning", "evaluate", "tune"]
