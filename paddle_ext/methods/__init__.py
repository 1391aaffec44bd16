"""Every method of the paper behind one protocol: features in, predictions out.

`create` makes a method by its name, `available` lists the names, `describe` the options of one.
"""

from .adaptive import Adaptive
from .base import Method, Option, Prediction, available, create, describe
from .baseline import Baseline
from .bd_cspn import BdCspn
from .ici import Ici
from .laplacian_shot import LaplacianShot
from .paddle import Paddle
from .paddle_pgd import PaddlePgd
from .pt_map import PtMap
from .simpleshot import SimpleShot
from .soft_kmeans import SoftKMeans
from .tim import AlphaTim, Tim, TimAdm

__all__ = [
    "Adaptive",
    "AlphaTim",
    "Baseline",
    "BdCspn",
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
    "Tim",
    "TimAdm",
    "available",
    "create",
    "describe",
]
