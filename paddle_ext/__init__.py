"""Transductive few-shot classification with many candidate classes, few of them present.

`adaptive` classifies any batch, whether one class is present or all; `adapt` does the same from
logits. `solve` runs PADDLE on tensors, one task or many, on the CPU or a GPU; `solve_indexed` does
so on rows of a feature bank; `tim` and `sinkhorn` are the inner loops of TIM and PT-MAP. `methods`
has every method of the paper behind one protocol; `reference` has what is native in plain torch.
`TaskSampler` draws tasks from a `FeatureBank`; `evaluate` and `tune` run methods on them.
`presence` finds queries of unknown classes; `PaddleClassifier` is for scikit-learn,
`BatchClassifier` for a stream of batches, in a loop or with Ray or Spark.
"""

import importlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import methods as methods
    from . import presence as presence
    from . import reference as reference
    from .adaptive_rule.solve import adaptive as adaptive
    from .integrations.batches import BatchClassifier as BatchClassifier
    from .integrations.sklearn import PaddleClassifier as PaddleClassifier
    from .large.sources import FileRows as FileRows
    from .native.load import build_info as build_info
    from .research.data import FeatureBank as FeatureBank
    from .research.evaluate import evaluate as evaluate
    from .research.results import Evaluation as Evaluation
    from .research.sampler import TaskBatch as TaskBatch
    from .research.sampler import TaskSampler as TaskSampler
    from .research.tune import tune as tune
    from .solution import Solution as Solution
    from .solution import TimSolution as TimSolution
    from .solution import Transport as Transport
    from .solvers.adapt import adapt as adapt
    from .solvers.paddle import solve as solve
    from .solvers.paddle import solve_indexed as solve_indexed
    from .solvers.sinkhorn import sinkhorn as sinkhorn
    from .solvers.tim import tim as tim

    __version__: str


def _is_subinterpreter() -> bool:
    """Whether this is not the main interpreter of the process."""
    for name in (
        "_interpreters",
        "_xxsubinterpreters",
    ):  # of Python 3.13 and later; of earlier ones
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


if _is_subinterpreter():  # where `import torch` never returns
    raise ImportError(
        "paddle_ext needs torch, which cannot be loaded in a subinterpreter of Python: import it "
        "in the main one; with mod_wsgi, set WSGIApplicationGroup %{GLOBAL}"
    )

# Public names are loaded from these modules on first use, because torch and everything above it
# take seconds to import.
_MODULES = {
    "BatchClassifier": "integrations.batches",
    "Evaluation": "research.results",
    "FeatureBank": "research.data",
    "FileRows": "large.sources",
    "PaddleClassifier": "integrations.sklearn",
    "Solution": "solution",
    "TaskBatch": "research.sampler",
    "TaskSampler": "research.sampler",
    "TimSolution": "solution",
    "Transport": "solution",
    "adapt": "solvers.adapt",
    "adaptive": "adaptive_rule.solve",
    "build_info": "native.load",
    "evaluate": "research.evaluate",
    "sinkhorn": "solvers.sinkhorn",
    "solve": "solvers.paddle",
    "solve_indexed": "solvers.paddle",
    "tim": "solvers.tim",
    "tune": "research.tune",
}
_SUBMODULES = ("integrations", "methods", "presence", "reference", "research")

__all__ = list(_MODULES)
__all__ += ["__version__", "methods", "presence", "reference"]
__all__.remove("PaddleClassifier")  # so that `from paddle_ext import *` does not need scikit-learn

# Two threads that import packages which need each other see half of them.
_LOADING = threading.RLock()


def __getattr__(name: str) -> Any:
    if name not in {*_MODULES, *_SUBMODULES, "__version__"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _LOADING:
        if name in _SUBMODULES:
            return importlib.import_module(f".{name}", __name__)
        if name == "__version__":
            found = importlib.import_module(".native.load", __name__).version()
        else:
            found = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES, "__version__"})
