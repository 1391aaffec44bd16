"""The processes of one evaluation: a single one, or those that torchrun has started."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # a rank that is done waits for the slowest one


@dataclass(frozen=True)
class Ranks:
    """One process among `world`."""

    rank: int = 0
    world: int = 1
    local: int = 0  # among those of this machine
    group: dist.ProcessGroup | None = None  # None: alone

    def gather(self, value: T) -> list[T]:
        """What every rank has, by rank."""
        if self.group is None:
            return [value]
        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def together(self, call: Callable[[], T]) -> list[T]:
        """Call on every rank; what one of them raises is raised on all, so that none waits."""
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
def joined() -> Iterator[Ranks]:
    """Join the other ranks, if there are any.

    They exchange Python objects through gloo. Where the program has a process group, whatever its
    backend, it stays as it is. Otherwise, if torchrun has set WORLD_SIZE, one is made; it lives as
    long as the program, for the ranks could not meet again reliably after it has ended.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=PATIENCE)
        atexit.register(leave)
    if not initialised() or dist.get_world_size() == 1:
        yield Ranks(local=local)
        return
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), local, group)
    finally:
        dist.destroy_process_group(group)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def first() -> bool:
    """Whether this process is the one that writes files and talks."""
    return dist.get_rank() == 0 if initialised() else int(os.environ.get("RANK", "0")) == 0


def initialised() -> bool:
    return dist.is_available() and dist.is_initialized()
