"""CUDA graphs of functions that launch many small kernels, for which a host is too slow."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from ..limits import MOST_GRAPH_BYTES, MOST_GRAPHS
from .call import is_fake
from .devices import needs_cpu, warn_once

Result = TypeVar("Result")

CALLS_BEFORE = 2  # with the same shapes, before one is recorded, which takes as long as three


def replayed(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of tensors and of hashable values, in dataclasses or named tuples or alone.

    The result depends on the arguments only, and the function reads no tensor on a GPU from the
    host. On CUDA a call of few numbers is recorded when it is repeated with the same shapes, and
    then replayed: all its kernels are launched at once.
    """
    tensors = tensors_in(arguments)
    first = tensors[0]
    if is_fake(first) or sum(x.nbytes for x in tensors) > MOST_GRAPH_BYTES:
        return function(*arguments)
    if first.is_cuda and not needs_cpu(first):
        found = recorded_result(function, arguments, tensors)
        if found is not None:
            return cast(Result, found)
    with torch.inference_mode():  # an eighth less time for the host
        result = function(*arguments)
    return cast(Result, with_tensors(result, torch.clone))


def recorded_result(function: Callable[..., object], arguments: Any, tensors: list[Tensor]) -> Any:
    """The result of the graph of such a call; None if there is none yet."""
    if torch.cuda.is_current_stream_capturing():
        return None
    device = tensors[0].device
    with lock, torch.cuda.device(device):
        if device not in recorders:
            recorders[device] = Recorder(device)
        recorded = recorders[device].recorded(function, arguments)
        return None if recorded is None else recorders[device].replay(recorded, tensors)


class Recorded(NamedTuple):
    """A call that can be replayed, with the tensors that its graph reads, and those it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Any


class Recorder:
    """The graphs of one GPU. They share memory, so one waits for the other, on whatever stream."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        # By function and shapes, the latest last: how often it was called, its graph, or None if it
        # cannot be recorded.
        self.known: OrderedDict[Hashable, int | Recorded | None] = OrderedDict()

    def recorded(self, function: Callable[..., object], arguments: Any) -> Recorded | None:
        """The graph of such a call, recorded if it is time to; None: there is none."""
        key = function, with_tensors(arguments, lambda x: (x.shape, x.dtype))
        known = self.known.pop(key, 0)
        if known == CALLS_BEFORE:
            known = self.record(function, arguments)
        self.known[key] = known + 1 if isinstance(known, int) else known
        while len(self.known) > MOST_GRAPHS:
            self.done.synchronize()  # the graph may be running
            self.known.popitem(last=False)
        return known if isinstance(known, Recorded) else None

    @torch.inference_mode()
    def record(self, function: Callable[..., object], arguments: Any) -> Recorded | None:
        static, graph = with_tensors(arguments, torch.clone), torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        self.stream.wait_event(self.done)
        with torch.cuda.stream(self.stream):
            function(*static)  # libraries allocate what they need on a stream
            try:
                # Relaxed: other threads go on, and libraries may allocate.
                graph.capture_begin(pool=self.pool, capture_error_mode="relaxed")
                try:
                    result = function(*static)
                finally:
                    graph.capture_end()
            except RuntimeError as error:
                warn_once(f"{function.__name__} is not recorded as a CUDA graph: {error}")
                self.pool = torch.cuda.graph_pool_handle()
                return None
        torch.cuda.current_stream().wait_stream(self.stream)
        return Recorded(graph, tensors_in(static), result)

    def replay(self, recorded: Recorded, tensors: list[Tensor]) -> Any:
        stream = torch.cuda.current_stream()
        stream.wait_event(self.done)
        with torch.inference_mode():
            for static, given in zip(recorded.inputs, tensors, strict=True):
                static.copy_(given)
        recorded.graph.replay()
        result = with_tensors(recorded.result, torch.clone)
        self.done.record(stream)
        return result


recorders: dict[torch.device, Recorder] = {}
lock = threading.Lock()


def with_tensors(x: Any, change: Callable[[Tensor], Any]) -> Any:
    """x with every tensor in it changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, tuple):
        parts = [with_tensors(part, change) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if not is_dataclass(x) or isinstance(x, type):
        return x
    own = {field.name: with_tensors(getattr(x, field.name), change) for field in fields(x)}
    return replace(x, **own)


def tensors_in(x: Any) -> list[Tensor]:
    found: list[Tensor] = []
    with_tensors(x, found.append)
    return found
