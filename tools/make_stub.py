"""Write `paddle_ext/_native.pyi` from the native module: run it after changing its keywords.

The docstrings of its calls are their signatures (`csrc/calls.h`). What pybind11 defines is few
and rarely changes: it is below, and `tests/solvers/test_stub.py` checks it.
"""

import re
from pathlib import Path

from paddle_ext import _native

STUB = Path(__file__).parents[1] / "paddle_ext" / "_native.pyi"
WIDTH = 100

HEAD = '''\
"""The native module: numbers and pointers in by name, results out through pointers.

Written by tools/make_stub.py: do not edit it.

Used by the solvers and the task sampler, which check everything first. A function
takes the sizes and options of a call and returns an object whose method `run` takes the pointers;
`workspace` returns the bytes it needs.

Pointers are `Tensor.data_ptr()`, 0 if absent; all arrays are contiguous. Letters, shapes, units and
the parameters of a call are those of `csrc/common/calls.inl`; the numbers of enumerations and the
order in `size` are those of `csrc/common/params.h`. Numbers in capitals are constants of C++ that
Python shares.
"""

from collections.abc import Sequence
from typing import Any, final

def build_info() -> dict[str, Any]: ...
def set_simd_level(name: str, /) -> None: ...
def threads_made() -> int:
    """Return the number of CPU threads that this process has created; they are kept."""

def driver_version() -> int:
    """Return the newest version of CUDA that the driver runs, such as 13020; 0 without a driver."""

def gamma_functions(x: float, /) -> tuple[float, float, float]:
    """Return digamma, trigamma and the logarithm of the gamma function, for the tests."""

class Target:
    """Where to run: on the CPU with this many threads, or on a stream of a CUDA device."""

    def __init__(self, *, cuda: bool, threads: int, device: int, stream: int) -> None: ...
    @property
    def stream(self) -> int: ...
'''


def definition(function: object, indent: str = "") -> str:
    """The lines that declare a function: one if it fits, else as few as its parameters need."""
    signature = re.fullmatch(r"(\w+)\((.*)\) -> (\w+)", function.__doc__ or "")
    if signature is None:
        raise SystemExit(f"{function} has no signature: build the native module first")
    whole = f"{indent}def {signature[0]}: ..."
    if len(whole) <= WIDTH:
        return whole + "\n"
    inner = indent + "    "
    lines = [inner]
    for parameter in re.split(r", (?=\w+:|\*)", signature[2]):
        if len(lines[-1]) + len(parameter) + 1 > WIDTH:
            lines.append(inner)
        lines[-1] += parameter + ", "
    body = "".join(line.rstrip() + "\n" for line in lines)
    return f"{indent}def {signature[1]}(\n{body}{indent}) -> {signature[3]}: ...\n"


def stub() -> str:
    """The text of the stub for the native module that is installed."""
    text = HEAD + "\n"
    for name, value in vars(_native).items():
        if name.isupper():
            text += f"{name}: {type(value).__name__}\n"
    for name, kind in vars(_native).items():
        if not (isinstance(kind, type) and name.endswith("Call")):
            continue
        maker = getattr(_native, name.removesuffix("Call").lower() + "_call")
        text += f"\n{definition(maker)}\n@final\nclass {name}:\n"
        for method, value in vars(kind).items():
            if not method.startswith("_"):
                text += definition(value, "    ")
    return text


if __name__ == "__main__":
    STUB.write_text(stub())
