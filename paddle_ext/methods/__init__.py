"""Every method of the paper behind one protocol: features in, predictions out.

`create` makes a method by name, `available` lists the names, `describe` lists the options of a
method, and `register` adds your own.
"""

from importlib import import_module
from pkgutil import iter_modules

from .adaptive import Adaptive
from .base import Display, Method, Prediction
from .bd_cspn import BdCspn
from .em_dirichlet import EmDirichlet
from .ici import Ici
from .laplacian_shot import LaplacianShot
from .paddle import Paddle, SoftKMeans
from .paddle_pgd import PaddlePgd
from .pt_map import PtMap
from .registry import Option, available, create, describe, register
from .simpleshot import SimpleShot
from .tim import AlphaTim, Baseline, Tim, TimAdm
from .transclip import StatA, TransClip
from .zero_shot import ZeroShot

__all__ = [
    "Adaptive",
    "AlphaTim",
    "Baseline",
    "BdCspn",
    "Display",
    "EmDirichlet",
    "Ici",
    "LaplacianShot",
    "Method",
    "Option",
    "Paddle",
    "PaddlePgd",
    "Prediction",
    "PtMap",
    "SimpleShot",
    "SoftKMeans",
    "StatA",
    "Tim",
    "TimAdm",
    "TransClip",
    "ZeroShot",
    "available",
    "create",
    "describe",
    "register",
]

# A module of this folder is all that a new method needs: importing it registers its class. The
# names above are for readers and type checkers.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
