"""The processes of one evaluation: a single one, or those that torchrun has started."""

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
        import torch.distributed as dist

        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def call_on_all(self, call: Callable[[], T]) -> list[T]:
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
def join_ranks() -> Iterator[Ranks]:
    """Join the other ranks, if there are any.

    They exchange Python objects through gloo. Where the program has a process group, whatever its
    backend, it stays as it is. Otherwise, if torchrun has set WORLD_SIZE, one is made; it lives as
    long as the program, for the ranks could not meet again reliably after it has ended.
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
    """Whether this process is the one that writes files and talks."""
    if has_process_group():
        return bool(sys.modules["torch.distributed"].get_rank() == 0)
    return int(os.environ.get("RANK", "0")) == 0


def has_process_group() -> bool:
    """Without importing torch: a program that has a group has imported it."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()
