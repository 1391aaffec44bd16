"""The methods in readable, plain torch, for any float dtype; the native code agrees with them."""

from .adapt import adapt
from .adaptive import adaptive
from .bd_cspn import bd_cspn
from .calibrate import calibrate
from .em_dirichlet import em_dirichlet
from .ici import ici
from .laplacian_shot import laplacian_shot
from .names import names
from .paddle import solve
from .pgd import pgd
from .pt_map import pt_map
from .simpleshot import simpleshot
from .sinkhorn import sinkhorn
from .stata import stata
from .tim import tim
from .transclip import transclip
from .zero_shot import zero_shot

__all__ = [
    "adapt",
    "adaptive",
    "bd_cspn",
    "calibrate",
    "em_dirichlet",
    "ici",
    "laplacian_shot",
    "names",
    "pgd",
    "pt_map",
    "simpleshot",
    "sinkhorn",
    "solve",
    "stata",
    "tim",
    "transclip",
    "zero_shot",
]
