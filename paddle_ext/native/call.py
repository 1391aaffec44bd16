"""The call of native code: a table of its inputs and one of its outputs, checked here.

Torch allocates results and workspace; native code gets addresses and, on CUDA, the current stream.
It knows nothing else about a tensor, so no address is taken without a check of type, shape, device
and layout. Values are not checked here: native code keeps labels and indices in range itself, and
one that is out of range counts as no class, or as the nearest row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from . import devices
from .devices import on_cpu_without_gpu_code
from .load import module as native

if TYPE_CHECKING:
    from .._native import Target

P = ParamSpec("P")
Result = TypeVar("Result")

Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = Mapping[str, tuple[Tensor | None, torch.dtype, Shape]]
Outputs: TypeAlias = Mapping[str, tuple[torch.dtype, Shape] | None]

DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}  # native numbers
ON_CPU = -1  # what `Tensor.get_device` returns for the CPU
NOTHING: Mapping[str, Any] = MappingProxyType({})


def prepare(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    like: Tensor,
    inputs: Inputs,
    outputs: Outputs = NOTHING,
    *,
    early: Inputs = NOTHING,
    typed: bool = True,
) -> tuple[Callable[[], None], list[Tensor]]:
    """Make a native call that can be run several times, and allocate its results.

    The call keeps its inputs and its workspace alive. If a task is too large for the code, there
    are no results. `make` is a function of the native module, such as `adapt_call`; it takes the
    options, the inputs `early`, and, if `typed`, the dtype of `like`, on whose device it runs.

    Inputs are a tensor, or None, with its dtype and shape, by name; native code may write to them.
    Outputs are the dtype and shape of each result; None is not computed and not returned. If the
    first one has no elements, there is no task, and nothing is called.
    """
    first = next(iter(outputs.values()), None)
    if is_traced() or (first is not None and 0 in first[1]):
        return nothing, allocate(like, outputs)
    device = like.get_device()
    given: dict[str, Any] = {"target": target(like)}
    if typed:
        given["dtype"] = DTYPES[like.dtype]
    given |= options
    if early:
        given |= pointers(early, device)
    call = make(**given)
    size = call.workspace()
    if size < 0:
        return nothing, []
    addresses, results = pointers(inputs, device), []
    for name, wanted in outputs.items():
        if wanted is None:
            addresses[name] = 0
            continue
        dtype, shape = wanted
        result = torch.empty(shape, dtype=dtype, device=like.device)
        addresses[name] = result.data_ptr()
        results.append(result)
    memory = None
    if size:  # 0: the call takes none
        memory = torch.empty(size, dtype=torch.uint8, device=like.device)
        addresses["workspace"], addresses["workspace_bytes"] = memory.data_ptr(), size

    def run(kept: object = (memory, inputs, early)) -> None:
        call.run(**addresses)

    return run, results


def call_native(*arguments: Any, **options: Any) -> list[Tensor]:
    """Like `prepare`, but run the call, and return its results."""
    run, results = prepare(*arguments, **options)
    run()
    return results


def nothing() -> None:
    """The call of no tasks."""


def alike(dtype: torch.dtype, *shape: int, **tensors: Tensor | None) -> Inputs:
    """Inputs of one dtype and shape, by name."""
    return {name: (x, dtype, shape) for name, x in tensors.items()}


# --- inputs -------------------------------------------------------------------------------------


def pointers(inputs: Inputs, device: int) -> dict[str, int]:
    return {name: pointer(x, dtype, shape, device) for name, (x, dtype, shape) in inputs.items()}


def pointer(x: Tensor | None, dtype: torch.dtype, shape: Shape, device: int) -> int:
    """The address of a packed tensor of this dtype and shape, on this GPU or `ON_CPU`.

    Any other tensor is a mistake in this package, because the arguments of users have been checked
    and packed before; None is 0.
    """
    if x is None:
        return 0
    address = packed_address(x, dtype, device)
    if address < 0 or x.shape != shape:
        raise AssertionError(
            f"expected a contiguous tensor of {dtype}, shape {list(shape)}, device {device}, got "
            f"{x.dtype}, {list(x.shape)}, {x.get_device()} with strides {x.stride()} at "
            f"{x.data_ptr():#x}"
        )
    return address


def packed_address(x: Tensor, dtype: torch.dtype, device: int) -> int:
    """The address of a packed tensor of this dtype on this device; -1 for any other tensor."""
    address = x.data_ptr()
    if x.dtype is not dtype or x.get_device() != device or not x.is_contiguous():
        return -1
    return -1 if address % dtype.itemsize or (address == 0 and x.numel()) else address


def packed(x: Tensor) -> Tensor:
    """Contiguous, and at a multiple of its element size; copies only if necessary.

    Torch takes any address, for example by `torch.frombuffer(bytes, offset=1)`; native code loads
    numbers from such multiples only.
    """
    x = x.contiguous()
    return x if is_traced() or x.data_ptr() % x.element_size() == 0 else x.clone()


def require_memory(x: Tensor) -> None:
    """Raise an error for a tensor of vmap, or of gradients, which would be 0."""
    if is_traced():
        return
    try:
        x.data_ptr()
    except RuntimeError:
        raise RuntimeError(
            "functions of paddle_ext take batches themselves, as [B, ...], and have no gradient: "
            "they must be called outside the transforms of torch.func"
        ) from None


def packed_features(x: Tensor) -> Tensor:
    """x, packed; half precision is float32 on the CPU, which has no native code for it."""
    if x.dtype.itemsize == 2 and x.is_cpu:
        x = x.float()
    return packed(x)


def packed_int64(x: Tensor) -> Tensor:
    return packed(x if x.dtype is torch.int64 else x.long())


# --- where to run -------------------------------------------------------------------------------


def target(x: Tensor) -> Target:
    """The CPU with torch's number of threads, or the current stream of a CUDA device."""
    if not x.is_cuda:
        return make_target(False, torch.get_num_threads(), 0, 0)
    device = x.get_device()
    return make_target(True, 0, device, torch.cuda.current_stream(device).cuda_stream)


@lru_cache(maxsize=64)
def make_target(cuda: bool, threads: int, device: int, stream: int) -> Target:
    if cuda and not devices.has_code_for(device):
        raise ValueError(devices.no_code_message(device))
    return native.Target(cuda=cuda, threads=threads, device=device, stream=stream)


# --- memory -------------------------------------------------------------------------------------


def allocate(like: Tensor, outputs: Outputs) -> list[Tensor]:
    """Uninitialised tensors on the device of `like`."""
    wanted = [x for x in outputs.values() if x is not None]
    return [torch.empty(shape, dtype=dtype, device=like.device) for dtype, shape in wanted]


# --- the public functions -----------------------------------------------------------------------

library = torch.library.Library("paddle_ext", "DEF")  # type: ignore[no-untyped-call]

# The types of torch's schemas, by the annotations of parameters.
SCHEMA = {
    "Tensor": "Tensor",
    "Source": "Tensor",  # other sources are not for torch.compile
    "Tensor | None": "Tensor?",
    "GroupNames | None": "Tensor?",  # other names are not for torch.compile
    "Sequence[float]": "float[]",
    "bool": "bool",
    "bool | None": "bool?",
    "float": "float",
    "float | None": "float?",
    "int": "int",
    "int | None": "SymInt?",
    "str": "str",
}


def solver(kind: Any) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Decorate a public function that checks its arguments and returns a named tuple, `kind`.

    It computes on the CPU what has no native code on CUDA, and is one node in the graphs of
    torch.compile and torch.export: the operator `torch.ops.paddle_ext.NAME`. They trace it by the
    function itself, which then only allocates its results. Fields of the result that are not
    tensors are None, or arguments of the same name.
    """
    constants = {name: x for name, x in kind._field_defaults.items() if x is not None}

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        parameters = inspect.signature(function).parameters
        names = tuple(parameters)
        fields = [name for name in kind._fields if name not in {*names, *constants}]
        defaults = {name: x.default for name, x in parameters.items() if x.default is not x.empty}
        needed = [name for name in names if SCHEMA[parameters[name].annotation] == "Tensor"]
        run = on_cpu_without_gpu_code(function)

        def tensors(*arguments: Any) -> list[Tensor]:
            """The result; as an operator returns tensors only, None is an empty one of uint8."""
            result = cast(Any, run)(**dict(zip(names, arguments, strict=True)))
            none = partial(torch.empty, 0, dtype=torch.uint8, device=result[0].device)
            return [none() if x is None else x for x in (getattr(result, name) for name in fields)]

        types = (f"{SCHEMA[x.annotation]} {name}" for name, x in parameters.items())
        operator = register(f"{function.__name__}({', '.join(types)}) -> Tensor[]", tensors)

        @wraps(function)
        def wrapper(*arguments: P.args, **options: P.kwargs) -> Result:
            if not torch.compiler.is_compiling():
                on_cpu = arguments and isinstance(arguments[0], Tensor) and arguments[0].is_cpu
                return (function if on_cpu else run)(*arguments, **options)
            given: dict[str, Any] = {**defaults, **dict(zip(needed, arguments)), **options}  # noqa: B905
            # Anything else is an error, or queries from a file, which are not for torch.compile.
            if (
                set(given) != set(names)
                or len(arguments) > len(needed)
                or not all(isinstance(given[name], Tensor) for name in needed)
            ):
                return run(*arguments, **options)
            outputs = operator(*[given[name] for name in names])
            given = {**constants, **given}
            for name, x in zip(fields, outputs):  # noqa: B905
                given[name] = None if x.dtype is torch.uint8 else x
            return cast(Result, kind(*[given[name] for name in kind._fields]))

        return wrapper

    return decorate


# Whether torch traces a call now: its tensors have shapes, but neither memory nor values.
tracing: ContextVar[bool] = ContextVar("tracing", default=False)


def is_traced() -> bool:
    return tracing.get()


def traced(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function know that it is traced."""

    @wraps(function)
    def wrapper(*arguments: P.args, **options: P.kwargs) -> Result:
        token = tracing.set(True)
        try:
            return function(*arguments, **options)
        finally:
            tracing.reset(token)

    return wrapper


def register(schema: str, function: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Register a function as a torch operator; its results are detached, so without a gradient."""
    library.define(schema, tags=torch.Tag.pt2_compliant_tag)  # type: ignore[no-untyped-call]
    name = schema.partition("(")[0]
    for key in ("CPU", "CUDA"):
        library.impl(name, function, key)  # type: ignore[no-untyped-call]
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"paddle_ext::{name}", traced(function), lib=library)
    operator: Callable[..., list[Tensor]] = getattr(torch.ops.paddle_ext, name).default
    return operator
