"""The call of native code: a table of its inputs and one of its outputs, checked here.

Torch allocates results and workspace; native code gets addresses and, on CUDA, the current stream.
It knows nothing else about a tensor, so no address is taken without a check of type, shape, device
and layout. Values are not checked here: native code keeps labels and indices in range itself, and
one that is out of range counts as no class, or as the nearest row.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

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
    if is_fake(like) or (first is not None and 0 in first[1]):
        return nothing, allocate(like, outputs)
    device = like.get_device()
    given: dict[str, Any] = {"target": target(like)}  # in the order of native code: quickest
    if typed:
        given["dtype"] = DTYPES[like.dtype]
    given |= options
    if early:
        given |= pointers(early, device)
    call = make(**given)
    size = call.workspace()
    if size < 0:
        return nothing, []
    addresses, results, new = pointers(inputs, device), [], allocator(like)
    for name, wanted in outputs.items():
        if wanted is None:
            addresses[name] = 0
            continue
        dtype, shape = wanted
        result = new(shape, strides(shape), dtype)
        addresses[name] = result.data_ptr()
        results.append(result)
    memory = None
    if size:  # 0: the call takes none
        small = size <= Scratch.size and not like.is_cuda
        memory = scratch.memory if small else new((size,), (1,), torch.uint8)
        addresses["workspace"], addresses["workspace_bytes"] = memory.data_ptr(), memory.numel()

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
    return x if is_fake(x) or x.data_ptr() % x.element_size() == 0 else x.clone()


def is_fake(x: object) -> bool:
    """Whether this is a tensor without memory, with which torch traces a call."""
    return type(x) is FakeTensor  # `isinstance` of a tensor takes as long as two of its properties


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
    return make_target(True, 0, device, raw_stream(device))


def stream_by_object(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# torch's own function, which torch.compile uses too, makes no Stream object and is faster. It is
# not public, so a torch without it is possible, and one without CUDA never has it.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", stream_by_object)


@lru_cache(maxsize=64)
def make_target(cuda: bool, threads: int, device: int, stream: int) -> Target:
    if cuda and not devices.has_code_for(device):
        raise ValueError(devices.no_code_message(device))
    return native.Target(cuda=cuda, threads=threads, device=device, stream=stream)


# --- memory -------------------------------------------------------------------------------------

# Functions of sizes, strides and a dtype that return an uninitialised tensor. Those of torch that
# torch.compile uses take less than half the time of torch.empty, but they are not public: a torch
# may lack them, or have functions of the same name that do something else.
Allocator: TypeAlias = Callable[[Shape, Shape, torch.dtype], Tensor]


def works(function: Allocator) -> bool:
    """Whether a function allocates tensors as expected, tried on a small one."""
    try:
        made = function((2, 3), (3, 1), torch.int32)
    except (TypeError, ValueError, RuntimeError):
        return False
    return made.shape == (2, 3) and made.dtype is torch.int32


def allocator_of_torch(name: str) -> Allocator | None:
    """The function of torch with this name, if the one for the CPU works as expected."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    on_cpu = getattr(guards, "_empty_strided_cpu", None)
    return getattr(guards, name, None) if on_cpu is not None and works(on_cpu) else None


empty_on_cpu = allocator_of_torch("_empty_strided_cpu")
empty_on_gpu = allocator_of_torch("_empty_strided_cuda")


def allocator(x: Tensor) -> Allocator:
    """A function that allocates tensors on the device of `x`."""
    chosen = None
    if x.is_cpu:
        chosen = empty_on_cpu
    elif x.is_cuda and x.get_device() == torch.cuda.current_device():
        chosen = empty_on_gpu
    return chosen or partial(empty, x.device)


def empty(device: torch.device, shape: Shape, strides: Shape, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def allocate(like: Tensor, outputs: Outputs) -> list[Tensor]:
    """Uninitialised tensors on the device of `like`, which may be fake."""
    wanted = [x for x in outputs.values() if x is not None]
    return [torch.empty(shape, dtype=dtype, device=like.device) for dtype, shape in wanted]


@lru_cache(maxsize=256)
def strides(shape: Shape) -> Shape:
    """The strides of a contiguous tensor of this shape."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


class Scratch(threading.local):
    """A small workspace kept by each thread, so that small CPU calls do not allocate."""

    size = 2**15  # bytes

    def __init__(self) -> None:
        self.memory = torch.empty(self.size, dtype=torch.uint8, device="cpu")


scratch = Scratch()


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
    torch.compile: the operator `torch.ops.paddle_ext.NAME`. Its fake kernel is the function itself,
    because `call_native` only allocates for fake tensors. Fields of the result that are not tensors
    are None, or arguments of the same name.
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
            # If torch records or transforms calls, it must see an operator.
            if not (torch.compiler.is_compiling() or is_transformed() or dispatch_modes() > 0):
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


# Not public, so a torch without them is possible: what is then traced other than by torch.compile,
# or transformed, has no address, and is refused.
dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
transforms = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)


def is_transformed() -> bool:
    """Whether torch.func transforms calls; raises for vmap and for gradients, which would be 0."""
    transform = transforms()
    if transform is None:
        return False
    if (name := transform.key().name) != "Functionalize":
        raise RuntimeError(
            "functions of paddle_ext take batches themselves, as [B, ...], and have no gradient: "
            f"they must be called outside the transforms of torch.func, got {name.lower()}"
        )
    return True


def register(schema: str, function: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Register a function as a torch operator; its results are detached, so without a gradient."""
    library.define(schema, tags=torch.Tag.pt2_compliant_tag)  # type: ignore[no-untyped-call]
    name = schema.partition("(")[0]
    for key in ("CPU", "CUDA"):
        library.impl(name, function, key)  # type: ignore[no-untyped-call]
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"paddle_ext::{name}", function, lib=library)
    operator: Callable[..., list[Tensor]] = getattr(torch.ops.paddle_ext, name).default
    return operator
