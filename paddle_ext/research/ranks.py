"""The processes, or ranks, of one evaluation: a single one, or those started by torchrun."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch.distributed as dist

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # a finished rank waits for the slowest one


@dataclass(frozen=True)
class Ranks:
    """One process among `world`."""

    rank: int = 0
    world: int = 1
    local: int = 0  # its number among the processes of this machine
    group: dist.ProcessGroup | None = None  # None: alone

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank."""
        if self.group is None:
            return [value]
        import torch.distributed as dist

        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def call_on_all(self, call: Callable[[], T]) -> list[T]:
        """Call on every rank; an error on one of them is raised on all, so that none waits."""
        outcome: T | Exception
        try:
            outcome = call()
        except (OSError, TypeError, ValueError) as error:
            outcome = error
        found = []
        for each in self.gather(outcome):
            if isinstance(each, Exception):
                raise each
            found.append(each)
        return found


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the other ranks, if any.

    They exchange Python objects through gloo. An existing process group of the program, with any
    backend, is left alone. Otherwise, if torchrun has set WORLD_SIZE, one is created; it lives as
    long as the program, because the ranks could not rejoin reliably after it has ended.
    """
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    started_together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if started_together and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=PATIENCE)
        atexit.register(leave)
    if not has_process_group() or dist.get_world_size() == 1:
        yield Ranks(local=local)
        return
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), local, group)
    finally:
        dist.destroy_process_group(group)


def leave() -> None:
    if has_process_group():
        sys.modules["torch.distributed"].destroy_process_group()


def is_first_rank() -> bool:
    """Whether this process writes files and messages."""
    if has_process_group():
        return bool(sys.modules["torch.distributed"].get_rank() == 0)
    return int(os.environ.get("RANK", "0")) == 0


def has_process_group() -> bool:
    """Whether the program has a process group; if torch is not imported, it has none."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()
