"""CUDA graphs of functions that launch many small kernels, for which a host is too slow."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from inspect import isgeneratorfunction
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from ..limits import MOST_GRAPH_BYTES, MOST_GRAPH_MEMORY, MOST_GRAPHS
from .call import is_traced
from .devices import needs_cpu, warn_once

Result = TypeVar("Result")
# A function that repeats a step: yields a tensor that says which tasks still run, and how often the
# step may follow, is sent whether it does, and yields its result at the end.
Steps: TypeAlias = Generator[Any, bool, None]

NO_CACHE = "PYTORCH_NO_CUDA_MEMORY_CACHING"
# Older ones can fail to record linear algebra, which would disturb other work on the GPU.
RECORDS_ALGEBRA = torch.__version__ >= "2.11"
CALLS_BEFORE = 2  # with the same shapes, before one is recorded, which takes as long as three


def replayed(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of tensors and of hashable values, in dataclasses or named tuples or alone.

    The result depends on the arguments only, and the function reads no tensor on a GPU from the
    host, except by `Steps`. On CUDA a call of few numbers is recorded when it is repeated with the
    same shapes, and then replayed: all its kernels, or those of a step, are launched at once.
    """
    tensors = tensors_in(arguments)
    first = tensors[0]
    few = first.is_cuda and sum(x.nbytes for x in tensors) <= MOST_GRAPH_BYTES
    if few and can_record() and not (is_traced() or needs_cpu(first) or is_captured(first)):
        with lock, torch.cuda.device(first.device):
            recorder = recorder_of(first.device)
            replayable = recorder.graphs_for(function, arguments)
            if replayable is not None:
                return cast(Result, recorder.replay(replayable, tensors))
    return cast(Result, done(function(*arguments)))


def can_record() -> bool:
    """Whether this torch records graphs, and keeps the memory that they use."""
    # Other allocators may free the memory of a graph that is replayed later.
    if not RECORDS_ALGEBRA or NO_CACHE in os.environ:
        return False
    return torch.cuda.get_allocator_backend() == "native"


def done(result: Any) -> Any:
    """The result of a function, after all its steps."""
    if not isinstance(result, Generator):
        return result
    running, left = next(result)
    while left > 0 and goes_on(running):
        running, left = result.send(True)
    return result.send(False)


def goes_on(running: Tensor) -> bool:
    """Whether a task still runs; True during the capture of a CUDA graph."""
    return is_captured(running) or bool(running.any() if running.numel() > 1 else running)


def is_captured(x: Tensor) -> bool:
    """Whether work on x is captured in a CUDA graph, so that its values cannot be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class Replayable(NamedTuple):
    """A call that can be replayed, with the tensors that its graphs read, and those they write."""

    graphs: list[torch.cuda.CUDAGraph]  # one, or those of the start, a step, and the end
    inputs: list[Tensor]
    result: Any
    running: Tensor | None = None  # after the start and after a step
    most: int = 0  # how many steps there may be


class Recorder:
    """The graphs of one GPU, which run one at a time, on whatever stream."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # By function and shapes, the latest last: how often it was called, its graph, or None if it
        # cannot be recorded, or takes too much memory.
        self.known: OrderedDict[Hashable, int | Replayable | None] = OrderedDict()
        self.recording = False  # parts of a call that is recorded are not recorded alone

    def graphs_for(self, function: Callable[..., object], arguments: Any) -> Replayable | None:
        """The graph of such a call, recorded if it is time to; None if there is none."""
        if self.recording:  # another call, of which this one is a part
            return None
        precision = torch.backends.cuda.matmul.fp32_precision  # a recorded product keeps its own
        key = function, precision, with_tensors(arguments, lambda x: (x.shape, x.dtype))
        known = self.known.pop(key, 0)
        if known == CALLS_BEFORE:
            known = self.record(function, arguments)
        self.known[key] = known + 1 if isinstance(known, int) else known
        while len(self.known) > MOST_GRAPHS:
            self.done.synchronize()  # the graph may be running
            self.known.popitem(last=False)
        return known if isinstance(known, Replayable) else None

    @torch.inference_mode()
    def record(self, function: Callable[..., Any], arguments: Any) -> Replayable | None:
        static = with_tensors(arguments, torch.clone)
        self.stream.wait_stream(torch.cuda.current_stream())
        self.stream.wait_event(self.done)
        self.recording = True
        try:
            with torch.cuda.stream(self.stream):
                done(function(*static))  # libraries allocate what they need on a stream
                before = torch.cuda.memory_reserved()
                replayable = self.try_to_capture(partial(function, *static), tensors_in(static))
        finally:
            self.recording = False
        torch.cuda.current_stream().wait_stream(self.stream)
        if replayable is None:
            return None
        return replayable if torch.cuda.memory_reserved() - before <= MOST_GRAPH_MEMORY else None

    def try_to_capture(self, function: partial[Any], inputs: list[Tensor]) -> Replayable | None:
        try:
            if not isgeneratorfunction(function.func):
                graph, result = self.capture(function)
                return Replayable([graph], inputs, result)
            steps = function()
            start, (running, most) = self.capture(partial(next, steps))
            step, _ = self.capture(partial(steps.send, True), start.pool())
            end, result = self.capture(partial(steps.send, False), start.pool())
            return Replayable([start, step, end], inputs, result, running, most)
        except RuntimeError as error:
            warn_once(f"{function.func.__name__} is not recorded as a CUDA graph: {error}")
            # Random numbers of torch wait for the end of a capture, which another one reaches.
            self.capture(inputs[0].zero_)
            return None

    def capture(
        self, function: Callable[[], Result], pool: Any = None
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        # Relaxed: other threads continue, and libraries may allocate.
        graph.capture_begin(pool=pool, capture_error_mode="relaxed")
        try:
            return graph, function()
        finally:
            graph.capture_end()

    def replay(self, replayable: Replayable, tensors: list[Tensor]) -> Any:
        stream = torch.cuda.current_stream()
        stream.wait_event(self.done)
        with torch.inference_mode():
            for static, given in zip(replayable.inputs, tensors, strict=True):
                static.copy_(given)
        start, *others = replayable.graphs
        start.replay()
        if replayable.running is not None:
            step, end = others
            for _ in range(replayable.most):
                if not goes_on(replayable.running):
                    break
                step.replay()
            end.replay()
        result = with_tensors(replayable.result, torch.clone)
        self.done.record(stream)
        return result


lock, recorder_of = threading.RLock(), cache(Recorder)


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
