"""Where native code runs: on GPUs that this build has code for, and on the CPU for the rest."""

import inspect
import re
import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from . import load as native

P = ParamSpec("P")
Result = TypeVar("Result")

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
        later = suffix != "a" and capability > oldest
        only_generation = kind == "-real" or suffix == "f"
        if capability == oldest or (later and (capability[0] == oldest[0] or not only_generation)):
            return True
    return False


@cache
def has_code_for(index: int) -> bool:
    """Decide whether the native module has code for this GPU, without a launch."""
    if not native.has_cuda() or driver_version() < needed_driver():
        return False
    return runs_on(native.build_info()["cuda_architectures"], capability(index))


def needed_driver() -> int:
    """Return the version of CUDA that the driver must have at least, such as 13."""
    return int(native.build_info()["cuda_version"].partition(".")[0])


def driver_version() -> int:
    """Return the newest version of CUDA that the driver runs, such as 13."""
    return native.module.driver_version() // 1000


def capability(index: int) -> tuple[int, int]:
    """Return the compute capability of a GPU; initialises CUDA."""
    major, minor = torch.cuda.get_device_capability(index)
    return major, minor


def usable_gpu() -> bool:
    """Decide whether torch has a GPU that the native module has code for."""
    return torch.cuda.is_available() and has_code_for(torch.cuda.current_device())


def no_code_message(index: int) -> str:
    """Say where tensors on a GPU without code must be, and what the user can do."""
    rebuild = "rebuild it with PADDLE_EXT_CUDA=ON, "
    if not native.has_cuda():
        where = "the CPU, because this build of paddle_ext has no CUDA code"
        got = f"cuda:{index}"
    elif driver_version() < needed_driver():
        oldest = f"driver {native.build_info()['driver']}, for CUDA {needed_driver()},"
        where = f"the CPU or a GPU with {oldest} or newer"
        got = f"cuda:{index} with a driver for CUDA {driver_version()}"
        rebuild = "update the driver, rebuild paddle_ext with an older CUDA, "
    else:
        major, minor = capability(index)
        built = native.build_info()["cuda_architectures"].replace(";", ", ")
        where = f"the CPU or a GPU that this build of paddle_ext has code for ({built})"
        got = f"cuda:{index} of compute capability {major}.{minor}"
        setting = f"PADDLE_EXT_CUDA_ARCHITECTURES={major}{minor}"
        rebuild = f"rebuild it with {setting}, " if (major, minor) >= OLDEST else ""
    return f"the features must be on {where}; {rebuild}or move them; got {got}"


def needs_cpu(x: Tensor) -> bool:
    """Whether native code must compute on the CPU for a tensor on a GPU; warns once if so."""
    if not x.is_cuda:
        return False
    if x.dtype is torch.float64:
        warn_once(
            "float64 on CUDA has no native code and is computed on the CPU, which is slower; make "
            "the features float32 to use the GPU"
        )
        return True
    if has_code_for(x.get_device()):
        return False
    warn_once(f"computing on the CPU, which is slower: {no_code_message(x.get_device())}")
    return True


@cache
def warn_once(message: str) -> None:
    """Warn once per process."""
    warnings.warn(message, UserWarning, stacklevel=5)


def on_cpu_without_gpu_code(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function to compute on the CPU what has no native code on CUDA.

    That is float64, and everything on a GPU that this build has no code for, by the first
    parameter; the results are moved back to its device.
    """
    name = next(iter(inspect.signature(function).parameters))

    @wraps(function)
    def wrapper(*arguments: P.args, **options: P.kwargs) -> Result:
        first: Any = arguments[0] if arguments else options.get(name)
        if not (isinstance(first, Tensor) and first.is_cuda and needs_cpu(first)):
            return function(*arguments, **options)
        run: Any = function
        by_name = {name: on_cpu(x) for name, x in options.items()}
        result: Result = moved_to(run(*map(on_cpu, arguments), **by_name), first.device)
        return result

    return wrapper


def on_cpu(x: Any) -> Any:
    return x.to("cpu") if hasattr(x, "to") else x


def moved_to(result: Any, device: torch.device) -> Any:
    """Move a tensor, a likelihood, or the members of a list or tuple to a device."""
    if hasattr(result, "to"):
        return result.to(device)
    if isinstance(result, list):
        return [moved_to(x, device) for x in result]
    if isinstance(result, tuple):
        parts = [moved_to(x, device) for x in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return result
