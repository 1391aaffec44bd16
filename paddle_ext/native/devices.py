"""Which GPUs the native code can run on, known from its list of architectures before any launch."""

from __future__ import annotations

import re
from functools import cache

import torch

from .. import check
from . import load as native

OLDEST = (8, 0)  # the kernels use instructions that came with Ampere


def runs_on(architectures: str, capability: tuple[int, int]) -> bool:
    """Decide whether code for these architectures runs on a GPU of this compute capability.

    Machine code runs on later GPUs of its generation, PTX on every later GPU. The suffix ``a``
    binds either to one capability and ``f`` to one generation.

    Examples
    --------
    >>> runs_on("80-real;90", (8, 9)), runs_on("80-real;90", (12, 0)), runs_on("80-real", (9, 0))
    (True, True, False)
    """
    for entry in architectures.split(";"):
        parsed = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", entry)
        if parsed is None:  # not a number, such as "all": the driver has the last word
            return bool(entry)
        major, minor, suffix, kind = parsed.groups()
        oldest = int(major), int(minor)
        same_generation = capability[0] == oldest[0]
        if suffix == "a":
            fits = capability == oldest
        else:
            only_generation = kind == "-real" or suffix == "f"
            fits = capability >= oldest and (same_generation or not only_generation)
        if fits:
            return True
    return False


@cache
def has_code_for(index: int) -> bool:
    """Decide whether the native module has code for this GPU."""
    if not native.has_cuda() or driver_version() < needed_driver():
        return False
    return runs_on(native.build_info()["cuda_architectures"], capability(index))


def needed_driver() -> int:
    """Return the version of CUDA that the driver must have at least, such as 13."""
    return int(native.build_info()["cuda_version"].partition(".")[0])


def driver_version() -> int:
    """Return the newest version of CUDA that the driver runs, such as 13."""
    # Not public, so a torch without it is possible: then the driver decides at the first call.
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    return needed_driver() if ask is None else int(ask()) // 1000


def capability(index: int) -> tuple[int, int]:
    """Return the compute capability of a GPU; initialises CUDA."""
    found: tuple[int, int] = torch.cuda.get_device_capability(index)
    return found


def usable_gpu() -> bool:
    """Decide whether torch has a GPU that the native module has code for."""
    return (
        torch.cuda.is_available()
        and native.has_cuda()
        and has_code_for(torch.cuda.current_device())
    )


class NoCodeError(check.ArgumentValueError):
    """The tensors are on a GPU that the native module has no code for."""


def no_code(index: int) -> NoCodeError:
    """The error for tensors on such a GPU: where they must be, and what the user can do."""
    rebuild = "rebuild it with PADDLE_EXT_CUDA=ON, "
    if not native.has_cuda():
        where = "the CPU, because this build of paddle_ext has no CUDA code"
        got = f"cuda:{index}"
    elif driver_version() < needed_driver():
        where = f"the CPU or a GPU with a driver for CUDA {needed_driver()} or newer"
        got = f"cuda:{index} with a driver for CUDA {driver_version()}"
        rebuild = "update the driver, rebuild paddle_ext with an older CUDA, "
    else:
        major, minor = capability(index)
        built = native.build_info()["cuda_architectures"].replace(";", ", ")
        where = f"the CPU or a GPU that this build of paddle_ext has code for ({built})"
        got = f"cuda:{index} of compute capability {major}.{minor}"
        setting = f"PADDLE_EXT_CUDA_ARCHITECTURES={major}{minor}"
        rebuild = f"rebuild it with {setting}, " if (major, minor) >= OLDEST else ""
    hint = f"{rebuild}move them, or pass backend='reference'"
    return NoCodeError("the features", f"must be on {where}; {hint}; got {got}")
