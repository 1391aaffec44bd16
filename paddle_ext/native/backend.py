"""Choose the native code, or the reference in plain torch, for a call."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from .. import check
from . import devices

BACKENDS = ("auto", "native", "reference")


def uses_reference(backend: str, x: Tensor) -> bool:
    """Whether a call with features x uses the reference; raises if the backend cannot take them."""
    if backend not in BACKENDS:
        check.not_a_choice("backend", backend, BACKENDS)
    if backend == "reference":
        return True
    if not x.is_cuda:
        return False
    if x.dtype is torch.float64:
        if backend == "auto":
            if not torch.compiler.is_compiling():
                warn_of_the_reference()
            return True
        raise ValueError(
            "backend must be 'auto' or 'reference' for float64 features on CUDA (or make the "
            "features float32, or move them to the CPU), got 'native'"
        )
    # On a GPU without native code "auto" computes on the CPU, in the operators; "native" is an
    # error. A compiled call can only find out when it runs.
    if (
        backend == "native"
        and not torch.compiler.is_compiling()
        and not devices.has_code_for(x.get_device())
    ):
        raise devices.no_code(x.get_device())
    return False


@cache
def warn_of_the_reference() -> None:
    """Warn, once per process, that float64 on CUDA uses the slow reference."""
    warnings.warn(
        "float64 on CUDA has no native code and uses the slow torch reference: make the features "
        "float32, or pass backend='reference' to confirm",
        UserWarning,
        stacklevel=4,
    )
